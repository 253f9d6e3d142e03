"""Messages of JSON as values of a declared type, and back."""

import datetime
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from flowlet.common import Instant, Row, TypeInformation, Types
from flowlet.common.typeinfo import LocalTimeTypeInfo
from flowlet.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.errors import JobGraphError
from tests.pandas_values import FINE, NA, NAT

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
VALUES: list[tuple[TypeInformation, str, Any]] = [
    (PERSON, '{"age": 3, "other": [1], "name": "Ann"}', Row(name="Ann", age=3)),
    (PERSON, '{"name": "Ann"}', Row(name="Ann", age=None)),
    (
        Types.ROW([Types.INT(), PERSON]),
        '{"f0": 1, "f1": {"name": "Bo", "age": 2}}',
        Row(f0=1, f1=Row(name="Bo", age=2)),
    ),
    (Types.TUPLE([Types.STRING(), Types.LIST(Types.DOUBLE())]), '["a", [1, 2.5]]', ("a", [1.0, 2.5])),
    (Types.MAP(Types.STRING(), PERSON), '{"a": {"name": "Ann", "age": 1}}', {"a": Row(name="Ann", age=1)}),
    (Types.BASIC_ARRAY(Types.STRING()), '["a", null]', ["a", None]),
    (Types.SQL_DATE(), '"2024-02-29"', datetime.date(2024, 2, 29)),
    (Types.SQL_TIME(), '"12:30:15Z"', datetime.time(12, 30, 15)),
    (Types.SQL_TIMESTAMP(), '"2024-02-29T12:30:15.5Z"', datetime.datetime.fromisoformat("2024-02-29T12:30:15.5")),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), '"YWI="', b"ab"),
    (Types.BIG_DEC(), "12.340", Decimal("12.340")),
    (
        Types.ROW_NAMED(["price", "size"], [Types.BIG_DEC(), Types.DOUBLE()]),
        '{"price": 1, "size": 0.1}',
        Row(price=Decimal(1), size=0.1),
    ),
    (Types.INT(), "2147483647", 2147483647),
    (Types.STRING(), "12", "12"),
    (Types.PICKLED_BYTE_ARRAY(), '{"any": [1, "x"]}', {"any": [1, "x"]}),
    (PERSON, "null", None),
    (
        Types.MAP(Types.INT(), Types.SQL_DATE()),
        '{"-3": "2024-02-29", "4": null}',
        {-3: datetime.date(2024, 2, 29), 4: None},
    ),
    (Types.INSTANT(), '"1970-01-01T02:00:01.000000005+02:00"', Instant(1, 5)),
    (Types.INSTANT(), '"1970-01-01T00:00:01Z"', Instant(1, 0)),
    (LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE), '"2024-02-29"', datetime.date(2024, 2, 29)),
    (LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_TIME), '"12:30"', datetime.time(12, 30)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "[97, -1]", b"a\xff"),
    (Types.DOUBLE(), '"-Infinity"', -math.inf),
    (Types.BIG_DEC(), '"1.50"', Decimal("1.50")),
    (Types.BIG_DEC(), "123456789012345678901234567890", Decimal("123456789012345678901234567890")),
    (Types.FLOAT(), "1.1", 1.100000023841858),
]


