"""State is divided among another number of subtasks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.operator_snapshots import OperatorSnapshots
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.checkpoint.task.state_assignment import assigned_states, is_by_key
from flowlet.columns import columns_of
from flowlet.connectors.files.reader import SplitPosition, TextPosition, text_lines
from flowlet.datastream.user_functions.process_functions import AsyncFunction
from flowlet.errors import StateRestoreError
from flowlet.keys.exact_keys import key_group, operator_index
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk, Watermark
from flowlet.sinks.function_sink import DiscardSink
from flowlet.splits.split_kinds import FileSet, FileSplit
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_snapshots import (
    ColumnRows,
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    StateDescription,
    StateKind,
    StateRows,
    StateShare,
)
from flowlet.state.state_table import AggregationSnapshot, StateForm
from flowlet.timers.keyed_timer_service import KeyContext

MAX_PARALLELISM = 12
SUM = KeyedSumOperator(lambda record: record[0], 1, name="sum")
WIDTHS = st.integers(1, MAX_PARALLELISM)
KEYS = st.sets(st.integers(-1000, 1000) | st.text(max_size=3), max_size=30)
VERTEX = ["a"]

States = Sequence[Mapping[str, OperatorState]]


def rescaled(states: States, width: int, operator: StreamOperator = SUM) -> list[dict[str, OperatorState]]:
    """Return the states with which ``width`` subtasks begin, with their keyed state as in their next snapshots."""
    shares = [StateShare(each, width, MAX_PARALLELISM, len(states)) for each in range(width)]
    found = [assigned_states({"a": operator}, VERTEX, dict(enumerate(states)), share) for share in shares]
    return [{name: joined(state) for name, state in each.items()} for each in found]


def joined(state: OperatorState) -> OperatorState:
    """Return the state with its former subtasks' keyed snapshots joined into one, as the back end joins them."""
    if not isinstance(state.keyed, tuple):
        return state
    groups = {group: rows for part in state.keyed for group, rows in part.groups.items()}
    return replace(state, keyed=replace(state.keyed[0], groups=groups))


def owner(key: Any, width: int) -> int:
    return operator_index(key_group(key, MAX_PARALLELISM), MAX_PARALLELISM, width)


def state_of(keys: set[Any], elements: Sequence[int] = ()) -> OperatorState:
    """One of each kind, for these keys."""
    in_order = sorted(keys, key=repr)
    groups: dict[int, list[Any]] = {}
    for key in in_order:
        groups.setdefault(key_group(key, MAX_PARALLELISM), []).append(key)
    rows = {
        group: {"count": StateRows(tuple(found), tuple([(each, 1) for each in found]))}
        for group, found in groups.items()
    }
    keyed = KeyedStateSnapshot({"count": StateDescription(StateKind.VALUE, "tuple")}, MAX_PARALLELISM, rows)
    split = OperatorStateRows(Redistribution.SPLIT, "int", tuple(elements))
    return OperatorState(
        None,
        {group: {"timers": tuple(found)} for group, found in groups.items()},
        SUM.state_version,
        keyed,
        OperatorStateSnapshot({"split": split}) if elements else None,
    )


def content(state: OperatorState | None) -> tuple[Counter[Any], Counter[Any]]:
    """Return the keys of keyed state and of timers."""
    if state is None:
        return Counter(), Counter()
    keyed_state = joined(state).keyed
    assert keyed_state is None or isinstance(keyed_state, KeyedStateSnapshot)
    groups = {} if keyed_state is None else keyed_state.groups
    keyed = Counter(
        (key, value)
        for rows in groups.values()
        for key, value in zip(rows["count"].keys, rows["count"].values, strict=True)
    )
    timers: Counter[Any] = Counter()
    for services in state.timers.values():
        found = services["timers"]
        assert isinstance(found, tuple)
        timers.update(found)
    return keyed, timers


def first_run(keys: set[Any], width: int) -> States:
    return [{"a": state_of({key for key in keys if owner(key, width) == subtask})} for subtask in range(width)]


@given(keys=KEYS, former=WIDTHS, width=WIDTHS)
def test_each_key_is_in_its_subtask_and_in_no_other(keys: set[Any], former: int, width: int) -> None:
    """The rule holds for keyed state and for timers."""
    found = [content(each.get("a")) for each in rescaled(first_run(keys, former), width)]

    for subtask, (keyed, timers) in enumerate(found):
        own = {key for key in keys if owner(key, width) == subtask}
        assert keyed == Counter((key, (key, 1)) for key in own)
        assert timers == Counter(own)


@given(keys=KEYS, former=WIDTHS, between=WIDTHS, width=WIDTHS)
def test_two_steps_give_the_same_as_one(keys: set[Any], former: int, between: int, width: int) -> None:
    """P -> q -> r is p -> r."""
    states = first_run(keys, former)

    two = rescaled(rescaled(states, between), width)

    assert [content(each.get("a")) for each in two] == [content(each.get("a")) for each in rescaled(states, width)]


