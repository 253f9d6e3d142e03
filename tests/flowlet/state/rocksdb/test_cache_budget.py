"""The caches of state in RocksDB stay within their budget, however values come and grow."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.common import Time, Types
from flowlet.common.types import Row
from flowlet.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.timers.keyed_timer_service import KeyContext

pytest.importorskip("rocksdict")
from flowlet.state.rocksdb import cached_states
from flowlet.state.rocksdb.cached_states import RocksDBListState, RocksDBMapState, RocksDBValueState
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
from flowlet.state.rocksdb.rocksdb_store import ByteBudget, RocksDBStore, memory_size

LIMIT = 100_000
GROUPS = range(8)
TEXT = "x" * 5_000


class Cached:
    """A back end, and the content of its caches."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.context = KeyContext()
        self.backend = RocksDBKeyedStateBackend(
            self.context, lambda: 5, GROUPS, len(GROUPS), RocksDBPlace(str(folder), cache_bytes=limit)
        )

    def state(self, descriptor: StateDescriptor) -> Any:
        return self.backend.state(descriptor, type(descriptor))

    def at(self, key: Any) -> None:
        self.context.current_key = key

    @property
    def budget(self) -> ByteBudget:
        store = self.backend._store
        assert isinstance(store, RocksDBStore)
        return store.budget

    def snapshot(self, checkpoint_id: int) -> None:
        finish = self.backend.snapshot(checkpoint_id)
        assert finish is not None
        finish()

    def check(self, most: int = LIMIT) -> None:
        """Check that the charged bytes are the held ones, and within the budget."""
        self.backend.check_invariants()
        assert self.budget.used <= most, self.budget


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Cached]:
    made = Cached(tmp_path)
    yield made
    made.backend.close()


def expiring(descriptor: StateDescriptor) -> StateDescriptor:
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(100)).build())
    return descriptor


WRITES: dict[str, tuple[Callable[[], StateDescriptor], Callable[[Any, Any], Any]]] = {
    "update": (lambda: ValueStateDescriptor("s"), lambda s, v: s.update(v)),
    "value, then update": (lambda: ValueStateDescriptor("s"), lambda s, v: (s.value(), s.update(v))),
    "update of a declared type": (
        lambda: ValueStateDescriptor("s", Types.LIST(Types.STRING())),
        lambda s, v: s.update([v]),
    ),
    "with a time to live": (lambda: expiring(ValueStateDescriptor("s")), lambda s, v: (s.value(), s.update(v))),
    "a nested value": (lambda: ValueStateDescriptor("s"), lambda s, v: (s.value(), s.update({"deep": [(v, v)]}))),
    "reduce": (lambda: ReducingStateDescriptor("s", lambda a, b: b), lambda s, v: s.add(v)),
    "add to a list": (lambda: ListStateDescriptor("s"), lambda s, v: s.add(v)),
    "get, then update a list": (lambda: ListStateDescriptor("s"), lambda s, v: (s.get(), s.update([v]))),
    "put into a map": (lambda: MapStateDescriptor("s"), lambda s, v: s.put("k", v)),
    "get, then put into a map": (lambda: MapStateDescriptor("s"), lambda s, v: (s.get("k"), s.put("k", v))),
    "contains, then put all": (lambda: MapStateDescriptor("s"), lambda s, v: (s.contains("k"), s.put_all({"k": v}))),
    "items, then put": (lambda: MapStateDescriptor("s"), lambda s, v: (s.items(), s.put("k", v))),
    "is_empty, then put": (lambda: MapStateDescriptor("s"), lambda s, v: (s.is_empty(), s.put("k", v))),
}


@pytest.mark.parametrize("write", WRITES)
def test_many_keys_stay_within_the_budget(write: str, cached: Cached) -> None:
    """A read puts the key into the cache first, and the value that is written afterwards counts, too."""
    descriptor, put = WRITES[write]
    state = cached.state(descriptor())
    for key in range(60):
        cached.at(key)
        put(state, TEXT + str(key))
        cached.check()


