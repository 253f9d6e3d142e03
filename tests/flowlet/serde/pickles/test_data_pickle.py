"""Pickles from those who may send plain values alone."""

import contextlib
import datetime
import decimal
import functools
import os
import pickle
import struct
import tracemalloc
import uuid
from collections import OrderedDict
from typing import Any

import cloudpickle
import pytest

from flowlet.common import types as common_types
from flowlet.common.time import Instant
from flowlet.common.types import Row, RowKind
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.serde.pickles.data_pickle import load_values, plain_values_alone

PLAIN = [
    None,
    True,
    10**30,
    -0.0,
    "text",
    b"bytes",
    bytearray(b"b"),
    (1, [2], {"three": {4}}),
    frozenset({5}),
    1j,
    OrderedDict(a=1),
    Row(user="a", clicks=None),
    Instant(1, 2),
    datetime.date(2026, 1, 2),
    datetime.time(1, 2, 3, 4),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.timedelta(1, 2, 3),
    decimal.Decimal("1.50"),
    uuid.UUID(int=7),
]


class Call:
    """Rebuilt by a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def payload_of(values: list[Any]) -> memoryview:
    return memoryview(cloudpickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL))


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_are(value: object) -> None:
    with plain_values_alone():
        [found] = load_values(payload_of([value]))

    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize(
    "value",
    [Call(os._exit, 3), Call(getattr, datetime, "sys"), Call(eval, "1"), Call(__import__, "os"), lambda: 1, type("Own", (), {})()],
    ids=["a call", "a look-up", "eval", "an import", "a function", "an object"],
)
def test_nothing_else_is_built(value: object) -> None:
    with plain_values_alone(), pytest.raises(SerdeError, match="is no plain value, and this sender may send nothing else"):
        load_values(payload_of([value]))


def test_the_restriction_ends_with_its_block() -> None:
    with pytest.raises(SerdeError), plain_values_alone():
        load_values(payload_of([print]))
    assert load_values(payload_of([print])) == [print]


def test_a_channel_of_a_stranger_refuses_and_another_one_takes() -> None:
    """Also where the object is deep inside of records."""
    data = StreamElementSerializer().serialize(Chunk([(1, ("a", [print]))]))
    with pytest.raises(SerdeError, match=r"gate: corrupt stream .*builtins\.print is no plain value"):
        ElementDeserializer("gate", is_sender_trusted=False).feed(memoryview(data))
    [chunk] = ElementDeserializer("channel").feed(memoryview(data))
    assert isinstance(chunk, Chunk)
    assert chunk.values == [(1, ("a", [print]))]


def _pickled(body: bytes) -> memoryview:
    return memoryview(pickle.PROTO + b"\x04" + body + pickle.STOP)


_ATTRIBUTE = b"}\x8c\x05pwned\x8c\x03yess"  # {"pwned": "yes"}


@pytest.mark.parametrize(
    "target",
    [
        b"cflowlet.common.time\nInstant\n",
        b"cflowlet.common.types\n_restore\n",
        b"cuuid\nUUID\n",
        b"cflowlet.common.types\nRowKind\nK\x00\x85R",
    ],
    ids=["a class", "a function", "UUID", "a member of an enum"],
)
@pytest.mark.parametrize("state", [_ATTRIBUTE, b"N" + _ATTRIBUTE + b"\x86"], ids=["a state", "slots"])
@pytest.mark.parametrize("padding", [b"", b"\x8c\x05rrrrr0"], ids=["short", "with text"])
def test_a_stranger_changes_nothing_of_this_process(target: bytes, state: bytes, padding: bytes) -> None:
    """A pickle's BUILD sets attributes: of whatever it got hold of."""
    with plain_values_alone(), contextlib.suppress(Exception):
        load_values(_pickled(padding + target + state + b"b"))

    assert not any(hasattr(each, "pwned") for each in (Instant, common_types._restore, uuid.UUID, RowKind.INSERT, functools.partial))


