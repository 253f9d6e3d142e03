"""Promises of the columns of declared types: exactly the values that were sent, or nothing."""

import datetime
import pickle
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ConstantColumn, ListColumn, Shape
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde import column_writer as form
from flowlet.serde.column_writer import ElementTooLargeError, encode_column
from flowlet.serde.element_serializer import (
    CHUNK_HEADER,
    CHUNK_VERSION,
    LENGTH,
    TAG_CHUNK,
    ElementDeserializer,
    StreamElementSerializer,
)
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.types.declared_records import DeclaredRecords
from flowlet.types.gate_forms import gate_form
from tests.flowlet.types.declared_values import EXAMPLES, is_of_type

ROW = Types.ROW_NAMED(
    ["user", "home"], [Types.STRING(), Types.ROW_NAMED(["city", "zip"], [Types.STRING(), Types.INT()])]
)
FREE_CELLS = 1000


def sent(records: DeclaredRecords, chunk: Chunk) -> bytes:
    return StreamElementSerializer(declared=records).serialize(chunk)


def read(records: DeclaredRecords, data: bytes) -> list[Any]:
    chunks = ElementDeserializer(declared=records).feed(memoryview(data))
    return [value for chunk in chunks if isinstance(chunk, Chunk) for value in chunk.values]


def element(num_records: int, column: bytes, flags: int = 0) -> bytes:
    body = CHUNK_HEADER.pack(TAG_CHUNK, CHUNK_VERSION, flags, num_records) + column
    return LENGTH.pack(len(body)) + body


def described(value: Any) -> str:
    return f"{value!r} {value.get_row_kind()}" if isinstance(value, Row) else repr(value)


# ---------------------------------------------------------------- what fits comes back


@pytest.mark.parametrize("num_records", [1, 5, 40])
def test_records_come_back_exactly(num_records: int) -> None:
    """Values of every type come back as the only value of a record, as a field beside None, and in a list."""
    for type_info, make in EXAMPLES.values():
        check_round_trip(type_info, make, num_records)


def check_round_trip(type_info: TypeInformation, make: Callable[[int], Any], num_records: int) -> None:
    values = [make(number) for number in range(num_records)]
    with_none = [None if number % 3 == 1 else value for number, value in enumerate(values)]
    for records, declared in (
        (values, type_info),
        (list(zip(values, with_none, strict=True)), Types.TUPLE([type_info, type_info])),
        ([with_none, [], with_none], Types.LIST(type_info)),
    ):
        codec = DeclaredRecords(declared)

        for chunk in (codec.chunk_of(records), Chunk(list(records))):
            assert list(map(described, read(codec, sent(codec, chunk)))) == list(map(described, records))


def test_a_column_of_any_objects_is_one_pickle() -> None:
    """Parts of tuples, lists and maps are pickled so, too; constant columns, None, and columns of no value at all."""
    anything = Types.PICKLED_BYTE_ARRAY()
    records = DeclaredRecords(Types.TUPLE([anything, Types.LIST(anything), Types.MAP(Types.INT(), anything)]))
    values: list[Any] = [({"a": index}, [index, None, {index}], {index: [index]}) for index in range(40)]
    values += [(None, None, None), (None, [], {})]

    data = sent(records, records.chunk_of(list(values)))

    assert read(records, data) == values
    assert data.count(b"\x80\x05") == 3  # how a pickle begins
    constant = ListColumn([None] * 3), ConstantColumn([1, 2], 3), ListColumn([{}] * 3)
    assert read(records, sent(records, Chunk.of_columns(Columns(3, constant, Shape.TUPLE)))) == [(None, [1, 2], {})] * 3