@pytest.mark.parametrize("write", [each for each in WRITES if each != "add to a list"])
def test_values_that_grow_by_replacement_stay_within_the_budget(write: str, cached: Cached) -> None:
    """The budget holds for few keys with values that grow and shrink, and after a snapshot has written them."""
    descriptor, put = WRITES[write]
    state = cached.state(descriptor())
    for number in range(60):
        cached.at(number % 5)
        put(state, "y" * (number * 300 if number % 7 else 1))
        cached.check()
        if number % 20 == 9:
            cached.snapshot(number)
            cached.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value", "declared value", "map of each key", "one map", "list"])
def test_values_that_outgrow_what_was_counted_are_noticed(kind: str, tmp_path: Path) -> None:
    """900 keys with small values that were written often, and then each key's becomes a larger one: 5 MB for a cache of
    1 MB.

    One update of 65 is looked at; the first one that is larger makes the others be counted.
    """
    limit = 1 << 20
    cached = Cached(tmp_path, limit)
    value = cached.state(
        ValueStateDescriptor("v", Types.STRING() if kind.startswith("declared") else Types.PICKLED_BYTE_ARRAY())
    )
    elements, entries = cached.state(ListStateDescriptor("l")), cached.state(MapStateDescriptor("m"))
    held = []
    for text in ("a", "b", "c", "d" * 5_600):
        for number in range(900):
            cached.at(0 if kind == "one map" else number)
            if kind.endswith("value"):
                value.update(text)
            elif kind == "list":
                elements.add(text)
            else:
                entries.put(number, text)
            if number % 100 == 99:
                held.append(_held_bytes(cached))
    cached.check(limit)
    cached.backend.close()

    assert max(held) < limit + 64 * 5_700


def _held_bytes(cached: Cached) -> int:
    """Return the bytes that values in the caches really take."""
    store = cached.backend._store
    assert store is not None
    values: list[Any] = []
    for cache in store.caches:
        if isinstance(cache, RocksDBMapState):
            values += [entry for each in cache._maps.values() for entry in each.known.values()]
        elif isinstance(cache, RocksDBValueState | RocksDBListState):
            values += cache._entries.values()
    return sum(map(memory_size, values))


def test_lists_and_maps_that_grow_entry_by_entry_are_counted(cached: Cached) -> None:
    """One key of each may at last be too large alone: then the caches hold nothing else."""
    elements, entries = cached.state(ListStateDescriptor("l")), cached.state(MapStateDescriptor("m"))
    for number in range(60):
        cached.at("list")
        elements.add(TEXT)
        cached.at("map")
        entries.put(number, TEXT)
        cached.check(max(LIMIT, (number + 2) * 5_200))

    cached.at("list")
    assert elements.get() == [TEXT] * 60
    cached.at("map")
    assert sorted(entries.keys()) == list(range(60))
    cached.at("another")
    elements.add("x")
    cached.check()


def test_a_map_that_does_not_fit_is_read_and_not_kept(cached: Cached) -> None:
    entries = cached.state(MapStateDescriptor("m"))
    cached.at("k")
    for number in range(60):
        entries.put(number, TEXT)

    for _ in range(2):
        assert len(list(entries.items())) == len(list(entries.keys())) == len(list(entries.values())) == 60
        cached.check()


@dataclass
class Slotted:
    __slots__ = ("held",)
    held: Any


