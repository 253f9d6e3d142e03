"""Keyed state against a dictionary per key, and what its snapshots hold."""

import gc
import pickle
import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Time, Types
from flowlet.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.keys.exact_keys import exact_key, key_group, key_group_range
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_snapshots import KeyedStateSnapshot, StateRows
from flowlet.timers.keyed_timer_service import KeyContext
from tests.flowlet.state.kinds import DESCRIBED, KINDS, NOTHING, content_of, of_type, put, step
from tests.named_cases import case

MAX_PARALLELISM = 8
KEYS = st.sampled_from(["a", "b", 1, 1.0, True, None, 0.0, -0.0, (1, "x"), (True, "x"), b"a", [1], [True]])
VALUES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.booleans())


class Backend:
    """A back end of one subtask, and the clock and key that a task would give it."""

    def __init__(
        self,
        key_groups: range = range(MAX_PARALLELISM),
        *snapshots: KeyedStateSnapshot,
        max_parallelism: int = MAX_PARALLELISM,
    ):
        self.context = KeyContext()
        self.now_ms = 1_000
        self.backend = HeapKeyedStateBackend(self.context, lambda: self.now_ms, key_groups, max_parallelism)
        for snapshot in snapshots:
            self.backend.restore(snapshot)

    def state(self, descriptor: StateDescriptor) -> Any:
        return self.backend.state(descriptor, type(descriptor))

    def at(self, key: Any) -> None:
        self.context.current_key = key

    def value(self) -> Any:
        """Return the value state of the key "k"."""
        self.at("k")
        return self.state(ValueStateDescriptor("s"))

    def begin(self) -> Callable[[], KeyedStateSnapshot]:
        finish = self.backend.snapshot()
        assert finish is not None
        return finish

    def snapshot(self) -> KeyedStateSnapshot:
        stored: KeyedStateSnapshot = pickle.loads(pickle.dumps(self.begin()()))  # as in a file
        return stored


@given(st.lists(st.tuples(KEYS, st.one_of(st.just("clear"), VALUES), st.booleans()), max_size=20))
def test_each_key_has_its_own_state_before_and_after_a_restart(steps: list[tuple[Any, Any, bool]]) -> None:
    """Each content is that of a dictionary by exact key; a restart at any step, into two subtasks, changes nothing."""
    for kind in KINDS:
        with case(kind):
            check_restarts(kind, steps)


def check_restarts(kind: str, steps: list[tuple[Any, Any, bool]]) -> None:
    models: dict[Any, Any] = {}
    subtasks = [Backend()]
    states = [subtasks[0].state(DESCRIBED[kind]())]

    for key, value, restarts in steps:
        if restarts:
            snapshots = [each.snapshot() for each in subtasks]
            number = 3 - len(subtasks)
            ranges = [key_group_range(MAX_PARALLELISM, number, subtask) for subtask in range(number)]
            subtasks = [Backend(each, *snapshots) for each in ranges]
            states = [each.state(DESCRIBED[kind]()) for each in subtasks]
        owner = 0 if len(subtasks) == 1 or key_group(key, MAX_PARALLELISM) < MAX_PARALLELISM // 2 else 1
        subtasks[owner].at(key)
        if value == "clear":
            states[owner].clear()
            models.pop(exact_key(key), None)
        else:
            models[exact_key(key)] = step(states[owner], kind, models.get(exact_key(key)), value, value)
        content = content_of(states[owner], kind)
        assert repr(content) == repr(models.get(exact_key(key), NOTHING[kind]))
        for each in subtasks:
            each.backend.check_invariants()


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_does_not_see_what_a_user_gets_and_changes_in_place_afterwards(kind: str) -> None:
    running = Backend()
    running.at("k")
    state = running.state(DESCRIBED[kind]())
    put(state, kind, {"n": [1]})

    finish = running.begin()
    match kind:
        case "value" | "reducing":
            (state.value if kind == "value" else state.get)()["n"].append(2)
        case "map":
            state.get("x")["n"].append(2)
            state.put("y", 5)
        case _:
            state.get()[0]["n"].append(2)
            state.add(5)
    restored = Backend(range(MAX_PARALLELISM), finish())
    restored.at("k")

    expected = {"value": {"n": [1]}, "map": {"x": (str, {"n": [1]})}, "reducing": {"n": [1]}}.get(kind, [{"n": [1]}])
    assert content_of(restored.state(DESCRIBED[kind]()), kind) == expected


