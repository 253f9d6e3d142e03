"""``RocksDBStore``: the database of one operator of one subtask, its rows, and the room of its caches.

Hot path.  A row that was used lately is in the cache of its state.  The caches are written back in one batch, when they
are full and before a snapshot.

Side:       task.  Blocking: local files.
Invariants: no log is written ahead: the state of a killed process is restored from a checkpoint, as in Flink.  No key's
            bytes (``key_bytes``) with their length are the beginning of another key's.  A row whose keys can be read
            back from its bytes holds the value alone; any other row holds the keys as the user knows them, too.
Format:     of the key of a row: key group (u16), number of the state (u16), size of the key (u32), the key; in a map,
            the key of the map follows.
Units:      bytes of memory, estimated (``memory_size``): of long containers from some of their elements.
Source:     Flink ``RocksDBKeyedStateBackend``, ``RocksDBOperationUtils``,
            ``CompositeKeySerializationUtils``; PyFlink's ``LRUCache`` of states.
"""

import struct
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from flowlet.common.job_settings import check_rocksdb
from flowlet.common.types import Row
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.serde.pickles.record_pickle import dumps_value

if TYPE_CHECKING:
    import rocksdict

CACHE_BYTES: Final = 8 << 20  # not measured closely: some 30,000 small values
_LOG_FILES: Final = 1
_MAX_DEPTH: Final = 4
_NUM_SAMPLES: Final = 8
_HEAD: Final = struct.Struct(">HHI")
WITH_KEYS: Final = 1  # the first byte of a row that holds the keys, too; a pickle begins with another byte
_FLAT: Final = frozenset({str, bytes, bytearray, int, float, bool, complex, type(None)})
_SEQUENCES: Final = (list, tuple)
_OTHERS: Final = (set, frozenset, deque)


class RowCache(Protocol):
    """The cache of one state."""

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put the changed entries into the batch."""

    def forget(self) -> None:
        """Drop the entries, which were written."""

    def held_bytes(self) -> int:
        """The bytes that all entries take, counted anew."""


class ByteBudget:
    """How many bytes several caches hold, and how many they may hold.

    Invariants: ``used`` is the sum of the charges for all entries that the caches hold; a cache charges for an entry
                before it stores it, also in place of another one.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def __repr__(self) -> str:
        return f"<ByteBudget: {self.used} of {self.limit} bytes>"

    def charge(self, old: int, new: int) -> bool:
        """Count ``new`` bytes in place of ``old`` ones (0: there were none).

        Returns whether the caches hold more than they may.
        """
        self.used += new - old
        return self.used > self.limit

    def check_invariants(self, held_bytes: int) -> None:
        """Assert that the caches were charged for exactly these bytes."""
        assert self.used == held_bytes, f"{self.used} bytes were charged, {held_bytes} are held"


class RocksDBStore:
    """The database of one operator of one subtask.

    Threading: task thread only.
    Life cycle: ``close`` once.

    Args:
        path: of the database; made if there is none.
        max_parallelism: the number of key groups.
        cache_bytes: the room of all caches.
    """

    def __init__(self, path: Path, max_parallelism: int, cache_bytes: int = CACHE_BYTES) -> None:
        check_rocksdb()
        import rocksdict

        self._library = rocksdict
        self.max_parallelism = max_parallelism
        self.caches: list[RowCache] = []
        self.budget = ByteBudget(cache_bytes)  # Of all caches.
        self._without_log = rocksdict.WriteOptions()
        setattr(self._without_log, "disable_wal", True)  # noqa: B010 - a property, which rocksdict declares as a method
        self.db = rocksdict.Rdict(str(path), _options())
        # Bound once: an access of a state saves a step.
        self.get = self.db.get

    def __repr__(self) -> str:
        return f"<RocksDBStore, {self.budget!r}>"

    def make_room(self) -> None:
        """Write all changes, and empty all caches but those in use by the record that is being processed."""
        # First: ``forget`` drops entries, changed or not.
        self.flush()
        for cache in self.caches:
            cache.forget()
        # Some entries stay (``forget``): they are counted anew.
        self.budget.used = sum(cache.held_bytes() for cache in self.caches)

    def flush(self) -> None:
        """Write all changes; the caches then count their entries with the lengths of the written rows."""
        batch = self.new_batch()
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
        """Write all changes, and make a directory of hard links to all files.

        Empties the caches if they turn out to hold too much.
        """
        self.flush()
        if self.budget.used > self.budget.limit:
            self.make_room()
        # The binding lets go of the interpreter's lock while it flushes, and keeps it while it takes a checkpoint,
        # which would flush, too.  On a disk that takes 0.3 s for an fsync the whole process stands still for 0.9 s, and
        # without this for 1.8 s.
        self.db.flush()
        self._library.Checkpoint(self.db).create_checkpoint(str(path))

    def check_invariants(self) -> None:
        """Assert that all that the caches hold was charged."""
        self.budget.check_invariants(sum(cache.held_bytes() for cache in self.caches))

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
    # Bytes of 255 have no next one: the byte before them is raised.
    head = prefix.rstrip(b"\xff")
    # The first key after all keys that begin with the prefix, if there can be one.
    return rows_between(db, prefix, head[:-1] + bytes([head[-1] + 1]) if head else None)


