"""Joins of columns beside plain loops."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.kernels.windows import columnar_join, window_shapes
from flowlet.kernels.windows.columnar_join import JOIN_KINDS, LEFT, RIGHT, ColumnarJoin, ColumnJoin, JoinedColumn
from flowlet.kernels.windows.window_partials import ColumnInputs
from flowlet.kernels.windows.window_shapes import AlignedWindows
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.flowlet.kernels.windows.stored_windows import restored, stored
from tests.flowlet.kernels.windows.windows_by_hand import windows_of

LEFT_SCHEMA = pa.schema([("k", pa.string()), ("a", pa.int64())])
RIGHT_SCHEMA = pa.schema([("key", pa.string()), ("b", pa.int64())])
COLUMNS = (JoinedColumn("a", LEFT, "a", pa.int64()), JoinedColumn("b", RIGHT, "b", pa.int64()))
Given = tuple[Any, int, int]  # key, timestamp, number


def join_of(windows: AlignedWindows, kind: str) -> ColumnJoin:
    return ColumnJoin(windows, ("k", "key"), pa.string(), kind, COLUMNS, (LEFT_SCHEMA, RIGHT_SCHEMA))


def inputs_of(side: int, rows: list[Given]) -> ColumnInputs:
    schema = LEFT_SCHEMA if side == LEFT else RIGHT_SCHEMA
    arrays = [
        pa.array([key for key, _, _ in rows], pa.string()),
        pa.array([number for _, _, number in rows], pa.int64()),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return ColumnInputs(columns_of_batch(batch), schema, np.array([timestamp for _, timestamp, _ in rows]))


def joined_by_hand(
    windows: AlignedWindows, kind: str, sides: tuple[list[Given], list[Given]], low: int, high: int
) -> Counter[Any]:
    """Return the rows of the windows whose last timestamp is above ``low`` and up to ``high``."""
    cells: dict[Any, tuple[list[int], list[int]]] = {}
    for side, rows in enumerate(sides):
        for key, timestamp, number in rows:
            for start, end in windows_of(windows, timestamp):
                if low < end - 1 <= high:
                    cells.setdefault((key, start, end), ([], []))[side].append(number)
    found: Counter[Any] = Counter()
    for cell, (lefts, rights) in cells.items():
        if not rights and kind in ("left", "outer"):
            found.update((*cell, number, None) for number in lefts)
        elif not lefts and kind in ("right", "outer"):
            found.update((*cell, None, number) for number in rights)
        else:
            found.update((*cell, a, b) for a in lefts for b in rights)
    return found


def emitted(join: ColumnarJoin, watermark: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for rows in join.fire(watermark):
        table = rows.batch
        starts, ends = (table.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end"))
        assert ends == rows.ends_ms.tolist()
        found.update(
            zip(
                table.column("k").to_pylist(),
                starts,
                ends,
                table.column("a").to_pylist(),
                table.column("b").to_pylist(),
                strict=True,
            )
        )
    return found


def run_case(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 20)
    slide = size if rng.random() < 0.5 else rng.randint(1, 25)
    windows = AlignedWindows(size, slide, rng.randint(1 - slide, slide - 1))
    join, watermark, now = ColumnarJoin(join_of(windows, kind)), MIN_TIMESTAMP, rng.randint(-50, 50)
    sides: tuple[list[Given], list[Given]] = ([], [])
    for _ in range(rng.randint(1, 10)):
        now += rng.randint(0, 15)
        side = rng.randint(LEFT, RIGHT)
        keys = [None, "a", "b", "c"]
        rows = [
            (rng.choice(keys), now + rng.randint(-20, 20), rng.randint(0, 1_000_000)) for _ in range(rng.randint(1, 12))
        ]
        late = [
            row
            for row in rows
            if all(end - 1 <= watermark for _, end in windows_of(windows, row[1])) and row[1] <= watermark
        ]
        assert join.add(side, inputs_of(side, rows)) == len(late)
        sides[side].extend(row for row in rows if row not in late)
        if rng.random() < 0.5:
            before, watermark = watermark, max(watermark, now - rng.randint(0, 20))
            assert emitted(join, watermark) == joined_by_hand(windows, kind, sides, before, watermark)
        if rng.random() < 0.2:
            whole, parts = stored(join), []
            for groups in (range(3), range(3, 8)):
                part = ColumnarJoin(join_of(windows, kind))
                restored(part, whole, groups)
                parts += stored(part, groups)
            join = ColumnarJoin(join_of(windows, kind))
            restored(join, parts, range(8))
    assert emitted(join, MAX_TIMESTAMP) == joined_by_hand(windows, kind, sides, watermark, MAX_TIMESTAMP)


@pytest.mark.slow
def test_many_rows_wait_in_sorted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are joined as few are."""
    monkeypatch.setattr(window_shapes, "_MAX_RUNS", 2)
    for seed in range(8):
        run_case(seed, JOIN_KINDS[seed % 4])


@pytest.mark.parametrize("kind", JOIN_KINDS)
def test_random_joins_are_those_of_plain_loops(kind: str) -> None:
    for seed in range(25):
        run_case(seed, kind)


def test_many_pairs_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_join, "_MAX_PAIRS", 7)
    join = ColumnarJoin(join_of(AlignedWindows(10, 10), "inner"))
    for side in (LEFT, RIGHT):
        join.add(side, inputs_of(side, [("a", 1, number) for number in range(6)]))

    pieces = [rows.batch.num_rows for rows in join.fire(9)]

    assert sum(pieces) == 36
    assert max(pieces) <= 7


def test_a_watermark_that_ends_no_window_touches_no_rows() -> None:
    """Rows of a sliding window wait in many windows; a watermark inside of all of them changes nothing."""
    join = ColumnarJoin(join_of(AlignedWindows(20, 10), "inner"))
    join.add(LEFT, inputs_of(LEFT, [("a", 5, 1), ("a", 12, 2)]))
    assert not emitted(join, 11)
    before = join.state()[2][LEFT]

    assert not emitted(join, 18)
    assert list(map(id, join.state()[2][LEFT])) == list(map(id, before))

    join.add(RIGHT, inputs_of(RIGHT, [("a", 19, 3)]))
    assert emitted(join, 19) == Counter({("a", 0, 20, 1, 3): 1, ("a", 0, 20, 2, 3): 1})


@pytest.mark.long
@pytest.mark.parametrize("kind", JOIN_KINDS)
def test_thousands_of_random_joins(kind: str) -> None:
    for seed in range(100, 2_000):
        run_case(seed, kind)
