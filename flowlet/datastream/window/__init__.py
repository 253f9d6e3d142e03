"""Windows, and what makes, evaluates and empties them."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.datastream.window.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, TimestampedValue
    from flowlet.datastream.window.session_assigners import (
        DynamicEventTimeSessionWindows,
        DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows,
        ProcessingTimeSessionWindows,
        SessionWindowTimeGapExtractor,
    )
    from flowlet.datastream.window.time_triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        EventTimeTrigger,
        ProcessingTimeTrigger,
    )
    from flowlet.datastream.window.triggers import CountTrigger, NeverTrigger, PurgingTrigger, Trigger, TriggerResult
    from flowlet.datastream.window.window_assigners import (
        CountSlidingWindowAssigner,
        CountTumblingWindowAssigner,
        GlobalWindows,
        MergingWindowAssigner,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from flowlet.datastream.window.window_serializers import (
        CountWindowSerializer,
        GlobalWindowSerializer,
        TimeWindowSerializer,
    )
    from flowlet.datastream.window.windows import CountWindow, GlobalWindow, TimeWindow, Window

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "CountWindowSerializer",
    "DeltaEvictor",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "GlobalWindows",
    "MergingWindowAssigner",
    "NeverTrigger",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "TimeWindowSerializer",
    "TimestampedValue",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "datastream.window.evictors": "CountEvictor DeltaEvictor Evictor TimeEvictor TimestampedValue",
            "datastream.window.session_assigners": (
                "DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows EventTimeSessionWindows "
                "ProcessingTimeSessionWindows SessionWindowTimeGapExtractor"
            ),
            "datastream.window.time_triggers": (
                "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger EventTimeTrigger ProcessingTimeTrigger"
            ),
            "datastream.window.triggers": "CountTrigger NeverTrigger PurgingTrigger Trigger TriggerResult",
            "datastream.window.window_assigners": (
                "CountSlidingWindowAssigner CountTumblingWindowAssigner GlobalWindows MergingWindowAssigner "
                "SlidingEventTimeWindows SlidingProcessingTimeWindows TumblingEventTimeWindows "
                "TumblingProcessingTimeWindows WindowAssigner"
            ),
            "datastream.window.window_serializers": (
                "CountWindowSerializer GlobalWindowSerializer TimeWindowSerializer"
            ),
            "datastream.window.windows": "CountWindow GlobalWindow TimeWindow Window",
        },
        missing_names(__name__),
    )
