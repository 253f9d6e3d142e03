"""The operator state of one subtask: lists and maps, their snapshots, and the refusals of a restore."""

import threading
from typing import Any

import pytest

from flowlet.common import Time, Types
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.state.state_backends import OperatorStateBackend
from flowlet.state.state_snapshots import OperatorStateRows, OperatorStateSnapshot, Redistribution

NUMBERS = ListStateDescriptor("numbers", Types.LONG())
RULES = MapStateDescriptor("rules")


def snapshot_of(backend: OperatorStateBackend) -> OperatorStateSnapshot:
    finish = backend.snapshot()
    assert finish is not None
    return finish()


def restored(snapshot: OperatorStateSnapshot, subtask: int = 0) -> OperatorStateBackend:
    backend = OperatorStateBackend(subtask)
    backend.restore(snapshot)
    return backend


def test_a_list_is_added_to_replaced_and_cleared() -> None:
    numbers = OperatorStateBackend().get_list_state(NUMBERS)

    numbers.add(1)
    numbers.add_all([2, 3])
    before = list(numbers)
    numbers.update([4])
    after = list(numbers.get())
    numbers.clear()

    assert (before, after, list(numbers)) == ([1, 2, 3], [4], [])


def test_a_map_tells_keys_apart_by_their_types() -> None:
    """1, 1.0 and True are three keys, as in PyFlink; each of them comes back as it was put."""
    rules = OperatorStateBackend().get_broadcast_state(RULES)

    rules.put_all({"a": "x", 1: "int"})
    rules[1.0] = "float"
    rules[True] = None
    del rules["a"]

    assert [(type(key), value) for key, value in rules.items()] == [(int, "int"), (float, "float"), (bool, None)]
    assert (rules[1], rules[1.0], rules[True], rules.get("a")) == ("int", "float", None, None)
    assert (True in rules, "a" in rules) == (True, False)
    assert (list(rules), list(rules.values())) == ([1, 1.0, True], ["int", "float", None])
    rules.clear()
    assert rules.is_empty()


def test_every_kind_comes_back_from_a_snapshot() -> None:
    """A state comes back with its kind, its type and its content."""
    before = OperatorStateBackend()
    before.get_list_state(NUMBERS).add_all([1, 2])
    before.get_union_list_state(ListStateDescriptor("all", Types.STRING())).add("x")
    before.get_broadcast_state(RULES).put_all({"a": [1], 1.0: "float"})

    snapshot = snapshot_of(before)
    after = restored(snapshot)

    assert snapshot.has_union
    assert list(after.get_list_state(NUMBERS)) == [1, 2]
    assert list(after.get_union_list_state(ListStateDescriptor("all", Types.STRING()))) == ["x"]
    assert after.get_broadcast_state(RULES).items() == [("a", [1]), (1.0, "float")]
    assert after.get_broadcast_state(RULES).contains(1) is False
    assert {name: rows.redistribution for name, rows in snapshot.states.items()} == {
        "numbers": Redistribution.SPLIT,
        "all": Redistribution.UNION,
        "rules": Redistribution.BROADCAST,
    }


def test_a_snapshot_does_not_change_with_what_the_user_changes_in_place() -> None:
    """The snapshot holds when it is finished later, and when a restored job changes the values that it got."""
    backend = OperatorStateBackend()
    inner: list[int] = [1]
    backend.get_list_state(ListStateDescriptor("lists")).add(inner)
    backend.get_broadcast_state(RULES).put("rule", inner)

    finish = backend.snapshot()
    inner.append(2)
    assert finish is not None
    snapshot = finish()
    after = restored(snapshot)
    after.get_broadcast_state(RULES).get("rule").append(3)
    next(iter(after.get_list_state(ListStateDescriptor("lists")))).append(3)

    assert snapshot.states["lists"].elements == ([1],)
    assert snapshot.states["rules"].elements == (("rule", [1]),)


def test_what_was_frozen_is_the_next_snapshot_and_no_other() -> None:
    """A source's function may go on between its snapshot and that of the operator."""
    backend = OperatorStateBackend()
    numbers = backend.get_list_state(NUMBERS)
    numbers.add(1)

    backend.freeze()
    numbers.add(2)

    assert snapshot_of(backend).states["numbers"].elements == (1,)
    assert snapshot_of(backend).states["numbers"].elements == (1, 2)


def test_there_is_no_snapshot_without_state() -> None:
    assert OperatorStateBackend().snapshot() is None


def test_state_that_is_not_declared_again_stays_in_snapshots() -> None:
    """Union list state is in the first subtask's snapshots alone: each subtask has all of it, so it would multiply."""
    rows = {kind.name: OperatorStateRows(kind, "T", ("x",)) for kind in Redistribution}
    snapshot = OperatorStateSnapshot(rows)

    kept = [set(snapshot_of(restored(snapshot, subtask)).states) for subtask in (0, 1)]

    assert kept == [{"SPLIT", "UNION", "BROADCAST"}, {"SPLIT", "BROADCAST"}]


@pytest.mark.parametrize(
    ("descriptor", "ask", "what"),
    [
        (
            ListStateDescriptor("numbers", Types.STRING()),
            "get_list_state",
            "list state of .*Long.*list state of .*String",
        ),
        (NUMBERS, "get_union_list_state", "list state of .*, and is declared as union list state of "),
        (
            MapStateDescriptor("numbers"),
            "get_broadcast_state",
            "list state of .*, and is declared as broadcast state of ",
        ),
    ],
    ids=["another type", "union", "broadcast"],
)
def test_a_restore_refuses_another_kind_or_type(descriptor: Any, ask: str, what: str) -> None:
    """The error names both."""
    before = OperatorStateBackend()
    before.get_list_state(NUMBERS).add(1)
    after = restored(snapshot_of(before))

    with pytest.raises(StateRestoreError, match=f"state 'numbers' was written as {what}"):
        getattr(after, ask)(descriptor)


def test_a_name_is_one_state() -> None:
    backend = OperatorStateBackend()

    assert backend.get_list_state(NUMBERS) is backend.get_list_state(ListStateDescriptor("numbers", Types.LONG()))
    with pytest.raises(
        FlowletError, match=r"'numbers' is declared twice: as list state of .* and as union list state of .*; use two"
    ):
        backend.get_union_list_state(NUMBERS)


def test_other_descriptors_are_refused() -> None:
    backend = OperatorStateBackend()
    expiring = ListStateDescriptor("expiring")
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())

    with pytest.raises(FlowletError, match="a list state needs a ListStateDescriptor, got ValueStateDescriptor"):
        backend.get_list_state(ValueStateDescriptor("value"))  # type: ignore[arg-type]  # that is refused
    with pytest.raises(FlowletError, match="list state 'expiring' cannot have a time to live: only keyed state can"):
        backend.get_list_state(expiring)


def test_a_value_that_cannot_be_pickled_is_named_by_its_state() -> None:
    backend = OperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("numbers")).add(threading.Lock())

    with pytest.raises(FlowletError, match="state 'numbers' holds a value that cannot be pickled"):
        backend.snapshot()
