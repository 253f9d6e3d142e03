"""``WindowSpec``: all settings of a windowed stream, for the operator that makes the windows.

Side:   pure.  Pickled with the operator.
Source: PyFlink ``WindowOperationDescriptor``; Flink ``WindowOperatorBuilder``.
"""

from typing import Any

from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.user_functions.record_functions import AggregateFunction
from flowlet.datastream.window.evictors import Evictor
from flowlet.datastream.window.time_triggers import EventTimeTrigger
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import (
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from flowlet.datastream.window.windows import MAX_WINDOW_TIMESTAMP
from netstack.late import dataclass

__all__ = ["WindowSpec"]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The parts of a windowed stream.

    Args:
        assigner: puts records into windows.
        trigger: decides when they are evaluated.
        evictor: takes records out; None: all records stay.
        allowed_lateness_ms: how long windows stay after their end.
        late_tag_id: the side output of late records; None: they are dropped and counted.
        combine: a ``ReduceFunction`` or a callable of two records, an ``AggregateFunction``, or None: all records are
            kept.
        function: is called with the records, or with the result of ``combine``: an object with ``apply`` or
            ``process``; None: the result of ``combine`` is emitted.
        state_type: the declared type of the stored values: of a record, or of the accumulator.
        is_keyed: whether ``function`` is given the key.
    """

    assigner: WindowAssigner[Any, Any]
    trigger: Trigger[Any, Any]
    evictor: Evictor[Any, Any] | None = None
    allowed_lateness_ms: int = 0
    late_tag_id: str | None = None
    combine: Any = None
    function: Any = None
    state_type: TypeInformation | None = None
    is_keyed: bool = True

    def cleanup_time(self, window: Any) -> int:
        """Return the time at which a window of event time is forgotten: its end and the allowed lateness are over;
        ``MAX_WINDOW_TIMESTAMP``: never.
        """
        end: int = window.max_timestamp()
        return min(end + self.allowed_lateness_ms, MAX_WINDOW_TIMESTAMP)

    @property
    def merges(self) -> bool:
        """Whether windows may become one."""
        return isinstance(self.assigner, MergingWindowAssigner)

    @property
    def is_aligned(self) -> bool:
        """Whether all keys have windows of equal times, which only the watermark evaluates.

        Decided by exact types: a subclass may behave in another way.
        """
        is_known = type(self.assigner) in (TumblingEventTimeWindows, SlidingEventTimeWindows)
        return is_known and type(self.trigger) is EventTimeTrigger and self.evictor is None

    @property
    def aggregates(self) -> bool:
        """Whether ``combine`` is an ``AggregateFunction``."""
        return isinstance(self.combine, AggregateFunction)
