"""What a sink writes with: ``SinkWriter`` and what a writer may have besides.

Side:   pure.  Writers are made by ``Sink.create_writer`` on the thread of their task, which makes all calls.
Source: Flink ``SinkWriter``, ``StatefulSinkWriter``, ``CommittingSinkWriter``, ``WriterInitContext``, which PyFlink
        lacks, with names in the style of Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

__all__ = ["CommittingSinkWriter", "SinkWriter", "SinkWriterContext", "StatefulSinkWriter", "WriterInitContext"]

InputT = TypeVar("InputT")


class WriterInitContext(ABC):
    """The subtask that a writer or a committer is made for."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """The index of the subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the sink."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the subtask was restarted."""

    @abstractmethod
    def get_job_id(self) -> str:
        """The id of the job, 32 hex digits; another one after a start from a savepoint."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """The checkpoint that the job goes on from; None: it began anew."""

    @abstractmethod
    def get_processing_time_service(self) -> Any:
        """The clock of the task, with ``current_time_ms()`` and ``register_timer(timestamp_ms, callback)``; Flink's,
        with our names.
        """

    def check_cancelled(self) -> None:  # noqa: B027  # a context without a task is never cancelled
        """Raise if the task is being cancelled, an error that must be let through; not in Flink, which interrupts the
        thread.

        A writer, or a committer, that waits for another system calls this about once a second meanwhile.  One that does
        not, and waits for longer than ``task.cancellation.timeout``, ends its TaskManager with the tasks of all other
        jobs.
        """


class SinkWriterContext(ABC):
    """The record that is being written; valid during one call of ``write``."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The timestamp of the record, in milliseconds; None: it has none."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""


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
        """Write out what waits; when this returns, all records so far are as safe as the sink promises."""

    def close(self) -> None:  # nothing to do unless overridden
        """Release what the writer holds; also called after a failure."""


class StatefulSinkWriter(SinkWriter[InputT]):
    """A writer with state; its sink is a ``SupportsWriterState``."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        """The state, as parts that can be dealt out to other subtasks; after ``flush`` and ``prepare_commit``."""


class CommittingSinkWriter(SinkWriter[InputT]):
    """A writer whose records count when a checkpoint is complete; its sink is a ``SupportsCommitter``."""

    @abstractmethod
    def prepare_commit(self) -> Sequence[Any]:
        """What was written since the last call, as committables that can be pickled; after ``flush``, before
        ``snapshot_state``.
        """
