"""Rows and batches of Spark as records of a gate: equal records either way, exactly the values that went in, misfits
named.
"""

import datetime
import decimal
from collections import namedtuple
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark.sql import Row as SparkRow
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from flowlet.columns import Columns
from flowlet.common.time import Instant
from flowlet.common.typeinfo import LocalTimeTypeInfo, TypeInformation, Types
from flowlet.common.types import Row
from flowlet.spark.gate_schema import BatchConverter, GateSchema, RowConverter, SchemaMismatchError, spark_type_of
from flowlet.types.leaf_forms import arrow_type_of

EVENT = Types.ROW_NAMED(["user", "name", "amount"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
LOCAL_DATE_TIME = LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE_TIME)
NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, 123456)  # noqa: DTZ001 - Spark's have no zone
POSITIONAL = cast(Any, SparkRow)(1, 2)  # the types of pyspark allow names only


def converted(type_info: TypeInformation, rows: list[Any], *, clock_is_utc: bool = True) -> Any:
    return RowConverter(GateSchema.of("clicks", type_info), clock_is_utc=clock_is_utc).convert(rows)


def refusal(type_info: TypeInformation, *rows: Any) -> str:
    with pytest.raises(SchemaMismatchError) as caught:
        converted(type_info, list(rows))
    return str(caught.value)


def named(type_info: TypeInformation) -> TypeInformation:
    return Types.ROW_NAMED(["value"], [type_info])


def test_rows_of_a_dataframe_become_columns_in_the_order_of_the_gate() -> None:
    rows = [SparkRow(amount=1.5, user=7, name="ann"), SparkRow(amount=None, user=8, name=None)]

    columns = converted(EVENT, rows)

    assert columns.to_list() == [Row(user=7, name="ann", amount=1.5), Row(user=8, name=None, amount=None)]


def test_tuples_of_an_rdd_count_by_position() -> None:
    event = namedtuple("event", ["user", "name", "amount"])

    columns = converted(EVENT, [(7, "ann", 1.5), event(8, "bob", 2.5), [9, "eve", 3.5]])

    assert [row["user"] for row in columns.to_list()] == [7, 8, 9]


def test_single_values_need_no_row_around_them() -> None:
    assert converted(Types.STRING(), ["a", None]).to_list() == ["a", None]
    assert converted(Types.STRING(), [SparkRow(line="a"), SparkRow(line="b")]).to_list() == ["a", "b"]
    assert converted(Types.LIST(Types.LONG()), [[1, 2], None]) == [[1, 2], None]


@pytest.mark.parametrize(
    ("type_info", "wrong"),
    [
        (Types.LONG(), 1.0),
        (Types.LONG(), True),
        (Types.LONG(), 2**63),
        (Types.BYTE(), 128),
        (Types.DOUBLE(), 1),
        (Types.BOOLEAN(), 1),
        (Types.STRING(), b"x"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "x"),
        (Types.SQL_DATE(), NOON),
        (Types.SQL_TIMESTAMP(), NOON.date()),
        (Types.BIG_DEC(), 1.5),
        (Types.INSTANT(), 1),
        (Types.LIST(Types.LONG()), [1, 2.0]),
        (Types.LIST(Types.BYTE()), [300]),
        (Types.MAP(Types.STRING(), Types.LONG()), {"a": "b"}),
        (Types.MAP(Types.STRING(), Types.LONG()), 5),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), (1, 2)),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), {"b": 1}),
    ],
    ids=repr,
)
def test_a_value_that_is_not_exactly_of_its_type_is_refused_with_its_column(
    type_info: TypeInformation, wrong: Any
) -> None:
    """No value is rounded, widened or cut."""
    good: dict[TypeInformation, Any] = {}

    message = refusal(named(type_info), (good.get(type_info),), (wrong,))

    assert message.startswith("column 'value': ")
    assert f" of type {type(wrong).__name__} is no " in message
    assert ", which gate 'clicks' takes there (row " in message


def test_a_row_of_another_shape_is_refused() -> None:
    fitting = SparkRow(user=7, name="ann", amount=1.5)

    assert "column 'amount' is missing" in refusal(EVENT, SparkRow(user=7, name="ann"))
    assert "the row Row(user=8, name='bob', sum=2.5) does not fit" in refusal(
        EVENT, fitting, SparkRow(user=8, name="bob", sum=2.5)
    )
    assert "the row (8, 'bob', 2.5) does not fit" in refusal(EVENT, fitting, (8, "bob", 2.5))
    assert "does not fit" in refusal(EVENT, (8, "bob", 2.5), fitting)
    assert "the row (8, 'bob') does not fit gate 'clicks', which takes the columns user, name, amount" in refusal(
        EVENT, (8, "bob")
    )
    assert "the row 'abc' does not fit" in refusal(EVENT, "abc")
    assert "the row 5 does not fit" in refusal(EVENT, 5)


