"""The kinds of enumerators: what the JobManager makes of the description of a source; ``HybridSplitEnumerator``, which
hands out the splits of several sources, one source after the other.

Side:       shared; ``discover``, ``restore`` and ``find_new`` are those of the present source.
Invariants: no split of a source is handed out before every reader has read all splits of the source before it.
Rules:      a reader that asks when nothing is left of the present source gets its end.  It reads what it has, and asks
            again: so it has finished the source.  It gets no answer until all readers have.  Then the next source is
            present, whose splits are discovered only now: files that were written meanwhile belong to it, and "the
            newest" means now.  Who has finished is in no checkpoint: after a restart each reader asks again, and gets
            the end again if nothing is left.
Source:     Flink ``HybridSourceSplitEnumerator``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.enumerator import STATE_VERSION, SplitEnumerator, stored_state
from flowlet.splits.file_enumerator import FileSplitEnumerator
from flowlet.splits.kafka_enumerator import KafkaSplitEnumerator
from flowlet.splits.known_splits import NumberSplitEnumerator, PlannedSplitEnumerator
from flowlet.splits.split_kinds import (
    FileSet,
    HybridSplit,
    HybridSplits,
    KafkaTopics,
    NumberRange,
    PlainSplitSet,
    PlannedSplits,
    SplitSet,
)

# The version; the number of the present source; its state, None: it was not discovered.
_State = tuple[int, int, bytes | None]
_state_decoder: Final = msgspec.msgpack.Decoder(_State)


class HybridSplitEnumerator(SplitEnumerator):
    """Those of several sources, one after the other.

    Args:
        splits: of all sources.
        create: makes the enumerator of one of them.
    """

    def __init__(self, splits: HybridSplits, create: Callable[[PlainSplitSet], SplitEnumerator]) -> None:
        self.split_set = splits
        self._create = create
        self._num_readers = 1
        self._source = 0
        self._present = create(splits.sources[0])
        self._told: set[int] = set()  # the readers that know the end of the present source
        self._finished: set[int] = set()  # those that have read everything of it
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
        """That of the last source, once it is present: the others have an end."""
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
        """What ``find_new`` gave can be assigned from now on."""
        self._present.add_found(found)

    def next_splits(self, reader: int) -> list[HybridSplit]:
        """Splits of the present source, or its end, or nothing."""
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

    def snapshot(self) -> bytes:
        """The number of the present source, and what of it is not assigned."""
        state = self._present.snapshot() if self.is_discovered else None
        return msgspec.msgpack.encode((STATE_VERSION, self._source, state))

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called; discovers the present source if it was not; may block.

        Raises:
            StateRestoreError: the state is damaged, of another version, or of more sources than there are.
            FlowletError: as the enumerator of the present source.
        """
        _, source, present = stored_state(
            _state_decoder, state, "the state of a hybrid source", "has version {}, this flowlet reads {}"
        )
        if not 0 <= source < len(self.split_set.sources):
            raise StateRestoreError(
                f"a hybrid source is at its source {source} in the checkpoint, and has "
                f"{len(self.split_set.sources)} now"
            )
        self._begin(source)
        if present is None:
            self.discover(num_readers)
            return
        self._num_readers = num_readers
        self._present.restore(present, num_readers)
        self.is_discovered = True

    def _begin(self, source: int) -> None:
        self._source = source
        self._present = self._create(self.split_set.sources[source])
        self._told.clear()
        self._finished.clear()
        self.is_discovered = False


def enumerator_for(split_set: SplitSet) -> SplitEnumerator:
    """A new enumerator."""
    match split_set:
        case HybridSplits():
            return HybridSplitEnumerator(split_set, enumerator_for)
        case FileSet():
            return FileSplitEnumerator(split_set)
        case KafkaTopics():
            return KafkaSplitEnumerator(split_set)
        case NumberRange():
            return NumberSplitEnumerator(split_set)
        case PlannedSplits():
            return PlannedSplitEnumerator(split_set)
        case _:
            assert_never(split_set)


def split_set_of(enumerator: SplitEnumerator) -> SplitSet | None:
    """What ``enumerator_for`` makes it of; None: the JobManager does not know the kind."""
    found = getattr(enumerator, "split_set", None)
    return found if isinstance(found, SplitSet) else None
