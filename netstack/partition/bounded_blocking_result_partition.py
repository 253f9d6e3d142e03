"""A partition that is written to a file first, and then read as often as one likes.

Side:       shared.  The task thread writes and flushes; any thread releases.
Invariants: readers come only after ``finish``; the file is deleted when every subpartition was released and the last
            reader, or the write that was going on, is over.  The subpartitions of a partition share one file and so
            one descriptor; each has regions of its own in it, and no buffer spans two regions.  What a reader looks at
            next is known before it is read.
Units:      backlog in data buffers; sizes and positions in bytes.  The index takes 16 bytes of memory for each buffer,
            which has a segment of 32 KiB as a rule.
Errors:     the file system's, as ``ResourceBrokenError`` with the path.
Lock order: ``BoundedBlockingSubpartition._lock`` is a leaf: consumers, listeners, the partition and files are called
            after it.  ``BoundedBlockingSubpartitionReader._lock`` is one, too.
Source:     Flink ``BoundedBlockingResultPartition``, ``BoundedBlockingSubpartition``,
            ``BoundedBlockingSubpartitionReader``.  Readers learn at once of a release; they keep the file, but get
            nothing more.  ``BoundedData``, ``FileChannelBoundedData``, ``BufferReaderWriterUtil``, whose headers in
            the file are an index in memory here; one file with regions as ``PartitionedFile`` of sort-merge shuffles.
Absent:     direct transfer from file to socket.  Files that are mapped into memory: their pages count as this process's
            memory.
"""

import contextlib
import os
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from netstack.availability import run_all
from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferCompressor, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import LocalProtocolError, ResourceBrokenError
from netstack.ids import ResultPartitionID
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.channel_state import NO_CHANNEL_STATE, ChannelStateWriter, ResultSubpartitionInfo
from netstack.partition.pipelined_subpartition import ADD_REFUSED, NO_BUFFER_SIZE
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    ResultSubpartitionView,
    SubpartitionState,
)
from netstack.wire.events import EndOfPartition, event_data_type, serialize_event
from netstack.wire.messages import DataType

NUM_READ_BUFFERS: Final = 2  # Flink's: one on its way while the next is read
# A reader goes forward for 1 MiB; what is left of a region is a hole, which takes no disk; not measured.
REGION_BYTES: Final = 1024 * 1024
# A second entry of the index: size, data type, whether it is compressed.
_SIZE_SHIFT: Final = 5
_TYPE_MASK: Final = 0xF


class NextBuffer(NamedTuple):
    """The index's entry of the next buffer."""

    data_type: DataType
    is_compressed: bool
    size: int


