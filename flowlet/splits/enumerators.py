"""``PlannedSplitEnumerator``: hands out splits that the program has planned, and that are known without a search.

``HybridSplitEnumerator``: hands out the splits of several sources, one source after the other.

``enumerator_for``: makes the enumerator of a source from its description, for the JobManager.

Side:       shared; ``discover``, ``restore`` and ``find_new`` call the enumerator of the present source, and may block.
Invariants: no split of a source is handed out before every reader has read all splits of the source before it.
Rules:      a reader of several sources that asks when no split is left of the present one gets its end.  It reads the
            splits that it has, and asks again: so it has finished the source.  It gets no answer until all readers
            have.  Then the next source is present, whose splits are discovered only now: files that were written
            meanwhile belong to it, and "the newest" means now.  No checkpoint holds which readers have finished: after
            a restart each reader asks again, and gets the end again if no split is left.
Source:     Flink ``HybridSourceSplitEnumerator``.
"""

from collections import deque
from collections.abc import Sequence
from itertools import compress
from operator import not_
from typing import Any, assert_never

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.enumerator import NumberSplitEnumerator, SplitEnumerator
from flowlet.splits.split_kinds import (
    FileSet,
    HybridSplit,
    HybridSplits,
    KafkaTopics,
    NumberRange,
    PlannedSplit,
    PlannedSplits,
    SplitSet,
)


class PlannedSplitEnumerator(SplitEnumerator):
    """The splits of a user's source, which the program planned when the job started.

    Without a limit of open splits each reader gets its share at once, in turns, so that all splits are read from the
    start.  With a limit a reader gets one whenever it asks, so that a fast reader gets more.
    """

    name = "the splits of a source"
    state_form = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, str, bytes]]])  # number, name, content

    def __init__(self, planned: PlannedSplits) -> None:
        self.split_set = planned
        self._waiting = deque(enumerate(planned.splits))  # each with its number, which says whose it is

    def __repr__(self) -> str:
        return f"<PlannedSplitEnumerator {len(self._waiting)} of {len(self.split_set.splits)} splits wait>"

    def next_splits(self, reader: int) -> list[PlannedSplit]:
        """The next split, or all splits of the reader; empty: none are left."""
        if self.split_set.is_on_demand:
            return [self._waiting.popleft()[1]] if self._waiting else []
        is_mine = [number % self._num_readers == reader for number, _ in self._waiting]
        found = list(compress(self._waiting, is_mine))
        self._waiting = deque(compress(self._waiting, map(not_, is_mine)))
        return [split for _, split in found]

    def left(self) -> tuple[list[tuple[int, str, bytes]]]:
        """The splits that are not assigned."""
        return ([(number, split.name, split.content) for number, split in self._waiting],)

    def take_left(self, waiting: list[tuple[int, str, bytes]]) -> None:
        """Go on with these splits."""
        self._waiting = deque((number, PlannedSplit(name, content)) for number, name, content in waiting)


class HybridSplitEnumerator(SplitEnumerator):
    """The splits of several sources, one source after the other."""

    name = "the sources of a hybrid source"
    state_form = msgspec.msgpack.Decoder(tuple[int, int, bytes | None])  # number and state of the present source

    def __init__(self, splits: HybridSplits) -> None:
        self.split_set = splits
        self._source = 0
        self._present = enumerator_for(splits.sources[0])
        self._told: set[int] = set()  # the readers that know the end of the present source
        self._finished: set[int] = set()  # the readers that have read it to its end
        self.is_discovered = False

    def __repr__(self) -> str:
        return f"<HybridSplitEnumerator at source {self._source} of {len(self.split_set.sources)}, {self._present!r}>"

    @property
    def has_next_source(self) -> bool:
        """Whether readers that have finished wait for another source."""
        return self._source + 1 < len(self.split_set.sources)

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits of the present source that are not assigned."""
        return self._present.waiting_bytes

    @property
    def discovery_interval_ms(self) -> int | None:
        """The interval of the last source, once it is present; None before: the other sources have an end."""
        return None if self.has_next_source else self._present.discovery_interval_ms

    def discover(self, num_readers: int) -> None:
        """Find the splits of the first source; may block.

        Raises:
            FlowletError: as that source's enumerator.
        """
        self._num_readers = num_readers
        self._present.discover(num_readers)
        self.is_discovered = True

    def find_new(self) -> Sequence[Any]:
        """Look for new splits of the present source; may block."""
        return self._present.find_new()

    def add_found(self, found: Sequence[Any]) -> None:
        """Hand the result of ``find_new`` to the enumerator of the present source."""
        self._present.add_found(found)

    def next_splits(self, reader: int) -> list[HybridSplit]:
        """Splits of the present source, or its end, or an empty list."""
        splits: Sequence[Any] = self._present.next_splits(reader)
        if splits:
            return [HybridSplit(self._source, split) for split in splits]
        if not self.has_next_source:
            return []
        if reader not in self._told:
            self._told.add(reader)
            return [HybridSplit(self._source)]
        self._finished.add(reader)
        if len(self._finished) == self._num_readers:
            self._begin(self._source + 1)
        return []

    def left(self) -> tuple[int, bytes | None]:
        """The number of the present source, and its unassigned splits; None: it was not discovered."""
        return self._source, self._present.snapshot() if self.is_discovered else None

    def take_left(self, source: int, present: bytes | None) -> None:
        """Go on at this source; discovers it if it had not been; may block.

        Raises:
            StateRestoreError: the state is damaged, of another version, or of more sources than there are.
            FlowletError: as the enumerator of the present source.
        """
        if not 0 <= source < len(self.split_set.sources):
            raise StateRestoreError(
                f"a hybrid source is at its source {source} in the checkpoint, and has "
                f"{len(self.split_set.sources)} now"
            )
        self._begin(source)
        if present is None:
            self.discover(self._num_readers)
            return
        self._present.restore(present, self._num_readers)
        self.is_discovered = True

    def _begin(self, source: int) -> None:
        self._source = source
        self._present = enumerator_for(self.split_set.sources[source])
        self._told.clear()
        self._finished.clear()
        self.is_discovered = False


def enumerator_for(split_set: SplitSet) -> SplitEnumerator:
    """A new enumerator of the kind that the description needs."""
    match split_set:
        case HybridSplits():
            return HybridSplitEnumerator(split_set)
        case FileSet():
            from flowlet.connectors.files.split import FileSplitEnumerator  # as below: only its jobs need it

            return FileSplitEnumerator(split_set)
        case KafkaTopics():
            from flowlet.connectors.kafka.split import KafkaSplitEnumerator

            return KafkaSplitEnumerator(split_set)
        case NumberRange():
            return NumberSplitEnumerator(split_set)
        case PlannedSplits():
            return PlannedSplitEnumerator(split_set)
        case _:
            assert_never(split_set)
