"""Lists files and assigns them to readers, the largest first.

Side:       shared.  ``discover`` opens files, on a thread of its own; the rest only decides, on the JobManager's loop.
Invariants: every byte of every file is assigned once; memory grows with the number of files, not of splits.  Files must
            not change while the job runs.
Rules:      a single reader gets the files in the order of their paths.  Several readers get the largest first, so that
            none is left with a large one at the end.  An answer may hold several small files, but at most half of a
            reader's fair share of what is left.  Files of size 0 that have content, as in ``/proc``, are one split of
            an unknown size.
Source:     Flink ``StaticFileSplitEnumerator``, ``NonSplittingRecursiveEnumerator``,
            ``BlockSplittingRecursiveEnumerator`` (hidden files in folders are skipped); the shares are those of guided
            self-scheduling.
"""

import os
import stat
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import msgspec

from flowlet.errors import FlowletError, StateRestoreError
from flowlet.splits.file_split import HEAD_BYTES, FileSet, FileSplit, compression_of, keeps_line_ends, needs_head

# The limit of an answer with several files: reading so much takes far longer than the next request.  Not measured.
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_ANSWER_SPLITS: Final = 1_000  # about 100 kB of paths
_HIDDEN: Final = (".", "_")
_STATE_VERSION: Final = 1
_State = tuple[int, list[tuple[str, int, int]]]  # the version; path, start and end of each split, in their order
_state_decoder: Final = msgspec.msgpack.Decoder(_State)


