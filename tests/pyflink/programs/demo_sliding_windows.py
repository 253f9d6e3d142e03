"""Sliding windows of event time: reduce, reduce with a process function, and an offset."""

from collections.abc import Iterable

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, ReduceFunction, StreamExecutionEnvironment
from pyflink.datastream.window import SlidingEventTimeWindows, TimeWindow


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class Later(ReduceFunction):
    def reduce(self, value1, value2):
        return value1[0], value1[1] + value2[1]


class WithWindow(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[str]:
        window = context.window()
        for element in elements:
            yield f"{key} [{window.start}, {window.end}) {element[1]}"


def sliding_windows():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("hi", 1), ("hi", 2), ("hi", 3), ("hello", 3), ("hi", 4), ("hi", 8), ("hello", 5), ("hi", 5)]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5)).with_timestamp_assigner(
        SecondField()
    )
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    stream = env.from_collection(records, type_info=pair).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda record: record[0], key_type=Types.STRING())
    keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2))).reduce(
        Later(), window_function=WithWindow(), output_type=Types.STRING()
    ).print()
    keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(2), Time.milliseconds(1))).reduce(
        lambda left, right: (left[0], left[1] + right[1]), output_type=pair
    ).print("offset")
    env.execute("sliding windows")


if __name__ == "__main__":
    sliding_windows()
