"""What windows of columns put into a checkpoint: Arrow streams of keys and parts.

Side:       pure.
Format:     two Arrow IPC streams.  Keys: ``key``, and ``emitted``, the watermark up to which the windows of the key were emitted.  Runs:
            ``slot``, ``start``, the marks, and the arrays of the parts; the names of columns that come back as numpy arrays begin with "n".
Invariants: a key is in one subtask's state; all its rows are there, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from flowlet.errors import StateRestoreError
from flowlet.kernels.column_inputs import Int64Array
from flowlet.kernels.columnar_windows import WindowsState
from flowlet.kernels.window_partials import Part
from flowlet.kernels.window_runs import Run, joined_runs
from flowlet.keys.column_key import column_key_hashes
from flowlet.keys.key_columns import groups_of_hashes

_LOWEST: Final = -(1 << 62)
_NUMPY, _ARROW = "n", "a"


@dataclass(frozen=True, slots=True)
class WindowColumnsSnapshot:
    """The state of one subtask, version 1.

    Whoever changes a field raises ``STATE_VERSION`` of the operator.

    Args:
        description: of the aggregation; state of another one is refused.
        emitted: the watermark up to which windows were emitted.
        keys: a stream.
        runs: a stream; empty: no rows.
        layout: the number of marks, and of arrays of each part.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    description: str
    emitted: int
    keys: bytes
    runs: bytes
    layout: tuple[int, ...]


def encoded(state: WindowsState, description: str) -> WindowColumnsSnapshot:
    """The snapshot of a state; only keys with rows are in it."""
    filled = [run for run in state.runs if len(run)]
    if not filled:
        return WindowColumnsSnapshot(description, state.emitted, b"", b"", ())
    run = joined_runs(filled)
    live, slots = np.unique(run.slots, return_inverse=True)
    floors = np.full(len(live), max(state.emitted, _LOWEST)) if state.floors is None else state.floors.take(live)
    keys = pa.record_batch({"key": state.keys.take(pa.array(live)), "emitted": pa.array(floors)})
    arrays: dict[str, Any] = {"slot": pa.array(slots.astype(np.int64)), "start": pa.array(run.starts)}
    for number, part in enumerate((run.marks, *run.parts)):
        for index, values in enumerate(part):
            kind = _NUMPY if isinstance(values, np.ndarray) else _ARROW
            arrays[f"{kind}{number}.{index}"] = pa.array(values) if kind == _NUMPY else values
    layout = (len(run.marks), *[len(part) for part in run.parts])
    return WindowColumnsSnapshot(description, state.emitted, _written(keys), _written(pa.record_batch(arrays)), layout)


def decoded(snapshot: WindowColumnsSnapshot, description: str, operator: str) -> WindowsState:
    """The state of a snapshot.

    Raises:
        StateRestoreError: it is of another aggregation.
    """
    if snapshot.description != description:
        raise StateRestoreError(
            f"the state of operator {operator!r} is of {snapshot.description}, the program has {description}; "
            "restore it with the former windows and aggregations, or give the operator another uid and start without its state"
        )
    if not snapshot.runs:
        return WindowsState(None, snapshot.emitted, None, ())
    keys, run = _read(snapshot.keys), _run_of(snapshot)
    floors = keys.column("emitted").to_numpy()
    is_needed = bool((floors > max(snapshot.emitted, _LOWEST)).any())
    return WindowsState(keys.column("key"), snapshot.emitted, floors if is_needed else None, (run,))


def of_key_groups(snapshot: WindowColumnsSnapshot, groups: range, max_parallelism: int) -> WindowColumnsSnapshot:
    """The part with the keys of these groups."""
    if not snapshot.runs:
        return snapshot
    keys = _read(snapshot.keys)
    found = groups_of_hashes(column_key_hashes(keys.column("key")), max_parallelism)
    is_ours = (found >= groups.start) & (found < groups.stop)
    run = _run_of(snapshot)
    rows = is_ours.take(run.slots).nonzero()[0]
    if not len(rows):
        return WindowColumnsSnapshot(snapshot.description, snapshot.emitted, b"", b"", ())
    floors = keys.column("emitted").to_numpy()
    state = WindowsState(keys.column("key"), snapshot.emitted, floors, (run.take(rows),))
    return encoded(state, snapshot.description)


def merged(snapshots: Sequence[WindowColumnsSnapshot]) -> WindowColumnsSnapshot | None:
    """One snapshot of several, of which no two have a key in common; None: there is none."""
    if not snapshots:
        return None
    first, emitted = snapshots[0], min(each.emitted for each in snapshots)
    filled = [each for each in snapshots if each.runs]
    if not filled:
        return WindowColumnsSnapshot(first.description, emitted, b"", b"", ())
    keys, runs, num_keys = [], [], 0
    for each in filled:
        table = _read(each.keys)
        run = _run_of(each)
        runs.append(run.with_slots(run.slots + num_keys))
        keys.append(table)
        num_keys += table.num_rows
    every = pa.concat_arrays([each.column("key") for each in keys])
    floors: Int64Array = np.concatenate([each.column("emitted").to_numpy() for each in keys])
    return encoded(WindowsState(every, emitted, floors, (joined_runs(runs),)), first.description)


def _run_of(snapshot: WindowColumnsSnapshot) -> Run:
    batch = _read(snapshot.runs)
    names = iter(batch.schema.names[2:])
    marks, *parts = [tuple([_values(batch, next(names)) for _ in range(size)]) for size in snapshot.layout]
    parted: list[Part] = list(parts)
    return Run(batch.column("slot").to_numpy(), batch.column("start").to_numpy(), marks, tuple(parted))


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
