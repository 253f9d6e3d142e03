from typing import Any

import pytest

from flowlet.operators import record_batches
from flowlet.operators.source_operator import ShareReader
from flowlet.state.state_snapshots import StateShare

pa = pytest.importorskip("pyarrow")
TABLE = pa.Table.from_batches([pa.record_batch({"n": part}) for part in ([0, 1], [2], [3, 4, 5, 6])])


def rest(reader: ShareReader) -> list[int]:
    return [row["n"] for chunk in iter(reader.poll_chunk, None) for row in chunk.values]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "MAX_CHUNK_ROWS", 2)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 9])
def test_a_table_is_read_in_equal_shares(parallelism: int) -> None:
    source = record_batches.ArrowTableSource(TABLE)

    shares = [rest(source.create_reader(subtask, parallelism)) for subtask in range(parallelism)]

    assert [number for share in shares for number in share] == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("width", [1, 2, 3])
def test_what_is_left_is_dealt_out_to_another_number_of_readers(width: int) -> None:
    source = record_batches.ArrowTableSource(TABLE)
    readers = [source.create_reader(subtask, 2) for subtask in range(2)]
    given: list[Any] = [
        row["n"] for reader in readers for row in (reader.poll_chunk() or pytest.fail("no rows")).values
    ]
    positions = [reader.snapshot_position() for reader in readers]

    for subtask in range(width):
        reader = source.create_reader(subtask, width)
        reader.restore_position(source.redistribute_positions(positions, StateShare(subtask, width, 128, 2)))
        given += rest(reader)

    assert sorted(given) == list(range(7))
