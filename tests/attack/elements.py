"""Elements that no producer of ours would write, made byte by byte.

Side:   pure.
"""

import io
import os
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow

from flowlet.records import Chunk, Watermark, WatermarkStatus
from flowlet.serde.column_writer import FIELDS, Kind, framed
from flowlet.serde.element_serializer import (
    CHUNK_HEADER,
    CHUNK_VERSION,
    LENGTH,
    MAX_CHUNK_RECORDS,
    TAG_CHUNK,
    StreamElementSerializer,
)

_LEVELS: Final = 100_000
_MERSENNE: Final = (1 << 61) - 1  # multiples of it have the hash 0


def element(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def chunk(num_records: int, columns: bytes, flags: int = 0) -> bytes:
    return element(CHUNK_HEADER.pack(TAG_CHUNK, CHUNK_VERSION, flags, num_records) + columns)


def pickled(data: bytes, num_records: int = 1) -> bytes:
    return chunk(num_records, framed(Kind.PICKLE, data))


class Runs:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def doubled_key() -> bytes:
    """Return a tuple of twice the tuple before, as the key of a dict: its hash takes 2^40 steps."""
    out = [b"\x80\x04", b"]", b"}", b"K\x01"]  # [ {  1
    for _ in range(40):
        out.append(b"2\x86")  # DUP, TUPLE2
    out += [b"K\x02", b"s", b"a", b"."]
    return b"".join(out)


def colliding(begin: bytes, behind_each: bytes, end: bytes) -> bytes:
    """Return the pickle of a container of many numbers with the hash 0."""
    numbers = ((number * _MERSENNE).to_bytes(10, "little", signed=True) for number in range(1, 60_000))
    return begin + b"".join(b"\x8a" + bytes([len(data)]) + data + behind_each for data in numbers) + end


def of_constant(column: bytes) -> bytes:
    return chunk(MAX_CHUNK_RECORDS, framed(Kind.CONSTANT, column))


def constant_bomb() -> bytes:
    one = framed(Kind.CONSTANT, framed(Kind.INT8, b"\x01"))
    return chunk(MAX_CHUNK_RECORDS, framed(Kind.TUPLES, FIELDS.pack(255), *[one] * 255))


def nested_constants() -> bytes:
    column = framed(Kind.INT8, b"\x01")
    for _ in range(199):
        column = framed(Kind.CONSTANT, column)
    return of_constant(column)


def constant_dicts() -> bytes:
    one = framed(Kind.CONSTANT, framed(Kind.INT8, b"\x01"))
    return chunk(
        MAX_CHUNK_RECORDS,
        framed(Kind.DICTS, FIELDS.pack(200), framed(Kind.INT8, bytes(range(1, 101)) * 2), *[one] * 200),
    )


def arrow_bomb() -> bytes:
    """Return a batch of a billion zeros, compressed to a few kilobytes."""
    out = io.BytesIO()
    schema = pyarrow.schema([("", pyarrow.int64())])
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(out, schema, options=options) as writer:
        writer.write_batch(
            pyarrow.record_batch([pyarrow.array(memoryview(bytes(8 << 24)).cast("q"), pyarrow.int64())], schema=schema)
        )
    return chunk(MAX_CHUNK_RECORDS, framed(Kind.ARROW, out.getvalue()))


def arrow_cut() -> bytes:
    out = io.BytesIO()
    schema = pyarrow.schema([("", pyarrow.string())])
    with pyarrow.ipc.new_stream(out, schema) as writer:
        writer.write_batch(pyarrow.record_batch([["a", "b", "c"]], schema=schema))
    data = bytearray(out.getvalue())
    for place in range(len(data) - 80, len(data) - 20):
        data[place] = 0xFF  # offsets into nowhere
    return chunk(3, framed(Kind.ARROW, bytes(data)))


def pairs_message(num: int, compression: str | None = None) -> bytes:
    """The Arrow message of pairs of a text and a number, as producers send them."""
    schema = pyarrow.schema([("f0", pyarrow.string()), ("f1", pyarrow.int64())])
    batch = pyarrow.record_batch([["a"] * num, [0] * num], schema=schema)
    out = io.BytesIO()
    with pyarrow.ipc.new_stream(out, schema, options=pyarrow.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    reader = pyarrow.ipc.MessageReader.open_stream(pyarrow.py_buffer(out.getvalue()))
    reader.read_next_message()  # the schema
    data: bytes = reader.read_next_message().serialize().to_pybytes()
    return data


def of_message(data: bytes, num_records: int, flags: int = 0) -> bytes:
    return chunk(num_records, framed(Kind.BATCH, bytes((flags,)), data))


def deep_columns() -> bytes:
    column = framed(Kind.INT8, b"\x01")
    for _ in range(5000):
        column = framed(Kind.TUPLES, FIELDS.pack(1), column)
    return chunk(1, column)


def call(module: str, name: str, argument: str) -> bytes:
    text = argument.encode()
    return pickled(f"c{module}\n{name}\n".encode() + b"X" + struct.pack("<I", len(text)) + text + b"\x85R].")


def hostile_elements(proof: str) -> dict[str, Callable[[], bytes]]:
    """Return makers of hostile elements, by name: some take a second.  ``proof`` is a file that exists if code of ours
    ran.
    """
    touch = f"touch '{proof}'"
    runs = pickle.dumps([Runs(touch)])
    touching = framed(Kind.PICKLE, runs)
    return {
        "os.system": lambda: pickled(runs),
        "os.system in PICKLES": lambda: chunk(1, _pickles(pickle.dumps(Runs(touch)))),
        "os.system in a field": lambda: chunk(
            1, framed(Kind.TUPLES, FIELDS.pack(2), framed(Kind.TEXT, b"a"), touching)
        ),
        "os.system as a constant": lambda: chunk(9, framed(Kind.CONSTANT, touching)),
        "os.system as a key": lambda: chunk(1, touching + framed(Kind.INT8, b"\x01"), flags=2),
        "os.system as a time": lambda: chunk(1, touching + framed(Kind.INT8, b"\x01"), flags=1),
        "os.system as names": lambda: chunk(1, framed(Kind.ROWS, FIELDS.pack(1), touching, framed(Kind.INT8, b"\x01"))),
        "eval": lambda: call("builtins", "eval", f"__import__('os').system({touch!r})"),
        "exec": lambda: call("builtins", "exec", f"open({proof!r}, 'w')"),
        "posix.system": lambda: call("posix", "system", touch),
        "breakpoint": lambda: call("builtins", "__import__", "antigravity"),
        "cloudpickle": lambda: call("cloudpickle.cloudpickle", "subimport", "os"),
        "a class": lambda: chunk(1, _objects(b"cposix\nsystem\n")),
        "doubled tuples": lambda: pickled(doubled_key()),
        "colliding dict": lambda: pickled(colliding(b"\x80\x04]}(", b"N", b"ua.")),
        "colliding set": lambda: pickled(colliding(b"\x80\x04]\x8f(", b"", b"\x90a.")),
        "nested lists": lambda: pickled(b"\x80\x04]" + b"]" * _LEVELS + b"a" * _LEVELS + b"."),
        "nested tuples": lambda: pickled(b"\x80\x04])" + b"\x85" * _LEVELS + b"a."),
        "constants": constant_bomb,
        "constants in constants": nested_constants,
        "constant text": lambda: of_constant(framed(Kind.TEXT, b"x" * (1 << 20))),
        "constant list": lambda: of_constant(framed(Kind.PICKLE, pickle.dumps([[1] * 1000]))),
        "constant dicts": constant_dicts,
        # Texts whose sizes are one constant: negative, or beyond all bytes.
        "sizes": lambda: chunk(
            1000, framed(Kind.TEXT_SIZES, framed(Kind.CONSTANT, framed(Kind.INT64, struct.pack("<q", 1 << 40))), b"x")
        ),
        "negative sizes": lambda: chunk(2, framed(Kind.BYTES, framed(Kind.INT64, struct.pack("<qq", -5, 6)), b"x")),
        "arrow, compressed": arrow_bomb,
        "arrow, offsets": arrow_cut,
        "arrow message, compressed": lambda: of_message(pairs_message(MAX_CHUNK_RECORDS, "zstd"), MAX_CHUNK_RECORDS),
        "arrow message, lengths": lambda: of_message(
            pairs_message(2).replace(struct.pack("<2q", 2, 0), struct.pack("<2q", -1, 0)), 2
        ),
        "arrow message, offsets": lambda: of_message(
            pairs_message(2).replace(struct.pack("<3i", 0, 1, 2), struct.pack("<3i", 0, 1, 2**30)), 2
        ),
        "arrow message, kinds": lambda: of_message(pairs_message(2), 2, flags=1),
        "arrow message, nothing": lambda: of_message(b"", 1),
        "deep columns": deep_columns,
        # Small pickles that ask for gigabytes.
        "bytearray(2**30)": lambda: pickled(b"\x80\x04]cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x40\x00\x85Ra."),
        "memo of 2**30": lambda: pickled(b"\x80\x04]r\xff\xff\xff\x3f."),
        # In text: to read it takes the square of that.
        "a million digits": lambda: pickled(b"\x80\x04]I" + b"9" * 1_000_000 + b"\na."),
        "Decimal 1E+9999999999": lambda: pickled(b"\x80\x04]cdecimal\nDecimal\nX\x0d\x00\x00\x001E+9999999999\x85Ra."),
        "too few values": lambda: chunk(100, framed(Kind.INT8, b"\x01\x02\x03")),
        "too many values": lambda: chunk(1, framed(Kind.INT8, b"\x01\x02\x03")),
        "2^32-1 records": lambda: chunk(2**32 - 1, framed(Kind.CONSTANT, framed(Kind.INT8, b"\x01"))),
        "column beyond its chunk": lambda: element(
            CHUNK_HEADER.pack(TAG_CHUNK, 1, 0, 1) + struct.pack(">BI", Kind.INT8, 1 << 31)
        ),
        "unknown kind": lambda: chunk(1, framed(99, b"\x01")),
        "unknown codes": lambda: chunk(1, framed(Kind.CODED, struct.pack(">III", 7, 9, 0), b"\x05\x00")),
        "unknown array": lambda: chunk(1, framed(Kind.ARRAY, b"\xff\x01")),
        "offsets of 3 bytes": lambda: chunk(1, framed(Kind.OFFSETS, struct.pack(">qB", 0, 3), b"\x01\x02\x03")),
        "short texts of 0": lambda: chunk(5, framed(Kind.SHORT_TEXTS, b"\x00")),
        "broken msgpack": lambda: chunk(1, framed(Kind.PACKED, b"\xdd\xff\xff\xff\xff")),
        "deep msgpack": lambda: chunk(1, framed(Kind.PACKED, b"\x91" * 100_000)),
        "65535 fields": lambda: chunk(1, framed(Kind.TUPLES, FIELDS.pack(65535))),
        "no fields": lambda: chunk(1000, framed(Kind.TUPLES, FIELDS.pack(0))),
        "key field 200": lambda: chunk(1, b"\xc8" + framed(Kind.INT8, b"\x01"), flags=4),
        "all flags": lambda: chunk(1, framed(Kind.INT8, b"\x01") * 3, flags=255),
        "endless varint": lambda: element(b"\x01" + b"\xff" * 100_000),
        "single record": lambda: element(b"\x01" + b"\x00" * 8),
        "length 0": lambda: LENGTH.pack(0),
        "length -1": lambda: LENGTH.pack(-1),
        "length 2^31-1": lambda: LENGTH.pack(0x7FFFFFFF) + bytes(1000),
        "length, then nothing": lambda: LENGTH.pack(1000) + b"\x40",
        "unknown tag": lambda: element(b"\xee" + bytes(20)),
        "dictionary": lambda: element(b"\x41\x01" + b"\xff" * 50),
    }


def harmless_elements() -> list[bytes]:
    """Return elements that a gate ignores: a producer's watermarks say nothing."""
    serializer = StreamElementSerializer()
    return [serializer.serialize(Watermark(2**63 - 1)), serializer.serialize(WatermarkStatus(is_idle=True))]


def wrong_values() -> dict[str, list[Any]]:
    """Return plain values that are not of the type (text, number)."""
    return {
        "numbers": [1, 2, 3],
        "texts": ["a", "b"],
        "short tuples": [("a",)],
        "long tuples": [("a", 1, 2)],
        "swapped": [(1, "a")],
        "None": [None],
        "bool for a number": [("a", True)],
        "float for a number": [("a", 1.5)],
        "2^80": [("a", 2**80)],
        "bytes for a text": [(b"a", 1)],
        "lists": [["a", 1]],
        "dicts": [{"a": 1}],
        "a list in a field": [("a", [1])],
        "the last of a hundred": [("a", 1)] * 99 + [("a", "b")],
        "surrogates": [("\ud800", 1)],
    }


def of_values(values: list[Any]) -> bytes:
    return StreamElementSerializer().serialize(Chunk(values))


def mutated(random_numbers: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them changed, cut out or doubled."""
    changed = bytearray(data)
    for _ in range(random_numbers.randrange(1, 6)):
        place = random_numbers.randrange(len(changed))
        how: Callable[[], None] = random_numbers.choice(
            [
                lambda place=place: changed.__setitem__(place, random_numbers.randrange(256)),
                lambda place=place: changed.__setitem__(place, changed[place] ^ 1 << random_numbers.randrange(8)),
                lambda place=place: changed.__delitem__(slice(place, place + random_numbers.randrange(1, 9))),
                lambda place=place: changed.__setitem__(slice(place, place), changed[place : place + 8]),
            ]
        )
        how()
        if not changed:
            return b"\x00"
    return bytes(changed)


def _pickles(data: bytes) -> bytes:
    return framed(Kind.PICKLES, FIELDS.pack(0), framed(Kind.INT64, struct.pack("<q", len(data))), data)


def _objects(reference: bytes) -> bytes:
    head = FIELDS.pack(1) + framed(Kind.TEXT, b"x") + reference
    return framed(Kind.OBJECTS, struct.pack(">I", len(head)), head, framed(Kind.INT8, b"\x01"))
