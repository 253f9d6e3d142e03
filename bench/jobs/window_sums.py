"""Sums of amounts by key in tumbling windows of event time, as users write them in the DataStream API.

Side:    any; functions run inside the TaskManagers.
PyFlink: the very same file runs there, as ``bench/jobs/program_streams.py`` does.
Records: (key, amount, time); record ``number`` is a function of its number, which ``bench/peers/flink/Windows.java``
         has, too.  Windows have 250,000 records.
Twins:   keys are texts, and records are up to three seconds behind the latest.
Output:  ("key start", sum), one for each window of a key.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from flowlet.common import Duration, Types
from flowlet.common.time import Time
from flowlet.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from flowlet.datastream import AggregateFunction, DataStream, ProcessWindowFunction
from flowlet.datastream.window import TimeWindow, TumblingEventTimeWindows

WINDOW_MS: Final = 5_000
RECORDS_PER_MS: Final = 50
DELAY_MS: Final = 3_000
FIRST_MS: Final = 1_000_000  # a window starts there; delayed times stay above zero
FACTOR: Final = 7_919  # a prime: numbers times it look scattered
AMOUNTS: Final = 997
PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])
Record = tuple[int | str, int, int]


def ordered(num_keys: int, number: int) -> Record:
    """Return one record."""
    return number * FACTOR % num_keys, number % AMOUNTS, FIRST_MS + number // RECORDS_PER_MS


def delayed(num_keys: int, number: int) -> Record:
    """Return one record of the twin."""
    time = FIRST_MS + number // RECORDS_PER_MS - number * FACTOR % DELAY_MS
    return f"user {number * FACTOR % num_keys}", number % AMOUNTS, time


ordered_1000, ordered_10 = partial(ordered, 1000), partial(ordered, 10)
delayed_1000, delayed_10 = partial(delayed, 1000), partial(delayed, 10)


class EventTime(TimestampAssigner):
    """The time of a record."""

    def extract_timestamp(self, value: Record, record_timestamp: int) -> int:
        """Return the time of one record."""
        return value[2]


def start_of(time: int) -> int:
    """Return the start of the window that has ``time``."""
    return time - time % WINDOW_MS


def in_order(records: DataStream) -> DataStream:
    """Assign timestamps and watermarks."""
    return records.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    )


def out_of_order(records: DataStream) -> DataStream:
    """Assign timestamps and watermarks to the records of the twin."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DELAY_MS))
    return records.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(EventTime()))


# ---------------------------------------------------------------- by a reduce function


def reduced(records: DataStream) -> DataStream:
    """Sum by a reduce function; the sum has the time of a record, from which the start of its window is found."""
    keyed = in_order(records).key_by(lambda record: record[0], Types.LONG())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    sums = windows.reduce(lambda one, other: (one[0], one[1] + other[1], one[2]))
    return sums.map(lambda total: (f"{total[0]} {start_of(total[2])}", total[1]), PAIR)


def reduced_twin(records: DataStream) -> DataStream:
    """Sum by a reduce function; keys are texts."""
    keyed = out_of_order(records).key_by(lambda record: record[0], Types.STRING())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    sums = windows.reduce(lambda one, other: (one[0], one[1] + other[1], one[2]))
    return sums.map(lambda total: (f"{total[0]} {start_of(total[2])}", total[1]), PAIR)


# ---------------------------------------------------------------- by an aggregate function


class Total(AggregateFunction):
    """The sum of amounts."""

    def create_accumulator(self) -> int:
        """Begin with 0."""
        return 0

    def add(self, value: Record, accumulator: int) -> int:
        """Add one more amount."""
        return accumulator + value[1]

    def get_result(self, accumulator: int) -> int:
        """Return the sum."""
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        """Add two sums."""
        return acc_a + acc_b


class WithStart(ProcessWindowFunction[int, tuple[str, int], int | str, TimeWindow]):
    """The key and the start of the window, and the sum."""

    def process(
        self, key: int | str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[int]
    ) -> Iterable[tuple[str, int]]:
        """Emit one sum."""
        (total,) = elements
        yield f"{key} {context.window().start}", total


def aggregated(records: DataStream) -> DataStream:
    """Sum by an aggregate function; the sum is a number."""
    keyed = in_order(records).key_by(lambda record: record[0], Types.LONG())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    return windows.aggregate(Total(), WithStart(), Types.LONG(), PAIR)


def aggregated_twin(records: DataStream) -> DataStream:
    """Sum by an aggregate function; keys are texts."""
    keyed = out_of_order(records).key_by(lambda record: record[0], Types.STRING())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    return windows.aggregate(Total(), WithStart(), Types.LONG(), PAIR)
