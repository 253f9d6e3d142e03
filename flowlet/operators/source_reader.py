"""Sources, and the readers that read the records of a subtask.

``Source`` makes a reader for each subtask.  ``SourceReader`` has the methods that a reader must have;
``SourceReaderBase`` has all methods that the operator calls, each with an answer that fits most readers, so that a
reader overrides few.  A user's reader that derives from no class of ours is asked for these methods by name
(``ReaderByNames``).  A source whose positions can be divided among another number of readers has
``redistribute_positions(positions, share)``: it gets the positions by former subtask (None: it had read everything) and
a ``StateShare``, and returns the position of one reader, never None.

A record: the operator polls; the reader gives a chunk, or an empty one, and then the operator waits for
``available_future()``.  A snapshot: between two records the operator calls ``hold()`` for the records that the reader
still has in hand, ``snapshot_position()``, and ``position_taken``; when the checkpoint is complete, ``position_kept``.
A restart: ``setup(ctx)``, ``restore_position(position)``, ``start(request_splits)``.

Side:       task.  A ``Source`` is made in the user's program and pickled; its readers live in the tasks.
Invariants: a reader is made when its task opens and closed once.  Its position is the place behind the last polled
            record.
Source:     Flink ``Source``, ``SourceReader``, ``SourceReaderBase``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import Any, Final, Protocol

from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import FlowletError
from flowlet.records import Chunk, Watermark, WatermarkStatus
from flowlet.splits.split_kinds import SplitSet
from netstack.availability import AvailabilityFuture

# 1,000-2,000 records per chunk are best for records that are Python objects (hot-path measurements).
MAX_CHUNK_RECORDS = 1_000
_NO_TASK: Final = OperatorContext("", 0, 1, 1, "")

ReaderElement = Chunk | Watermark | WatermarkStatus


class SourceReader(Protocol):
    """Reads one subtask's share."""

    def poll_chunk(self) -> ReaderElement | None:
        """The next records, a watermark or status, an empty chunk if there is nothing just now, or None at the end."""

    def close(self) -> None:
        """Give back files and the like."""


