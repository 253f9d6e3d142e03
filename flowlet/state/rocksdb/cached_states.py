"""The kinds of state in RocksDB, each with a cache of rows that were used lately.

Hot path.  An access that finds its key in the cache costs one look at the type of the key and one or two accesses of
dictionaries; the first one of a key also computes its key group and asks RocksDB (bench:
docs/maintainers/measurements.md).

Side:       task.
Invariants: an entry of a cache was charged to the store's budget before it was stored; a value that replaces one that
            was counted since the last flush may be larger by the growth of some updates (``_UPDATES_UNSEEN``).  An
            entry that is not in ``_changed`` equals its row in RocksDB.  None stands for a row that does not exist: a
            key without a value has no row.  Lists and maps are never given to the user themselves.
Rules:      ``value()`` may give the cached object: as with every back end, a value that was changed in place must be
            given to ``update``.  A list is one row; a map has a row per key, in the order of RocksDB.
Source:     Flink ``RocksDBValueState``, ``RocksDBListState``, ``RocksDBMapState``; PyFlink's ``CachedMapState``.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from flowlet.datastream.state import ListState, MapState, ValueState
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.keys.exact_keys import exact_key, key_bytes, plain_key
from flowlet.serde.pickles.record_pickle import loads_value
from flowlet.state.declared_values import DeclaredValues, EnteredState
from flowlet.state.rocksdb.cached_rows import StateKeys
from flowlet.state.rocksdb.rocksdb_store import WITH_KEYS, memory_size

if TYPE_CHECKING:
    import rocksdict

_ENTRY_BYTES: Final = 200  # of the dictionaries, per entry
_REFERENCE_BYTES: Final = 8
_MAP_BYTES: Final = 600  # of a ``_CachedMap`` without entries
_MISSING: Final = object()


class _CachedValues(EnteredState):
    """A value or a list per key, in a row; ``declared``: see ``EnteredState``."""

    __slots__ = ("_changed", "_context", "_counted", "_entries", "_keys", "_num_unseen", "_sizes")

    def __init__(self, keys: StateKeys, declared: DeclaredValues | None = None) -> None:
        super().__init__(declared)
        self._keys = keys
        self._context = keys.context
        self._entries: dict[Any, Any] = {}  # By exact key.
        self._sizes: dict[Any, int] = {}  # Of the entries, as they were charged.
        self._changed: dict[Any, Any] = {}  # Keys as the user knows them, by exact key.
        self._counted: set[Any] = set()  # Of the changed entries those whose next values need not be measured.
        self._num_unseen = 0
        keys.store.caches.append(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._keys.name!r}>"

    def _load(self, key: Any, exact: Any) -> Any:
        """The value of a key that is not in the cache."""
        content = self._keys.store.get(self._keys.prefix(key, exact))
        value = None
        size = _ENTRY_BYTES
        if content is not None:
            value = loads_value(content) if content[0] != WITH_KEYS else loads_value(content[1:])[1]
            # The larger: memory that the estimate does not see often shows in the length of the row.
            size += max(len(content), memory_size(value))
        # Before it is stored: it may empty the cache, and this entry with it.
        self._keys.charge(0, size)
        self._sizes[exact] = size
        self._entries[exact] = value
        return value

    def _store(self, key: Any, exact: Any, value: Any, num_added: int | None = None) -> int:
        """Replace the value of a key; None: it has none any more.

        ``num_added``: by how many bytes it is larger; None: not known.

        Returns how many of the next updates of keys in ``_counted`` may replace entries without asking.
        """
        old = self._sizes.get(exact, 0)
        size = old + num_added if num_added is not None and old else _ENTRY_BYTES + memory_size(value)
        if _is_much_larger(size, old):
            self._counted.clear()  # The values of other keys may have grown, too.
        elif size > old >> 1:
            size = max(size, old)  # Lengths that go up and down are no growth.
        # It may write and drop all entries: the new one is stored behind it.
        self._keys.charge(old, size)
        self._sizes[exact] = size
        self._changed[exact] = key
        self._counted.add(exact)
        self._entries[exact] = value
        return self._keys.num_unseen(size)

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put the changed rows into the batch, and charge for rows that are larger than was estimated."""
        keys, entries, sizes = self._keys, self._entries, self._sizes
        for exact, key in self._changed.items():
            value = entries[exact]
            prefix = keys.prefix(key, exact)
            # It may have no row: a delete without one costs less than a look.
            if value is None:
                batch.delete(prefix)
                continue
            row = keys.dumped(value, key)
            batch.put(prefix, row)
            if len(row) + _ENTRY_BYTES > sizes[exact]:
                keys.budget.charge(sizes[exact], len(row) + _ENTRY_BYTES)
                sizes[exact] = len(row) + _ENTRY_BYTES
        self._changed.clear()
        # The rows have told the true sizes: each value is measured once more.
        self._counted.clear()

    def forget(self) -> None:
        """Drop all entries, which ``flush`` has written."""
        self._entries.clear()
        self._sizes.clear()

    def held_bytes(self) -> int:
        """The bytes of all entries, summed anew; asserts the invariants of the dictionaries."""
        assert self._sizes.keys() == self._entries.keys()
        assert self._counted <= self._changed.keys() <= self._entries.keys()
        return sum(self._sizes.values())

    def _kept(self) -> Any:
        """The entry of the current key, loaded if it is not in the cache; None if there is none."""
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        value = self._entries.get(exact, _MISSING)
        return self._load(key, exact) if value is _MISSING else value


