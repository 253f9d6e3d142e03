"""What one task produces for one edge: a subpartition per consumer.

Side:       shared.  ``emit_record``, ``broadcast_event``, ``notify_end_of_data``, ``finish`` and ``close`` on the task thread; ``flush*``,
            ``fail``, ``release``, views and numbers from any thread.
Hot path:   ``emit_record``, per serialized chunk.
Invariants: an open builder is the last element of its subpartition; the partition is released when every subpartition was consumed and
            the task closed it (users = subpartitions + 1), or at once by ``fail`` and ``release``.
            A subpartition whose consumer left early drops what is emitted to it and counts as processed: a consumer that is gone never
            holds up its producer.
Units:      sizes in bytes, times in nanoseconds.
Lock order: ``ResultPartition._lock`` is a leaf: subpartitions, pool, futures and listeners are called after it.
Source:     Flink ``BufferWritingResultPartition``, ``PipelinedResultPartition``.
Absent:     blocking partitions, broadcast of data, compression, buffer debloating.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from netstack.availability import AvailabilityFuture
from netstack.buffer.builder import BufferBuilder, BufferConsumer
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.wakeups import run_all
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.partition.pipelined import PipelinedSubpartition
from netstack.partition.view import BufferAvailabilityListener, ResultSubpartitionView
from netstack.wire.events import EndOfData, Event, StopMode, event_data_type, serialize_event
from netstack.wire.messages import DataType


@dataclass(frozen=True, slots=True)
class ResultPartitionStatistics:
    """The numbers of one partition; bytes and buffers count when a buffer is finished."""

    num_bytes_out: int
    num_buffers_out: int
    num_queued_buffers: int
    hard_blocked_ns: int


class ResultPartition:
    """A pipelined partition.

    Life cycle: open -> ``finish`` -> ``close``; ``fail`` or ``release`` at any time.  A task closes its partition in any case.
    Ownership: owns its buffer pool, which ends with ``close`` or ``release``; buffers in flight go home when they are recycled.
    """

    def __init__(self, partition_id: ResultPartitionID, num_subpartitions: int, buffer_pool: LocalBufferPool, owner: str) -> None:
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        self.partition_id = partition_id
        self.owner = owner
        self.all_data_processed = AvailabilityFuture()
        self._pool = buffer_pool
        self._subpartitions = [PipelinedSubpartition(index, self) for index in range(num_subpartitions)]
        # Written by the task thread only.
        self._builders: list[BufferBuilder | None] = [None] * num_subpartitions
        self._is_finished = False
        self._has_notified_end_of_data = False
        self._num_bytes_out = 0
        self._num_buffers_out = 0
        self._lock = threading.Lock()
        # Guarded by _lock for writes; read bare, one pass stale is fine.
        self._is_released = False
        self._is_closed = False
        self._failure_cause: ProducerFailedError | None = None
        # Guarded by _lock.
        self._unconsumed = set(range(num_subpartitions))
        self._unprocessed = set(range(num_subpartitions))
        self._release_listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "released" if self._is_released else "closed" if self._is_closed else "finished" if self._is_finished else "open"
        return (
            f"<ResultPartition {self.partition_id} of {self.owner}: {state}, {len(self._unconsumed)} of {self.num_subpartitions} "
            f"subpartitions unconsumed, {self._pool!r}>"
        )

    @property
    def num_subpartitions(self) -> int:
        """How many consumers it has."""
        return len(self._subpartitions)

    @property
    def is_finished(self) -> bool:
        """Whether the end of the partition was written."""
        return self._is_finished

    @property
    def is_released(self) -> bool:
        """Whether nothing of it can be read any more."""
        return self._is_released

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why it was released before it was consumed, if it was."""
        return self._failure_cause

    @property
    def is_available(self) -> bool:
        """Whether a buffer is free, so that emitting does not block at once."""
        return self._pool.is_available

    def available_future(self) -> AvailabilityFuture:
        """Done while a buffer is free (or the pool is gone), else completed when one comes."""
        return self._pool.available_future()

    # ---------------------------------------------------------------- task thread

    def emit_record(self, record: bytes | memoryview, subpartition: int) -> None:
        """Append ``record`` (single bytes), over as many buffers as it takes; may block for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        builder = self._builders[subpartition]
        if builder is not None:
            written = builder.append_and_commit(record)
        else:
            written = self._start_buffer(subpartition, record, is_continuation=False)
        if written < len(record):
            self._emit_rest(memoryview(record)[written:], subpartition)
        builder = self._builders[subpartition]
        if builder is not None and builder.is_full:
            self._finish_builder(subpartition)

    def broadcast_record(self, record: bytes | memoryview) -> None:
        """Append ``record`` (single bytes) to every subpartition; may block for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        for index in range(self.num_subpartitions):
            self.emit_record(record, index)

    def _emit_rest(self, rest: memoryview, subpartition: int) -> None:
        while rest:
            self._finish_builder(subpartition)
            written = self._start_buffer(subpartition, rest, is_continuation=True)
            rest = rest[written:]

    def _start_buffer(self, index: int, data: bytes | memoryview, *, is_continuation: bool) -> int:
        """Open a builder with ``data`` in it; returns how much of it was taken, all if its consumer has gone."""
        subpartition = self._subpartitions[index]
        if subpartition.is_released:
            return len(data)
        builder = self._pool.request_builder_blocking()
        written = builder.append_and_commit(data)
        if not subpartition.add(builder.create_buffer_consumer(written if is_continuation else 0)):
            builder.close()
            return len(data)
        self._builders[index] = builder
        return written

    def _finish_builder(self, index: int) -> None:
        builder = self._builders[index]
        if builder is None:
            return
        self._builders[index] = None
        self._num_bytes_out += builder.finish()
        self._num_buffers_out += 1
        builder.close()

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Append ``event`` to every subpartition, behind all that was emitted; readers are told at once.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        data, data_type = serialize_event(event), DataType.PRIORITIZED_EVENT_BUFFER if is_priority else event_data_type(event)
        for index, subpartition in enumerate(self._subpartitions):
            self._finish_builder(index)
            subpartition.add(BufferConsumer.of_event(data, data_type))

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that the last record was emitted; the second call does nothing.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished.
        """
        if not self._has_notified_end_of_data:
            self.broadcast_event(EndOfData(mode))
            self._has_notified_end_of_data = True

    def finish(self) -> None:
        """Append the end of the partition to every subpartition.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished already.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        self._is_finished = True
        for index, subpartition in enumerate(self._subpartitions):
            self._finish_builder(index)
            subpartition.finish()

    def close(self) -> None:
        """The task is done with it; the second call does nothing.  An unfinished partition fails, so that no consumer waits for ever."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for index in range(self.num_subpartitions):
            self._finish_builder(index)
        if not self._is_finished:
            self.release(ResourceClosedError("it was closed before it was finished"))
        self._pool.destroy()
        self._release_if_unused()

    def _refuse(self) -> None:
        name = f"partition {self.partition_id} of {self.owner}"
        if self._is_released:
            raise ResourceClosedError(f"{name} was released: {self._failure_cause or 'everything was consumed'}")
        raise LocalProtocolError(f"{name} is finished and takes nothing more")

    # ---------------------------------------------------------------- any thread

    def flush(self, subpartition: int) -> None:
        """Make what was emitted to ``subpartition`` readable, its unfinished buffer included."""
        self._subpartitions[subpartition].flush()

    def flush_all(self) -> None:
        """Make everything emitted readable."""
        for subpartition in self._subpartitions:
            subpartition.flush()

    def create_subpartition_view(self, index: int, listener: BufferAvailabilityListener, last: int | None = None) -> ResultSubpartitionView:
        """The one view of subpartition ``index``.

        Raises:
            PartitionNotFoundError: the partition or subpartition was released.
            LocalProtocolError: there is no such subpartition, or it is read already.
        """
        if not 0 <= index < self.num_subpartitions:
            raise LocalProtocolError(f"partition {self.partition_id} has {self.num_subpartitions} subpartitions, {index} is none of them")
        if last not in (None, index):
            raise LocalProtocolError(f"subpartitions {index} to {last} of one request: ranges are not served")
        view = self._subpartitions[index].create_read_view(listener)
        if view is None:
            reason = self._failure_cause or f"its subpartition {index} was consumed"
            raise PartitionNotFoundError(f"partition {self.partition_id} was released at its producer: {reason}")
        return view

    def add_release_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once when the partition is released, at once if it was."""
        with self._lock:
            if not self._is_released:
                self._release_listeners.append(listener)
                return
        listener()

    def fail(self, error: BaseException) -> None:
        """Release it; readers learn that the producer failed, and why.  Writers wake up with an error."""
        self.release(error)

    def release(self, cause: BaseException | None = None) -> None:
        """Drop everything, from any state; views that are still read report ``cause``.  The second call does nothing."""
        with self._lock:
            if self._is_released:
                return
            calls = self._release_locked(self._producer_failed(cause))
        run_all(calls)

    def on_consumed_subpartition(self, index: int) -> None:
        """For the view of ``index``: it was released."""
        with self._lock:
            self._unconsumed.discard(index)
        self.on_all_data_processed(index)
        self._release_if_unused()

    def on_all_data_processed(self, index: int) -> None:
        """For the view of ``index``: its consumer processed everything up to the end of data."""
        with self._lock:
            self._unprocessed.discard(index)
            is_last = not self._unprocessed
        if is_last:
            self.all_data_processed.complete()

    def statistics(self) -> ResultPartitionStatistics:
        """The numbers so far."""
        return ResultPartitionStatistics(
            num_bytes_out=self._num_bytes_out,
            num_buffers_out=self._num_buffers_out,
            num_queued_buffers=sum(subpartition.num_queued_buffers for subpartition in self._subpartitions),
            hard_blocked_ns=self._pool.hard_blocked_ns,
        )

    def check_invariants(self) -> None:
        """Assert the invariants of this module and of the subpartitions."""
        for subpartition in self._subpartitions:
            subpartition.check_invariants()
        with self._lock:
            assert self._is_released or self._unconsumed or not self._is_closed, "nobody uses it and it is not released"
            assert self._unprocessed <= self._unconsumed, "a consumed subpartition counts as processed"

    # ---------------------------------------------------------------- helpers

    def _release_if_unused(self) -> None:
        with self._lock:
            if self._is_released or self._unconsumed or not self._is_closed:
                return
            calls = self._release_locked(None)
        run_all(calls)

    def _release_locked(self, cause: ProducerFailedError | None) -> list[Callable[[], None]]:
        self._failure_cause = cause
        self._is_released = True
        listeners, self._release_listeners = self._release_listeners, []
        releases: list[Callable[[], None]] = [subpartition.release for subpartition in self._subpartitions]
        return [*listeners, *releases, self._pool.destroy, self.all_data_processed.complete]

    def _producer_failed(self, cause: BaseException | None) -> ProducerFailedError:
        if isinstance(cause, ProducerFailedError):
            return cause
        what = "it was released before it was consumed" if cause is None else f"{type(cause).__name__}: {cause}"
        error = ProducerFailedError(f"the producer of partition {self.partition_id}, {self.owner}, failed: {what}")
        error.__cause__ = cause
        return error
