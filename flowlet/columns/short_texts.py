"""Texts of a few ASCII characters, each in 16 bytes.

Hot path: C code per column; numpy moves and compares such texts as if they were numbers (``bench shuffle``).

Side:       pure.
Invariants: behind the end of a text are NULs, and none is its last character; so two texts are equal exactly if all 16
            bytes are.
Absent:     other and longer texts: who makes columns keeps them in lists.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.column import MaskArray

Packed16Array = NDArray[np.uint64]  # two integers for each text

PACKED16_BYTES: Final = 16
PACKED16: Final = np.dtype(np.complex128)  # numpy moves its 16 bytes at once; nobody computes with it
_TEXT: Final = np.dtype(f"S{PACKED16_BYTES}")  # gives the bytes without the NULs behind them
# Odd multipliers whose upper halves depend on all bits (Fibonacci hashing; the second one is that of MurmurHash3's
# finalizer).
_FIRST_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR: Final = np.uint64(0xFF51AFD7ED558CCD)
_HALF: Final = np.uint64(32)
# Different in each process, as the hashes of its texts are: who chooses texts cannot choose those that meet in tables.
_FIRST_SEED, _SECOND_SEED = (np.uint64(hash(name) & 0xFFFFFFFFFFFFFFFF) for name in ("first", "second"))


def take_packed16(packed16: Packed16Array, indices: NDArray[Any]) -> Packed16Array:
    """Those at these positions."""
    return packed16.view(PACKED16)[:, 0].take(indices).view(np.uint64).reshape(-1, 2)


def differ(packed16: Packed16Array, others: Packed16Array) -> MaskArray:
    """Where they are not the same."""
    is_other: MaskArray = packed16[:, 0] != others[:, 0]
    is_other |= packed16[:, 1] != others[:, 1]
    return is_other


def mixed(packed16: Packed16Array) -> NDArray[np.uint64]:
    """For each text a number whose upper bits are good for a place in a table of this process."""
    mixed = packed16[:, 0] ^ _FIRST_SEED
    mixed *= _FIRST_FACTOR
    second = packed16[:, 1] ^ _SECOND_SEED
    second *= _SECOND_FACTOR
    mixed ^= second
    mixed ^= mixed >> _HALF
    mixed *= _FIRST_FACTOR
    return mixed


def bytes_of(packed16: Packed16Array) -> list[bytes]:
    """The characters of each text."""
    texts: list[bytes] = packed16.view(_TEXT)[:, 0].tolist() if len(packed16) else []
    return texts


def texts_of(packed16: Packed16Array) -> list[str]:
    """Each text."""
    texts = bytes_of(packed16)
    joined = b"\0".join(texts)
    if not texts or joined.count(b"\0") != len(texts) - 1:  # a NUL inside of a text
        return [text.decode("ascii") for text in texts]
    return joined.decode("ascii").split("\0")
