"""The books that the network pool keeps of one local pool.

Side:   shared.  Guarded by the network pool's lock.
Units:  segments.
Source: Flink keeps these numbers in ``LocalBufferPool`` and guards them by two locks.
"""

from collections.abc import Callable
from enum import Enum, unique
from typing import TYPE_CHECKING

from netstack.buffer.memory_segment import MemorySegment

if TYPE_CHECKING:
    from netstack.buffer.local_buffer_pool import LocalBufferPool


@unique
class AccountState(Enum):
    """Where a local pool stands with the network pool.

    ``WAITING``: it found no segment although it is below its size, so it stands in line for the next one::

        OPEN <-- it found nothing, it got one --> WAITING
          `------ the pool is destroyed ------> CLOSED <-----'
    """

    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class PoolAccount:
    """What the network pool knows about one local pool.

    Every field but ``pool`` is guarded by the network pool's lock.

    The local pool reads ``num_requested`` and ``num_buffers`` bare.  Under its own lock the first can only be too high
    by a segment that is on its way here, and a change of the second is followed by ``adjust``.
    """

    __slots__ = ("max_buffers", "num_buffers", "num_requested", "num_required", "pool", "state")

    def __init__(self, num_required: int, max_buffers: int | None) -> None:
        self.num_required = num_required
        self.max_buffers = max_buffers
        self.num_buffers = num_required  # the present size
        self.num_requested = 0
        self.state = AccountState.OPEN
        self.pool: LocalBufferPool | None = None  # Written once, before anybody can wait.

    def capacity(self, num_available: int) -> int:
        """How many of ``num_available`` segments the pool could use beyond its guarantee."""
        return num_available if self.max_buffers is None else min(num_available, self.max_buffers - self.num_required)

    def offer(self, segment: MemorySegment, wakeups: list[Callable[[], object]]) -> bool:
        """Hand the pool a segment it stood in line for."""
        assert self.pool is not None, "only a complete pool stands in line"
        return self.pool.offer(segment, wakeups)
