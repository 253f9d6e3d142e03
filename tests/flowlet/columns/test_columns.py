"""Every representation of records stands for exactly the values that it was made of."""

import math
import struct
import sys
from datetime import datetime
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
    ShortTextColumn,
    column_of,
    columns_of,
)
from flowlet.common.types import Row
from flowlet.records import Chunk
from tests.flowlet.columns.test_short_texts import heads_of
from tests.flowlet.serde.exact import ATOMS, FLOATS, INTS, TEXTS, Count, columns, exact

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]


def coded(values: list[Any]) -> CodedColumn:
    names = list(dict.fromkeys(values))
    return CodedColumn(np.array([names.index(value) for value in values], np.uint16), NameTable(names))


EXAMPLES: list[Column] = [
    ArrayColumn(np.array([1, -(2**63), 2**63 - 1, 7], np.int64)),
    ArrayColumn(np.array([0.0, -0.0, NAN_WITH_PAYLOAD, math.inf])),
    ArrayColumn(np.array([True, False, True, True])),
    ArrayColumn(np.array([2**64 - 1, 0, 1, 2], np.uint64)),
    ArrayColumn(np.array(["2024-01-02T03:04:05.000006", "NaT", "1970-01-01", "1960-01-01"], "datetime64[us]")),
    ListColumn([[1], "a\0", None, 2**70]),
    ListColumn(["a", "b", "c", "d"], str),
    ConstantColumn("x", 4),
    coded(["b", "a", "b", "c"]),
    CodedColumn(np.array([0, 1, 1, 0], np.uint32), NameTable([(1, 2), b"x"])),
    ShortTextColumn(heads_of(["key-0", "", "key-00000000002", "x"])),
    ArrowColumn(pa.array(["a", None, "c", "d"])),
    ArrowColumn(pa.array([1, None, 3, 4], pa.int8())),
    ArrowColumn(pa.array(["a", "b", None, "a"]).dictionary_encode()),
    ArrowColumn(pa.array([datetime(2024, 1, 2), None, datetime(1970, 1, 1), datetime(1960, 1, 1)], pa.timestamp("us"))),  # noqa: DTZ001
]


@pytest.mark.parametrize("column", EXAMPLES, ids=repr)
class TestColumn:
    def test_a_column_is_as_long_as_its_list(self, column: Column) -> None:
        assert len(column) == len(column.to_list()) == 4

    def test_a_list_is_the_callers_own(self, column: Column) -> None:
        column.to_list().clear()

        assert len(column.to_list()) == 4

    def test_parts_are_the_parts_of_the_list(self, column: Column) -> None:
        values = column.to_list()

        assert exact(column.take(np.array([3, 0, 0])).to_list()) == exact([values[3], values[0], values[0]])
        assert exact(column.slice(1, 3).to_list()) == exact(values[1:3])
        assert exact(column.slice(2, 9).to_list()) == exact(values[2:9])
        for empty in (column.take(np.array([], np.intp)), column.slice(4, 5)):
            assert (len(empty), empty.to_list()) == (0, [])

    def test_a_column_says_what_it_is(self, column: Column) -> None:
        assert repr(column).startswith(f"<{type(column).__name__} of ")


def test_numbers_become_int_float_and_bool() -> None:
    assert [type(column.to_list()[0]) for column in EXAMPLES[:4]] == [int, float, bool, int]
    assert EXAMPLES[1].to_list()[1:2] == [-0.0]
    assert exact(EXAMPLES[1].to_list()[2]) == exact(NAN_WITH_PAYLOAD)


def test_instants_become_datetimes() -> None:
    assert EXAMPLES[4].to_list()[:2] == [datetime(2024, 1, 2, 3, 4, 5, 6), None]  # noqa: DTZ001


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[us]", "S3", "O", "c16"])
def test_an_array_whose_values_would_change_is_refused(dtype: str) -> None:
    with pytest.raises(AssertionError, match="array column"):
        ArrayColumn(np.zeros(2, dtype))


