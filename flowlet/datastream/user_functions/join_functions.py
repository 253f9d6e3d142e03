"""Functions of two records, or two groups of records, that a join or a co-group brings together.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: Flink ``JoinFunction``, ``FlatJoinFunction``, ``CoGroupFunction``, ``ProcessJoinFunction``, which PyFlink lacks,
        with names in the style of Python; results are returned or yielded instead of given to a collector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from flowlet.datastream.user_functions.function import Function


class JoinFunction(Function):
    """Returns one record for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """The record that a record of the first stream and one of the second become."""


class FlatJoinFunction(Function):
    """Returns any number of records for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """The records that a pair becomes; often a generator, None for none."""


class CoGroupFunction(Function):
    """Sees all records of both streams with the same key in the same window."""

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any] | None:
        """The records that two groups become; one of them may be empty, so this makes outer joins, too."""


class ProcessJoinFunction(Function):
    """Returns any number of records for each pair of an interval join, to the main output or to side outputs; sees
    timestamps.
    """

    class Context(ABC):
        """The context of the present pair; not valid afterwards."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Event time of the left record in milliseconds since the epoch."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Event time of the right record."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """The later of both: the timestamp of the results."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: "ProcessJoinFunction.Context") -> Iterable[Any] | None:
        """An iterable of the records that the pair becomes, often a generator; ``(tag, value)`` goes to the side output
        of a tag.
        """
