"""The kinds of state in RocksDB, each with a cache of rows that were used lately.

Hot path.  An access that finds its key in the cache costs one look at the type of the key and one or two accesses of dictionaries; the
first one of a key also computes its key group and asks RocksDB (bench: docs/measurements.md).

Side:       task.
Invariants: an entry of a cache that is not in ``_changed`` is what RocksDB has.  None stands for a row that does not exist: a key without a
            value has no row.  Lists and maps are never given to the user themselves.
Rules:      what ``value()`` gave may be the cached object: as with every back end, a value that was changed in place must be given to
            ``update``.  A list is one row; a map has a row per key, and its order is that of RocksDB.
Source:     Flink ``RocksDBValueState``, ``RocksDBListState``, ``RocksDBMapState``; PyFlink's ``CachedMapState``.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from flowlet.datastream.state import ListState, MapState, ValueState
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.state.rocksdb.rocksdb_store import RocksDBStore
from flowlet.state.rocksdb.row_keys import PLAIN, WITH_KEYS, WITH_KEYS_PREFIX, key_bytes, plain_key, row_prefix
from flowlet.timers.time_api import NO_KEY, KeyContext

if TYPE_CHECKING:
    import rocksdict

_ENTRY_BYTES: Final = 200  # of the dictionaries, per entry
_ELEMENT_BYTES: Final = 8
_MISSING: Final = object()
_UNSET: Final = object()


class StateKeys:
    """The exact keys of one state, and the bytes that its rows begin with."""

    __slots__ = ("_last_exact", "_last_key", "context", "name", "state_id", "store")

    def __init__(self, name: str, state_id: int, store: RocksDBStore, context: KeyContext) -> None:
        self.name = name
        self.state_id = state_id
        self.store = store
        self.context = context
        self._last_key: Any = _UNSET
        self._last_exact: Any = None

    def exact(self, key: Any) -> Any:
        """The exact key of the current key.  Raises FlowletError: there is none."""
        if key is self._last_key:
            return self._last_exact
        if key is NO_KEY:
            raise FlowletError(
                f"state {self.name!r} was used without a current key: use it only while a record or a timer is processed, not in open()"
            )
        exact = exact_key(key)
        self._last_key, self._last_exact = key, exact
        return exact

    def prefix(self, key: Any, exact: Any) -> bytes:
        """What the rows of a key begin with."""
        return row_prefix(self.store.key_group(key), self.state_id, key_bytes(exact))

    def use_room(self, num_bytes: int) -> None:
        """Count what goes into a cache; called before it does, because it may empty all caches."""
        store = self.store
        store.room -= num_bytes + _ENTRY_BYTES
        if store.room < 0:
            store.make_room()

    def dumped(self, value: Any) -> bytes:
        """The bytes of a row.  Raises FlowletError: it cannot be pickled; names the state."""
        try:
            return dumps_value(value)
        except Exception as error:
            raise FlowletError(
                f"state {self.name!r} holds a value that cannot be pickled into RocksDB ({error}); keep values that can be pickled"
            ) from error


class RowCacheOfKeys:
    """One row per key of the stream."""

    __slots__ = ("_changed", "_keys", "entries")

    def __init__(self, keys: StateKeys) -> None:
        self._keys = keys
        self.entries: dict[Any, Any] = {}  # By exact key; changed in place only: states keep its bound methods.
        self._changed: dict[Any, Any] = {}  # Keys as the user knows them, by exact key.
        keys.store.caches.append(self)

    def load(self, key: Any, exact: Any) -> Any:
        """The value of a key that is not in the cache."""
        content = self._keys.store.get(self._keys.prefix(key, exact))
        value = None
        if content is not None:
            value = loads_value(content) if content[0] != WITH_KEYS else loads_value(content[1:])[1]
        self._keys.use_room(0 if content is None else len(content))
        self.entries[exact] = value
        return value

    def store(self, key: Any, exact: Any, value: Any) -> None:
        """Replace the value of a key; None: it has none any more."""
        if exact not in self._changed:
            if exact not in self.entries:
                self._keys.use_room(sys.getsizeof(value))
            self._changed[exact] = key
        self.entries[exact] = value

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """See ``RowCache``."""
        keys, entries = self._keys, self.entries
        for exact, key in self._changed.items():
            value = entries[exact]
            prefix = keys.prefix(key, exact)
            if value is None:
                batch.delete(prefix)
            else:
                batch.put(prefix, keys.dumped(value) if type(key) in PLAIN else WITH_KEYS_PREFIX + keys.dumped((key, value)))
        self._changed.clear()

    def forget(self) -> None:
        """See ``RowCache``."""
        self.entries.clear()


class RocksDBValueState(ValueState[Any]):
    """One value per key."""

    __slots__ = ("_cache", "_context", "_entries", "_keys")

    def __init__(self, keys: StateKeys) -> None:
        self._keys = keys
        self._context = keys.context
        self._cache = RowCacheOfKeys(keys)
        self._entries = self._cache.entries

    def __repr__(self) -> str:
        return f"<RocksDBValueState {self._keys.name!r}>"

    def value(self) -> Any:
        """The value of the current key; None if it has none."""
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        value = self._entries.get(exact, _MISSING)
        return self._cache.load(key, exact) if value is _MISSING else value

    def update(self, value: Any) -> None:
        """Replace the value of the current key; None clears it."""
        key = self._context.current_key
        self._cache.store(key, key if type(key) in PLAIN else self._keys.exact(key), value)

    def clear(self) -> None:
        """Forget the value of the current key."""
        self.update(None)


class RocksDBListState(ListState[Any]):
    """A list per key, in one row."""

    __slots__ = ("_keys", "_value")

    def __init__(self, keys: StateKeys) -> None:
        self._keys = keys
        self._value = RocksDBValueState(keys)

    def __repr__(self) -> str:
        return f"<RocksDBListState in {self._value!r}>"

    def get(self) -> list[Any]:
        """The elements of the current key's list, in a list of the caller's own."""
        return self.elements()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements())

    def elements(self) -> list[Any]:
        """The same as ``get``."""
        return list(self._value.value() or ())

    def add(self, value: Any) -> None:
        """Append to the list of the current key."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values to the list of the current key."""
        added = list(values)
        if added:
            self._keys.use_room(sum(map(sys.getsizeof, added)) + (len(added) - 1) * _ELEMENT_BYTES)
            elements = self._value.value() or []
            elements += added
            self._value.update(elements)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list of the current key; an empty one clears it."""
        self._value.update(list(values) or None)

    def clear(self) -> None:
        """Forget the list of the current key."""
        self._value.clear()


class _CachedMap:
    """What is known of one key's map."""

    __slots__ = ("changed", "is_complete", "is_replaced", "key", "known", "prefix")

    def __init__(self, key: Any, prefix: bytes) -> None:
        self.key = key  # of the stream, as the user knows it
        self.prefix = prefix
        self.known: dict[Any, tuple[Any, Any] | None] = {}  # key as the user knows it, and value, by exact key; None: there is no row
        self.changed: set[Any] = set()
        self.is_complete = False  # whether a key that is not known has no row
        self.is_replaced = False  # whether the rows that RocksDB has are void


