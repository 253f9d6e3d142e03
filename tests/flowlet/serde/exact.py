"""Exact equality of records, however Python's ``==`` sees them."""

import math
import struct
from enum import IntEnum
from typing import Any

from hypothesis import strategies as st

from flowlet.common.types import Row
from flowlet.serde.column_reader import decode_column
from flowlet.serde.column_writer import encode_column


class Level(IntEnum):
    LOW = 1


class Name(str):
    """A str that is more than a str."""

    __slots__ = ()


class Count(int):
    """An int that is more than an int."""


_PLAIN = frozenset({int, str, bytes, bool, type(None)})  # most values


def exact(value: Any) -> Any:
    """Describe the value; descriptions are equal only for equal types, signs, bits and contents."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    match value:
        case float():
            return kind, struct.pack(">d", value)
        case tuple() | list():
            return kind, list(map(exact, value))
        case complex():
            return kind, struct.pack(">dd", value.real, value.imag)
        case dict():
            return kind, [(exact(key), exact(item)) for key, item in value.items()]
        case Row():
            return kind, exact(list(value))
        case _:
            return kind, value


CHARACTERS = st.characters(exclude_categories=())
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.inf, struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]])
BOUNDARIES = [
    sign * (1 << bits) + offset for bits in (7, 8, 15, 16, 31, 32, 63, 64) for offset in (-1, 0, 1) for sign in (-1, 1)
]
INTS = st.integers(-200, 200) | st.integers(-(2**70), 2**70) | st.sampled_from(BOUNDARIES)
TEXTS = st.text(CHARACTERS, max_size=5) | st.text(st.sampled_from("ab\0\ud83d\ude00😀é"), max_size=6)
ATOMS = {
    "int": INTS,
    "str": TEXTS,
    "float": FLOATS,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=5),
    "None": st.none(),
    "subclass": st.sampled_from([Level.LOW, Name("a"), Count(1), Name(""), Count(0)]),
}
ANY_ATOM = st.one_of(*ATOMS.values())
NESTED = st.recursive(
    ANY_ATOM,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=2)
        | inner.map(Row)
    ),
    max_leaves=6,
)


def round_trip(values: list[Any]) -> list[Any]:
    """Return the values of a column that was written in front of other bytes, and read."""
    data = encode_column(values)
    decoded, end = decode_column(memoryview(b"before" + data + b"behind"), 6, len(values))
    assert end == 6 + len(data)
    return list(decoded)


def columns() -> st.SearchStrategy[list[Any]]:
    """Lists of records: of one kind, of tuples of one shape, of constants, or of anything."""
    uniform = st.sampled_from(list(ATOMS.values())).flatmap(lambda kind: st.lists(kind, max_size=20))
    shapes = st.lists(st.sampled_from([*ATOMS.values(), st.tuples(INTS, TEXTS), st.just(1), st.just("x")]), max_size=4)
    tuples = shapes.flatmap(lambda kinds: st.lists(st.tuples(*kinds), max_size=20))
    constant = st.builds(lambda value, count: [value] * count, NESTED, st.integers(0, 20))
    return uniform | tuples | constant | st.lists(NESTED, max_size=8)
