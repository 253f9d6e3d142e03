"""``RocksDBKeyedStateBackend``: all keyed state of one operator, in a RocksDB on the local disk.

Side:       task.  The callable that ``snapshot`` returns runs on the snapshot pool.
Invariants: the database is made with the first state, or by ``restore``.  State that was restored and not declared
            again yet stays in every snapshot.  A snapshot is made of hard links: later changes, and the end of the
            database, do not reach it.
Rules:      a file that a complete checkpoint has is not written again: within one database no name is used twice.
Source:     Flink ``RocksDBKeyedStateBackend``, ``RocksIncrementalSnapshotStrategy``, ``RocksFullSnapshotStrategy``,
            ``RocksDBIncrementalRestoreOperation``.
Absent:     clean-up of expired entries by compactions, which Python cannot take part in, or step by step: expired
            entries are removed when they are read, and left out of snapshots that are not incremental.
"""

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Final

from flowlet.common.typeinfo import PickledBytesTypeInfo
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.keys.exact_keys import exact_key, key_bytes, key_group, plain_key
from flowlet.serde.pickles.former_classes import FormerClassError, RunningClasses, loads_former, may_hold_classes
from flowlet.serde.pickles.record_pickle import loads_value
from flowlet.state.declared_values import DeclaredValues
from flowlet.state.rocksdb.cached_columns import CachedColumns
from flowlet.state.rocksdb.cached_rows import CachedRows, StateKeys
from flowlet.state.rocksdb.cached_states import RocksDBListState, RocksDBMapState, RocksDBValueState
from flowlet.state.rocksdb.rocksdb_store import (
    CACHE_BYTES,
    WITH_KEYS,
    RocksDBStore,
    open_to_read,
    row_content,
    row_prefix,
    rows_of,
    taken_apart,
)
from flowlet.state.state_backends import KeyedStateBackend, SharedFiles, StoredStates
from flowlet.state.state_snapshots import (
    AGGREGATES,
    AGGREGATES_DESCRIPTION,
    WINDOW_COLUMNS,
    ColumnHolder,
    IncrementalSnapshot,
    KeyedStateSnapshot,
    RowHolder,
    SharedFile,
    StateDescription,
    StateKind,
    StateRows,
)
from flowlet.state.ttl_states import Expiry
from flowlet.storage.state_files import WorkingDirectory
from flowlet.timers.keyed_timer_service import KeyContext
from netstack.late import dataclass

PREFIX: Final = struct.Struct(">HH")
MAX_STATES: Final = 1 << 16
_SHARED_SUFFIX: Final = ".sst"
_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class RocksDBPlace:
    """The settings of databases: their directory, the kind of their checkpoints, and the room of their caches.

    Args:
        directory: for the working directories; empty: the directory of temporary files.
        shared_files: keeps the files of incremental checkpoints; None: there is no storage.
        writes_shared_files: whether checkpoints are incremental, and not full.
        cache_bytes: of each operator's cache.
    """

    directory: str = ""
    shared_files: SharedFiles | None = None
    writes_shared_files: bool = False
    cache_bytes: int = CACHE_BYTES