def test_one_snapshot_serves_two_restarts() -> None:
    """Changes that the first restart makes to its lists do not reach the second one."""
    running = Backend()
    running.value().update([1])
    snapshot = running.begin()()

    for _ in range(2):
        state = Backend(range(MAX_PARALLELISM), snapshot).value()
        assert state.value() == [1]
        state.value().append(2)


def test_state_that_was_not_declared_again_stays_in_the_next_snapshot() -> None:
    running = Backend()
    running.at("k")
    running.state(ValueStateDescriptor("old")).update(1)

    second = Backend(range(MAX_PARALLELISM), running.snapshot())
    second.at("k")
    second.state(ValueStateDescriptor("new")).update(2)
    third = Backend(range(MAX_PARALLELISM), second.snapshot())
    third.at("k")

    assert third.state(ValueStateDescriptor("old")).value() == 1
    assert third.state(ValueStateDescriptor("new")).value() == 2


@pytest.mark.parametrize(
    ("written", "declared", "message"),
    [
        pytest.param(
            ValueStateDescriptor("s", Types.INT()),
            ListStateDescriptor("s", Types.INT()),
            "as a ValueState of type .*as a ListState of type",
            id="another kind",
        ),
        pytest.param(
            ValueStateDescriptor("s", Types.INT()),
            ValueStateDescriptor("s", Types.STRING()),
            "as a ValueState of type .*Integer.*String",
            id="another type",
        ),
        pytest.param(
            MapStateDescriptor("s", Types.INT(), Types.INT()),
            MapStateDescriptor("s", Types.STRING(), Types.INT()),
            "of type .*Integer.*of type .*String",
            id="another key of a map",
        ),
        pytest.param(
            ValueStateDescriptor("s", Types.ROW_NAMED(["a"], [Types.INT()])),
            ValueStateDescriptor("s", Types.ROW_NAMED(["b"], [Types.INT()])),
            "state 's' was written as .*a: Integer.*b: Integer.*field 'a' is 'b' now.*declare it as it was written, or",
            id="another field",
        ),
        pytest.param(
            ValueStateDescriptor("s"),
            ValueStateDescriptor("s", Types.STRING()),
            "of type Pickled.*of type String",
            id="a type for the first time",
        ),
    ],
)
def test_a_changed_descriptor_is_refused_with_both_named(
    written: StateDescriptor, declared: StateDescriptor, message: str
) -> None:
    running = Backend()
    running.state(written)
    snapshot = running.snapshot()

    with pytest.raises(StateRestoreError, match=message):
        Backend(range(MAX_PARALLELISM), snapshot).state(declared)
    with pytest.raises(FlowletError, match="declared twice"):
        running.state(declared)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("had_ttl", [True, False])
@pytest.mark.parametrize("has_ttl", [True, False])
def test_a_type_may_grow_over_a_restart(kind: str, had_ttl: bool, has_ttl: bool) -> None:
    """A field at the end is None, also where entries begin, or cease, to expire; the next snapshot is the new type."""
    before = of_type(kind, Types.TUPLE([Types.STRING(), Types.INT()]))
    now = of_type(kind, Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()]))
    running = Backend()
    running.at("k")
    state = running.state(expiring(before) if had_ttl else before)
    put(state, kind, ("a", 1), 7)

    snapshot = running.snapshot()
    for _ in range(2):
        restored = Backend(range(MAX_PARALLELISM), snapshot)
        restored.at("k")
        content = content_of(restored.state(expiring(now) if has_ttl else now), kind)
        assert content == {
            "map": {7: (int, ("a", 1, None))},
            "list": [("a", 1, None)],
            "aggregating": [("a", 1, None)],
        }.get(kind, ("a", 1, None))
        snapshot = restored.snapshot()


def test_a_value_of_another_type_than_declared_is_named_with_its_state() -> None:
    running = Backend()
    running.at("k")
    running.state(ValueStateDescriptor("s", Types.INT())).update(12)
    written = running.snapshot()
    # As a flowlet wrote it that did not look at what enters a state.
    rows = {group: {"s": StateRows(states["s"].keys, ["12"])} for group, states in written.groups.items()}
    snapshot = KeyedStateSnapshot(written.descriptions, MAX_PARALLELISM, rows)

    with pytest.raises(
        StateRestoreError,
        match=r"state 's' has a value that is not of the type Integer .*'12' is no int.* as it was written",
    ):
        Backend(range(MAX_PARALLELISM), snapshot).state(ValueStateDescriptor("s", Types.DOUBLE()))


