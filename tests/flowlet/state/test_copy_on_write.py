"""Snapshots that are under way while the task goes on: what they give is the state as it was when they began."""

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Time, Types
from flowlet.datastream.state import StateDescriptor, StateTtlConfig, ValueStateDescriptor
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key
from flowlet.state import state_table as table_copy
from flowlet.state.declared_values import DeclaredValues
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_snapshots import KeyedStateSnapshot, StateDescription, StateKind
from flowlet.state.state_table import StateTable
from flowlet.timers.keyed_timer_service import KeyContext
from tests.flowlet.state.kinds import DESCRIBED, put
from tests.named_cases import case

MAX_PARALLELISM = 4
# Str and int are their own exact keys, the others are not.
KEYS = [f"k{number}" for number in range(5)] + [7, 7.0, (1, "x"), (True, "x")]
KINDS = ["value", "list", "map"]
Steps = list[tuple[str, int]]


class Box:
    """A value that can change in place; while it is copied other things happen."""

    on_copy: Callable[[], None] | None = None

    def __init__(self, content: list[Any]) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.content == other.content

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Box({self.content})"

    def __getstate__(self) -> dict[str, Any]:
        if Box.on_copy is not None:
            Box.on_copy()
        return {"content": list(self.content)}


class Task:
    """A back end with one state, and the steps of its task."""

    def __init__(self, kind: str, configure: Callable[[StateDescriptor], None] = lambda _: None) -> None:
        self.kind = kind
        self.descriptor = DESCRIBED[kind]()
        configure(self.descriptor)
        self.context = KeyContext()
        self.now_ms = 0
        self.backend = HeapKeyedStateBackend(self.context, lambda: self.now_ms, range(MAX_PARALLELISM), MAX_PARALLELISM)
        self.state = self.backend.state(self.descriptor, type(self.descriptor))
        self.num_steps = 0

    def do(self, what: str, place: int) -> None:
        """One step of the user's function, or of a clean-up."""
        self.num_steps += 1
        self.context.current_key = KEYS[place % len(KEYS)]
        match what:
            case "put":
                self.put([self.num_steps])
            case "box":
                self.put(Box([self.num_steps]))
            case "plain":
                self.put(self.num_steps)
            case "change":
                for value in self.values():
                    if isinstance(value, Box):
                        value.content.append(self.num_steps)
                    elif isinstance(value, list):
                        value.append(self.num_steps)
            case "remove" if self.kind == "map":
                self.state.remove(place % 2)
            case "remove" if self.kind == "list":
                self.state.update(list(self.state)[1:])
            case "read":
                self.values()
            case _:
                self.state.clear()
        self.now_ms += 1

    def put(self, value: Any) -> None:
        put(self.state, self.kind, value, self.num_steps % 2)

    def values(self) -> list[Any]:
        match self.kind:
            case "value":
                return [self.state.value()]
            case "list":
                return list(self.state)
            case _:
                return list(self.state.values())

    def content(self) -> dict[Any, Any]:
        """Return a copy of the content of each key."""
        content = {}
        for key in KEYS:
            self.context.current_key = key
            found = self.state.items() if self.kind == "map" else self.values()
            if found not in ([], [None]):
                content[exact_key(key)] = copy.deepcopy(found)
        return content


def restored(kind: str, snapshot: KeyedStateSnapshot) -> dict[Any, Any]:
    task = Task.__new__(Task)
    task.kind, task.context, task.num_steps, task.now_ms = kind, KeyContext(), 0, 0
    backend = HeapKeyedStateBackend(task.context, lambda: 0, range(MAX_PARALLELISM), MAX_PARALLELISM)
    backend.restore(snapshot)
    task.state = backend.state(DESCRIBED[kind](), type(DESCRIBED[kind]()))
    backend.check_invariants()
    return task.content()


def expiring(descriptor: StateDescriptor) -> None:
    """Entries live for 4 ms, and are removed step by step."""
    builder = StateTtlConfig.new_builder(Time.milliseconds(4)).disable_cleanup_in_background()
    descriptor.enable_time_to_live(builder.cleanup_incrementally(3, True).build())


def left_out_of_snapshots(descriptor: StateDescriptor) -> None:
    """Entries live for 4 ms, and are left out of later snapshots."""
    builder = StateTtlConfig.new_builder(Time.milliseconds(4)).disable_cleanup_in_background()
    descriptor.enable_time_to_live(builder.cleanup_full_snapshot().build())


def begin(task: Task) -> Callable[[], KeyedStateSnapshot]:
    finish = task.backend.snapshot()
    assert finish is not None
    return finish