@pytest.mark.parametrize(
    ("type_info", "text", "reason"),
    [
        (Types.INT(), "2147483648", "2147483648 does not fit into the 32 bits of INT"),
        (Types.BYTE(), "300", "300 does not fit into the 8 bits of BYTE"),
        (Types.FLOAT(), "1e300", r"1e\+300 does not fit into the 32 bits of FLOAT"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "[300]", "300 does not fit into the 8 bits of BYTE"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), "[1, null]", "null in an array of primitives"),
        (Types.LIST(Types.INT()), "[1, 2147483648]", "2147483648 does not fit"),
        (Types.INT(), "1.5", "1.5 of type float is no INT"),
        (Types.MAP(Types.INT(), Types.INT()), '{"1_0": 1}', "a number is expected, got '1_0'"),
        (Types.MAP(Types.INT(), Types.INT()), '{"1": 1, "01": 2}', "two keys of the same value"),
        (Types.SQL_TIMESTAMP(), '"2026-06-25T09:15:00+02:00"', "has an offset from UTC, which a timestamp cannot hold"),
        (Types.SQL_TIME(), '"09:15:00+02:00"', "has an offset from UTC, which a time cannot hold"),
        (Types.SQL_TIMESTAMP(), '"2026-06-25T09:15:00.1234567"', "has a fraction below microseconds"),
        (Types.SQL_DATE(), '"2026-06-25T09:15:00"', "Invalid isoformat"),
        (Types.INSTANT(), '"2026-06-25T09:15:00"', "a point in time with an offset is expected"),
        (Types.DOUBLE(), '"1_0"', "a number is expected"),
        (Types.BIG_DEC(), '"NaN"', "is no number"),
    ],
)
def test_what_does_not_fit_its_type_is_an_error_that_names_the_field(
    type_info: TypeInformation, text: str, reason: str
) -> None:
    row = Types.ROW_NAMED(["x"], [type_info])

    with pytest.raises(ValueError, match=f"does not fit RowTypeInfo.*: field 'x': .*{reason}"):
        reading(row).deserialize(f'{{"x": {text}}}'.encode())


@pytest.mark.parametrize(
    ("type_info", "value", "reason"),
    [
        (Types.INT(), 2**31, "2147483648 does not fit into the 32 bits of INT"),
        (Types.STRING(), 5, "5 of type int is no STRING"),
        (Types.SQL_TIMESTAMP(), NAT, "NaT of type NaTType is no timestamp"),
        (Types.SQL_TIMESTAMP(), FINE, "has nanoseconds"),
        (Types.STRING(), NA, "NAType is no STRING"),
        (Types.BIG_DEC(), Decimal("NaN"), "is no number"),
        (Types.DOUBLE(), 2**53 + 1, "without being rounded"),
        (Types.ROW_NAMED(["a"], [Types.INT()]), Row(b=1), "a row without the field 'a'"),
        (PERSON, {"name": "a", "years": 1}, "'years', which is not declared"),
    ],
)
def test_what_is_not_of_its_type_is_not_written(type_info: TypeInformation, value: Any, reason: str) -> None:
    schema = JsonRowSerializationSchema.builder().with_type_info(Types.ROW_NAMED(["x"], [type_info])).build()

    with pytest.raises(ValueError, match=f"field 'x': .*{reason}"):
        schema.serialize(Row(x=value))


def test_scalars_of_numpy_are_written_as_numbers() -> None:
    type_info = Types.ROW_NAMED(["a", "b", "c"], [Types.INT(), Types.FLOAT(), Types.BOOLEAN()])
    schema = JsonRowSerializationSchema.builder().with_type_info(type_info).build()

    assert schema.serialize(Row(c=np.bool_(True), a=np.int64(3), b=np.float32(1.5))) == b'{"a":3,"b":1.5,"c":true}'


def test_floats_that_are_no_numbers_are_texts_as_jackson_writes_them() -> None:
    schema = (
        JsonRowSerializationSchema.builder()
        .with_type_info(Types.ROW([Types.DOUBLE(), Types.PICKLED_BYTE_ARRAY()]))
        .build()
    )

    assert schema.serialize((math.nan, [math.inf, None])) == b'{"f0":"NaN","f1":["Infinity",null]}'
    lines = [(1, None, math.nan), {"a": [-math.inf], "b": None}, Row(a=(math.nan,), b=Decimal("1.5"))]
    assert (
        JsonLinesEncoder().encode_all(lines)
        == b'[1,null,"NaN"]\n{"a":["-Infinity"],"b":null}\n{"a":["NaN"],"b":"1.5"}\n'
    )
    assert JsonLinesEncoder().encode((None, 1.5, "null")) == b'[null,1.5,"null"]\n'


def reading(type_info: TypeInformation) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema.builder().type_info(type_info).build()


