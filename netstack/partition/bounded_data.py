"""Where the buffers of a blocking partition lie: one file.

Side:       shared.  One thread writes, then any reads.
Invariants: the subpartitions of a partition share one file and so one descriptor; each has regions of its own in it,
            and no buffer spans two regions.  What a reader looks at next is known before it is read.
Units:      sizes and positions in bytes.  The index takes 16 bytes of memory for each buffer, which has a segment of
            32 KiB as a rule.
Errors:     the file system's, as ``ResourceBrokenError`` with the path.
Source:     Flink ``BoundedData``, ``FileChannelBoundedData``, ``BufferReaderWriterUtil``, whose headers in the file are
            an index in memory here; one file with regions as ``PartitionedFile`` of its sort-merge shuffle.
Absent:     files that are mapped into memory: their pages count as this process's memory.  Direct transfer from file to
            socket.
"""

import contextlib
import os
import tempfile
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceBrokenError
from netstack.wire.messages import DataType

# A reader goes forward for 1 MiB; what is left of a region is a hole, which takes no disk; not measured.
REGION_BYTES: Final = 1024 * 1024
# A second entry of the index: size, data type, whether it is compressed.
_SIZE_SHIFT: Final = 5
_TYPE_MASK: Final = 0xF


class NextBuffer(NamedTuple):
    """What the index says of the next buffer."""

    data_type: DataType
    is_compressed: bool
    size: int


class BoundedDataFile:
    """The file of one partition, and which part of it is whose.  It has no name: it is gone however the process ends.

    Threading: the task thread writes and reserves; any thread reads, and leaves.
    Ownership: the file goes when all users have left.

    Args:
        directory: where it is made.
        num_users: how many stores lie in it.

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
        """Start and end of a region that holds at least ``num_bytes``."""
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
        """One user less; the file goes with the last one."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
        with _translated(self.path):
            os.close(self._fd)


class BoundedData:
    """All buffers of one subpartition, in regions of a file: written once, then read any number of times.

    Ownership: one user of ``file``, until ``close``, which is called once, when nobody reads or writes any more.
    """

    def __init__(self, file: BoundedDataFile) -> None:
        self._file = file
        self._index = array("Q")  # Two entries for each buffer; written by the task thread, then read by others.
        self._position = self._region_end = 0  # where the next one goes, and how far it may
        self.num_bytes = 0
        self.max_buffer_bytes = 0

    def __repr__(self) -> str:
        return f"<BoundedData {self._file.path}, {self.num_bytes} bytes in {len(self._index) // 2} buffers>"

    def write(self, buffer: NetworkBuffer) -> None:
        """Append a copy of ``buffer``, which stays the caller's."""
        size = buffer.size
        if self._position + size > self._region_end:
            self._position, self._region_end = self._file.reserve(size)
        self._file.write(self._position, buffer.view)
        self._index.extend((self._position, size << _SIZE_SHIFT | buffer.data_type << 1 | buffer.is_compressed))
        self._position += size
        self.num_bytes += size
        self.max_buffer_bytes = max(self.max_buffer_bytes, size)

    def entry(self, number: int) -> NextBuffer | None:
        """What the index says of a buffer, the first is number 0; None behind the last."""
        if 2 * number == len(self._index):
            return None
        packed = self._index[2 * number + 1]
        return NextBuffer(DataType(packed >> 1 & _TYPE_MASK), bool(packed & 1), packed >> _SIZE_SHIFT)

    def read(self, number: int, view: memoryview) -> None:
        """Fill ``view``, which has its size, with a buffer."""
        self._file.read(self._index[2 * number], view)

    def close(self) -> None:
        """Leave the file, which is deleted when all its subpartitions have left."""
        self._file.leave()


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceBrokenError(f"the data of a blocking partition in {path}: {error}") from error