class BoundedDataFile:
    """The file of one partition, in regions of its subpartitions.  It has no name: it is gone however the process ends.

    Threading: the task thread writes and reserves; any thread reads, and leaves.
    Ownership: the file goes when all users have left.

    Args:
        directory: where it is made.
        num_users: how many subpartitions lie in it.

    Raises:
        ResourceBrokenError: the file cannot be made.
    """

    def __init__(self, directory: Path, num_users: int = 1) -> None:
        with _translated(directory):
            self._fd, path = tempfile.mkstemp(prefix="netstack-", suffix=".partition", dir=directory)
            os.unlink(path)
        self.path = Path(path)  # what it was called
        self._num_reserved = 0  # Written by the task thread.
        self._lock = threading.Lock()
        self._num_users = num_users  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<BoundedDataFile {self.path}, {self._num_reserved} bytes reserved, {self._num_users} users>"

    def reserve(self, num_bytes: int) -> tuple[int, int]:
        """Reserve a region that holds at least ``num_bytes``; returns its start and end."""
        start = self._num_reserved
        self._num_reserved += max(num_bytes, REGION_BYTES)
        return start, self._num_reserved

    def write(self, position: int, data: memoryview) -> None:
        """Write all of ``data`` at ``position``."""
        with _translated(self.path):
            while data:
                num_written = os.pwritev(self._fd, [data], position)
                position += num_written
                data = data[num_written:]

    def read(self, position: int, data: memoryview) -> None:
        """Fill ``data`` from ``position``.

        Raises:
            ResourceBrokenError: the file is shorter, or cannot be read.
        """
        with _translated(self.path):
            num_read = os.preadv(self._fd, [data], position)
        if num_read != len(data):
            raise ResourceBrokenError(f"{self.path} ends in the middle of a buffer, at byte {position + num_read}")

    def leave(self) -> None:
        """Count one user less; the file goes with the last one."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
        with _translated(self.path):
            os.close(self._fd)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceBrokenError(f"the data of a blocking partition in {path}: {error}") from error


class BoundedBlockingSubpartitionReader(ResultSubpartitionView, BufferRecycler):
    """One pass over a subpartition, through two buffers of its own.  When one of them is recycled, it reads on and
    tells the waiting consumer.

    Threading: one thread polls; everything else from any thread.  A release during a poll leaves the end to the polling
        thread, so that nobody reads from a closed file.
    """

    _subpartition: "BoundedBlockingSubpartition"

    def __init__(self, subpartition: "BoundedBlockingSubpartition", listener: BufferAvailabilityListener) -> None:
        self.listener = listener
        self._subpartition = subpartition
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.
        # Guarded by _lock.
        self._is_polling = False
        size = subpartition.max_buffer_bytes
        self._free = [MemorySegment(memoryview(bytearray(size))) for _ in range(NUM_READ_BUFFERS)]
        self._is_starved = False
        # Written by the polling thread; read anywhere, one pass stale is fine.
        self._backlog = subpartition.num_data_buffers
        self._sequence_number = 0
        self._next = subpartition.entry(0)  # None at the end

    def __repr__(self) -> str:
        state = "released" if self.is_released else "open"
        return (
            f"<BoundedBlockingSubpartitionReader {state}, {self._backlog} data buffers left of {self._subpartition!r}>"
        )

    def next_buffer(self) -> BufferAndBacklog | None:
        """Return the next element, which the caller recycles; None at the end, without room to read it, or after the
        release.

        Raises:
            ResourceBrokenError: the file cannot be read.
        """
        with self._lock:
            if self.is_released:
                return None
            # From here on a release leaves the end to this thread: the file stays open while it is read.
            self._is_polling = True
        try:
            return self._poll()
        finally:
            with self._lock:
                self._is_polling = False
                is_late = self._is_view_released
            if is_late:
                self._end()

    def _poll(self) -> BufferAndBacklog | None:
        found = self._next
        if found is None:
            return None
        with self._lock:
            # Looked at and noted in one lock round: a buffer that is recycled behind the look finds the note, and
            # tells.
            self._is_starved = not self._free
            segment = None if self._is_starved else self._free.pop()
        if segment is None:
            return None
        number = self._sequence_number
        try:
            self._subpartition.read(number, segment.view[: found.size])
        except BaseException:
            self.recycle(segment)
            raise
        # Only after the read: a failed read leaves the reader where it was.
        self._sequence_number = number + 1
        following = self._next = self._subpartition.entry(number + 1)
        buffer = NetworkBuffer(segment, self, found.size, found.data_type, is_compressed=found.is_compressed)
        if buffer.is_buffer:
            self._backlog -= 1
        next_data_type = following.data_type if following is not None and self._has_room() else DataType.NONE
        return BufferAndBacklog(buffer, self._backlog, next_data_type, number)

    def _has_room(self) -> bool:
        """Whether a buffer is free; if not, the listener is told when one is.  The polling thread alone takes them."""
        with self._lock:
            self._is_starved = not self._free
            return not self._is_starved

    def recycle(self, segment: MemorySegment) -> None:
        """Take a read buffer back."""
        with self._lock:
            self._free.append(segment)
            was_starved = self._is_starved
            self._is_starved = False
        # Outside the lock: the listener may poll at once.
        if was_starved and not self._is_view_released:
            self.listener.notify_data_available()

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers are left."""
        following = self._next
        # The question is a request, too: without room this reader sleeps until ``recycle`` tells it.
        if following is None or self.is_released or not self._has_room():
            return False, self._backlog
        return is_credit_available or not following.data_type.is_buffer, self._backlog

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are left, the end included."""
        return self._backlog + (self._next is not None)

    def resume_consumption(self) -> None:
        """Refuse: nothing blocks a bounded result.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"blocking subpartition {self._subpartition.index} is resumed, but not blocked")

    def release(self) -> None:
        """Read no more; the second call does nothing."""
        with self._lock:
            if self._is_view_released:
                return
            self._is_view_released = True
            is_polling = self._is_polling
        # Else the polling thread ends it: the file must not close under its read.
        if not is_polling:
            self._end()

    def _end(self) -> None:
        has_read_all = self._next is None
        self._next = None
        self._subpartition.on_reader_released(self, has_read_all=has_read_all)


