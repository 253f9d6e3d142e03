"""Commits the committables of sinks: ``PendingCommits`` keeps them by checkpoint, ``CommitRunner`` commits those that
are due, and ``GlobalCommitOperator`` is the one subtask behind a sink that does one thing more for all its subtasks.

``SinkCalls`` calls the methods of users' sinks, and puts the operator into their errors.  ``BadRecordError``: a writer
that takes many records at once says which of them it cannot write.  ``ChunkWriter``: a writer of ours that takes chunks
as they are, for columns.

Side:       task.
Invariants: a committable is due once a checkpoint is complete that holds it, never before; due ones are attempted in
            the order in which they were prepared; none is dropped unless it was committed, or its committer says that
            it never can be.  While records flow, a pause is a timer, and the task does not wait.  Before the first and
            after the last record no timer fires: then ``commit_all`` returns when none is due any more.  The global
            operator commits a committable only after its subtask has committed it, and together with the committables
            of all other subtasks; those that it took over and has not committed are state.  After a restart each
            subtask sends the committables that it commits again, and only then does the global operator commit.
Rules:      a message of a subtask says that it has committed all of its checkpoint and of earlier ones.  So checkpoints
            of which all subtasks have sent messages can be committed.  Messages of the last checkpoint come behind the
            end of the data.
Units:      pauses in milliseconds.
Source:     Flink ``CommittableCollector``, ``CheckpointCommittableManagerImpl``, ``CommitRequestImpl``,
            ``CommitRequestState``; ``CommitterOperator.commitAndEmitCheckpoints``; ``GlobalCommitterOperator``,
            ``CommittableSummary``; ``SinkWriterOperator.Context``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.datastream.connectors.base import (
    CommitRequest,
    Committer,
    Outcome,
    SinkWriterContext,
    SupportsGlobalCommitter,
    WriterInitContext,
)
from flowlet.datastream.state import ListState, ListStateDescriptor
from flowlet.errors import FlowletError, TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import Cancellable
from netstack.loop.forks import end_stranded_child

END: Final = 2**63 - 1  # as the number of a checkpoint: the end of a job without any


class BadRecordError(FlowletError):
    """A record cannot be written; raised ``from`` the reason.

    The sink's operator makes a UserFunctionError of it, which shows the record.
    """

    def __init__(self, record: Any) -> None:
        super().__init__("a record cannot be written")
        self.record = record


class ChunkWriter(ABC):
    """A second base class of a ``SinkWriter`` that takes whole chunks."""

    @abstractmethod
    def write_chunk(self, chunk: Chunk, context: SinkWriterContext) -> None:
        """Take all records of a chunk, which the context does not describe.

        Raises BadRecordError: a record cannot be written.
        """


T = TypeVar("T")


class SinkCalls:
    """The calls of one operator of a subtask."""

    def __init__(self, operator: str, subtask: int, attention: Attention) -> None:
        self._operator = operator
        self._subtask = subtask
        self._attention = attention

    def call(self, what: str, method: Callable[..., T], *args: Any) -> T:
        """Call a method and return its result; ``what`` names the method in an error.

        Raises:
            TaskCancelled: the task was cancelled before the call.
            UserFunctionError, FlowletError: as ``fail``.
        """
        self._attention.check()  # the call before may have taken a minute
        return self.last_call(what, method, *args)

    def last_call(self, what: str, method: Callable[..., T], *args: Any) -> T:
        """Call a method, as ``call`` does, also when the task was cancelled: for ``close()``."""
        try:
            result = method(*args)
        except BaseException as error:  # noqa: BLE001 - raised again, as the error of the sink
            self.fail(error, what)
        end_stranded_child()
        return result

    def made(self, sink: object, what: str, make: Callable[[], object], *kinds: type) -> Any:
        """Call a method and return the object that it makes.  Raises FlowletError: it is not of all these classes."""
        made = self.call(what, make)
        for kind in kinds:
            if not isinstance(made, kind):
                raise FlowletError(
                    f"operator {self._operator!r}: {what} of {type(sink).__name__} must return a {kind.__name__}, got "
                    f"{preview(made)} of type {type(made).__name__}"
                )
        return made

    def fail(self, error: BaseException, what: str, record: str | None = None, num_processed: int = 0) -> NoReturn:
        """Raise the error of a method; ``num_processed``: so many records of the slice came before.

        Raises:
            UserFunctionError: from the error of a user; with the preview of the record, if it is known.
            FlowletError: from an error of a sink of ours, whose message says all.
        """
        end_stranded_child()
        if isinstance(error, UserFunctionError | TaskCancelled):
            raise error
        if isinstance(error, BadRecordError):
            raise UserFunctionError(self._operator, self._subtask, preview(error.record)) from error.__cause__
        if isinstance(error, FlowletError):
            raise FlowletError(f"operator {self._operator!r} (subtask {self._subtask}): {error}") from error
        error.add_note(f"raised by {what}")
        failure = UserFunctionError(self._operator, self._subtask, record)
        failure.num_processed = num_processed
        raise failure from error


MAX_RETRIES: Final = 10  # Flink's ``sink.committer.retries``: then the job fails, and commits again after the restart


class PendingCommits:
    """The committables of one subtask.

    Life cycle: ``restore`` once, if at all; then ``prepare``, ``assign`` and ``complete`` as the checkpoints go;
        whenever there are ``due`` ones: ``begin``, the committer, ``settle``.
    """

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask
        self._prepared: list[CommitRequest[Any]] = []  # not in a checkpoint yet
        self._waiting: list[CommitRequest[Any]] = []  # in one that is not complete
        self._due: list[CommitRequest[Any]] = []

    def __repr__(self) -> str:
        return f"<PendingCommits: {len(self._prepared)} prepared, {len(self._waiting)} waiting, {len(self._due)} due>"

    @property
    def has_due(self) -> bool:
        """Whether there are committables to commit now."""
        return bool(self._due)

    def prepare(self, committables: Iterable[Any]) -> None:
        """Add committables that the writer prepared; they belong to the next checkpoint."""
        self._prepared += [CommitRequest(each, self._subtask) for each in committables]

    def assign(self, checkpoint_id: int) -> None:
        """Note that this checkpoint holds the prepared committables."""
        for each in self._prepared:
            each.checkpoint_id = checkpoint_id
        self._waiting += self._prepared
        self._prepared = []

    def take(self, checkpoint_id: int, subtask: int, committables: Iterable[Any]) -> None:
        """Add committables of another subtask, which has committed them."""
        self._waiting += [CommitRequest(each, subtask, checkpoint_id) for each in committables]

    def complete(self, checkpoint_id: int) -> None:
        """Make the committables of a complete checkpoint, and of earlier ones, due."""
        due = [each for each in self._waiting if each.checkpoint_id <= checkpoint_id]
        # Stable, so requests of a subtask keep their order; requests of several subtasks may be mixed.
        self._due += sorted(due, key=lambda each: each.checkpoint_id)
        self._waiting = [each for each in self._waiting if each.checkpoint_id > checkpoint_id]

    def complete_all(self) -> None:
        """Make all committables due, at the end of a job without checkpoints: no record can be lost any more."""
        self._due += [*self._waiting, *self._prepared]
        self._waiting = []
        self._prepared = []

    def begin(self) -> list[CommitRequest[Any]]:
        """Begin an attempt: return the due requests, in order; each is committed unless the committer objects."""
        for each in self._due:
            each.outcome = Outcome.COMMITTED
            each.error = None
        return list(self._due)

    def settle(self) -> list[CommitRequest[Any]]:
        """Drop committed and lost requests; the others are due again.  Returns all requests of the attempt."""
        attempted = self._due
        self._due = [each for each in attempted if each.outcome in (Outcome.RETRY, Outcome.UNKNOWN)]
        for each in self._due:
            if each.outcome is Outcome.RETRY:
                each.num_retries += 1
        return attempted

    @property
    def failed(self) -> CommitRequest[Any] | None:
        """The first due request that failed for an unknown reason, or was tried too often; None: there is none."""
        failures = (each for each in self._due if each.outcome is Outcome.UNKNOWN or each.num_retries > MAX_RETRIES)
        return next(failures, None)

    # -- state

    def elements(self) -> list[tuple[int, int, Any]]:
        """Checkpoint, subtask and committable of all requests that a checkpoint must hold, in order."""
        assert not self._prepared, "a checkpoint has taken over what was prepared"
        return [(each.checkpoint_id, each.subtask, each.committable) for each in (*self._due, *self._waiting)]

    def restore(self, elements: Iterable[tuple[int, int, Any]]) -> None:
        """Take over elements of a checkpoint; it is complete, so all are due."""
        self._due += [CommitRequest(each, subtask, number) for number, subtask, each in elements]


RETRY_PAUSE_MS: Final = 1_000  # Flink's of ``retry_later``
_log = LogLines(__name__)


@dataclass(slots=True, eq=False)
class CommitRunner:
    """The commits of one operator of a subtask.

    Args:
        ctx: of the operator.
        calls: of the operator.
        committer: None: no committable is ever due.
        on_committed: gets the committed committables, whenever none is due any more.
    """

    _ctx: OperatorContext
    _calls: SinkCalls
    _committer: Committer[Any] | None
    _on_committed: Callable[[Sequence[Any]], None] | None = None
    commits: PendingCommits = field(init=False)
    _committed: list[Any] = field(init=False, default_factory=list)  # that ``on_committed`` has not got yet
    _timer: Cancellable | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.commits = PendingCommits(self._ctx.subtask)

    def __repr__(self) -> str:
        return f"<CommitRunner of {self._ctx.operator_name!r}, {self.commits!r}>"

    def commit_or_retry_later(self) -> None:
        """Try to commit the due committables once; a timer tries the rest again."""
        self._stop_timer()
        self._commit()
        if self.commits.has_due:
            clock = self._ctx.processing_time_service
            self._timer = clock.register_timer(clock.current_time_ms() + RETRY_PAUSE_MS, self._retry)

    def commit_all(self) -> None:
        """Commit all due committables; waits between the attempts."""
        self._stop_timer()
        self._commit()
        while self.commits.has_due:
            self._ctx.pause(RETRY_PAUSE_MS)
            self._commit()

    def close(self) -> None:
        """Close the committer."""
        committer = self._committer
        self._committer = None
        self._stop_timer()
        if committer is not None:
            self._calls.last_call("close()", committer.close)

    def _retry(self, _: int) -> None:
        self._timer = None
        self.commit_or_retry_later()

    def _commit(self) -> None:
        """Try once to commit the due committables."""
        committer = self._committer
        if committer is not None and self.commits.has_due:
            self._calls.call("commit()", committer.commit, self.commits.begin())
            attempted = self.commits.settle()
            for each in attempted:
                if each.outcome is Outcome.LOST:
                    self._report_lost(each)
            failed = self.commits.failed
            if failed is not None:
                error = failed.error
                if error is None:
                    again = f"was to be committed again after {failed.num_retries - 1} retries"
                    error = FlowletError(f"{preview(failed.committable)} {again}")
                self._calls.fail(error, "commit()")
            self._committed += [each.committable for each in attempted if each.outcome is Outcome.COMMITTED]
        if self._on_committed is not None and not self.commits.has_due:
            committed = self._committed
            self._committed = []
            self._on_committed(committed)

    def _report_lost(self, request: CommitRequest[Any]) -> None:
        self._ctx.counters.num_lost_committables += 1
        _log.error(
            "never committed",
            operator=self._ctx.operator_name,
            checkpoint=request.checkpoint_id,
            committable=preview(request.committable),
            error=str(request.error),
        )

    def _stop_timer(self) -> None:
        timer = self._timer
        self._timer = None
        if timer is not None:
            timer.cancel()


@dataclass(frozen=True, slots=True)
class Committed:
    """A message of a subtask: it has committed these committables, and all that checkpoints up to this one hold.

    ``checkpoint_id``: END without checkpoints.  ``parallelism``: the number of subtasks that send messages.
    """

    checkpoint_id: int
    subtask: int
    parallelism: int
    committables: tuple[Any, ...]


class GlobalCommitOperator(StreamOperator):
    """Commits, in one subtask, the committables that all subtasks have committed."""

    runs_after_finish = True
    takes_late_data = True
    waits = True

    def __init__(self, sink: Any, *, name: str = "Sink: Global Committer") -> None:
        self.name = name
        self.sink: SupportsGlobalCommitter = sink
        self._committables: ListState[Any] | None = None
        self._newest: dict[int, int] = {}  # by subtask, the checkpoint of its last message

    def restored_after_finish(self) -> StreamOperator:
        """Return this operator: the messages of the last checkpoint come again."""
        return self

    def open(self) -> None:
        """Make the committer, and restore the committables that were not committed."""
        self._calls = SinkCalls(self.name, self.ctx.subtask, self.ctx.attention)
        make = partial(self.sink.create_global_committer, WriterInitContext(self.ctx))
        committer = self._calls.made(self.sink, "create_global_committer()", make, Committer)
        self._runner = CommitRunner(self.ctx, self._calls, committer)
        self._committables = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("global-committables"))
        for checkpoint_id, subtask, committable in self._committables:
            self._runner.commits.take(checkpoint_id, subtask, [committable])

    def process_chunk(self, chunk: Chunk) -> None:
        """Take messages, and commit the checkpoints that all subtasks have committed."""
        for message in chunk.values:
            self._runner.commits.take(message.checkpoint_id, message.subtask, message.committables)
            self._newest[message.subtask] = message.checkpoint_id
            if len(self._newest) == message.parallelism:
                self._runner.commits.complete(min(self._newest.values()))
        self._runner.commit_all()

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Put the committables that are not committed into the state."""
        if self._committables is not None:
            self._committables.update(self._runner.commits.elements())

    def close(self) -> None:
        """Close the committer."""
        if self._committables is not None:
            self._runner.close()
