"""Promises of the values without a column form, and of record batches as messages.

Source: Flink `SerializerTestBase`, PyFlink `Types`; bytes by Flink's serializers.
"""

import datetime
import decimal
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.time import Instant
from flowlet.common.typeinfo import LocalTimeTypeInfo, TypeInformation, Types
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import batch_of_message, message_of_batch
from flowlet.serde.declared.value_forms import ByteReader, value_form
from flowlet.serde.type_serializer import ValueMismatchError
from tests.flowlet.serde.exact import exact

TIME = LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_TIME)
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def batch(ids: list[int | None], words: list[str | None]) -> Any:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(words, pa.string())], schema=SCHEMA)


GOLDEN: list[tuple[TypeInformation, Any, str]] = [
    (Types.BIG_INT(), 0, "00000001"),
    (Types.BIG_INT(), 1, "00000002"),
    (Types.BIG_INT(), 10, "00000003"),
    (Types.BIG_INT(), -1, "00000005FF"),
    (Types.BIG_INT(), 128, "000000060080"),
    (Types.BIG_INT(), -128, "0000000580"),
    (Types.BIG_DEC(), decimal.Decimal("1.0"), "0000000300000001"),
    (Types.BIG_DEC(), decimal.Decimal("-12.34"), "00000006FB2E00000002"),
    (Types.BIG_DEC(), decimal.Decimal("1E+3"), "00000002FFFFFFFD"),
    (Types.INSTANT(), Instant(1, 2), "000000000000000100000002"),
    (TIME, datetime.time(23, 59, 58, 1), "173B3A000003E8"),
]


@pytest.mark.parametrize(("type_info", "value", "expected"), GOLDEN, ids=[f"{row[0]!r}-{row[1]!r}" for row in GOLDEN])
def test_values_are_flinks_bytes(type_info: TypeInformation, value: Any, expected: str) -> None:
    """And come back as they were; no shorter piece of the bytes is a value."""
    form = value_form(type_info)

    data = form.write(value)

    assert data == bytes.fromhex(expected)
    source = ByteReader(memoryview(data))
    assert exact(form.read(source)) == exact(value)
    assert source.remaining == 0
    assert len(data) >= form.min_size_bytes
    for size in range(len(data)):
        with pytest.raises(SerdeError, match="bytes are expected"):
            form.read(ByteReader(memoryview(data[:size])))


TYPED: list[tuple[TypeInformation, st.SearchStrategy[Any]]] = [
    (Types.BIG_INT(), st.integers(-(2**200), 2**200) | st.sampled_from([127, 128, -128, -129, 255, 256])),
    (
        Types.BIG_DEC(),
        st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: value or not value.is_signed()),
    ),
    (Types.INSTANT(), st.builds(Instant, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999))),
    (TIME, st.times()),
    (Types.SQL_TIME(), st.times()),
]


