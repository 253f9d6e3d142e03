"""``IntervalJoin`` and ``IntervalJoined``: how ``KeyedStream.interval_join`` is spelled out.

Side:   pure.  Nothing runs before ``execute``.
Source: Flink ``KeyedStream.IntervalJoin``, ``KeyedStream.IntervalJoined``; the DataStream API of PyFlink has no joins.
Absent: processing time, which Flink refuses, too.
"""

from typing import TYPE_CHECKING, Self

from flowlet.common.time import Length, millis_of
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.user_functions.argument_checks import checked_object, declared_type
from flowlet.datastream.user_functions.join_functions import ProcessJoinFunction
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import GraphValue, OperatorFactory

if TYPE_CHECKING:
    from flowlet.datastream.data_stream import DataStream
    from flowlet.datastream.keyed_stream import KeyedStream
    from flowlet.datastream.output_tag import OutputTag

__all__ = ["IntervalJoin", "IntervalJoined"]


class IntervalJoin:
    """Two keyed streams whose records meet if their timestamps lie close together; ``between`` says how close."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: "KeyedStream", right: "KeyedStream") -> None:
        self._left = left
        self._right = right

    def in_event_time(self) -> Self:
        """Compare timestamps, which is the only way."""
        return self

    def in_processing_time(self) -> Self:
        """Raise JobGraphError: as in Flink, an interval join needs event time."""
        raise JobGraphError(
            "interval_join() works in event time only; assign timestamps and watermarks to both streams"
        )

    def between(self, lower_bound: Length, upper_bound: Length) -> "IntervalJoined":
        """Join a left record with the right ones from its timestamp plus ``lower_bound`` to its timestamp plus
        ``upper_bound``.

        Args:
            lower_bound: may be negative.
            upper_bound: not less; both bounds belong to the interval.

        Raises:
            JobGraphError: a bound is no length of time, or the upper one is less.
        """
        lower, upper = (millis_of(each, "between()") for each in (lower_bound, upper_bound))
        if upper < lower:
            raise JobGraphError(
                f"between() needs a lower bound that is not above the upper one, got {lower} ms and {upper} ms"
            )
        return IntervalJoined(self._left, self._right, lower, upper)


class IntervalJoined:
    """Two keyed streams and the interval in which their records meet; ``process`` says what becomes of a pair."""

    __slots__ = ("_late_tags", "_left", "_lower", "_right", "_upper")

    def __init__(self, left: "KeyedStream", right: "KeyedStream", lower: int, upper: int) -> None:
        self._left = left
        self._right = right
        self._lower = lower
        self._upper = upper
        self._late_tags: list[str | None] = [None, None]

    def lower_bound_exclusive(self) -> Self:
        """Leave out right records at the lower bound."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> Self:
        """Leave out right records at the upper bound."""
        self._upper -= 1
        return self

    def side_output_left_late_data(self, output_tag: "OutputTag") -> Self:
        """Send left records that are older than the watermark to a side output; else they are counted and dropped."""
        return self._with_late_tag(0, output_tag, "side_output_left_late_data")

    def side_output_right_late_data(self, output_tag: "OutputTag") -> Self:
        """Send right records that are older than the watermark to a side output; else they are counted and dropped."""
        return self._with_late_tag(1, output_tag, "side_output_right_late_data")

    def process(self, func: ProcessJoinFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function to each pair; results have the later timestamp of the pair.

        Raises:
            JobGraphError: it is no ``ProcessJoinFunction``, or the exclusive bounds leave no interval.
        """
        function = checked_object(func, "process", ProcessJoinFunction)
        if self._upper < self._lower:
            raise JobGraphError("process(): the exclusive bounds of the interval join leave nothing between them")
        factory = OperatorFactory.of(
            "flowlet.joins.interval_join_operator:IntervalJoinOperator",
            function=function,
            key_selectors=(self._left._key_selector, self._right._key_selector),
            bounds=(self._lower, self._upper),
            late_tags=tuple(self._late_tags),
            is_batch=GraphValue.IS_BATCH,
        )
        step = self._left._step("Interval Join", factory, declared_type(output_type))
        step.second_input = self._right._transformation
        return self._left._then(step)

    def _with_late_tag(self, index: int, output_tag: "OutputTag", method: str) -> Self:
        tag_id = getattr(output_tag, "tag_id", None)
        if not isinstance(tag_id, str):
            raise JobGraphError(f"{method}() needs an OutputTag, got {output_tag!r}")
        self._late_tags[index] = tag_id
        return self
