"""Promises of the serializers by type information.

Source: Flink `SerializerTestBase`, PyFlink `Types`; bytes by Flink's serializers.
"""

import array
import datetime
import decimal
import math
import re
import struct
import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.time import Instant
from flowlet.common.typeinfo import LocalTimeTypeInfo, TypeInformation, Types
from flowlet.common.types import Row, RowKind
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import batch_of_message, message_of_batch
from flowlet.serde.data_view import DataInput, DataOutput
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.serde.types.composite_serializers import serializer_for
from tests.flowlet.serde.exact import NESTED, TEXTS, exact

DATE, TIME, DATE_TIME = (LocalTimeTypeInfo(kind) for kind in LocalTimeTypeInfo.TimeType)
PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]

STRINGS = TEXTS.map(lambda text: text.replace("\ud83d\ude00", "")).filter(
    lambda text: not re.search("[\ud800-\udbff][\udc00-\udfff]", text)
)


def batch(ids: list[int | None], words: list[str | None]) -> Any:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(words, pa.string())], schema=SCHEMA)


def timestamp(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]  # no zone in parts


GOLDEN: list[tuple[TypeInformation, Any, str]] = [
    (Types.BYTE(), -1, "FF"),
    (Types.BOOLEAN(), True, "01"),
    (Types.SHORT(), 258, "0102"),
    (Types.INT(), -2, "FFFFFFFE"),
    (Types.LONG(), 258, "0000000000000102"),
    (Types.FLOAT(), 1.5, "3FC00000"),
    (Types.DOUBLE(), -0.0, "8000000000000000"),
    (Types.CHAR(), "é", "00E9"),
    (Types.STRING(), None, "00"),
    (Types.STRING(), "", "01"),
    (Types.STRING(), "ab", "036162"),
    (Types.STRING(), "é", "02E901"),
    (Types.STRING(), "😀", "03BDB00380BC03"),
    (Types.BIG_INT(), None, "00000000"),
    (Types.BIG_INT(), 0, "00000001"),
    (Types.BIG_INT(), 1, "00000002"),
    (Types.BIG_INT(), 10, "00000003"),
    (Types.BIG_INT(), -1, "00000005FF"),
    (Types.BIG_INT(), 128, "000000060080"),
    (Types.BIG_INT(), -128, "0000000580"),
    (Types.BIG_DEC(), None, "00000000"),
    (Types.BIG_DEC(), decimal.Decimal("1.0"), "0000000300000001"),
    (Types.BIG_DEC(), decimal.Decimal("-12.34"), "00000006FB2E00000002"),
    (Types.BIG_DEC(), decimal.Decimal("1E+3"), "00000002FFFFFFFD"),
    (Types.INSTANT(), Instant(1, 2), "000000000000000100000002"),
    (Types.INSTANT(), None, "800000000000000080000000"),
    (Types.SQL_DATE(), datetime.date(1970, 1, 2), "0000000005265C00"),
    (Types.SQL_DATE(), None, "8000000000000000"),
    (Types.SQL_TIME(), datetime.time(0, 0, 1, 2000), "00000000000003EA"),
    (Types.SQL_TIMESTAMP(), timestamp(1970, 1, 1, 0, 0, 1, 2003), "00000000000003EA001E9038"),
    (Types.SQL_TIMESTAMP(), timestamp(1969, 12, 31, 23, 59, 59, 999_999), "FFFFFFFFFFFFFFFF3B9AC618"),
    (Types.SQL_TIMESTAMP(), None, "800000000000000000000000"),
    (DATE, datetime.date(2024, 2, 29), "000007E8021D"),
    (DATE, None, "800000008000"),
    (TIME, datetime.time(23, 59, 58, 1), "173B3A000003E8"),
    (TIME, None, "80800080000000"),
    (DATE_TIME, timestamp(2024, 2, 29, 1, 2, 3, 0), "000007E8021D01020300000000"),
    (DATE_TIME, None, "80000000800080800080000000"),
    (Types.TUPLE([Types.INT(), Types.STRING()]), (1, None), "0000000100"),
    (Types.TUPLE([]), (), ""),
    (PERSON, Row(name="a", age=1), "00 0261 00000001"),
    (PERSON, Row(name=None, age=1), "20 00000001"),
    (Types.ROW([Types.BYTE()] * 7), Row.of_kind(RowKind.UPDATE_BEFORE, 1, 2, 3, 4, 5, 6, None), "8080010203040506"),
    (Types.ROW([]), Row.of_kind(RowKind.UPDATE_AFTER), "40"),
    (Types.ROW([]), Row.of_kind(RowKind.DELETE), "C0"),
    (Types.LIST(Types.SHORT()), [1, -1], "000000020001FFFF"),
    (Types.MAP(Types.BYTE(), Types.BYTE()), {1: 2, 3: None}, "00000002 010002 0301"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\xff\x00", "00000002FF00"),
    (Types.PRIMITIVE_ARRAY(Types.BOOLEAN()), [True, False], "000000020100"),
    (Types.PRIMITIVE_ARRAY(Types.CHAR()), ["a"], "000000010061"),
    (Types.BASIC_ARRAY(Types.BYTE()), [1, None], "00000002 0101 00"),
    (Types.BASIC_ARRAY(Types.STRING()), ["a", None], "00000002 0261 00"),
    (Types.OBJECT_ARRAY(Types.LIST(Types.BYTE())), [[1], None], "00000002 01 0000000101 00"),
]


@pytest.mark.parametrize(("type_info", "value", "expected"), GOLDEN, ids=[f"{row[0]!r}-{row[1]!r}" for row in GOLDEN])
def test_values_are_flinks_bytes(type_info: TypeInformation, value: Any, expected: str) -> None:
    """And come back as they were; no shorter piece of the bytes is a value, nor is a longer one."""
    serializer = serializer_for(type_info)

    data = serializer.to_bytes(value)

    assert data == bytes.fromhex(expected)
    assert exact(serializer.from_bytes(data)) == exact(value)
    assert len(data) >= serializer.min_size_bytes
    with pytest.raises(SerdeError, match="left 1 of"):
        serializer.from_bytes(data + b"\0")
    for size in range(len(data)):
        with pytest.raises(SerdeError):
            serializer.from_bytes(data[:size])


TYPED: list[tuple[TypeInformation, st.SearchStrategy[Any]]] = [
    (Types.STRING(), STRINGS | st.none()),
    (Types.BOOLEAN(), st.booleans()),
    (Types.BYTE(), st.integers(-(2**7), 2**7 - 1)),
    (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    (Types.FLOAT(), st.floats(width=32, allow_nan=False)),
    (Types.DOUBLE(), st.floats() | st.just(NAN)),
    (Types.CHAR(), st.characters(exclude_categories=(), max_codepoint=0xFFFF)),
    (Types.BIG_INT(), st.integers(-(2**200), 2**200) | st.sampled_from([127, 128, -128, -129, 255, 256]) | st.none()),
    (
        Types.BIG_DEC(),
        st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: value or not value.is_signed()),
    ),
    (Types.INSTANT(), st.builds(Instant, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999)) | st.none()),
    (Types.SQL_DATE(), st.dates() | st.none()),
    (
        Types.SQL_TIME(),
        st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)) | st.none(),
    ),
    (Types.SQL_TIMESTAMP(), st.datetimes() | st.none()),
    (DATE, st.dates() | st.none()),
    (TIME, st.times() | st.none()),
    (DATE_TIME, st.datetimes() | st.none()),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary(max_size=5)),
    (Types.PRIMITIVE_ARRAY(Types.DOUBLE()), st.lists(st.floats(), max_size=3)),
    (Types.BASIC_ARRAY(Types.STRING()), st.lists(STRINGS | st.none(), max_size=3)),
    (Types.BASIC_ARRAY(Types.INT()), st.lists(st.integers(-5, 5) | st.none(), max_size=3)),
    (Types.PICKLED_BYTE_ARRAY(), NESTED),
]


