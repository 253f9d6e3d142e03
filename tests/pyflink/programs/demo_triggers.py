"""Global windows with triggers: by count, purging, and one of one's own with state."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment, Trigger, TriggerResult, WindowFunction
from pyflink.datastream.state import ReducingStateDescriptor
from pyflink.datastream.window import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
)


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class Sum(WindowFunction[tuple, tuple, str, GlobalWindow]):
    def apply(self, key: str, window: GlobalWindow, inputs: Iterable[tuple]):
        return [(key, sum(element[1] for element in inputs))]


class AtTen(Trigger[tuple, GlobalWindow]):
    """Fires and purges when the values of the window reach ten."""

    def __init__(self):
        self.descriptor = ReducingStateDescriptor("sum", lambda left, right: left + right, Types.INT())

    def on_element(self, element, timestamp, window, ctx):
        total = ctx.get_partitioned_state(self.descriptor)
        total.add(element[1])
        if total.get() < 10:
            return TriggerResult.CONTINUE
        total.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.descriptor)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.descriptor).clear()


def triggers():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("a", 1), ("b", 6), ("a", 2), ("a", 3), ("b", 7), ("a", 8), ("a", 9), ("b", 1), ("a", 4)]
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    keyed = (
        env.from_collection(records, type_info=pair)
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda record: record[0])
    )
    keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).apply(Sum(), pair).print("count")
    keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))).apply(Sum(), pair).print(
        "purging"
    )
    keyed.window(GlobalWindows.create()).trigger(AtTen()).apply(Sum(), pair).print("at ten")
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).trigger(EventTimeTrigger.create()).apply(
        Sum(), pair
    ).print("event time")
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).trigger(
        ContinuousEventTimeTrigger.of(Time.milliseconds(6))
    ).apply(Sum(), pair).print("continuous")
    env.execute("triggers")


if __name__ == "__main__":
    triggers()
