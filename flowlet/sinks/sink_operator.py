"""``SinkOperator``: runs the writer and the committer of a ``Sink``.

Hot path, per chunk: one call of ``write_all``, if the writer overrides it, or of ``write_chunk``; else one call of ``write`` per record.

Side:       task.
Invariants: in front of each barrier the writer is flushed, and what it has prepared becomes part of that checkpoint.  It is committed when
            that checkpoint, or a later one, is complete; after a restart, before the first record, because what was restored belongs to a
            complete checkpoint.  The last records belong to the checkpoint that each task waits for at its end, or, in a job without
            checkpoints, are committed at the end.  So a subtask ends only after its last commit, and a commit that fails fails the job.
Units:      pauses in milliseconds.
Source:     Flink ``SinkWriterOperator``, ``CommitterOperator``, which are two operators there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar, runtime_checkable

from flowlet.chain.preview import preview
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.connectors.base import Sink, SupportsCommitter, SupportsWriterState
from flowlet.datastream.connectors.committer import Committer
from flowlet.datastream.connectors.sink_writer import CommittingSinkWriter, SinkWriter, StatefulSinkWriter
from flowlet.datastream.state import ListState, ListStateDescriptor
from flowlet.errors import FlowletError, StateRestoreError, TaskCancelled, UserFunctionError
from flowlet.records import Chunk, Watermark
from flowlet.sinks.bad_record import BadRecordError
from flowlet.sinks.pending_commits import PendingCommits, PendingRequest
from flowlet.sinks.sink_contexts import InitContext, RecordContext
from flowlet.timers.time_api import TimerHandle
from netstack.forks import end_stranded_child
from netstack.log_lines import LogLines

T = TypeVar("T")

RETRY_PAUSE_MS: Final = 1_000  # Flink's of ``retry_later``
_log = LogLines(__name__)


@runtime_checkable
class ChunkWriter(Protocol):
    """A writer of ours that takes chunks as they are, for columns."""

    def write_chunk(self, chunk: Chunk, context: RecordContext) -> None:
        """Take all records of a chunk, which the context does not describe.  Raises BadRecordError: one of them cannot be written."""


class SinkOperator(StreamOperator):
    """Writes the records of one subtask, and commits what was written.

    Args:
        sink: pickled; every subtask runs a copy.
        name: for people.
    """

    takes_chunks = True
    runs_after_finish = True  # the final checkpoint may hold what is not committed yet

    def __init__(self, sink: Sink, *, name: str = "Sink: Writer") -> None:
        self.name = name
        self.sink = sink
        self._is_finished = False
        self._writer: SinkWriter[Any] | None = None  # None: not open, or the subtask had finished before the restart
        self._committer: Committer[Any] | None = None  # None: the sink commits nothing
        self._writer_states: ListState[Any] | None = None
        self._committables: ListState[Any] | None = None
        self._retry_timer: TimerHandle | None = None

    @property
    def commits(self) -> bool:
        """Whether records count only when they are committed."""
        return isinstance(self.sink, SupportsCommitter)

    # -- life

    def restored_after_finish(self) -> StreamOperator:
        """Itself; no records come, and what the checkpoint holds is committed."""
        self._is_finished = True
        return self

    def open(self) -> None:
        """Commit what the checkpoint holds, then make the writer."""
        self._commits = PendingCommits(self.ctx.subtask)
        self._context = RecordContext()
        init, sink = InitContext(self.ctx), self.sink
        if isinstance(sink, SupportsCommitter):
            made = self._call("create_committer()", sink.create_committer, init)
            self._committer = self._checked("create_committer()", made, Committer)
            self._committables = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("committables"))
            self._commits.restore(self._committables)
            self._commit_all()
        states: list[Any] = []
        if isinstance(sink, SupportsWriterState):
            self._writer_states = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("writer-states"))
            states = list(self._writer_states)
        if not self._is_finished:
            self._open_writer(init, states)

    def _open_writer(self, init: InitContext, states: Sequence[Any]) -> None:
        sink, is_restored = self.sink, self.ctx.restored_checkpoint_id is not None
        kinds: list[type] = [SinkWriter]
        kinds += [CommittingSinkWriter] if isinstance(sink, SupportsCommitter) else []
        kinds += [StatefulSinkWriter] if isinstance(sink, SupportsWriterState) else []
        if isinstance(sink, SupportsWriterState) and is_restored:
            make: Callable[[], object] = partial(sink.restore_writer, init, states)
        else:
            make = partial(sink.create_writer, init)
        self._writer = self._checked("create_writer()", self._call("create_writer()", make), *kinds)
        self._write_chunk = self._write_whole if isinstance(self._writer, ChunkWriter) else self._write_values
        self._writes_all = type(self._writer).write_all is not SinkWriter.write_all

    def finish(self) -> None:
        """Write the last records, and without checkpoints commit them; with checkpoints the final one does."""
        writer = self._writer
        if writer is not None:
            self._flush(writer, end_of_input=True)
        self._is_finished = True
        if not self.ctx.has_checkpoints:
            self._commits.complete_all()
        self._commit_all()  # also what was to be tried again: no timer fires any more

    def close(self) -> None:
        """Close the writer and the committer, whatever either raises."""
        writer, self._writer = self._writer, None
        committer, self._committer = self._committer, None
        self._stop_retry_timer()
        try:
            if writer is not None:
                self._call("close()", writer.close)
        finally:
            if committer is not None:
                self._call("close()", committer.close)

    # -- elements

    def process_chunk(self, chunk: Chunk) -> None:
        """Write the records.

        Raises:
            UserFunctionError: the writer failed; names the record, unless the writer took all at once.
            StateRestoreError: the subtask had finished before the restart.
        """
        if self._is_finished:
            raise StateRestoreError(
                f"operator {self.name!r} had finished when its checkpoint was taken, but a producer has sent it {len(chunk)} more "
                "records: was the producer restored from another checkpoint?"
            )
        if len(chunk):
            self._write_chunk(chunk)
            end_stranded_child()

    def process_watermark(self, watermark: Watermark) -> None:
        """Remember it for the writer, then pass it on."""
        self._context.watermark = watermark.timestamp
        super().process_watermark(watermark)

    def _write_whole(self, chunk: Chunk) -> None:
        writer = self._writer
        assert isinstance(writer, ChunkWriter), "it was checked"
        self._call("write_chunk()", writer.write_chunk, chunk, self._context)

    def _write_values(self, chunk: Chunk) -> None:
        writer, context = self._writer, self._context
        assert writer is not None, "open"
        if self._writes_all:
            context.record_timestamp = None
            self._call("write_all()", writer.write_all, chunk.values, context)
            return
        value, write, timestamps = None, writer.write, chunk.timestamps
        try:
            if timestamps is None:
                context.record_timestamp = None
                for value in chunk.records():
                    write(value, context)
            else:
                for value, context.record_timestamp in zip(chunk.records(), timestamps, strict=True):
                    write(value, context)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the writer's error, not the end of the process
            self._raise(error, "write()", preview(value))

    # -- checkpoints

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Flush the writer; what it has prepared belongs to this checkpoint."""
        if self._writer is not None and not self._is_finished:
            self._flush(self._writer, end_of_input=False)
        self._commits.assign(checkpoint_id)

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Put the state of the writer and what is not committed into the operator's state."""
        writer = self._writer
        if self._writer_states is not None:
            states: Sequence[Any] = ()
            if isinstance(writer, StatefulSinkWriter):
                states = self._call("snapshot_state()", writer.snapshot_state, checkpoint_id)
            self._writer_states.update(list(states))
        if self._committables is not None:
            self._committables.update(self._commits.elements())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit what the checkpoint holds."""
        self._commits.complete(checkpoint_id)
        if self._is_finished:
            self._commit_all()
        else:
            self._commit_and_retry_later()

    # -- commits

    def _commit_and_retry_later(self) -> None:
        self._stop_retry_timer()
        self._commit()
        if self._commits.has_due:
            clock = self.ctx.processing_time_service
            self._retry_timer = clock.register_timer(clock.current_time_ms() + RETRY_PAUSE_MS, self._retry)

    def _retry(self, _: int) -> None:
        self._retry_timer = None
        self._commit_and_retry_later()

    def _commit_all(self) -> None:
        """Commit what is due; waits between the attempts, because no timers fire before the first and after the last record."""
        self._commit()
        while self._commits.has_due:
            self.ctx.pause(RETRY_PAUSE_MS)
            self._commit()

    def _commit(self) -> None:
        """Try once to commit what is due."""
        committer = self._committer
        if committer is None or not self._commits.has_due:
            return
        self._call("commit()", committer.commit, self._commits.begin())
        attempt = self._commits.settle()
        for each in attempt.lost:
            self.ctx.counters.num_lost_committables += 1
            _log.error("never committed", operator=self.name, checkpoint=each.checkpoint_id, committable=preview(each.committable),
                       error=str(each.error))  # fmt: skip
        if attempt.unknown is not None:
            self._raise(self._failure_of(attempt.unknown), "commit()", None)

    def _failure_of(self, request: PendingRequest) -> Exception:
        if request.error is not None:
            return request.error
        return FlowletError(f"{preview(request.committable)} was to be committed again after {request.num_retries - 1} retries")

    def _stop_retry_timer(self) -> None:
        timer, self._retry_timer = self._retry_timer, None
        if timer is not None:
            timer.cancel()

    def _flush(self, writer: SinkWriter[Any], *, end_of_input: bool) -> None:
        self._call("flush()", lambda: writer.flush(end_of_input=end_of_input))
        if isinstance(writer, CommittingSinkWriter) and self._committer is not None:
            self._commits.prepare(self._call("prepare_commit()", writer.prepare_commit))

    # -- calls of users' code

    def _checked(self, what: str, made: Any, *kinds: type) -> Any:
        for kind in kinds:
            if not isinstance(made, kind):
                raise FlowletError(
                    f"operator {self.name!r}: {what} of {type(self.sink).__name__} must return a {kind.__name__}, got {preview(made)} of "
                    f"type {type(made).__name__}"
                )
        return made

    def _call(self, what: str, method: Callable[..., T], *args: Any) -> T:
        try:
            result = method(*args)
        except BaseException as error:  # noqa: BLE001 - raised again, as the error of the sink
            self._raise(error, what, None)
        end_stranded_child()
        return result

    def _raise(self, error: BaseException, what: str, record: str | None) -> NoReturn:
        """Raise the error of a user's method, with the operator in it."""
        end_stranded_child()
        if isinstance(error, UserFunctionError | TaskCancelled):
            raise error
        if isinstance(error, BadRecordError):
            raise UserFunctionError(self.name, self.ctx.subtask, preview(error.record)) from error.__cause__
        if isinstance(error, FlowletError):  # a sink of ours, whose message says all
            raise FlowletError(f"operator {self.name!r} (subtask {self.ctx.subtask}): {error}") from error
        error.add_note(f"raised by {what}")
        raise UserFunctionError(self.name, self.ctx.subtask, record) from error