def _pairs(inner: st.SearchStrategy[tuple[TypeInformation, Any]]) -> st.SearchStrategy[tuple[TypeInformation, Any]]:
    def row(fields: list[tuple[TypeInformation, Any]], kind: RowKind) -> tuple[TypeInformation, Any]:
        value = Row.of_kind(kind, *(value for _, value in fields))
        value.set_field_names([f"f{index}" for index in range(len(fields))])
        return Types.ROW([type_info for type_info, _ in fields]), value

    fields = st.lists(inner, max_size=9)
    return st.one_of(
        fields.map(lambda parts: (Types.TUPLE([part[0] for part in parts]), tuple(part[1] for part in parts))),
        st.builds(row, fields, st.sampled_from(RowKind)),
        inner.map(lambda part: (Types.LIST(part[0]), [part[1]] * 2)),
        inner.map(lambda part: (Types.OBJECT_ARRAY(part[0]), [part[1], None])),
        inner.map(lambda part: (Types.MAP(Types.STRING(), part[0]), {"a": part[1], "b": None})),
    )


def typed_values() -> st.SearchStrategy[tuple[TypeInformation, Any]]:
    """A type and a value of it."""
    leaves = st.sampled_from(TYPED).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
    return st.recursive(leaves, _pairs, max_leaves=8)


