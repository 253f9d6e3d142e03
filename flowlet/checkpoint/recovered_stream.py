"""``RecoveredStream``: the data in flight of one channel of a checkpoint, for the task that reads it now.

Side:   pure.
"""

from collections.abc import Callable
from typing import Any

from flowlet.records import Chunk
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class RecoveredStream:
    """What was under way from one former producer to one former consumer, from the beginning of an element to the end
    of one.

    Args:
        gate: the index of the gate that would have got it.
        channel: the index of the same channel in that gate; None: there is none any more, so only the records count.
        pieces: the serialized elements, cut anywhere.
        select: which of the records are this subtask's; None: all.
        operator: the index of the operator in the chain that reads it; above 0, the gate is no more.
        find_class: gives the running class for one that the records of another program refer to; None: this program
            wrote them.
    """

    gate: int
    channel: int | None
    pieces: tuple[bytes, ...]
    select: Callable[[Chunk], Chunk] | None = None
    operator: int = 0
    find_class: Callable[[bytes], Any] | None = None
