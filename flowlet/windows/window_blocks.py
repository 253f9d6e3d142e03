"""Blocks: the rows of windows and joins of columns in the form of the back end, by key group.

Side:       pure.
Format:     Arrow IPC streams: ``key``, ``start``, the marks, and the arrays of the parts; the names of columns that
            come back as numpy arrays begin with "n".  One block of each key group has the watermark up to which its
            windows were emitted.
Invariants: all rows of a key are in the state of one subtask.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.errors import StateRestoreError
from flowlet.kernels.grouping import stable_order
from flowlet.kernels.windows.window_partials import Int64Array, join_values
from flowlet.kernels.windows.window_shapes import Progress, Run, TableRuns, WindowTables, joined_runs
from flowlet.keys.key_columns import column_key_groups
from flowlet.state.state_snapshots import (
    ALL_STARTS,
    WINDOW_COLUMNS,
    ColumnBlock,
    KeyedStateSnapshot,
    StateDescription,
    StateKind,
    rows_of_blocks,
)
from netstack.late import dataclass

_NUMPY: Final = "n"
_ARROW: Final = "a"
_SIZES: Final = "arrays"  # metadata: how many the marks have, and each part
_EMITTED: Final = struct.Struct("<q")
_MIN_BLOCK_ROWS: Final = 256  # a block takes some 800 bytes and 100 us, besides its rows; not measured closely


def known_blocks(progress: Progress, key_groups: range) -> Iterator[ColumnBlock]:
    """Blocks that say how far the windows of each key group were emitted."""
    return (ColumnBlock(group, 0, 0, 0, _EMITTED.pack(progress.of_group(group))) for group in key_groups)


def row_blocks(keys: Any, tables: TableRuns, max_parallelism: int, *, is_cut: bool = False) -> Iterator[ColumnBlock]:
    """The rows of tables as blocks, by key group.

    ``keys``: the key of each slot.  ``is_cut``: the rows are in the order of their starts; many rows with one start get
        a block of their own.
    """
    groups = column_key_groups(keys, max_parallelism)
    for table, runs in enumerate(tables, 1):
        if not runs:
            continue
        run = joined_runs(runs)
        of_rows = groups.take(run.slots)
        order = stable_order(of_rows)
        if order is not None:
            run = run.take(order)
            of_rows = of_rows.take(order)
        for begin, stop in pairwise(_edges(of_rows)):
            cuts = _cuts(run.starts[begin:stop]) if is_cut else (0, stop - begin)
            for first, end in pairwise(cuts):
                part = run.cut(begin + first, begin + end)
                content = _written(_batch_of(keys.take(pa.array(part.slots)), part))
                yield ColumnBlock(int(of_rows[begin]), table, int(part.starts.min()), 0, content)


def put_blocks(
    windows: WindowTables[Any], blocks: Sequence[ColumnBlock], before: int | None, max_parallelism: int
) -> list[ColumnBlock]:
    """Put the rows of blocks in front of all others; returns the rows that start at ``before`` or later as blocks.

    ``before``: None: all rows are put.

    Raises:
        TypeError: the keys are not those of these windows.
    """
    emitted = {each.group: _EMITTED.unpack(each.content)[0] for each in blocks if not each.table}
    if emitted:
        windows.progress = Progress.of_groups(emitted, max_parallelism)
    rest: list[ColumnBlock] = []
    for table in sorted({each.table for each in blocks if each.table}):
        keys: list[Any] = []
        runs: list[Run] = []
        for block in sorted([each for each in blocks if each.table == table], key=attrgetter("number")):
            batch = _read(block.content)
            is_due = batch.column("start").to_numpy() < (ALL_STARTS if before is None else before)
            if not is_due.all():
                others = batch.filter(pa.array(~is_due))
                start = int(others.column("start").to_numpy().min())
                rest.append(replace(block, start=start, content=_written(others)))
                batch = batch.filter(pa.array(is_due))
            if batch.num_rows:
                sizes = map(int, batch.schema.metadata[_SIZES.encode()].split(b","))
                keys.append(batch.column("key"))
                runs.append(_run_of(batch, sizes, np.empty(batch.num_rows, np.int64)))
        if runs:
            windows.put_first(table - 1, join_values(keys), joined_runs(runs))
    return rest


def _edges(values: NDArray[Any]) -> list[int]:
    """The positions at which runs of equal values begin, and the end."""
    return [0, *((values[1:] != values[:-1]).nonzero()[0] + 1).tolist(), len(values)]


def _cuts(starts: Int64Array) -> list[int]:
    """The positions at which blocks begin, and the end."""
    cuts = [0]
    for begin, stop in pairwise(_edges(starts)):
        if begin > cuts[-1] and max(begin - cuts[-1], stop - begin) >= _MIN_BLOCK_ROWS:
            cuts.append(begin)
    return [*cuts, len(starts)]


def _batch_of(keys: Any, run: Run) -> Any:
    arrays: dict[str, Any] = {"key": keys, "start": pa.array(run.starts)}
    for number, part in enumerate((run.marks, *run.parts)):
        for index, values in enumerate(part):
            is_numpy = isinstance(values, np.ndarray)
            arrays[f"{_NUMPY if is_numpy else _ARROW}{number}.{index}"] = pa.array(values) if is_numpy else values
    sizes = [len(run.marks), *map(len, run.parts)]
    return pa.record_batch(arrays, metadata={_SIZES: ",".join(map(str, sizes))})


def _run_of(batch: Any, sizes: Iterable[int], slots: Int64Array) -> Run:
    """The rows of a batch whose first two columns do not belong to the run.

    ``sizes``: how many arrays the marks and each part have.
    """
    names = iter(batch.schema.names[2:])
    marks, *parts = [tuple([_values(batch, next(names)) for _ in range(size)]) for size in sizes]
    return Run(slots, batch.column("start").to_numpy(), marks, tuple(parts))


def _values(batch: Any, name: str) -> Any:
    array = batch.column(name)
    return array.to_numpy(zero_copy_only=False) if name.startswith(_NUMPY) else array


def _written(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _read(stream: bytes) -> Any:
    return pa.ipc.open_stream(stream).read_next_batch()


@dataclass(frozen=True, slots=True)
class WindowColumnsSnapshot:
    """A snapshot as earlier versions of flowlet wrote it, before the back end kept the rows; it is only read.

    Args:
        description: of the aggregation; state of another one is refused.
        emitted: the watermark up to which windows were emitted.
        keys: a stream of ``key``, and ``emitted``, the watermark up to which the windows of the key were emitted;
            empty: there are no rows.
        tables: a stream for each table of rows (a join has two), with ``slot``, the place of the key, and ``start`` in
            front; empty: it has no rows.
        layouts: of each table the number of marks, and of arrays of each part.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    description: str
    emitted: int
    keys: bytes
    tables: tuple[bytes, ...]
    layouts: tuple[tuple[int, ...], ...]


