"""Source: Flink ``WindowOperatorTest``, ``EvictingWindowOperatorTest``."""

from collections.abc import Iterable
from typing import Any

import pytest

from flowlet.common import Time
from flowlet.datastream import AggregateFunction, ProcessWindowFunction
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.records import Watermark
from flowlet.testing import StreamRecord
from flowlet.windows.window_operator import WindowOperator
from tests.flowlet.windows.opened_windows import SIDE, Listing, Opened, entries_of, sessions, summed, tumbling


class Counting(ProcessWindowFunction[Any, Any, Any, Any]):
    """Counts how often each window is evaluated, and clears that at its end."""

    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> list[Any]:
        state = context.window_state().get_state(ValueStateDescriptor("evaluations"))
        state.update((state.value() or 0) + 1)
        return [(key, state.value(), len(list(elements)))]

    def clear(self, context: ProcessWindowFunction.Context[Any]) -> None:
        context.window_state().get_state(ValueStateDescriptor("evaluations")).clear()


class Largest(AggregateFunction):
    """An aggregate whose accumulator is None until there is a number above 0, and again once there is one above 100."""

    def create_accumulator(self) -> None:
        pass

    def add(self, value: Any, accumulator: Any) -> Any:
        found = max(value[1], accumulator or 0)
        return found if 0 < found <= 100 else None

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return max(acc_a, acc_b)