class RocksDBValueState(_CachedValues, ValueState[Any]):
    """One value per key."""

    __slots__ = ()

    value = _CachedValues._kept

    def update(self, value: Any) -> None:
        """Replace the value of the current key; None clears it.  Raises FlowletError: it is of another type."""
        if self._declared is not None and type(value) is not self._exact and value is not None:
            value = self._declared.entered(value)
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        num_unseen = self._num_unseen
        # Fast path: to measure a value costs as much as some updates; see ``_UPDATES_UNSEEN``.
        if num_unseen and exact in self._counted:
            self._num_unseen = num_unseen - 1
            self._entries[exact] = value
        else:
            self._num_unseen = self._store(key, exact, value)

    def clear(self) -> None:
        """Forget the value of the current key."""
        self.update(None)


class RocksDBListState(_CachedValues, ListState[Any]):
    """A list per key."""

    __slots__ = ("_num_added", "_num_unseen_lists")

    def __init__(self, keys: StateKeys, declared: DeclaredValues | None = None) -> None:
        super().__init__(keys, declared)
        self._num_added = 0  # since an element was counted
        self._num_unseen_lists = 0  # as ``_num_unseen``, of whole lists

    def elements(self) -> list[Any]:
        """The elements of the current key's list, in a list of the caller's own."""
        # A copy: the user's changes must not reach the cache without ``update``.
        return list(self._kept() or ())

    get = elements  # PyFlink's name

    def add(self, value: Any) -> None:
        """Append to the list of the current key.

        Some elements are not measured, as with ``RocksDBValueState.update``: the next one that is measured counts for
        them, too.

        Raises:
            FlowletError: the value is of another type.
        """
        if self._declared is not None and type(value) is not self._exact:
            value = self._declared.entered(value)
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        self._num_added += 1
        # Fast path: the next element that is measured counts for this one, too.
        if self._num_unseen and exact in self._counted:
            elements = self._entries[exact]
            if elements is not None:
                self._num_unseen -= 1
                elements.append(value)
                return
        size = memory_size(value) + _REFERENCE_BYTES
        elements = self._kept() or []
        elements.append(value)
        # The sizes of the elements not measured are taken to be that of this one.
        self._store(key, exact, elements, size * self._num_added)
        self._num_added, self._num_unseen = 0, self._keys.num_unseen(size)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values to the list of the current key."""
        added = self._all_entered(values)
        if added:
            # Changed in the cache: ``_store`` notes it, without a copy of the list.
            elements = self._kept() or []
            elements += added
            key = self._context.current_key
            exact = key if type(key) in PLAIN else self._keys.exact(key)
            self._store(key, exact, elements, memory_size(added))

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list of the current key; an empty one clears it."""
        self._replace(self._all_entered(values) or None)

    def clear(self) -> None:
        """Forget the list of the current key."""
        self._replace(None)

    def _replace(self, elements: list[Any] | None) -> None:
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        if self._num_unseen_lists and exact in self._counted:
            self._num_unseen_lists -= 1
            self._entries[exact] = elements
        else:
            self._num_unseen_lists = self._store(key, exact, elements)


