"""Jobs in which both sides of a ``key_by`` share a task: no function sees what another one did with a record, and each
key is its own.

Loops take the records of a first run one by one and look for their shape afterwards, so a job has several runs.

Source: Flink serializes a record on its way through a ``KeyGroupStreamPartitioner``, so that its two sides never share
        an object.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from flowlet.common import WatermarkStrategy
from flowlet.common.types import Row
from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from tests.flowlet.client.jobs import hold, ran, released

NUM_RECORDS = 5_000  # a run of a loop has at most 1,000
SIDE = OutputTag("side")
SHOWN: list[int] = []  # to the generator of the test that runs; the job is in this process
SCHEMA = pa.schema([("number", pa.int64())])


def numbers(environment: StreamExecutionEnvironment) -> DataStream:
    return environment.from_collection(list(range(NUM_RECORDS)))


# ---------------------------------------------------------------- records that are read after they were handed on


def dict_of(number: int) -> dict[str, int]:
    return {"key": number % 2, "value": 1}


def row_of(number: int) -> Row:
    return Row(key=number % 2, value=1)


def key_of(record: Any) -> Any:
    return record["key"]


def changed(record: Any) -> tuple[str, int]:
    record["value"] += 5
    return "changed", record["value"]


def looked_at(record: Any) -> tuple[str, int]:
    return "looked at", record["value"]


def filtered(stream: DataStream) -> DataStream:
    return stream.filter(lambda record: True)


def with_timestamps(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks())


def selected(stream: DataStream) -> DataStream:
    return stream.split(lambda record: ["all"]).select("all")


def as_it_is(stream: DataStream) -> DataStream:
    return stream


PASSING_ON: dict[str, Callable[[DataStream], DataStream]] = {
    "nothing": as_it_is,
    "filter": filtered,
    "two filters": lambda stream: filtered(filtered(stream)),
    "timestamps": with_timestamps,
    "filter and timestamps": lambda stream: filtered(with_timestamps(stream)),
    "split": selected,
}


@pytest.mark.parametrize("pass_on", PASSING_ON.values(), ids=PASSING_ON)
@pytest.mark.parametrize("make", [dict_of, row_of])
def test_a_sibling_does_not_see_what_was_changed_behind_key_by(
    environment: StreamExecutionEnvironment, pass_on: Callable[[DataStream], DataStream], make: Callable[[int], Any]
) -> None:
    """An operator between them may pass on the very record."""
    source = numbers(environment).map(make)
    behind = pass_on(source).key_by(key_of).map(changed)

    results = ran(behind.union(source.map(looked_at)))

    assert Counter(results) == {("changed", 6): NUM_RECORDS, ("looked at", 1): NUM_RECORDS}


@pytest.mark.parametrize("pass_on", [filtered, with_timestamps, selected])
def test_what_waits_for_another_task_is_not_changed_by_a_sibling(
    environment: StreamExecutionEnvironment, pass_on: Callable[[DataStream], DataStream]
) -> None:
    """The records leave the chain in chunks, after the sibling had its turn."""
    source = numbers(environment).map(dict_of)
    other_task = pass_on(source).map(looked_at).start_new_chain()

    results = ran(other_task.union(source.map(changed)))

    assert Counter(results) == {("changed", 6): NUM_RECORDS, ("looked at", 1): NUM_RECORDS}


def test_two_consumers_behind_key_by_change_records_of_their_own(environment: StreamExecutionEnvironment) -> None:
    source = filtered(numbers(environment).map(dict_of))
    first, second = source.key_by(key_of).map(changed), source.key_by(key_of).map(changed)

    results = ran(first.union(second, source.map(looked_at)))

    assert Counter(results) == {("changed", 6): 2 * NUM_RECORDS, ("looked at", 1): NUM_RECORDS}


class BesideAndChanged(KeyedProcessFunction):
    """Emits a record, changes it, and emits it again."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield SIDE, value
        value["value"] += 5
        yield value


def test_a_side_output_keeps_what_the_record_was(environment: StreamExecutionEnvironment) -> None:
    both = numbers(environment).map(dict_of).key_by(key_of).process(BesideAndChanged())
    side = both.get_side_output(SIDE).key_by(key_of).map(lambda record: ("side", record["value"]))

    results = ran(side.union(both.key_by(key_of).map(lambda record: ("main", record["value"]))))

    assert Counter(results) == {("side", 1): NUM_RECORDS, ("main", 6): NUM_RECORDS}