@pytest.mark.parametrize(
    ("part", "place"), [(threading.Lock(), "f1"), ({"a": threading.Lock()}, "f1"), ([1, threading.Lock()], r"f1\[1\]")]
)
def test_an_object_that_cannot_be_pickled_is_named(part: object, place: str) -> None:
    anything = Types.PICKLED_BYTE_ARRAY()
    kind = Types.LIST(anything) if isinstance(part, list) else anything
    records = DeclaredRecords(Types.TUPLE([Types.INT(), kind]))

    with pytest.raises(ValueMismatchError, match=f"record 1: field '{place}': .* cannot be sent: .*lock"):
        records.chunk_of([(1, []), (2, part)])


@pytest.mark.parametrize("num_records", [1, 40])
def test_texts_with_lone_surrogates_come_back(num_records: int) -> None:
    """Arrow has no such texts."""
    type_info = Types.ROW_NAMED(["a", "b"], [Types.CHAR(), Types.LIST(Types.STRING())])
    records = [Row(a="\ud800", b=["x", None, "\udfff"])] * num_records
    codec = DeclaredRecords(type_info)

    assert read(codec, sent(codec, codec.chunk_of(records))) == records
    with pytest.raises(ValueMismatchError, match="record 1: field 'a': 1 is of type int, not Char"):
        codec.chunk_of([records[0], Row(a=1, b=None)])


def test_timestamps_come_back_with_their_records() -> None:
    codec = DeclaredRecords(Types.LONG())

    for chunk in (Chunk([1, 2], [17, 18]), codec.chunk_of([1, 2]).with_timestamps([17, 18])):
        [found] = ElementDeserializer(declared=codec).feed(memoryview(sent(codec, chunk)))

        assert isinstance(found, Chunk)
        assert (found.values, found.timestamps) == (chunk.values, chunk.timestamps)


@pytest.mark.parametrize(
    "record",
    [
        Row(home=Row(zip=1, city="x"), user="a"),
        Row("a", Row("x", 1)),
        ("a", ["x", 1]),
        {"home": {"zip": 1, "city": "x"}, "user": "a"},
    ],
    ids=["other order", "without names", "a tuple", "a dict"],
)
def test_fields_go_by_name_at_every_level(record: Any) -> None:
    """Fields go by position only if there is no name."""
    codec = DeclaredRecords(ROW)
    wanted = Row(user="a", home=Row(city="x", zip=1))

    for records in ([record], [record, wanted] * 20):
        assert read(codec, sent(codec, codec.chunk_of(records))) == [wanted] * len(records)


def test_columns_of_rows_go_by_name_too() -> None:
    codec = DeclaredRecords(Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]))
    columns = Columns(2, (ListColumn(["x", "y"]), ArrayColumn(np.array([1, 2]))), Shape.ROW, ("b", "a"))

    assert codec.fitting(columns).to_list() == [Row(a=1, b="x"), Row(a=2, b="y")]


def test_numbers_become_the_declared_ones_if_they_are_equal() -> None:
    codec = DeclaredRecords(Types.DOUBLE())

    found = read(codec, sent(codec, codec.chunk_of([1, 2**53, 0.5] * 9)))

    assert found == [1.0, float(2**53), 0.5] * 9
    assert {type(value) for value in found} == {float}
    with pytest.raises(ValueMismatchError, match=r"record 1: 9007199254740993 is an int that no Double holds exactly"):
        codec.chunk_of([0.5, 2**53 + 1])


# ---------------------------------------------------------------- what does not fit is refused before it is sent


