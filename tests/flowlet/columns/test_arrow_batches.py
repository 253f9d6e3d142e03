import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, CodedColumn, Columns, ConstantColumn, ListColumn, NameTable, Shape
from flowlet.columns.arrow_batches import array_of_column, batch_of_records, columns_of_batch
from flowlet.columns.table import column_of
from flowlet.common.types import Row
from tests.pandas_values import FINE, NA, NAT

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
EVERY_TYPE = pa.table(
    {
        "int": pa.array([1, -2, 3], pa.int32()),
        "null": pa.array([1, None, 3], pa.int64()),
        "float": pa.array([0.5, float("inf"), -0.0]),
        "half": pa.array([np.float16(1), np.float16(0.5), np.float16(-1)], pa.float16()),
        "text": pa.array(["a", None, "\0"]),
        "coded": pa.array(["a", "b", "a"]).dictionary_encode(),
        "time": pa.array([1, None, 2], pa.timestamp("ms")),
        "bool": pa.array([True, None, False]),
        "list": pa.array([[1], [], None]),
    }
).to_batches()[0]


def columns_of_records(values: list[Any], schema: Any) -> Columns:
    return columns_of_batch(batch_of_records(values, schema))


def test_a_batch_becomes_columns_and_the_same_batch_again() -> None:
    columns = columns_of_batch(EVERY_TYPE)

    assert batch_of_records(columns, EVERY_TYPE.schema).equals(EVERY_TYPE)
    assert [row.as_dict() for row in columns.to_list()] == EVERY_TYPE.to_pylist()
    assert batch_of_records(columns.slice(1, 3), EVERY_TYPE.schema).equals(EVERY_TYPE.slice(1))


def test_numbers_are_not_copied() -> None:
    batch = pa.record_batch({"n": np.arange(5)})
    column = columns_of_batch(batch).fields[0]

    assert isinstance(column, ArrayColumn)
    assert column.array.ctypes.data == batch.column(0).buffers()[1].address


@pytest.mark.parametrize(
    "column",
    [
        ListColumn(["x", None, "x"]),
        CodedColumn(np.array([1, 0, 1], np.uint16), NameTable([None, "x"])),
        CodedColumn(np.array([1, 0, 1], np.uint16), NameTable([None, "x", "more", "than rows"])),
        ArrowColumn(pa.array(["x", None, "x"], pa.large_string())),
    ],
)
def test_every_representation_becomes_the_declared_type(column: Any) -> None:
    numbers = ConstantColumn(7, 3)

    batch = batch_of_records(Columns(3, (numbers, column), Shape.TUPLE), SCHEMA)

    assert batch.to_pydict() == {"n": [7, 7, 7], "s": ["x", None, "x"]}


def test_a_dictionary_is_decoded_where_plain_values_are_declared() -> None:
    """Arrow decodes the dictionary: by way of Python objects it took 1,500 ns per value."""
    array = pa.array(["a", None, "a"]).dictionary_encode()

    assert array_of_column(ArrowColumn(array), pa.field("k", pa.string())).equals(pa.array(["a", None, "a"]))
    with pytest.raises(TypeError, match="field 'k' is declared as int64"):
        array_of_column(ArrowColumn(array), pa.field("k", pa.int64()))


def tuples_of(values: list[Any], schema: Any) -> list[tuple[Any, ...]]:
    """Return the rows of records that became columns of a schema."""
    return [tuple(row) for row in columns_of_records(values, schema).to_list()]


