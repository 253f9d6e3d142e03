import math
import pickle
import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.datastream.window import CountWindow, GlobalWindow, TimeWindow
from flowlet.keys.exact_keys import NamespacedKey, are_plain, exact_key, exact_keys, key_bytes, key_group, key_hash
from tests.flowlet.keys_of_every_type import Color, Level, Money, Place, Point
from tests.names import stable_repr

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]


class LyingStr(str):
    """Equals everything, which must not matter."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


JAVA_HASHES: list[tuple[Any, int]] = [
    (1.0, 1072693248),
    (0.0, 0),
    (-0.0, -2147483648),
    (math.nan, 2146959360),
    (NAN_WITH_PAYLOAD, 2146959360),
    (math.inf, 2146435072),
    (True, 1231),
    (False, 1237),
    (b"", 1),
    (b"\x01", 32),
    (b"\xff", 30),
    (b"\x01\x02", 994),
    (2**31, -2147483648),
    (-(2**31) - 1, -2147483648),
    (2**63 - 1, -2147483648),
    (-(2**63), -2147483648),
    (2**63, -2147483648),  # BigInteger: words 0x80000000, 0 -> 31 * -2^31
    (2**64, 961),
    (-(2**64), -961),
    ((), 0),
    ((1,), 1),
    ((1, 2), 33),
    ((1, None), 31),
    ((1, (2, "a")), 31 + 2 * 31 + 97),
    (None, 0),
    ([], 1),
    ([1, None], (31 + 1) * 31),
    (frozenset({"a", 1}), 97 + 1),
]


@pytest.mark.parametrize(("key", "code"), JAVA_HASHES, ids=[stable_repr(row[0]) for row in JAVA_HASHES])
def test_other_types_hash_as_in_java(key: Any, code: int) -> None:
    assert key_hash(key) == code


@given(st.text(st.characters(exclude_categories=()), max_size=200) | st.text("ab", min_size=60, max_size=70))
def test_the_hash_of_a_text_is_the_polynomial_over_its_utf16_units(text: str) -> None:
    """The rule holds for short and long texts alike, lone surrogates included."""
    data = text.encode("utf-16-be", "surrogatepass")
    expected = 0
    for (unit,) in struct.iter_unpack(">H", data):
        expected = (expected * 31 + unit) & 0xFFFFFFFF

    assert key_hash(text) & 0xFFFFFFFF == expected


@pytest.mark.parametrize("length", [63, 64, 65, 4095, 4096, 4097, 10_000])
def test_long_texts_and_bytes_hash_as_if_unit_by_unit(length: int) -> None:
    text = "".join(chr(0x20 + i * 7 % 5000) for i in range(length))
    expected_text, expected_bytes = 0, 1
    for character in text:
        expected_text = (expected_text * 31 + ord(character)) & 0xFFFFFFFF
        byte = ord(character) % 256
        expected_bytes = (expected_bytes * 31 + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF

    assert key_hash(text) & 0xFFFFFFFF == expected_text
    assert key_hash(bytes(ord(character) % 256 for character in text)) & 0xFFFFFFFF == expected_bytes


DISTINCT: list[Any] = [
    *(1, 1.0, True, (1,), (1.0,), (True,)),
    *(0, 0.0, -0.0, False, (0,), (0.0,), (-0.0,)),
    *("", b"", (), ("",), ((),), "1", b"1", math.nan, (None,), (None, None), ((1, 2), 3), (1, (2, 3))),
    *(None, [], [None], [1], [1.0], [(1,)], ([1],)),
    *(frozenset(), frozenset({1}), frozenset({1.0}), Decimal(1), Decimal(0)),
]


def test_keys_that_python_calls_equal_stay_apart() -> None:
    """Each key of the list has a stand-in of its own."""
    assert len({exact_key(key) for key in DISTINCT}) == len(DISTINCT)


def test_all_nans_are_one_key() -> None:
    assert exact_key(NAN_WITH_PAYLOAD) == exact_key(math.nan) == exact_key(-math.nan)


@pytest.mark.parametrize(
    "key", ["a", 7, -1, 2**100, b"x", ("a", 7, (b"x",)), None, date(2024, 1, 1), timedelta(1), time(1)], ids=stable_repr
)
def test_plain_keys_are_their_own_stand_ins(key: Any) -> None:
    assert exact_key(key) == key
    assert type(exact_key(key)) is type(key)


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (np.str_("a"), "a"),
        (np.float64(1.5), 1.5),
        (Point(1, "a"), (1, "a")),
        (Place("a", 1), ("a", 1)),
        (Money(5), 5),
        (LyingStr("a"), "a"),
        (np.bytes_(b"a"), b"a"),
    ],
    ids=stable_repr,
)
def test_instances_of_subclasses_are_the_key_that_they_hold(key: Any, plain: Any) -> None:
    """So are enums of texts and numbers.  The ``__eq__`` and ``__hash__`` of a subclass that holds nothing more are not
    asked.
    """
    assert exact_key(key) == exact_key(plain)
    assert type(exact_key(key)) is type(exact_key(plain))
    assert key_hash(key) == key_hash(plain)


@pytest.mark.parametrize(
    ("keys", "plain"),
    [
        ([], True),
        (["a", "b"], True),
        ([1, "a", b"c"], True),
        ([1, True], False),
        ([1.0], False),
        ([("a",)], False),
        ([Color.RED], False),
        (["a", None], False),
    ],
)
def test_are_plain(keys: list[Any], plain: bool) -> None:
    assert are_plain(keys) is plain


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b"],
        [1, "a"],
        [("a", 1), ("b",), (), (None, date(2024, 1, 1))],
        [None, None],
        ["a", None, date(2024, 1, 1)],
        [date(2024, 1, 1)],
        [datetime(2024, 1, 1), datetime(2024, 1, 2)],  # noqa: DTZ001 - without a time zone
    ],
    ids=stable_repr,
)
def test_plain_keys_are_not_copied(keys: list[Any]) -> None:
    assert exact_keys(keys) is keys


@pytest.mark.parametrize("key", ["a", 7, None, 1.5, ("a", True)])
def test_the_key_group_is_that_of_the_key(key: object) -> None:
    named = NamespacedKey(key, TimeWindow(0, 10))

    assert key_hash(named) == key_hash(key)
    assert key_group(named, 128) == key_group(key, 128)


def test_keys_and_namespaces_are_told_apart_by_their_types_too() -> None:
    keys = [1, 1.0, True]
    namespaces = [TimeWindow(0, 10), TimeWindow(0, 11), CountWindow(0), GlobalWindow.get(), None]

    exact = [exact_key(NamespacedKey(key, namespace)) for key in keys for namespace in namespaces]

    assert len(set(exact)) == len(exact)
    assert len({key_bytes(each) for each in exact}) == len(exact)
    assert not set(exact) & set(map(exact_key, keys))


def test_it_is_the_same_key_after_pickling() -> None:
    named = NamespacedKey(("a", 1), TimeWindow(0, 10))

    copy = pickle.loads(pickle.dumps(named))

    assert copy == named
    assert exact_key(copy) == exact_key(named)
    assert repr(copy) == "NamespacedKey(('a', 1), TimeWindow(start=0, end=10))"
