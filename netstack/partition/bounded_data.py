"""Where the buffers of a blocking partition lie: one file, read back through buffers of its own.

Side:       shared.  One thread writes; each reader belongs to one thread, and is closed while nobody polls it; buffers
            are recycled by any.
Invariants: the subpartitions of a partition share one file and so one descriptor; each has regions of its own in it,
            and no buffer spans two regions.  A header stands before each buffer, and what a reader looks at next is
            known from its header before it is read; a reader has two buffers, so it reads on only when one of them came
            home, and says so to whoever waits.
Units:      sizes and positions in bytes.
Errors:     the file system's, as ``ResourceBrokenError`` with the path.
Source:     Flink ``BoundedData``, ``FileChannelBoundedData``, ``BufferReaderWriterUtil``; one file with regions as
            ``PartitionedFile`` of its sort-merge shuffle.  Headers are private to this module: u16 data type, u16
            compressed, u32 size, big endian.
Absent:     files that are mapped into memory: their pages count as this process's memory.  Direct transfer from file to
            socket.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from netstack.buffer.memory_segment import BufferRecycler, MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceBrokenError
from netstack.late import dataclass
from netstack.wire.messages import DataType

NUM_READ_BUFFERS: Final = 2  # Flink's: one on its way while the next is read
# A reader goes forward for 1 MiB; what is left of a region is a hole, which takes no disk; not measured.
REGION_BYTES: Final = 1024 * 1024
_HEADER: Final = Struct(">HHI")


class NextBuffer(NamedTuple):
    """What the header of the next buffer says."""

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

    def reserve(self, num_bytes: int) -> "Region":
        """A region that holds at least ``num_bytes``."""
        region = Region(self._num_reserved, max(num_bytes, REGION_BYTES))
        self._num_reserved += region.capacity
        return region

    def write(self, position: int, parts: list[bytes | memoryview], num_bytes: int) -> None:
        """Write all ``num_bytes`` of ``parts`` at ``position``."""
        with _translated(self.path):
            while True:
                num_written = os.pwritev(self._fd, parts, position)
                num_bytes -= num_written
                if num_bytes == 0:
                    return
                position += num_written
                parts = _behind(parts, num_written)

    def read(self, position: int, parts: list[memoryview | bytearray]) -> int:
        """Fill ``parts`` from ``position``; how many bytes there were."""
        with _translated(self.path):
            return os.preadv(self._fd, parts, position)

    def leave(self) -> None:
        """One user less; the file goes with the last one."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
        with _translated(self.path):
            os.close(self._fd)


@dataclass(slots=True)
class Region:
    """A part of the file that belongs to one subpartition."""

    start: int
    capacity: int
    num_bytes: int = 0  # how many are written


class BoundedData:
    """All buffers of one subpartition, in regions of a file: written once, then read any number of times.

    Ownership: one user of ``file``, until ``close``, which is called once, when nobody reads or writes any more.
    """

    def __init__(self, file: BoundedDataFile) -> None:
        self._file = file
        self._regions: list[Region] = []  # Written by the task thread, then read by others.
        self.num_bytes = 0
        self.max_buffer_bytes = 0

    def __repr__(self) -> str:
        return f"<BoundedData {self._file.path}, {self.num_bytes} bytes in {len(self._regions)} regions>"

    def write(self, buffer: NetworkBuffer) -> None:
        """Append a copy of ``buffer``, which stays the caller's."""
        header = _HEADER.pack(buffer.data_type, buffer.is_compressed, buffer.size)
        num_bytes = len(header) + buffer.size
        region = self._regions[-1] if self._regions else None
        if region is None or region.num_bytes + num_bytes > region.capacity:
            region = self._file.reserve(num_bytes)
            self._regions.append(region)
        self._file.write(region.start + region.num_bytes, [header, buffer.view], num_bytes)
        region.num_bytes += num_bytes
        self.num_bytes += num_bytes
        self.max_buffer_bytes = max(self.max_buffer_bytes, buffer.size)

    def create_reader(self, on_room: Callable[[], None]) -> "FileReader":
        """A reader at the beginning; ``on_room`` is called when a buffer came home that it was waiting for."""
        return FileReader(self._file, self._regions, self.max_buffer_bytes, on_room)

    def close(self) -> None:
        """Leave the file, which is deleted when all its subpartitions have left."""
        self._file.leave()