class OpenSplits(Set[str]):
    """The open splits of a reader, and the splits that came or went since ``take_changed``; task thread only.

    A source looks at its splits with each chunk: with many of them, comparing all would take longer than the chunk.
    """

    __slots__ = ("_changed", "_names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._changed = dict.fromkeys(self._names)  # in the order in which they came

    def __repr__(self) -> str:
        return f"<OpenSplits {len(self._names)}, {len(self._changed)} changed>"

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def has_changed(self) -> bool:
        """Whether splits came or went since ``take_changed``."""
        return bool(self._changed)

    def add(self, names: Iterable[str]) -> None:
        """Note that splits came."""
        for name in names:
            self._names.add(name)
            self._changed[name] = None

    def remove(self, names: Iterable[str]) -> None:
        """Note that splits have ended; unknown ones are ignored."""
        for name in names:
            if name in self._names:
                self._names.remove(name)
                self._changed[name] = None

    def take_changed(self) -> Sequence[str]:
        """The splits that came or went, each once; ``in`` tells which."""
        changed = self._changed
        self._changed = {}
        return tuple(changed)


class SourceReaderBase(ABC):
    """Base class of the readers of flowlet.  Threading: task thread, but for ``progress``.

    Attributes:
        ctx: of the operator, from ``setup`` on: clock, interrupts, counters.
        never_waits: whether no poll waits: then the records of several polls may leave together, which is cheaper; the
            records of other readers leave at once, since the next poll may wait.
        gives_again: whether a reader whose position is None gives its records again after a restart.
        pauses_splits: whether ``pause_or_resume_splits`` has an effect.
    """

    ctx: OperatorContext = _NO_TASK
    never_waits: bool = False
    gives_again: bool = True
    pauses_splits: bool = False

    def setup(self, ctx: OperatorContext) -> None:
        """Take the operator's context: its clock, timers and counters.  The first call of all."""
        self.ctx = ctx

    def restore_position(self, position: Any) -> None:  # noqa: B027  # a reader without a position is never restored
        """Go on at a position of ``snapshot_position`` or of ``redistribute_positions``."""

    def start(self, request_splits: Callable[[], None]) -> None:  # noqa: B027  # most know their share
        """Begin; ``request_splits`` asks the enumerator for splits, if the source has one."""

    @abstractmethod
    def poll_chunk(self) -> ReaderElement | None:
        """The next records, a watermark or status, an empty chunk if there is nothing just now, or None at the end."""

    def available_future(self) -> AvailabilityFuture | None:
        """The future that is done when another poll is worth it after an empty chunk; None: poll again at once."""
        return None

    @property
    def progress(self) -> float | None:
        """The fraction read so far, 0 to 1; None: unknown.  Any thread."""
        return None

    def close(self) -> None:  # noqa: B027  # nothing is open
        """Give back files and the like."""

    # -- splits

    @property
    def open_splits(self) -> OpenSplits | None:
        """The splits that may still give records; they hold the watermark back until they do.

        None: the reader has no splits, and one watermark.
        """
        return None

    @property
    def current_split(self) -> str:
        """The split of the last polled records, if there are splits."""
        return ""

    def add_splits(self, splits: Sequence[Any], waiting_bytes: int) -> None:
        """Take splits that the enumerator gave after a request.

        ``waiting_bytes``: how many bytes of splits the enumerator still has for all readers together.
        """
        raise NotImplementedError(f"{type(self).__name__} has no add_splits()")

    def no_more_splits(self) -> None:  # noqa: B027  # it has no splits
        """Note that the enumerator has no splits left."""

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:  # noqa: B027  # as above
        """Pause the splits ``pause`` and resume the splits ``resume``."""

    # -- checkpoints

    def hold(self) -> Sequence[ReaderElement]:
        """Keep the function from going on until ``snapshot_function``; returns the elements that it emitted and that
        were not polled.
        """
        return ()

    def snapshot_function(self, checkpoint_id: int, timestamp_ms: int) -> None:  # noqa: B027  # most have no function
        """Let the user's function save its data in its states, and copy these; then it goes on."""

    def snapshot_position(self) -> object | None:
        """The position behind the last polled record, as a value that never changes; None: the reader has none."""
        return None

    def position_taken(self, checkpoint_id: int, num_waiting: int) -> None:  # noqa: B027  # nothing depends on it
        """Note that the checkpoint has the position that ``snapshot_position`` just returned, and the last
        ``num_waiting`` records, which wait to be processed.
        """

    def position_kept(self, checkpoint_id: int) -> None:  # noqa: B027  # as above
        """Note that the checkpoint is complete.  Must not block."""

    def position_lost(self, checkpoint_id: int) -> None:  # noqa: B027  # as above
        """Note that the checkpoint has failed; not called for every checkpoint that fails."""

    def mark_emitted(self, number: int) -> None:  # noqa: B027  # as above
        """Note that a completion mark follows the records so far."""

    def mark_completed(self, number: int) -> None:  # noqa: B027  # as above
        """Note that the completion mark has passed every task of the job."""


class ReaderByNames(SourceReaderBase):
    """Calls a user's reader that derives from no class of ours: the methods above that it has, by name, and
    ``use_clock``.

    ``has_splits``: whether the JobManager hands out the splits of its source; else a method ``start`` of the reader is
        not ours to call.
    """

    def __init__(self, reader: Any, *, has_splits: bool) -> None:
        self.reader = reader
        self.keeps_position = getattr(reader, "snapshot_position", None) is not None
        self.pauses_splits = getattr(reader, "pause_or_resume_splits", None) is not None
        self.never_waits = bool(getattr(reader, "never_waits", False))
        self._has_splits = has_splits
        for name in (*_BY_NAME, *(_OF_SPLITS if has_splits else ())):
            if getattr(reader, name, None) is not None:
                setattr(self, name, _call_of(reader, name))

    def setup(self, ctx: OperatorContext) -> None:
        """Give the reader the clock, if it has ``use_clock``.  Raises FlowletError: its source has splits, and it lacks
        a method that takes them.
        """
        missing = [name for name in _OF_SPLITS if getattr(self.reader, name, None) is None]
        if self._has_splits and missing:
            raise FlowletError(f"a {type(self.reader).__name__} is to read splits, and has no {missing[0]}()")
        if hasattr(self.reader, "use_clock"):
            self.reader.use_clock(ctx.processing_time_service)

    def poll_chunk(self) -> ReaderElement | None:
        """The next element of the user's reader."""
        element: ReaderElement | None = self.reader.poll_chunk()
        return element

    @property
    def progress(self) -> float | None:
        """The fraction read so far, if the reader tells it."""
        return getattr(self.reader, "progress", None)

    @property
    def open_splits(self) -> OpenSplits | None:
        """The open splits, if the reader has some."""
        return getattr(self.reader, "open_splits", None)

    @property
    def current_split(self) -> str:
        """The split of the last polled records, if there are splits."""
        return getattr(self.reader, "current_split", "")


def _call_of(reader: Any, name: str) -> Callable[..., Any]:
    return lambda *arguments: getattr(reader, name)(*arguments)


_BY_NAME: Final = (
    *("available_future", "close", "mark_completed", "mark_emitted", "pause_or_resume_splits", "position_kept"),
    *("position_lost", "position_taken", "restore_position", "snapshot_position"),
)
_OF_SPLITS: Final = ("start", "add_splits", "no_more_splits")


class Source(ABC):
    """A source of records.

    ``split_set``: from it the JobManager finds the splits that it hands out to the readers; None: each reader knows its
    share.
    """

    is_bounded: bool = True
    split_set: SplitSet | None = None

    @abstractmethod
    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """The reader of subtask ``subtask`` of ``parallelism``; together they read everything once."""


def split_set_of(source: Source) -> SplitSet | None:
    """The ``split_set`` of a source; None: it has none, as a user's source need not."""
    found = getattr(source, "split_set", None)
    return found if isinstance(found, SplitSet) else None
