"""``PlannedSplit``: a part of a user's source, and who hands the parts out.

Side:       pure.
Invariants: every split is assigned once.
Rules:      the program plans the splits when the job starts.  What a split says is pickled there and opened by its
            reader alone: here it is bytes, so the JobManager runs no code of users.  Without a limit of open splits
            each reader gets its share at once, in turns, so that all splits are read from the start.  With a limit a
            reader gets one whenever it asks, so that a fast reader gets more.
Source:     Flink ``SourceSplit``, ``IteratorSourceEnumerator``; FLIP-27.
"""

from collections import deque
from collections.abc import Sequence
from itertools import compress
from operator import not_
from typing import Final

import msgspec

from flowlet.errors import StateRestoreError

_STATE_VERSION: Final = 1
_State = tuple[int, list[tuple[int, str, bytes]]]  # the version; number, name and content of each split
_state_decoder: Final = msgspec.msgpack.Decoder(_State)


class PlannedSplit(msgspec.Struct, frozen=True, tag="planned"):
    """One part: its name, which is unique in the source, and what its reader needs to know, as a pickle."""

    name: str
    content: bytes

    @property
    def split_id(self) -> str:
        """Its name."""
        return self.name

    @property
    def size_bytes(self) -> int:
        """Unknown."""
        return 0


class PlannedSplits(msgspec.Struct, frozen=True, tag="plan"):
    """All parts of a source, in their order; ``is_on_demand``: whether readers ask for one after the other."""

    splits: tuple[PlannedSplit, ...]
    is_on_demand: bool = False


class PlannedSplitEnumerator:
    """The splits of one source that are not assigned; see ``SplitEnumerator``.  Threading: one thread at a time."""

    def __init__(self, planned: PlannedSplits) -> None:
        self.planned = planned
        self._num_readers = 1
        self._waiting: deque[tuple[int, PlannedSplit]] = deque()  # each with its number, which says whose it is

    def __repr__(self) -> str:
        return f"<PlannedSplitEnumerator {len(self._waiting)} of {len(self.planned.splits)} splits wait>"

    @property
    def waiting_bytes(self) -> int:
        """Sizes are not known."""
        return 0

    @property
    def discovery_interval_ms(self) -> int | None:
        """None: all splits are planned when the job starts."""
        return None

    def discover(self, num_readers: int) -> None:
        """All splits wait."""
        self._num_readers = num_readers
        self._waiting = deque(enumerate(self.planned.splits))

    def find_new(self) -> list[PlannedSplit]:
        """Nothing: see ``discovery_interval_ms``."""
        return []

    def add_found(self, found: Sequence[PlannedSplit]) -> None:
        """Never called: see ``discovery_interval_ms``."""

    def next_splits(self, reader: int) -> list[PlannedSplit]:
        """The next split, or all that are the reader's; empty: none are left."""
        if self.planned.is_on_demand:
            return [self._waiting.popleft()[1]] if self._waiting else []
        is_mine = [number % self._num_readers == reader for number, _ in self._waiting]
        found = list(compress(self._waiting, is_mine))
        self._waiting = deque(compress(self._waiting, map(not_, is_mine)))
        return [split for _, split in found]

    def snapshot(self) -> bytes:
        """The splits that are not assigned."""
        return msgspec.msgpack.encode(
            (_STATE_VERSION, [(number, split.name, split.content) for number, split in self._waiting])
        )

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        try:
            version, waiting = _state_decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(f"the splits of a source in a checkpoint cannot be read: {error}") from error
        if version != _STATE_VERSION:
            raise StateRestoreError(
                f"the splits of a source in a checkpoint have version {version}, this flowlet reads {_STATE_VERSION}"
            )
        self._num_readers = num_readers
        self._waiting = deque((number, PlannedSplit(name, content)) for number, name, content in waiting)