@pytest.mark.parametrize(
    "body",
    [b"]r" + struct.pack("<I", 8_000_000), b"]p8000000\n", b"]p +8_000_000\n"],
    ids=["LONG_BINPUT", "PUT", "PUT with signs"],
)
def test_a_few_bytes_take_no_memory_for_a_memo(body: bytes) -> None:
    """C's unpickler makes its memo twice as large as the greatest index that it is given: here 122 MiB, at most 64 GiB."""
    tracemalloc.start()
    try:
        with plain_values_alone():
            assert load_values(_pickled(body)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R",
        b"\x96" + struct.pack("<Q", 1 << 30),
        b"\x8c\x05rrrrr0\x96" + struct.pack("<Q", 1 << 30),
    ],
    ids=["a call", "BYTEARRAY8", "BYTEARRAY8 in Python"],
)
def test_a_bytearray_is_not_larger_than_what_was_sent(body: bytes) -> None:
    with plain_values_alone(), pytest.raises((SerdeError, pickle.UnpicklingError)):
        load_values(_pickled(body))


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_beside_text_that_looks_like_an_instruction_come_back_too(value: object) -> None:
    values = ["perrrrr", value, bytearray(b"prrrrrr"), Row(kind="rrrrr")]
    with plain_values_alone():
        assert repr(load_values(payload_of(values))) == repr(values)


ENDLESS = 500_000  # levels; C's stack bears some 130,000
_ROW = b"cflowlet.common.types\n_restore\n"
_INSERT = b"cflowlet.common.types\nRowKind\nK\0\x85R"


@pytest.mark.parametrize(
    "body",
    [
        b"]}" + b")" + b"\x85" * ENDLESS + b"Nsa",
        b"]\x8f(" + b")" + b"\x85" * ENDLESS + b"\x90a",
        b"]}" + b"(" * ENDLESS + b"t" * ENDLESS + b"Nsa",
        b"]}" + b")" + b"N\x86" * ENDLESS + b"Nsa",
        b"]" + b")" + b"\x85" * ENDLESS + b"a",
        b"]" * ENDLESS + b"a" * (ENDLESS - 1),
        b"]}" + (_ROW + b"N](") * 3000 + b"N" + (b"e" + _INSERT + b"\x87R") * 3000 + b"Nsa",
        b"]q\0h\0a",
        b"]" + b")" + b"2\x86" * 200 + b"a",
    ],
    ids=["key", "set", "marks", "pairs", "tuples", "lists", "rows", "itself", "shared"],
)
def test_what_is_nested_without_end_is_refused(body: bytes) -> None:
    """Neither hashed on the way, which would end the process, nor given to anybody who would have to call itself for each level."""
    with plain_values_alone(), pytest.raises(SerdeError, match="nested more than 100 deep"):
        load_values(_pickled(body))


@pytest.mark.parametrize("depth", [99, 100])
@pytest.mark.parametrize("num_tuples", [1, 25_000], ids=["fast", "careful"])
def test_nesting_is_counted_the_same_whoever_reads(depth: int, num_tuples: int) -> None:
    """The list of values is the first level."""
    nested: Any = 1
    for _ in range(depth):
        nested = (nested,)
    values = [nested, *[(number, number) for number in range(num_tuples)], {(1, 2): Row(Row((3,)))}]

    with plain_values_alone():
        if depth < 100:
            assert load_values(payload_of(values)) == values
        else:
            with pytest.raises(SerdeError, match="nested more than 100 deep"):
                load_values(payload_of(values))


def test_a_row_that_was_read_has_a_list_of_its_own() -> None:
    """Nobody adds to it later, such as the row itself."""
    names, kind = b"N", _INSERT
    body = b"]q\0" + _ROW + names + b"]q\1" + kind + b"\x87R" + b"q\2ah\1h\2a0"

    with plain_values_alone():
        [row] = load_values(_pickled(body))

    assert list(row) == []