@dataclass(eq=False)
class RocksDBKeyedStateBackend(KeyedStateBackend):
    """Implements ``KeyedStateBackend``; ``place``: of the files."""

    _stored: ClassVar[StoredStates] = {
        StateKind.VALUE: RocksDBValueState,
        StateKind.LIST: RocksDBListState,
        StateKind.MAP: RocksDBMapState,
    }
    place: RocksDBPlace
    _directory: WorkingDirectory | None = field(init=False, default=None)
    # Its path, also after ``close``: a snapshot may be discarded then.
    _root: Path | None = field(init=False, default=None)
    _store: RocksDBStore | None = field(init=False, default=None)
    _ids: dict[str, int] = field(init=False, default_factory=dict)
    # Of all states, declared or not.
    _descriptions: dict[str, StateDescription] = field(init=False, default_factory=dict)
    # The files of the newest complete checkpoint, by name in the database.
    _base: Mapping[str, SharedFile] = field(init=False, default_factory=dict)
    # The files of checkpoints that may become complete, by checkpoint.  Set by the snapshot pool, one item each; read
    # by the task thread.
    _uploads: dict[int, Mapping[str, SharedFile]] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<RocksDBKeyedStateBackend of {sorted(self._descriptions)}, {self._store!r}>"

    # -- states

    def _new_table(self, name: str, declared: StateDescription, key: KeyContext, values: DeclaredValues) -> StateKeys:
        convert = self._row_converter(name, declared)
        store = self._opened()
        state_id = self._id_of(name, declared)
        if convert is not None:
            states = {state_id: (name, declared.kind, None)}
            for group in self._key_groups:
                # One key group at a time: the whole state may be larger than memory.
                for found in full_snapshot(store.rows(PREFIX.pack(group, state_id)), states, 0).values():
                    self._put(group, name, declared.kind, found[name].converted(convert))
        self._descriptions[name] = declared
        return StateKeys(name, state_id, store, key, values, declared)

    def _put(self, group: int, name: str, kind: StateKind, rows: StateRows) -> None:
        """Write the rows of a state in a key group; a row with an equal key is replaced."""
        store = self._opened()
        # Of one state and key group, so that no batch takes the memory of all.
        batch = store.new_batch()
        for row, content in rows_of_snapshot(kind, group, self._ids[name], rows):
            batch.put(row, content)
        store.write(batch)

    def _id_of(self, name: str, description: StateDescription) -> int:
        if name not in self._ids:
            if len(self._ids) >= MAX_STATES:
                raise FlowletError(f"state {name!r}: an operator has at most {MAX_STATES} states")
            # No number is given back: rows of a state that is not declared stay in the database.
            self._ids[name] = len(self._ids)
            self._descriptions[name] = description
        return self._ids[name]

    def open_rows(self, holder: RowHolder) -> CachedRows:
        """Keep the rows of an operator in the database; the holder asks the result for rows that it does not hold."""
        values = DeclaredValues(AGGREGATES, PickledBytesTypeInfo(), StateKind.VALUE)
        return CachedRows(self._new_table(AGGREGATES, AGGREGATES_DESCRIPTION, self._key_context, values), holder)

    def open_columns(self, holder: ColumnHolder, description: str) -> CachedColumns:
        """Keep the columns of an operator in the database; the result brings rows back to the holder."""
        state_id = self._id_of(WINDOW_COLUMNS, self._declared_columns(description))
        return CachedColumns(state_id, self._opened(), self._key_groups, holder)

    def forget_keys(self) -> None:
        """Raise FlowletError: inputs that are sorted by key use a back end on the heap, with memory for one key."""
        raise FlowletError("keyed state in RocksDB is not dropped key by key")

    def keys_of(self, name: str) -> list[Any]:
        """Implement ``KeyedStateBackend.keys_of``; reads all rows of the state."""
        store = self._opened()
        # Rows that only the caches have would be missing.
        store.flush()
        kind, state_id = self._descriptions[name].kind, self._ids[name]
        rows = (row for group in self._key_groups for row in store.rows(PREFIX.pack(group, state_id)))
        return list(user_keys(kind, rows))

    # -- checkpoints

    def snapshot(
        self, checkpoint_id: int = 0, *, is_full: bool = False
    ) -> Callable[[], KeyedStateSnapshot | IncrementalSnapshot] | None:
        """Make hard links to the files of the database; the callable copies the files, or reads all rows from them."""
        if not self._ids:
            return None
        store = self._opened()
        # Removed first: a checkpoint that failed half-way may have left it, and RocksDB takes no directory that is
        # there.
        path = self._path(f"snapshot-{checkpoint_id}")
        shutil.rmtree(path, ignore_errors=True)
        store.checkpoint(path)
        # Copies, as the pool reads them while the task goes on.
        ids, descriptions = dict(self._ids), dict(self._descriptions)
        # The base of now: a checkpoint that becomes complete meanwhile changes nothing for this one.
        files, base = self.place.shared_files, self._base
        groups, max_parallelism, now_ms = self._key_groups, self._max_parallelism, self._now_ms()
        states = {ids[name]: (name, each.kind, self._expiries.get(name)) for name, each in descriptions.items()}
        uploads = self._uploads

        def incremental() -> IncrementalSnapshot:
            """Keep the files that the last complete checkpoint does not have; on the snapshot pool."""
            assert files is not None, "else the snapshot is full"
            shared = {}
            private = {}
            with _removed(path):
                for file in sorted(path.iterdir()):
                    if file.name.endswith(_SHARED_SUFFIX):
                        # A name is never used twice in one database: a file that the last complete checkpoint has is
                        # this one.
                        shared[file.name] = base.get(file.name) or files.write_shared(file)
                    else:
                        private[file.name] = file.read_bytes()
            # When all are written: a base must not name a file that is not there.
            uploads[checkpoint_id] = shared
            return IncrementalSnapshot(descriptions, ids, max_parallelism, groups.start, groups.stop, shared, private)

        def full() -> KeyedStateSnapshot:
            """Read the whole state from hard links; on the snapshot pool."""
            with _removed(path), closing(open_to_read(path)) as database:
                rows = full_snapshot(rows_of(database, b""), states, now_ms)
            return KeyedStateSnapshot(descriptions, max_parallelism, rows)

        return incremental if self.place.writes_shared_files and files is not None and not is_full else full

    def discard_snapshot(self, checkpoint_id: int) -> None:
        """Remove the hard links of a snapshot."""
        if self._root is not None:
            shutil.rmtree(self._path(f"snapshot-{checkpoint_id}"), ignore_errors=True)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let later snapshots use the files of this checkpoint, in place of writing them again."""
        completed = self._uploads.get(checkpoint_id)
        # None: the snapshot was full, and has no file that a later one could name.
        if completed is not None:
            self._base = completed
        # ``list`` copies the keys in one step: the snapshot pool may add one meanwhile.
        for each in [each for each in list(self._uploads) if each <= checkpoint_id]:
            del self._uploads[each]

    def _written(self, name: str) -> StateDescription | None:
        return self._descriptions.get(name)

    def _take_over(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        if isinstance(snapshot, KeyedStateSnapshot):
            self._restore_full(snapshot)
        else:
            self._restore_files(snapshot)

    def _restore_full(self, snapshot: KeyedStateSnapshot) -> None:
        for name, description in snapshot.descriptions.items():
            self._id_of(name, description)
        for group in self._key_groups:
            for name, rows in snapshot.groups.get(group, {}).items():
                self._put(group, name, snapshot.descriptions[name].kind, rows)

    def _restore_files(self, snapshot: IncrementalSnapshot) -> None:
        """Use the snapshot's files as the database, if it is of this subtask's key groups and program.

        Else copy the rows of this subtask's key groups.
        """
        groups, files = self._key_groups, self.place.shared_files
        classes = None if files is None else files.former_classes
        are_same = (snapshot.first_key_group, snapshot.end_key_group) == (groups.start, groups.stop)
        # The files are a whole database: a second snapshot's cannot be put beside them.
        if self._store is None and are_same and classes is None:
            self._download(snapshot, self._path("db"))
            self._ids, self._descriptions = dict(snapshot.state_ids), dict(snapshot.descriptions)
            self._base = snapshot.shared if files is not None and files.are_restored_ones_own else {}
            self._opened()
            return
        path = self._path("restored")
        with _removed(path):
            self._download(snapshot, path)
            self._copy(snapshot, path, classes)

    def _copy(self, snapshot: IncrementalSnapshot, path: Path, classes: RunningClasses | None) -> None:
        store = self._opened()
        with closing(open_to_read(path)) as former:
            names = {number: name for name, number in snapshot.state_ids.items()}
            ids = {number: self._id_of(name, snapshot.descriptions[name]) for number, name in names.items()}
            batch = store.new_batch()
            for group in self._key_groups:
                for row, written in rows_of(former, group.to_bytes(2, "big")):
                    # The former database may have given another number to the state.
                    _, number = PREFIX.unpack_from(row)
                    content = written if classes is None else self._mapped(names[number], row, written, classes)
                    batch.put(PREFIX.pack(group, ids[number]) + row[PREFIX.size :], content)
                    if batch.len() >= _BATCH_ROWS:
                        store.write(batch)
                        batch = store.new_batch()
            store.write(batch)

    def _mapped(self, name: str, row: bytes, content: bytes, classes: RunningClasses) -> bytes:
        """The content of a row, with the classes of this program."""
        try:
            return with_running_classes(self._descriptions[name].kind, row, content, self._max_parallelism, classes)
        except (FormerClassError, StateRestoreError) as error:
            raise StateRestoreError(f"state {name!r}: {error}") from error

    def _download(self, snapshot: IncrementalSnapshot, path: Path) -> None:
        files = self.place.shared_files
        if files is None and snapshot.shared:
            raise StateRestoreError("keyed state is in shared files, and this task has no storage of checkpoints")
        # New: a file left from elsewhere would become a part of the database.
        path.mkdir()
        for name, content in snapshot.private.items():
            # Its last part alone: a name in a snapshot must not lead out of the directory.
            (path / Path(name).name).write_bytes(content)
        for name, file in snapshot.shared.items():
            assert files is not None, "checked above"
            files.read_shared(file, path / Path(name).name)

    # -- the database

    def _path(self, name: str) -> Path:
        if self._root is None:
            self._directory = WorkingDirectory(
                self.place.directory, purpose="rocksdb", advice="set state.backend.rocksdb.localdir"
            )
            self._root = self._directory.path()
        return self._root / name

    def _opened(self) -> RocksDBStore:
        if self._store is None:
            self._store = RocksDBStore(self._path("db"), self._max_parallelism, self.place.cache_bytes)
        return self._store

    def close(self) -> None:
        """Close the database and remove its files; idempotent."""
        # First: its files are open, and its threads may be writing some.
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._directory is not None:
            self._directory.close()

    def check_invariants(self) -> None:
        """Assert that each state has a number of its own, and that its cache was charged for."""
        if self._store is not None:
            self._store.check_invariants()
        assert self._ids.keys() == self._descriptions.keys()
        assert len(set(self._ids.values())) == len(self._ids)


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a directory at the end of the block."""
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ---------------------------------------------------------------- rows in snapshots and restores


