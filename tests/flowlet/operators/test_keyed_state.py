"""Functions with keyed state: their snapshots, their timers, and the services of the loop around them."""

from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.common import Time, Types
from flowlet.datastream import KeyedProcessFunction, MapFunction, RuntimeContext
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flowlet.errors import UserFunctionError
from flowlet.keys.exact_keys import key_group
from flowlet.records import Chunk
from flowlet.state.state_snapshots import KeyedStateSnapshot
from flowlet.testing import KeyedOneInputOperatorHarness, SubtaskPlace

KEYS = ["a", "b", 1, True, 1.0, None, ("x", 1), ("x", True)]


def by_key(record: Any) -> Any:
    return record[0]


class Collect(KeyedProcessFunction):
    """Changes its lists and dictionaries in place; a timer emits them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self._all = runtime_context.get_list_state(ListStateDescriptor("all"))
        self._last = runtime_context.get_map_state(MapStateDescriptor("last", Types.STRING()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        seen = self._seen.value()
        if seen is None:
            self._seen.update([value[1]])
        else:
            seen.append(value[1])
        self._all.add(value[1])
        self._last.put("last", value[1])
        ctx.timer_service().register_event_time_timer(100)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), list(self._seen.value()), list(self._all), dict(self._last.items())


def test_state_and_timers_go_on_from_a_snapshot_in_subtasks_of_another_number() -> None:
    """Records between snapshot and failure are not in the snapshot; each key goes to the subtask that owns its key
    group.
    """
    with KeyedOneInputOperatorHarness(Collect(), by_key) as before:
        for number in range(2):
            for key in KEYS:
                before.process_element((key, number), timestamp=number)
        snapshot = before.snapshot()
        for key in KEYS:
            before.process_element((key, "lost"), timestamp=3)

    results: list[Any] = []
    for subtask in range(2):
        place = SubtaskPlace(subtask=subtask, parallelism=2)
        after = KeyedOneInputOperatorHarness(Collect(), by_key, place=place)
        after.initialize_state(snapshot)
        with after:
            for key in KEYS:
                if key_group(key, place.max_parallelism) in place.key_groups:
                    after.process_element((key, 2), timestamp=4)
            after.process_watermark(100)
            results += after.values

    expected = [(key, [0, 1, 2], [0, 1, 2], {"last": 2}) for key in KEYS]
    assert sorted(map(repr, results)) == sorted(map(repr, expected))


class Failing(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None


def test_a_restart_with_another_type_fails_with_both_named() -> None:
    with KeyedOneInputOperatorHarness(Collect(), by_key) as before:
        before.process_element(("a", 1))
        snapshot = before.snapshot()

    after = KeyedOneInputOperatorHarness(Failing(), by_key)
    after.initialize_state(snapshot)
    with pytest.raises(UserFunctionError) as caught:
        after.open()
    after.close()

    assert "state 'seen' was written as a ValueState of type Pickled" in str(caught.value.__cause__)
    assert "declared as a ValueState of type Integer" in str(caught.value.__cause__)


class Selector:
    """Counts how often it is called."""

    num_calls = 0

    def get_key(self, value: Any) -> Any:
        Selector.num_calls += 1
        return value[0]


class WithoutState(MapFunction):
    def map(self, value: Any) -> Any:
        return value


class WithState(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("n"))

    def map(self, value: Any) -> Any:
        self._state.update((self._state.value() or 0) + 1)
        return self._state.value()


@pytest.mark.parametrize(("function", "num_calls"), [(WithoutState(), 0), (WithState(), 2)])
def test_the_key_of_a_record_is_taken_only_for_a_function_with_state(function: MapFunction, num_calls: int) -> None:
    Selector.num_calls = 0

    with KeyedOneInputOperatorHarness(function, Selector(), is_shipped=False) as harness:
        Selector.num_calls = 0
        harness.operator.process_chunk(Chunk([("a", 1), ("a", 2)]))

    assert Selector.num_calls == num_calls


class Forgetful(KeyedProcessFunction):
    """A function whose state is cleaned at records that do not use it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("n")
        ttl = StateTtlConfig.new_builder(Time.milliseconds(10)).cleanup_incrementally(2, True)
        descriptor.enable_time_to_live(ttl.build())
        self._state = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        if value[1] == "write":
            self._state.update(1)


@pytest.mark.parametrize(("num_records", "num_kept"), [(0, 1), (3, 0)])
def test_records_that_do_not_use_a_state_clean_it(num_records: int, num_kept: int) -> None:
    """The clean-up is by the clock of the task."""
    with KeyedOneInputOperatorHarness(Forgetful(), by_key) as harness:
        harness.process_element(("a", "write"))
        harness.process_element(("b", "nothing"))
        harness.set_processing_time(10)
        for _ in range(num_records):
            harness.process_element(("b", "nothing"))
        finish = harness.environment.keyed_state.snapshot()

        assert finish is not None
        snapshot = finish()
        assert isinstance(snapshot, KeyedStateSnapshot)
        assert sum(len(rows.keys) for group in snapshot.groups.values() for rows in group.values()) == num_kept
