"""Keyed state in RocksDB against a dictionary per key, and against the heap; what its checkpoints share."""

import datetime
import decimal
import pickle
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.common import Time, Types
from flowlet.common.types import Row
from flowlet.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.keys.exact_keys import exact_key, key_group, key_group_range
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.shipping.program_modules import MAIN_OBJECTS
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_backends import KeyedStateBackend, SharedFiles
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot, SharedFile
from flowlet.timers.keyed_timer_service import KeyContext
from tests.flowlet.state.kinds import DESCRIBED, KINDS, content_of, declared, of_type, put, step

pytest.importorskip("rocksdict")

from flowlet.state.rocksdb import rocksdb_store
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

pytestmark = pytest.mark.slow

MAX_PARALLELISM = 8
ALL = range(MAX_PARALLELISM)
FORMS = ("heap", "full", "incremental")


class Colour(StrEnum):
    RED = "red"


KEYS = st.sampled_from(
    [
        *("a", "", "red", Colour.RED, 1, -1, 255, 1.0, True, None, 0.0, -0.0, (1, "x"), (True, "x"), (), b"a", [1]),
        *([True], 2**70, datetime.date(2020, 1, 1), decimal.Decimal("1.0"), frozenset({1, 2}), Row(a=1)),
    ]
)
VALUES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.booleans())


class Files(SharedFiles):
    """Shared files in memory."""

    are_restored_ones_own = True
    former_classes: RunningClasses | None = None

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.written: list[str] = []

    def write_shared(self, path: Path) -> SharedFile:
        content = path.read_bytes()
        name = str(len(self.contents)).encode()
        self.contents[name] = content
        self.written.append(path.name)
        return SharedFile(name, len(content))

    def read_shared(self, file: SharedFile, path: Path) -> None:
        path.write_bytes(self.contents[file.sha256])


class Backends:
    """Makes back ends, and closes them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = Files()
        self.context = KeyContext()
        self.now_ms = 1_000
        self.made: list[KeyedStateBackend] = []

    def new(self, form: str, *snapshots: Any, groups: range = ALL, cache_bytes: int = 1 << 20) -> KeyedStateBackend:
        place = RocksDBPlace(
            str(self.folder), self.files, writes_shared_files=form == "incremental", cache_bytes=cache_bytes
        )
        backend: KeyedStateBackend
        if form == "heap":
            backend = HeapKeyedStateBackend(self.context, lambda: self.now_ms, groups, MAX_PARALLELISM)
        else:
            backend = RocksDBKeyedStateBackend(self.context, lambda: self.now_ms, groups, MAX_PARALLELISM, place)
        self.made.append(backend)
        for snapshot in snapshots:
            backend.restore(snapshot)
        return backend

    def snapshot(self, backend: KeyedStateBackend, checkpoint_id: int = 1) -> Any:
        finish = backend.snapshot(checkpoint_id)
        assert finish is not None
        return pickle.loads(pickle.dumps(finish()))

    def close(self) -> None:
        for each in self.made:
            each.check_invariants()
            each.close()


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[Backends]:
    made = Backends(tmp_path)
    yield made
    made.close()
    assert not [file for folder in tmp_path.iterdir() for file in folder.iterdir()], "a working directory was left"


STEPS = st.lists(st.tuples(KEYS, st.sampled_from(["set", "set", "set", "remove", "clear"]), VALUES, KEYS), max_size=25)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_each_key_has_its_own_state_in_every_back_end_and_after_restarts(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The cache has room for nothing, for a few rows, or for all; the form changes at a restart, and what RocksDB
    shares it alone reads.
    """
    folder = tmp_path_factory.mktemp("rocksdb")
    backends = Backends(folder)
    models: dict[Any, tuple[Any, Any]] = {}
    snapshots: list[Any] = []
    try:
        for _ in range(3):
            is_shared = any(isinstance(each, IncrementalSnapshot) for each in snapshots)
            form = data.draw(st.sampled_from(FORMS[1:] if is_shared else FORMS))
            backend = backends.new(form, *snapshots, cache_bytes=data.draw(st.sampled_from([0, 1500, 1 << 20])))
            state = declared(backend, DESCRIBED[kind]())
            for key, action, value, inner in data.draw(STEPS):
                backends.context.current_key = key
                exact = exact_key(key)
                models[exact] = key, step(state, kind, models.get(exact, (None, None))[1], value, inner, action)
            for key, model in models.values():
                backends.context.current_key = key
                found = content_of(state, kind)
                if kind in ("map", "list"):
                    assert (found or None) == (model or None)
                else:
                    assert (type(found), found) == (type(model), model)
            backends.context.current_key = "a"
            snapshots = [backends.snapshot(backend)]
    finally:
        backends.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["full", "incremental"])
