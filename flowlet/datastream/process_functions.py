"""Functions of two streams and process functions.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``, which re-exports them here too.
Absent: broadcast and window functions; keyed state.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from flowlet.datastream.function import Function
from flowlet.datastream.time_domain import TimeDomain
from flowlet.datastream.timerservice import TimerService

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction", "KeyedProcessFunction", "ProcessFunction"]


class CoMapFunction(Function):
    """One record for each record of either of two streams."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """The record that takes the place of one of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """The record that takes the place of one of the second stream."""


class CoFlatMapFunction(Function):
    """Any number of records for each record of either of two streams."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """What takes the place of a record of the first stream; often a generator, None for nothing."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """What takes the place of a record of the second stream; often a generator, None for nothing."""


class _Context(ABC):
    """About the record that is being processed; not usable afterwards."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Of the record or timer, milliseconds since the epoch; None if it has none."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Clock and timers."""


class _KeyedContext(_Context):
    """About the record and its key."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """The key of the record or timer."""


class _OnTimerContext(_KeyedContext):
    """About the timer that fires."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """By which time it fires."""


class ProcessFunction(Function):
    """Any number of records for each record, with its timestamp at hand, into the main output or side outputs."""

    class Context(_Context):
        """About the record."""

    @abstractmethod
    def process_element(self, value: Any, ctx: "ProcessFunction.Context") -> Iterable[Any] | None:
        """What becomes of a record: an iterable, often a generator; ``(tag, value)`` with an ``OutputTag`` goes to that side output."""


class KeyedProcessFunction(Function):
    """As ``ProcessFunction``, on a keyed stream and with timers."""

    class Context(_KeyedContext):
        """About the record."""

    class OnTimerContext(_OnTimerContext):
        """About the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: "KeyedProcessFunction.Context") -> Iterable[Any] | None:
        """See ``ProcessFunction.process_element``."""

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext") -> Iterable[Any] | None:
        """A timer fires: what becomes of it, as from ``process_element``."""
        return None


class CoProcessFunction(Function):
    """As ``ProcessFunction``, on two streams."""

    class Context(_Context):
        """About the record."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: "CoProcessFunction.Context") -> Iterable[Any] | None:
        """What becomes of a record of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: "CoProcessFunction.Context") -> Iterable[Any] | None:
        """What becomes of a record of the second stream."""


class KeyedCoProcessFunction(Function):
    """As ``KeyedProcessFunction``, on two streams keyed alike."""

    class Context(_KeyedContext):
        """About the record."""

    class OnTimerContext(_OnTimerContext):
        """About the timer."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: "KeyedCoProcessFunction.Context") -> Iterable[Any] | None:
        """What becomes of a record of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: "KeyedCoProcessFunction.Context") -> Iterable[Any] | None:
        """What becomes of a record of the second stream."""

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext") -> Iterable[Any] | None:
        """A timer fires: what becomes of it."""
        return None
