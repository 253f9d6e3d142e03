"""Rows that wait for their transaction: they come back as they were, or are known to be cut off."""

import pickle
import threading

import pytest

from flowlet.connectors.write_ahead_writer import CommittableRows, decoded_rows, encoded_part
from flowlet.errors import SerdeError


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
