"""Columnar streams through two TaskManagers over TCP: every type of key, with nulls, in both emission modes."""

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from flowlet.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.state import ValueStateDescriptor

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret", "forked_servers")]
NUM_ROWS = 3_000
START = datetime.datetime(2024, 1, 1)  # noqa: DTZ001 - a column without a time zone
KEYS: dict[str, Any] = {
    "int64": pa.array([(row * row % 17 - 8) * 2**40 if row % 7 else None for row in range(NUM_ROWS)], pa.int64()),
    "int64 without nulls": pa.array([row * row % 17 - 8 for row in range(NUM_ROWS)], pa.int64()),
    "uint8": pa.array([row % 23 if row % 5 else None for row in range(NUM_ROWS)], pa.uint8()),
    "float64": pa.array([row % 19 / 4 - 2 if row % 7 else None for row in range(NUM_ROWS)], pa.float64()),
    "bool": pa.array([row % 3 == 0 if row % 7 else None for row in range(NUM_ROWS)], pa.bool_()),
    "string": pa.array([f"word {row * row % 31}" if row % 7 else None for row in range(NUM_ROWS)], pa.string()),
    "large string": pa.array([f"wörd {row % 13}" for row in range(NUM_ROWS)], pa.large_string()),
    "binary": pa.array([bytes([row % 11, 0]) if row % 7 else None for row in range(NUM_ROWS)], pa.binary()),
    "dictionary": pa.array([f"w{row % 9}" if row % 7 else None for row in range(NUM_ROWS)]).dictionary_encode(),
    "timestamp": pa.array(
        [START + datetime.timedelta(hours=row % 29) if row % 7 else None for row in range(NUM_ROWS)], pa.timestamp("ms")
    ),
    "with a zone": pa.array([row % 29 for row in range(NUM_ROWS)], pa.timestamp("us", "Europe/Vienna")),
    "date": pa.array(
        [START.date() + datetime.timedelta(days=row % 15) if row % 7 else None for row in range(NUM_ROWS)], pa.date32()
    ),
}
VALUES = pa.array([row % 101 - 50 if row % 4 else None for row in range(NUM_ROWS)], pa.int32())


