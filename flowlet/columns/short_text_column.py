"""Texts of at most 16 ASCII characters: in arrays with 16 bytes for each, and as a column.

Hot path: C code per column; numpy moves and compares such texts as if they were numbers (``bench shuffle``).

Side:       pure.
Invariants: behind the end of a text are NULs, and none is its last character; so two texts are equal exactly if all 16
            bytes are.
Absent:     other and longer texts: the makers of columns keep them in lists.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.column import Column, IndexArray, MaskArray

Packed16Array = NDArray[np.uint64]  # two integers for each text

PACKED16_BYTES: Final = 16
PACKED16: Final = np.dtype(np.complex128)  # only because numpy moves its 16 bytes at once; never computed with
_TEXT: Final = np.dtype(f"S{PACKED16_BYTES}")  # gives the bytes without the NULs behind them
# Odd multipliers whose upper halves depend on all bits (Fibonacci hashing; the second one is that of MurmurHash3's
# finalizer).
_FIRST_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR: Final = np.uint64(0xFF51AFD7ED558CCD)
_HALF: Final = np.uint64(32)
# Different in each process, as Python's hashes of texts are: so an attacker cannot choose texts that collide in tables.
_FIRST_SEED, _SECOND_SEED = (np.uint64(hash(name) & 0xFFFFFFFFFFFFFFFF) for name in ("first", "second"))


def take_packed16(packed16: Packed16Array, indices: NDArray[Any]) -> Packed16Array:
    """The texts at these positions."""
    return packed16.view(PACKED16)[:, 0].take(indices).view(np.uint64).reshape(-1, 2)


def differ(packed16: Packed16Array, others: Packed16Array) -> MaskArray:
    """A mask of the positions at which the texts differ."""
    is_other: MaskArray = packed16[:, 0] != others[:, 0]
    is_other |= packed16[:, 1] != others[:, 1]
    return is_other


def mixed(packed16: Packed16Array) -> NDArray[np.uint64]:
    """A number for each text; its upper bits serve as a place in a table of this process."""
    mixed = packed16[:, 0] ^ _FIRST_SEED
    mixed *= _FIRST_FACTOR
    second = packed16[:, 1] ^ _SECOND_SEED
    second *= _SECOND_FACTOR
    mixed ^= second
    mixed ^= mixed >> _HALF
    mixed *= _FIRST_FACTOR
    return mixed


def texts_of(packed16: Packed16Array) -> list[str]:
    """The texts as str."""
    texts: list[bytes] = packed16.view(_TEXT)[:, 0].tolist() if len(packed16) else []
    joined = b"\0".join(texts)
    if not texts or joined.count(b"\0") != len(texts) - 1:  # a NUL inside of a text
        return [text.decode("ascii") for text in texts]
    return joined.decode("ascii").split("\0")


class ShortTextColumn(Column):
    """Texts of at most 16 ASCII characters, the last one no NUL.

    Ownership: the array must not be changed any more.

    Args:
        packed16: the bytes, of shape (number of texts, 2).
    """

    __slots__ = ("packed16",)
    visited_as: ClassVar[str] = "short_texts"
    never_has_nulls: ClassVar[bool] = True

    def __init__(self, packed16: Packed16Array) -> None:
        assert packed16.dtype == np.uint64, f"texts in an array of {packed16.dtype}"
        self.packed16 = packed16

    def __repr__(self) -> str:
        return f"<ShortTextColumn of {len(self)}>"

    def __len__(self) -> int:
        return len(self.packed16)

    def to_list(self) -> list[Any]:
        """The texts as new str objects."""
        return texts_of(self.packed16)

    def take(self, indices: IndexArray) -> "ShortTextColumn":
        """The texts at these positions."""
        return ShortTextColumn(take_packed16(self.packed16, indices))

    def slice(self, start: int, stop: int) -> "ShortTextColumn":
        """A part that shares the memory of the array."""
        return ShortTextColumn(self.packed16[start:stop])

    @property
    def value_type(self) -> type:
        """The type of texts."""
        return str

    def concatenate(self, columns: Sequence[Column]) -> "ShortTextColumn | None":
        """All texts in one array; None if a column has no short texts."""
        short = [column.packed16 for column in columns if isinstance(column, ShortTextColumn)]
        return ShortTextColumn(np.concatenate(short)) if len(short) == len(columns) else None


def try_short_texts(texts: Sequence[str]) -> ShortTextColumn | None:
    """A column of these texts, at least one; None if one is longer than 16 characters, not ASCII, or has a NUL.

    By way of one joined text: 30 ns per text, where an array of each would take 100.
    """
    joined = "\0".join(texts)
    if not joined.isascii() or len(joined) > (PACKED16_BYTES + 1) * len(texts):
        return None
    data = joined.encode()
    ends = np.append(np.flatnonzero(np.frombuffer(data, np.uint8) == 0), len(data))
    if len(ends) != len(texts):  # a NUL inside of a text
        return None
    starts = np.zeros(len(ends), np.int64)
    np.add(ends[:-1], 1, out=starts[1:])
    lengths = ends - starts
    if lengths.max() > PACKED16_BYTES:
        return None
    anywhere: NDArray[Any] = np.ndarray(len(data) + 1, PACKED16, data + bytes(PACKED16_BYTES), strides=(1,))
    packed16 = anywhere[starts].view(np.uint64)
    packed16 &= _PACKED16_MASKS.take(lengths, mode="clip").view(np.uint64)
    return ShortTextColumn(packed16.reshape(-1, 2))


# By the length of a text: ones where the bytes are its own.
_PACKED16_MASKS: Final = (0xFF * np.tri(PACKED16_BYTES + 1, PACKED16_BYTES, -1, np.uint8)).view(PACKED16)[:, 0]
