"""Session windows: a gap, and a gap that each record sets."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import EventTimeSessionWindows, SessionWindowTimeGapExtractor, TimeWindow


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class GapOfKey(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return 5 if element[0] == "hi" else 2


class CountProcess(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len([e for e in elements]))]


def session_windows():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [
        ("hi", 1),
        ("hi", 2),
        ("hi", 3),
        ("hello", 3),
        ("hi", 9),
        ("hello", 4),
        ("hello", 9),
        ("hi", 13),
        ("hi", 30),
        ("hi", 7),
    ]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    stream = env.from_collection(
        records, type_info=Types.TUPLE([Types.STRING(), Types.INT()])
    ).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda record: record[0], key_type=Types.STRING())
    counted = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(CountProcess(), counted).print()
    keyed.window(EventTimeSessionWindows.with_dynamic_gap(GapOfKey())).process(CountProcess(), counted).print("dynamic")
    env.execute("session windows")


if __name__ == "__main__":
    session_windows()