def run(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as records:
        return list(records)


def by_key(records: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """Return the values of each key, in their order."""
    found = defaultdict(list)
    for key, *values in records:
        found[key].append(tuple(values))
    return dict(found)


def expected_sums(keys: list[Any]) -> dict[Any, list[int | None]]:
    """The running sums of each key, if all its rows came in order."""
    sums: dict[Any, list[int | None]] = defaultdict(list)
    for key, value in zip(keys, VALUES.to_pylist(), strict=True):
        so_far = sums[key][-1] if sums[key] else None
        sums[key].append(so_far if value is None else (so_far or 0) + value)
    return sums


def named(name: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda row: (name, *row)


@pytest.mark.parametrize("emit", ["row", "batch"])
def test_sums_by_a_column_of_every_type(emit: str) -> None:
    """Sums are exact for every type of column; one source each fixes the order of the rows of a key, and the keys are
    on both TaskManagers.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    streams = []
    for name, keys in KEYS.items():
        table = pa.table({"k": keys, "v": VALUES})
        batches = partial(batches_of, table)
        streams.append(
            env.from_arrow(batches, table.schema).key_by("k").sum("v", emit=emit).to_records().map(named(name))
        )

    found = by_key(run(streams[0].union(*streams[1:])))

    assert found.keys() == KEYS.keys()
    for name, records in found.items():
        check_sums(by_key(records), expected_sums(KEYS[name].to_pylist()), emit)


def batches_of(table: Any, subtask: int, parallelism: int) -> Any:
    return table.to_batches(max_chunksize=700) if subtask == 0 else []


def check_sums(found: dict[Any, list[Any]], expected: dict[Any, list[int | None]], emit: str) -> None:
    assert found.keys() == expected.keys()
    for key, results in found.items():
        sums = [total for (total,) in results]
        if emit == "row":
            assert sums == expected[key]
        else:
            assert sums[-1] == expected[key][-1]
            assert is_part_of(sums, expected[key])


def is_part_of(part: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in part)


def test_everything_between_arrow_and_records() -> None:
    """A table in two shares passes functions of batches and of rows, becomes columns again, and is counted."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    table = pa.table({"k": KEYS["string"], "v": VALUES})

    stream = (
        env.from_arrow(table)
        .map_batches(lambda batch: batch.filter(batch.column("v").is_valid()))
        .filter(lambda row: row["v"] > 0)
        .map(lambda row: (row["k"] or "", row["v"]))
        .to_arrow(pa.schema([("word", pa.string()), ("n", pa.int64())]))
        .key_by("word")
        .count(emit="batch")
        .to_records()
        .map(lambda row: (row["word"], row["count"]))
    )
    found = by_key(run(stream))

    expected: dict[str, int] = defaultdict(int)
    for key, value in zip(KEYS["string"].to_pylist(), VALUES.to_pylist(), strict=True):
        if value is not None and value > 0:
            expected[key or ""] += 1
    assert {key: max(count for (count,) in counts) for key, counts in found.items()} == expected


def test_extremes_by_a_column() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    table = pa.table({"k": KEYS["int64"], "v": VALUES, "row": pa.array(range(NUM_ROWS))})
    keyed = env.from_arrow(partial(batches_of, table), table.schema).key_by("k")
    methods = ["min", "max", "min_by", "max_by"]
    streams = [getattr(keyed, method)("v", emit="batch").to_records().map(named(method)) for method in methods]

    found = by_key(run(streams[0].union(*streams[1:])))

    assert found.keys() == set(methods)
    for method, records in found.items():
        check_extremes(method, by_key(records))


def check_extremes(method: str, found: dict[Any, list[Any]]) -> None:
    choose = min if method.startswith("min") else max
    for key, results in found.items():
        rows = [
            row
            for row, (other, value) in enumerate(zip(KEYS["int64"].to_pylist(), VALUES.to_pylist(), strict=True))
            if other == key
        ]
        valued = [row for row in rows if VALUES[row].is_valid]
        chosen = choose(valued, key=lambda row: VALUES[row].as_py())
        assert results[-1] == (VALUES[chosen].as_py(), chosen if method.endswith("_by") else rows[0])


class ShownKeys(KeyedProcessFunction):
    """The key that the function is given, in the record, in its state and in its timer."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(2**62)
        yield "record", ctx.get_current_key()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "timer", ctx.get_current_key(), self.count.value()


def test_functions_are_given_the_values_of_a_column_as_keys() -> None:
    """Functions get instants and dates as keys, too, for which routing and aggregations take numbers."""
    names = ("timestamp", "with a zone", "date", "string")
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    rows = env.from_arrow(pa.table({name: KEYS[name] for name in names}))
    first, *others = [rows.key_by(name).process(ShownKeys()).map(named(name)) for name in names]

    records = run(first.union(*others))

    for name in names:
        expected = Counter(KEYS[name].to_pylist())
        assert Counter(key for of, what, key, *_ in records if of == name and what == "record") == expected
        assert {key: count[0] for of, what, key, *count in records if of == name and what == "timer"} == expected


class KeyOf(KeyedProcessFunction):
    """A function without timers, so that it can stand in the chain of the source."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield ctx.get_current_key(), value["k"]


def test_functions_in_the_chain_of_the_column_are_given_its_values_as_keys() -> None:
    """Functions in the chain of a column get its values as keys; with one subtask rows pass the ``key_by`` one by
    one.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)

    records = run(env.from_arrow(pa.table({"k": KEYS["date"][:5]})).key_by("k").process(KeyOf()))

    assert records == [(key, key) for key in KEYS["date"][:5].to_pylist()]