def test_a_state_of_an_older_form_is_refused() -> None:
    with pytest.raises(
        StateRestoreError,
        match="keyed state has version 1, this flowlet reads version 2: restore it with the flowlet that",
    ):
        Backend(range(MAX_PARALLELISM), KeyedStateSnapshot({}, MAX_PARALLELISM, version=1))


def test_a_snapshot_with_another_number_of_key_groups_is_refused() -> None:
    running = Backend()
    for key in range(100):
        running.at(key)
        running.state(ValueStateDescriptor("s")).update(key)

    with pytest.raises(StateRestoreError, match=r"call set_max_parallelism\(8\)"):
        Backend(range(4), running.snapshot(), max_parallelism=4)


def test_a_wrong_descriptor_and_a_missing_key_are_refused() -> None:
    running = Backend()

    with pytest.raises(FlowletError, match="needs a ListStateDescriptor"):
        running.backend.state(ValueStateDescriptor("s"), ListStateDescriptor)
    with pytest.raises(FlowletError, match="state 's' was used without a current key"):
        running.state(ValueStateDescriptor("s")).update(1)


def test_none_clears_a_value_and_is_kept_in_lists_and_maps() -> None:
    running = Backend()
    running.at("k")
    value, elements = running.state(ValueStateDescriptor("v")), running.state(ListStateDescriptor("l"))
    entries = running.state(MapStateDescriptor("m"))

    value.update(1)
    value.update(None)
    elements.add(None)
    elements.add_all([1, None])
    entries.put("x", None)

    assert value.value() is None
    assert list(elements) == [None, 1, None]
    assert entries.contains("x")
    assert "y" not in entries
    assert list(entries) == ["x"]
    del entries["x"]
    assert entries.is_empty()
    elements.update([])
    assert elements.get() == []


class Size(IntEnum):
    LARGE = 1


@pytest.mark.parametrize("has_ttl", [False, True])
def test_a_map_finds_an_enum_by_its_number(has_ttl: bool) -> None:
    """Both are one key; the entry holds the enum, as the user knows it."""
    running = Backend()
    descriptor = MapStateDescriptor("m")
    entries = running.state(expiring(descriptor) if has_ttl else descriptor)
    running.at("a")
    entries.put(Size.LARGE, "x")

    assert (entries.get(1), entries.get(Size.LARGE), list(entries.keys())) == ("x", "x", [Size.LARGE])


def test_a_map_tells_keys_of_different_types_apart() -> None:
    running = Backend()
    running.at("k")
    entries = running.state(MapStateDescriptor("m"))

    entries.put_all({1: "int", "1": "str"})
    entries.put_all([(True, "bool"), (1.0, "float"), ((1,), "tuple")])

    assert [entries[key] for key in (1, "1", True, 1.0, (1,))] == ["int", "str", "bool", "float", "tuple"]
    assert list(map(repr, entries.keys())) == ["1", "'1'", "True", "1.0", "(1,)"]
    entries.remove(True)
    assert entries.values() == ["int", "str", "float", "tuple"]


# ---------------------------------------------------------------- time to live

OnReadAndWrite, OnCreateAndWrite = StateTtlConfig.UpdateType.OnReadAndWrite, StateTtlConfig.UpdateType.OnCreateAndWrite
Configure = Callable[[StateTtlConfig.Builder], Any]


def expiring(descriptor: StateDescriptor, configure: Configure = lambda builder: builder) -> StateDescriptor:
    builder = StateTtlConfig.new_builder(Time.milliseconds(10)).disable_cleanup_in_background()
    configure(builder)
    descriptor.enable_time_to_live(builder.build())
    return descriptor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reads_extend", [True, False])
@pytest.mark.parametrize("returns_expired", [True, False])
def test_an_entry_lives_as_long_as_it_is_used(kind: str, reads_extend: bool, returns_expired: bool) -> None:
    """An entry lives until 10 ms after the last write, or use; then it is returned once more at most."""

    def configure(builder: StateTtlConfig.Builder) -> None:
        builder.set_update_type(OnReadAndWrite if reads_extend else OnCreateAndWrite)
        if returns_expired:
            builder.return_expired_if_not_cleaned_up()

    running = Backend()
    running.at("k")
    state = running.state(expiring(DESCRIBED[kind](), configure))
    content = step(state, kind, None, 5, 5)

    running.now_ms += 9
    assert content_of(state, kind) == content
    running.now_ms += 9
    if reads_extend:
        assert content_of(state, kind) == content
        running.now_ms += 10
    assert content_of(state, kind) == (content if returns_expired else NOTHING[kind])
    assert content_of(state, kind) == NOTHING[kind]
    running.backend.check_invariants()


