"""Keyed state with many keys, in this process: the time of a snapshot and of a restore.

Side:   any.
Values: ``long``: a ``ValueState`` of an int; ``list``: a ``ValueState`` of a list, which a user may change in place;
        ``map``: a ``MapState`` with one entry per key.  Keys come in random order.
Proof:  the restored state has every key, and for a sample of them the value that was stored.
"""

import pickle
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from flowlet.common import Types
from flowlet.datastream.state import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from flowlet.graph.partitioner import DEFAULT_MAX_PARALLELISM
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
from flowlet.state.state_snapshots import KeyedStateSnapshot
from flowlet.timers.keyed_timer_service import KeyContext

KEYS: Final = ("int", "str")
VALUES: Final = ("long", "list", "map")
NUM_GROUPS: Final = DEFAULT_MAX_PARALLELISM
_SAMPLE: Final = 1000
_SEED: Final = 1

# Makes a back end of a subtask that has all key groups.
Backend = HeapKeyedStateBackend | RocksDBKeyedStateBackend
MakeBackend = Callable[[KeyContext], Backend]
_Snapshot = tuple[float, float, KeyedStateSnapshot]  # milliseconds of both parts


def _heap(context: KeyContext) -> HeapKeyedStateBackend:
    return HeapKeyedStateBackend(context, lambda: 0, range(NUM_GROUPS), NUM_GROUPS)


def _rocksdb(context: KeyContext) -> RocksDBKeyedStateBackend:
    return RocksDBKeyedStateBackend(context, lambda: 0, range(NUM_GROUPS), NUM_GROUPS, RocksDBPlace())


BACKENDS: Final[dict[str, MakeBackend]] = {"heap": _heap, "rocksdb": _rocksdb}
"""By the name of ``--backend``; snapshots of RocksDB are full ones."""


@dataclass(frozen=True)
class Content:
    """Keys and values of one state."""

    keys: str
    values: str
    num_keys: int

    @property
    def descriptor(self) -> StateDescriptor:
        """Return the descriptor of the state."""
        match self.values:
            case "long":
                return ValueStateDescriptor("state", Types.LONG())
            case "list":
                return ValueStateDescriptor("state", Types.LIST(Types.LONG()))
            case _:
                return MapStateDescriptor("state", Types.STRING(), Types.LONG())

    def entries(self) -> Iterator[tuple[Any, int]]:
        """Yield each key with a number, from which its value is made."""
        numbers = list(range(self.num_keys))
        random.Random(_SEED).shuffle(numbers)
        for number in numbers:
            yield (number if self.keys == "int" else f"key-{number}"), number

    def store(self, state: Any, number: int) -> None:
        """Store the value of the current key."""
        match self.values:
            case "long":
                state.update(number)
            case "list":
                state.update([number])
            case _:
                state.put("number", number)

    def is_stored(self, state: Any, number: int) -> bool:
        """Whether the current key has its value."""
        match self.values:
            case "long":
                return bool(state.value() == number)
            case "list":
                return bool(state.value() == [number])
            case _:
                return bool(state.items() == [("number", number)])


@dataclass(frozen=True)
class SnapshotTimes:
    """Milliseconds of the first snapshot, of the next one, and of a restore; bytes as they are in a file."""

    first_sync_ms: float
    sync_ms: float
    async_ms: float
    num_bytes: int
    restore_ms: float


def measure(content: Content, make_backend: MakeBackend) -> SnapshotTimes:
    """Measure two snapshots of a state and a restore of the second one.

    Raises:
        WrongOutputError: the restored state is wrong.
    """
    context = KeyContext()
    with closing(make_backend(context)) as backend:
        (first_ms, _, _), (sync_ms, async_ms, snapshot) = _filled(content, context, backend)
    data = pickle.dumps(snapshot, 5)
    begin = time.perf_counter()
    with closing(make_backend(context)) as restored:
        restored.restore(pickle.loads(data))
        state = restored.state(content.descriptor, type(content.descriptor))
        restore_ms = _ms_since(begin)
        _check(content, snapshot, context, state)
    return SnapshotTimes(first_ms, sync_ms, async_ms, len(data), restore_ms)


def _filled(content: Content, context: KeyContext, backend: Backend) -> tuple[_Snapshot, _Snapshot]:
    """Store everything, and take two snapshots."""
    state = backend.state(content.descriptor, type(content.descriptor))
    for key, number in content.entries():
        context.current_key = key
        content.store(state, number)
    return _snapshot(backend), _snapshot(backend)


def _snapshot(backend: Backend) -> _Snapshot:
    begin = time.perf_counter()
    finish = backend.snapshot(0)
    sync_ms = _ms_since(begin)
    assert finish is not None, "a state was declared"
    begin = time.perf_counter()
    snapshot = finish()
    assert isinstance(snapshot, KeyedStateSnapshot), "a full one"
    return sync_ms, _ms_since(begin), snapshot


def _ms_since(begin: float) -> float:
    return (time.perf_counter() - begin) * 1e3


def _check(content: Content, snapshot: KeyedStateSnapshot, context: KeyContext, state: Any) -> None:
    num_keys = sum(len(rows.keys) for group in snapshot.groups.values() for rows in group.values())
    if num_keys != content.num_keys:
        raise WrongOutputError(f"the snapshot has {num_keys} keys instead of {content.num_keys}")
    for (key, number), _ in zip(content.entries(), range(_SAMPLE), strict=False):
        context.current_key = key
        if not content.is_stored(state, number):
            raise WrongOutputError(f"key {key!r} was restored with another value")