class MapCache:
    """A row per key of a map."""

    __slots__ = ("_changed", "_keys", "_maps")

    def __init__(self, keys: StateKeys) -> None:
        self._keys = keys
        self._maps: dict[Any, _CachedMap] = {}  # by exact key
        self._changed: dict[Any, _CachedMap] = {}
        keys.store.caches.append(self)

    def current(self) -> _CachedMap:
        """The map of the current key."""
        key = self._keys.context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        found = self._maps.get(exact)
        if found is None:
            prefix = self._keys.prefix(key, exact)
            self._keys.use_room(len(prefix))
            found = self._maps[exact] = _CachedMap(key, prefix)
        return found

    def entry(self, key: Any) -> tuple[Any, Any] | None:
        """Key and value of the current map; None: it has no such key."""
        exact = key if type(key) in PLAIN else exact_key(key)
        current = self.current()
        found: Any = current.known.get(exact, _MISSING)
        if found is not _MISSING:
            return found  # type: ignore[no-any-return]  # the sentinel was ruled out
        if current.is_complete:
            return None
        row = current.prefix + key_bytes(exact)
        content = self._keys.store.get(row)
        entry = None if content is None else self._entry_of(row, len(current.prefix), content)
        self._keys.use_room(0 if content is None else len(content))
        self.current().known[exact] = entry
        return entry

    def put(self, key: Any, value: Any, *, is_there: bool = True) -> None:
        """Set, or remove, a key of the current map."""
        exact = key if type(key) in PLAIN else exact_key(key)
        if exact not in self.current().known:
            self._keys.use_room(sys.getsizeof(value))
        current = self.current()
        current.known[exact] = (key, value) if is_there else None
        current.changed.add(exact)
        self._mark_changed(current)

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values of the current map."""
        current = self.current()
        if not current.is_complete:
            size = len(current.prefix)
            known = dict(current.known)
            num_bytes = 0
            for row, content in self._keys.store.rows(current.prefix):
                key, value = self._entry_of(row, size, content)
                known.setdefault(key if type(key) in PLAIN else exact_key(key), (key, value))
                num_bytes += len(content) + _ENTRY_BYTES
            self._keys.use_room(num_bytes)
            current = self.current()
            current.known, current.is_complete = known, True
        return [entry for entry in current.known.values() if entry is not None]

    def clear(self) -> None:
        """Remove all keys of the current map."""
        current = self.current()
        current.known, current.is_complete, current.is_replaced = {}, True, True
        current.changed.clear()
        self._mark_changed(current)

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """See ``RowCache``."""
        keys = self._keys
        for current in self._changed.values():
            if current.is_replaced:
                for row, _ in keys.store.rows(current.prefix):
                    batch.delete(row)
            is_outer_plain = type(current.key) in PLAIN
            for exact in current.changed:
                row, entry = current.prefix + key_bytes(exact), current.known[exact]
                if entry is None:
                    batch.delete(row)
                else:
                    key, value = entry
                    is_plain = is_outer_plain and type(key) in PLAIN
                    batch.put(row, keys.dumped(value) if is_plain else WITH_KEYS_PREFIX + keys.dumped((current.key, key, value)))
            current.changed.clear()
            current.is_replaced = False
        self._changed.clear()

    def forget(self) -> None:
        """See ``RowCache``."""
        self._maps.clear()

    def _mark_changed(self, current: _CachedMap) -> None:
        self._changed[current.prefix] = current

    def _entry_of(self, row: bytes, prefix_size: int, content: bytes) -> tuple[Any, Any]:
        if content[0] != WITH_KEYS:
            return plain_key(row[prefix_size:]), loads_value(content)
        _, key, value = loads_value(content[1:])
        return key, value


class RocksDBMapState(MapState[Any, Any]):
    """A map per key of the stream."""

    __slots__ = ("_cache",)

    def __init__(self, keys: StateKeys) -> None:
        self._cache = MapCache(keys)

    def get(self, key: Any) -> Any:
        """The value of a key of the map; None if there is none."""
        entry = self._cache.entry(key)
        return None if entry is None else entry[1]

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""
        self._cache.put(key, value)

    def put_all(self, dict_value: Any) -> None:
        """Set the values of many keys of the map: a dictionary or pairs."""
        for key, value in dict_value.items() if hasattr(dict_value, "items") else dict_value:
            self._cache.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove a key of the map, if it is there."""
        self._cache.put(key, None, is_there=False)

    def contains(self, key: Any) -> bool:
        """Whether the map has a key."""
        return self._cache.entry(key) is not None

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values of the map, in a list of the caller's own."""
        return self._cache.items()

    def keys(self) -> list[Any]:
        """The keys of the map, in a list of the caller's own."""
        return [key for key, _ in self._cache.items()]

    def values(self) -> list[Any]:
        """The values of the map, in a list of the caller's own."""
        return [value for _, value in self._cache.items()]

    def is_empty(self) -> bool:
        """Whether the map has no keys."""
        return not self._cache.items()

    def clear(self) -> None:
        """Forget the map of the current key."""
        self._cache.clear()
