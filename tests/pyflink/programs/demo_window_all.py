"""Windows over all records, without keys."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import AllWindowFunction, ProcessAllWindowFunction
from pyflink.datastream.window import (
    CountTumblingWindowAssigner,
    CountWindow,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class Names(ProcessAllWindowFunction[tuple, tuple, TimeWindow]):
    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[tuple]) -> Iterable[tuple]:
        yield context.window().start, context.window().end, ",".join(sorted(element[0] for element in elements))


class SumAll(AllWindowFunction[tuple, tuple, CountWindow]):
    def apply(self, window: CountWindow, inputs: Iterable[tuple]) -> Iterable[tuple]:
        numbers = [element[1] for element in inputs]
        yield len(numbers), sum(numbers)


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return f"{accumulator} records"

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


def window_all():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("hi", 1), ("hello", 2), ("hey", 4), ("hi", 5), ("ho", 9), ("hi", 12)]
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    stream = env.from_collection(records, type_info=pair).assign_timestamps_and_watermarks(strategy)
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(5))).process(
        Names(), Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])
    ).print("process")
    stream.window_all(SlidingEventTimeWindows.of(Time.milliseconds(6), Time.milliseconds(3))).aggregate(
        Count(), accumulator_type=Types.INT(), output_type=Types.STRING()
    ).print("aggregate")
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(5))).reduce(
        lambda left, right: (left[0], left[1] + right[1])
    ).print("reduce")
    stream.window_all(CountTumblingWindowAssigner.of(3)).apply(SumAll(), Types.TUPLE([Types.INT(), Types.INT()])).print(
        "count"
    )
    env.execute("window all")


if __name__ == "__main__":
    window_all()