WRONG: Final[list[tuple[TypeInformation, Any, Any, str]]] = [
    (Types.LONG(), 1, "many", "'many' is of type str, not Long"),
    (Types.LONG(), 1, True, "True is of type bool, not Long"),
    (Types.LONG(), 1, 2**63, "9223372036854775808 does not fit into the 64 bits of Long"),
    (Types.BYTE(), 1, 128, "128 does not fit into the 8 bits of Byte"),
    (Types.STRING(), "a", b"a", "b'a' is of type bytes, not String"),
    (Types.CHAR(), "a", "ab", "'ab' is not one character"),
    (
        Types.SQL_DATE(),
        datetime.date(2024, 1, 1),
        datetime.datetime(2024, 1, 1),  # noqa: DTZ001
        "is of type datetime, not DateTypeInfo",
    ),
    (
        Types.SQL_TIMESTAMP(),
        None,
        datetime.datetime.now(datetime.UTC),
        "has a time zone, which TimestampTypeInfo does not keep",
    ),
    (Types.BIG_DEC(), None, 1.5, "1.5 is of type float, not BigDecimal"),
    (
        ROW,
        Row(user="a", home=None),
        Row(user="a", home=Row(city="x", zip="y")),
        "field 'home.zip': 'y' is of type str, not Integer",
    ),
    (
        ROW,
        Row(user="a", home=None),
        Row(user="a", town=None),
        "a row without the field 'home', its fields are 'user', 'town'",
    ),
    (ROW, Row(user="a", home=None), Row(user="a", home=Row(1)), "field 'home': .* has 1 fields, .* has 2"),
    (ROW, Row(user="a", home=None), None, "None is of type NoneType, not RowTypeInfo"),
    (ROW, Row(user="a", home=None), {"user": "a"}, "does not have the keys user, home"),
    (Types.TUPLE([Types.LONG()]), (1,), (1, 2), r"\(1, 2\) has 2 fields, TupleTypeInfo.* has 1"),
    (Types.LIST(Types.LONG()), [1], [1, 2, "x"], r"field '\[2\]': 'x' is of type str, not Long"),
    (Types.PRIMITIVE_ARRAY(Types.LONG()), [1], [1, None], r"field '\[1\]': None, which .* does not hold"),
    (
        Types.MAP(Types.STRING(), Types.LONG()),
        {},
        {"a": 1, "b": "x"},
        r"""field "\['b'\]": 'x' is of type str, not Long""",
    ),
    (Types.MAP(Types.STRING(), Types.LONG()), {}, {1: 1}, "field 'keys': 1 is of type int, not String"),
]


@pytest.mark.parametrize("num_good", [0, 3, 50])
def test_the_first_record_of_another_type_is_named(num_good: int) -> None:
    """The error has the record's number, its field, the declared type and the value, wherever in the list it is."""
    for type_info, good, wrong, text in WRONG:
        codec = DeclaredRecords(type_info)

        with pytest.raises(ValueMismatchError, match=rf"^record {num_good}: .*{text}"):
            codec.chunk_of([good] * num_good + [wrong, wrong, good])


@pytest.mark.parametrize(
    ("type_info", "column", "text"),
    [
        (Types.LONG(), ArrayColumn(np.array([0.5, 1.5])), "record 0: 0.5 is of type float, not Long"),
        (Types.BYTE(), ArrayColumn(np.array([1, 300])), "record 1: 300 does not fit into the 8 bits"),
        (Types.STRING(), ListColumn(["a", 1]), "record 1: 1 is of type int, not String"),
        (Types.STRING(), ConstantColumn(1, 2), "record 0: 1 is of type int, not String"),
        (
            Types.LONG(),
            ArrowColumn(pa.array(["a", "b"])),
            r"\['a'\] of Arrow's type string, declared is Long: cast it to int64",
        ),
        (
            Types.SQL_TIMESTAMP(),
            ArrowColumn(pa.array([0, 2**62], pa.timestamp("us"))),
            r"record 1: .* in an array of timestamp\[us\]",
        ),
    ],
)
def test_the_first_value_of_a_column_of_another_type_is_named(
    type_info: TypeInformation, column: Any, text: str
) -> None:
    with pytest.raises(ValueMismatchError, match=text):
        DeclaredRecords(type_info).fitting(Columns(2, (column,), Shape.SCALAR))