def test_records_of_every_kind_become_rows_of_the_schema() -> None:
    records = [Row(n=1, s="a"), (2, None), [3, "c"], {"s": "d", "n": 4}]
    instant = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

    assert tuples_of(records, SCHEMA) == [(1, "a"), (2, None), (3, "c"), (4, "d")]
    assert tuples_of([5, None], pa.schema([("n", pa.int64())])) == [(5,), (None,)]
    assert tuples_of([instant], pa.schema([("t", pa.timestamp("us", "UTC"))])) == [(instant,)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((1,), "a row of 1 fields, declared are 2: n, s"),
        ({"n": 1}, "a dict does not have the 2 fields"),
        ({"n": 1, "other": 2}, "a dict does not have"),
        (1, "a int does not have the 2 fields"),
        (("x", "y"), "field 'n' is declared as int64"),
        ((2**63, "y"), "field 'n' is declared as int64"),
        ((0.5, "y"), "field 'n' is declared as int64: got a float"),
        ((True, "y"), "field 'n' is declared as int64: got a bool"),
        ((1, b"y"), "field 's' is declared as string: got a bytes"),
        ((1, 2), "field 's' is declared as string"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(record: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        columns_of_records([(1, "a"), record], SCHEMA)


def test_columns_that_do_not_fit_the_schema_are_refused() -> None:
    with pytest.raises(TypeError, match="records of 1 fields, the schema has 2"):
        batch_of_records(Columns(1, (ConstantColumn(1, 1),), Shape.TUPLE), SCHEMA)
    with pytest.raises(TypeError, match="a row without the field 'n', its fields are 's', 'm'"):
        batch_of_records(Columns(1, (ConstantColumn("a", 1), ConstantColumn(1, 1)), Shape.ROW, ("s", "m")), SCHEMA)
    with pytest.raises(TypeError, match="field 'n' is declared as int8, got int64"):
        batch_of_records(Columns(1, (ArrayColumn(np.array([300])),), Shape.TUPLE), pa.schema([("n", pa.int8())]))
    with pytest.raises(TypeError, match="field 'n' is declared as int64: got a float"):
        batch_of_records(Columns(1, (ArrayColumn(np.array([0.5])), ConstantColumn("a", 1)), Shape.TUPLE), SCHEMA)
    with pytest.raises(TypeError, match="without nulls"):
        batch_of_records(
            Columns(1, (ListColumn([None]),), Shape.TUPLE), pa.schema([pa.field("n", pa.int64(), nullable=False)])
        )


BERLIN = datetime.timezone(datetime.timedelta(hours=1))
NOON = datetime.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - without a zone
# Values and the type of a column that does not hold them, and what they are called.
MISMATCHES: list[tuple[list[Any], Any, str]] = [
    ([1, 2], pa.string(), "got a int"),
    ([1, 2], pa.large_string(), "got a int"),
    ([1, 2], pa.bool_(), ""),
    ([1, 2], pa.timestamp("us"), "got a int"),
    ([1, 2], pa.date32(), "got a int"),
    ([1.0, 2.0], pa.int64(), "got a float"),
    ([0.5, 2.0], pa.string(), "got a float"),
    ([True, False], pa.int64(), "got a bool"),
    ([True, False], pa.float64(), "got a bool"),
    (["a", "b"], pa.binary(), "got a str"),
    ([b"a", b"b"], pa.large_string(), "got a bytes"),
    ([b"a", b"b"], pa.dictionary(pa.int8(), pa.string()), "got a bytes"),
    ([[0.5], [2]], pa.list_(pa.int64()), "got a float"),
    ([NOON, NOON], pa.timestamp("us", "UTC"), "got a datetime without a time zone"),
    ([NOON.replace(tzinfo=BERLIN)] * 2, pa.timestamp("us"), "got a datetime with a time zone"),
    ([NOON.replace(microsecond=1)] * 2, pa.timestamp("ms"), "would lose data"),
    ([datetime.time(1, 2, 3, 4)] * 2, pa.time32("s"), "would lose data"),
    ([datetime.timedelta(milliseconds=4)] * 2, pa.duration("s"), "would lose data"),
    ([1e300, 2.0], pa.float32(), "1e\\+300.* does not fit|which 1e\\+300 does not fit"),
    ([-1e5, 2.0], pa.float16(), "-100000.0 does not fit"),
    ([[1e300], [2.0]], pa.list_(pa.float32()), "1e\\+300 does not fit"),
]


def representations(values: list[Any]) -> list[Any]:
    """Return all columns that stand for these values."""
    found: list[Any] = [
        column_of(values),
        ListColumn(values),
        CodedColumn(np.array([0, 1], np.uint16), NameTable(values)),
    ]
    found += [ConstantColumn(values[0], 2)] * (values[0] == values[1])
    return [*found, ArrowColumn(pa.array(values))]


@pytest.mark.parametrize(("values", "kind", "message"), MISMATCHES)
def test_values_of_another_type_are_refused_in_whatever_representation(
    values: list[Any], kind: Any, message: str
) -> None:
    schema = pa.schema([("x", kind)])
    for column in representations(values):
        with pytest.raises(TypeError, match=f"'x' is declared as .*{message}"):
            batch_of_records(Columns(2, (column,), Shape.TUPLE), schema)
    with pytest.raises(TypeError, match=f"'x' is declared as .*{message}"):
        columns_of_records([(value,) for value in values], schema)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], pa.int8()),
        ([1, 2], pa.float32()),
        ([0.5, -0.0], pa.float32()),
        (["a", "b\0"], pa.large_string()),
        (["a", "b\0"], pa.dictionary(pa.int8(), pa.string())),
        ([b"a", b"b"], pa.large_binary()),
        ([NOON, NOON], pa.timestamp("s")),
        ([NOON.replace(tzinfo=datetime.UTC), None], pa.timestamp("ms", "Europe/Berlin")),
        ([datetime.time(1), None], pa.time32("ms")),
        ([datetime.timedelta(1), None], pa.duration("s")),
        ([[1, None], None], pa.list_(pa.int8())),
    ],
)
def test_values_that_fit_are_the_same_in_whatever_representation(values: list[Any], kind: Any) -> None:
    schema = pa.schema([("x", kind)])
    whole = pa.array(values, kind)

    for column in representations(values):
        assert batch_of_records(Columns(2, (column,), Shape.TUPLE), schema).column(0).equals(whole)
    assert columns_of_records([(value,) for value in values], schema).fields[0].to_list() == whole.to_pylist() == values