@given(typed_values())
def test_values_come_back_exactly(pair: tuple[TypeInformation, Any]) -> None:
    """Alone, and behind each other."""
    type_info, value = pair
    serializer = serializer_for(type_info)
    output = DataOutput()

    for _ in range(2):
        serializer.serialize(value, output)

    assert exact(serializer.from_bytes(serializer.to_bytes(value))) == exact(value)
    source = DataInput(output.buffer)
    assert [exact(serializer.read(source)) for _ in range(2)] == [exact(value)] * 2
    assert source.remaining == 0


def _mutables(value: Any) -> list[Any]:
    """Every list, dict and row inside."""
    match value:
        case list() | Row():
            return [value, *(inner for item in value for inner in _mutables(item))]
        case tuple():
            return [inner for item in value for inner in _mutables(item)]
        case dict():
            return [value, *(inner for item in value.values() for inner in _mutables(item))]
        case _:
            return []


@given(typed_values())
def test_a_copy_is_equal_and_shares_nothing_that_can_change(pair: tuple[TypeInformation, Any]) -> None:
    type_info, value = pair
    serializer = serializer_for(type_info)

    copies = [serializer.copy(value), *serializer.copy_all([value])]

    for copied in copies:
        assert exact(copied) == exact(value)
        assert not set(map(id, _mutables(copied))) & set(map(id, _mutables(value)))
    assert not serializer.is_immutable or copies[0] is value


def test_a_list_of_copies_is_always_a_new_list() -> None:
    for type_info, value in [
        (Types.INT(), 1),
        (Types.PICKLED_BYTE_ARRAY(), (1, "a")),
        (Types.PICKLED_BYTE_ARRAY(), [1]),
    ]:
        values = [value]
        copies = serializer_for(type_info).copy_all(values)

        assert copies == values
        assert copies is not values


def test_columns_of_atoms_are_shared_and_others_are_not() -> None:
    """What nobody can change is not copied: between chained operators that is most of what flows."""
    serializer = serializer_for(Types.PICKLED_BYTE_ARRAY())
    pairs, mixed = [("a" * 50, 1.5), ("b", None)], [("a", [1]), ("b", [2])]

    assert [each is pair for each, pair in zip(serializer.copy_all(pairs), pairs, strict=True)] == [True, True]
    copies = serializer.copy_all(mixed)

    copies[0][1].append(2)
    assert mixed == [("a", [1]), ("b", [2])]


def test_none_stays_none_in_copies() -> None:
    for type_info, _, _ in GOLDEN:
        assert serializer_for(type_info).copy(None) is None
    assert serializer_for(Types.TUPLE([Types.LIST(Types.INT())])).copy((None,)) == (None,)


