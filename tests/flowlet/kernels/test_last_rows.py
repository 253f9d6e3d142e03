"""The last row of each key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.kernels.grouping import LastRows


@pytest.mark.parametrize("num_slots", [40, 4_000])
@given(chunks=st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=500), max_size=4))
def test_last_rows_are_those_of_a_loop(num_slots: int, chunks: list[list[int]]) -> None:
    last_rows = LastRows()

    for chunk in chunks:
        expected = sorted({slot: row for row, slot in enumerate(chunk)}.values())
        assert last_rows.of(np.array(chunk), num_slots).tolist() == expected