def test_state_is_spread_over_two_subtasks_and_put_together_again(form: str, kind: str, backends: Backends) -> None:
    keys = [str(number) for number in range(40)]
    one = backends.new(form)
    state = declared(one, DESCRIBED[kind]())
    models = {}
    for key in keys:
        backends.context.current_key = key
        models[key] = step(state, kind, None, int(key) + 1, key)
    written = backends.snapshot(one)

    halves = [backends.new(form, written, groups=key_group_range(MAX_PARALLELISM, 2, subtask)) for subtask in range(2)]
    parts = [backends.snapshot(each) for each in halves]
    whole = backends.new(form, *parts)
    found = declared(whole, DESCRIBED[kind]())
    counts = []
    for half in halves:
        state = declared(half, DESCRIBED[kind]())
        counts.append(0)
        for key in keys:
            backends.context.current_key = key
            counts[-1] += bool(content_of(state, kind))

    assert sum(counts) == len(keys)
    assert min(counts) > 0
    for key in keys:
        backends.context.current_key = key
        assert content_of(found, kind) == models[key]


def test_a_checkpoint_writes_only_files_that_the_last_complete_one_has_not(backends: Backends) -> None:
    backend = backends.new("incremental")
    state = declared(backend, ValueStateDescriptor("s"))

    def checkpoint(number: int, *, completes: bool = True) -> tuple[IncrementalSnapshot, int]:
        backends.context.current_key = number
        state.update("x" * 1000)
        before = len(backends.files.written)
        taken = backends.snapshot(backend, number)
        if completes:
            backend.notify_checkpoint_complete(number)
        return taken, len(backends.files.written) - before

    first, writes1 = checkpoint(1)
    second, writes2 = checkpoint(2, completes=False)
    third, writes3 = checkpoint(3)
    fourth, writes4 = checkpoint(4)

    assert (writes1, writes2, writes3) == (1, 1, 2), "the second one was not complete: the third writes its file again"
    assert writes4 == 1 or len(fourth.shared) < 4, "or RocksDB has put the files together"
    assert first.shared.items() <= second.shared.items()
    assert third.shared.keys() >= second.shared.keys()
    restored = declared(backends.new("incremental", fourth), ValueStateDescriptor("s"))
    for number in range(1, 5):
        backends.context.current_key = number
        assert restored.value() == "x" * 1000


def test_after_a_restart_the_files_of_the_checkpoint_are_not_written_again(backends: Backends) -> None:
    backend = backends.new("incremental")
    state = declared(backend, ValueStateDescriptor("s"))
    backends.context.current_key = "a"
    state.update(1)
    taken = backends.snapshot(backend)

    restored = backends.new("incremental", taken)
    again = backends.snapshot(restored, 2)

    assert again.shared == taken.shared
    assert len(backends.files.written) == len(taken.shared) == 1


@pytest.mark.parametrize("form", ["full", "incremental"])
def test_a_snapshot_does_not_see_what_happens_before_it_is_finished(form: str, backends: Backends) -> None:
    backend = backends.new(form)
    state = declared(backend, ListStateDescriptor("s"))
    backends.context.current_key = "a"
    state.add(1)
    finish = backend.snapshot(1)
    state.add(2)
    backend.snapshot(2)
    assert finish is not None

    assert declared(backends.new(form, finish()), ListStateDescriptor("s")).get() == [1]


def test_a_snapshot_may_be_discarded_after_the_end(backends: Backends) -> None:
    """The snapshot pool may be late: the task, and its files, are gone."""
    backend = backends.new("incremental")
    backends.context.current_key = "a"
    declared(backend, ValueStateDescriptor("n")).update(1)
    assert backend.snapshot(1) is not None

    backend.close()

    backend.discard_snapshot(1)


