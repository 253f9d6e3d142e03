"""Sequence numbers of buffers: 32-bit integers that wrap, as in Java.

Side:   pure.
Source: Flink ``RemoteInputChannel.shouldBeSpilled`` and ``SingleInputGate.isOutdated``, which compare them across the
        wrap.
"""

from typing import Final

MAX_SEQUENCE_NUMBER: Final = 2**31 - 1
_SIGN_BIT: Final = 0x8000_0000


def next_sequence_number(sequence_number: int) -> int:
    """The number after it; after 2^31 - 1 comes -2^31."""
    return -MAX_SEQUENCE_NUMBER - 1 if sequence_number == MAX_SEQUENCE_NUMBER else sequence_number + 1


def is_before(first: int, second: int) -> bool:
    """Whether ``first`` was given out before ``second``; they are less than 2^31 apart."""
    return (first - second) & _SIGN_BIT != 0
