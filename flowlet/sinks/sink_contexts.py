"""What writers and committers are told: ``InitContext`` and ``RecordContext``.

Side:   task.
Source: Flink ``WriterInitContext``, ``SinkWriterOperator.Context``.
"""

from flowlet.chain.stream_operator import OperatorContext
from flowlet.datastream.connectors.sink_writer import SinkWriterContext, WriterInitContext
from flowlet.records import MIN_TIMESTAMP
from flowlet.timers.time_api import ProcessingTimeService


class InitContext(WriterInitContext):
    """The subtask that runs a sink."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    @property
    def operator_id(self) -> bytes:
        """16 bytes that survive a restart of the job; for sinks of ours."""
        return self._ctx.operator_id

    @property
    def clock(self) -> ProcessingTimeService:
        """The clock of the task, and its timers; for sinks of ours."""
        return self._ctx.processing_time_service

    def check_cancelled(self) -> None:
        """Raise if the task is being cancelled."""
        self._ctx.check_cancelled()

    def get_index_of_this_subtask(self) -> int:
        """From 0."""
        return self._ctx.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the sink."""
        return self._ctx.parallelism

    def get_attempt_number(self) -> int:
        """How often the subtask was restarted."""
        return self._ctx.attempt

    def get_job_id(self) -> str:
        """32 hex digits."""
        return self._ctx.job_id

    def get_restored_checkpoint_id(self) -> int | None:
        """The checkpoint that the job goes on from; None: it began anew."""
        return self._ctx.restored_checkpoint_id

    def get_processing_time_service(self) -> ProcessingTimeService:
        """The clock of the task; timers that it fires run on the thread of the task."""
        return self._ctx.processing_time_service


class RecordContext(SinkWriterContext):
    """The record that is being written; one object for all records."""

    __slots__ = ("record_timestamp", "watermark")

    def __init__(self) -> None:
        self.record_timestamp: int | None = None
        self.watermark = MIN_TIMESTAMP

    def timestamp(self) -> int | None:
        """Of the record; None: it has none."""
        return self.record_timestamp

    def current_watermark(self) -> int:
        """The last watermark that reached the sink."""
        return self.watermark