def _by_key(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Iterator[tuple[Any, bytes]]]]:
    """Rows in the order of the database, grouped by key group, state and key; a map has several rows per key."""
    return groupby(((taken_apart(row), content) for row, content in rows), key=lambda row: row[0][:3])


def full_snapshot(
    rows: Iterable[tuple[bytes, bytes]], states: Mapping[int, tuple[str, StateKind, Expiry | None]], now_ms: int
) -> dict[int, dict[str, StateRows]]:
    """The rows of a whole database, in its order, by key group and name of the state.

    ``states``: by their numbers; with an expiry, entries that have expired at ``now_ms`` are left out.
    """
    found: dict[int, dict[str, tuple[list[Any], list[Any]]]] = {}
    for (group, number, _), of_key in _by_key(rows):
        name, kind, expiry = states[number]
        row_kind = StateKind.LIST if kind is StateKind.LIST else StateKind.VALUE  # a row of a map is one entry
        key: Any = None
        entries = []
        for (_, _, outer, inner), content in of_key:
            # Each row of a map has the key of the stream, of which one is enough.
            (key, *map_key), value = _read(kind, outer, inner, content)
            # None is a value in a map without expiry.
            if expiry is None or (value := expiry.live(row_kind, value, now_ms)) is not None:
                entries.append((*map_key, value) if kind is StateKind.MAP else value)
        if entries:
            keys, values = found.setdefault(group, {}).setdefault(name, ([], []))
            keys.append(key)
            # A list of the user is a tuple here, and a map a tuple of pairs.
            whole = entries if kind is StateKind.MAP else entries[0]
            values.append(tuple(whole) if kind in (StateKind.MAP, StateKind.LIST) else whole)
    return {
        group: {name: StateRows(tuple(keys), tuple(values)) for name, (keys, values) in of_group.items()}
        for group, of_group in found.items()
    }


