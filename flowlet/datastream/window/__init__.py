"""Windows, and what makes, evaluates and empties them."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.datastream.window.evictors import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.session_assigners import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.time_triggers import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.triggers import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.window_assigners import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.window_serializers import *  # noqa: F403 - they are all below
    from flowlet.datastream.window.windows import *  # noqa: F403 - they are all below

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = late_names(
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
