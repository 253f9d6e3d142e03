"""BATCH mode: one result per key, and timers at the end of each key."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class PerKey(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.sum.update((self.sum.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(1000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        if self.sum.value() is not None:
            yield f"{ctx.get_current_key()} {self.sum.value()} at {timestamp}"
        self.sum.clear()


def batch_mode():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_parallelism(1)
    pairs = [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("b", 5), ("a", 6), ("d", 7)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    stream = env.from_collection(
        pairs, type_info=Types.TUPLE([Types.STRING(), Types.LONG()])
    ).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda pair: pair[0], key_type=Types.STRING())
    keyed.reduce(lambda left, right: (left[0], left[1] + right[1])).print("reduce")
    keyed.sum(1).print("sum")
    keyed.process(PerKey(), output_type=Types.STRING()).print("process")
    stream.filter(lambda pair: pair[1] > 4).print("filter")
    env.execute("batch mode")


if __name__ == "__main__":
    batch_mode()
