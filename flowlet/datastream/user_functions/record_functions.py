"""Functions that are called record by record.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``; that module exports them, too.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from flowlet.datastream.connectors.base import SinkWriterContext
from flowlet.datastream.user_functions.function import Function, WrittenInPython

if TYPE_CHECKING:
    from flowlet.timers.keyed_timer_service import ProcessingTimeService


class MapFunction(Function):
    """Returns one record for each record."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that replaces ``value``."""


class FlatMapFunction(Function):
    """Returns any number of records for each record."""

    @abstractmethod
    def flat_map(self, value: Any) -> Any:
        """An iterable of the records that replace ``value``; often a generator."""


class FilterFunction(Function):
    """Decides which records to keep."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep ``value``."""


class ReduceFunction(Function):
    """Combines two records of one key."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """The result so far (``value1``) combined with the next record; neither may be changed in place."""


class AggregateFunction(Function):
    """Combines the values of one key by means of an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """The accumulator before the first value."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with one more value; may be the given object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result so far."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """The accumulator of the values of both; may be either of them, changed."""


class Partitioner(Function):
    """Chooses the subtask for a key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The index of the subtask, 0 to ``num_partitions - 1``."""


class KeySelector(Function):
    """Returns the key of a record."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key, for example a str, an int or a tuple of these; see ``key_by``."""


class SinkContext(SinkWriterContext):
    """The record that a ``SinkFunction`` gets; valid during one call of ``invoke``."""

    __slots__ = ("_clock",)

    def __init__(self, clock: "ProcessingTimeService | None") -> None:
        super().__init__()
        self._clock = clock

    def current_processing_time(self) -> int:
        """The time of the clock, in milliseconds since the epoch."""
        assert self._clock is not None, "run by a task"
        return self._clock.current_time_ms()


class SinkFunction(WrittenInPython, Function):
    """A function that is called with each record; the argument of ``add_sink``.

    With ``CheckpointedFunction`` or ``CheckpointListener`` as a second base class it takes part in checkpoints.
    """

    _instead = (
        "sinks written in Java cannot be used; derive a class with invoke(value, context) from it, or give a sink of "
        "flowlet.datastream.connectors to sink_to()"
    )

    @abstractmethod
    def invoke(self, value: Any, context: SinkContext) -> None:
        """Take one record."""

    def finish(self) -> None:
        """Write out waiting records: no record follows.  Unlike ``close``, not called after a failure."""