class _CachedMap:
    """The cached part of one key's map."""

    __slots__ = ("changed", "counted", "is_complete", "is_replaced", "key", "known", "num_live", "prefix", "sizes")

    def __init__(self, key: Any, prefix: bytes) -> None:
        self.key = key  # of the stream, as the user knows it
        self.prefix = prefix
        # Key as the user knows it, and value, by exact key; None: there is no row.
        self.known: dict[Any, tuple[Any, Any] | None] = {}
        self.num_live = 0  # how many of them are not None
        self.sizes: dict[Any, int] = {}  # of ``known``, as they were charged
        self.changed: set[Any] = set()
        self.counted: set[Any] = set()  # of ``changed``: present keys whose next values need not be measured
        self.is_complete = False  # whether a key that is not known has no row
        self.is_replaced = False  # whether the rows that RocksDB has are void

    def keep(self, exact: Any, entry: tuple[Any, Any] | None, size: int) -> None:
        """Put in an entry, for which the budget was charged; None: the key has no row."""
        self.num_live += (entry is not None) - (self.known.get(exact) is not None)
        self.counted.discard(exact)
        self.known[exact] = entry
        self.sizes[exact] = size

    def held_bytes(self) -> int:
        """The bytes of the map, summed anew; asserts the invariants."""
        assert self.sizes.keys() == self.known.keys()
        assert self.counted <= self.changed <= self.known.keys()
        assert self.num_live == len(self.known) - list(self.known.values()).count(None)
        return _MAP_BYTES + len(self.prefix) + sum(self.sizes.values())


