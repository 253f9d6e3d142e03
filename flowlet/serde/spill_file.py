"""A temporary file for the bytes of a large, incomplete element.

Side:       task.  Writes block as long as the disk takes.
Invariants: the file has no name, so nothing is left however the process ends.
Source:     Flink ``SpanningWrapper``: one file per large record, written through a buffer of 2 MiB.
Absent:     reserving the disk space in advance: a length from the network is not trusted.
"""

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Final

from flowlet.errors import SerdeError

_WRITE_BYTES: Final = 2 << 20  # Flink's


class SpillFile:
    """Bytes in a file: appended, then read as a whole.

    Threading: one thread.
    Life cycle: ``close``, or drop it; views stay valid until they are dropped.

    Raises:
        SerdeError: the file cannot be created or written; the message names the directory.  Also from ``append``,
            ``view``, ``pieces``.
    """

    __slots__ = ("__weakref__", "_close", "_directory", "_file", "_map", "_size")

    def __init__(self, directory: str | None) -> None:
        self._directory = tempfile.gettempdir() if directory is None else directory
        self._size = 0
        self._map: mmap.mmap | None = None
        with self._translated():
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=_WRITE_BYTES)  # noqa: SIM115 - closed below
        self._close = weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<SpillFile of {self._size} bytes in {self._directory}{'' if self._close.alive else ', closed'}>"

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at the end."""
        with self._translated():
            self._file.write(data)
        self._size += len(data)

    def view(self) -> memoryview:
        """All bytes, memory-mapped; call ``append`` no more."""
        with self._translated():
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """All bytes in pieces of this size; ``append`` may follow."""
        with self._translated():
            self._file.flush()
        for start in range(0, self._size, piece_bytes):
            with self._translated():
                piece = os.pread(self._file.fileno(), piece_bytes, start)
            yield piece

    def close(self) -> None:
        """Close the file; the disk space is freed when no view is left."""
        with contextlib.suppress(OSError):  # flushing failed, but the bytes are not needed
            self._close()
        if self._map is not None:
            # The traceback of an error may still hold a view; the mapping is then freed with it.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SerdeError(
                f"an element too large for memory cannot be kept in a file in {self._directory}: {error}"
            ) from error