class FileReader(BufferRecycler):
    """One pass over regions, buffer by buffer, with the header of the next one behind each.

    ``next`` is what ``next_buffer`` will give, None at the end.
    """

    def __init__(
        self, file: BoundedDataFile, regions: Sequence[Region], buffer_bytes: int, on_room: Callable[[], None]
    ) -> None:
        self._file = file
        self._on_room = on_room
        self._regions = regions
        self._num_entered = 0  # regions
        self._position = 0
        self._region_end = 0  # of the last region that was entered
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._free = [MemorySegment(memoryview(bytearray(buffer_bytes))) for _ in range(NUM_READ_BUFFERS)]
        self._is_starved = False
        self.next: NextBuffer | None = self._read()

    @property
    def has_room(self) -> bool:
        """Whether a buffer is free; if not, ``on_room`` is called when one is."""
        with self._lock:
            self._is_starved = not self._free
            return not self._is_starved

    def next_buffer(self) -> NetworkBuffer | None:
        """The next buffer, which the caller recycles; None at the end, or while both read buffers are in use."""
        found = self.next
        if found is None:
            return None
        with self._lock:
            if not self._free:
                self._is_starved = True
                return None
            segment = self._free.pop()
        try:
            self.next = self._read(segment.view[: found.size])
        except BaseException:
            self.recycle(segment)
            raise
        return NetworkBuffer(segment, self, found.size, found.data_type, is_compressed=found.is_compressed)

    def recycle(self, segment: MemorySegment) -> None:
        """Take a read buffer back."""
        with self._lock:
            self._free.append(segment)
            was_starved = self._is_starved
            self._is_starved = False
        if was_starved:
            self._on_room()

    def close(self) -> None:
        """Read no more."""
        self.next = None

    def _read(self, payload: memoryview | None = None) -> NextBuffer | None:
        """Fill ``payload``, and parse the header behind it: in one call if it lies in the same region."""
        parts: list[memoryview | bytearray] = [payload] if payload else []
        start = self._position
        end = start if payload is None else start + len(payload)
        header = bytearray(_HEADER.size)
        if end < self._region_end:
            end += len(header)
            self._fill(start, [*parts, header], end)
        else:
            self._fill(start, parts, end)
            if self._num_entered == len(self._regions):
                return None
            region = self._regions[self._num_entered]
            end = region.start + len(header)
            self._fill(region.start, [header], end)
            self._num_entered += 1
            self._region_end = region.start + region.num_bytes
        self._position = end
        data_type, is_compressed, num_bytes = _HEADER.unpack(header)
        return NextBuffer(DataType(data_type), bool(is_compressed), num_bytes)

    def _fill(self, start: int, parts: list[memoryview | bytearray], end: int) -> None:
        if not parts:
            return
        num_read = self._file.read(start, parts)
        if num_read != end - start:
            raise ResourceBrokenError(f"{self._file.path} ends in the middle of a buffer, at byte {start + num_read}")


def _behind(parts: list[bytes | memoryview], num_bytes: int) -> list[bytes | memoryview]:
    """What is left of ``parts`` behind their first ``num_bytes``."""
    left: list[bytes | memoryview] = []
    for part in parts:
        if num_bytes < len(part):
            left.append(memoryview(part)[num_bytes:])
        num_bytes = max(0, num_bytes - len(part))
    return left


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceBrokenError(f"the data of a blocking partition in {path}: {error}") from error
