"""Where the buffers of a blocking subpartition lie: a file, read back through buffers of its own or mapped into memory.

Side:       shared.  One thread writes; each reader belongs to one thread, and is closed while nobody polls it; buffers are recycled by
            any.
Invariants: a header stands before each buffer, and what a reader looks at next is known from its header before it is read; a file-backed
            reader has two buffers, so it reads on only when one of them came home, and says so to whoever waits.
Units:      sizes and positions in bytes.
Errors:     the file system's, as ``ResourceBrokenError`` with the path.
Source:     Flink ``BoundedData``, ``FileChannelBoundedData``, ``FileChannelMemoryMappedBoundedData``, ``BufferReaderWriterUtil``.
            Headers are private to this module: u16 data type, u16 compressed, u32 size, big endian.
Absent:     a store that is written through the mapping, and direct transfer from file to socket.
"""

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from enum import Enum, unique
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from netstack.buffer.buffer_recycler import FREEING_RECYCLER
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceBrokenError
from netstack.wire.messages import DataType

NUM_READ_BUFFERS: Final = 2  # Flink's: one on its way while the next is read
_HEADER: Final = Struct(">HHI")


class NextBuffer(NamedTuple):
    """What the header of the next buffer says."""

    data_type: DataType
    is_compressed: bool
    size: int


class BoundedDataReader(Protocol):
    """One pass over the data."""

    next: NextBuffer | None
    """What ``next_buffer`` will give, None at the end."""

    @property
    def has_room(self) -> bool:
        """Whether ``next_buffer`` can be called now."""

    def next_buffer(self) -> NetworkBuffer | None:
        """The next buffer, which the caller recycles; None at the end, or while there is no room to read it into."""

    def close(self) -> None:
        """Read no more; buffers that are still in use stay readable."""


class BoundedData(Protocol):
    """All buffers of one subpartition: written once, then read any number of times."""

    path: Path
    num_bytes: int

    @property
    def is_readable(self) -> bool:
        """Whether the file is still there."""

    def write(self, buffer: NetworkBuffer) -> None:
        """Append a copy of ``buffer``, which stays the caller's."""

    def finish_write(self) -> None:
        """Nothing more is written; readers may come."""

    def create_reader(self, on_room: Callable[[], None]) -> BoundedDataReader:
        """A reader at the beginning; ``on_room`` is called when a buffer came home that it was waiting for."""

    def close(self) -> None:
        """Delete the file; called once, when nobody reads or writes any more."""


@unique
class BoundedDataKind(Enum):
    """How the file is read back."""

    FILE = "file"
    MMAP = "mmap"


class _BoundedFile:
    """The writing half of both kinds."""

    def __init__(self, directory: Path, *, is_named: bool = True) -> None:
        with _translated(directory):
            self._fd, path = tempfile.mkstemp(prefix="netstack-", suffix=".channel", dir=directory)
            if not is_named:
                os.unlink(path)
        self.path = Path(path)
        self._is_named = is_named
        self.num_bytes = 0
        self.max_buffer_bytes = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}, {self.num_bytes} bytes>"

    @property
    def is_readable(self) -> bool:
        """Whether the file is still there; one without a name stays as long as it is open."""
        return not self._is_named or self.path.exists()

    def write(self, buffer: NetworkBuffer) -> None:
        """Append a copy of ``buffer``, which stays the caller's."""
        header = _HEADER.pack(buffer.data_type, buffer.is_compressed, buffer.size)
        parts: list[bytes | memoryview] = [header, buffer.view]
        num_left = len(header) + buffer.size
        self.num_bytes += num_left
        self.max_buffer_bytes = max(self.max_buffer_bytes, buffer.size)
        with _translated(self.path):
            while True:
                num_written = os.writev(self._fd, parts)
                num_left -= num_written
                if num_left == 0:
                    return
                parts = _behind(parts, num_written)

    def close(self) -> None:
        """Delete the file."""
        with _translated(self.path):
            os.close(self._fd)
            if self._is_named:
                self.path.unlink(missing_ok=True)


class FileBoundedData(_BoundedFile):
    """A file that readers copy out of."""

    def finish_write(self) -> None:
        """Nothing to do: readers read the same file."""

    def create_reader(self, on_room: Callable[[], None]) -> "FileReader":
        """A reader with buffers of its own."""
        return FileReader(self._fd, self.path, self.max_buffer_bytes, on_room)


