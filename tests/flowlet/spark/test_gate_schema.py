"""The columns of a gate, against the schemas of DataFrames: exactly equal types, and messages that name columns."""

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark.sql import types as st

from flowlet.common.typeinfo import ArrowTypeInfo, LocalTimeTypeInfo, RowTypeInfo, TypeInformation, Types
from flowlet.spark.gate_schema import GateSchema, SchemaMismatchError, spark_type_of, type_info_of

EVENT = Types.ROW_NAMED(["user", "name", "amount"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
LOCAL = LocalTimeTypeInfo.TimeType
EVERY_PAIR = [
    ("string", Types.STRING()),
    ("boolean", Types.BOOLEAN()),
    ("tinyint", Types.BYTE()),
    ("smallint", Types.SHORT()),
    ("int", Types.INT()),
    ("bigint", Types.LONG()),
    ("float", Types.FLOAT()),
    ("double", Types.DOUBLE()),
    ("binary", Types.PRIMITIVE_ARRAY(Types.BYTE())),
    ("date", Types.SQL_DATE()),
    ("timestamp", Types.SQL_TIMESTAMP()),
    ("timestamp_ntz", LocalTimeTypeInfo(LOCAL.LOCAL_DATE_TIME)),
    ("decimal(12,2)", Types.BIG_DEC()),
    ("array<bigint>", Types.LIST(Types.LONG())),
    ("map<string,double>", Types.MAP(Types.STRING(), Types.DOUBLE())),
    ("struct<a:int,b:array<string>>", Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.STRING())])),
]


def schema(ddl: str) -> st.StructType:
    return st.StructType([st.StructField(name, data_type) for name, data_type in _fields(ddl)])


def _fields(ddl: str) -> list[tuple[str, st.DataType]]:
    """``"a bigint, b string"`` without a JVM."""
    return [(name, simple(text)) for name, text in (part.strip().split(" ") for part in ddl.split(", "))]


def simple(text: str) -> st.DataType:
    leaves = {
        each.simpleString(): each
        for each in (
            *(
                st.StringType(),
                st.BooleanType(),
                st.ByteType(),
                st.ShortType(),
                st.IntegerType(),
                st.LongType(),
                st.FloatType(),
            ),
            *(
                st.DoubleType(),
                st.BinaryType(),
                st.DateType(),
                st.TimestampType(),
                st.TimestampNTZType(),
                st.DecimalType(12, 2),
            ),
            *(st.ArrayType(st.LongType()), st.MapType(st.StringType(), st.DoubleType()), st.CalendarIntervalType()),
            st.StructType([st.StructField("a", st.IntegerType()), st.StructField("b", st.ArrayType(st.StringType()))]),
        )
    }
    return leaves[text]


def refusal(type_info: TypeInformation, ddl: str) -> str:
    with pytest.raises(SchemaMismatchError) as caught:
        GateSchema.of("clicks", type_info).check_spark(schema(ddl))
    return str(caught.value)


@pytest.mark.parametrize(("text", "type_info"), EVERY_PAIR, ids=[text for text, _ in EVERY_PAIR])
def test_every_type_of_spark_has_one_of_ours(text: str, type_info: TypeInformation) -> None:
    """The types are equal there and back, alone and as a column."""
    row = Types.ROW_NAMED(["value"], [type_info])

    assert type_info_of(simple(text)) == type_info
    assert type_info_of(schema(f"value {text}")) == row
    assert GateSchema.of("clicks", row).check_spark(schema(f"value {text}")) == (0,)


@pytest.mark.parametrize(("text", "type_info"), EVERY_PAIR, ids=[text for text, _ in EVERY_PAIR])
def test_no_other_type_fits(text: str, type_info: TypeInformation) -> None:
    """Numbers are not widened, and a timestamp without a zone is no point in time: users cast them if they mean it."""
    gate = GateSchema.of("clicks", Types.ROW_NAMED(["value"], [type_info]))

    for other, _ in EVERY_PAIR:
        if other != text:
            with pytest.raises(SchemaMismatchError, match=r"column 'value' is .*, gate 'clicks' takes .*: cast it"):
                gate.check_spark(schema(f"value {other}"))


def test_named_columns_may_come_in_any_order() -> None:
    gate = GateSchema.of("clicks", EVENT)

    assert gate.check_spark(schema("amount double, user bigint, name string")) == (1, 2, 0)


def test_the_column_that_does_not_fit_is_named_with_both_types_and_a_cure() -> None:
    assert refusal(EVENT, "user bigint, name string, amount int") == (
        "column 'amount' is int, gate 'clicks' takes double: cast it, for example col('amount').cast('double')"
    )


def test_a_column_that_is_missing_occurs_twice_or_is_one_too_many_is_named() -> None:
    assert "column 'amount' is missing: gate 'clicks' takes user, name, amount" in refusal(
        EVENT, "user bigint, name string"
    )
    assert "column 'user' occurs 2 times" in refusal(EVENT, "user bigint, user bigint, name string, amount double")
    assert "column 'date' is not one of gate 'clicks'" in refusal(
        EVENT, "user bigint, name string, amount double, date date"
    )


