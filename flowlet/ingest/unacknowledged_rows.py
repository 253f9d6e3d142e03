"""``UnacknowledgedRows``: the rows of one partition that no complete checkpoint holds yet, so that they can be sent
again.

Side:       pure.
Invariants: rows are kept in the order in which they were written, and given up from the front only: when every subtask
            of the gate has said that it holds its part of a chunk for good.  ``first_records`` and ``num_before`` say
            where the kept ones begin.  Not more than ``max_bytes`` are kept, but for one chunk that is larger.
Units:      approximate serialized bytes (``estimated_bytes``).
"""

from collections import deque
from collections.abc import Sequence

from flowlet.records import Chunk
from netstack.late import dataclass


@dataclass(slots=True, eq=False)
class KeptChunk:
    """``num_sent``: how many records each subtask has been sent of the partition, with this chunk; None: it was not
    sent wholly.
    """

    chunk: Chunk
    num_bytes: int
    num_sent: tuple[int, ...] | None = None


class UnacknowledgedRows:
    """The rows of one partition.  Threading: the writing thread.

    Args:
        num_subtasks: of the gate.
        max_bytes: see the invariants.
    """

    def __init__(self, num_subtasks: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: deque[KeptChunk] = deque()
        self.num_bytes = 0
        self.first_records: tuple[int, ...] = (0,) * num_subtasks
        """How many records each subtask holds that are not kept here."""
        self.num_before = 0
        """How many records of the partition are not kept here."""

    def __repr__(self) -> str:
        return f"<UnacknowledgedRows {len(self._kept)} chunks, {self.num_bytes} of {self._max_bytes} bytes>"

    @property
    def kept(self) -> list[KeptChunk]:
        """The chunks, the oldest first."""
        return list(self._kept)

    @property
    def next_needed(self) -> tuple[int, ...] | None:
        """What the subtasks must hold before something is given up; None: nothing was sent that could be."""
        return self._kept[0].num_sent if self._kept else None

    def has_room(self, num_bytes: int) -> bool:
        """Whether so much more may be kept."""
        return not self._kept or self.num_bytes + num_bytes <= self._max_bytes

    def add(self, chunk: Chunk, num_bytes: int) -> KeptChunk:
        """Keep a chunk that is about to be sent."""
        kept = KeptChunk(chunk, num_bytes)
        self._kept.append(kept)
        self.num_bytes += num_bytes
        return kept

    def acknowledge(self, held: Sequence[int]) -> None:
        """The subtasks hold so many of their records for good."""
        while self._kept and (sent := self._kept[0].num_sent) is not None:
            if any(has < wanted for has, wanted in zip(held, sent, strict=True)):
                return
            oldest = self._kept.popleft()
            self.num_bytes -= oldest.num_bytes
            self.num_before += len(oldest.chunk)
            self.first_records = sent

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        assert self.num_bytes == sum(each.num_bytes for each in self._kept)
        assert self.num_bytes <= self._max_bytes or len(self._kept) == 1
        assert sum(self.first_records) == self.num_before