class BoundedBlockingSubpartition:
    """A subpartition that is first written, then read by any number of readers.

    Life cycle: ``SubpartitionState``; it can be read while it is finished.
    Ownership: one user of ``file``, in regions of its own, until it was released and nobody reads or writes any more.
    """

    takes_contents = False  # everything goes to a file
    num_queued_buffers = 0  # elements in a file take no memory
    num_queued_bytes = 0

    def __init__(
        self, index: int, parent: ResultPartition, file: BoundedDataFile, compressor: BufferCompressor | None = None
    ) -> None:
        self.index = index
        self.parent = parent
        self.desired_buffer_size = NO_BUFFER_SIZE
        self.channel_state: ChannelStateWriter = NO_CHANNEL_STATE
        self.info = ResultSubpartitionInfo(0, index)  # barriers overtake nothing here, so nobody asks for it
        self.state = SubpartitionState.OPEN  # Written under _lock; a bare read may be one pass stale.
        # Written by the task thread, before ``finish``.
        self.num_data_buffers = 0
        self.max_buffer_bytes = 0
        self._index = array("Q")  # two entries for each buffer
        self._position = self._region_end = 0  # where the next one goes, and how far it may
        self._compressor = compressor
        self._lock = threading.Lock()
        # All below guarded by _lock; threads that write or read use ``_file`` outside of it, and are counted here.
        self._file: BoundedDataFile | None = file  # None: it was left
        self._current: BufferConsumer | None = None  # the last one added: it may still be written
        self._is_writing = False
        self._readers: set[BoundedBlockingSubpartitionReader] = set()

    def __repr__(self) -> str:
        return (
            f"<BoundedBlockingSubpartition {self.index} {self.state.value}, {len(self._readers)} readers, "
            f"{len(self._index) // 2} buffers in {self._file!r}>"
        )

    @property
    def is_released(self) -> bool:
        """Whether no thread may read or write any more."""
        return self.state is SubpartitionState.RELEASED

    # ---------------------------------------------------------------- producer

    def add(self, consumer: BufferConsumer, partial_record_length: int = 0) -> int:
        """Write the consumer that was added before, and keep ``consumer``, which may still be written to.

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
            # Also after an error: a writer that stays counted would keep the file for ever.
            consumer.close()
            return ADD_REFUSED
        return NO_BUFFER_SIZE

    def add_all(self, consumers: Sequence[BufferConsumer]) -> int:
        """Add each consumer like ``add``.

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
        """Write the consumer that was added last; the task thread has finished its builder.

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
        self._write_current()
        with self._lock:
            # A release may have come while the end was written: it stays released.
            if self.state is SubpartitionState.OPEN:
                self.state = SubpartitionState.FINISHED
        return NO_BUFFER_SIZE

    def _write_current(self) -> None:
        with self._lock:
            consumer = self._current
            self._current = None
            if consumer is None:
                return
            self._is_writing = True
        try:
            self._write(consumer)
        finally:
            consumer.close()
            with self._lock:
                self._is_writing = False
            self._close_if_unused()

    def _write(self, consumer: BufferConsumer) -> None:
        buffer = consumer.take()
        if buffer is None:
            return
        try:
            if self._compressor is not None:
                buffer = self._compressor.compress(buffer)
            self.write(buffer)
            self.num_data_buffers += buffer.is_buffer
        finally:
            buffer.recycle()

    def write(self, buffer: NetworkBuffer) -> None:
        """Append a copy of ``buffer``, which stays the caller's."""
        assert self._file is not None, "a released subpartition keeps nothing to write"
        size = buffer.size
        if self._position + size > self._region_end:
            self._position, self._region_end = self._file.reserve(size)
        self._file.write(self._position, buffer.view)
        self._index.extend((self._position, size << _SIZE_SHIFT | buffer.data_type << 1 | buffer.is_compressed))
        self._position += size
        self.max_buffer_bytes = max(self.max_buffer_bytes, size)

    # ---------------------------------------------------------------- checkpoints: there are none of a bounded result

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Do nothing: barriers wait like everything else."""

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Do nothing: no reader waits for a barrier."""

    # ---------------------------------------------------------------- readers

    def create_read_view(self, listener: BufferAvailabilityListener) -> BoundedBlockingSubpartitionReader | None:
        """Make a reader that starts at the beginning; None if the subpartition was released.

        Raises:
            LocalProtocolError: it is not finished yet.
        """
        with self._lock:
            if self.is_released:
                return None
            if self.state is SubpartitionState.OPEN:
                raise LocalProtocolError(f"blocking subpartition {self.index} is read before it is finished")
            reader = BoundedBlockingSubpartitionReader(self, listener)
            # Counted in the lock round that looked at the state: from here on a release leaves the file to this reader.
            self._readers.add(reader)
        listener.notify_data_available()
        return reader

    def entry(self, number: int) -> NextBuffer | None:
        """Look up a buffer in the index, where the first is number 0; None behind the last."""
        if 2 * number == len(self._index):
            return None
        packed = self._index[2 * number + 1]
        return NextBuffer(DataType(packed >> 1 & _TYPE_MASK), bool(packed & 1), packed >> _SIZE_SHIFT)

    def read(self, number: int, view: memoryview) -> None:
        """Fill ``view``, which has its size, with a buffer."""
        assert self._file is not None, "the file goes when nobody reads"
        self._file.read(self._index[2 * number], view)

    def on_reader_released(self, reader: BoundedBlockingSubpartitionReader, *, has_read_all: bool) -> None:
        """Forget a reader that is done; called by the reader."""
        with self._lock:
            self._readers.discard(reader)
        consumed = partial(self.parent.on_consumed_subpartition, self.index, has_read_all=has_read_all)
        run_all([self._close_if_unused, consumed])

    def release(self) -> None:
        """Let no thread begin to read or write any more; the file goes with the last one that does now."""
        with self._lock:
            if self.is_released:
                return
            self.state = SubpartitionState.RELEASED
            consumer = self._current
            self._current = None
            # Readers that sleep would never look at the state again.
            calls: list[Callable[[], object]] = [reader.listener.notify_data_available for reader in self._readers]
        if consumer is not None:
            calls.append(consumer.close)
        run_all([*calls, self._close_if_unused])

    def _close_if_unused(self) -> None:
        with self._lock:
            if not self.is_released or self._is_writing or self._readers:
                return
            file = self._file
            self._file = None
        if file is not None:
            file.leave()

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            assert self.state is not SubpartitionState.OPEN or not self._readers, "readers come after the end"
            assert not (self.is_released and self._current), "a released subpartition keeps nothing"
            assert self._file is None or not self.is_released or self._is_writing or self._readers, (
                "nobody uses it and its file is there"
            )