@dataclass
class Open:
    held: Any


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        [TEXT],
        {"a": [(TEXT, 1)]},
        {TEXT: 1},
        Row(a=TEXT),
        Slotted(TEXT),
        Open([TEXT]),
        np.zeros(5_000, dtype=np.int8),
        np.zeros(10_000, dtype=np.int8)[::2],
        deque([TEXT]),
        frozenset({TEXT}),
        ["x" * 50] * 100,
        dict.fromkeys(range(100), "x" * 50),
        (TEXT,),
        2**40_000,
    ],
    ids=lambda each: type(each).__name__,
)
def test_sizes_see_inside_values(value: Any) -> None:
    """Containers count with their parts, long ones by some of their elements."""
    assert 5_000 <= memory_size(value) < 20_000


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("value", "update", "clear", "add", "get", "put", "map get"),
                *("remove", "items", "is_empty", "map clear", "snapshot"),
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([None, 1, 2**70, "a", "x" * 400, [1, "y" * 300], {"k": [3]}, 1.5]),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(operations=OPERATIONS, limit=st.sampled_from([0, 1_000, 3_000, 1 << 20]))
def test_whatever_happens_each_byte_that_is_held_was_charged(
    operations: list[tuple[str, int, int, Any]], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The law holds for growth, replacement, removal and overlap of all kinds of state in one budget."""
    cached = Cached(tmp_path_factory.mktemp("rocksdb"), limit)
    value = cached.state(ValueStateDescriptor("v"))
    elements, entries = cached.state(ListStateDescriptor("l")), cached.state(MapStateDescriptor("m"))
    values: dict[int, Any] = {}
    lists: dict[int, list[Any]] = {}
    maps: dict[int, dict[int, Any]] = {}
    try:
        for action, key, inner, new in operations:
            cached.at(key)
            of_map = maps.setdefault(key, {})
            match action:
                case "value":
                    assert value.value() == values.get(key)
                case "update":
                    value.update(new)
                    values[key] = new
                case "clear":
                    value.clear()
                    values[key] = None
                case "add":
                    elements.add(new)
                    lists.setdefault(key, []).append(new)
                case "get":
                    assert elements.get() == lists.get(key, [])
                case "put":
                    entries.put(inner, new)
                    of_map[inner] = new
                case "map get":
                    assert entries.get(inner) == of_map.get(inner)
                case "remove":
                    entries.remove(inner)
                    of_map.pop(inner, None)
                case "items":
                    assert dict(entries.items()) == of_map
                    assert sorted(entries.keys()) == sorted(of_map)
                case "is_empty":
                    assert entries.is_empty() == (not of_map)
                case "map clear":
                    entries.clear()
                    of_map.clear()
                case _:
                    cached.snapshot(1)
            cached.backend.check_invariants()
    finally:
        cached.backend.close()


class CountingRows:
    """Counts the rows that are read from a store."""

    def __init__(self, store: RocksDBStore) -> None:
        self.num_read = 0
        self._rows = store.rows

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in self._rows(prefix):
            self.num_read += 1
            yield row


def test_whether_a_map_is_empty_costs_one_row(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is not copied for that: neither its cached part, nor its rows in RocksDB."""
    entries = cached.state(MapStateDescriptor("m"))
    cached.at("k")
    entries.put_all({number: number for number in range(500)})
    store = cached.backend._store
    assert store is not None
    store.make_room()
    counting = CountingRows(store)
    monkeypatch.setattr(store, "rows", counting.rows)

    assert [entries.is_empty() for _ in range(3)] == [False, False, False]
    assert counting.num_read == 1
    for number in range(500):
        entries.remove(number)
    assert [entries.is_empty() for _ in range(3)] == [True, True, True]
    assert counting.num_read <= 501
    entries.put(1, 1)
    assert not entries.is_empty()
    entries.clear()
    assert entries.is_empty()
    cached.check()


def test_lists_that_are_replaced_are_seldom_measured(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are measured as seldom as values, and not each time."""
    measured = []

    def counted(value: Any) -> int:
        measured.append(value)
        return memory_size(value)

    monkeypatch.setattr(cached_states, "memory_size", counted)
    state = cached.state(ListStateDescriptor("l", Types.LONG()))
    cached.at("k")
    for number in range(640):
        state.update([number, 2, 3])

    assert len(measured) <= 64
    assert list(state.get()) == [639, 2, 3]
    cached.check()
