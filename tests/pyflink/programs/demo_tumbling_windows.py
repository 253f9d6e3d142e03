"""Tumbling windows of event time, with a process window function, an offset, and apply()."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class CountProcess(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len([e for e in elements]))]


class SumApply(WindowFunction[tuple, tuple, str, TimeWindow]):
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[tuple[str, int]]):
        yield key, window.start, window.max_timestamp(), sum(e[1] for e in inputs)


def tumbling_windows():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("hi", 1), ("hi", 2), ("hello", 3), ("hi", 4), ("hi", 5), ("hello", 8), ("hi", 9), ("hi", 15)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    stream = env.from_collection(
        records, type_info=Types.TUPLE([Types.STRING(), Types.INT()])
    ).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda record: record[0], key_type=Types.STRING())
    counted = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(5))).process(CountProcess(), counted).print()
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2))).apply(
        SumApply(), counted
    ).print("offset")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).apply(SumApply()).print("not declared")
    env.execute("tumbling windows")


if __name__ == "__main__":
    tumbling_windows()