class BoundedBlockingResultPartition(ResultPartition):
    """A partition in one file, whatever the number of its consumers: it can be read from its finish until its release.

    Threading: as its base, but ``flush`` and ``flush_all`` belong to the task thread, since they end the buffers that
               are being written.
    Ownership: its file, which goes with ``release`` (or ``fail``, or an unfinished ``close``).

    Args:
        directory: where the file is made.
        compressor: makes buffers smaller before they are written.

    Raises:
        ResourceBrokenError: the file cannot be made.
    """

    def __init__(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        buffer_pool: LocalBufferPool,
        owner: str,
        directory: Path,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.BLOCKING,
        compressor: BufferCompressor | None = None,
    ) -> None:
        if not partition_type.is_blocking:
            raise ValueError(f"{owner}: {partition_type.name} is no blocking type")
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        file = BoundedDataFile(directory, num_subpartitions)
        super().__init__(
            partition_id,
            num_subpartitions,
            buffer_pool,
            owner,
            partition_type=partition_type,
            new_subpartition=lambda index, parent: BoundedBlockingSubpartition(index, parent, file, compressor),
        )

    def flush(self, subpartition: int) -> None:
        """Write everything emitted to ``subpartition``, and end its buffer."""
        self.finish_buffer(subpartition)

    def flush_all(self) -> None:
        """Write everything emitted, and end every buffer."""
        # A consumer is written once and then forgotten: bytes that an open builder adds later would be lost.
        self._finish_builders()
        super().flush_all()

    def on_consumed_subpartition(self, index: int, *, has_read_all: bool) -> None:
        """Note that a reader is done; others may come.  Called by the readers."""
        # Not the base's: it would count the subpartition as consumed, and release it behind its first reader.
        self._tell_consumer_left(index, has_read_all=has_read_all)
