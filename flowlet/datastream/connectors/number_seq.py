"""``NumberSequenceSource``: the numbers from one to another.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.number_seq``.
"""

from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.errors import JobGraphError

__all__ = ["NumberSequenceSource"]


class NumberSequenceSource(BuiltInSource):
    """The whole numbers from ``start`` to ``end``, both included, in equal shares per subtask.

    How far each subtask is belongs to checkpoints, and can be dealt out to another number of subtasks.

    Raises:
        JobGraphError: they are not whole numbers, or ``start`` is above ``end``.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        if type(start) is not int or type(end) is not int:
            raise JobGraphError(f"a number sequence needs two whole numbers, got {start!r} and {end!r}")
        if start > end:
            raise JobGraphError(f"a number sequence needs a start that is not above its end, got {start} and {end}")
        self.start = start
        self.end = end
