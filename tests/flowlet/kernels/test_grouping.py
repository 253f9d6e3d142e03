import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.kernels.grouping import group


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("num_codes", [20, 65_536, 65_537, 2**31 - 1])
@given(data=st.data())
def test_rows_are_listed_by_code_and_then_in_their_order(
    dtype: type[np.integer], num_codes: int, data: st.DataObject
) -> None:
    """The result does not depend on the number of codes, which decides how rows are sorted and borders found."""
    largest = min(num_codes - 1, np.iinfo(dtype).max)
    codes = data.draw(st.lists(st.integers(0, 5) | st.integers(0, largest) | st.just(largest), min_size=1, max_size=40))

    grouping = group(np.array(codes, dtype), num_codes)

    rows: dict[int, list[int]] = {code: [] for code in sorted(set(codes))}
    for row, code in enumerate(codes):
        rows[code].append(row)
    assert grouping.codes.tolist() == list(rows)
    assert grouping.order.tolist() == [row for group_rows in rows.values() for row in group_rows]
    assert grouping.lengths.tolist() == [len(group_rows) for group_rows in rows.values()]
    assert grouping.ends.tolist() == np.cumsum(grouping.lengths).tolist()
    assert len(grouping) == len(rows)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_what_was_sorted_can_be_put_back(codes: list[int]) -> None:
    grouping = group(np.array(codes), 10)
    values = np.arange(len(codes))

    assert grouping.unsorted(grouping.sorted(values)).tolist() == values.tolist()
    assert grouping.unsorted(grouping.spread(grouping.codes)).tolist() == codes
