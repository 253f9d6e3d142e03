"""Promises of ``TimestampsAndWatermarksOperator``.

Source: Flink ``TimestampsAndWatermarksOperatorTest``.
"""

from typing import Any

import numpy as np
import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.columns import columns_of
from flowlet.common import Duration, WatermarkStrategy
from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.errors import UserFunctionError
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.process_operator import MapOperator
from flowlet.records import ACTIVE, IDLE, MAX_WATERMARK, MIN_TIMESTAMP, Chunk, Watermark
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.chains import ChainHarness
from tests.flowlet.operators.harness import RecordingOutput, set_up

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


class Driver:
    """The operator with a clock that the test moves."""

    def __init__(self, strategy: WatermarkStrategy, *, interval_ms: int = 50, emits_watermarks: bool = True) -> None:
        self.clock = TestProcessingTimeService()
        self.output = RecordingOutput()
        self.operator = TimestampsAndWatermarksOperator(
            strategy, auto_watermark_interval_ms=interval_ms, emits_watermarks=emits_watermarks
        )
        set_up(self.operator, OperatorContext("task", 3, 4, 128, self.operator.name, clock=self.clock), self.output)
        self.operator.open()

    def process(self, *values: Any, timestamps: list[int] | None = None) -> None:
        self.operator.process_chunk(Chunk(list(values), timestamps))

    def out(self) -> list[Any]:
        """Return the output since the last call: records as (value, timestamp), watermarks as numbers."""
        elements, self.output.elements = self.output.elements, []
        found: list[Any] = []
        for element in elements:
            if isinstance(element, Chunk):
                found += [
                    (value, None if element.timestamps is None else element.timestamps[i])
                    for i, value in enumerate(element.values)
                ]
            else:
                found.append(element.timestamp if isinstance(element, Watermark) else element)
        return found


class Doubled(TimestampAssigner):
    """Assigns twice the value; fails for texts."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, int]] = []

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        self.asked.append((value, record_timestamp))
        return 2 * value  # type: ignore[no-any-return]  # the tests feed what they need


class Identity(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value  # type: ignore[no-any-return]  # the tests feed what they need


class Punctuated(WatermarkGenerator):
    """A watermark for each record that is even; fails at 13, and idle at 0."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event == 13:
            raise ValueError("unlucky")
        if event == 0:
            output.mark_idle()
        elif event % 2 == 0:
            output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class Broken(Punctuated):
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        raise ValueError("periodically")


def test_watermarks_come_periodically_and_only_if_they_rise() -> None:
    driver = Driver(MONOTONOUS)

    driver.process("a", "b", timestamps=[4, 7])
    assert driver.out() == [("a", 4), ("b", 7)]
    driver.clock.advance(49)
    assert driver.out() == []
    driver.clock.advance(1)
    assert driver.out() == [6]
    driver.clock.advance(50)
    assert driver.out() == []
    driver.process("c", timestamps=[5])
    driver.clock.advance(50)
    assert driver.out() == [("c", 5)]


def test_the_assigner_decides_and_is_told_what_the_source_said() -> None:
    assigner = Doubled()
    driver = Driver(MONOTONOUS.with_timestamp_assigner(assigner))

    driver.process(3, 4, timestamps=[100, 200])
    driver.process(5)
    driver.clock.advance(50)

    assert assigner.asked == [(3, 100), (4, 200), (5, MIN_TIMESTAMP)]
    assert driver.out() == [(3, 6), (4, 8), (5, 10), 9]


def test_records_without_timestamps_stay_without() -> None:
    driver = Driver(MONOTONOUS)

    driver.process("a")
    driver.clock.advance(200)

    assert driver.out() == [("a", None)]


def test_the_inputs_own_watermarks_and_statuses_are_dropped_but_for_the_last() -> None:
    driver = Driver(MONOTONOUS)
    driver.process("a", timestamps=[7])
    driver.out()

    driver.operator.process_watermark(Watermark(1000))
    driver.operator.process_watermark_status(IDLE)
    assert driver.out() == []
    driver.operator.process_watermark(MAX_WATERMARK)
    driver.operator.process_watermark(MAX_WATERMARK)
    assert driver.out() == [MAX_WATERMARK.timestamp]


def test_the_end_of_the_input_emits_what_the_generator_knows() -> None:
    driver = Driver(MONOTONOUS)
    driver.process("a", timestamps=[7])

    driver.operator.finish()

    assert driver.out() == [("a", 7), 6]


def test_a_generator_may_emit_inside_a_chunk() -> None:
    """The record that caused the watermark goes out before it, the next ones after it."""
    driver = Driver(WatermarkStrategy.for_generator(Punctuated))

    driver.process(1, 2, 3, 4, timestamps=[10, 20, 30, 40])
    driver.process(6, 7, timestamps=[15, 16])

    assert driver.out() == [(1, 10), (2, 20), 20, (3, 30), (4, 40), 40, (6, 15), (7, 16)]