def rows_between(db: "rocksdict.Rdict", first: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the rows from ``first`` on, in order, to before ``end``; None: to the last one."""
    rows: Any = db.items(from_key=first, read_opt=_to_before(end))
    yield from rows


def keys_between(db: "rocksdict.Rdict", first: bytes, end: bytes) -> Iterator[bytes]:
    """The keys of ``rows_between``."""
    keys: Any = db.keys(from_key=first, read_opt=_to_before(end))
    yield from keys


def _to_before(end: bytes | None) -> "rocksdict.ReadOptions | None":
    """Options of an iterator with an upper bound.

    Without a bound the iterator looks past the last row for another one, over all rows that were deleted and are not
    compacted yet: clearing N keys with a map each would take time in proportion to the square of N.
    """
    if end is None:
        return None
    import rocksdict

    options = rocksdict.ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _options() -> "rocksdict.Options":
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003 - rocksdict's signature
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_stats_dump_period_sec(0)
    return options


# ---------------------------------------------------------------- rows


def row_prefix(key_group: int, state_id: int, content: bytes) -> bytes:
    """The bytes that all rows of a key of the stream begin with; ``content``: the bytes of the key."""
    return _HEAD.pack(key_group, state_id, len(content)) + content


def taken_apart(row: bytes) -> tuple[int, int, bytes, bytes]:
    """Key group, number of the state, bytes of the key, and of the key of the map (none: empty)."""
    key_group, state_id, size = _HEAD.unpack_from(row)
    end = _HEAD.size + size
    return key_group, state_id, row[_HEAD.size : end], row[end:]


def row_content(value: Any, *keys: Any) -> bytes:
    """The content of a row with these keys: of the stream and, in a map, of the map.

    Raises SerdeError: the value cannot be pickled.
    """
    for key in keys:
        if type(key) not in PLAIN:
            return bytes([WITH_KEYS]) + dumps_value((*keys, value))
    return dumps_value(value)


# ---------------------------------------------------------------- how much memory values take
# A container counts with its elements, down to four levels; of a long one eight elements, spread over it, stand for
# all.  An object that several values share counts for each; memory that only an extension module knows is not seen.


def memory_size(value: Any, depth: int = _MAX_DEPTH) -> int:
    """The bytes that a value takes, with the objects that it refers to."""
    # With a guess, for types that do not tell.
    size = sys.getsizeof(value, 64)
    kind = type(value)
    if kind in _FLAT or not depth:
        return size
    if kind is list or kind is tuple:  # without a call per element where all are flat
        samples = value if len(value) <= _NUM_SAMPLES else value[:: -(-len(value) // _NUM_SAMPLES)]
        if _FLAT.issuperset(map(type, samples)):
            return size + (sum(map(sys.getsizeof, samples)) * len(value) // len(samples) if samples else 0)
    if (
        kind is dict
        and len(value) <= _NUM_SAMPLES
        and _FLAT.issuperset(map(type, value))
        and _FLAT.issuperset(map(type, value.values()))
    ):
        return size + sum(map(sys.getsizeof, value)) + sum(map(sys.getsizeof, value.values()))
    if isinstance(value, dict):
        keys, values = _ends(dict.keys(value)), _ends(dict.values(value))
        size += _all_of(keys, len(value), depth) + _all_of(values, len(value), depth)
    elif isinstance(value, _SEQUENCES):
        step = -(-len(value) // _NUM_SAMPLES) or 1
        size += _all_of(value[::step], len(value), depth)
    elif isinstance(value, _OTHERS):
        size += _all_of(islice(value, _NUM_SAMPLES), len(value), depth)
    elif isinstance(value, Row):
        size += memory_size(list(value), depth - 1)
    # Large data outside of Python's own objects, which ``getsizeof`` does not see.
    elif isinstance(value, np.ndarray) or type(value).__module__.startswith("pyarrow"):
        return max(size, int(getattr(value, "nbytes", 0)))
    return size + _attributes_of(value, depth)


def _ends(view: Any) -> Iterable[Any]:
    """Up to eight elements, from both ends of a dictionary."""
    if len(view) <= _NUM_SAMPLES:
        return view  # type: ignore[no-any-return]  # a view of keys or values
    half = _NUM_SAMPLES // 2
    return [*islice(view, half), *islice(reversed(view), half)]


def _all_of(samples: Iterable[Any], number: int, depth: int) -> int:
    sizes = [memory_size(each, depth - 1) for each in samples]
    return sum(sizes) * number // len(sizes) if sizes else 0


def _attributes_of(value: Any, depth: int) -> int:
    attributes = getattr(value, "__dict__", None)
    size = memory_size(attributes, depth - 1) if type(attributes) is dict else 0
    for cls in type(value).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            # A mangled name, or ``__dict__``, which was looked at above.
            held = None if name.startswith("__") else getattr(value, name, None)
            size += 0 if held is None else memory_size(held, depth - 1)
    return size