@contextmanager
def short_steps(num_keys: int) -> Iterator[None]:
    """Let the pool look at so many keys at a time."""
    before = table_copy.STEP
    table_copy.STEP = num_keys  # type: ignore[misc]  # for the test it is not final
    try:
        yield
    finally:
        table_copy.STEP = before  # type: ignore[misc]  # as above


@contextmanager
def at_each_copy(do: Callable[[], None]) -> Iterator[None]:
    """Call ``do`` whenever a ``Box`` is copied, but not for copies that ``do`` makes."""

    def once() -> None:
        Box.on_copy = None
        do()
        Box.on_copy = once

    Box.on_copy = once
    try:
        yield
    finally:
        Box.on_copy = None


USES = ["put", "box", "plain", "change", "change", "remove", "clear", "read"]
STEPS = st.lists(
    st.tuples(st.sampled_from([*USES, "begin", "finish", "give up"]), st.integers(0, 8)),
    max_size=40,
)


def uses(steps: Steps) -> Steps:
    """Return the steps without those of snapshots."""
    return [(what, place) for what, place in steps if what in USES]


@given(before=STEPS, steps=STEPS, meanwhile=STEPS, step=st.sampled_from([1, 3, 100]))
def test_a_snapshot_is_the_state_as_it_was_when_it_began(
    before: Steps, steps: Steps, meanwhile: Steps, step: int
) -> None:
    """The task may do anything before the snapshots are finished, and in any copy; several are under way."""
    for kind in KINDS:
        with case(kind):
            check_snapshots(kind, before, steps, meanwhile, step)


def check_snapshots(kind: str, before: Steps, steps: Steps, meanwhile: Steps, step: int) -> None:
    task = Task(kind)
    pending: list[tuple[Callable[[], KeyedStateSnapshot], dict[Any, Any]]] = []
    for what, place in uses(before):
        task.do(what, place)
    during = iter(uses(meanwhile))

    def go_on() -> None:
        for what, place in during:
            task.do(what, place)
            return

    def finish(place: int) -> None:
        finish, expected = pending.pop(place % len(pending))
        with short_steps(step), at_each_copy(go_on):
            snapshot = finish()
        assert restored(kind, snapshot) == expected

    for what, place in [("begin", 0), *steps]:
        if what == "begin":
            expected = task.content()
            pending.append((begin(task), expected))
        elif what == "finish" and pending:
            finish(place)
        elif what == "give up" and pending:
            pending.pop(place % len(pending))
        elif what not in ("finish", "give up"):
            task.do(what, place)
        task.backend.check_invariants()
    while pending:
        finish(0)


@given(before=STEPS, steps=STEPS)
def test_clean_ups_change_no_snapshot_that_is_under_way(before: Steps, steps: Steps) -> None:
    """A second snapshot, which was finished at once, shows the state of that time."""
    for kind in KINDS:
        for cleans_up in (expiring, left_out_of_snapshots):
            with case(kind, cleans_up.__name__):
                clean_up_meanwhile(Task(kind, cleans_up), before, steps)


def clean_up_meanwhile(task: Task, before: Steps, steps: Steps) -> None:
    for what, place in uses(before):
        task.do(what, place)
    expected, finish = begin(task)(), begin(task)

    for what, place in steps:
        task.backend.clean()
        task.do(what if what in USES else "change", place)
    task.backend.check_invariants()

    assert finish() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_another_thread_finishes_while_the_task_changes_everything(kind: str) -> None:
    """Every key is changed in place, replaced or dropped all the time, under a tiny switch interval."""
    task = Task(kind)
    for place in range(len(KEYS)):
        task.do("box", place)
        task.do("put", place)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            expected, finish = task.content(), begin(task)
            taken: list[KeyedStateSnapshot] = []
            pool = threading.Thread(target=lambda finish=finish, taken=taken: taken.append(finish()), daemon=True)
            with short_steps(2):
                pool.start()
                place = 0
                while pool.is_alive():
                    place += 1
                    task.do(["change", "box", "put", "clear", "box", "change", "remove"][place % 7], place)
                pool.join(timeout=30)
            assert restored(kind, taken[0]) == expected
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["change", "clear", "put"])
def test_what_changes_in_the_middle_of_its_copy_is_in_the_snapshot_as_it_was(kind: str, what: str) -> None:
    task = Task(kind)
    for place in range(3):
        task.do("box", place)
    expected, finish = task.content(), begin(task)

    def change_all() -> None:
        for place in range(3):
            task.do(what, place)

    with at_each_copy(change_all):
        snapshot = finish()

    assert restored(kind, snapshot) == expected