@given(keys=KEYS, former=WIDTHS, width=WIDTHS)
def test_parts_without_key_groups_of_the_subtask_are_not_needed(keys: set[Any], former: int, width: int) -> None:
    """The JobManager leaves parts out that have none of a subtask's key groups, if all state is by key."""
    states = first_run(keys, former)

    for subtask in range(width):
        needed = {
            former_subtask: each
            for former_subtask, each in enumerate(states)
            if any(owner(key, width) == subtask for key in keys)
        }
        found = assigned_states({"a": SUM}, VERTEX, needed, StateShare(subtask, width, MAX_PARALLELISM, former))
        assert content(found.get("a")) == content(rescaled(states, width)[subtask].get("a"))


def split_of(states: Mapping[str, OperatorState]) -> tuple[Any, ...]:
    state = states.get("a")
    return () if state is None or state.by_subtask is None else state.by_subtask.states["split"].elements


@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=8), width=WIDTHS)
def test_split_state_is_dealt_out_round_robin(lengths: list[int], width: int) -> None:
    """Subtasks get every element exactly once, and about as many each."""
    states = [
        {"a": state_of(set(), [10 * subtask + each for each in range(length)])}
        for subtask, length in enumerate(lengths)
    ]

    found = [split_of(each) for each in rescaled(states, width)]

    assert sorted(element for each in found for element in each) == sorted(
        element for each in states for element in split_of(each)
    )
    if width == len(lengths):
        assert list(map(len, found)) == lengths
    else:
        assert max(map(len, found)) - min(map(len, found)) <= 1


def rows_of(kind: Redistribution, *elements: int) -> dict[str, OperatorState]:
    return {"a": OperatorState(by_subtask=OperatorStateSnapshot({"name": OperatorStateRows(kind, "int", elements)}))}


def elements_of(states: States) -> list[tuple[Any, ...]]:
    return [state["a"].by_subtask.states["name"].elements if state["a"].by_subtask else () for state in states]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_union_state_goes_to_all(width: int) -> None:
    """Each subtask gets the union state of all former subtasks, with an unchanged parallelism, too."""
    states = [rows_of(Redistribution.UNION, 1, 2), rows_of(Redistribution.UNION, 3)]

    assert elements_of(rescaled(states, width, DiscardSink())) == [(1, 2, 3)] * width


def test_broadcast_state_is_that_of_one_former_subtask() -> None:
    """Subtask i gets that of former subtask i modulo their number, or of another one if that had finished."""
    states = [rows_of(Redistribution.BROADCAST, 1), rows_of(Redistribution.BROADCAST, 2)]

    assert elements_of(rescaled(states, 4, DiscardSink())) == [(1,), (2,), (1,), (2,)]
    assert elements_of(rescaled([{}, states[1]], 3, DiscardSink())) == [(2,), (2,), (2,)]


def test_what_an_earlier_flowlet_wrote_goes_to_the_back_end_which_takes_its_key_groups() -> None:
    """Columns stay columns."""
    table = columns_of([(key, key * 10) for key in range(5)])
    assert table is not None
    first = AggregationSnapshot(StateForm.COLUMNS, tuple(range(5)), (), table)
    second = AggregationSnapshot(StateForm.SUMS, ("x",), (7,))

    assert SUM.redistribute([first, None, second], StateShare(0, 1, MAX_PARALLELISM, 3)) == (first, second)
    rows: dict[Any, Any] = {
        key: (value, type(each["_op_state"].values))
        for snapshot in (first, second)
        for group, each in snapshot.keyed(MAX_PARALLELISM).groups.items()
        for key, value in zip(each["_op_state"].keys, each["_op_state"].values, strict=True)
        if key_group(key, MAX_PARALLELISM) == group
    }
    expected: dict[Any, Any] = {key: ((key, key * 10), ColumnRows) for key in range(5)}
    assert rows == {**expected, "x": (("x", 7), list)}


@given(num=st.integers(0, 40), widths=st.lists(WIDTHS, min_size=2, max_size=4), read=st.integers(0, 5))
def test_what_is_left_of_a_collection_is_read_once(num: int, widths: list[int], read: int) -> None:
    """The rest is read once over several changes, with subtasks that had read everything."""
    operator = SourceOperator(CollectionSource(range(num)))
    readers: list[Any] = [operator.source.create_reader(each, widths[0]) for each in range(widths[0])]
    positions: list[Any] = [reader.snapshot_position() for reader in readers]
    positions[read % len(positions)] = None
    expected = [number for runs in positions for start, end in runs or () for number in range(start, end)]

    for before, width in pairwise(widths):
        positions = [
            operator.redistribute(positions, StateShare(each, width, MAX_PARALLELISM, before)) for each in range(width)
        ]

    found: list[int] = []
    for subtask, position in enumerate(positions):
        reader: Any = operator.source.create_reader(subtask, len(positions))
        reader.restore_position(position)
        while (chunk := reader.poll_chunk()) is not None:
            found += chunk.values
    assert found == expected