@pytest.mark.parametrize(
    ("type_info", "array", "values"),
    [
        (Types.LONG(), pa.array([1, None], pa.int16()), [1, None]),
        (Types.STRING(), pa.array(["a", None], pa.large_string()), ["a", None]),
        (Types.LIST(Types.LONG()), pa.array([[1], None]), [[1], None]),
        (
            ROW.get_field_types()[1],
            pa.array([{"zip": 1, "city": "x"}, {"zip": None, "city": None}]),
            [Row(city="x", zip=1), Row(city=None, zip=None)],
        ),
        (
            Types.MAP(Types.STRING(), Types.LONG()),
            pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            [{"a": 1}, None],
        ),
    ],
    ids=str,
)
def test_arrow_arrays_become_values_of_the_declared_type(
    type_info: TypeInformation, array: pa.Array, values: list[Any]
) -> None:
    codec = DeclaredRecords(Types.TUPLE([type_info]))

    columns = codec.fitting(Columns(2, (ArrowColumn(array),), Shape.TUPLE))

    assert read(codec, sent(codec, Chunk.of_columns(columns))) == [(value,) for value in values]


# ---------------------------------------------------------------- hostile bytes


def batch(*arrays: pa.Array, flags: int = 0) -> bytes:
    """Return a column with an Arrow message of these arrays."""
    message = pa.RecordBatch.from_arrays(list(arrays), [""] * len(arrays)).serialize()
    return form.framed(form.Kind.BATCH, bytes((flags,)), message)


def compressed(array: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema([("", array.type)])
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([array], schema=schema))
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    return form.framed(form.Kind.BATCH, b"\0", reader.read_next_message().serialize())


def ends_at(end: int) -> bytes:
    """Return a list of two numbers whose end is another one."""
    data = batch(pa.array([[1, 2]], pa.list_(pa.int64())))
    return data.replace(struct.pack("<2i", 0, 2), struct.pack("<2i", 0, end))


def of_length(length: int) -> bytes:
    """Return a list of two numbers that says that they are so many."""
    data = batch(pa.array([[1, 2]], pa.list_(pa.int64())))
    return data.replace(struct.pack("<2q", 2, 0), struct.pack("<2q", length, 0))


def doubled(depth: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value, value)
    return value


def entries(pairs: list[tuple[Any, Any]], key_type: pa.DataType) -> pa.Array:
    """Return a map as it is sent."""
    return pa.array(
        [[{"key": key, "value": value} for key, value in pairs]],
        pa.list_(pa.struct([("key", key_type), ("value", pa.int64())])),
    )