@pytest.mark.parametrize("form", ["full", "incremental"])
def test_state_that_was_not_declared_again_stays_in_the_next_snapshot(form: str, backends: Backends) -> None:
    backend = backends.new(form)
    backends.context.current_key = True
    declared(backend, ValueStateDescriptor("s")).update([1])
    second = backends.new(form, backends.snapshot(backend))
    declared(second, ValueStateDescriptor("other"))

    third = backends.new(form, backends.snapshot(second))

    assert declared(third, ValueStateDescriptor("s")).value() == [1]


def test_a_changed_descriptor_another_parallelism_and_the_heap_are_refused(backends: Backends) -> None:
    backend = backends.new("incremental")
    declared(backend, ValueStateDescriptor("s", Types.LONG()))
    taken = backends.snapshot(backend)

    with pytest.raises(StateRestoreError, match=r"ValueState of type .* is declared as a ListState"):
        declared(backends.new("incremental", taken), ListStateDescriptor("s", Types.LONG()))
    with pytest.raises(StateRestoreError, match=r"'s' was written as .*Long.*Integer now.*Integer does not hold every"):
        declared(backends.new("incremental", taken), ValueStateDescriptor("s", Types.INT()))
    with pytest.raises(StateRestoreError, match=r"set state\.backend\.type to 'rocksdb'"):
        backends.new("heap", taken)
    state = declared(backend, ValueStateDescriptor("s", Types.LONG()))
    backends.context.current_key = KeyContext().current_key
    with pytest.raises(FlowletError, match="without a current key"):
        state.value()


def test_a_value_that_cannot_be_pickled_is_named_by_its_state(backends: Backends) -> None:
    backend = backends.new("full")
    backends.context.current_key = "a"
    state = declared(backend, ValueStateDescriptor("locks"))
    state.update(each for each in "ab")

    with pytest.raises(FlowletError, match="state 'locks' holds a value that cannot be pickled"):
        backend.snapshot(1)

    state.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_entries_expire_and_full_snapshots_leave_them_out(form: str, kind: str, backends: Backends) -> None:
    config = StateTtlConfig.new_builder(Time.milliseconds(10)).cleanup_full_snapshot().build()

    def descriptor() -> StateDescriptor:
        made = DESCRIBED[kind]()
        made.enable_time_to_live(config)
        return made

    backend = backends.new(form)
    state = declared(backend, descriptor())
    backends.context.current_key = "old"
    step(state, kind, None, 1, "x")
    backends.now_ms += 6
    backends.context.current_key = "new"
    model = step(state, kind, None, 2, "y")
    backends.now_ms += 6

    taken = backends.snapshot(backend)
    restored = declared(backends.new(form, taken), descriptor())

    assert content_of(restored, kind) == model
    backends.context.current_key = "old"
    assert not content_of(restored, kind)
    assert not content_of(state, kind)
    if isinstance(taken, KeyedStateSnapshot):
        assert [list(row.keys) for group in taken.groups.values() for row in group.values()] == [["new"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_type_may_grow_over_a_restart(form: str, kind: str, backends: Backends) -> None:
    """A field at the end is None, also where entries begin to expire; the next snapshot is of the new type."""
    backend = backends.new("full" if form == "heap" else form)
    for number in range(20):
        backends.context.current_key = (number, "a")
        put(declared(backend, of_type(kind, Types.TUPLE([Types.STRING(), Types.INT()]))), kind, ("a", number), 7)
    grown = of_type(kind, Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()]))
    grown.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(10)).build())

    for form_now in (form, "full"):
        backend = backends.new(form_now, backends.snapshot(backend))
        for number in range(20):
            backends.context.current_key = (number, "a")
            value = ("a", number, None)
            expected = {"map": {7: (int, value)}, "list": [value], "aggregating": [value]}.get(kind, value)
            assert content_of(declared(backend, grown), kind) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_may_let_entries_begin_or_cease_to_expire(kind: str, backends: Backends) -> None:
    backend = backends.new("incremental")
    backends.context.current_key = (1, "a")
    model = step(declared(backend, DESCRIBED[kind]()), kind, None, 1, (2, "b"))
    expiring = DESCRIBED[kind]()
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(10)).build())
    backends.now_ms += 100

    second = backends.new("incremental", backends.snapshot(backend))
    begins = content_of(declared(second, expiring), kind)
    third = backends.new("full", backends.snapshot(second))
    ceases = declared(third, DESCRIBED[kind]())
    backends.now_ms += 100

    assert begins == model
    assert content_of(ceases, kind) == model
    assert not content_of(declared(backends.new("full", backends.snapshot(second, 2)), expiring), kind)


