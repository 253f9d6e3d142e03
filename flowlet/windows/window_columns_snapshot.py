"""What windows of columns put into a checkpoint: Arrow streams of keys and parts.

Side:       pure.
Format:     Arrow IPC streams.  Keys: ``key``, and ``emitted``, the watermark up to which the windows of the key were
            emitted.  Rows: ``slot``, ``start``, the marks, and the arrays of the parts; the names of columns that come
            back as numpy arrays begin with "n".
Invariants: a key is in one subtask's state; all its rows are there, too.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from flowlet.errors import StateRestoreError
from flowlet.kernels.windows.columnar_windows import WindowsState
from flowlet.kernels.windows.window_partials import Int64Array
from flowlet.kernels.windows.window_shapes import Run, joined_runs
from flowlet.keys.column_key import column_key_hashes
from flowlet.keys.key_columns import groups_of_hashes
from netstack.late import dataclass

_LOWEST: Final = -(1 << 62)
_NUMPY, _ARROW = "n", "a"


@dataclass(frozen=True, slots=True)
class WindowColumnsSnapshot:
    """The state of one subtask, version 1.

    Whoever changes a field raises ``STATE_VERSION`` of the operator.

    Args:
        description: of the aggregation; state of another one is refused.
        emitted: the watermark up to which windows were emitted.
        keys: a stream; empty: there are no rows.
        tables: a stream for each table of rows (a join has two); empty: it has no rows.
        layouts: of each table the number of marks, and of arrays of each part.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    description: str
    emitted: int
    keys: bytes
    tables: tuple[bytes, ...]
    layouts: tuple[tuple[int, ...], ...]


def encoded(state: WindowsState, description: str) -> WindowColumnsSnapshot:
    """The snapshot of a state; only keys with rows are in it."""
    tables = [joined_runs(runs) if runs else None for runs in state.tables]
    filled = [run.slots for run in tables if run is not None]
    if not filled:
        return _without_rows(description, state.emitted)
    live = np.unique(np.concatenate(filled))
    floors = np.full(len(live), max(state.emitted, _LOWEST)) if state.floors is None else state.floors.take(live)
    keys = pa.record_batch({"key": state.keys.take(pa.array(live)), "emitted": pa.array(floors)})
    written = [
        b"" if run is None else _written(_batch_of(run.with_slots(np.searchsorted(live, run.slots)))) for run in tables
    ]
    layouts = [() if run is None else (len(run.marks), *[len(part) for part in run.parts]) for run in tables]
    return WindowColumnsSnapshot(description, state.emitted, _written(keys), tuple(written), tuple(layouts))


def decoded(snapshot: WindowColumnsSnapshot, description: str, operator: str) -> WindowsState:
    """The state of a snapshot.

    Raises:
        StateRestoreError: it is of another aggregation.
    """
    if snapshot.description != description:
        raise StateRestoreError(
            f"the state of operator {operator!r} is of {snapshot.description}, the program has {description}; "
            "restore it with the former windows and aggregations, or give the operator another uid and start without "
            "its state"
        )
    if not snapshot.keys:
        return WindowsState(None, snapshot.emitted, None, ())
    keys = _read(snapshot.keys)
    floors = keys.column("emitted").to_numpy()
    is_needed = bool((floors > max(snapshot.emitted, _LOWEST)).any())
    return WindowsState(
        keys.column("key"), snapshot.emitted, floors if is_needed else None, tuple(map(_runs, _tables(snapshot)))
    )


def of_key_groups(snapshot: WindowColumnsSnapshot, groups: range, max_parallelism: int) -> WindowColumnsSnapshot:
    """The part with the keys of these groups."""
    if not snapshot.keys:
        return snapshot
    keys = _read(snapshot.keys)
    found = groups_of_hashes(column_key_hashes(keys.column("key")), max_parallelism)
    is_ours = (found >= groups.start) & (found < groups.stop)
    ours = [None if run is None else run.take(is_ours.take(run.slots).nonzero()[0]) for run in _tables(snapshot)]
    floors = keys.column("emitted").to_numpy()
    return encoded(
        WindowsState(keys.column("key"), snapshot.emitted, floors, tuple(map(_runs, ours))), snapshot.description
    )


def merged(snapshots: Sequence[WindowColumnsSnapshot]) -> WindowColumnsSnapshot | None:
    """One snapshot of several, of which no two have a key in common; None: there is none."""
    if not snapshots:
        return None
    description, emitted = snapshots[0].description, min(each.emitted for each in snapshots)
    filled = [each for each in snapshots if each.keys]
    if not filled:
        return _without_rows(description, emitted)
    keys, num_keys = [], 0
    tables: list[list[Run]] = [[] for _ in filled[0].tables]
    for each in filled:
        for runs, run in zip(tables, _tables(each), strict=True):
            if run is not None:
                runs.append(run.with_slots(run.slots + num_keys))
        keys.append(_read(each.keys))
        num_keys += keys[-1].num_rows
    every = pa.concat_arrays([each.column("key") for each in keys])
    floors: Int64Array = np.concatenate([each.column("emitted").to_numpy() for each in keys])
    return encoded(WindowsState(every, emitted, floors, tuple(map(tuple, tables))), description)


def _without_rows(description: str, emitted: int) -> WindowColumnsSnapshot:
    return WindowColumnsSnapshot(description, emitted, b"", (), ())


def _runs(run: Run | None) -> tuple[Run, ...]:
    return () if run is None or not len(run) else (run,)


def _batch_of(run: Run) -> Any:
    arrays: dict[str, Any] = {"slot": pa.array(run.slots.astype(np.int64, copy=False)), "start": pa.array(run.starts)}
    for number, part in enumerate((run.marks, *run.parts)):
        for index, values in enumerate(part):
            is_numpy = isinstance(values, np.ndarray)
            arrays[f"{_NUMPY if is_numpy else _ARROW}{number}.{index}"] = pa.array(values) if is_numpy else values
    return pa.record_batch(arrays)


def _tables(snapshot: WindowColumnsSnapshot) -> Iterator[Run | None]:
    for written, layout in zip(snapshot.tables, snapshot.layouts, strict=True):
        yield _run_of(_read(written), layout) if written else None


def _run_of(batch: Any, layout: tuple[int, ...]) -> Run:
    names = iter(batch.schema.names[2:])
    marks, *parts = [tuple([_values(batch, next(names)) for _ in range(size)]) for size in layout]
    return Run(batch.column("slot").to_numpy(), batch.column("start").to_numpy(), marks, tuple(parts))


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
