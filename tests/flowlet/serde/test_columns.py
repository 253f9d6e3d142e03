import contextlib
import math
import struct
import threading
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import SerdeError
from flowlet.serde import column_writer as module
from flowlet.serde.column_reader import decode_column
from flowlet.serde.column_writer import encode_column
from flowlet.serde.column_writer import framed as column
from tests.flowlet.serde.exact import Level, columns, exact, round_trip


@given(columns())
def test_values_come_back_exactly(values: list[Any]) -> None:
    """Types, signs, NaN bits, lone surrogates and nesting come back as they went in."""
    assert exact(round_trip(values)) == exact(values)


@given(st.lists(st.integers(), min_size=1), st.integers(1, 70))
def test_integers_come_back_whatever_their_width(values: list[int], repeat: int) -> None:
    """The integers are around every boundary between widths, in columns long enough to be narrowed."""
    values = values * repeat

    assert exact(round_trip(values)) == exact(values)


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [
        (-128, 127, 1),
        (-129, 127, 2),
        (-128, 128, 2),
        (-32768, 32767, 2),
        (-32769, 32767, 4),
        (-(2**31), 2**31 - 1, 4),
        (-(2**31) - 1, 2**31 - 1, 8),
        (-(2**63), 2**63 - 1, 8),
    ],
)
def test_integers_take_no_more_bytes_than_they_need(low: int, high: int, width: int) -> None:
    assert len(encode_column([low, high] * 50)) == 5 + 100 * width
    assert round_trip([low, high] * 50) == [low, high] * 50


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [
        (0, 255, 1),
        (-(2**63), -(2**63) + 255, 1),
        (2**63 - 256, 2**63 - 1, 1),
        (100_000, 100_256, 2),
        (-(2**40), -(2**40) + 65535, 2),
        (2**63 - 65537, 2**63 - 1, 4),
        (-5, 2**32 - 6, 4),
    ],
)
def test_integers_that_lie_close_together_are_sent_as_offsets(low: int, high: int, width: int) -> None:
    """A few are sent without a base."""
    assert len(encode_column([high, low] * 50)) == 5 + 9 + 100 * width
    assert round_trip([high, low] * 50) == [high, low] * 50
    assert len(encode_column([2**40, 2**40 + 1] * 7)) == 5 + 14 * 8


@pytest.mark.parametrize("value", [1, "word", b"bytes", True, False, None, -(2**63)], ids=repr)
def test_a_constant_is_sent_once(value: Any) -> None:
    assert len(encode_column([value] * 10_000)) < 50
    assert exact(round_trip([value] * 10_000)) == exact([value] * 10_000)


@pytest.mark.parametrize(
    "values",
    [
        [1, True, 1],
        [1, 1.0, 1],
        [0.0, -0.0, 0.0],
        [True, 1, True],
        [1, Level.LOW, 1],
        ["a", None, "a"],
        [None, 0, None],
        [math.nan, 1.0, math.nan],
    ],
    ids=repr,
)
def test_equal_ends_do_not_make_a_constant(values: list[Any]) -> None:
    """Values that Python calls equal may differ, so a column with equal ends is sent value by value."""
    assert exact(round_trip(values)) == exact(values)


def test_a_plain_list_of_pairs_is_small() -> None:
    """The column has no type or size per record: 5 letters and a separator, and one constant."""
    assert len(encode_column([(f"w{i:04}", 1) for i in range(1000)])) < 1000 * 6 + 60


@pytest.mark.parametrize(
    "values",
    [
        ["a\0b", "c"],
        ["\0", ""],
        ["", "", "\0"],
        ["", ""],
        [""],
        ["\0"],
        ["\ud83d", "\ude00"],
        ["\ud83d\ude00", "\0\udfff"],
    ],
    ids=ascii,
)
def test_texts_with_nul_or_lone_surrogates(values: list[str]) -> None:
    assert round_trip(values) == values


def test_tuples_of_different_lengths_and_deep_ones() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = (deep, "x")
    for values in ([(1,), (1, 2)], [(), ()], [(), (1,)], [deep, deep], [tuple(range(300))] * 2):
        assert exact(round_trip(values)) == exact(values)


def test_functions_and_local_classes_can_be_sent() -> None:
    """Such objects go by value: the receiver need not have the user's module."""

    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    add, local = round_trip([lambda x: x + 1, Local(3)])

    assert add(1) == 2
    assert local.x == 3


def test_a_value_that_cannot_be_pickled_is_named_by_its_type() -> None:
    with pytest.raises(SerdeError, match="values of type int, lock cannot be pickled"):
        encode_column([1, threading.Lock()])