def test_rows_may_change_the_order_of_their_fields_between_chunks() -> None:
    converter = RowConverter(GateSchema.of("clicks", EVENT), clock_is_utc=True)

    first: Any = converter.convert([SparkRow(user=1, name="a", amount=0.5)])
    second: Any = converter.convert([SparkRow(amount=0.5, name="a", user=1)])

    assert first.to_list() == second.to_list()


def test_a_long_row_is_shortened_in_the_message() -> None:
    assert len(refusal(EVENT, (1, "x" * 5000))) < 250


@given(hs.lists(hs.datetimes(), min_size=1), hs.sampled_from([None, NOON.replace(tzinfo=datetime.UTC)]))
def test_points_in_time_are_the_same_whichever_way_they_go(
    values: list[datetime.datetime], other: datetime.datetime | None
) -> None:
    """The values are right to the microsecond, from the first year to the last, alone or beside one that takes the
    slower way.
    """
    quick, slow = (
        converted(named(Types.SQL_TIMESTAMP()), [(value,) for value in each]) for each in (values, [*values, other])
    )

    assert quick.to_list() == slow.to_list()[:-1] == [Row(value=value) for value in values]


def test_points_in_time_come_out_in_utc() -> None:
    """Spark shows them in the zone of the process in Python, and in that of the session in Arrow."""
    local = NOON.astimezone().replace(tzinfo=None)  # what Spark makes of it here
    aware = NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=3)))

    columns = converted(named(Types.SQL_TIMESTAMP()), [(local,), (aware,), (None,)], clock_is_utc=False)
    instants = converted(named(Types.INSTANT()), [(NOON,), (aware,)])

    utc = NOON.astimezone(datetime.UTC).replace(tzinfo=None)
    assert [row["value"] for row in columns.to_list()] == [utc, NOON - datetime.timedelta(hours=3), None]
    assert instants == [Row(value=Instant(1719835200, 123456000)), Row(value=Instant(1719824400, 123456000))]


def test_a_gate_that_declares_nothing_gets_rows_of_ours_and_other_values_as_they_are() -> None:
    """A TaskManager needs no PySpark."""
    nested = SparkRow(a=1, b=SparkRow(c="x"))

    records = converted(Types.PICKLED_BYTE_ARRAY(), [nested, POSITIONAL, ("t", 1), 5])

    assert records == [Row(a=1, b=Row(c="x")), Row(1, 2), ("t", 1), 5]
    assert [type(record) for record in records] == [Row, Row, tuple, int]


def test_batches_are_brought_into_the_order_and_types_of_the_gate_without_a_copy() -> None:
    type_info = Types.ROW_NAMED(["at", "user"], [Types.SQL_TIMESTAMP(), Types.LONG()])
    columns = st.StructType([st.StructField("user", st.LongType()), st.StructField("at", st.TimestampType())])
    users = pa.array([1, None], pa.int64())
    batch = pa.RecordBatch.from_arrays(
        [users, pa.array([NOON, None], pa.timestamp("us", "Asia/Tokyo"))], names=["user", "at"]
    )

    made: Any = BatchConverter(GateSchema.of("clicks", type_info), columns).convert(batch)

    assert made.schema == pa.schema([("at", pa.timestamp("us")), ("user", pa.int64())])
    assert made.to_pydict() == {"at": [NOON, None], "user": [1, None]}
    assert made.column("user").buffers()[1].address == users.buffers()[1].address


def test_batches_of_columns_that_do_not_fit_are_refused_before_the_first_one() -> None:
    with pytest.raises(SchemaMismatchError, match="column 'user' is string, gate 'clicks' takes bigint"):
        BatchConverter(GateSchema.of("clicks", named_user()), st.StructType([st.StructField("user", st.StringType())]))


def named_user() -> TypeInformation:
    return Types.ROW_NAMED(["user"], [Types.LONG()])


DATETIMES = hs.datetimes().map(lambda value: value.replace(fold=0))
VALUES: dict[str, tuple[TypeInformation, hs.SearchStrategy[Any]]] = {
    "text": (Types.STRING(), hs.text(hs.characters(codec="utf-8"))),
    "flag": (Types.BOOLEAN(), hs.booleans()),
    "tiny": (Types.BYTE(), hs.integers(-128, 127)),
    "long": (Types.LONG(), hs.integers(-(2**63), 2**63 - 1)),
    "real": (Types.DOUBLE(), hs.floats()),
    "short real": (Types.FLOAT(), hs.floats(width=32)),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), hs.binary()),
    "date": (Types.SQL_DATE(), hs.dates()),
    "wall clock": (LOCAL_DATE_TIME, DATETIMES),
    "time": (Types.SQL_TIMESTAMP(), DATETIMES),
    "decimal": (
        Types.BIG_DEC(),
        hs.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9),
    ),
    "list": (Types.LIST(Types.LONG()), hs.lists(hs.none() | hs.integers(-5, 5))),
    "map": (Types.MAP(Types.STRING(), Types.DOUBLE()), hs.dictionaries(hs.text("ab"), hs.floats())),
    "row": (
        Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]),
        hs.tuples(hs.integers(0, 9), hs.none() | hs.text("xy")),
    ),
}


