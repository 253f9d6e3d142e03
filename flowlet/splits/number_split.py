"""``NumberSplit`` and ``NumberRange``: the parts of a sequence of numbers, and the whole.

Side:       pure.
Units:      the size of a split is its count of numbers, in place of bytes: they are made, not read.
Rules:      plain data of the control protocol, whose whole numbers have 64 bits.
Source:     Flink ``NumberSequenceSource.NumberSequenceSplit``.
"""

import msgspec


class NumberSplit(msgspec.Struct, frozen=True, tag="number"):
    """The numbers ``start`` <= n < ``end``."""

    start: int
    end: int

    @property
    def split_id(self) -> str:
        """Its end, which stays when a part of it was read."""
        return f"up to {self.end}"

    @property
    def size_bytes(self) -> int:
        """How many numbers there are."""
        return self.end - self.start


class NumberRange(msgspec.Struct, frozen=True, tag="numbers"):
    """All numbers of a source: ``start`` <= n < ``end``."""

    start: int
    end: int
