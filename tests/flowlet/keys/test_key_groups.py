"""Keys go to the key groups and subtasks to which they go in Flink."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.graph.partitioner import default_max_parallelism
from flowlet.keys.exact_keys import key_group, key_group_range, key_hash, operator_index
from tests.names import stable_repr

# key, hash, key group of 128, key group of 4096, subtask of (128, 4), subtask of (128, 3)
GOLDEN: list[tuple[Any, int, int, int, int, int]] = [
    (0, 0, 94, 2526, 2, 2),
    (1, 1, 86, 4054, 2, 2),
    (2, 2, 127, 2943, 3, 2),
    (3, 3, 113, 2417, 3, 2),
    (4, 4, 7, 263, 0, 0),
    (42, 42, 29, 3613, 0, 0),
    (100, 100, 64, 576, 2, 1),
    (1000, 1000, 7, 135, 0, 0),
    (12345, 12345, 1, 3585, 0, 0),
    (123456789, 123456789, 81, 2385, 2, 1),
    (2147483647, 2147483647, 62, 3262, 1, 1),
    (-1, -1, 80, 2896, 2, 1),
    (-42, -42, 96, 352, 3, 2),
    (-2147483648, -2147483648, 108, 2156, 3, 2),
    (4294967296, 1, 86, 4054, 2, 2),
    ("", 0, 94, 2526, 2, 2),
    ("a", 97, 81, 3025, 2, 1),
    ("b", 98, 22, 1174, 0, 0),
    ("key", 106079, 72, 3016, 2, 1),
    ("hello", 99162322, 35, 2723, 1, 0),
    ("world", 113318802, 66, 3394, 2, 1),
    ("flink", 97520992, 98, 226, 3, 2),
    ("apache", -1411517106, 97, 3809, 3, 2),
    ("user-42", -147182656, 20, 3732, 0, 0),
    ("水位线", 27281478, 50, 3890, 1, 1),
    ("😀", 1772899, 54, 3254, 1, 1),
]


@pytest.mark.parametrize(
    ("key", "code", "group", "group_of_4096", "of_4", "of_3"), GOLDEN, ids=[stable_repr(row[0]) for row in GOLDEN]
)
def test_keys_go_where_they_go_in_flink(
    key: Any, code: int, group: int, group_of_4096: int, of_4: int, of_3: int
) -> None:
    """Hash, key group and subtask of Flink's own assignment."""
    assert key_hash(key) == code
    assert key_group(key, 128) == group
    assert key_group(key, 4096) == group_of_4096
    assert operator_index(group, 128, 4) == of_4
    assert operator_index(group, 128, 3) == of_3


# hash, murmur; the first one is the published vector of four zero bytes, 0x2362F9DE.
MURMUR = [
    (0, 593689054),
    (1, 68075478),
    (2, 1085422463),
    (3, 847579505),
    (4, 1889779975),
    (42, 1134849565),
    (100, 616682048),
    (1000, 3506311),
    (12345, 638799361),
    (123456789, 1088346449),
    (2147483647, 1653689534),
    (-1, 1982413648),
    (-42, 189366624),
    (-2147483648, 1718298732),
    (97, 1455541201),
    (98, 516420758),
    (106079, 801471432),
    (99162322, 1715862179),
    (113318802, 2116508994),
    (97520992, 1330823394),
    (-1411517106, 1509793505),
    (-147182656, 1600933524),
    (27281478, 862592818),
    (1772899, 1934073014),
    (1072693248, 1409882055),
]


@pytest.mark.parametrize(("code", "mixed"), MURMUR)
def test_the_murmur_of_flink(code: int, mixed: int) -> None:
    """The group of an int is its murmur, never negative, if there are as many key groups as numbers."""
    assert key_hash(code) == code
    assert key_group(code, 1 << 31) == mixed


def test_the_group_of_a_float() -> None:
    assert key_group(1.0, 128) == 71


def test_a_murmur_hash_without_a_positive_counterpart_becomes_group_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """-2**31 cannot be negated in 32 bits; Flink makes it 0, and every other negative one positive."""
    monkeypatch.setattr("flowlet.keys.exact_keys._murmur", lambda data, seed: -(2**31))
    assert key_group("any", 100) == 0

    monkeypatch.setattr("flowlet.keys.exact_keys._murmur", lambda data, seed: -203)
    assert key_group("any", 100) == 3


def test_groups_are_the_same_in_another_process() -> None:
    """Python's own hash of a str is salted."""
    program = (
        "from flowlet.keys.exact_keys import key_group; print(key_group('user-42', 128), key_group(('a', 1.5), 128))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert printed.split() == [str(key_group("user-42", 128)), str(key_group(("a", 1.5), 128))]


RANGES = {
    (128, 3): [(0, 42), (43, 85), (86, 127)],
    (128, 5): [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)],
    (10, 3): [(0, 3), (4, 6), (7, 9)],
    (32768, 7): [
        (0, 4681),
        (4682, 9362),
        (9363, 14043),
        (14044, 18724),
        (18725, 23405),
        (23406, 28086),
        (28087, 32767),
    ],
}


@pytest.mark.parametrize(("max_parallelism", "parallelism"), RANGES)
def test_key_group_ranges(max_parallelism: int, parallelism: int) -> None:
    ranges = [key_group_range(max_parallelism, parallelism, subtask) for subtask in range(parallelism)]

    assert [(groups[0], groups[-1]) for groups in ranges] == RANGES[max_parallelism, parallelism]


@given(st.integers(1, 500), st.data())
def test_a_group_belongs_to_the_subtask_in_whose_range_it_is(max_parallelism: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, max_parallelism))
    group = data.draw(st.integers(0, max_parallelism - 1))

    owners = [
        subtask for subtask in range(parallelism) if group in key_group_range(max_parallelism, parallelism, subtask)
    ]

    assert owners == [operator_index(group, max_parallelism, parallelism)]


DEFAULTS = {
    1: 128,
    85: 128,
    86: 256,
    170: 256,
    171: 256,
    200: 512,
    341: 512,
    342: 1024,
    1000: 2048,
    21845: 32768,
    40000: 32768,
}


@pytest.mark.parametrize(("parallelism", "expected"), DEFAULTS.items())
def test_default_max_parallelism(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected
