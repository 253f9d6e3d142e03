"""``MemorySize``: a number of bytes, and its text.

Side:   pure.
Units:  bytes; a kilobyte has 1024.
Source: Flink ``MemorySize``, PyFlink ``pyflink.datastream.slot_sharing_group``.
"""

import re
from functools import total_ordering
from typing import Final, NoReturn

from flowlet.errors import ConfigError

__all__ = ["MemorySize", "parse_bytes"]

_TEXT: Final = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII)
_NAMES: Final = ("bytes", "kb", "mb", "gb", "tb")  # in texts that we write
_SHIFTS: Final = {
    label: 10 * power
    for power, labels in enumerate(("b bytes", "k kb kibibytes", "m mb mebibytes", "g gb gibibytes", "t tb tebibytes"))
    for label in labels.split()
} | {"": 0}


def parse_bytes(text: str) -> int:
    """The bytes of a size such as ``64 mb``; a number alone is bytes.  Raises ValueError: it is none."""
    found = _TEXT.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SHIFTS:
        raise ValueError(text)
    return int(found[1]) << _SHIFTS[found[2]]


@total_ordering
class MemorySize:
    """A size in bytes; immutable.  Raises ConfigError: it is no whole number of 0 or more."""

    __slots__ = ("_bytes",)

    def __init__(self, bytes_size: int | None = None) -> None:
        if not isinstance(bytes_size, int) or isinstance(bytes_size, bool) or bytes_size < 0:
            raise ConfigError(f"a memory size is a whole number of bytes, 0 or more, got {bytes_size!r}")
        self._bytes: int = bytes_size

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> "MemorySize":
        """A size in units of 1024 * 1024 bytes."""
        return MemorySize(MemorySize(mebi_bytes).get_bytes() << 20)

    @staticmethod
    def parse(text: str) -> "MemorySize":
        """A size such as ``64 mb``; not in PyFlink, but in Flink.  Raises ConfigError: it is none."""
        try:
            return MemorySize(parse_bytes(text))
        except ValueError:
            raise ConfigError(f"{text!r} is no size in bytes; write it as 1048576, 512 kb, 64 mb or 2 gb") from None

    @property
    def get_java_memory_size(self) -> NoReturn:
        """Raises AttributeError: there are no Java objects."""
        raise AttributeError(
            "'MemorySize' has no get_java_memory_size(): there are no Java objects here; use get_bytes()"
        )

    def get_bytes(self) -> int:
        """The size in bytes."""
        return self._bytes

    def get_kibi_bytes(self) -> int:
        """In units of 1024 bytes, rounded down."""
        return self._bytes >> 10

    def get_mebi_bytes(self) -> int:
        """In units of 1024^2 bytes, rounded down."""
        return self._bytes >> 20

    def get_gibi_bytes(self) -> int:
        """In units of 1024^3 bytes, rounded down."""
        return self._bytes >> 30

    def get_tebi_bytes(self) -> int:
        """In units of 1024^4 bytes, rounded down."""
        return self._bytes >> 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __lt__(self, other: "MemorySize") -> bool:
        return self._bytes < other._bytes

    def __str__(self) -> str:
        """In the largest unit that gives a whole number; whole terabytes in bytes, as Flink writes them."""
        power = next((each - 1 for each in range(1, len(_NAMES)) if self._bytes % (1 << 10 * each)), 0)
        return f"{self._bytes >> 10 * power} {_NAMES[power]}"

    def __repr__(self) -> str:
        return f"MemorySize({self._bytes})"