def test_elements_and_entries_expire_one_by_one() -> None:
    running = Backend()
    running.at("k")
    elements = running.state(expiring(ListStateDescriptor("l")))
    entries = running.state(expiring(MapStateDescriptor("m")))

    for number in range(3):
        elements.add(number)
        entries.put(number, number)
        running.now_ms += 4

    assert elements.get() == [1, 2]
    assert (entries.get(0), entries.keys(), entries.contains(0)) == (None, [1, 2], False)
    running.now_ms += 100
    assert entries.is_empty()


def num_keys(snapshot: KeyedStateSnapshot) -> int:
    return sum(len(rows.keys) for group in snapshot.groups.values() for rows in group.values())


@pytest.mark.parametrize("kind", KINDS)
def test_clean_ups_remove_what_nobody_asks_for(kind: str) -> None:
    """An entry stays without a clean-up, is left out by one for snapshots, and goes at accesses of other keys, or at
    records, by one in steps.
    """

    def left(configure: Configure, use: Callable[[Backend, Any], None]) -> int:
        running = Backend()
        state = running.state(expiring(DESCRIBED[kind](), configure))
        for number in range(20):
            running.at(number)
            step(state, kind, None, 5, 5)
        running.now_ms += 10
        running.at("other")
        use(running, state)
        return num_keys(running.snapshot())

    def read_often(_: Backend, state: Any) -> None:
        for _number in range(12):
            content_of(state, kind)

    def see_records(running: Backend, _: Any) -> None:
        assert running.backend.cleans_at_records
        for _number in range(12):
            running.backend.clean()

    def nothing(_running: Backend, _state: Any) -> None:
        return

    assert left(lambda builder: builder, read_often) == 20
    assert left(lambda builder: builder.cleanup_full_snapshot(), nothing) == 0
    assert left(lambda builder: builder.cleanup_incrementally(2, False), read_often) == 0
    assert left(lambda builder: builder.cleanup_incrementally(2, False), nothing) == 20
    assert left(lambda builder: builder.cleanup_incrementally(2, True), see_records) == 0


def test_the_default_clean_up_of_the_heap_looks_at_five_keys_per_access() -> None:
    config = StateTtlConfig.new_builder(Time.seconds(1)).build()
    chosen = config.get_cleanup_strategies().get_incremental_cleanup_strategy()

    assert chosen is not None
    assert (chosen.get_cleanup_size(), chosen.run_cleanup_for_every_record()) == (5, False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_may_let_entries_begin_or_cease_to_expire(kind: str) -> None:
    """An entry that begins to expire counts as used at the restart; a snapshot of expiring entries keeps their age."""
    running = Backend()
    running.at("k")
    content = step(running.state(DESCRIBED[kind]()), kind, None, 5, 5)

    second = Backend(range(MAX_PARALLELISM), running.snapshot())
    second.at("k")
    state = second.state(expiring(DESCRIBED[kind]()))
    second.now_ms += 9
    snapshot = second.snapshot()
    third, fourth = Backend(range(MAX_PARALLELISM), snapshot), Backend(range(MAX_PARALLELISM), snapshot)
    third.at("k")
    fourth.at("k")
    fourth.now_ms = second.now_ms + 1

    assert content_of(state, kind) == content
    assert content_of(third.state(DESCRIBED[kind]()), kind) == content
    assert not content_of(fourth.state(expiring(DESCRIBED[kind]())), kind)


class Kept:
    """A value."""


@pytest.mark.parametrize("last", ["a record", "a checkpoint"])
def test_a_closed_back_end_keeps_no_value(last: str) -> None:
    """The states that functions hold, and so the task, may live until the collector of cycles runs."""
    running = Backend()
    state = running.value()
    value = Kept()
    state.update(value)
    reference = weakref.ref(value)
    del value
    if last == "a checkpoint":
        running.begin()()

    gc.disable()
    try:
        running.backend.close()
        running.backend.close()
        assert reference() is None
    finally:
        gc.enable()
    assert state.value() is None


def test_a_snapshot_that_is_copied_still_survives_the_close() -> None:
    """The last snapshot of a task that ends is copied while the state is closed."""
    running = Backend()
    running.value().update([1])
    finish = running.begin()

    running.backend.close()

    assert Backend(range(MAX_PARALLELISM), finish()).value().value() == [1]
