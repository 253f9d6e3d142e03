"""Users' functions change the records of windows in place, and no other window, evaluation or result sees that.

Each program runs twice, with functions that change what they are given and with those functions on copies; the results
must be equal.
"""

import copy
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from flowlet.common import Configuration, Time, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import AggregateFunction, DataStream, ProcessWindowFunction, StreamExecutionEnvironment
from flowlet.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    TumblingEventTimeWindows,
    WindowAssigner,
)

pytestmark = pytest.mark.slow
NUM_RECORDS = 12
SLIDING = SlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(2))


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        at: int = value["at"]
        return at


def two_keys(value: Any) -> int:
    key: int = value["at"] % 2
    return key


def own_of(*, copies: bool) -> Callable[[Any], Any]:
    """Return a function that gives a copy, or the very object."""
    return copy.deepcopy if copies else lambda each: each


class Copying:
    """Gives a function of two records copies of them."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def __call__(self, one: Any, other: Any) -> Any:
        return self._function(copy.deepcopy(one), copy.deepcopy(other))


def add_to_first(one: Any, other: Any) -> Any:
    one["n"] += other["n"]
    one["parts"] += other["parts"]
    return one


def add_to_second(one: Any, other: Any) -> Any:
    other["n"] += one["n"]
    other["parts"] += one["parts"]
    return other


class Keeps(AggregateFunction):
    """An aggregate whose accumulator holds records, and whose result is the accumulator."""

    def __init__(self, *, copies: bool) -> None:
        self._own = own_of(copies=copies)

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        value, accumulator = self._own((value, accumulator))
        value["n"] += len(accumulator)
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        own: list[Any] = self._own(accumulator)
        return own

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        acc_a, acc_b = self._own((acc_a, acc_b))
        acc_a += acc_b
        return acc_a


class Numbers(ProcessWindowFunction[Any, Any, Any, Any]):
    """Numbers the records of a window, and empties the list that it is given."""

    def __init__(self, *, copies: bool) -> None:
        self._own = own_of(copies=copies)

    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> Any:
        elements = self._own(elements)
        for number, each in enumerate(elements):
            each["n"] += number
            each["parts"].append(number)
        yield list(elements)
        elements.clear()  # type: ignore[attr-defined]  # a list


class Both(WindowAssigner[Any, TimeWindow]):
    """A user's own windows: a short and a long one for each record."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return [TimeWindow(timestamp // size * size, timestamp // size * size + size) for size in (3, 6)]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


def change(value: Any) -> Any:
    """Change a result behind the windows, in their chain."""
    shown = repr(value)
    value.clear()
    return shown


def results_of(backend: str, program: Callable[[DataStream], DataStream]) -> list[str]:
    env = StreamExecutionEnvironment(Configuration.from_dict({"state.backend.type": backend})).set_parallelism(1)
    records = env.from_collection([{"at": at, "n": 1, "parts": [at]} for at in range(NUM_RECORDS)])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    results = program(records.assign_timestamps_and_watermarks(strategy)).execute_and_collect()
    return sorted(map(repr, results))


WINDOWS: dict[str, Callable[[DataStream], Any]] = {
    "sliding": lambda records: records.key_by(two_keys).window(SLIDING),
    "sliding, with late records": lambda records: records.key_by(two_keys).window(SLIDING).allowed_lateness(5),
    "sliding, evaluated again and again": lambda records: (
        records.key_by(two_keys).window(SLIDING).trigger(CountTrigger(1))
    ),
    "sliding, by the clock": lambda records: (
        records.key_by(two_keys)
        .window(SlidingProcessingTimeWindows.of(Time.days(200_000), Time.days(100_000)))
        .trigger(CountTrigger(1))
    ),
    "tumbling, evaluated again and again": lambda records: (
        records.key_by(two_keys).window(TumblingEventTimeWindows.of(Time.milliseconds(6))).trigger(CountTrigger(2))
    ),
    "of a number of records": lambda records: records.key_by(two_keys).count_window(4, 2),
    "of a user's assigner": lambda records: records.key_by(two_keys).window(Both()),
    "of all keys": lambda records: records.window_all(SLIDING),
    "sessions": lambda records: (
        records.key_by(two_keys).window(EventTimeSessionWindows.with_gap(Time.milliseconds(3))).trigger(CountTrigger(1))
    ),
    "with an evictor": lambda records: (
        records.key_by(two_keys)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(8)))
        .trigger(CountTrigger(1))
        .evictor(CountEvictor.of(3))
    ),
}
BACKENDS = ["hashmap", pytest.param("rocksdb", marks=pytest.mark.long)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_reduce_function_may_change_what_it_is_given(windows: str, backend: str) -> None:
    """The function may change either record, also one that is in other windows, too, or was emitted."""
    for function in (add_to_first, add_to_second):
        found = results_of(backend, lambda records, function=function: WINDOWS[windows](records).reduce(function))  # type: ignore[misc]

        assert found == results_of(
            "hashmap",
            lambda records, function=function: WINDOWS[windows](records).reduce(Copying(function)),  # type: ignore[misc]
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_an_accumulator_may_hold_records_and_be_the_result(windows: str, backend: str) -> None:
    """The chained function behind the windows empties each result."""
    found = results_of(backend, lambda records: WINDOWS[windows](records).aggregate(Keeps(copies=False)).map(change))

    assert found == results_of(
        "hashmap", lambda records: WINDOWS[windows](records).aggregate(Keeps(copies=True)).map(change)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("windows", [each for each in WINDOWS if each != "of all keys"])
def test_a_process_function_may_change_the_records_and_their_list(windows: str, backend: str) -> None:
    """The next evaluation of the window does not see that, nor does another window."""
    found = results_of(backend, lambda records: WINDOWS[windows](records).process(Numbers(copies=False)).map(change))

    assert found == results_of(
        "hashmap", lambda records: WINDOWS[windows](records).process(Numbers(copies=True)).map(change)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_co_group_function_may_change_the_records_of_both_sides(backend: str) -> None:
    """The records are in two windows each."""

    def program(*, copies: bool) -> Callable[[DataStream], DataStream]:
        own = own_of(copies=copies)

        def number(first: list[Any], second: list[Any]) -> Any:
            first, second = own((first, second))
            for each in (*first, *second):
                each["n"] += 1
                each["parts"].append(len(first))
            yield first, second

        return lambda records: (
            records.co_group(records).where(two_keys).equal_to(two_keys).window(SLIDING).apply(number)
        )

    assert results_of(backend, program(copies=False)) == results_of("hashmap", program(copies=True))


@pytest.mark.parametrize("is_chained", [False, True])
def test_a_keyed_reduce_may_change_what_it_is_given(*, is_chained: bool) -> None:
    """A result that was emitted stays as it was."""

    def program(reduce: Callable[[Any, Any], Any]) -> Callable[[DataStream], DataStream]:
        def build(records: DataStream) -> DataStream:
            reduced = records.key_by(two_keys).reduce(reduce)
            return reduced.map(repr) if is_chained else reduced

        return build

    for function in (add_to_first, add_to_second):
        assert results_of("hashmap", program(function)) == results_of("hashmap", program(Copying(function)))
