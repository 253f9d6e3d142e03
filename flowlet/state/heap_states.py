"""The five kinds of state on the heap.

Hot path.  Per access one look at the type of the current key and one dictionary access: ``value()`` and ``update()`` of
a str key take about 150 ns together (bench: state).

Side:       task.
Invariants: a key without a value has no entry: an empty list or map is dropped.  Lists and maps are never given to the
            user themselves.
Source:     Flink ``HeapValueState``, ``HeapListState``, ``HeapMapState``, ``HeapReducingState``,
            ``HeapAggregatingState``; PyFlink's ``SynchronousValueRuntimeState`` and its like.  A map tells keys apart
            as PyFlink's do, by type and value.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from flowlet.datastream.state import AggregatingState, ListState, MapState, ReducingState, ValueState
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.keys.exact_keys import exact_key
from flowlet.state.declared_values import DeclaredValues, EnteredState, MapEntry, map_pairs
from flowlet.state.state_table import Entries, StateTable


class _HeapState(EnteredState):
    """A state whose entries are in a ``StateTable``; ``declared``: see ``EnteredState``."""

    __slots__ = ("_context", "_entries", "_get", "_table")

    def __init__(self, table: StateTable, declared: DeclaredValues | None = None) -> None:
        super().__init__(declared)
        self._table = table
        self._context = table.key_context
        # Not read through the table: it exchanges both while a snapshot is under way, and an access saves a step.
        table.attach(self.bind)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._table!r}>"

    def bind(self, get: Callable[[Any], Any], entries: Entries) -> None:
        """Use this ``get`` and these ``entries`` of the table from now on."""
        self._get = get
        self._entries = entries

    def clear(self) -> None:
        """Remove the entry of the current key."""
        self._table.clear()


class HeapValueState(_HeapState, ValueState[Any]):
    """One value per key."""

    __slots__ = ()

    def value(self) -> Any:
        """The value of the current key; None if it has none."""
        # No ``exact_to_store``: a read must not note a key that has no entry.
        key = self._context.current_key
        return self._get(key if type(key) in PLAIN else self._table.exact(key))

    def update(self, value: Any) -> None:
        """Replace the value of the current key; None clears it.  Raises FlowletError: it is of another type."""
        # Fast path: a value of the very class that was declared needs neither a check nor a conversion.
        if type(value) is not self._exact:
            if value is None:
                self._table.clear()
                return
            if self._declared is not None:
                value = self._declared.entered(value)
        key = self._context.current_key
        self._entries[key if type(key) in PLAIN else self._table.exact_to_store(key)] = value


class _CombinedState:
    """A result, or an accumulator, for each key; ``stored`` keeps it."""

    __slots__ = ("_function", "_stored")

    def __init__(self, stored: ValueState[Any], function: Any) -> None:
        self._stored = stored
        self._function = function

    def clear(self) -> None:
        """Remove the entry of the current key."""
        self._stored.clear()

    def accumulator(self) -> Any:
        """The stored result or accumulator of the current key; None if it has no values."""
        return self._stored.value()

    def update_accumulator(self, accumulator: Any) -> None:
        """Replace the stored result or accumulator of the current key."""
        self._stored.update(accumulator)


class HeapReducingState(_CombinedState, ReducingState[Any]):
    """The values of each key, combined by a function of two; ``stored`` keeps the result."""

    __slots__ = ()

    def get(self) -> Any:
        """The result for the current key; None if it has no values."""
        return self._stored.value()

    def add(self, value: Any) -> None:
        """Combine the result for the current key with a value."""
        # None is no value: a function that returns it starts the next value anew.
        before = self._stored.value()
        self._stored.update(value if before is None else self._function(before, value))

    def merge(self, first: Any, second: Any) -> Any:
        """Combine two stored results or accumulators."""
        return self._function(first, second)


class HeapAggregatingState(_CombinedState, AggregatingState[Any, Any]):
    """The values of each key, combined by an ``AggregateFunction``; ``stored`` keeps the accumulator."""

    __slots__ = ()

    def get(self) -> Any:
        """The result for the current key; None if it has no values."""
        accumulator = self._stored.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator of the current key."""
        accumulator = self._stored.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._stored.update(self._function.add(value, accumulator))

    def merge(self, first: Any, second: Any) -> Any:
        """Combine two stored results or accumulators."""
        return self._function.merge(first, second)


