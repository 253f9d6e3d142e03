"""``SinkOperator``: runs the writer and the committer of a ``Sink``.

Hot path, per chunk: one call of ``write_all``, if the writer overrides it, or of ``write_chunk``; else one call of
``write`` per record.

Side:       task.
Invariants: in front of each barrier the writer is flushed, and its prepared committables become part of that
            checkpoint.  They are committed when that checkpoint, or a later one, is complete; after a restart, before
            the first record, because restored committables belong to a complete checkpoint.  The last records belong to
            the checkpoint that each task waits for at its end, or, in a job without checkpoints, are committed at the
            end.  So a subtask ends only after its last commit, and a commit that fails fails the job.
Source:     Flink ``SinkWriterOperator``, ``CommitterOperator``, which are two operators there.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from flowlet.chain.loop_code import num_processed
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.connectors.base import (
    Committer,
    CommittingSinkWriter,
    Sink,
    SinkWriter,
    SinkWriterContext,
    StatefulSinkWriter,
    SupportsCommitter,
    SupportsGlobalCommitter,
    SupportsWriterState,
    WriterInitContext,
)
from flowlet.datastream.state import ListState, ListStateDescriptor
from flowlet.errors import StateRestoreError, TaskCancelled
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.records import Chunk, Watermark
from flowlet.serde.type_serializer import preview
from flowlet.sinks.commit_runner import END, ChunkWriter, CommitRunner, Committed, SinkCalls


class SinkOperator(StreamOperator):
    """Writes the records of one subtask, and commits them.

    Args:
        sink: pickled; every subtask runs a copy.
        name: for people.
    """

    takes_chunks = True
    waits = True  # for files and databases: never on the loop's thread
    runs_after_finish = True  # the final checkpoint may hold committables that are not committed yet

    def __init__(self, sink: Sink, *, name: str = "Sink: Writer") -> None:
        self.name = name
        self.sink = sink
        self._is_finished = False
        self._writer: SinkWriter[Any] | None = None  # None: not open, or the subtask had finished before the restart
        self._runner: CommitRunner | None = None  # set by open
        self._writer_states: ListState[Any] | None = None
        self._committables: ListState[Any] | None = None
        self._completed_id = 0  # the last checkpoint that is known to be complete

    @property
    def commits(self) -> bool:
        """Whether records count only when they are committed."""
        return isinstance(self.sink, SupportsCommitter)

    # -- life

    def restored_after_finish(self) -> StreamOperator:
        """Return this operator, which refuses records from now on and commits the checkpoint's committables."""
        self._is_finished = True
        return self

    def open(self) -> None:
        """Commit the committables of the checkpoint, then make the writer."""
        self._calls = SinkCalls(self.name, self.ctx.subtask, self.ctx.attention)
        self._context = SinkWriterContext()
        init = WriterInitContext(self.ctx)
        sink = self.sink
        committer = None
        if isinstance(sink, SupportsCommitter):
            make = partial(sink.create_committer, init)
            committer = self._calls.made(sink, "create_committer()", make, Committer)
        on_committed = self._send_committed if isinstance(sink, SupportsGlobalCommitter) else None
        self._runner = runner = CommitRunner(self.ctx, self._calls, committer, on_committed)
        if isinstance(sink, SupportsCommitter):
            self._committables = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("committables"))
            if self.ctx.restored_checkpoint_id is not None:
                self._completed_id = self.ctx.restored_checkpoint_id
                runner.commits.restore(self._committables)
                runner.commit_all()
        states: list[Any] = []
        if isinstance(sink, SupportsWriterState):
            self._writer_states = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("writer-states"))
            states = list(self._writer_states)
        if not self._is_finished:
            self._open_writer(init, states)

    def _open_writer(self, init: WriterInitContext, states: Sequence[Any]) -> None:
        sink = self.sink
        is_restored = self.ctx.restored_checkpoint_id is not None
        kinds: list[type] = [SinkWriter]
        kinds += [CommittingSinkWriter] if isinstance(sink, SupportsCommitter) else []
        kinds += [StatefulSinkWriter] if isinstance(sink, SupportsWriterState) else []
        if isinstance(sink, SupportsWriterState) and is_restored:
            make: Callable[[], object] = partial(sink.restore_writer, init, states)
        else:
            make = partial(sink.create_writer, init)
        self._writer = self._calls.made(sink, "create_writer()", make, *kinds)
        self._write_chunk = self._write_whole if isinstance(self._writer, ChunkWriter) else self._write_values
        self._writes_all = type(self._writer).write_all is not SinkWriter.write_all

    def finish(self) -> None:
        """Write the last records, and without checkpoints commit them; with checkpoints the final one does."""
        if self._is_finished:
            return
        runner = self._opened
        if self._writer is not None:
            self._flush(self._writer, end_of_input=True)
        self._is_finished = True
        if not self.ctx.has_checkpoints:
            self._completed_id = END
            runner.commits.complete_all()
            runner.commit_all()
        elif runner.commits.has_due:  # they wait for another attempt, and no timer fires any more
            runner.commit_all()

    def close(self) -> None:
        """Close the writer and the committer, even if one of them raises."""
        writer = self._writer
        self._writer = None
        runner = self._runner
        self._runner = None
        try:
            if writer is not None:
                self._calls.last_call("close()", writer.close)
        finally:
            if runner is not None:
                runner.close()

    @property
    def _opened(self) -> CommitRunner:
        assert self._runner is not None, "open"
        return self._runner

    # -- elements

    def process_chunk(self, chunk: Chunk) -> None:
        """Write the records.

        Raises:
            UserFunctionError: the writer failed; names the record, unless the writer took all at once.
            StateRestoreError: the subtask had finished before the restart.
        """
        if self._is_finished:
            raise StateRestoreError(
                f"operator {self.name!r} had finished when its checkpoint was taken, but a producer has sent it "
                f"{len(chunk)} more records: was the producer restored from another checkpoint?"
            )
        if len(chunk):
            self._write_chunk(chunk, self.ctx.attention)

    def process_some(self, chunk: Chunk) -> int:
        """Write records, with a writer of single records until a mail waits; return how many were written.

        Raises as ``process_chunk``.
        """
        if self._is_finished or not len(chunk):
            self.process_chunk(chunk)
            return len(chunk)
        return self._write_chunk(chunk, self.ctx.interrupts)

    def process_watermark(self, watermark: Watermark) -> None:
        """Keep the watermark for the writer's context, then pass it on."""
        self._context.watermark = watermark.timestamp
        super().process_watermark(watermark)

    def _write_whole(self, chunk: Chunk, _interrupts: Interrupts) -> int:
        writer = self._writer
        assert isinstance(writer, ChunkWriter), "it was checked"
        num_records = len(chunk)
        self._calls.call("write_chunk()", writer.write_chunk, chunk, self._context)
        return num_records

    def _write_values(self, chunk: Chunk, interrupts: Interrupts) -> int:
        writer = self._writer
        context = self._context
        assert writer is not None, "open"
        if self._writes_all:
            context.record_timestamp = None
            num_records = len(chunk)
            self._calls.call("write_all()", writer.write_all, chunk.values, context)
            return num_records
        num_done: int = self._calls.call("write()", self._write_one_by_one, writer, chunk, interrupts)
        return num_done

    def _write_one_by_one(self, writer: SinkWriter[Any], chunk: Chunk, interrupts: Interrupts) -> int:
        context = self._context
        value = None
        write = writer.write
        records = chunk.records()
        timestamps: Iterable[int | None] = repeat(None) if chunk.timestamps is None else chunk.timestamps
        try:
            for value, context.record_timestamp in zip(records, timestamps, strict=False):
                write(value, context)
                if interrupts and (num_left := interrupts.leave(records, lambda: None)) is not None:
                    return len(chunk) - num_left
            return len(chunk)
        except TaskCancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the writer's error, not the end of the process
            self._calls.fail(error, "write()", preview(value), num_processed(records, len(chunk)))

    # -- checkpoints

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Flush the writer; its prepared committables belong to this checkpoint."""
        if self._writer is not None and not self._is_finished:
            self._flush(self._writer, end_of_input=False)
        self._opened.commits.assign(checkpoint_id)

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Put the state of the writer and the committables that are not committed into the operator's state."""
        writer = self._writer
        if self._writer_states is not None:
            states: Sequence[Any] = ()
            if isinstance(writer, StatefulSinkWriter):
                states = self._calls.call("snapshot_state()", writer.snapshot_state, checkpoint_id)
            self._writer_states.update(list(states))
        if self._committables is not None:
            self._committables.update(self._opened.commits.elements())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit the committables of this checkpoint and of earlier ones."""
        runner = self._opened
        self._completed_id = checkpoint_id
        runner.commits.complete(checkpoint_id)
        if self._is_finished:
            runner.commit_all()
        else:
            runner.commit_or_retry_later()

    def _flush(self, writer: SinkWriter[Any], *, end_of_input: bool) -> None:
        self._calls.call("flush()", lambda: writer.flush(end_of_input=end_of_input))
        if isinstance(writer, CommittingSinkWriter) and isinstance(self.sink, SupportsCommitter):
            self._opened.commits.prepare(self._calls.call("prepare_commit()", writer.prepare_commit))

    def _send_committed(self, committables: Sequence[Any]) -> None:
        """Send the committed committables to the global committer; also none, because it waits for all subtasks."""
        ctx = self.ctx
        self.output.collect(Chunk([Committed(self._completed_id, ctx.subtask, ctx.parallelism, tuple(committables))]))