@pytest.mark.parametrize(
    "type_info",
    [Types.TUPLE([Types.LONG(), Types.STRING()]), Types.ROW([Types.LONG(), Types.STRING()])],
    ids=["tuple", "row"],
)
def test_without_names_columns_count_by_position(type_info: TypeInformation) -> None:
    gate = GateSchema.of("clicks", type_info)

    assert gate.check_spark(schema("b bigint, a string")) == (0, 1)
    assert "column 'a' is string, gate 'clicks' takes bigint" in refusal(type_info, "a string, b bigint")
    assert "takes 2 columns" in refusal(type_info, "a bigint, b string, c string")


def test_a_gate_of_single_values_takes_the_one_column() -> None:
    gate = GateSchema.of("words", Types.STRING())

    assert gate.is_single
    assert gate.check_spark(schema("line string")) == (0,)
    assert "there are 2: line, file" in refusal(Types.STRING(), "line string, file string")


def test_a_gate_that_declares_nothing_takes_everything() -> None:
    gate = GateSchema.of("clicks", Types.PICKLED_BYTE_ARRAY())

    assert gate.check_spark(schema("a bigint, b map<string,double>")) == (0, 1)


ARROW = ArrowTypeInfo(
    pa.schema([("user", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.large_string()))])
)


def test_a_gate_of_record_batches_takes_its_fields_by_name() -> None:
    gate = GateSchema.of("clicks", ARROW)

    assert gate.check_spark(_struct(at=st.TimestampType(), tags=st.ArrayType(st.StringType()), user=st.LongType())) == (
        2,
        0,
        1,
    )
    assert not gate.is_single
    assert gate.arrow_schema == ARROW.schema


def test_what_does_not_fit_a_gate_of_record_batches_is_named() -> None:
    gate = GateSchema.of("clicks", ARROW)
    tags = st.ArrayType(st.StringType())
    with pytest.raises(SchemaMismatchError, match=r"column 'user' is int, gate 'clicks' takes bigint: cast it"):
        gate.check_spark(_struct(user=st.IntegerType(), at=st.TimestampType(), tags=tags))
    reason = r"column 'at' is timestamp_ntz, gate 'clicks' takes timestamp: cast it"
    with pytest.raises(SchemaMismatchError, match=reason):
        gate.check_spark(_struct(user=st.LongType(), at=st.TimestampNTZType(), tags=tags))
    with pytest.raises(SchemaMismatchError, match=r"column 'tags' is missing"):
        gate.check_spark(_struct(user=st.LongType(), at=st.TimestampType()))


@pytest.mark.parametrize(
    "arrow",
    [
        pa.uint64(),
        pa.timestamp("ms"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.null(),
        pa.time64("us"),
        pa.duration("us"),
    ],
    ids=str,
)
def test_a_field_that_spark_lacks_is_named(arrow: pa.DataType) -> None:
    reason = r"column 'value' of gate 'clicks' is .*; declare the schema that Spark's batches have"
    with pytest.raises(SchemaMismatchError, match=reason):
        GateSchema.of("clicks", ArrowTypeInfo(pa.schema([("value", arrow)])))


def _struct(**columns: st.DataType) -> st.StructType:
    return st.StructType([st.StructField(name, data_type) for name, data_type in columns.items()])


@pytest.mark.parametrize(
    "type_info",
    [
        Types.BIG_INT(),
        Types.CHAR(),
        Types.SQL_TIME(),
        Types.LIST(Types.BIG_INT()),
        Types.LIST(Types.PICKLED_BYTE_ARRAY()),
    ],
    ids=str,
)
def test_a_gate_of_a_type_that_spark_lacks_names_its_column(type_info: TypeInformation) -> None:
    reason = r"column 'value' of gate 'clicks': Spark has no type for .*; declare the gate with"
    with pytest.raises(SchemaMismatchError, match=reason):
        GateSchema.of("clicks", Types.ROW_NAMED(["value"], [type_info]))


def test_a_column_that_no_gate_takes_is_named() -> None:
    with pytest.raises(SchemaMismatchError, match="column 'value': no gate takes values of Spark's type interval"):
        type_info_of(schema("value interval"))


def test_whole_columns_travel_only_where_arrow_holds_every_value_as_it_is() -> None:
    plain = GateSchema.of("clicks", EVENT)
    nested = GateSchema.of("clicks", Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.LONG())]))

    assert plain.arrow_schema == pa.schema([("user", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
    assert nested.arrow_schema is None


def test_the_type_for_a_gate_comes_from_a_dataframe() -> None:
    found = type_info_of(schema("user bigint, name string, amount double"))

    assert found == EVENT
    assert isinstance(found, RowTypeInfo)
    assert spark_type_of(found) == schema("user bigint, name string, amount double")