def test_a_value_that_cannot_be_copied_fails_the_snapshot_and_not_the_function_that_reads_it() -> None:
    task = Task("value")
    task.context.current_key = "k"
    task.state.update([0, 1, 2])
    first = begin(task)
    task.state.update([threading.Lock()])
    second = begin(task)

    task.state.value().append(1)

    assert restored("value", first()) == {}
    with pytest.raises(FlowletError, match="state 's' holds a value that cannot be pickled"):
        second()


def test_a_list_that_a_clean_up_shortened_is_in_the_snapshot_as_it_was() -> None:
    """The rest of the list stays in use, and is changed in place."""
    task = Task("list", expiring)
    for _ in range(4):
        task.do("put", 0)
    expected, finish = begin(task)(), begin(task)
    task.backend.clean()
    task.backend.clean()

    assert [value.append(0) for value in task.values()] == [None] * 3
    assert finish() == expected


class Bound:
    """Stands in for a state: knows the dictionary that it uses."""

    def bind(self, get: Callable[[Any], Any], entries: Any) -> None:
        self.get, self.entries = get, entries


@pytest.mark.parametrize("ends", ["complete", "given up"])
@pytest.mark.parametrize("access", ["read", "write", "drop"])
def test_a_state_uses_its_dictionary_again_after_the_next_access(ends: str, access: str) -> None:
    """Snapshots cost nothing while there is none."""
    values = DeclaredValues("s", Types.INT(), StateKind.VALUE)
    table = StateTable("s", StateDescription(StateKind.VALUE, "Integer"), KeyContext(), values)
    state = Bound()
    table.attach(state.bind)
    table.entries["k"] = 1
    first, second = table.copy(), table.copy()

    first.rows(MAX_PARALLELISM)
    state.get("k")
    assert state.entries is not table.entries
    if ends == "complete":
        second.rows(MAX_PARALLELISM)
    else:
        del second
    match access:
        case "read":
            assert state.get("k") == 1
        case "write":
            state.entries["k"] = 2
        case _:
            table.drop("k")

    assert state.entries is table.entries
    left = {"read": [1], "write": [2], "drop": []}[access]
    assert [row for rows in table.copy().rows(MAX_PARALLELISM).values() for row in rows.values] == left


def restored_entries(snapshot: KeyedStateSnapshot) -> dict[str, tuple[Any, Any]]:
    """Key and value of each entry after a restart, by the exact key: 1, 1.0 and True are three."""
    context = KeyContext()
    backend = HeapKeyedStateBackend(context, lambda: 0, range(MAX_PARALLELISM), MAX_PARALLELISM)
    backend.restore(pickle.loads(pickle.dumps(snapshot, 5)))
    state = backend.state(ValueStateDescriptor("s"), ValueStateDescriptor)
    found = {}
    for rows in (of_state for of_group in snapshot.groups.values() for of_state in of_group.values()):
        for key in rows.keys:
            context.current_key = key
            found[repr(exact_key(key))] = (key, state.value())
    return found


ITEMS = st.one_of(
    st.integers(-(1 << 65), 1 << 65),
    st.sampled_from([True, False, None, "text", -0.0, float("nan"), 1, 1.0]),
    st.floats(width=64),
)


@given(pairs=st.lists(st.tuples(ITEMS, ITEMS), max_size=12), step=st.sampled_from([1, 2, 100]))
def test_packed_numbers_keep_their_values_and_types(pairs: list[tuple[Any, Any]], step: int) -> None:
    """Steps of ints or floats are packed, those with larger ints, bools or others are not; a group has both."""
    context = KeyContext()
    backend = HeapKeyedStateBackend(context, lambda: 0, range(MAX_PARALLELISM), MAX_PARALLELISM)
    state = backend.state(ValueStateDescriptor("s"), ValueStateDescriptor)
    expected = {}
    for key, value in pairs:
        context.current_key = key
        state.update(value)
        expected[repr(exact_key(key))] = (key, value)

    with short_steps(step):
        snapshot = backend.snapshot(1)
        found = {} if snapshot is None else restored_entries(snapshot())

    assert found.keys() == {each for each, (_, value) in expected.items() if value is not None}
    for each, (key, value) in found.items():
        assert (type(key), repr(key)) == (type(expected[each][0]), repr(expected[each][0]))
        assert (type(value), repr(value)) == (type(expected[each][1]), repr(expected[each][1]))
