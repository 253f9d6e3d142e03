"""Rows are kept in order, in transactions that are numbered without a gap and have about the size that is asked for."""

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from flowlet.connectors.write_ahead_writer import CommittableRows, WriteAheadWriter, decoded_rows, encoded_part
from flowlet.datastream.connectors.base import SinkWriterContext
from flowlet.errors import SerdeError

CONTEXT = SinkWriterContext()


def writer(max_commit_bytes: int = 1 << 20) -> WriteAheadWriter:
    return WriteAheadWriter(lambda values: [value * 10 for value in values], max_commit_bytes, now_ms=lambda: 77)


def contents(prepared: Sequence[CommittableRows]) -> list[list[Any]]:
    return [decoded_rows(each.rows) for each in prepared]


def test_records_are_converted_and_kept_in_order() -> None:
    kept = writer()

    kept.write(1, CONTEXT)
    kept.write_all([2, 3], CONTEXT)
    kept.write_all(range(4, 2_000), CONTEXT)
    kept.write(2_000, CONTEXT)
    kept.flush(end_of_input=False)
    (prepared,) = kept.prepare_commit()

    assert decoded_rows(prepared.rows) == [number * 10 for number in range(1, 2_001)]
    assert (prepared.number, prepared.num_rows, prepared.prepared_ms) == (0, 2_000, 77)


def test_transactions_of_all_checkpoints_are_numbered_without_a_gap() -> None:
    kept = writer(max_commit_bytes=10_000)
    prepared: list[CommittableRows] = []

    for _ in range(3):
        kept.write_all(list(range(5_000)), CONTEXT)
        kept.write_all(list(range(5_000)), CONTEXT)
        prepared += kept.prepare_commit()
    prepared += kept.prepare_commit()  # nothing was written

    assert [each.number for each in prepared] == list(range(6))
    assert len({each.writer for each in prepared}) == 1
    assert sum(len(rows) for rows in contents(prepared)) == 30_000


def test_every_attempt_has_a_writer_of_its_own() -> None:
    one, other = writer(), writer()
    one.write(1, CONTEXT)
    other.write(1, CONTEXT)

    assert one.prepare_commit()[0].writer != other.prepare_commit()[0].writer


def test_rows_of_all_parts_come_back_in_order() -> None:
    data = encoded_part([(1, "a"), None]) + encoded_part([]) + encoded_part([{"b": 2.5}])

    assert decoded_rows(data) == [(1, "a"), None, {"b": 2.5}]
    assert decoded_rows(b"") == []


@pytest.mark.parametrize("length", [1, 3, 4, 10])
def test_rows_that_are_cut_off_are_refused(length: int) -> None:
    with pytest.raises(SerdeError, match="cut off"):
        decoded_rows(encoded_part([1, 2, 3])[:length])


def test_a_row_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(SerdeError, match="cannot be pickled"):
        encoded_part([1, threading.Lock()])


def test_committables_survive_the_pickle_of_a_checkpoint() -> None:
    rows = CommittableRows("w", 3, 5, 1, b"xyz")

    assert pickle.loads(pickle.dumps(rows)) == rows
    assert repr(rows) == "<CommittableRows w-3, 1 rows>"
