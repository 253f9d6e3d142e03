"""A subpartition that is written to a file first, and then read as often as one likes.

Side:       shared.  The task thread writes; anybody releases.
Invariants: readers come only after ``finish``; the file is deleted when the subpartition was released and the last
            reader, or the write that was going on, is over.
Units:      backlog in data buffers.
Lock order: ``BoundedBlockingSubpartition._lock`` is a leaf: consumers, listeners and the partition are called after it,
            and files but for the first read of a new reader.
Source:     Flink ``BoundedBlockingSubpartition``.
Absent:     direct transfer from file to socket.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.errors import LocalProtocolError
from netstack.partition.bounded_blocking_subpartition_reader import BoundedBlockingSubpartitionReader
from netstack.partition.bounded_data import BoundedData
from netstack.partition.buffer_availability_listener import BufferAvailabilityListener
from netstack.partition.channel_state import NO_CHANNEL_STATE, ChannelStateWriter, ResultSubpartitionInfo
from netstack.partition.pipelined_subpartition import ADD_REFUSED, NO_BUFFER_SIZE
from netstack.partition.result_subpartition import SubpartitionParent, SubpartitionState
from netstack.wakeups import run_all
from netstack.wire.events import EndOfPartition, event_data_type, serialize_event


class BoundedBlockingSubpartition:
    """First written, then read by any number of readers.

    Life cycle: ``SubpartitionState``; it can be read while it is finished.
    Ownership: owns ``data``, which goes when it was released and nobody reads or writes any more.
    """

    def __init__(
        self, index: int, parent: SubpartitionParent, data: BoundedData, compressor: BufferCompressor | None = None
    ) -> None:
        self.index = index
        self.parent = parent
        self.desired_buffer_size = NO_BUFFER_SIZE
        self.channel_state: ChannelStateWriter = NO_CHANNEL_STATE
        self.info = ResultSubpartitionInfo(0, index)  # barriers overtake nothing here, so nobody asks for it
        self.state = SubpartitionState.OPEN  # Written under _lock; a bare read may be one pass stale.
        self.num_data_buffers = 0  # Written by the task thread, before ``finish``.
        self._compressor = compressor
        self._lock = threading.Lock()
        # All below guarded by _lock; whoever writes or reads uses ``_data`` outside of it, and is counted here.
        self._data: BoundedData | None = data  # None: the file was deleted
        self._current: BufferConsumer | None = None  # the last one added: it may still be written
        self._is_writing = False
        self._readers: set[BoundedBlockingSubpartitionReader] = set()

    def __repr__(self) -> str:
        return (
            f"<BoundedBlockingSubpartition {self.index} {self.state.value}, {len(self._readers)} readers, "
            f"{self._data!r}>"
        )

    @property
    def is_released(self) -> bool:
        """Whether nobody may read or write any more."""
        return self.state is SubpartitionState.RELEASED

    @property
    def takes_contents(self) -> bool:
        """Never: everything goes to a file."""
        return False

    @property
    def num_queued_buffers(self) -> int:
        """None: what is in a file takes no memory."""
        return 0

    @property
    def num_queued_bytes(self) -> int:
        """None, as above."""
        return 0

    # ---------------------------------------------------------------- producer

    def add(self, consumer: BufferConsumer, partial_record_length: int = 0) -> int:
        """Write what was added before, and keep ``consumer``, which may still be written to.

        Raises:
            ResourceBrokenError: the file cannot be written.
        """
        try:
            self._write_current()
        except BaseException:
            consumer.close()
            raise
        with self._lock:
            is_refused = self.state is not SubpartitionState.OPEN
            if not is_refused:
                self._current = consumer
        if is_refused:
            consumer.close()
            return ADD_REFUSED
        return NO_BUFFER_SIZE

    def add_all(self, consumers: Sequence[BufferConsumer]) -> int:
        """``add`` for each.

        Raises:
            ResourceBrokenError: the file cannot be written.
        """
        result = NO_BUFFER_SIZE
        remaining = iter(consumers)
        try:
            for consumer in remaining:
                result = self.add(consumer)
        except BaseException:
            run_all([consumer.close for consumer in remaining])
            raise
        return result

    def flush(self) -> None:
        """Write what was added last; the task thread has finished its builder.

        Raises:
            ResourceBrokenError: the file cannot be written.
        """
        self._write_current()

    def finish(self) -> int:
        """Write the end, and let readers come; ``ADD_REFUSED`` if it was finished or released.

        Raises:
            ResourceBrokenError: the file cannot be written.
        """
        event = EndOfPartition()
        if self.add(BufferConsumer.of_event(serialize_event(event), event_data_type(event))) < 0:
            return ADD_REFUSED
        self._write_current(is_end=True)
        with self._lock:
            if self.state is SubpartitionState.OPEN:
                self.state = SubpartitionState.FINISHED
        return NO_BUFFER_SIZE

    def _write_current(self, *, is_end: bool = False) -> None:
        with self._lock:
            consumer, self._current = self._current, None
            if consumer is None:
                return
            self._is_writing = True
            data = self._data
        assert data is not None, "a released subpartition keeps nothing to write"
        try:
            self._write(consumer, data)
            if is_end:
                data.finish_write()
        finally:
            consumer.close()
            with self._lock:
                self._is_writing = False
            self._close_if_unused()

    def _write(self, consumer: BufferConsumer, data: BoundedData) -> None:
        buffer = consumer.try_build()
        if buffer is None:
            return
        try:
            if self._compressor is not None:
                buffer = self._compressor.compress(buffer)
            data.write(buffer)
            self.num_data_buffers += buffer.is_buffer
        finally:
            buffer.recycle()

    # ---------------------------------------------------------------- checkpoints: there are none of a bounded result

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Nothing: barriers wait like everything else."""

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Nothing: nobody waits for a barrier."""

    # ---------------------------------------------------------------- readers

    def create_read_view(self, listener: BufferAvailabilityListener) -> BoundedBlockingSubpartitionReader | None:
        """Make a reader that starts at the beginning; None if the subpartition was released, or its file was deleted.

        Raises:
            LocalProtocolError: it is not finished yet.
        """
        with self._lock:
            if self.is_released:
                return None
            if self.state is SubpartitionState.OPEN:
                raise LocalProtocolError(f"blocking subpartition {self.index} is read before it is finished")
            if self._data is None or not self._data.is_readable:
                return None
            reader = BoundedBlockingSubpartitionReader(self, self._data, listener)
            self._readers.add(reader)
        listener.notify_data_available()
        return reader

    def on_reader_released(self, reader: BoundedBlockingSubpartitionReader, *, has_read_all: bool) -> None:
        """For the readers: this one is done."""
        with self._lock:
            self._readers.discard(reader)
        run_all(
            [
                self._close_if_unused,
                partial(self.parent.on_consumed_subpartition, self.index, has_read_all=has_read_all),
            ]
        )

    def release(self) -> None:
        """Let nobody read or write any more; the file goes with the last who does now."""
        with self._lock:
            if self.is_released:
                return
            self.state = SubpartitionState.RELEASED
            consumer, self._current = self._current, None
            calls: list[Callable[[], object]] = [reader.listener.notify_data_available for reader in self._readers]
        if consumer is not None:
            calls.append(consumer.close)
        run_all([*calls, self._close_if_unused])

    def _close_if_unused(self) -> None:
        with self._lock:
            if not self.is_released or self._is_writing or self._readers:
                return
            data, self._data = self._data, None
        if data is not None:
            data.close()

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            assert self.state is not SubpartitionState.OPEN or not self._readers, "readers come after the end"
            assert not (self.is_released and self._current), "a released subpartition keeps nothing"
            assert self._data is None or not self.is_released or self._is_writing or self._readers, (
                "nobody uses it and its file is there"
            )