MISMATCHES: list[tuple[TypeInformation, Any, str]] = [
    (Types.INT(), "x", "'x' is of type str, not Integer"),
    (Types.INT(), True, "True is of type bool, not Integer"),
    (Types.BYTE(), 128, "128 does not fit into the 8 bits of Byte"),
    (Types.LONG(), 2**63, "9223372036854775808 does not fit into the 64 bits of Long"),
    (Types.BOOLEAN(), 1, "1 is of type int, not Boolean"),
    (Types.FLOAT(), 1e300, "1e\\+300 does not fit into the 32 bits of Float"),
    (Types.DOUBLE(), 10**400, "does not fit into the 64 bits of Double"),
    (Types.DOUBLE(), "1", "'1' is of type str, not Double"),
    (Types.CHAR(), "ab", "'ab' is not one character"),
    (Types.CHAR(), "😀", "is not one character of 16 bits"),
    (Types.CHAR(), 7, "7 is of type int, not Char"),
    (Types.STRING(), "\ud800\udc00", "two lone surrogates side by side"),
    (Types.STRING(), b"x", "b'x' is of type bytes, not String"),
    (Types.BIG_INT(), 1.0, "1.0 is of type float, not BigInteger"),
    (Types.BIG_DEC(), 1, "1 is of type int, not BigDecimal"),
    (Types.BIG_DEC(), decimal.Decimal("NaN"), "is no BigDecimal"),
    (Types.BIG_DEC(), decimal.Decimal("-0"), "is no BigDecimal"),
    (Types.INSTANT(), 5, "5 is of type int, not Instant"),
    (Types.SQL_DATE(), timestamp(2024, 1, 1), "of type datetime, not SqlDate"),
    (Types.SQL_TIME(), datetime.time(0, 0, 0, 1), "parts of a millisecond"),
    (Types.SQL_TIME(), datetime.time(0, tzinfo=datetime.UTC), "has a time zone"),
    (Types.SQL_TIMESTAMP(), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "has a time zone"),
    (Types.SQL_TIMESTAMP(), datetime.date(2024, 1, 1), "of type date, not SqlTimestamp"),
    (DATE, timestamp(2024, 1, 1), "not LocalDate"),
    (TIME, 3, "not LocalTime"),
    (TIME, datetime.time(0, tzinfo=datetime.UTC), "has a time zone"),
    (DATE_TIME, datetime.date(2024, 1, 1), "not LocalDateTime"),
    (DATE_TIME, datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "has a time zone"),
    (Types.TUPLE([Types.INT()]), [1], r"\[1\] is of type list, not a tuple of 1 fields"),
    (Types.TUPLE([Types.INT()]), (1, 2), r"\(1, 2\) has 2 fields, declared are 1"),
    (PERSON, ("a", 1), "of type tuple, not a Row"),
    (PERSON, Row("a"), "is a row of 1 fields, declared are 2"),
    (PERSON, Row(age=1, nom="a"), "is a row without the field 'name', its fields are 'age', 'nom'"),
    (Types.LIST(Types.INT()), (1,), "of type tuple, not a list"),
    (Types.MAP(Types.INT(), Types.INT()), [], "of type list, not a dict"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [1], "of type list, not bytes"),
    (Types.PICKLED_BYTE_ARRAY(), threading.Lock(), "cannot be pickled: TypeError"),
    (Types.ARROW(SCHEMA), [1], "of type list, not a pyarrow.RecordBatch"),
    (Types.ARROW(SCHEMA), pa.record_batch({"id": [1]}), r"the fields \['id'\], declared are \['id', 'word'\]"),
    # The path to it:
    (Types.ARROW(SCHEMA), pa.record_batch({"id": [1], "word": [7]}), r"^field 'word': \[7\] of type .*int64"),
    (
        Types.TUPLE([Types.INT(), Types.LIST(PERSON)]),
        (1, [Row("a", 1), Row("b", "x")]),
        r"^field 'f1\[1\].age': 'x' is of type str",
    ),
    (
        Types.MAP(Types.STRING(), Types.TUPLE([Types.INT()])),
        {"k": (None,)},
        r"^field \"\['k'\].f0\": None is of type NoneType",
    ),
    (Types.MAP(Types.INT(), Types.INT()), {"k": 1}, r"^field \"\['k'\]\": 'k' is of type str, not Integer"),
    (Types.BASIC_ARRAY(Types.INT()), [None, "x"], r"^field '\[1\]': 'x'"),
    (Types.PRIMITIVE_ARRAY(Types.INT()), [1, None], r"^field '\[1\]': None is of type NoneType"),
]


@pytest.mark.parametrize(
    ("type_info", "value", "message"), MISMATCHES, ids=[f"{row[0]!r}-{index}" for index, row in enumerate(MISMATCHES)]
)
def test_a_value_of_another_type_is_refused_with_its_field_and_value(
    type_info: TypeInformation, value: Any, message: str
) -> None:
    serializer = serializer_for(type_info)

    with pytest.raises(ValueMismatchError, match=message):
        serializer.to_bytes(value)


@pytest.mark.parametrize(
    ("type_info", "value", "message"),
    [
        (Types.LIST(Types.INT()), 5, "5 is of type int, not a list"),
        (Types.MAP(Types.STRING(), Types.LIST(Types.INT())), [1], "not a dict"),
        (Types.TUPLE([Types.LIST(Types.INT())]), [1], "not a tuple"),
        (PERSON, 5, "not a Row"),
        (Types.PICKLED_BYTE_ARRAY(), [threading.Lock()], "enable object reuse"),
    ],
)
def test_what_is_of_another_type_cannot_be_copied_either(type_info: TypeInformation, value: Any, message: str) -> None:
    with pytest.raises(ValueMismatchError, match=message):
        serializer_for(type_info).copy(value)