def test_files_of_another_program_get_the_classes_of_the_one_that_runs(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an incremental checkpoint hold classes by value; they stay the program's in the next checkpoint."""

    def program(values: str) -> tuple[Any, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(
            "from dataclasses import dataclass\nfrom enum import Enum\n"
            f"class Color(Enum):\n  {values}\n@dataclass(frozen=True)\nclass Place:\n  color: Color",
            names,
        )
        for name in ("Color", "Place"):
            monkeypatch.setattr(sys.modules["__main__"], name, names[name], raising=False)
        return names["Color"], names["Place"]

    color, place = program("RED = 1; BLUE = 2")
    value_of, map_of, list_of = ValueStateDescriptor("value"), MapStateDescriptor("map"), ListStateDescriptor("list")
    backend = backends.new("incremental")
    for number in range(8):
        backends.context.current_key = (number, place(color.RED))
        declared(backend, value_of).update((number, place(color.BLUE)))
        declared(backend, map_of).put(place(color.BLUE), [color.RED])
        declared(backend, list_of).add(color.BLUE)
    finish = backend.snapshot(1)
    assert finish is not None
    snapshot = finish()

    color, place = program("BLUE = 1; RED = 2; NEW = 3")
    backends.files.former_classes = RunningClasses(MAIN_OBJECTS.class_of)
    for groups in (ALL, range(4)):
        backend = backends.new("incremental", snapshot, groups=groups)
        for number in range(8):
            backends.context.current_key = key = (number, place(color.RED))
            if key_group(key, MAX_PARALLELISM) in groups:
                assert declared(backend, value_of).value() == (number, place(color.BLUE))
                assert declared(backend, map_of).items() == [(place(color.BLUE), [color.RED])]
                assert declared(backend, map_of).get(place(color.BLUE)) == [color.RED]
                assert declared(backend, list_of).get() == [color.BLUE]

    backends.files.former_classes = None
    finish = backend.snapshot(2)
    assert finish is not None
    restored = backends.new("incremental", finish(), groups=range(4))
    assert all(type(key[1]) is place for key in (declared(restored, value_of), restored.keys_of("value"))[1])

    program("RED = 1")
    backends.files.former_classes = RunningClasses(MAIN_OBJECTS.class_of)
    with pytest.raises(
        StateRestoreError, match=r"state '(value|map|list)': class Color of the program has no member .* any more"
    ):
        backends.new("incremental", snapshot)


class Skipped:
    """Counts the rows that iterators of databases that are made from now on pass over, because they were deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options = rocksdb_store._options()
        self._options.enable_statistics()
        monkeypatch.setattr(rocksdb_store, "_options", lambda: self._options)

    def __call__(self) -> int:
        (line,) = (each for each in str(self._options.get_statistics()).splitlines() if "number.iter.skip " in each)
        return int(line.rpartition(" ")[2])


@pytest.mark.parametrize("name", ["items", "keys", "values", "is_empty", "clear"])
def test_a_map_is_read_without_a_look_at_the_maps_of_keys_that_have_ended(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deleted rows of such keys lie beside the map's; to end many keys took the square of their number."""
    num_keys, num_skipped, context = 300, Skipped(monkeypatch), KeyContext()
    place = RocksDBPlace(str(tmp_path), cache_bytes=1)  # so each access is one of RocksDB
    backend = RocksDBKeyedStateBackend(context, lambda: 5, ALL, MAX_PARALLELISM, place)
    try:
        state = backend.state(MapStateDescriptor("map"), MapStateDescriptor)
        for key in range(num_keys):
            context.current_key = key
            state.put("a", 1)
        for key in range(num_keys):
            context.current_key = key
            state.remove("a")
        assert backend.keys_of("map") == []
        before = num_skipped()

        for key in range(num_keys):
            context.current_key = key
            getattr(state, name)()

        assert num_skipped() - before <= 4 * num_keys, "its own rows, and no more"
    finally:
        backend.close()