def rows_of_snapshot(kind: StateKind, group: int, state_id: int, rows: StateRows) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a state in a key group for RocksDB."""
    for key, value in zip(rows.keys, rows.values, strict=True):
        prefix = row_prefix(group, state_id, key_bytes(exact_key(key)))
        match kind:
            case StateKind.MAP:
                for map_key, each in value:
                    yield prefix + key_bytes(exact_key(map_key)), row_content(each, key, map_key)
            case StateKind.LIST:
                yield prefix, row_content(list(value), key)
            case StateKind.COLUMNS:
                yield row_prefix(group, state_id, key), value
            case _:
                yield prefix, row_content(value, key)


def with_running_classes(
    kind: StateKind, row: bytes, content: bytes, max_parallelism: int, classes: RunningClasses
) -> bytes:
    """The content of a row that another program wrote, with the classes of the program that runs.

    Raises:
        FormerClassError: a class is not there any more, or cannot take the written values.
        StateRestoreError: the keys would become other ones.
    """
    if kind is StateKind.COLUMNS:
        return content
    body = content if content[0] != WITH_KEYS else memoryview(content)[1:]
    if not may_hold_classes(body):
        return content
    _, number, outer, inner = taken_apart(row)
    keys, value = _read(kind, outer, inner, content, lambda data: loads_former(data, classes))
    # The class counts in the bytes of a key: the row would no longer be found under its new ones.
    key, *map_key = [key_bytes(exact_key(each)) for each in keys]
    if row != row_prefix(key_group(keys[0], max_parallelism), number, key) + b"".join(map_key):
        raise StateRestoreError(
            "the class of its keys has another name, or other fields that count for ==, than when they were written, "
            "so that they would be other keys; keep both, or start without the state"
        )
    return row_content(value, *keys)


def user_keys(kind: StateKind, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Any]:
    """The keys of the stream in rows of one state, as the user knows them; the rows are in the
    order of the database.
    """
    for _, of_key in _by_key(rows):
        (_, _, outer, inner), content = next(of_key)
        yield _read(kind, outer, inner, content)[0][0]


def _read(
    kind: StateKind, outer: bytes, inner: bytes, content: bytes, loads: Callable[[bytes], Any] = loads_value
) -> tuple[tuple[Any, ...], Any]:
    """The keys of a row (of the stream and, in a map, of the map), and its value."""
    if kind is StateKind.COLUMNS:
        return (outer,), content
    if content[0] != WITH_KEYS:
        return tuple(map(plain_key, (outer, inner) if kind is StateKind.MAP else (outer,))), loads(content)
    *keys, value = loads(content[1:])
    return tuple(keys), value