def test_names_come_in_later() -> None:
    table = NameTable()
    table.names.append("a")
    size = len(table)
    table.names.append("b")

    column = CodedColumn(np.array([1, 0], np.uint16), table)

    assert (size, len(table), column.to_list()) == (1, 2, ["b", "a"])


def test_a_table_knows_the_types_of_its_values_those_too_that_come_in_later() -> None:
    table = NameTable(["a"])
    assert table.types == {str}
    table.names += [1, True]

    assert table.types == {str, int, bool}
    assert NameTable().types == frozenset()


def test_the_types_are_all_of_them_whenever_another_thread_asks_too() -> None:
    """The other thread has its turn once, before each bytecode of ours in turn; a name has come in since."""
    getter = NameTable.types.fget  # type: ignore[attr-defined]  # a property, of which mypy knows the type of its value
    turn, is_reached = 0, True
    while is_reached:
        table = NameTable(["a", 1])
        num_left, found = turn, None

        def step(frame: FrameType, event: str, _: Any, table: NameTable = table) -> Any:
            nonlocal num_left
            if frame.f_code is not getter.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                if num_left == 0:
                    table.names.append(1.5)
                    assert table.types == {str, int, float}
                num_left -= 1
            return step

        before = sys.gettrace()
        # Python 3.12 traces opcodes only if some frame wanted that before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(step)
        try:
            found = table.types
        finally:
            sys.settrace(before)
        is_reached = num_left < 0

        assert found >= {str, int}, f"before bytecode {turn}"
        assert table.types == ({str, int, float} if is_reached else {str, int}), f"before bytecode {turn}"
        turn += 1
    assert turn > 10


class TestColumns:
    def test_rows_have_names(self) -> None:
        table = Columns(2, (ArrayColumn(np.array([1, 2])), coded(["a", "b"])), Shape.ROW, ("id", "name"))

        assert table.to_list() == [Row(id=1, name="a"), Row(id=2, name="b")]
        assert table.slice(1, 2).to_list() == [Row(id=2, name="b")]

    def test_tuples_and_scalars(self) -> None:
        texts = ListColumn(["a", None])

        assert Columns(2, (ConstantColumn(1, 2), texts), Shape.TUPLE).to_list() == [(1, "a"), (1, None)]
        assert Columns(2, (texts,), Shape.TUPLE).to_list() == [("a",), (None,)]
        assert Columns(2, (texts,), Shape.SCALAR).to_list() == ["a", None]

    @pytest.mark.parametrize(
        "table",
        [
            Columns(3, (ConstantColumn(1, 3), ConstantColumn("x", 3)), Shape.TUPLE),
            Columns(3, (ListColumn(["a", None, 1.5]), ConstantColumn("x", 3)), Shape.TUPLE),
            Columns(3, (coded(["b", "a", "b"]),), Shape.TUPLE),
            Columns(3, (coded(["b", "a", "b"]),), Shape.SCALAR),
            Columns(2, (ArrayColumn(np.array([1, 2])), coded(["a", "b"])), Shape.ROW, ("id", "name")),
        ],
    )
    def test_records_come_one_by_one(self, table: Columns) -> None:
        assert list(table.records()) == table.to_list()
        chunk = Chunk.of_columns(table)
        assert list(chunk.records()) == table.to_list()
        assert list(map(id, chunk.values)) == list(map(id, chunk.records()))

    def test_parts_have_their_key_where_the_whole_has_it(self) -> None:
        table = Columns(3, (ConstantColumn(1, 3), coded(["b", "a", "b"])), Shape.TUPLE, key_position=1)

        parts = (table.slice(0, 2), table.take(np.array([2])), table.narrowed())
        assert [part.key_position for part in parts] == [1, 1, 1]

    @pytest.mark.parametrize(
        ("num_rows", "fields", "shape", "names"),
        [
            (0, (), Shape.TUPLE, ()),
            (3, (ConstantColumn(1, 2),), Shape.SCALAR, ()),
            (2, (ConstantColumn(1, 2),) * 2, Shape.SCALAR, ()),
            (2, (ConstantColumn(1, 2),), Shape.TUPLE, ("a",)),
            (2, (ConstantColumn(1, 2),), Shape.ROW, ()),
        ],
    )
    def test_what_is_no_table_is_refused(
        self, num_rows: int, fields: tuple[Column, ...], shape: Shape, names: tuple[str, ...]
    ) -> None:
        with pytest.raises(AssertionError):
            Columns(num_rows, fields, shape, names)

    @given(st.lists(st.tuples(TEXTS, INTS, FLOATS), min_size=1, max_size=20), st.data())
    def test_parts_of_a_table_are_parts_of_its_list(self, values: list[Any], data: st.DataObject) -> None:
        table = columns_of(values)
        assert table is not None
        indices = data.draw(st.lists(st.integers(0, len(values) - 1)))
        start, stop = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 25)))

        assert exact(table.take(np.array(indices, np.intp)).to_list()) == exact([values[index] for index in indices])
        assert exact(table.slice(start, stop).to_list()) == exact(values[start:stop])
        assert len(table.slice(start, stop)) == len(values[start:stop])