def test_a_missing_value_where_none_may_be_is_refused_in_whatever_representation() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])

    for column in (
        ListColumn([1, None]),
        ConstantColumn(None, 2),
        ArrowColumn(pa.array([1, None])),
        ArrowColumn(pa.array([None, None])),
    ):
        with pytest.raises(TypeError, match="'x' is declared as int64 without nulls, got None"):
            batch_of_records(Columns(2, (column,), Shape.TUPLE), schema)


PLACE = pa.struct([("city", pa.string()), ("zip", pa.int32())])


def test_nested_rows_count_by_name_and_other_names_are_refused() -> None:
    row, place = Row(zip=1, city="a"), {"city": "a", "zip": 1}

    places = [(place,), (None,), ({"city": "b", "zip": 2},)]
    assert tuples_of([(row,), (None,), (("b", 2),)], pa.schema([("x", PLACE)])) == places
    assert tuples_of([([row],), (None,)], pa.schema([("x", pa.list_(PLACE))])) == [([place],), (None,)]
    for wrong, message in (
        (Row(zip=1), "without the field 'city'"),
        (("a", 1.5), "'zip' is declared as int32: got a float"),
    ):
        with pytest.raises(TypeError, match=f"field 'x' is declared as .*{message}"):
            columns_of_records([(wrong,)], pa.schema([("x", PLACE)]))


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (datetime.time(1, tzinfo=BERLIN), pa.time64("us"), "got a time with a time zone"),
        (NAT, pa.timestamp("us"), "got pandas.NaT: use None"),
        (NA, pa.int64(), "got a NAType"),
        (FINE, pa.timestamp("us"), "got a timestamp with nanoseconds"),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int64()), "got a float"),
        ([("a", 2**31)], pa.map_(pa.string(), pa.int32()), "declared as int32"),
    ],
)
def test_what_pyarrow_would_cut_off_is_refused(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"field 'x' is declared as .*{message}"):
        columns_of_records([(value,)], pa.schema([("x", kind)]))


def test_infinity_and_nan_are_floats_of_32_bits() -> None:
    values = [float("inf"), -float("inf"), None, 3.4028234663852886e38]

    assert tuples_of(values, pa.schema([("x", pa.float32())])) == [(each,) for each in values]


def test_rows_and_columns_count_by_name_and_other_names_are_refused() -> None:
    columns = Columns(1, (ConstantColumn("a", 1), ConstantColumn(1, 1)), Shape.ROW, ("s", "n"))

    assert tuples_of([Row(1, "a"), Row(s="a", n=1)], SCHEMA) == [(1, "a")] * 2
    assert batch_of_records(columns, SCHEMA).to_pylist() == [{"n": 1, "s": "a"}]
    with pytest.raises(TypeError, match="a row without the field 's', its fields are 'n', 't'"):
        columns_of_records([Row(n=1, t="a")], SCHEMA)
    with pytest.raises(TypeError, match="a row with the field 't', which is not declared"):
        columns_of_records([Row(n=1, s="b", t="a")], SCHEMA)