CORRUPT: list[tuple[TypeInformation, str, str]] = [
    (Types.STRING(), "03 8080 04 61", "a character unit of 65536"),
    (Types.STRING(), "FFFFFFFF0F", "a text of 4294967294 characters in the 0 bytes"),
    (Types.BIG_INT(), "FFFFFFFF", "-5 bytes are expected"),
    (Types.BIG_INT(), "7FFFFFFF00", "bytes are expected, 1 are left"),
    (Types.INSTANT(), "0000000000000000 3B9ACA00", "0 to 999999999 nanoseconds"),
    (Types.SQL_DATE(), "7FFFFFFFFFFFFFFF", "ValueError|OverflowError"),
    (Types.SQL_TIME(), "0000000005265C00", "ValueError"),
    (Types.SQL_TIMESTAMP(), "0000000000000001 00000000", "do not go with 1 milliseconds"),
    (Types.SQL_TIMESTAMP(), "0000000000000000 00000001", "no whole microseconds"),
    (Types.SQL_TIMESTAMP(), "7FFFFFFFFFFFFFFF 3019D7C0", "OverflowError"),
    (DATE, "000007E8 0D01", "month must be in 1..12"),
    (TIME, "000000 00000001", "no whole microseconds"),
    (DATE_TIME, "000007E8021D 80800080000000", "one part is missing"),
    (Types.LIST(Types.INT()), "7FFFFFFF", "2147483647 elements, at most 0"),
    (Types.LIST(Types.TUPLE([])), "7FFFFFFF", "2147483647 elements, at most 1048576"),
    (Types.BASIC_ARRAY(Types.INT()), "00000001 02 00000000", "a truth value is 0 or 1, found 2"),
    (Types.MAP(Types.BYTE(), Types.BYTE()), "00000002 0101 0101", "a map of 2 entries has 1 different keys"),
    (Types.ROW([Types.BYTE()]), "10 05", "bits behind those of its fields"),
    (Types.PICKLED_BYTE_ARRAY(), "00000001 80", "a pickle cannot be read"),
    (Types.ARROW(SCHEMA), "00000004 00000000", "no record batch of this schema"),
]


@pytest.mark.parametrize(
    ("type_info", "data", "message"), CORRUPT, ids=[f"{row[0]!r}-{index}" for index, row in enumerate(CORRUPT)]
)
def test_corrupt_bytes_are_reported_with_serializer_and_offset(
    type_info: TypeInformation, data: str, message: str
) -> None:
    serializer = serializer_for(type_info)

    with pytest.raises(SerdeError, match=message) as caught:
        serializer.from_bytes(bytes.fromhex(data))

    assert f"broken serialization: {serializer!r} at byte " in str(caught.value)


