"""Windows of columns beside plain loops: random rows, late ones, snapshots in the middle, other parallelisms."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrowColumn, Column, Columns, ConstantColumn, ListColumn, Shape
from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.kernels.windows import columnar_windows as columnar_windows_module
from flowlet.kernels.windows import window_shapes
from flowlet.kernels.windows.columnar_windows import LocalWindows, PartsLayout, WindowedAggregation, columnar_windows
from flowlet.kernels.windows.window_partials import ColumnInputs, WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, EmittedWindows, SessionWindows, WindowShape
from flowlet.keys.exact_keys import key_group
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.flowlet.kernels.windows.stored_windows import MAX_PARALLELISM, restored, stored
from tests.flowlet.kernels.windows.windows_by_hand import InputRow, KeyState, WindowsByHand, aggregated

SCHEMA = pa.schema([("k", pa.string()), ("number", pa.int64()), ("decimal", pa.float64()), ("text", pa.string())])
AGGREGATES = (
    WindowAggregate("total", "sum", "number", pa.int64()),
    WindowAggregate("mean", "mean", "number", pa.int64()),
    WindowAggregate("lowest", "min", "decimal", pa.float64()),
    WindowAggregate("highest", "max", "number", pa.int64()),
    WindowAggregate("text", "max", "text", pa.string()),
    WindowAggregate("first", "first", "text", pa.string()),
    WindowAggregate("last", "last", "text", pa.string()),
    WindowAggregate("n", "count"),
    WindowAggregate("filled", "count", "decimal", pa.float64()),
)
LAYOUT = PartsLayout(WindowedAggregation(AlignedWindows(1, 1), AGGREGATES, "k", pa.string()), SCHEMA)


def inputs_of(rows: list[InputRow]) -> ColumnInputs:
    arrays = [
        pa.array([row.key for row in rows], pa.string()),
        pa.array([row.number for row in rows], pa.int64()),
        pa.array([row.decimal for row in rows], pa.float64()),
        pa.array([row.text for row in rows], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return ColumnInputs(columns_of_batch(batch), SCHEMA, np.array([row.timestamp for row in rows]))


def shape_by(rng: random.Random) -> WindowShape:
    if rng.random() < 0.3:
        return SessionWindows(rng.randint(1, 12))
    size = rng.randint(1, 20)
    slide = size if rng.random() < 0.4 else rng.randint(1, 25)
    return AlignedWindows(size, slide, rng.randint(1 - slide, slide - 1))


def rows_by(rng: random.Random, around: int) -> list[InputRow]:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    return [
        InputRow(
            maybe(f"key {rng.randint(0, 6)}"),
            around + rng.randint(-40, 30),
            maybe(rng.randint(-1000, 1000)),
            maybe(rng.randint(-100, 100) / 4),
            maybe(rng.choice("abcdefgh")),
        )
        for _ in range(rng.randint(1, 30))
    ]


class Subtask:
    """Windows in arrays and by hand, which must agree.  With a ``local`` the arrays are of parts of the rows."""

    def __init__(
        self,
        aggregation: WindowedAggregation,
        by_hand: WindowsByHand,
        arrival: dict[int, int],
        local: LocalWindows | None = None,
    ) -> None:
        self.aggregation = aggregation
        self.local = local
        self.windows = columnar_windows(aggregation, None if local is None else LAYOUT.received)
        self.by_hand = by_hand
        self.arrival = arrival

    def add(self, rows: list[InputRow]) -> None:
        for row in rows:
            self.arrival[id(row)] = len(self.arrival)
        inputs = inputs_of(rows)
        if self.local is not None:
            parts = self.local.combined(inputs) if len(rows) % 3 else self.local.single(inputs)
            assert parts is not None
            assert parts.columns is not None
            assert parts.timestamp_array is not None
            inputs = ColumnInputs(parts.columns, LAYOUT.schema, parts.timestamp_array)
        added = self.windows.add(inputs)
        late, again = self.by_hand.add(rows)
        found = added.late_rows
        if self.local is not None:
            assert LAYOUT.num_rows(inputs, found) == len(late)
        else:
            assert [rows[index] for index in found] == sorted(late, key=lambda row: self.arrival[id(row)])
        self.compare(added.changed, again)

    def fire(self, watermark: int) -> None:
        emitted = list(self.windows.fire(watermark))
        ends = [end for windows in emitted for end in windows.ends_ms.tolist()]
        assert ends == sorted(ends)
        self.compare(emitted, self.by_hand.fire(watermark))

    def compare(self, emitted: Iterable[EmittedWindows], expected: list[Any]) -> None:
        found = []
        for windows in emitted:
            starts = windows.batch.column("window_start").cast(pa.int64()).to_pylist()
            found += list(zip(windows.batch.to_pylist(), starts, windows.ends_ms.tolist(), strict=True))
        assert sorted(map(repr, map(plain, found))) == sorted(
            repr(({"k": key, **aggregated(rows, self.arrival)}, start, end)) for key, (start, end), rows in expected
        )

    def group_emitted(self, group: int) -> int:
        return max(self.by_hand.watermark, self.by_hand.floors.get(group, MIN_TIMESTAMP))


def plain(found: tuple[dict[str, Any], int, int]) -> tuple[dict[str, Any], int, int]:
    row, start, end = found
    return {name: value for name, value in row.items() if not name.startswith("window_")}, start, end


def rescaled(subtasks: list[Subtask], parallelism: int) -> list[Subtask]:
    """Return the state in another number of subtasks; the loops by hand follow."""
    first = subtasks[0]
    shares = [groups_of(subtask, len(subtasks)) for subtask in range(len(subtasks))]
    blocks = [
        each for subtask, groups in zip(subtasks, shares, strict=True) for each in stored(subtask.windows, groups)
    ]
    emitted = {
        group: each.group_emitted(group) for each, groups in zip(subtasks, shares, strict=True) for group in groups
    }
    new = []
    for subtask in range(parallelism):
        groups = groups_of(subtask, parallelism)
        by_hand = WindowsByHand(first.by_hand.shape, first.by_hand.lateness_ms, group_of)
        by_hand.floors = {group: emitted[group] for group in groups}
        by_hand.watermark = min(by_hand.floors.values())
        made = Subtask(first.aggregation, by_hand, first.arrival, first.local)
        restored(made.windows, blocks, groups)
        for each in subtasks:
            for key, state in each.by_hand.keys.items():
                if state.rows and group_of(key) in groups:
                    by_hand.keys[key] = KeyState(state.rows, state.is_changed)
        new.append(made)
    return new


def groups_of(subtask: int, parallelism: int) -> range:
    return range(subtask * MAX_PARALLELISM // parallelism, (subtask + 1) * MAX_PARALLELISM // parallelism)


def group_of(key: Any) -> int:
    return key_group(key, MAX_PARALLELISM)


def run_case(seed: int) -> None:
    rng = random.Random(seed)
    shape, lateness_ms = shape_by(rng), rng.choice([0, 0, rng.randint(1, 30)])
    aggregation = WindowedAggregation(shape, AGGREGATES, "k", pa.string(), lateness_ms)
    arrival: dict[int, int] = {}
    local = LocalWindows(aggregation, LAYOUT) if aggregation.can_be_local and seed % 2 else None
    subtasks = [Subtask(aggregation, WindowsByHand(shape, lateness_ms, group_of), arrival, local)]
    kept, now = [], rng.randint(-100, 100)
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.25:
            subtasks = rescaled(subtasks, rng.choice([1, 2, 4]))
        now += rng.randint(0, 30)
        rows = rows_by(rng, now)
        kept.append(rows)  # so that their ids stay theirs
        for number, subtask in enumerate(subtasks):
            share = [row for row in rows if group_of(row.key) * len(subtasks) // MAX_PARALLELISM == number]
            if share:
                subtask.add(share)
            if rng.random() < 0.6:
                subtask.fire(now - rng.randint(0, 20))
    for subtask in subtasks:
        subtask.fire(MAX_TIMESTAMP)


@pytest.mark.parametrize(
    "column", [ListColumn([None, 3, None]), ConstantColumn(None, 3), ArrowColumn(pa.array([None, 3, None]))], ids=repr
)
def test_nulls_are_not_counted_in_whatever_representation(column: Column) -> None:
    """A null does not count, not even in records that have become columns, where means were once wrong."""
    schema, numbers = pa.schema([("n", pa.int64())]), [value for value in column.to_list() if value is not None]
    aggregates = [WindowAggregate(kind, kind, "n", pa.int64()) for kind in ("count", "mean", "sum", "min")]
    windows = columnar_windows(WindowedAggregation(AlignedWindows(10, 10), tuple(aggregates)))

    windows.add(ColumnInputs(Columns(3, (column,), Shape.ROW, ("n",)), schema, np.zeros(3, np.int64)))

    (result,) = [row for emitted in windows.fire(MAX_TIMESTAMP) for row in emitted.batch.to_pylist()]
    assert [result["count"], result["mean"], result["sum"], result["min"]] == [len(numbers), *(numbers or [None]) * 3]


@pytest.mark.slow
def test_random_windows_are_those_of_a_plain_loop() -> None:
    for seed in range(40):
        run_case(seed)


@pytest.mark.slow
def test_runs_are_merged_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_shapes, "_MIN_PENDING_ROWS", 4)
    monkeypatch.setattr(columnar_windows_module, "_MAX_SPREAD_ROWS", 16)

    for seed in range(1_000, 1_012):
        run_case(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(2_000, 5_000, 500))
def test_thousands_of_random_windows(first: int) -> None:
    """The windows are tried in shares, each of which ends in time when other tests run beside it."""
    for seed in range(first, first + 500):
        run_case(seed)