def test_a_generator_may_say_that_the_stream_is_idle() -> None:
    """The status is sent once; the next watermark makes the stream active again."""
    driver = Driver(WatermarkStrategy.for_generator(Punctuated))

    driver.process(0, 0, 1, 2, timestamps=[1, 1, 5, 6])

    assert driver.out() == [(0, 1), IDLE, (0, 1), (1, 5), (2, 6), ACTIVE, 6]


def test_a_stream_without_records_becomes_idle_and_active_with_the_next_watermark() -> None:
    driver = Driver(MONOTONOUS.with_idleness(Duration.of_millis(100)))
    driver.process("a", timestamps=[7])
    driver.clock.advance(50)
    assert driver.out() == [("a", 7), 6]

    driver.clock.advance(50)
    driver.clock.advance(100)
    assert driver.out() == []
    driver.clock.advance(50)
    assert driver.out() == [IDLE]
    driver.process("b", timestamps=[9])
    assert driver.out() == [("b", 9)]
    driver.clock.advance(50)
    assert driver.out() == [ACTIVE, 8]


def test_a_stream_whose_consumers_are_slow_is_not_idle() -> None:
    """The clock of idleness stands still meanwhile (FLINK-35886)."""
    driver = Driver(MONOTONOUS.with_idleness(Duration.of_millis(100)))
    driver.clock.advance(50)
    driver.clock.paused_ns = 1_000_000_000

    driver.clock.advance(1000)

    assert driver.out() == []


def test_an_idle_stream_that_ends_is_active_first() -> None:
    driver = Driver(MONOTONOUS.with_idleness(Duration.of_millis(100)))
    driver.clock.advance(50)
    driver.clock.advance(150)

    driver.operator.process_watermark(MAX_WATERMARK)

    assert driver.out() == [IDLE, ACTIVE, MAX_WATERMARK.timestamp]


def test_without_an_interval_there_is_no_timer_and_closing_stops_it() -> None:
    assert Driver(MONOTONOUS, interval_ms=0).clock.num_timers == 0
    driver = Driver(MONOTONOUS)
    assert driver.clock.num_timers == 1

    driver.operator.close()

    assert driver.clock.num_timers == 0
    TimestampsAndWatermarksOperator(MONOTONOUS).close()


def test_batch_jobs_get_timestamps_without_watermarks() -> None:
    assigner = Doubled()
    driver = Driver(MONOTONOUS.with_timestamp_assigner(assigner), emits_watermarks=False)

    driver.process(3)
    driver.operator.finish()

    assert driver.out() == [(3, 6)]
    assert driver.clock.num_timers == 0


def test_a_failing_assigner_names_its_record() -> None:
    driver = Driver(MONOTONOUS.with_timestamp_assigner(Doubled()))

    with pytest.raises(
        UserFunctionError, match=r"'Timestamps/Watermarks' \(subtask 3\) failed while processing the record None"
    ) as caught:
        driver.process(1, None, 2)

    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(UserFunctionError, match="the record None"):
        driver.process(1, None, 2, timestamps=[1, 2, 3])


@pytest.mark.parametrize("timestamp", [1.5, "2020", None, True, 2**63, -(2**63) - 1])
def test_a_timestamp_that_is_none_names_its_record(timestamp: Any) -> None:
    driver = Driver(MONOTONOUS.with_timestamp_assigner(Identity()))

    with pytest.raises(UserFunctionError, match="while processing the record") as caught:
        driver.process(1, timestamp, 2)

    assert "as an int of 64 bits" in str(caught.value.__cause__)
    assert type(timestamp).__name__ in str(caught.value.__cause__)


def test_a_failing_generator_names_its_record() -> None:
    driver = Driver(WatermarkStrategy.for_generator(Punctuated))

    with pytest.raises(UserFunctionError, match="the record 13") as caught:
        driver.process(1, 13, 2, timestamps=[1, 2, 3])

    assert isinstance(caught.value.__cause__, ValueError)


def test_a_generator_that_fails_periodically_fails_the_operator() -> None:
    driver = Driver(WatermarkStrategy.for_generator(Broken))

    with pytest.raises(UserFunctionError) as caught:
        driver.clock.advance(50)

    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__notes__ == ["raised by on_periodic_emit()"]


def test_records_from_the_far_future_do_not_raise_the_watermark() -> None:
    """Records beyond the skew are passed on and counted; records within it raise the watermark as ever."""
    driver = Driver(MONOTONOUS.with_max_future_skew(Duration.of_millis(100)))

    driver.process("a", "b", "c", timestamps=[50, 10_000, 90])
    driver.process("d", timestamps=[10_001])
    driver.clock.advance(50)

    assert driver.out() == [("a", 50), ("b", 10_000), ("c", 90), ("d", 10_001), 89]
    assert driver.operator.ctx.counters.num_records_from_the_future == 2


