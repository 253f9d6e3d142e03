"""Promises of the bytes of values that Arrow lacks, and of record batches as messages."""

import decimal
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.time import Instant
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import batch_of_message, message_of_batch
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.types.leaf_forms import bytes_form
from tests.flowlet.serde.exact import exact

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def batch(ids: list[int | None], words: list[str | None]) -> Any:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(words, pa.string())], schema=SCHEMA)


TYPED: list[tuple[TypeInformation, st.SearchStrategy[Any]]] = [
    (Types.BIG_INT(), st.integers(-(2**200), 2**200) | st.sampled_from([0, 1, -1, 10, 127, 128, -128, -129, 255, 256])),
    (
        Types.BIG_DEC(),
        st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: value or not value.is_signed())
        | st.sampled_from(list(map(decimal.Decimal, ("1.0", "-12.34", "1E+3")))),
    ),
    (Types.INSTANT(), st.builds(Instant, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999))),
]


@given(st.sampled_from(TYPED).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_values_come_back_exactly(pair: tuple[TypeInformation, Any]) -> None:
    type_info, value = pair
    form = bytes_form(type_info)

    assert exact(form.read(form.write(value))) == exact(value)


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
    form = bytes_form(type_info)

    with pytest.raises(ValueMismatchError, match=message):
        form.array_of([value])


CORRUPT: list[tuple[TypeInformation, str, str]] = [
    (Types.BIG_DEC(), "00000000" + 4097 * "00", "a number of 4097 bytes, allowed are 4096"),
    (Types.ARROW(SCHEMA), "", "no record batch of this schema"),
    (Types.ARROW(SCHEMA), "00000000", "no record batch of this schema"),
]


@pytest.mark.parametrize(
    ("type_info", "data", "message"), CORRUPT, ids=[f"{row[0]!r}-{index}" for index, row in enumerate(CORRUPT)]
)
def test_corrupt_bytes_are_refused(type_info: TypeInformation, data: str, message: str) -> None:
    form = bytes_form(type_info)

    with pytest.raises(SerdeError, match=message):
        form.read(bytes.fromhex(data))


def test_record_batches_come_back() -> None:
    form = bytes_form(Types.ARROW(SCHEMA))
    original = batch([1, None, 3], ["a", None, "ccc"])

    found = form.read(form.write(original))

    assert found.equals(original)
    found.validate(full=True)


def test_a_record_batch_whose_offsets_point_outside_is_refused() -> None:
    """A record batch is validated before its offsets are followed."""
    form = bytes_form(Types.ARROW(SCHEMA))
    raw = bytearray(form.write(batch([1], ["abcd"])))
    ends = struct.pack("<2i", 0, 4)
    where = raw.rindex(ends)
    raw[where : where + 8] = struct.pack("<2i", 0, 1 << 30)

    with pytest.raises(SerdeError, match="no record batch of this schema"):
        form.read(bytes(raw))


def test_decimals_keep_more_digits_than_the_context() -> None:
    value = decimal.Decimal("-" + "123456789" * 20 + ".10")

    with decimal.localcontext(prec=5):
        form = bytes_form(Types.BIG_DEC())
        assert form.read(form.write(value)).as_tuple() == value.as_tuple()


def test_a_type_without_a_form_is_named() -> None:
    class Unknown(TypeInformation):
        __slots__ = ()

    with pytest.raises(TypeError, match="no column of Unknown"):
        bytes_form(Unknown())


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
