"""Windows and joins of columns in RocksDB give results as on the heap, however little room there is for rows,
and so do both after a restore from each other, in another parallelism too.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.kernels.windows.columnar_join import JOIN_KINDS, LEFT, RIGHT, ColumnJoin, JoinedColumn
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.window_partials import WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, SessionWindows, WindowShape
from flowlet.keys.exact_keys import key_group, key_group_range
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot
from flowlet.windows.window_columns_operator import JoinColumnsOperator, WindowColumnsOperator
from tests.flowlet.operators.harness import Harness, MakeBackend

pytest.importorskip("rocksdict")
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
from tests.flowlet.state.rocksdb.test_rocksdb_keyed_state_backend import Files

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.string())])
AGGREGATES = (
    WindowAggregate("total", "sum", "n", pa.int64()),
    WindowAggregate("rows", "count"),
    WindowAggregate("first", "first", "t", pa.string()),
    WindowAggregate("last", "last", "t", pa.string()),
)
MAX_PARALLELISM = 128
Given = tuple[str | None, int, int]  # key, number, timestamp


def chunk(rows: list[Given]) -> Chunk:
    arrays = [
        pa.array([key for key, _, _ in rows], pa.string()),
        pa.array([number for _, number, _ in rows], pa.int64()),
        pa.array([f"text {number}" for _, number, _ in rows], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return Chunk.of_columns(columns_of_batch(batch), np.array([timestamp for _, _, timestamp in rows]))


def windows(shape: WindowShape, lateness_ms: int, key: str | None = "k") -> WindowColumnsOperator:
    aggregation = WindowedAggregation(shape, AGGREGATES, key, None if key is None else pa.string(), lateness_ms)
    return WindowColumnsOperator(aggregation, SCHEMA)


def join(kind: str, shape: AlignedWindows) -> JoinColumnsOperator:
    columns = (JoinedColumn("x", LEFT, "n", pa.int64()), JoinedColumn("y", RIGHT, "n", pa.int64()))
    return JoinColumnsOperator(ColumnJoin(shape, ("k", "k"), pa.string(), kind, columns, (SCHEMA, SCHEMA)))


class Subtasks:
    """An operator in some subtasks, with one kind of back end."""

    def __init__(self, make: Callable[[], Any], make_backend: MakeBackend) -> None:
        self.make = make
        self.make_backend = make_backend
        self.found: Counter[str] = Counter()
        self.num_late = 0
        self.restart([], 1)

    def restart(self, snapshots: list[Any], parallelism: int) -> None:
        self.harnesses = []
        for subtask in range(parallelism):
            groups = key_group_range(MAX_PARALLELISM, parallelism, subtask)
            restored = None
            if snapshots and isinstance(snapshots[0], KeyedStateSnapshot):
                (descriptions,) = {repr(each.descriptions): each.descriptions for each in snapshots}.values()
                states = {group: each for part in snapshots for group, each in part.groups.items() if group in groups}
                restored = KeyedStateSnapshot(descriptions, MAX_PARALLELISM, states)
            self.harnesses.append(
                Harness(
                    self.make(),
                    subtask=subtask,
                    parallelism=parallelism,
                    make_backend=self.make_backend,
                    restored=restored,
                )
            )

    def add(self, rows: list[Given], side: int) -> None:
        for harness in self.harnesses:
            groups = key_group_range(MAX_PARALLELISM, len(self.harnesses), harness.operator.ctx.subtask)
            ours = [row for row in rows if key_group(row[0], MAX_PARALLELISM) in groups]
            if ours:
                inputs = harness.operator.inputs()
                inputs[side % len(inputs)].process_chunk(chunk(ours))
        self.collect()

    def fire(self, subtask: int, watermark: int) -> None:
        harness = self.harnesses[subtask % len(self.harnesses)]
        for each in harness.operator.inputs():
            each.process_control(Watermark(watermark))
        self.collect()

    def collect(self) -> None:
        for harness in self.harnesses:
            self.found.update(repr(value) for value in harness.output.values)
            harness.output.elements.clear()
            harness.keyed_state.check_invariants()

    def snapshots(self) -> list[Any]:
        return [harness.snapshot() for harness in self.harnesses]

    def close(self) -> None:
        for harness in self.harnesses:
            self.num_late += harness.operator.ctx.counters.num_late_records_dropped
            harness.operator.close()
            harness.keyed_state.close()


@pytest.fixture
def make_rocksdb(tmp_path: Path) -> Callable[[int], MakeBackend]:
    return lambda cache_bytes: partial(
        RocksDBKeyedStateBackend, place=RocksDBPlace(str(tmp_path), cache_bytes=cache_bytes)
    )


def rows_by(rng: random.Random, now: int, num_keys: int) -> list[Given]:
    keys = [None, *(f"key {number}" for number in range(num_keys))]
    return [(rng.choice(keys), rng.randint(0, 10**6), now + rng.randint(-40, 30)) for _ in range(rng.randint(1, 60))]


def run_case(seed: int, make: Callable[[], Any], cache_bytes: int, make_rocksdb: Callable[[int], MakeBackend]) -> None:
    rng = random.Random(seed)
    subtasks = [Subtasks(make, HeapKeyedStateBackend), Subtasks(make, make_rocksdb(cache_bytes))]
    now, num_keys = rng.randint(-100, 100), rng.choice([3, 40])
    for _ in range(rng.randint(3, 14)):
        if rng.random() < 0.3:
            snapshots = [each.snapshots() for each in subtasks]
            if rng.random() < 0.5:
                snapshots.reverse()  # each restores what the other one wrote
            parallelism = rng.choice([1, 2, 3])
            for each, snapshot in zip(subtasks, snapshots, strict=True):
                each.close()
                each.restart(snapshot, parallelism)
        elif rng.random() < 0.3:
            subtasks[1].snapshots()  # which goes on from what it wrote
        now += rng.randint(0, 30)
        rows, side = rows_by(rng, now, num_keys), rng.randint(0, 1)
        subtask, watermark, is_fired = rng.randint(0, 2), now - rng.randint(0, 25), rng.random() < 0.6
        for each in subtasks:
            each.add(rows, side)
            if is_fired:
                each.fire(subtask, watermark)
        assert subtasks[0].found == subtasks[1].found
    for each in subtasks:
        for number in range(len(each.harnesses)):
            each.fire(number, MAX_TIMESTAMP)
        each.close()
    assert subtasks[0].found == subtasks[1].found
    assert subtasks[0].num_late == subtasks[1].num_late


def case_by(seed: int) -> Callable[[], Any]:
    rng = random.Random(seed)
    size = rng.randint(1, 25)
    slide = size if rng.random() < 0.4 else rng.randint(1, 30)
    shape = AlignedWindows(size, slide, rng.randint(1 - slide, slide - 1))
    lateness_ms = rng.choice([0, 0, rng.randint(1, 30)])
    match seed % 4:
        case 0:
            return partial(join, JOIN_KINDS[seed // 4 % 4], shape)
        case 1:
            return partial(windows, SessionWindows(rng.randint(1, 12)), lateness_ms)
        case _:
            return partial(windows, shape, lateness_ms)


SIZES = (1, 20_000, 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_windows_in_rocksdb_are_those_on_the_heap(seed: int, make_rocksdb: Callable[[int], MakeBackend]) -> None:
    run_case(seed, case_by(seed), SIZES[seed % 3], make_rocksdb)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_many_random_windows_in_rocksdb(first: int, make_rocksdb: Callable[[int], MakeBackend]) -> None:
    for seed in range(first, first + 10):
        run_case(seed, case_by(seed), SIZES[seed % 3], make_rocksdb)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        partial(windows, AlignedWindows(20, 10), 0),
        partial(windows, SessionWindows(5), 0),
        partial(join, "outer", AlignedWindows(20, 20)),
    ],
    ids=["sliding", "sessions", "join"],
)
def test_windows_go_on_from_an_incremental_snapshot(make: Callable[[], Any], parallelism: int, tmp_path: Path) -> None:
    """It gives the database as it was, or its rows of some key groups; some panes were emitted, some wait."""
    place = RocksDBPlace(str(tmp_path), Files(), writes_shared_files=True, cache_bytes=1)
    rng = random.Random(7)
    rows = [rows_by(rng, now, 40) for now in (0, 10, 25, 60)]
    heap = Subtasks(make, HeapKeyedStateBackend)
    rocksdb = Subtasks(make, partial(RocksDBKeyedStateBackend, place=place))
    for subtasks in (heap, rocksdb):
        for side in (0, 1):
            subtasks.add(rows[side], side)
        subtasks.fire(0, 15)
        subtasks.add(rows[2], 0)
    (snapshot,) = rocksdb.snapshots()
    assert isinstance(snapshot, IncrementalSnapshot)

    rocksdb.close()
    rocksdb.harnesses = [
        Harness(make(), subtask=each, parallelism=parallelism, make_backend=rocksdb.make_backend, restored=snapshot)
        for each in range(parallelism)
    ]
    for subtasks in (heap, rocksdb):
        subtasks.add(rows[3], 1)
        for watermark in (30, MAX_TIMESTAMP):
            for number in range(len(subtasks.harnesses)):
                subtasks.fire(number, watermark)
        subtasks.close()

    assert heap.found
    assert rocksdb.found == heap.found
    assert rocksdb.num_late == heap.num_late
