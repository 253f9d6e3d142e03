"""The base classes of connectors, from which users derive sources and sinks and which tasks call.

Side:   pure.  A connector describes; the task that runs it opens files and sockets, makes its writers and committers,
        and makes all calls on its own thread.
Source: PyFlink ``pyflink.datastream.connectors.base``; Flink ``DiscardingSink``, ``Sink`` and its mix-ins.  Not in
        PyFlink, with names in the style of Python: Flink ``SinkWriter``, ``StatefulSinkWriter``,
        ``CommittingSinkWriter``, ``WriterInitContext``, ``Committer``, ``Committer.CommitRequest``; FLIP-27 (Flink
        ``Source``, ``SourceSplit``, ``SplitEnumerator``, ``SourceReader``) in one class, ``SplitSource``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.chain.stream_operator import OperatorContext
    from flowlet.timers.keyed_timer_service import ProcessingTimeService

# The names that PyFlink's module of this name has; the package exports all.
__all__ = [
    "BuiltInSource",
    "DeliveryGuarantee",
    "DiscardingSink",
    "Sink",
    "Source",
    "SupportsCommitter",
    "SupportsGlobalCommitter",
    "SupportsWriterState",
]


InputT = TypeVar("InputT")
_NO_WATERMARK: Final = -(2**63)  # Flink's ``Long.MIN_VALUE``


class WriterInitContext:
    """The subtask that a writer or a committer is made for.

    In a test it may have no ``ctx``, and is never cancelled then.
    """

    _ctx: "OperatorContext" = None  # type: ignore[assignment]
    operator_id = b""  # 16 bytes that survive a restart of the job; for sinks of ours

    def __init__(self, ctx: "OperatorContext | None" = None) -> None:
        if ctx is not None:
            self._ctx = ctx
            self.operator_id = ctx.operator_id

    def get_index_of_this_subtask(self) -> int:
        """The index of the subtask, from 0."""
        return self._ctx.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the sink."""
        return self._ctx.parallelism

    def get_attempt_number(self) -> int:
        """How often the subtask was restarted."""
        return self._ctx.attempt

    def get_job_id(self) -> str:
        """The id of the job, 32 hex digits; another one after a start from a savepoint."""
        return self._ctx.job_id

    def get_restored_checkpoint_id(self) -> int | None:
        """The checkpoint that the job goes on from; None: it began anew."""
        return self._ctx.restored_checkpoint_id

    def get_processing_time_service(self) -> "ProcessingTimeService":
        """The clock of the task, with ``current_time_ms()`` and ``register_timer(timestamp_ms, callback)``; Flink's,
        with our names.  Timers that it fires run on the thread of the task.
        """
        return self._ctx.processing_time_service

    def check_cancelled(self) -> None:
        """Raise an error, which must be let through, if the task is being cancelled; Flink interrupts the thread.

        A writer, or a committer, that waits for another system calls this method about once a second meanwhile.  If it
        does not, and waits for longer than ``task.cancellation.timeout``, its TaskManager ends, with the tasks of all
        other jobs.
        """
        if self._ctx is not None:
            self._ctx.check_cancelled()


class SinkWriterContext:
    """The record that is being written; valid during one call of ``write``: there is one object for all records."""

    __slots__ = ("record_timestamp", "watermark")

    def __init__(self, watermark: int = _NO_WATERMARK) -> None:
        self.record_timestamp: int | None = None
        self.watermark = watermark

    def timestamp(self) -> int | None:
        """The timestamp of the record, in milliseconds; None: it has none."""
        return self.record_timestamp

    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""
        return self.watermark


class SinkWriter(ABC, Generic[InputT]):
    """Writes the records of one subtask.

    Life cycle: ``write`` any number of times; ``flush`` before each checkpoint and at the end of the input; ``close``,
        always.
    """

    @abstractmethod
    def write(self, value: InputT, context: SinkWriterContext) -> None:
        """Take one record."""

    def write_all(self, values: Sequence[InputT], context: SinkWriterContext) -> None:
        """Take records in their order; override it where one call for many is cheaper.

        ``context`` has no timestamp.  Not in Flink.
        """
        for value in values:
            self.write(value, context)

    @abstractmethod
    def flush(self, *, end_of_input: bool) -> None:
        """Write out waiting records; when this returns, all records so far are as safe as the sink promises."""

    def close(self) -> None:  # nothing to do unless overridden
        """Release what the writer holds; also called after a failure."""


