"""``RocksDBStore``: the database of one operator of one subtask, and the room of its caches.

Hot path.  A row that was used lately is in the cache of its state.  The caches are written back in one batch, when they are full and
before a snapshot.

Side:       task.  Blocking: local files.
Invariants: no log is written ahead: what a killed process had is restored from a checkpoint, as in Flink.
Units:      room in bytes, roughly: the size of a value by ``sys.getsizeof``, without what it refers to.
Source:     Flink ``RocksDBKeyedStateBackend``, ``RocksDBOperationUtils``; PyFlink's ``LRUCache`` of states.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowlet.common.settings.state_settings import check_rocksdb
from flowlet.keys.key_groups import key_group

if TYPE_CHECKING:
    import rocksdict

CACHE_BYTES: Final = 8 << 20  # not measured closely: some 30,000 small values
_LOG_FILES: Final = 1


class RowCache(Protocol):
    """The cache of one state."""

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put what was changed into the batch."""

    def forget(self) -> None:
        """Drop all entries; they were written."""


class RocksDBStore:
    """Threading: task thread only.  Life cycle: ``close`` once.

    Args:
        path: of the database; made if there is none.
        max_parallelism: the number of key groups.
        cache_bytes: the room of all caches.
    """

    def __init__(self, path: Path, max_parallelism: int, cache_bytes: int = CACHE_BYTES) -> None:
        check_rocksdb()
        import rocksdict

        self._library = rocksdict
        self._max_parallelism = max_parallelism
        self._cache_bytes = cache_bytes
        self.caches: list[RowCache] = []
        self.room = cache_bytes  # Of all caches.
        self._without_log = rocksdict.WriteOptions()
        setattr(self._without_log, "disable_wal", True)  # noqa: B010 - a property, which rocksdict declares as a method
        self.db = rocksdict.Rdict(str(path), _options())
        self.get = self.db.get

    def __repr__(self) -> str:
        return f"<RocksDBStore with room for {self.room} bytes>"

    def key_group(self, key: Any) -> int:
        """The key group of a key of the stream."""
        return key_group(key, self._max_parallelism)

    def make_room(self) -> None:
        """Write all changes, and empty all caches."""
        self.flush()
        for cache in self.caches:
            cache.forget()
        self.room = self._cache_bytes

    def flush(self) -> None:
        """Write all changes."""
        batch = self._library.WriteBatch(raw_mode=True)
        for cache in self.caches:
            cache.flush(batch)
        self.write(batch)

    def new_batch(self) -> "rocksdict.WriteBatch":
        """An empty batch."""
        return self._library.WriteBatch(raw_mode=True)

    def write(self, batch: "rocksdict.WriteBatch") -> None:
        """Write a batch."""
        if not batch.is_empty():
            self.db.write(batch, self._without_log)

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the rows that begin with ``prefix``, as they were written."""
        return rows_of(self.db, prefix)

    def checkpoint(self, path: Path) -> None:
        """Make a directory of hard links to all files; changes must have been flushed."""
        # The binding lets go of the interpreter's lock while it flushes, and keeps it while it takes a checkpoint, which would flush, too.
        # On a disk that takes 0.3 s for an fsync the whole process stands still for 0.9 s, and without this for 1.8 s.
        self.db.flush()
        self._library.Checkpoint(self.db).create_checkpoint(str(path))

    def close(self) -> None:
        """Close the database without writing anything."""
        self.db.close()


def open_to_read(path: Path) -> "rocksdict.Rdict":
    """A database of a checkpoint; the caller closes it."""
    check_rocksdb()
    import rocksdict

    access = rocksdict.AccessType.read_only(error_if_log_file_exist=False)  # the file is there, and empty
    return rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True), access_type=access)


def rows_of(db: "rocksdict.Rdict", prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the rows that begin with ``prefix``, in order."""
    row: Any
    for row, value in db.items(from_key=prefix):
        if not row.startswith(prefix):
            return
        yield row, value


def _options() -> "rocksdict.Options":
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003 - rocksdict's signature
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_stats_dump_period_sec(0)
    return options