class Failing(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> list[Any]:
        raise ValueError("broken")


def test_a_window_is_evaluated_before_its_watermark_is_passed_on(opened: Opened) -> None:
    """The result has the last timestamp of the window."""
    harness = opened(tumbling(combine=summed))

    harness.process_chunk([("a", 1), ("a", 2), ("b", 5)], [1, 9, 3])
    harness.process_watermark(8)
    harness.process_watermark(9)

    assert harness.output == [Watermark(8), StreamRecord(("a", 3), 9), StreamRecord(("b", 5), 9), Watermark(9)]


def test_the_function_sees_the_window_the_watermark_and_all_records(opened: Opened) -> None:
    harness = opened(tumbling(function=Listing()))

    harness.process_chunk([("a", 1), ("a", 2)], [1, 9])
    harness.process_watermark(12)

    assert harness.values == [("a", TimeWindow(0, 10), [1, 2], 12)]
    assert [record.value for record in harness.side_output(SIDE)] == ["a"]


def test_a_late_record_within_the_allowed_lateness_evaluates_its_window_again(opened: Opened) -> None:
    """The result has the late record's own timestamp, as in PyFlink; a record that comes later is late for good."""
    harness = opened(tumbling(combine=summed, allowed_lateness_ms=5, late_tag_id="late"))

    harness.process_chunk([("a", 1)], [4])
    harness.process_watermark(10)
    harness.process_chunk([("a", 2)], [3])
    harness.process_watermark(14)
    harness.process_chunk([("a", 4)], [9])

    assert harness.records == [StreamRecord(("a", 1), 9), StreamRecord(("a", 3), 3)]
    assert harness.side_output("late") == [StreamRecord(("a", 4), 9)]
    assert entries_of(harness, "window-contents") == []


def test_late_records_without_a_side_output_are_counted(opened: Opened) -> None:
    harness = opened(tumbling(combine=summed))

    harness.process_watermark(20)
    harness.process_chunk([("a", 1), ("a", 2), ("a", 3)], [4, 25, 5])

    assert harness.environment.ctx.counters.num_late_records_dropped == 2


class OnlyEven(TumblingEventTimeWindows):
    """A user's assigner, which has no window for some records."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return super().assign_windows(element, timestamp, context) if timestamp % 2 == 0 else []


def test_records_without_a_window_are_counted_apart_from_late_ones(opened: Opened) -> None:
    harness = opened(WindowSpec(OnlyEven(10, 0), EventTimeTrigger(), combine=summed))

    harness.process_watermark(20)
    harness.process_chunk([("a", 1), ("a", 2), ("a", 3), ("a", 4)], [4, 25, 26, 5])

    assert harness.environment.ctx.counters.num_late_records_dropped == 2
    assert harness.environment.ctx.counters.num_unassigned_records_dropped == 1


def test_nothing_is_left_of_a_window_that_is_over(opened: Opened) -> None:
    """No state and no timer is left, whether it was written for a snapshot or never."""
    harness = opened(tumbling(function=Counting()))

    harness.process_chunk([("a", 1)], [4])
    harness.snapshot()
    harness.process_chunk([("a", 2), ("b", 3)], [5, 6])
    harness.process_watermark(30)

    assert harness.values == [("a", 1, 2), ("b", 1, 1)]
    assert entries_of(harness, "window-contents") == entries_of(harness, "evaluations") == []
    assert harness.num_event_time_timers == 0


def test_per_window_state_lives_until_the_lateness_is_over(opened: Opened) -> None:
    harness = opened(tumbling(function=Counting(), allowed_lateness_ms=100))

    harness.process_chunk([("a", 1)], [4])
    harness.process_watermark(10)
    harness.process_chunk([("a", 2), ("a", 3)], [5, 15])
    harness.process_watermark(109)

    assert harness.values == [("a", 1, 1), ("a", 2, 2), ("a", 1, 1)]
    assert [each.namespace for each in entries_of(harness, "evaluations")] == [TimeWindow(10, 20)]


def test_sessions_that_meet_become_one(opened: Opened) -> None:
    harness = opened(sessions(function=Listing()))

    harness.process_chunk([("a", 1), ("a", 2), ("a", 3), ("b", 4)], [0, 9, 5, 100])
    harness.process_watermark(50)

    assert harness.values == [("a", TimeWindow(0, 14), [1, 2, 3], 50)]
    assert harness.num_event_time_timers == 1
    assert entries_of(harness, "merging-window-set") == ["b"]


def test_a_session_that_grew_has_one_end(opened: Opened) -> None:
    """The timer of a former end is not left, even if the session's state stays for a while."""
    harness = opened(sessions(function=Listing(), allowed_lateness_ms=100))

    harness.process_chunk([("a", 1), ("a", 2)], [0, 3])

    assert [timer.timestamp for timer in harness.event_time_timers] == [7, 107]


def test_sessions_have_no_state_per_window(opened: Opened) -> None:
    harness = opened(sessions(function=Counting()))
    harness.process_chunk([("a", 1)], [0])

    with pytest.raises(UserFunctionError) as raised:
        harness.process_watermark(50)

    assert isinstance(raised.value.__cause__, FlowletError)
    assert "use global_state()" in str(raised.value.__cause__)


def test_a_full_count_window_keeps_nothing(opened: Opened) -> None:
    """Flink keeps its records for ever."""
    harness = opened(WindowSpec(CountTumblingWindowAssigner.of(2), CountTrigger.of(2), combine=summed))

    harness.process_chunk([("a", 1), ("a", 2), ("a", 4)], [0, 0, 0])

    assert harness.values == [("a", 3)]
    assert [each.namespace.id for each in entries_of(harness, "window-contents")] == [1]


def test_windows_of_the_clock_need_no_timestamps(opened: Opened) -> None:
    assigner = TumblingProcessingTimeWindows.of(Time.milliseconds(10))
    harness = opened(WindowSpec(assigner, assigner.get_default_trigger(None), combine=summed))

    harness.process_chunk([("a", 1), ("a", 2)])
    harness.set_processing_time(11)

    assert harness.records == [StreamRecord(("a", 3), 9)]


class OneHour(WindowAssigner[Any, TimeWindow]):
    """A user's windows of event time, which do not look at the timestamp."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(0, 3_600_000)]

    def get_default_trigger(self, env: Any) -> EventTimeTrigger[Any]:
        return EventTimeTrigger()

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


class GapOfRecord(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        gap: int = element[1]
        return gap


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(Time.milliseconds(10)),
        SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5)),
        EventTimeSessionWindows.with_gap(Time.milliseconds(10)),
        EventTimeSessionWindows.with_dynamic_gap(GapOfRecord()),
        OneHour(),
    ],
    ids=lambda assigner: type(assigner).__name__,
)
@pytest.mark.parametrize("timestamps", [None, [-(2**63)]], ids=["none", "the lowest"])
def test_windows_of_event_time_need_timestamps(opened: Opened, assigner: Any, timestamps: list[int] | None) -> None:
    """The error says which call is missing; no window at the beginning of all time takes the records."""
    harness = opened(WindowSpec(assigner, EventTimeTrigger(), combine=summed))

    with pytest.raises(UserFunctionError, match="'a', 1") as raised:
        harness.process_chunk([("a", 1)], timestamps)

    assert "assign_timestamps_and_watermarks" in str(raised.value.__cause__)
    assert entries_of(harness, "window-contents") == []


@pytest.mark.parametrize(
    ("assigner", "results"),
    [
        (TumblingEventTimeWindows.of(Time.milliseconds(10)), [(7, 19)]),
        (SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)), [(7, 19), (7, 29)]),
    ],
    ids=["tumbling", "sliding"],
)
def test_an_accumulator_may_be_none(opened: Opened, assigner: Any, results: list[Any]) -> None:
    """The next record is added to a new one; a window that ends with None has no result."""
    harness = opened(WindowSpec(assigner, EventTimeTrigger(), combine=Largest()))

    harness.process_chunk([("a", 5), ("a", 101), ("a", 3), ("a", 7), ("b", 0)], [11, 12, 13, 14, 15])
    harness.process_watermark(50)

    assert harness.records == [StreamRecord(*result) for result in results]


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(Time.milliseconds(10)),
        SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5)),
    ],
    ids=["tumbling", "sliding"],
)
def test_an_error_of_the_combining_function_names_its_record(opened: Opened, assigner: Any) -> None:
    harness = opened(WindowSpec(assigner, EventTimeTrigger(), combine=summed))

    with pytest.raises(UserFunctionError, match=r"\('a', None\)"):
        harness.process_chunk([("a", 1), ("a", None), ("a", 2)], [1, 2, 3])


def test_an_error_of_the_window_function_names_key_and_window(opened: Opened) -> None:
    harness = opened(tumbling(function=Failing()))
    harness.process_chunk([("a", 1)], [1])

    with pytest.raises(UserFunctionError) as raised:
        harness.process_watermark(50)

    assert raised.value.__cause__.__notes__ == [("raised for TimeWindow(start=0, end=10) of the key 'a'")]  # type: ignore[union-attr]  # it has one


def test_records_of_a_window_that_may_get_late_ones_are_not_counted_for_ever(opened: Opened) -> None:
    harness = opened(tumbling(function=Listing(), allowed_lateness_ms=5))
    harness.process_chunk([("a", 1), ("a", 2), ("b", 3)], [1, 2, 11])

    harness.process_watermark(9)

    assert isinstance(harness.operator, WindowOperator)
    harness.operator.check_invariants()


def test_a_purging_trigger_leaves_nothing_for_the_next_evaluation(opened: Opened) -> None:
    harness = opened(tumbling(trigger=PurgingTrigger.of(CountTrigger.of(2)), function=Listing()))

    harness.process_chunk([("a", each) for each in range(5)], [1] * 5)

    assert [value[2] for value in harness.values] == [[0, 1], [2, 3]]


def test_a_state_of_a_window_and_one_of_the_key_need_two_names(opened: Opened) -> None:
    class Both(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> list[Any]:
            context.window_state().get_state(ValueStateDescriptor("x"))
            context.global_state().get_state(ValueStateDescriptor("x"))
            return []

    harness = opened(tumbling(function=Both()))
    harness.process_chunk([("a", 1)], [1])

    with pytest.raises(UserFunctionError) as raised:
        harness.process_watermark(50)

    assert "use two names" in str(raised.value.__cause__)


def test_snapshots_hold_what_is_kept_outside_of_the_state(opened: Opened) -> None:
    before = opened(tumbling(combine=summed))
    before.process_chunk([("a", 1), ("b", 2)], [1, 2])

    after = opened(tumbling(combine=summed), before)
    after.process_chunk([("a", 10)], [3])
    after.process_watermark(9)

    assert sorted(after.values) == [("a", 11), ("b", 2)]


def test_a_window_that_is_kept_for_late_records_ends_again_after_a_restart(opened: Opened) -> None:
    """The watermark is lower then, so records that were late are not."""
    before = opened(tumbling(combine=summed, allowed_lateness_ms=50))
    before.process_chunk([("a", 1)], [4])
    before.process_watermark(30)
    assert before.records == [StreamRecord(("a", 1), 9)]

    after = opened(tumbling(combine=summed, allowed_lateness_ms=50), before)
    after.process_chunk([("a", 2)], [5])
    after.process_watermark(9)

    assert after.records == [StreamRecord(("a", 3), 9)]


def test_a_timer_of_a_trigger_that_the_program_no_longer_has_is_no_end_of_a_window(opened: Opened) -> None:
    """The timer is restored with the state; the trigger of today does nothing at it."""
    before = opened(tumbling(100, combine=summed, trigger=ContinuousEventTimeTrigger.of(Time.milliseconds(10))))
    before.process_chunk([("a", 1)], [4])

    after = opened(tumbling(100, combine=summed), before)
    after.process_watermark(50)
    assert after.records == []
    after.process_chunk([("a", 2)], [60])
    after.process_watermark(99)

    assert after.records == [StreamRecord(("a", 3), 99)]


def test_a_timer_of_a_lateness_that_the_program_no_longer_has_is_no_end_of_a_window(opened: Opened) -> None:
    """The window ended before; it does not give its result again."""
    before = opened(tumbling(combine=summed, allowed_lateness_ms=50))
    before.process_chunk([("a", 1)], [4])
    before.process_watermark(30)
    assert before.records == [StreamRecord(("a", 1), 9)]

    after = opened(tumbling(combine=summed), before)
    after.process_watermark(100)

    assert after.records == []
