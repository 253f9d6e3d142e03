"""``NumberSequenceSource``: the numbers from one to another.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.number_seq``.
"""

from typing import Final

from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.errors import JobGraphError

__all__ = ["NumberSequenceSource"]

_LONG_END: Final = 1 << 63


class NumberSequenceSource(BuiltInSource):
    """The whole numbers from ``start`` to ``end``, both included.

    A single subtask gives them in order.  Several subtasks get splits, which are handed out in order when a subtask
    asks for more: a fast subtask gives more numbers, and the numbers of each rise.  Numbers that are left belong to
    checkpoints, and can be dealt out to another number of subtasks.

    Raises:
        JobGraphError: ``start`` or ``end`` is no whole number of 64 bits, or ``start`` is above ``end``.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        if type(start) is not int or type(end) is not int:
            raise JobGraphError(f"a number sequence needs two whole numbers, got {start!r} and {end!r}")
        if start > end:
            raise JobGraphError(f"a number sequence needs a start that is not above its end, got {start} and {end}")
        if start < -_LONG_END or end >= _LONG_END:
            raise JobGraphError(f"a number sequence needs numbers of 64 bits, as Types.LONG(), got {start} and {end}")
        self.start = start
        self.end = end