@given(st.sampled_from(TYPED).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_values_come_back_exactly(pair: tuple[TypeInformation, Any]) -> None:
    """Behind each other."""
    type_info, value = pair
    form = value_form(type_info)

    source = ByteReader(memoryview(2 * form.write(value)))

    assert [exact(form.read(source)) for _ in range(2)] == [exact(value)] * 2
    assert source.remaining == 0


@dataclass
class Loud:
    """A class whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


MISMATCHES: list[tuple[TypeInformation, Any, str]] = [
    (Types.BIG_INT(), 1.0, "1.0 is of type float, not BigInteger"),
    (Types.BIG_INT(), True, "True is of type bool, not BigInteger"),
    (Types.BIG_INT(), Loud(), "<a Loud whose repr raised RuntimeError> is of type Loud, not BigInteger"),
    (Types.BIG_DEC(), 1, "1 is of type int, not BigDecimal"),
    (Types.BIG_DEC(), decimal.Decimal("NaN"), "is no BigDecimal"),
    (Types.BIG_DEC(), decimal.Decimal("-0"), "is no BigDecimal"),
    (Types.BIG_DEC(), decimal.Decimal("1" * 9_900), "has 9900 digits, more than a BigDecimal may have here"),
    (Types.INSTANT(), 5, "5 is of type int, not Instant"),
    (TIME, 3, "not LocalTime"),
    (TIME, datetime.time(0, tzinfo=datetime.UTC), "has a time zone"),
    (Types.ARROW(SCHEMA), [1], "of type list, not a pyarrow.RecordBatch"),
    (Types.ARROW(SCHEMA), pa.record_batch({"id": [1]}), r"the fields \['id'\], declared are \['id', 'word'\]"),
    # The path to it:
    (Types.ARROW(SCHEMA), pa.record_batch({"id": [1], "word": [7]}), r"^field 'word': \[7\] of type .*int64"),
]


@pytest.mark.parametrize(
    ("type_info", "value", "message"), MISMATCHES, ids=[f"{row[0]!r}-{index}" for index, row in enumerate(MISMATCHES)]
)
def test_a_value_of_another_type_is_refused_with_its_field_and_value(
    type_info: TypeInformation, value: Any, message: str
) -> None:
    form = value_form(type_info)

    with pytest.raises(ValueMismatchError, match=message):
        form.write(value)


CORRUPT: list[tuple[TypeInformation, str, str]] = [
    (Types.BIG_INT(), "00000000", "-4 bytes are expected"),
    (Types.BIG_INT(), "FFFFFFFF", "-5 bytes are expected"),
    (Types.BIG_INT(), "7FFFFFFF00", "bytes are expected, 1 are left"),
    (Types.BIG_DEC(), "00001005" + 5000 * "00", "a number of 4097 bytes, allowed are 4096"),
    (TIME, "000000 00000001", "no whole microseconds"),
    (Types.ARROW(SCHEMA), "FFFFFFFF", "-1 bytes are expected"),
    (Types.ARROW(SCHEMA), "00000004 00000000", "no record batch of this schema"),
]


@pytest.mark.parametrize(
    ("type_info", "data", "message"), CORRUPT, ids=[f"{row[0]!r}-{index}" for index, row in enumerate(CORRUPT)]
)
def test_corrupt_bytes_are_refused(type_info: TypeInformation, data: str, message: str) -> None:
    form = value_form(type_info)

    with pytest.raises(SerdeError, match=message):
        form.read(ByteReader(memoryview(bytes.fromhex(data))))


def test_record_batches_come_back_in_memory_of_their_own() -> None:
    form = value_form(Types.ARROW(SCHEMA))
    original = batch([1, None, 3], ["a", None, "ccc"])
    raw = bytearray(form.write(original))

    found = form.read(ByteReader(memoryview(raw)))
    raw[:] = b"\xee" * len(raw)

    assert found.equals(original)
    found.validate(full=True)
    assert form.name == "ArrowSerializer(id: int64, word: string)"


def test_a_record_batch_whose_offsets_point_outside_is_refused() -> None:
    """It is validated before anybody follows them."""
    form = value_form(Types.ARROW(SCHEMA))
    raw = bytearray(form.write(batch([1], ["abcd"])))
    ends = struct.pack("<2i", 0, 4)
    where = raw.rindex(ends)
    raw[where : where + 8] = struct.pack("<2i", 0, 1 << 30)

    with pytest.raises(SerdeError, match="no record batch of this schema"):
        form.read(ByteReader(memoryview(raw)))


def test_decimals_keep_more_digits_than_the_context() -> None:
    value = decimal.Decimal("-" + "123456789" * 20 + ".10")

    with decimal.localcontext(prec=5):
        form = value_form(Types.BIG_DEC())
        assert form.read(ByteReader(memoryview(form.write(value)))).as_tuple() == value.as_tuple()


def test_a_type_without_a_form_is_named() -> None:
    class Unknown(TypeInformation):
        __slots__ = ()

    with pytest.raises(TypeError, match="no column of Unknown"):
        value_form(Unknown())


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
