"""Timers of event time: set, deleted, fired in order of their time."""

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, TimeDomain
from pyflink.datastream.state import ValueStateDescriptor


class FirstField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return int(value[0])


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.FLOAT()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.sum.update((self.sum.value() or 0) + value[2])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2001)
        ctx.timer_service().delete_event_time_timer(ctx.timestamp() + 2001)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        is_event_time = ctx.time_domain() == TimeDomain.EVENT_TIME
        yield f"{ctx.get_current_key()} {timestamp} {ctx.timestamp()} {self.sum.value():.1f} {is_event_time}"


def event_time_timer():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    events = [
        (1000, "Alice", 110.5),
        (4000, "Bob", 30.5),
        (3000, "Alice", 20.0),
        (2000, "Bob", 53.5),
        (5000, "Alice", 13.0),
        (3000, "Bob", 3.0),
        (7000, "Bob", 16.0),
        (10000, "Alice", 20.0),
    ]
    stream = env.from_collection(events, type_info=Types.TUPLE([Types.LONG(), Types.STRING(), Types.FLOAT()]))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(20)).with_timestamp_assigner(
        FirstField()
    )
    stream.assign_timestamps_and_watermarks(strategy).key_by(lambda value: value[1]).process(Sum()).print()
    env.execute("event time timer")


if __name__ == "__main__":
    event_time_timer()