def as_arrow(values: list[Any], data_type: st.DataType) -> pa.Array:
    """Return the array that Spark gives for a column of these values."""
    from pyspark.sql.pandas.types import to_arrow_type

    arrow_type = to_arrow_type(data_type, timezone="UTC")
    if isinstance(data_type, st.DecimalType):
        arrow_type = pa.decimal128(12, 2)
    if isinstance(data_type, st.StructType):
        values = [None if value is None else dict(zip(data_type.fieldNames(), value, strict=True)) for value in values]
    return pa.array(values, type=arrow_type, from_pandas=False)


def exactly(value: Any) -> str:
    """Tells -0.0 from 0.0, True from 1, and NaN from nothing."""
    return f"{type(value).__name__} {value!r}"


@settings(max_examples=60)
@given(data=hs.data(), kinds=hs.lists(hs.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
def test_rows_and_batches_become_the_same_records_with_the_values_that_went_in(
    data: hs.DataObject, kinds: list[str]
) -> None:
    """The columns may be any: by chunks of rows, by Arrow, whole or value by value."""
    names = [f"c{index}" for index in range(len(kinds))]
    type_infos = [VALUES[kind][0] for kind in kinds]
    rows = data.draw(hs.lists(hs.tuples(*(hs.none() | VALUES[kind][1] for kind in kinds)), min_size=1, max_size=5))
    gate = GateSchema.of("clicks", Types.ROW_NAMED(names, type_infos))
    columns = spark_type_of(gate.type_info)
    assert isinstance(columns, st.StructType)
    arrays = [
        as_arrow(list(values), each.dataType) for values, each in zip(zip(*rows, strict=True), columns, strict=True)
    ]

    from_rows = RowConverter(gate, clock_is_utc=True).convert([SparkRow(*names)(*row) for row in rows])
    from_batch = BatchConverter(gate, columns).convert(pa.RecordBatch.from_arrays(arrays, names=names))

    wanted = [[expected(value, type_info) for value, type_info in zip(row, type_infos, strict=True)] for row in rows]
    assert exactly(listed(from_rows)) == exactly(listed(from_batch)) == exactly(wanted)


def expected(value: Any, type_info: TypeInformation) -> Any:
    if isinstance(value, tuple):
        return Row("a", "b")(*value)
    return value


def listed(payload: Any) -> list[list[Any]]:
    if isinstance(payload, Columns):
        return [list(record) for record in payload.to_list()]
    if isinstance(payload, pa.RecordBatch):
        return [list(row) for row in zip(*(column.to_pylist() for column in payload.columns), strict=True)]
    return [list(record) for record in payload]


def test_none_may_be_the_key_of_a_map() -> None:
    of_gate = Types.ROW_NAMED(["map", "number"], [Types.MAP(Types.STRING(), Types.LONG()), Types.BIG_DEC()])

    rows = converted(of_gate, [({None: 2, "a": None}, decimal.Decimal(1))])

    assert rows == [Row(map={None: 2, "a": None}, number=decimal.Decimal(1))]


def test_decimals_keep_their_scale() -> None:
    records = converted(named(Types.BIG_DEC()), [(decimal.Decimal("1.50"),), (decimal.Decimal("2.5"),)])

    assert [str(record[0]) for record in records] == ["1.50", "2.5"]


ARROW = Types.ARROW(pa.schema([("user", pa.int64()), ("name", pa.large_string()), ("at", pa.timestamp("us", "UTC"))]))


def test_a_gate_of_record_batches_gets_the_same_batch_either_way() -> None:
    """Rows with their fields in any order, and a batch as Spark makes it, become equal batches."""
    rows = [SparkRow(name="ann", at=NOON, user=1), SparkRow(name=None, at=None, user=2)]
    columns = st.StructType(
        [
            st.StructField("name", st.StringType()),
            st.StructField("at", st.TimestampType()),
            st.StructField("user", st.LongType()),
        ]
    )
    at = pa.array([NOON, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"name": ["ann", None], "at": at, "user": [1, 2]})

    of_rows = converted(ARROW, rows)
    of_batch = BatchConverter(GateSchema.of("clicks", ARROW), columns).convert(batch)

    wanted = pa.record_batch([pa.array([1, 2]), pa.array(["ann", None], pa.large_string()), at], schema=ARROW.schema)
    assert of_rows.equals(wanted)
    assert isinstance(of_batch, pa.RecordBatch)
    assert of_batch.equals(wanted)
    assert "column 'user': " in refusal(ARROW, SparkRow(name="ann", at=NOON, user="1"))


PAIR = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()])
# Our type, Spark's value, the value from a typed gate, the value from a gate of batches.
NESTED: dict[str, tuple[TypeInformation, Any, Any, Any]] = {
    "a row": (PAIR, SparkRow(b=2, a=1), Row(a=1, b=2), {"a": 1, "b": 2}),
    "a row in a row": (
        Types.ROW_NAMED(["x", "y"], [PAIR, Types.LONG()]),
        SparkRow(y=3, x=SparkRow(b=2, a=1)),
        Row(x=Row(a=1, b=2), y=3),
        {"x": {"a": 1, "b": 2}, "y": 3},
    ),
    "rows in a list": (Types.LIST(PAIR), [SparkRow(b=2, a=1), None], [Row(a=1, b=2), None], [{"a": 1, "b": 2}, None]),
    "names that are positions, and others of them": (
        Types.ROW([Types.LONG(), Types.LONG()]),
        SparkRow(f1=1, f0=2),
        Row(f0=1, f1=2),
        {"f0": 1, "f1": 2},
    ),
    "names that are positions": (
        Types.ROW([Types.LONG(), Types.LONG()]),
        SparkRow(b=2, a=1),
        Row(f0=2, f1=1),
        {"f0": 2, "f1": 1},
    ),
}


