"""Sizes in bytes and their texts."""

import pytest

from flowlet.common.written_values import MemorySize, parse_bytes
from flowlet.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("10 b", 10),
        ("512kb", 512 << 10),
        ("64 mb", 64 << 20),
        ("64M", 64 << 20),
        ("2 gibibytes", 2 << 30),
        ("1 t", 1 << 40),
    ],
)
def test_texts_of_sizes(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == MemorySize.parse(text).get_bytes() == num_bytes


@pytest.mark.parametrize("text", ["", "mb", "-1", "1.5 mb", "1 pb", "1 mb mb"])
def test_texts_of_something_else(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no size in bytes; write it as 1048576, 512 kb, 64 mb or 2 gb"):
        MemorySize.parse(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 kb"),
        (1025, "1025 bytes"),
        (64 << 20, "64 mb"),
        (3 << 30, "3 gb"),
        (1 << 40, "1099511627776 bytes"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_gives_a_whole_number(num_bytes: int, text: str) -> None:
    assert str(MemorySize(num_bytes)) == text


def test_units_are_rounded_down_and_sizes_are_ordered() -> None:
    size = MemorySize((5 << 30) + 1)

    units = size.get_kibi_bytes(), size.get_mebi_bytes(), size.get_gibi_bytes(), size.get_tebi_bytes()
    assert units == (5 << 20, 5 << 10, 5, 0)
    assert MemorySize.of_mebi_bytes(1) == MemorySize(1 << 20)
    assert MemorySize(1) < MemorySize(2) <= MemorySize(2)
    assert len({MemorySize(1), MemorySize(1), MemorySize(2)}) == 2
    assert MemorySize(1) != 1


@pytest.mark.parametrize("given", [None, -1, 1.5, True, "1"])
def test_only_whole_numbers_are_sizes(given: object) -> None:
    with pytest.raises(ConfigError, match="a memory size is a whole number of bytes"):
        MemorySize(given)  # type: ignore[arg-type]
