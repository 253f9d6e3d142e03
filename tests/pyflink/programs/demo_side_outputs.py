"""Side outputs of a process function, a keyed one with timers, and of a side output's own operator."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment

ODD = OutputTag("odd", Types.INT())
TEXT = OutputTag("text", Types.STRING())
LAST = OutputTag("last", Types.TUPLE([Types.INT(), Types.LONG()]))


class Itself(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value


class Split(ProcessFunction):
    def process_element(self, value, ctx: "ProcessFunction.Context"):
        if value % 2:
            yield ODD, value
        else:
            yield value
        if value % 5 == 0:
            yield TEXT, f"five divides {value} at {ctx.timestamp()}"


class AtTheEnd(KeyedProcessFunction):
    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        ctx.timer_service().register_event_time_timer(100 + ctx.get_current_key())
        yield value * 100

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield LAST, (ctx.get_current_key(), timestamp)


def side_outputs():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    numbers = env.from_collection(list(range(1, 12)), type_info=Types.INT()).assign_timestamps_and_watermarks(strategy)
    even = numbers.process(Split(), output_type=Types.INT())
    even.print("even")
    even.get_side_output(ODD).map(lambda number: number * 10, output_type=Types.INT()).print("odd")
    even.get_side_output(TEXT).print("text")
    ended = even.key_by(lambda number: number % 3, key_type=Types.INT()).process(AtTheEnd(), output_type=Types.INT())
    ended.print("keyed")
    ended.get_side_output(LAST).print("last")
    env.execute("side outputs")


if __name__ == "__main__":
    side_outputs()