def colliding(num_keys: int) -> list[int]:
    """Integers for which a dict of this many looks at one place after the other, half of which are taken."""
    mask = 2 * num_keys - 1
    chain, place = [], 1
    for _ in range(num_keys // 2):
        chain.append(place)
        place = (5 * place + 1) & mask
    return [*chain, *[1 + number * (mask + 1) * 2**20 for number in range(1, num_keys // 2 + 1)]]


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
LONGS = Types.LIST(Types.LONG())
MAP = Types.MAP(Types.LONG(), Types.LONG())


def packed(content: bytes) -> bytes:
    """Return a column of packed records."""
    return form.framed(form.Kind.PACKED, content)


HOSTILE: Final[list[tuple[TypeInformation, int, bytes, str]]] = [
    (Types.LONG(), 1, form.framed(form.Kind.PICKLE, pickle.dumps([1])), "kind 0, which is no form of Long"),
    (
        MAP,
        1,
        form.framed(form.Kind.PICKLE, pickle.dumps([{doubled(16): 1}])),
        "kind 0, which is no form of MapTypeInfo",
    ),
    (PAIR, 1, packed(b"\x91\x92\x01\xa1a"), "packed records: Expected `int | null`, got `str`"),
    (PAIR, 1, packed(b"\x91\x92\x01\xcf" + b"\xff" * 8), "packed records: Expected `int` <= 9223372036854775807"),
    (PAIR, 1, packed(b"\x91\x93\x01\x01\x01"), "packed records: Expected `array` of length 2"),
    (PAIR, 15, packed(b"\xdd\xff\xff\xff\xff"), "packed records that are not 15"),
    (PAIR, 33, packed(b"\xdc\x00\x21"), "or more than 32"),
    (Types.LONG(), 1, packed(b"\x91\x91\x01"), "kind 16, which is no form of Long"),
    (
        PAIR,
        1,
        form.framed(form.Kind.TUPLES, form.FIELDS.pack(1), form.framed(form.Kind.PICKLE, b"N.")),
        "kind 11, which is no form of TupleTypeInfo",
    ),
    (Types.LONG(), 1, form.framed(form.Kind.BATCH), f"kind {form.Kind.BATCH}, which is no form of Long"),
    (Types.LONG(), 1, form.framed(form.Kind.BATCH, b"\0"), "no record batch of this schema"),
    (Types.LONG(), 1, form.framed(form.Kind.BATCH, b"\0", b"\xff" * 8, bytes(40)), "no record batch of this schema"),
    (PAIR, 1, batch(pa.array([1])), "no record batch of this schema"),
    (Types.LONG(), 900, batch(pa.array([1])), "a record batch of 1 rows in a chunk of 900 records"),
    (Types.LONG(), 60_000, compressed(pa.array([0] * 60_000)), "is compressed"),
    (Types.BOOLEAN(), 20_000, batch(pa.array([True] * 20_000)), r"a record batch of 20000 rows in \d+ bytes"),
    (
        Types.LIST(Types.TUPLE([])),
        1,
        batch(pa.array([[{}] * 40_000], pa.list_(pa.struct([])))),
        r"a record batch of 1 rows in \d+ bytes",
    ),
    (LONGS, 1, ends_at(-1), "no record batch of this schema"),
    (LONGS, 1, ends_at(2**30), "no record batch of this schema"),
    (LONGS, 1, of_length(-1), "no record batch of this schema: ArrowInvalid: .* length"),
    (LONGS, 1, of_length(2**40), "no record batch of this schema"),
    (
        Types.PRIMITIVE_ARRAY(Types.LONG()),
        1,
        batch(pa.array([[1, None]], pa.list_(pa.int64()))),
        r"field '\[1\]': None, which .* does not hold",
    ),
    (MAP, 1, batch(entries([(1, 1), (1, 2)], pa.int64())), "a map of 2 entries has 1 different keys"),
    (Types.MAP(LONGS, Types.LONG()), 1, batch(entries([([1], 1)], pa.list_(pa.int64()))), "unhashable"),
    (Types.BIG_DEC(), 1, batch(pa.array([bytes(4) + b"\1" * 10_000])), "allowed are 4096"),
    (Types.BIG_DEC(), 1, batch(pa.array([b"\1"])), "broken bytes of BigDecimal: error"),
    (Types.INSTANT(), 1, batch(pa.array([b"12345"])), "broken bytes of Instant: error"),
    (Types.SQL_TIMESTAMP(), 1, batch(pa.array([2**62])), r"in an array of timestamp\[us\]"),
    (Types.SQL_DATE(), 1, batch(pa.array([2**30], pa.int32())), r"in an array of date32"),
    (Types.LIST(Types.SQL_DATE()), 1, batch(pa.array([[2**30]], pa.list_(pa.int32()))), r"elements: .* of date32"),
    (Types.SQL_TIME(), 1, batch(pa.array([2**62])), "time64"),
    (Types.CHAR(), 1, batch(pa.array(["ab"])), "not one character"),
    (Types.CHAR(), 1, batch(pa.array([b"ab"]), flags=2), "not one character"),
    (Types.STRING(), 1, batch(pa.array([b"\xff"])), "no record batch of this schema"),
    (Types.STRING(), 1, batch(pa.array([b"\xff"]), flags=2), "broken bytes of String: UnicodeDecodeError"),
    (Types.TUPLE([]), 1, batch(pa.array([None], pa.struct([]))), "None in the place of a record"),
    (
        PAIR,
        1,
        batch(pa.array([1], pa.int8()), pa.array([1]), pa.array([1]), flags=1),
        "kinds of rows, declared is Tuple",
    ),
    (Types.ROW([Types.LONG()]), 1, batch(pa.array([9], pa.int8()), pa.array([1]), flags=1), "rows of an unknown kind"),
]


def test_bytes_that_are_of_no_declared_type_are_refused() -> None:
    """The bytes are refused at once, and before memory is taken for what they stand for."""
    for type_info, num_records, column, text in HOSTILE:
        codec = DeclaredRecords(type_info, free_cells=FREE_CELLS)
        data = element(num_records, column)
        tracemalloc.start()
        try:
            with pytest.raises(SerdeError, match=text):
                read(codec, data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < 200_000 + 100 * len(data), text


def test_a_chunk_with_keys_is_refused() -> None:
    """A key that does not belong to its record would end up in another one's state."""
    for flags, key in ((2, encode_column([1])), (4, b"\0")):
        with pytest.raises(SerdeError, match="a chunk with keys"):
            read(DeclaredRecords(PAIR), element(1, key + encode_column([(1, 2)] * 40), flags))


@pytest.mark.parametrize("value_type", [Types.LONG(), Types.LIST(Types.LONG())], ids=repr)
def test_keys_that_collide_are_refused_before_there_is_a_map(value_type: TypeInformation) -> None:
    codec = DeclaredRecords(Types.MAP(Types.LONG(), value_type))
    value: Any = 1 if value_type == Types.LONG() else []
    keys = colliding(4096)

    with pytest.raises(
        SerdeError, match=r"a map of 4096 keys whose hashes collide: the first \d+ need \d+ probes or more"
    ):
        read(codec, sent(codec, Chunk([dict.fromkeys(keys, value)])))
    spread = dict.fromkeys(range(0, 2**40, 2**28), value)
    assert read(codec, sent(codec, Chunk([spread]))) == [spread]


def test_records_that_expand_too_far_are_sent_in_parts() -> None:
    """A sender knows the limit, so honest records never meet it."""
    codec = DeclaredRecords(Types.TUPLE([Types.BOOLEAN(), Types.BOOLEAN()]), free_cells=FREE_CELLS)
    chunk = codec.chunk_of([(True, None)] * 2000)

    with pytest.raises(
        ElementTooLargeError, match=r"2000 records stand for 4000 values in \d+ bytes, allowed are [12]\d\d\d"
    ):
        sent(codec, chunk)
    assert read(codec, sent(codec, chunk.slice(0, 200))) == [(True, None)] * 200


# ---------------------------------------------------------------- fuzzing


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return an element with bytes changed, cut out, doubled or taken from elsewhere; its length is right."""
    body = bytearray(data[LENGTH.size :])
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(CHUNK_HEADER.size - 4, len(body)) if body else 0
        match rng.randrange(6):
            case 0:
                body[start : start + 1] = bytes([rng.randrange(256)])
            case 1:
                body[start : start + 1] = bytes([rng.randrange(28)])  # perhaps a flag or a kind of column
            case 2:
                body[start : start + 4] = rng.choice(
                    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", struct.pack(">I", len(body))]
                )
            case 3:
                del body[start : start + rng.randint(1, 8)]
            case 4:
                body[start:start] = body[start : start + rng.randint(1, 16)]
            case _:
                other = rng.choice(others)
                cut = rng.randrange(len(other))
                body[start : start + 9] = other[cut : cut + rng.randint(1, 24)]
    return LENGTH.pack(len(body)) + bytes(body) if body else LENGTH.pack(1) + b"\0"


def check_damaged(name: str, seed: int, num_rounds: int) -> int:
    """Read damaged elements; return how many were refused."""
    type_info, make = EXAMPLES[name]
    values = [make(number) for number in range(8)]
    wrapped = Types.TUPLE([type_info, Types.LIST(type_info)])
    rng = random.Random(f"{name} {seed}")
    codec = DeclaredRecords(wrapped, free_cells=20 * FREE_CELLS)
    records = [(value if number % 3 else None, values[:number]) for number, value in enumerate(values * 2)]
    valid = [sent(codec, codec.chunk_of(records[:size])) for size in (1, 3, 16)]
    num_refused = 0
    for _ in range(num_rounds):
        data = damaged(rng.choice(valid), rng, valid)
        try:
            found = read(codec, data)
        except SerdeError:
            num_refused += 1
        else:
            assert all(record is not None and is_of_type(record, wrapped) for record in found), (name, seed, data)
            assert len(found) <= 20 * FREE_CELLS + len(data)
    return num_refused


def test_damaged_bytes_are_refused_or_values_of_the_type() -> None:
    """Damaged bytes give no other error, no other type, and no more than the limit; the work is bounded by the budget,
    as the memory is.
    """
    tracemalloc.start()
    try:
        num_refused = sum([check_damaged(name, seed=1, num_rounds=4) for name in EXAMPLES])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert num_refused > 4 * len(EXAMPLES) / 2
    assert peak < 3_000_000


@pytest.mark.slow
def test_many_damaged_bytes_are_refused_or_values_of_the_type() -> None:
    for name in EXAMPLES:
        assert check_damaged(name, seed=2, num_rounds=300) > 0


def test_a_part_of_a_column_of_lists_is_looked_at_alone() -> None:
    """Values in front of the part belong to other records, and the error names the record that does not fit."""
    whole = pa.array([[None], [1, 2], [3], [4, None]], pa.list_(pa.int32()))
    codec = DeclaredRecords(Types.TUPLE([Types.PRIMITIVE_ARRAY(Types.INT())]))

    fitting = codec.fitting(Columns(2, (ArrowColumn(whole.slice(1, 2)),), Shape.TUPLE))
    assert fitting.to_list() == [([1, 2],), ([3],)]
    with pytest.raises(ValueMismatchError, match=r"record 2: field 'f0\[1\]': None"):
        codec.fitting(Columns(3, (ArrowColumn(whole.slice(1)),), Shape.TUPLE))


def test_an_empty_array_of_lists_may_have_no_offsets() -> None:
    """Arrow allows that in messages of other libraries; nothing behind the array's buffer is read."""
    lists = pa.list_(pa.int64())
    inner = pa.Array.from_buffers(lists, 0, [None, pa.py_buffer(b"")], children=[pa.array([], pa.int64())])
    offsets = pa.py_buffer(struct.pack("=ii", 0, 0))
    outer = pa.Array.from_buffers(pa.list_(lists), 1, [None, offsets], children=[inner])

    assert gate_form(Types.LIST(Types.LIST(Types.LONG())), texts_are_bytes=False).column_of(outer).to_list() == [[]]


@pytest.mark.parametrize("num_records", [2, 40])
def test_records_that_share_an_object_are_read_without_sharing_it(num_records: int) -> None:
    """A function behind the gate may change its records."""
    shared = {"number": 0, "parts": [1]}
    records = DeclaredRecords(Types.TUPLE([Types.PICKLED_BYTE_ARRAY(), Types.INT()]))

    found = read(records, sent(records, Chunk([(shared, index) for index in range(num_records)])))
    for record in found:
        record[0]["parts"].append(record[1])

    assert found == [({"number": 0, "parts": [1, index]}, index) for index in range(num_records)]


def test_batches_without_any_objects_are_read_from_the_kind_before() -> None:
    """An unaligned checkpoint may have them in flight."""
    records = DeclaredRecords(Types.TUPLE([Types.STRING(), Types.INT()]))
    rows = [(f"a{index}", index) for index in range(40)]
    data = bytearray(sent(records, Chunk(list(rows))))
    position_of_kind = LENGTH.size + CHUNK_HEADER.size
    assert data[position_of_kind] == form.Kind.BATCH
    data[position_of_kind] = 27

    assert read(records, bytes(data)) == rows