def spark_type(value: Any) -> st.DataType:
    """Return Spark's type of a value as a user made it, with its fields in its own order."""
    if isinstance(value, SparkRow):
        return st.StructType(
            [st.StructField(name, spark_type(each)) for name, each in zip(value.__fields__, value, strict=True)]
        )
    return st.ArrayType(spark_type(value[0])) if isinstance(value, list) else st.LongType()


def arrow_value(value: Any) -> Any:
    if isinstance(value, SparkRow):
        return {name: arrow_value(each) for name, each in zip(value.__fields__, value, strict=True)}
    return [arrow_value(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("takes_batches", [False, True])
def test_fields_of_nested_rows_are_found_by_name(name: str, takes_batches: bool) -> None:
    """Fields are found at every level, either way; by position they were swapped without an error."""
    type_info, value, typed, plain = NESTED[name]
    expected = plain if takes_batches else typed
    gate = named(type_info)
    if takes_batches:
        arrow_type = arrow_type_of(type_info)
        assert arrow_type is not None
        gate = Types.ARROW(pa.schema([("value", arrow_type)]))
    batch = pa.RecordBatch.from_pylist(
        [{"value": arrow_value(value)}, {"value": None}], pa.schema([("value", to_arrow_type(spark_type(value)))])
    )

    by_row = converted(gate, [SparkRow(value=value), SparkRow(value=None)])
    converter = BatchConverter(
        GateSchema.of("clicks", gate), st.StructType([st.StructField("value", spark_type(value))])
    )

    def values(records: Any) -> list[Any]:
        if takes_batches:
            return [row["value"] for row in records.to_pylist()]
        return [record["value"] for record in (records if isinstance(records, list) else records.to_list())]

    assert values(by_row) == values(converter.convert(batch)) == [expected, None]
    assert values(converter.convert(batch.slice(1))) == [None]


@pytest.mark.parametrize("value", [SparkRow(a=1, c=2), SparkRow(a=1), SparkRow(a=1, b=2, c=3)])
@pytest.mark.parametrize("takes_batches", [False, True])
def test_nested_rows_with_other_fields_are_refused(value: Any, takes_batches: bool) -> None:
    gate = (
        Types.ARROW(pa.schema([("value", pa.struct([("a", pa.int64()), ("b", pa.int64())]))]))
        if takes_batches
        else named(PAIR)
    )

    assert refusal(gate, SparkRow(value=value)).startswith("column 'value': ")
    reason = r"column 'value' is struct<a:bigint.*gate 'clicks' takes struct<a:bigint,b:bigint>"
    with pytest.raises(SchemaMismatchError, match=reason):
        BatchConverter(GateSchema.of("clicks", gate), st.StructType([st.StructField("value", spark_type(value))]))


def test_the_first_row_that_does_not_fit_is_counted_over_all_chunks() -> None:
    converter = RowConverter(GateSchema.of("clicks", EVENT), clock_is_utc=True)
    good = (8, "bob", 0.5)
    converter.convert([good] * 3)

    with pytest.raises(SchemaMismatchError, match=r"column 'name': 7 .* \(row 4 of the partition\)"):
        converter.convert([good, (8, 7, 0.5), (9, 7, 0.5)])
