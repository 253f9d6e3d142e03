"""Windows with an AggregateFunction, alone and with a process function; state per window and per key."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Numbered(ProcessWindowFunction[float, str, str, TimeWindow]):
    """Counts the windows of each key in its global state."""

    def __init__(self):
        self.number = ValueStateDescriptor("number", Types.INT())
        self.firings = ValueStateDescriptor("firings", Types.INT())

    def process(self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[float]) -> Iterable[str]:
        of_key, of_window = (
            context.global_state().get_state(self.number),
            context.window_state().get_state(self.firings),
        )
        of_key.update((of_key.value() or 0) + 1)
        of_window.update((of_window.value() or 0) + 1)
        mean = next(iter(elements))
        yield (
            f"{key} {context.window().start} mean {mean} window {of_key.value()} of the key, firing {of_window.value()}"
        )

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        context.window_state().get_state(self.firings).clear()


def aggregate_windows():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("a", 1), ("a", 2), ("b", 3), ("a", 6), ("a", 7), ("b", 12), ("a", 11), ("a", 18)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    stream = env.from_collection(
        records, type_info=Types.TUPLE([Types.STRING(), Types.INT()])
    ).assign_timestamps_and_watermarks(strategy)
    windowed = stream.key_by(lambda record: record[0], key_type=Types.STRING()).window(
        TumblingEventTimeWindows.of(Time.milliseconds(5))
    )
    accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
    windowed.aggregate(Average(), accumulator_type=accumulator, output_type=Types.DOUBLE()).print()
    windowed.aggregate(
        Average(), window_function=Numbered(), accumulator_type=accumulator, output_type=Types.STRING()
    ).print("numbered")
    env.execute("aggregate windows")


if __name__ == "__main__":
    aggregate_windows()