class TestInspection:
    @given(columns())
    def test_columns_stand_for_exactly_these_values(self, values: list[Any]) -> None:
        table = columns_of(values)

        assert table is None or (len(table), exact(table.to_list())) == (len(values), exact(values))

    @given(st.lists(st.one_of(*ATOMS.values()), max_size=4) | st.sampled_from(list(ATOMS.values())).flatmap(st.lists))
    def test_a_column_stands_for_exactly_these_values(self, values: list[Any]) -> None:
        column = column_of(values)

        assert (len(column), exact(column.to_list())) == (len(values), exact(values))

    @pytest.mark.parametrize(
        ("values", "kinds"),
        [
            ([("a", 1), ("b", 2)], [ListColumn, ArrayColumn]),
            ([("a", 1), ("b", 1)], [ListColumn, ConstantColumn]),
            ([(1.5, True), (1.5, False)], [ArrayColumn, ArrayColumn]),
            ([(1, True), (True, False)], [ListColumn, ArrayColumn]),
            ([(2**63, 1), (1, Count(1))], [ListColumn, ListColumn]),
            ([(0.0,), (-0.0,)], [ArrayColumn]),
            ([1, 2], [ArrayColumn]),
            ([True, True], [ConstantColumn]),
            (["a", "b"], [ListColumn]),
        ],
    )
    def test_exact_types_decide(self, values: list[Any], kinds: list[type]) -> None:
        table = columns_of(values)

        assert table is not None
        assert [type(column) for column in table.fields] == kinds

    @pytest.mark.parametrize(
        "values", [[], [()], [1, True], [1, "a"], [(1, 2), (1,)], [(1,), [1]], [None], [b"a"], [[1], [1]], [Row(1)]]
    )
    def test_else_the_list_is_the_right_thing(self, values: list[Any]) -> None:
        assert columns_of(values) is None

    def test_the_type_of_a_list_is_known_where_it_was_looked_at(self) -> None:
        types = [column_of(values) for values in (["a", "b"], [2**70, 1], ["a", 1])]

        assert [column.value_type for column in types if isinstance(column, ListColumn)] == [str, int, None]


def test_codes_stand_for_their_names_however_the_names_came() -> None:
    table = NameTable(["a"])

    found = []
    for names in (["b", ("tuple", 1)], [], [None, ["list"]], [f"n{number}" for number in range(40)]):
        table.names += names
        found.append(table.values_of(np.arange(len(table), dtype=np.uint32)))

    assert found == [table.names[:3], table.names[:3], table.names[:5], table.names]
    assert found[-1][4] is table.names[4]


def test_names_that_come_one_by_one_are_not_copied_each_time() -> None:
    """A copy of all names per chunk cost more than everything else with a million keys and a few new ones in each
    chunk.
    """
    table = NameTable()
    arrays = set()

    kept = []
    for number in range(5_000):
        table.names.append(number)
        assert table.values_of(np.array([number, 0], np.uint32)) == [number, 0]
        kept.append(table._objects[0])  # so that no two have one address
        arrays.add(id(kept[-1]))

    assert len(arrays) <= 14
