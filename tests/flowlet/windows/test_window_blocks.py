"""The state that windows of columns wrote before their back end kept their rows."""

from typing import Any

import pyarrow as pa
import pytest

from flowlet.errors import StateRestoreError
from flowlet.state.state_snapshots import WINDOW_COLUMNS, ColumnBlock
from flowlet.windows.window_blocks import WindowColumnsSnapshot, former_state


def stream(**arrays: Any) -> bytes:
    batch = pa.record_batch(arrays)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def snapshot(*emitted: int, description: str = "sum(n)") -> WindowColumnsSnapshot:
    """One row of each key; the watermark was 5."""
    slots = range(len(emitted))
    rows = {"slot": pa.array(slots, pa.int64()), "start": pa.array([7] * len(emitted)), "n1.0": pa.array(slots)}
    keys = stream(key=pa.array([f"key {slot}" for slot in slots]), emitted=pa.array(emitted))
    return WindowColumnsSnapshot(description, 5, keys, (stream(**rows),), ((0, 1),))


def test_rows_of_before_go_into_their_key_groups() -> None:
    state = former_state([snapshot(5, 5, 5), WindowColumnsSnapshot("sum(n)", 4, b"", (), ())], 8)

    blocks = [
        ColumnBlock.with_key(group, key, content)
        for group, states in state.groups.items()
        for key, content in zip(states[WINDOW_COLUMNS].keys, states[WINDOW_COLUMNS].values, strict=True)
    ]
    assert sorted(block.group for block in blocks if not block.table) == list(range(8))
    rows = [pa.ipc.open_stream(block.content).read_next_batch() for block in blocks if block.table]
    assert sorted(key for batch in rows for key in batch.column("key").to_pylist()) == ["key 0", "key 1", "key 2"]
    assert {block.start for block in blocks if block.table} == {7}


def test_keys_of_a_group_that_were_not_equally_far_are_refused() -> None:
    """How far windows were emitted is known by key group now."""
    with pytest.raises(StateRestoreError, match="right after a change of the parallelism"):
        former_state([snapshot(5, 9)], 1)


def test_state_of_several_aggregations_is_refused() -> None:
    with pytest.raises(StateRestoreError, match=r"is of max\(n\) in one subtask, and of sum\(n\) in another one"):
        former_state([snapshot(5), snapshot(5, description="max(n)")], 8)