class FileReader:
    """Reads a file buffer by buffer, with the header of the next one behind each."""

    def __init__(self, fd: int, path: Path, buffer_bytes: int, on_room: Callable[[], None]) -> None:
        self._fd = fd
        self._path = path
        self._on_room = on_room
        self._position = 0
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._free = [MemorySegment(memoryview(bytearray(buffer_bytes))) for _ in range(NUM_READ_BUFFERS)]
        self._is_starved = False
        self.next: NextBuffer | None = self._read(None, 0)

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
            self.next = self._read(segment.view[: found.size], found.size)
        except BaseException:
            self.recycle(segment)
            raise
        return NetworkBuffer(segment, self, found.size, found.data_type, is_compressed=found.is_compressed)

    def recycle(self, segment: MemorySegment) -> None:
        """Take a read buffer back."""
        with self._lock:
            self._free.append(segment)
            was_starved, self._is_starved = self._is_starved, False
        if was_starved:
            self._on_room()

    def close(self) -> None:
        """Read no more."""
        self.next = None

    def _read(self, payload: memoryview | None, size: int) -> NextBuffer | None:
        """Fill ``payload``, and parse the header behind it."""
        header = bytearray(_HEADER.size)
        parts: list[memoryview | bytearray] = [header] if payload is None or size == 0 else [payload, header]
        with _translated(self._path):
            num_bytes = os.preadv(self._fd, parts, self._position)
        if num_bytes not in (size, size + _HEADER.size):
            raise ResourceBrokenError(f"{self._path} ends in the middle of a buffer, at byte {self._position + num_bytes}")
        self._position += num_bytes
        return _parse(header) if num_bytes > size else None


class MmapBoundedData(_BoundedFile):
    """A file that is mapped into memory when it is complete; readers see the mapping itself."""

    def __init__(self, directory: Path, *, is_named: bool = True) -> None:
        super().__init__(directory, is_named=is_named)
        self._map: mmap.mmap | None = None

    def finish_write(self) -> None:
        """Map what was written."""
        with _translated(self.path):
            self._map = mmap.mmap(self._fd, self.num_bytes, access=mmap.ACCESS_READ)

    def create_reader(self, on_room: Callable[[], None]) -> "MmapReader":
        """A reader of the mapping."""
        assert self._map is not None, "the data is complete"
        return MmapReader(memoryview(self._map))

    def close(self) -> None:
        """Unmap (or leave that to the last buffer that is still in use) and delete the file."""
        super().close()
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


class MmapReader:
    """Walks over a mapping; its buffers are views of it, and keep it alive."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0
        self.next: NextBuffer | None = self._read_header()

    @property
    def has_room(self) -> bool:
        """Always: nothing is copied."""
        return True

    def next_buffer(self) -> NetworkBuffer | None:
        """The next buffer, which the caller recycles; None at the end."""
        found = self.next
        if found is None:
            return None
        segment = MemorySegment(self._view[self._position : self._position + found.size])
        self._position += found.size
        self.next = self._read_header()
        return NetworkBuffer(segment, FREEING_RECYCLER, found.size, found.data_type, is_compressed=found.is_compressed)

    def close(self) -> None:
        """Read no more, and hold nothing of the mapping."""
        self.next = None
        self._view = memoryview(b"")

    def _read_header(self) -> NextBuffer | None:
        start = self._position
        self._position += _HEADER.size
        return _parse(self._view[start : self._position]) if start < len(self._view) else None


def create_bounded_data(kind: BoundedDataKind, directory: Path, *, is_named: bool = True) -> BoundedData:
    """An empty store in a new file of ``directory``; a file without a name is gone however the process ends.

    Raises:
        ResourceBrokenError: the file cannot be made.
    """
    store = MmapBoundedData if kind is BoundedDataKind.MMAP else FileBoundedData
    return store(directory, is_named=is_named)


def _parse(header: bytearray | memoryview) -> NextBuffer:
    data_type, is_compressed, size = _HEADER.unpack(header)
    return NextBuffer(DataType(data_type), bool(is_compressed), size)


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
        raise ResourceBrokenError(f"the data of a blocking subpartition in {path}: {error}") from error
