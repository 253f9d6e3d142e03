from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Columns, ListColumn, Shape, columns_of
from flowlet.io.record_writer import LaneArray, PendingColumns, Route
from flowlet.records import Chunk
from tests.named_cases import case


def lanes_of(lanes: Any) -> LaneArray:
    return np.asarray(lanes, np.uint16)


def chunk_of(values: list[Any], timestamps: list[int] | None = None) -> Chunk:
    columns = columns_of(values)
    assert columns is not None
    return Chunk.of_columns(columns, timestamps)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.text(max_size=2)), min_size=1, max_size=9), max_size=5),
    st.booleans(),
)
def test_every_lane_gets_its_records_in_order(chunks: list[list[tuple[int, str]]], is_timed: bool) -> None:
    for num_lanes in (1, 2, 3, 4, 7):
        with case(num_lanes):
            check_lanes(num_lanes, chunks, is_timed=is_timed)


def check_lanes(num_lanes: int, chunks: list[list[tuple[int, str]]], *, is_timed: bool) -> None:
    pending = PendingColumns(num_lanes)
    for values in chunks:
        timestamps = [value[0] for value in values] if is_timed else None
        pending.add(chunk_of(list(values), timestamps), lanes_of([value[0] % num_lanes for value in values]))
    assert pending.num_rows == sum(map(len, chunks))

    taken = list(pending.take())

    everything = [value for values in chunks for value in values]
    for lane in range(num_lanes):
        expected = [value for value in everything if value[0] % num_lanes == lane]
        mine = [chunk for each, chunk in taken if each == lane]
        assert [value for chunk in mine for value in chunk.values] == expected
        assert [stamp for chunk in mine for stamp in chunk.timestamps or ()] == (
            [value[0] for value in expected] if is_timed else []
        )
    assert all(len(chunk) for _, chunk in taken)
    assert (pending.num_rows, list(pending.take())) == (0, [])


def parity(columns: Columns) -> LaneArray:
    return lanes_of(np.array(columns.fields[0].to_list()) % 2)


def test_lanes_can_be_found_when_all_is_there() -> None:
    """Lanes are found for all records at once, for those that fit together, or for some of them."""
    calls = []

    def find(columns: Columns) -> tuple[Columns, LaneArray]:
        calls.append(len(columns))
        return columns, parity(columns)

    expected = [(0, Chunk([(2, "b"), (4, "d")])), (1, Chunk([(1, "a"), (3, "c")]))]
    known = lanes_of([1, 0])
    ways: list[tuple[LaneArray | Route, LaneArray | Route]] = [(find, find), (find, known), (known, find)]
    for lanes in ways:
        pending = PendingColumns(2)
        for values, each in zip([[(1, "a"), (2, "b")], [(3, "c"), (4, "d")]], lanes, strict=True):
            pending.add(chunk_of(list(values)), each)
        assert list(pending.take()) == expected
    assert calls == [4, 2, 2]

    pending = PendingColumns(2)
    pending.add(chunk_of([1, 2]), find)
    pending.add(chunk_of([(3, "c")]), find)
    assert list(pending.take()) == [(0, Chunk([2])), (1, Chunk([1])), (1, Chunk([(3, "c")]))]


def test_a_route_may_give_other_columns() -> None:
    """The columns may be of all records at once, or beside lanes that are known."""

    def negated(columns: Columns) -> tuple[Columns, LaneArray]:
        found = columns_of([(-number, text) for number, text in columns.to_list()])
        assert found is not None
        return found, parity(columns)

    known = lanes_of([1, 0])
    expected = {
        (negated, negated): [(0, [(-2, "b"), (-4, "d")]), (1, [(-1, "a"), (-3, "c")])],
        (negated, None): [(0, [(-2, "b")]), (1, [(-1, "a")]), (0, [(4, "d")]), (1, [(3, "c")])],
        (None, negated): [(0, [(2, "b")]), (1, [(1, "a")]), (0, [(-4, "d")]), (1, [(-3, "c")])],
    }
    for routes, found in expected.items():
        pending = PendingColumns(2)
        for values, route in zip([[(1, "a"), (2, "b")], [(3, "c"), (4, "d")]], routes, strict=True):
            pending.add(chunk_of(list(values), [value[0] for value in values]), known if route is None else route)

        taken = list(pending.take())

        assert [(lane, chunk.values) for lane, chunk in taken] == found
        assert [chunk.timestamps for _, chunk in taken] == [
            [abs(number) for number, _ in values] for _, values in found
        ]


def test_columns_that_fit_are_one_chunk() -> None:
    pending = PendingColumns(1)

    pending.add(chunk_of([(1, "a"), (2, "b")]), None)
    pending.add(chunk_of([(3, "c"), (4, "d")]), None)

    assert list(pending.take()) == [(0, Chunk([(1, "a"), (2, "b"), (3, "c"), (4, "d")]))]


def test_columns_that_do_not_fit_follow_each_other() -> None:
    pending = PendingColumns(2)
    first = Chunk.of_columns(Columns(2, (ArrayColumn(np.array([1, 2])),), Shape.SCALAR))
    second = Chunk.of_columns(Columns(2, (ListColumn(["a", "b"]),), Shape.SCALAR))

    pending.add(first, lanes_of([0, 1]))
    pending.add(second, lanes_of([1, 1]))

    assert list(pending.take()) == [(0, Chunk([1])), (1, Chunk([2])), (1, Chunk(["a", "b"]))]


def test_it_says_how_much_waits() -> None:
    pending = PendingColumns(1)
    pending.add(chunk_of([1, 2]), None)

    assert repr(pending) == "<PendingColumns: 2 rows>"