@given(typed_values(), st.data())
def test_damaged_bytes_raise_nothing_else(pair: tuple[TypeInformation, Any], data: st.DataObject) -> None:
    """Pickles aside: they do what they say."""
    type_info, value = pair
    if "Pickled" in repr(type_info):
        return
    serializer = serializer_for(type_info)
    raw = bytearray(serializer.to_bytes(value))
    for _ in range(data.draw(st.integers(1, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    try:
        serializer.from_bytes(bytes(raw))
    except SerdeError as error:
        assert repr(serializer) in str(error)  # noqa: PT017 - most damage goes unnoticed: bytes of other values


def test_record_batches_come_back_in_memory_of_their_own() -> None:
    serializer = serializer_for(Types.ARROW(SCHEMA))
    original = batch([1, None, 3], ["a", None, "ccc"])
    raw = bytearray(serializer.to_bytes(original))

    found = serializer.read(DataInput(raw))
    raw[:] = b"\xee" * len(raw)

    assert found.equals(original)
    found.validate(full=True)
    assert serializer.copy(original) is original
    assert repr(serializer).startswith("ArrowSerializer(")


def test_a_record_batch_whose_offsets_point_outside_is_refused() -> None:
    """It is validated before anybody follows them."""
    serializer = serializer_for(Types.ARROW(SCHEMA))
    raw = bytearray(serializer.to_bytes(batch([1], ["abcd"])))
    ends = struct.pack("<2i", 0, 4)
    where = raw.rindex(ends)
    raw[where : where + 8] = struct.pack("<2i", 0, 1 << 30)

    with pytest.raises(SerdeError, match="no record batch of this schema"):
        serializer.from_bytes(bytes(raw))


def test_arrays_of_the_standard_library_are_lists_on_the_other_side() -> None:
    serializer = serializer_for(Types.PRIMITIVE_ARRAY(Types.DOUBLE()))
    value = array.array("d", [1.5, math.inf])

    assert serializer.from_bytes(serializer.to_bytes(value)) == [1.5, math.inf]
    assert serializer.copy(value) == value
    assert serializer.copy(value) is not value


def test_byte_arrays_that_can_change_are_copied() -> None:
    serializer = serializer_for(Types.PRIMITIVE_ARRAY(Types.BYTE()))
    value = bytearray(b"ab")

    assert serializer.from_bytes(serializer.to_bytes(value)) == b"ab"
    assert serializer.copy(value) is not value


def test_a_row_without_names_gets_the_declared_ones() -> None:
    serializer = serializer_for(PERSON)

    assert serializer.from_bytes(serializer.to_bytes(Row("a", 1))) == Row(name="a", age=1)
    assert serializer.to_bytes(Row(age=1, name="a")) == serializer.to_bytes(Row("a", 1))
    assert list(serializer.copy(Row(age=1, name="a"))) == ["a", 1]


def test_floats_are_rounded_to_their_declared_32_bits() -> None:
    serializer = serializer_for(Types.FLOAT())

    assert serializer.from_bytes(serializer.to_bytes(0.1)) == struct.unpack(">f", struct.pack(">f", 0.1))[0]


def test_decimals_keep_more_digits_than_the_context() -> None:
    value = decimal.Decimal("-" + "123456789" * 20 + ".10")

    with decimal.localcontext(prec=5):
        serializer = serializer_for(Types.BIG_DEC())
        assert serializer.from_bytes(serializer.to_bytes(value)).as_tuple() == value.as_tuple()


def test_a_type_without_a_serializer_is_named() -> None:
    class Unknown(TypeInformation):
        __slots__ = ()

    with pytest.raises(TypeError, match="no serializer for Unknown"):
        serializer_for(Types.LIST(Unknown()))


def test_serializers_of_the_same_type_are_equal() -> None:
    assert serializer_for(PERSON) == serializer_for(PERSON)
    assert hash(serializer_for(PERSON)) == hash(serializer_for(PERSON))
    assert serializer_for(Types.INT()) != serializer_for(Types.LONG())
    assert repr(serializer_for(PERSON)) == "RowSerializer(name: StringSerializer, age: IntegerSerializer)"


@dataclass
class Loud:
    """A class whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_value_whose_repr_fails_is_still_reported() -> None:
    with pytest.raises(
        ValueMismatchError, match="<a Loud whose repr raised RuntimeError> is of type Loud, not Integer"
    ):
        serializer_for(Types.INT()).to_bytes(Loud())


def test_a_long_value_is_shortened_in_messages() -> None:
    with pytest.raises(ValueMismatchError) as caught:
        serializer_for(Types.INT()).to_bytes("x" * 1000)

    assert len(str(caught.value)) < 150


@given(st.text(max_size=300))
def test_texts_of_any_length(text: str) -> None:
    serializer = serializer_for(Types.STRING())

    assert serializer.from_bytes(serializer.to_bytes(text)) == text


def test_a_message_that_would_grow_is_not_read() -> None:
    """A few compressed bytes may stand for as much memory as their sender likes."""
    schema = pa.schema([("a", pa.int64())])
    batch = pa.record_batch({"a": [0] * 10_000})
    data = batch.serialize()
    assert batch_of_message(data, schema).equals(batch)

    with pytest.raises(SerdeError, match="is compressed"):
        batch_of_message(_compressed(batch), schema)


def _compressed(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    return reader.read_next_message().serialize()


def test_null_in_a_field_that_has_none_is_refused_on_both_sides() -> None:
    strict, lax = pa.schema([pa.field("a", pa.int64(), nullable=False)]), pa.schema([("a", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=strict)

    with pytest.raises(ValueMismatchError, match="field 'a': holds null"):
        message_of_batch(batch, strict)
    with pytest.raises(SerdeError, match="field 'a' holds null"):
        batch_of_message(pa.RecordBatch.from_arrays([pa.array([1, None])], schema=lax).serialize(), strict)