@pytest.mark.parametrize(("type_info", "text", "value"), VALUES, ids=[text for _, text, _ in VALUES])
def test_a_message_is_read_by_its_type(type_info: TypeInformation, text: str, value: Any) -> None:
    schema: JsonRowDeserializationSchema = pickle.loads(pickle.dumps(reading(type_info)))

    found = schema.deserialize(text.encode())

    assert found == value
    assert type(found) is type(value)
    assert schema.get_produced_type() == type_info


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[1]", r"an object is expected, got \[1\]"), ('{"name": ', "truncated"), ("\xff", "invalid|malformed")],
)
def test_a_message_that_does_not_fit_fails_with_its_text_or_is_left_out_and_counted(text: str, reason: str) -> None:
    ignoring = JsonRowDeserializationSchema.builder().type_info(PERSON).ignore_parse_errors().build()

    with pytest.raises(ValueError, match=f"a message of JSON does not fit RowTypeInfo.*({reason})"):
        reading(PERSON).deserialize(text.encode("latin-1"))
    assert ignoring.deserialize(text.encode("latin-1")) is None
    assert (ignoring.num_unparsable_records, ignoring.num_unparsable_fields) == (1, 0)


@pytest.mark.parametrize(
    ("text", "row", "num_fields"),
    [
        ('{"name": "Ann", "age": "old", "at": [1]}', Row(name="Ann", age=None, at=None), 2),
        ('{"name": "Ann", "age": 3, "at": {"x": "left", "y": 2}}', Row(name="Ann", age=3, at=Row(x=None, y=2)), 1),
    ],
)
def test_if_errors_are_ignored_a_field_that_does_not_fit_is_none(text: str, row: Row, num_fields: int) -> None:
    """The rest of the message is kept, at any depth, as in Flink; each field that became None is counted."""
    place = Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()])
    kind = Types.ROW_NAMED(["name", "age", "at"], [Types.STRING(), Types.INT(), place])
    schema = JsonRowDeserializationSchema.builder().type_info(kind).ignore_parse_errors().build()

    assert schema.deserialize(text.encode()) == row
    assert (schema.num_unparsable_records, schema.num_unparsable_fields) == (0, num_fields)
    with pytest.raises(ValueError, match="a message of JSON does not fit RowTypeInfo"):
        reading(kind).deserialize(text.encode())


def test_a_missing_field_fails_if_that_was_asked_for() -> None:
    schema = JsonRowDeserializationSchema.builder().type_info(PERSON).fail_on_missing_field().build()

    with pytest.raises(ValueError, match="the field 'age' is missing"):
        schema.deserialize(b'{"name": "Ann"}')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Row("Ann", 3), '{"name":"Ann","age":3}'),
        (("Ann", None), '{"name":"Ann","age":null}'),
        ({"name": "x"}, '{"name":"x"}'),
    ],
)
def test_a_row_is_written_as_an_object_by_the_names_of_the_type(value: Any, text: str) -> None:
    schema = JsonRowSerializationSchema.builder().with_type_info(PERSON).build()

    assert schema.serialize(value) == text.encode()
    assert schema.serialize(None) is None
    with pytest.raises(ValueError, match="a row of 1 fields, declared are 2"):
        schema.serialize(Row("Ann"))


def test_a_builder_that_lacks_the_type_or_contradicts_itself_says_so() -> None:
    builder = JsonRowDeserializationSchema.builder

    with pytest.raises(JobGraphError, match="needs the type of its values: type_info"):
        builder().build()
    with pytest.raises(JobGraphError, match="needs the type of its values: with_type_info"):
        JsonRowSerializationSchema.builder().build()
    with pytest.raises(JobGraphError, match="not both"):
        builder().type_info(PERSON).fail_on_missing_field().ignore_parse_errors().build()
    with pytest.raises(JobGraphError, match="type_info"):
        builder().json_schema("{}")
    with pytest.raises(JobGraphError, match=r"type_info\(\) needs type information"):
        builder().type_info(str)  # type: ignore[arg-type]  # that is the test
