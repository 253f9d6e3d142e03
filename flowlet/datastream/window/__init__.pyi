# The names of this package: type checkers read them here, and ``netstack.late`` when the package is imported.

from flowlet.datastream.window.evictors import CountEvictor as CountEvictor
from flowlet.datastream.window.evictors import DeltaEvictor as DeltaEvictor
from flowlet.datastream.window.evictors import Evictor as Evictor
from flowlet.datastream.window.evictors import TimeEvictor as TimeEvictor
from flowlet.datastream.window.evictors import TimestampedValue as TimestampedValue
from flowlet.datastream.window.session_assigners import DynamicEventTimeSessionWindows as DynamicEventTimeSessionWindows
from flowlet.datastream.window.session_assigners import (
    DynamicProcessingTimeSessionWindows as DynamicProcessingTimeSessionWindows,
)
from flowlet.datastream.window.session_assigners import EventTimeSessionWindows as EventTimeSessionWindows
from flowlet.datastream.window.session_assigners import ProcessingTimeSessionWindows as ProcessingTimeSessionWindows
from flowlet.datastream.window.session_assigners import SessionWindowTimeGapExtractor as SessionWindowTimeGapExtractor
from flowlet.datastream.window.time_triggers import ContinuousEventTimeTrigger as ContinuousEventTimeTrigger
from flowlet.datastream.window.time_triggers import ContinuousProcessingTimeTrigger as ContinuousProcessingTimeTrigger
from flowlet.datastream.window.time_triggers import EventTimeTrigger as EventTimeTrigger
from flowlet.datastream.window.time_triggers import ProcessingTimeTrigger as ProcessingTimeTrigger
from flowlet.datastream.window.triggers import CountTrigger as CountTrigger
from flowlet.datastream.window.triggers import NeverTrigger as NeverTrigger
from flowlet.datastream.window.triggers import PurgingTrigger as PurgingTrigger
from flowlet.datastream.window.triggers import Trigger as Trigger
from flowlet.datastream.window.triggers import TriggerResult as TriggerResult
from flowlet.datastream.window.window_assigners import CountSlidingWindowAssigner as CountSlidingWindowAssigner
from flowlet.datastream.window.window_assigners import CountTumblingWindowAssigner as CountTumblingWindowAssigner
from flowlet.datastream.window.window_assigners import GlobalWindows as GlobalWindows
from flowlet.datastream.window.window_assigners import MergingWindowAssigner as MergingWindowAssigner
from flowlet.datastream.window.window_assigners import SlidingEventTimeWindows as SlidingEventTimeWindows
from flowlet.datastream.window.window_assigners import SlidingProcessingTimeWindows as SlidingProcessingTimeWindows
from flowlet.datastream.window.window_assigners import TumblingEventTimeWindows as TumblingEventTimeWindows
from flowlet.datastream.window.window_assigners import TumblingProcessingTimeWindows as TumblingProcessingTimeWindows
from flowlet.datastream.window.window_assigners import WindowAssigner as WindowAssigner
from flowlet.datastream.window.window_serializers import CountWindowSerializer as CountWindowSerializer
from flowlet.datastream.window.window_serializers import GlobalWindowSerializer as GlobalWindowSerializer
from flowlet.datastream.window.window_serializers import TimeWindowSerializer as TimeWindowSerializer
from flowlet.datastream.window.windows import CountWindow as CountWindow
from flowlet.datastream.window.windows import GlobalWindow as GlobalWindow
from flowlet.datastream.window.windows import TimeWindow as TimeWindow
from flowlet.datastream.window.windows import Window as Window