class FileSplitEnumerator:
    """The files of one source; see ``SplitEnumerator``.  Threading: one thread at a time."""

    def __init__(self, files: FileSet) -> None:
        self.files = files
        self._num_readers = 1
        self._splits: deque[FileSplit] = deque()  # one per file, without the part that is assigned already
        self._waiting_bytes = 0
        # Compressed files: they are not cut.  After a restart those are missing whose name does not say so; then they
        # may be cut, and a
        # reader reads them whole with their first split.
        self._whole: set[str] = set()

    def __repr__(self) -> str:
        return f"<FileSplitEnumerator {len(self._splits)} files with {self._waiting_bytes} bytes wait>"

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits that are not assigned."""
        return self._waiting_bytes

    @property
    def discovery_interval_ms(self) -> int | None:
        """None: the files that exist at the start are all."""
        return None

    def find_new(self) -> list[FileSplit]:
        """Nothing: see ``discovery_interval_ms``."""
        return []

    def add_found(self, found: Sequence[FileSplit]) -> None:
        """Never called: see ``discovery_interval_ms``."""

    def discover(self, num_readers: int) -> None:
        """List all files; empty ones have no split.

        Raises:
            FlowletError: a file or folder is missing or cannot be read, or is compressed in a way that no reader knows;
                names it.
            ConfigError: the charset is unknown.
        """
        keeps_line_ends(self.files.charset)
        found = [_Found.of(_sendable(file)) for path in self.files.paths for file in _files(path)]
        splits = [FileSplit(each.path, 0, each.size_bytes) for each in found if not each.is_empty]
        self._whole = {each.path for each in found if each.is_compressed}
        if num_readers > 1:
            splits.sort(key=lambda split: -split.size_bytes)
        self._num_readers = num_readers
        self._splits = deque(splits)
        self._waiting_bytes = sum(split.size_bytes for split in splits)

    def next_splits(self, reader: int) -> list[FileSplit]:
        """The next split, with others if they are small; empty: none are left."""
        limit_bytes = min(MAX_ANSWER_BYTES, self._waiting_bytes // (2 * self._num_readers))
        found: list[FileSplit] = []
        while self._splits and len(found) < MAX_ANSWER_SPLITS:
            end = self._end_of_next()
            limit_bytes -= end - self._splits[0].start
            if found and limit_bytes < 0:
                break
            found.append(self._take(end))
        return found

    def snapshot(self) -> bytes:
        """The splits that are not assigned."""
        return msgspec.msgpack.encode(
            (_STATE_VERSION, [(split.path, split.start, split.end) for split in self._splits])
        )

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called; nothing is listed again.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        try:
            version, splits = _state_decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(f"the splits of a file source in a checkpoint cannot be read: {error}") from error
        if version != _STATE_VERSION:
            raise StateRestoreError(
                f"the splits of a file source in a checkpoint have version {version}, this flowlet reads version "
                f"{_STATE_VERSION}"
            )
        self._num_readers = num_readers
        self._splits = deque(FileSplit(*split) for split in splits)
        self._waiting_bytes = sum(split.size_bytes for split in self._splits)

    def _end_of_next(self) -> int:
        file = self._splits[0]
        is_whole = file.path in self._whole or not needs_head(file.path) or not keeps_line_ends(self.files.charset)
        if self.files.split_bytes is None or is_whole:
            return file.end
        return min(file.start + self.files.split_bytes, file.end)

    def _take(self, end: int) -> FileSplit:
        file = self._splits.popleft()
        if end < file.end:
            self._splits.appendleft(FileSplit(file.path, end, file.end))
        self._waiting_bytes -= end - file.start
        return FileSplit(file.path, file.start, end)


class _Found(NamedTuple):
    """A file that was listed; ``size_bytes`` 0: it is empty, or its size is not known."""

    path: str
    size_bytes: int
    is_empty: bool
    is_compressed: bool

    @classmethod
    def of(cls, path: str) -> Self:
        """Open the file and look at its beginning."""
        try:
            # O_NONBLOCK, because opening a named pipe would otherwise block for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise FlowletError(f"cannot read {path}: it is neither a file nor a folder")
                # Files in /proc have content, although their size is 0.
                head = os.pread(descriptor, HEAD_BYTES, 0) if needs_head(path) or not status.st_size else b""
            finally:
                os.close(descriptor)
        except OSError as error:
            raise FlowletError(f"cannot read {path}: {error.strerror or error}") from error
        compression = compression_of(path, head)
        is_empty = not status.st_size and not head
        if is_empty and compression is not None:
            raise FlowletError(
                f"cannot read {path}: it is empty, which no {compression.value} data are; was it written to its end?"
            )
        return cls(path, status.st_size, is_empty, compression is not None)


def _files(path: str) -> list[str]:
    """The path itself if it is a file, else the files in the folder, which are listed in order.

    Links to folders are followed, as in Flink.  One that leads to a folder in which it lies is left out: its files are
    listed already.
    """
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    identity_of: dict[str, tuple[tuple[int, int], ...]] = {
        path: (_identity(path),)
    }  # by folder that is still to be listed: those on the way to it
    for folder, folders, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        way = identity_of.pop(folder)
        inside = {}
        for name in sorted(name for name in folders if not name.startswith(_HIDDEN)):
            identity = _identity(os.path.join(folder, name))
            if identity not in way:
                inside[name] = identity
                identity_of[os.path.join(folder, name)] = (*way, identity)
        folders[:] = inside
        found += [os.path.join(folder, name) for name in sorted(files) if not name.startswith(_HIDDEN)]
    return found


def _identity(folder: str) -> tuple[int, int]:
    """What two names of one folder have in common."""
    try:
        status = os.stat(folder)
    except OSError as error:
        raise FlowletError(f"cannot list {folder}: {error.strerror or error}") from error
    return status.st_dev, status.st_ino


def _sendable(path: str) -> str:
    """The path, if a message can hold it: messages have text, which must be UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FlowletError(
            f"cannot read {shown}: its name is not UTF-8, so it cannot be sent to a TaskManager; rename it"
        ) from error
    return path


def _refuse_folder(error: OSError) -> None:
    raise FlowletError(f"cannot list {error.filename}: {error.strerror or error}") from error