class HeapListState(_HeapState, ListState[Any]):
    """A list per key."""

    __slots__ = ()

    def elements(self) -> list[Any]:
        """The elements of the current key's list, in a list of the caller's own."""
        key = self._context.current_key
        elements = self._get(key if type(key) in PLAIN else self._table.exact(key))
        # A copy: one that the user keeps would grow with later records.
        return [] if elements is None else elements.copy()

    get = elements  # PyFlink's name

    def add(self, value: Any) -> None:
        """Append to the list of the current key.  Raises FlowletError: it is of another type."""
        if self._declared is not None and type(value) is not self._exact:
            value = self._declared.entered(value)
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._table.exact_to_store(key)
        # ``get`` keeps the list as it is for a snapshot under way, before it is changed in place below.
        elements = self._get(exact)
        if elements is None:
            self._entries[exact] = [value]
        else:
            elements.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values to the list of the current key."""
        added = self._all_entered(values)
        if not added:
            return
        key = self._context.current_key
        exact = key if type(key) in PLAIN else self._table.exact_to_store(key)
        # As in ``add``: a snapshot under way has the list before it grows.
        elements = self._get(exact)
        if elements is None:
            self._entries[exact] = added
        else:
            elements += added

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list of the current key; an empty one clears it."""
        # A new list in any case: the user may go on changing the one that was given.
        elements = self._all_entered(values)
        if not elements:
            self._table.clear()
            return
        key = self._context.current_key
        self._entries[key if type(key) in PLAIN else self._table.exact_to_store(key)] = elements


class MapOfEntries(ABC):
    """The first base class of map states: reads a map by exact key, with the user's keys in ``MapEntry``."""

    __slots__ = ()

    @abstractmethod
    def _map(self) -> dict[Any, Any] | None:
        """The map; None: it is empty."""

    def get(self, key: Any) -> Any:
        """The value of a key of the map; None if there is none."""
        entries = self._map()
        if entries is None:
            return None
        # Also for a plain key: an ``IntEnum`` that was put in is found by its number.
        found = entries.get(key if type(key) in PLAIN else exact_key(key))
        return found.value if type(found) is MapEntry else found

    def contains(self, key: Any) -> bool:
        """Whether the map has a key."""
        entries = self._map()
        return entries is not None and (key if type(key) in PLAIN else exact_key(key)) in entries

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values of the map, in a list of the caller's own."""
        entries = self._map()
        return [] if entries is None else map_pairs(entries)

    def is_empty(self) -> bool:
        """Whether the map has no keys."""
        return not self._map()


class HeapMapState(_HeapState, MapOfEntries, MapState[Any, Any]):
    """A map per key of the stream."""

    __slots__ = ()

    def _map(self) -> dict[Any, Any] | None:
        """The map of the current key."""
        key = self._context.current_key
        entries: dict[Any, Any] | None = self._get(key if type(key) in PLAIN else self._table.exact(key))
        return entries

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map.  Raises FlowletError: key or value is of another type."""
        declared = self._declared
        if declared is not None:
            if type(value) is not self._exact:
                value = declared.entered(value)
            if type(key) is not declared.exact_key:
                declared.check_key(key)
        # First: a key that is refused must not leave an empty map.
        inner = key if type(key) in PLAIN else exact_key(key)
        current = self._context.current_key
        outer = current if type(current) in PLAIN else self._table.exact_to_store(current)
        # As with lists: ``get`` keeps the map for a snapshot under way, before it is changed in place.
        entries = self._get(outer)
        if entries is None:
            entries = {}
            self._entries[outer] = entries
        entries[inner] = value if inner is key else MapEntry(key, value)

    def remove(self, key: Any) -> None:
        """Remove a key of the map, if it is there."""
        entries = self._map()
        if entries is not None:
            entries.pop(key if type(key) in PLAIN else exact_key(key), None)
            # Else a key without a value would stay in the table for ever.
            if not entries:
                self._table.clear()