def test_mutable_records_are_copied_but_what_they_share_in_a_column_stays_shared() -> None:
    """This is the documented limit of pickling a column at once."""
    shared: list[int] = []

    first, second = round_trip([shared, shared])

    assert first is second
    assert first is not shared


@pytest.mark.parametrize("num_values", [1, 16, 17])
def test_a_few_plain_tuples_are_packed(num_values: int) -> None:
    values = [(number, "x", 1.5, None, True, b"y") for number in range(num_values)]

    data = encode_column(values)

    assert data[0] == (module.Kind.PACKED if num_values <= 16 else module.Kind.TUPLES)
    assert exact(round_trip(values)) == exact(values)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, "\ud800", (1,), Level.LOW, [1], {1: 2}])
def test_what_packing_would_change_or_refuse_is_not_packed(value: Any) -> None:
    values = [(1, value)]

    assert encode_column(values)[0] == (module.Kind.PACKED if value == 2**63 else module.Kind.TUPLES)
    assert exact(round_trip(values)) == exact(values)


CORRUPT = {
    "packed tuples cut short": (column(module.Kind.PACKED, b"\x91\x92\x01"), 1),
    "packed tuples that promise 4,294,967,295": (column(module.Kind.PACKED, b"\xdd\xff\xff\xff\xff"), 1),
    "packed something else": (column(module.Kind.PACKED, b"\x81\x01\x01"), 1),
    "packed tuples with a rest": (column(module.Kind.PACKED, b"\x91\x91\x01\x01"), 1),
    "packed text that is not UTF-8": (column(module.Kind.PACKED, b"\x91\x91\xa1\xff"), 1),
    "unknown kind": (column(99, b""), 1),
    "ends behind the chunk": (struct.pack(">BI", module.Kind.TEXT, 100) + b"abc", 1),
    "too few texts": (column(module.Kind.TEXT, b"a\0b"), 3),
    "too many texts": (column(module.Kind.TEXT, b"a\0b"), 1),
    "not UTF-8": (column(module.Kind.TEXT, b"\xff"), 1),
    "no multiple of the width": (column(module.Kind.INT32, b"\0" * 7), 2),
    "too few integers": (column(module.Kind.INT16, b"\0" * 4), 3),
    "a truth value of 2": (column(module.Kind.BOOL, b"\2"), 1),
    "a constant with a rest": (column(module.Kind.CONSTANT, encode_column([1]) + b"x"), 5),
    "a constant of two values": (column(module.Kind.CONSTANT, encode_column([1, 2])), 5),
    "no header": (b"\1\0", 1),
    "tuples with a rest": (column(module.Kind.TUPLES, struct.pack(">H", 1) + encode_column([1]) + b"x"), 1),
    "tuples without their number of fields": (column(module.Kind.TUPLES, b"\0"), 1),
    "a pickle of something else": (column(module.Kind.PICKLE, cloudpickle.dumps((1,))), 1),
    "a broken pickle": (column(module.Kind.PICKLE, b"\x80\x05garbage"), 1),
    "sizes beyond the text": (column(module.Kind.TEXT_SIZES, encode_column([1, 5]) + b"ab"), 2),
    "negative sizes": (column(module.Kind.BYTES, encode_column([3, -1]) + b"ab"), 2),
    "sizes that are none": (column(module.Kind.BYTES, encode_column([True, True]) + b"ab"), 2),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupt_column_is_refused(name: str) -> None:
    """The errors are those that the deserializer expects."""
    data, num_values = CORRUPT[name]

    with pytest.raises((SerdeError, ValueError, struct.error)):
        decode_column(memoryview(data), 0, num_values)


@pytest.mark.parametrize("kind", [module.Kind.CONSTANT, module.Kind.BYTES, module.Kind.TUPLES])
def test_columns_nested_without_end_are_refused(kind: int) -> None:
    """The column is refused before the stack runs out."""
    data = encode_column([1])
    for _ in range(5_000):
        data = column(kind, (struct.pack(">H", 1) if kind == module.Kind.TUPLES else b"") + data)

    with pytest.raises(
        SerdeError,
        match="1 sizes in a column of kind 10" if kind == module.Kind.BYTES else "columns in more than 6 columns",
    ):
        decode_column(memoryview(data), 0, 1)


@given(columns(), st.data())
def test_damaged_columns_raise_only_the_documented_errors(values: list[Any], data: st.DataObject) -> None:
    encoded = bytearray(encode_column(values))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(encoded)))

    with contextlib.suppress(SerdeError, ValueError, struct.error):
        decode_column(memoryview(encoded)[:size], 0, len(values))