def test_records_from_the_far_future_are_not_shown_to_generators() -> None:
    driver = Driver(WatermarkStrategy.for_generator(Punctuated).with_max_future_skew(Duration.of_millis(100)))

    driver.process(2, 4, 6, timestamps=[50, 101, 100])

    assert driver.out() == [(2, 50), 50, (4, 101), (6, 100), 100]
    assert driver.operator.ctx.counters.num_records_from_the_future == 1


@pytest.mark.parametrize("strategy", [MONOTONOUS, MONOTONOUS.with_timestamp_assigner(Identity())])
def test_a_stream_of_records_from_the_far_future_is_not_idle(strategy: WatermarkStrategy) -> None:
    """Whether the loop looks at the records, or the chunk."""
    driver = Driver(strategy.with_idleness(Duration.of_millis(100)).with_max_future_skew(Duration.of_millis(100)))

    for _ in range(6):
        driver.clock.advance(50)
        driver.process(10**6, timestamps=[10**6])

    assert driver.out() == [(10**6, 10**6)] * 6


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_size_of_chunks_changes_nothing(size: int) -> None:
    """The results are equal for generators that look at chunks and for those that look at records."""
    records = [3, 8, 1, 12, 5, 14, 2]
    for strategy in (MONOTONOUS, WatermarkStrategy.for_generator(Punctuated)):
        driver = Driver(strategy.with_timestamp_assigner(Doubled()))
        for start in range(0, len(records), size):
            driver.process(*records[start : start + size])
        driver.operator.finish()

        found = driver.out()
        whole = Driver(strategy.with_timestamp_assigner(Doubled()))
        whole.process(*records)
        whole.operator.finish()
        assert found == whole.out()


@pytest.mark.parametrize("strategy", [MONOTONOUS, MONOTONOUS.with_timestamp_assigner(Identity())])
def test_columns_stay_columns_and_tell_the_same_watermark(strategy: WatermarkStrategy) -> None:
    """Whether their timestamps came with them or are assigned."""
    values = [3, 9, 4]
    columns = columns_of(values)
    assert columns is not None
    drivers = [Driver(strategy), Driver(strategy)]

    drivers[0].process(*values, timestamps=values)
    drivers[1].operator.process_chunk(Chunk.of_columns(columns, np.array(values)))
    for driver in drivers:
        driver.clock.advance(50)

    (chunk,) = drivers[1].output.chunks
    assert chunk.columns is columns
    assert drivers[0].out() == drivers[1].out() == [(3, 3), (9, 9), (4, 4), 8]


def test_columns_without_timestamps_tell_nothing() -> None:
    columns = columns_of([1])
    assert columns is not None
    driver = Driver(MONOTONOUS)

    driver.operator.process_chunk(Chunk.of_columns(columns))
    driver.operator.process_chunk(Chunk.of_columns(columns, [5]))
    driver.clock.advance(50)

    assert driver.out() == [(1, None), (1, 5), 4]


def in_a_chain(strategy: WatermarkStrategy) -> ChainHarness:
    """Return the operator between two maps."""
    first, last = MapOperator(lambda value: value), MapOperator(lambda value: value)
    return ChainHarness(first, TimestampsAndWatermarksOperator(strategy), last, subtask=3)


def test_timestamps_that_are_assigned_in_the_middle_of_a_chain_leave_with_their_records() -> None:
    """Whether the chain was given any; many records and few."""
    for timestamps in (None, list(range(100))):
        harness = in_a_chain(MONOTONOUS.with_timestamp_assigner(Doubled()))

        for _ in range(3):
            harness.process(*range(100), timestamps=timestamps)
            harness.process(7, timestamps=None if timestamps is None else [1])
        harness.chain.finish()

        assert harness.values == [*range(100), 7] * 3
        assert harness.output.timestamps == [*range(0, 200, 2), 14] * 3
        assert harness.output.elements[-1] == Watermark(197)


def test_a_watermark_that_a_record_causes_in_a_chain_comes_right_behind_it() -> None:
    harness = in_a_chain(WatermarkStrategy.for_generator(Punctuated).with_timestamp_assigner(Identity()))

    harness.process(1, 2, 3, 4, 5)

    assert harness.output.elements == [
        Chunk([1, 2], [1, 2]),
        Watermark(2),
        Chunk([3, 4], [3, 4]),
        Watermark(4),
        Chunk([5], [5]),
    ]


def test_a_failure_in_a_chain_names_operator_and_record() -> None:
    """Failures of the assigner and of the generator are named; records in front of the failing one go on."""
    for strategy, value in (
        (MONOTONOUS.with_timestamp_assigner(Doubled()), "text"),
        (WatermarkStrategy.for_generator(Punctuated).with_timestamp_assigner(Identity()), 13),
    ):
        harness = in_a_chain(strategy)

        with pytest.raises(UserFunctionError) as caught:
            harness.process(1, 3, value, 4)

        assert (caught.value.operator, caught.value.subtask) == ("Timestamps/Watermarks", 3)
        assert caught.value.record_preview == repr(value)
        assert harness.values[:2] == [1, 3]
