"""Reads several sources one after the other: the runtime of a ``HybridSource``.

Hot path, per chunk: one more call; chunks of small polls are not joined, as they are of a source alone that never
waits.

Side:       task.
Invariants: one reader of one source is open at a time.  It is at its end before a split of a later source is given; so
            a reader's position is the position in its present source alone.
Rules:      a split tells of which source it is.  A reader that has read everything of its source asks once more, which
            tells the enumerator so, and waits; the answer has the first split of a later source, or the end of all.
Source:     Flink ``HybridSourceReader``, ``SourceReaderFinishedEvent``.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from flowlet.connectors.split_reader import AssignedSource, ReaderWait, SplitReaderBase
from flowlet.errors import StateRestoreError
from flowlet.operators.source_reader import OpenSplits, ReaderElement, Source, SourceReaderBase
from flowlet.records import Chunk
from flowlet.splits.split_kinds import HybridSplit, HybridSplits, PlainSplitSet
from flowlet.state.state_snapshots import StateShare
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass

_Reader = SplitReaderBase[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class TurnPosition:
    """A reader's position in the source with the number ``source``; earlier sources were read to their ends."""

    source: int
    position: Any


class SourcesInTurn(Source):
    """Several sources with splits; all but the last have an end.

    Args:
        sources: in their order, at least one; their positions can be divided.
    """

    def __init__(self, *sources: AssignedSource[Any]) -> None:
        self.is_bounded = sources[-1].is_bounded
        self._sources = sources
        self.split_set = HybridSplits(tuple(cast(PlainSplitSet, each.split_set) for each in sources))

    def __getstate__(self) -> dict[str, Any]:
        # To its tasks the splits do not travel: the JobManager deals them out.
        return {**self.__dict__, "split_set": HybridSplits(())}

    def create_reader(self, subtask: int, parallelism: int) -> "ReaderInTurn":
        """A reader of the splits that it is assigned."""
        return ReaderInTurn(lambda number: self._source(number).create_reader(subtask, parallelism))

    def redistribute_positions(self, positions: Sequence[TurnPosition | None], share: StateShare) -> TurnPosition:
        """A share of the splits that the former readers had left; readers of an earlier source had none left.

        Raises:
            StateRestoreError: the program has fewer sources than the checkpoint.
        """
        newest = max((_checked(each).source for each in positions if each is not None), default=0)
        of_newest = [each.position if each is not None and each.source == newest else None for each in positions]
        return TurnPosition(newest, self._source(newest).redistribute_positions(of_newest, share))

    def _source(self, number: int) -> AssignedSource[Any]:
        if number >= len(self._sources):
            raise StateRestoreError(
                f"a hybrid source is at its source {number} in the checkpoint, and has {len(self._sources)} now"
            )
        return self._sources[number]


def _checked(position: TurnPosition) -> TurnPosition:
    if not isinstance(position, TurnPosition):
        kind = type(position).__name__
        raise StateRestoreError(
            f"the checkpoint has the position of a source that was no hybrid one ({kind}): give the hybrid source "
            "another uid"
        )
    return position


class ReaderInTurn(SourceReaderBase):
    """Reads the present source.  Threading: task thread.

    Args:
        create: makes the reader of the source with a number.
    """

    pauses_splits = True
    # The open splits of the present source; if it does not tell them, the source itself, until it has ended.
    open_splits: OpenSplits = OpenSplits()

    def __init__(self, create: Callable[[int], _Reader]) -> None:
        self._create = create
        self._source = 0
        self._present: _Reader | None = None  # its reader, from start on
        self._restored: Any = None
        self._request: Callable[[], None] | None = None  # from start on
        self._is_answered = False  # while a reader starts whose first splits are there already
        self._is_waiting = False  # for the next source
        self._is_over = False  # no more splits will come, of any source
        self._wait = ReaderWait()

    def __repr__(self) -> str:
        return f"<ReaderInTurn {'behind' if self._is_waiting else 'at'} source {self._source}, {self._present!r}>"

    @property
    def _opened(self) -> "_Reader":
        assert self._present is not None, "started"
        return self._present

    # -- splits

    def start(self, request_splits: Callable[[], None]) -> None:
        """Open the reader of the first source, or of the checkpoint's present source."""
        self._request = request_splits
        self._open()

    def add_splits(self, splits: Sequence[HybridSplit], waiting_bytes: int) -> None:
        """Read these splits, too: of the present source, or of a later one, which begins with them."""
        source = splits[0].source
        if source != self._source:
            # It is at its end; a restored task may wait for its future.
            self._opened.no_more_splits()
            self.close()
            self._source = source
            self._restored = None
            self._is_answered = True
            self._open()
            self._is_answered = False
        parts = [each.split for each in splits if each.split is not None]
        if parts:
            self._opened.add_splits(parts, waiting_bytes)
        else:
            self._opened.no_more_splits()
        self._wake()

    def no_more_splits(self) -> None:
        """Note that there are no more splits, of any source."""
        self._is_over = True
        self._opened.no_more_splits()
        self._wake()

    def _open(self) -> None:
        reader = self._create(self._source)
        reader.setup(self.ctx)
        if self._restored is not None:
            reader.restore_position(self._restored)
        self._present = reader
        splits = reader.open_splits
        self.open_splits = OpenSplits((f"source {self._source}",)) if splits is None else splits
        reader.start(self._ask)

    def _ask(self) -> None:
        assert self._request is not None, "started"
        if not self._is_answered:
            self._request()

    # -- records

    def poll_chunk(self) -> ReaderElement | None:
        """The next records of the present source; an empty chunk until the next source begins, None after the last."""
        if self._is_waiting and not self._is_over:
            return Chunk([])
        element = self._opened.poll_chunk()
        if element is not None or self._is_over:
            return element
        self._is_waiting = True
        self.open_splits.remove((f"source {self._source}",))
        self._wait.reset_unavailable()  # before the question: the answer may come at once
        self._ask()
        return Chunk([])

    def available_future(self) -> AvailabilityFuture:
        """A future that is done when it is worth to poll again."""
        return self._wait.future if self._is_waiting else self._opened.available_future()

    def _wake(self) -> None:
        self._is_waiting = False
        self._wait.end()

    # -- event time

    @property
    def current_split(self) -> str:
        """The split of the last polled records; a source that does not tell its splits has one."""
        return self._opened.current_split or f"source {self._source}"

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause and resume splits of a source that reads several at once."""
        self._opened.pause_or_resume_splits(pause, resume)

    # -- checkpoints

    def snapshot_position(self) -> TurnPosition:
        """The position in the present source."""
        return TurnPosition(self._source, self._opened.snapshot_position())

    def restore_position(self, position: TurnPosition) -> None:
        """Go on at a position.  Raises StateRestoreError: it is of a source that is no hybrid one."""
        self._source = _checked(position).source
        self._restored = position.position

    def position_taken(self, checkpoint_id: int, num_waiting: int) -> None:
        """Tell the reader of the present source that a checkpoint has taken its position."""
        self._opened.position_taken(checkpoint_id, num_waiting)

    def position_kept(self, checkpoint_id: int) -> None:
        """Tell the reader of the present source that the checkpoint is complete."""
        self._opened.position_kept(checkpoint_id)

    def position_lost(self, checkpoint_id: int) -> None:
        """Tell the reader of the present source that the checkpoint has failed."""
        self._opened.position_lost(checkpoint_id)

    def close(self) -> None:
        """Close the reader of the present source."""
        present = self._present
        self._present = None
        if present is not None:
            present.close()