class Five(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return 5


class ShowsValues(WatermarkGenerator):
    """Notes what the records hold that it is shown, which is after they went on."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        SHOWN.append(event["value"])

    def on_periodic_emit(self, output: Any) -> None:
        return


@pytest.mark.parametrize("make", [dict_of, row_of])
def test_a_watermark_generator_does_not_see_what_was_changed_behind_key_by(
    environment: StreamExecutionEnvironment, make: Callable[[int], Any]
) -> None:
    strategy = WatermarkStrategy.for_generator(ShowsValues).with_timestamp_assigner(Five())
    SHOWN.clear()

    stream = numbers(environment).map(make).assign_timestamps_and_watermarks(strategy)
    results = ran(stream.key_by(key_of).map(changed))

    assert Counter(results) == {("changed", 6): NUM_RECORDS}
    assert Counter(SHOWN) == {1: NUM_RECORDS}


# ---------------------------------------------------------------- what the user holds of a record


class Name:
    """Can be the key of a dict, and can be changed."""

    def __init__(self, value: int) -> None:
        self.value = value


class RenamingTheLast(MapFunction):
    """Dicts of one item; changes the key of each as soon as the next one is wanted.

    ``first_name``: before the record of that number the keys are texts.
    """

    def __init__(self, first_name: int) -> None:
        self._first_name = first_name
        self._last: Name | None = None

    def map(self, value: int) -> dict[Any, int]:
        if self._last is not None:
            self._last.value = -1
        if value < self._first_name:
            return {"text": 1}
        self._last = Name(value)
        return {self._last: 1}


def names_of(record: dict[Any, int]) -> list[Any]:
    return [name.value if isinstance(name, Name) else name for name in record]


def renamed(record: dict[Any, int]) -> list[Any]:
    before = names_of(record)
    for name in record:
        if isinstance(name, Name):
            name.value = -1
    return before


@pytest.mark.parametrize("first_name", [0, 2_500], ids=["names", "names after texts"])
@pytest.mark.parametrize("is_chained", [True, False], ids=["chained", "not chained"])
def test_the_keys_of_a_dict_are_what_they_were_when_it_was_emitted(
    environment: StreamExecutionEnvironment, first_name: int, is_chained: bool
) -> None:
    """The keys stay even if a loop has learned that they are texts."""
    behind = numbers(environment).map(RenamingTheLast(first_name)).key_by(lambda record: 0).map(renamed)

    results = ran(behind if is_chained else behind.start_new_chain())

    assert results == [["text"]] * first_name + [[number] for number in range(first_name, NUM_RECORDS)]


def test_the_keys_of_a_dict_that_a_sibling_reads_are_not_changed_behind_key_by(
    environment: StreamExecutionEnvironment,
) -> None:
    source = numbers(environment).map(lambda number: {Name(number): 1})
    behind = source.key_by(lambda record: 0).map(renamed)

    results = ran(behind.union(source.map(names_of)))

    assert sorted(results) == sorted([[number] for number in range(NUM_RECORDS)] * 2)


class LookingBack(MapFunction):
    """Yields rows with the value that an iterator over the former row gives, once that row is through."""

    def __init__(self) -> None:
        self._last: Iterator[Any] | None = None

    def map(self, value: int) -> Row:
        seen = 1 if self._last is None else next(self._last)
        row = Row(value=1, key=value % 2, seen=seen)
        self._last = iter(row)
        return row


def changed_after_look(row: Row) -> int:
    seen: int = row["seen"]
    row["value"] = 1_000
    return seen


def test_an_iterator_over_a_row_does_not_see_what_was_changed_behind_key_by(
    environment: StreamExecutionEnvironment,
) -> None:
    """An iterator over a row holds the values of the row, not the row."""
    stream = numbers(environment).map(LookingBack())

    results = ran(stream.key_by(key_of).map(changed_after_look))

    assert Counter(results) == {1: NUM_RECORDS}


# ---------------------------------------------------------------- keys


class Triple(NamedTuple):
    first: Any
    second: Any
    one: int


class PassingOn(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value


TRIPLES: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: (number % 2, number % 3, 1),
    "texts": lambda number: (f"x{number % 2}", f"y{number % 3}", 1),
    "named": lambda number: Triple(number % 2, number % 3, 1),
    "lists": lambda number: [number % 2, number % 3, 1],
}
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
BETWEEN: dict[str, Callable[[Any], DataStream]] = {
    "event time": lambda keyed: keyed.assign_timestamps_and_watermarks(MONOTONOUS.with_timestamp_assigner(Five())),
    "watermarks": lambda keyed: keyed.assign_timestamps_and_watermarks(MONOTONOUS),
    "timestamps": with_timestamps,
    "filter": filtered,
    "process": lambda keyed: keyed.process(PassingOn()),
}


def largest_sums(triples: list[Any]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for _, key, total in triples:
        sums[key] = max(sums.get(key, 0), total)
    return sums


def expected_sums(make: Callable[[int], Any]) -> dict[Any, int]:
    return dict(Counter(make(number)[1] for number in range(NUM_RECORDS)))


@pytest.mark.parametrize("make", TRIPLES.values(), ids=TRIPLES)
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize("parallelism", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_mapped", [False, True], ids=["from source", "mapped"])
def test_the_second_key_by_has_keys_of_its_own(
    environment: StreamExecutionEnvironment,
    make: Callable[[int], Any],
    between: Callable[[Any], DataStream],
    parallelism: int,
    is_mapped: bool,
) -> None:
    """Records pass through whole between the two, with the keys of the first one."""
    environment.set_parallelism(parallelism)
    source = (
        numbers(environment).map(make)
        if is_mapped
        else environment.from_collection([make(number) for number in range(NUM_RECORDS)])
    )

    results = ran(between(source.key_by(itemgetter(0))).key_by(itemgetter(1)).sum(2))

    assert largest_sums(results) == expected_sums(make)


class KeyAndValue(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield ctx.get_current_key(), value["value"]


@pytest.mark.parametrize("parallelism", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_column_with_nulls_is_a_key_of_records_that_hold_lists(
    environment: StreamExecutionEnvironment, parallelism: int
) -> None:
    """Rows with lists in them are pickled when they are emitted, and a pickle cannot be asked for a column."""
    environment.set_parallelism(parallelism)
    keys = [None if number % 3 == 0 else f"k{number % 2}" for number in range(NUM_RECORDS)]
    values = [[number] for number in range(NUM_RECORDS)]

    stream = environment.from_arrow(pa.table({"key": keys, "value": values}))
    results = ran(stream.key_by("key").process(KeyAndValue()))

    assert sorted(results, key=itemgetter(1)) == list(zip(keys, values, strict=True))


# ---------------------------------------------------------------- timers


def one_and_a_wait(*_: Any) -> Iterator[pa.RecordBatch]:
    """Give a record, and wait until its timer has fired."""
    yield pa.record_batch([pa.array([1])], schema=SCHEMA)
    hold("timer of test_keyed_chain_jobs")


class Releasing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time())
        yield "element"

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        released["timer of test_keyed_chain_jobs"].set()
        yield "timer"


def test_a_timer_fires_while_the_source_waits_for_its_next_record(environment: StreamExecutionEnvironment) -> None:
    """The function is in a task of its own, whatever the parallelism."""
    released["timer of test_keyed_chain_jobs"].clear()

    results = ran(environment.from_arrow(one_and_a_wait, SCHEMA).key_by(lambda row: 0).process(Releasing()))

    assert results == ["element", "timer"]


# -------------------------------------------------------------------- a function that changes what it emitted


SUMS = OutputTag("sums")


class Summing(ProcessFunction):
    """Emits one list object for every record."""

    def __init__(self, tag: OutputTag | None = None) -> None:
        self.sum = [0]
        self.tag = tag

    def process_element(self, value: list[int], ctx: ProcessFunction.Context) -> Iterator[Any]:
        self.sum[0] += value[0]
        yield self.sum if self.tag is None else (self.tag, self.sum)


def add_to_first(first: list[int], second: list[int]) -> list[int]:
    first[0] += second[0]
    return first


SUMMINGS: dict[str, Callable[[DataStream], DataStream]] = {
    "process": lambda stream: stream.process(Summing()),
    "side output": lambda stream: stream.process(Summing(SUMS)).get_side_output(SUMS),
    "reduce": lambda stream: stream.key_by(lambda record: 0).reduce(add_to_first),
}


@pytest.mark.parametrize("name", SUMMINGS)
@pytest.mark.parametrize("is_chained", [True, False])
def test_each_result_is_what_it_was_when_it_was_emitted(
    environment: StreamExecutionEnvironment, name: str, is_chained: bool
) -> None:
    if not is_chained:
        environment.disable_operator_chaining()
    sums = SUMMINGS[name](environment.from_collection([[1], [2], [3]]))

    assert ran(sums.map(list)) == [[1], [3], [6]]


def gather(so_far: Any, number: int) -> list[int]:
    """Records are numbers, results are a list that grows."""
    numbers: list[int] = so_far if isinstance(so_far, list) else [so_far]
    numbers.append(number)
    return numbers


def test_a_reduce_function_may_give_something_that_can_change_where_records_cannot(
    environment: StreamExecutionEnvironment,
) -> None:
    gathered = environment.from_collection([1, 2, 3, 4]).key_by(lambda record: 0).reduce(gather)

    assert ran(gathered) == [1, [1, 2], [1, 2, 3], [1, 2, 3, 4]]