class StatefulSinkWriter(SinkWriter[InputT]):
    """A writer with state; its sink is a ``SupportsWriterState``."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        """The state in parts, for any number of subtasks to share; called after ``flush`` and ``prepare_commit``."""


class CommittingSinkWriter(SinkWriter[InputT]):
    """A writer whose records count when a checkpoint is complete; its sink is a ``SupportsCommitter``."""

    @abstractmethod
    def prepare_commit(self) -> Sequence[Any]:
        """The records written since the last call, as committables that can be pickled; called after ``flush`` and
        before ``snapshot_state``.
        """


CommittableT = TypeVar("CommittableT")


class Outcome(Enum):
    """The answer of a committer to a request."""

    COMMITTED = auto()
    RETRY = auto()
    LOST = auto()  # it can never be committed
    UNKNOWN = auto()  # whether it can be committed is not known


@dataclass(slots=True, eq=False)
class CommitRequest(Generic[CommittableT]):
    """One committable of one subtask, from its preparation until it is committed.

    Unless one of its methods is called, the committable counts as committed when ``Committer.commit`` returns.
    ``subtask``: the one that prepared it.  ``checkpoint_id``: the first checkpoint that holds it.  ``outcome``: of the
    last attempt.
    """

    committable: CommittableT
    subtask: int = 0
    checkpoint_id: int = 0
    num_retries: int = 0
    outcome: Outcome = Outcome.COMMITTED
    error: Exception | None = None

    def __repr__(self) -> str:
        return f"<CommitRequest of checkpoint {self.checkpoint_id}, subtask {self.subtask}, {self.num_retries} retries>"

    def get_committable(self) -> CommittableT:
        """The committable, as the writer prepared it."""
        return self.committable

    def get_number_of_retries(self) -> int:
        """How often this request was tried before."""
        return self.num_retries

    def retry_later(self) -> None:
        """Ask for another attempt after a pause: the failure will pass."""
        self.outcome = Outcome.RETRY

    def update_and_retry_later(self, committable: CommittableT) -> None:
        """Ask for an attempt with this committable instead, after a pause."""
        self.committable = committable
        self.outcome = Outcome.RETRY

    def signal_already_committed(self) -> None:
        """Report that the committable was committed before the restart, which is no failure."""
        self.outcome = Outcome.COMMITTED

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """Report that the committable can never be committed: its records are lost, which is logged and counted."""
        self.outcome = Outcome.LOST
        self.error = error

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """Report a failure that fails the job, which tries this committable again after its restart."""
        self.outcome = Outcome.UNKNOWN
        self.error = error


class Committer(ABC, Generic[CommittableT]):
    """Commits the committables of writers, once the checkpoint that holds them is complete.

    After a restart committables come again that may be committed already: ``commit`` must be idempotent.  An exception
    counts as a failure of all requests, for an unknown reason.
    """

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Commit, in the order of the requests."""

    def close(self) -> None:  # nothing to do unless overridden
        """Release what the committer holds; also called after a failure."""


class DeliveryGuarantee(Enum):
    """How often a record is visible at the other side of a sink, if the job restarts on the way."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class Source:
    """Base class of the argument of ``from_source``.

    Your own source has ``create_reader(subtask, parallelism)``, which each subtask calls.  The reader's
    ``poll_chunk()`` returns a ``flowlet.records.Chunk``, or None at the end of the input; ``close()`` ends it.
    ``is_bounded`` says whether the input ends by itself.
    """

    is_bounded: bool = True


class BuiltInSource(Source):
    """A source of flowlet's own, which describes what to read; the client makes the runtime's source from it."""


class Sink:
    """Base class of the argument of ``sink_to``; your own sink has ``create_writer``.  It is pickled with the job."""

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask."""
        raise NotImplementedError(f"{type(self).__name__} has no create_writer()")


class SupportsWriterState(ABC):
    """A second base class of a sink whose writers are ``StatefulSinkWriter``s."""

    @abstractmethod
    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[Any]) -> StatefulSinkWriter[Any]:
        """The writer of one subtask that goes on from a checkpoint, in place of ``create_writer``; ``recovered_state``
        may be empty.
        """


class SupportsCommitter(ABC):
    """A second base class of a sink whose writers are ``CommittingSinkWriter``s."""

    @abstractmethod
    def create_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The committer of one subtask; it gets the committables of this sink's writers, of this subtask or of former
        ones.
        """


class SupportsGlobalCommitter(ABC):
    """A second base class of a ``SupportsCommitter`` that does one thing more for the whole sink,
    once per checkpoint.
    """

    @abstractmethod
    def create_global_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The one committer that gets the committables of all subtasks after these have committed them."""


class DiscardingSink(Sink):
    """Drops every record; to measure a job without its output."""


class NoRecord(Enum):
    """The type of ``NO_RECORD``."""

    NO_RECORD = "no record"


NO_RECORD: Final = NoRecord.NO_RECORD
"""A split yields this while it has no record; the other splits of its reader go on, and the split is asked again some
milliseconds later.
"""


class SplitSource(BuiltInSource):
    """Base class of a source that consists of parts (splits), such as the partitions of a log or the pages of a table.

    Each split is read in order by one subtask, and a subtask reads its splits side by side.  A ``WatermarkStrategy``
    follows every split by itself: the source's watermark is the lowest one of its open splits, splits without records
    become idle one by one, and with ``with_watermark_alignment`` a split that is too far ahead is paused.  How many
    records of each split were read belongs to checkpoints; splits that are left can be dealt out to another number of
    subtasks.

    ``is_bounded`` is False for a source whose splits have no end.  ``max_open_splits``: how many splits a subtask reads
    at once; the next one goes to the subtask that asks first.  None: all, each subtask its share from the start, so
    that no split can be late.
    """

    max_open_splits: int | None = None

    @abstractmethod
    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        """All splits by name, each with the object that ``read_split`` gets, which is pickled.

        Called in the program, when the job starts.
        """

    @abstractmethod
    def read_split(self, split: Any, num_read: int) -> Iterable[Any]:
        """The records of a split, without the first ``num_read``, which were read before a restart; runs in the tasks.

        Often a generator.  It must not block: while it has no record, it yields ``NO_RECORD``.  A split that is read
        again must yield equal records in an equal order.
        """