class RocksDBMapState(EnteredState, MapState[Any, Any]):
    """A map per key of the stream, with a row for each of its keys; ``declared``: see ``EnteredState``."""

    __slots__ = ("_changed", "_counted", "_keys", "_maps", "_num_unseen")

    def __init__(self, keys: StateKeys, declared: DeclaredValues | None = None) -> None:
        super().__init__(declared)
        self._keys = keys
        self._maps: dict[Any, _CachedMap] = {}  # by exact key
        self._changed: dict[Any, _CachedMap] = {}
        self._counted: set[_CachedMap] = set()  # the maps that have counted keys
        self._num_unseen = 0
        keys.store.caches.append(self)

    def _current(self) -> _CachedMap:
        """The map of the current key."""
        key = self._keys.context.current_key
        exact = key if type(key) in PLAIN else self._keys.exact(key)
        found = self._maps.get(exact)
        if found is None:
            prefix = self._keys.prefix(key, exact)
            self._keys.charge(0, _MAP_BYTES + len(prefix))
            found = self._maps[exact] = _CachedMap(key, prefix)
        return found

    def _keep(self, current: _CachedMap, exact: Any, entry: tuple[Any, Any] | None, size: int) -> _CachedMap:
        """Charge for an entry and put it in; returns the map, which is a new one if the caches were emptied."""
        if self._keys.charge(current.sizes.get(exact, 0), size):
            # The map was written and dropped: what was known of it is in RocksDB.
            key, prefix = current.key, current.prefix
            current = self._maps[key if type(key) in PLAIN else self._keys.exact(key)] = _CachedMap(key, prefix)
            self._keys.budget.charge(0, _MAP_BYTES + len(prefix))  # the next charge sees whether that is too much
        current.keep(exact, entry, size)
        return current

    def _entry(self, key: Any) -> tuple[Any, Any] | None:
        """Key and value of the current map; None: it has no such key."""
        exact = key if type(key) in PLAIN else exact_key(key)
        current = self._current()
        found: Any = current.known.get(exact, _MISSING)
        if found is not _MISSING:
            return found  # type: ignore[no-any-return]  # the sentinel was ruled out
        # Fast path: RocksDB need not be asked for a key that is not there.
        if current.is_complete:
            return None
        row = current.prefix + key_bytes(exact)
        content = self._keys.store.get(row)
        entry = None if content is None else self._entry_of(row, len(current.prefix), content)
        # Also that there is none: a key that is looked for again costs no second read.
        self._keep(current, exact, entry, _size_of(entry, content))
        return entry

    def get(self, key: Any) -> Any:
        """The value of a key of the map; None if there is none."""
        entry = self._entry(key)
        return None if entry is None else entry[1]

    def contains(self, key: Any) -> bool:
        """Whether the map has a key."""
        return self._entry(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map.  Raises FlowletError: key or value is of another type."""
        declared = self._declared
        if declared is not None:
            if type(value) is not self._exact:
                value = declared.entered(value)
            if type(key) is not declared.exact_key:
                declared.check_key(key)
        self._put(key, value)

    def remove(self, key: Any) -> None:
        """Remove a key of the map, if it is there."""
        self._put(key, None, is_there=False)

    def _put(self, key: Any, value: Any, *, is_there: bool = True) -> None:
        """Set, or remove, a key of the current map."""
        exact = key if type(key) in PLAIN else exact_key(key)
        entry = (key, value) if is_there else None
        current = self._current()
        if self._num_unseen and is_there and exact in current.counted:
            self._num_unseen -= 1
            current.known[exact] = entry
            return
        old, size = current.sizes.get(exact, 0), _size_of(entry, None)
        if _is_much_larger(size, old):
            self._forget_counted()  # The values of other keys may have grown, too.
        elif size > old >> 1:
            size = max(size, old)
        current = self._keep(current, exact, entry, size)
        current.changed.add(exact)
        if is_there:
            current.counted.add(exact)
            self._counted.add(current)
        self._changed[current.prefix] = current
        self._num_unseen = self._keys.num_unseen(size)

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values of the map, in a list of the caller's own; the map is kept if it fits into the cache."""
        current = self._current()
        if not current.is_complete:
            size = len(current.prefix)
            # Copies: the map changes only if all of it fits.
            known, sizes, num_added = dict(current.known), dict(current.sizes), 0
            budget = self._keys.budget
            for row, content in self._keys.store.rows(current.prefix):
                key, _ = entry = self._entry_of(row, size, content)
                exact = key if type(key) in PLAIN else exact_key(key)
                # A known entry is newer than its row.
                if exact not in known:
                    known[exact] = entry
                    sizes[exact] = _size_of(entry, content)
                    num_added += sizes[exact]
            if _MAP_BYTES + size + sum(sizes.values()) > budget.limit:
                return [entry for entry in known.values() if entry is not None]
            # The other caches go, and this map, too, which is then put in as a whole.
            if budget.used + num_added > budget.limit:
                self._keys.store.make_room()
                current = self._current()
                num_added = sum(sizes.values())
            budget.charge(0, num_added)
            current.known, current.sizes, current.is_complete = known, sizes, True
            current.num_live = len(known) - list(known.values()).count(None)
        return [entry for entry in current.known.values() if entry is not None]

    def is_empty(self) -> bool:
        """Whether the map has no keys; looks at no more rows than it must."""
        current = self._current()
        # Known entries answer without a read.
        if current.num_live or current.is_complete:
            return not current.num_live
        size = len(current.prefix)
        for row, content in self._keys.store.rows(current.prefix):
            key, _ = entry = self._entry_of(row, size, content)
            exact = key if type(key) in PLAIN else exact_key(key)
            if exact not in current.known:  # else it was removed, and the row is still there
                self._keep(current, exact, entry, _size_of(entry, content))
                return False
        current.is_complete = True
        return True

    def clear(self) -> None:
        """Forget the map of the current key."""
        current = self._current()
        self._keys.budget.charge(sum(current.sizes.values()), 0)
        current.known, current.sizes, current.num_live = {}, {}, 0
        # Its rows are deleted by the next ``flush``; until then no key is looked for in RocksDB.
        current.is_complete, current.is_replaced = True, True
        current.changed.clear()
        current.counted.clear()
        self._changed[current.prefix] = current

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put the changed rows of all maps into the batch, and delete removed ones."""
        keys = self._keys
        for current in self._changed.values():
            if current.is_replaced:  # first: the batch is applied in order, so later puts of these rows count
                for row, _ in keys.store.rows(current.prefix):
                    batch.delete(row)
            for exact in current.changed:
                row, entry = current.prefix + key_bytes(exact), current.known[exact]
                if entry is None:
                    batch.delete(row)
                    continue
                key, value = entry
                if keys.is_checked:
                    keys.declared.check_serialized_key(key)
                content = keys.dumped(value, current.key, key)
                batch.put(row, content)
                # Upwards alone: the value in memory is no smaller because its row is short.
                size = _ENTRY_BYTES + len(content)
                if size > current.sizes[exact]:
                    keys.budget.charge(current.sizes[exact], size)
                    current.sizes[exact] = size
            current.changed.clear()
            current.is_replaced = False
        self._changed.clear()
        self._forget_counted()

    def forget(self) -> None:
        """Drop all maps, which ``flush`` has written."""
        self._maps.clear()

    def held_bytes(self) -> int:
        """The bytes of all maps, summed anew."""
        return sum(each.held_bytes() for each in self._maps.values())

    def _forget_counted(self) -> None:
        for each in self._counted:
            each.counted.clear()
        self._counted.clear()

    def _entry_of(self, row: bytes, prefix_size: int, content: bytes) -> tuple[Any, Any]:
        if content[0] != WITH_KEYS:
            return plain_key(row[prefix_size:]), loads_value(content)
        _, key, value = loads_value(content[1:])
        return key, value


def _is_much_larger(size: int, old: int) -> bool:
    """Whether a value has grown so much since it was counted that others may have, too; 0: it was not counted."""
    return old > 0 and size - old > old >> 2


def _size_of(entry: tuple[Any, Any] | None, content: bytes | None) -> int:
    """The bytes that an entry of a map takes; ``content``: its row, if that is known."""
    if entry is None:
        return _ENTRY_BYTES
    return _ENTRY_BYTES + max(memory_size(entry[0]) + memory_size(entry[1]), 0 if content is None else len(content))