def former_state(snapshots: Sequence[WindowColumnsSnapshot], max_parallelism: int) -> KeyedStateSnapshot:
    """The rows of snapshots in the form that every back end reads.

    Raises:
        StateRestoreError: the snapshots are of several aggregations, or of the time after a change of the parallelism
            at which keys of one group were not equally far.
    """
    described = sorted({each.description for each in snapshots})
    if len(described) > 1:
        raise StateRestoreError(f"the state is of {described[0]} in one subtask, and of {described[1]} in another one")
    lowest = min(each.emitted for each in snapshots)
    floors = np.full(max_parallelism, lowest)
    blocks: list[ColumnBlock] = []
    for each in snapshots:
        if not each.keys:
            continue
        batch = _read(each.keys)
        keys = batch.column("key")
        groups = column_key_groups(keys, max_parallelism)
        emitted = np.maximum(batch.column("emitted").to_numpy(), each.emitted)
        floors[groups] = emitted
        if (floors.take(groups) != emitted).any():
            raise StateRestoreError(
                "the checkpoint was taken by an earlier flowlet right after a change of the parallelism, before the "
                "watermark had passed that of every former subtask; restore an earlier checkpoint, or a later one"
            )
        tables: list[tuple[Run, ...]] = []
        for written, layout in zip(each.tables, each.layouts, strict=True):
            rows = _read(written) if written else None
            tables.append(() if rows is None else (_run_of(rows, layout, rows.column("slot").to_numpy()),))
        blocks += row_blocks(keys, tuple(tables), max_parallelism)
    blocks += known_blocks(Progress(lowest, floors), range(max_parallelism))
    groups_of = {group: {WINDOW_COLUMNS: rows} for group, rows in rows_of_blocks(blocks).items()}
    return KeyedStateSnapshot(
        {WINDOW_COLUMNS: StateDescription(StateKind.COLUMNS, described[0])}, max_parallelism, groups_of
    )