@given(before=st.lists(st.integers(0, 4), min_size=1, max_size=5), width=WIDTHS)
def test_splits_are_dealt_out_with_their_positions(before: list[int], width: int) -> None:
    """The first split of each former reader was begun."""
    source = text_lines(FileSet(("x",)))
    begun: dict[str, SplitPosition | None] = {}
    positions: list[TextPosition | None] = []
    for reader, num in enumerate(before):
        splits = tuple(FileSplit(f"{reader}-{each}", 0, 9) for each in range(num))
        position = SplitPosition(reader, 1) if splits else None
        begun |= {splits[0].split_id: position} if splits else {}
        positions.append(TextPosition(splits, position))

    found = [
        source.redistribute_positions(positions, StateShare(each, width, MAX_PARALLELISM, len(before)))
        for each in range(width)
    ]
    again = source.redistribute_positions(found, StateShare(0, 1, MAX_PARALLELISM, width))

    everything = Counter(split for each in positions if each is not None for split in each.splits)
    for result in [found, [again]]:
        assert Counter(split for each in result for split in each.splits) == everything
        kept: dict[str, SplitPosition | None] = {
            each.splits[0].split_id: each.position for each in result if each.position is not None
        }
        for each in result:
            kept |= dict(each.later)
        assert kept == begun


class Silent(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


def test_records_in_flight_of_a_subtask_stay_together() -> None:
    """The watermarks between the records are left out."""
    operator = AsyncWaitOperator(Silent(), timeout_ms=1, capacity=9, is_ordered=True)
    chunks = [Chunk([number]) for number in range(4)]
    states = [[chunks[0], Watermark(7), chunks[1]], None, [chunks[2]], [chunks[3]]]

    found = [operator.redistribute(states, StateShare(each, 2, MAX_PARALLELISM, 4)) for each in range(2)]

    assert found == [[*chunks[:2], chunks[2]], [chunks[3]]]


class Plain(Source):
    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        raise NotImplementedError


@pytest.mark.parametrize("finished", [frozenset[int](), frozenset({1})])
def test_a_source_that_cannot_divide_its_positions_says_so(finished: frozenset[int]) -> None:
    """Subtasks that had ended must not begin anew."""
    operator = SourceOperator(Plain(), name="plain")

    with pytest.raises(StateRestoreError, match=r"'plain' .* set its parallelism to 2"):
        operator.redistribute([3, None], StateShare(0, 3, MAX_PARALLELISM, 2, finished))


def test_state_of_another_version_or_number_of_key_groups_is_refused() -> None:
    """The error has the operator's name."""
    state = state_of({1, 2})
    assert isinstance(state.keyed, KeyedStateSnapshot)

    with pytest.raises(StateRestoreError, match="'sum' has version 99, this flowlet reads version 1"):
        rescaled([{"a": replace(state, own=AggregationSnapshot(StateForm.SUMS, ("x",), (7,)), version=99)}], 2)
    with pytest.raises(
        StateRestoreError,
        match="keyed state of operator 'sum' has 64 key groups, the operator has 12: set its max parallelism to 64",
    ):
        rescaled([{"a": replace(state, keyed=replace(state.keyed, max_parallelism=64))}], 2)
    other = StateDescription(StateKind.LIST, "tuple")
    for change, message in (
        ({"version": 99}, "'sum': keyed state has version 99, this flowlet reads version 2"),
        ({"descriptions": {"count": other}}, "'count' was written as a ValueState .* and as a ListState .* by another"),
    ):
        states = {0: {"a": state}, 1: {"a": replace(state, keyed=replace(state.keyed, **change))}}
        found = assigned_states({"a": SUM}, VERTEX, states, StateShare(0, 1, MAX_PARALLELISM, 2))
        ctx = SimpleNamespace(
            operator_id=b"\x0a",
            timers=None,
            operator_state=None,
            keyed_state=HeapKeyedStateBackend(KeyContext(), lambda: 0, range(MAX_PARALLELISM), MAX_PARALLELISM),
        )
        operator: Any = SimpleNamespace(name="sum", state_version=1, ctx=ctx)
        with pytest.raises(StateRestoreError, match=message):
            OperatorSnapshots([operator], lambda: False).restore({"0a": found["a"]})


def test_an_operator_is_found_in_the_vertex_that_it_had() -> None:
    """Operators of several vertices may be chained now; an operator without former state begins anew."""
    operators = {"a": SUM, "b": SUM, "new": SUM}
    states = {0: {"b": state_of({2})}, 1: {"c": state_of({3})}}

    found = assigned_states(operators, "a", {0: {"a": state_of({1})}}, StateShare(0, 1, MAX_PARALLELISM, 1))
    found |= assigned_states(operators, "bc", states, StateShare(0, 1, MAX_PARALLELISM, 2))

    assert found.keys() == {"a", "b"}
    assert content(found["b"])[1] == Counter([2])


def test_state_that_goes_by_key() -> None:
    """Keyed state, timers and running aggregations go by key; nothing else does."""
    assert is_by_key({"a": state_of({1})})
    assert not is_by_key({"a": state_of({1}, [7])})
    assert not is_by_key({"a": OperatorState(7)})
