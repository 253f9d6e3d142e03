"""Source: Flink `AbstractStreamOperatorTestHarnessTest`, `KeyedOneInputStreamOperatorTestHarness`."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import flowlet.testing
from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream import (
    AsyncFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    TimeDomain,
)
from flowlet.errors import JobGraphError, JobSubmissionError, UserFunctionError
from flowlet.keys.exact_keys import key_group
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator
from flowlet.operators.process_operator import FlatMapOperator, MapOperator
from flowlet.records import ACTIVE, IDLE, Chunk, LatencyMarker, Watermark
from flowlet.testing import (
    KeyedOneInputOperatorHarness,
    KeyedTwoInputOperatorHarness,
    OneInputOperatorHarness,
    StreamRecord,
    SubtaskPlace,
    TwoInputOperatorHarness,
    operator_of,
)

HOT = OutputTag("hot")


def first_field(record: Any) -> Any:
    return record[0]


class FirstField(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0]


class Thermometer(KeyedProcessFunction):
    """Reports a sensor that was silent for 10 ms of event time, or 100 ms by the clock."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        timestamp = ctx.timestamp()
        if timestamp is None:
            ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 100)
        else:
            ctx.timer_service().register_event_time_timer(timestamp + 10)
        if value[1] > 90:
            yield HOT, value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.time_domain(), ctx.timer_service().current_processing_time()


class Sleeper(AsyncFunction):
    """Takes so many seconds; that of the test, not of the world."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def open(self, runtime_context: RuntimeContext) -> None:  # type: ignore[override]  # async functions may
        await asyncio.sleep(1)
        self.events.append("open")

    async def async_invoke(self, value: Any) -> list[Any]:
        if value == "thread":
            return [await asyncio.to_thread(threading.current_thread) is not threading.main_thread()]
        await asyncio.sleep(value)
        return [value]


class Broken(MapFunction):
    """Each step can fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.events: list[str] = []

    def _step(self, name: str) -> None:
        self.events.append(name)
        if name in self.failing:
            raise ValueError(name)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._step("open")

    def map(self, value: Any) -> Any:
        self._step("map")
        return value

    def close(self) -> None:
        self._step("close")


class Leaky(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.file = open(__file__)  # noqa: SIM115 - to be found

    def map(self, value: Any) -> Any:
        return value


class Mailer(StreamOperator):
    """Posts a mail for each chunk, which emits it."""

    name = "Mailer"

    def process_chunk(self, chunk: Chunk) -> None:
        self.ctx.mailbox_executor.execute(lambda: self.output.collect(chunk), "emit", options=MailOptions.DEFAULT)


# -- elements


def test_output_comes_in_order() -> None:
    """The output has records with their timestamps, watermarks, statuses and latency markers."""
    marker = LatencyMarker(3, bytes(16), 0)
    with OneInputOperatorHarness(MapOperator(str.upper)) as harness:
        harness.process_element("a", timestamp=5)
        harness.process_watermark(5)
        harness.process_chunk(["b", "c"])
        harness.process_watermark_status(IDLE)
        harness.process_latency_marker(marker)

        assert harness.values == ["A", "B", "C"]
        assert harness.watermarks == [5]
        records = StreamRecord("A", 5), StreamRecord("B"), StreamRecord("C")
        assert harness.take_output() == [records[0], Watermark(5), *records[1:], IDLE, marker]
        assert harness.output == []
        harness.process_elements(["d", "e"], [1, 2])
        assert harness.records == [StreamRecord("D", 1), StreamRecord("E", 2)]


def test_two_inputs_are_combined() -> None:
    class Both(CoProcessFunction):
        def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
            yield 1, value

        def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
            yield 2, value

    with TwoInputOperatorHarness(Both()) as harness:
        harness.process_element1("a", timestamp=5)
        harness.process_chunk2(["b"], [6])
        harness.process_elements1(["c", "d"])
        harness.process_watermark1(3)
        harness.process_watermark2(2)
        harness.process_watermark_status2(IDLE)
        harness.process_watermark_status2(ACTIVE)
        harness.process_both_watermarks(9)
        for input_id in (1, 2):
            harness.end_input(input_id)
        harness.finish()

    assert harness.values == [(1, "a"), (2, "b"), (1, "c"), (1, "d")]
    assert harness.watermarks == [2, 3, 9]


def test_side_outputs_are_found_by_tag_or_id() -> None:
    with KeyedOneInputOperatorHarness(Thermometer(), first_field) as harness:
        harness.process_element(("oven", 200), timestamp=1)

    assert harness.side_output(HOT) == harness.side_output("hot") == [StreamRecord(("oven", 200), 1)]
    assert harness.side_output("nobody's") == []
    assert harness.records == []


# -- time


def test_event_time_timers_fire_with_the_watermark() -> None:
    with KeyedOneInputOperatorHarness(Thermometer(), first_field) as harness:
        harness.process_element(("oven", 20), timestamp=1)
        harness.process_element(("cellar", 2), timestamp=2)
        assert [timer.timestamp for timer in harness.event_time_timers] == [11, 12]
        assert (harness.num_event_time_timers, harness.num_processing_time_timers) == (2, 0)
        assert [timer.timestamp for timer in harness.event_time_timers_of("cellar")] == [12]

        harness.process_watermark(11)

        assert harness.output == [StreamRecord(("oven", 11, TimeDomain.EVENT_TIME, 0), 11), Watermark(11)]
        assert harness.num_event_time_timers == 1


def test_processing_time_timers_fire_with_the_manual_clock() -> None:
    """The timers fire by mails, each at the time to which the clock was moved."""
    with KeyedOneInputOperatorHarness(Thermometer(), FirstField(), now_ms=1_000) as harness:
        harness.process_element(("oven", 20))
        assert harness.num_processing_time_timers == len(harness.processing_time_timers_of("oven")) == 1

        harness.set_processing_time(1_099)
        assert harness.values == []
        harness.advance_processing_time(1)

        assert harness.processing_time == 1_100
        assert harness.values == [("oven", 1_100, TimeDomain.PROCESSING_TIME, 1_100)]


def test_no_timer_fires_after_the_end() -> None:
    with KeyedOneInputOperatorHarness(Thermometer(), first_field) as harness:
        harness.process_element(("oven", 20))
        harness.end_input()
        harness.finish()
        harness.set_processing_time(1_000)

    assert harness.values == []


# -- mails and coroutines


def test_mails_run_when_the_test_says_so_or_the_operator_finishes() -> None:
    with OneInputOperatorHarness(Mailer()) as harness:
        harness.process_chunk([1])
        assert harness.pending_mails == ["emit"]
        assert harness.values == []

        assert harness.run_mails() == 1
        assert harness.values == [1]
        harness.process_chunk([2])
        harness.finish()
        assert harness.values == [1, 2]


def test_coroutines_sleep_in_the_time_of_the_test() -> None:
    """Results come in their order and at their time, without a real wait."""
    operator = AsyncWaitOperator(Sleeper(), timeout_ms=0, capacity=10, is_ordered=False)
    with OneInputOperatorHarness(operator) as harness:
        assert harness.processing_time == 1_000  # open() took its second
        harness.process_chunk([3, 1, 2])
        harness.run_mails()
        assert harness.values == []

        harness.advance_processing_time(2_500)
        assert harness.values == [1, 2]
        harness.end_input()
        harness.finish()

    assert harness.values == [1, 2, 3]
    assert harness.processing_time == 4_000


def test_an_operator_without_room_lets_time_pass() -> None:
    operator = AsyncWaitOperator(Sleeper(), timeout_ms=0, capacity=1, is_ordered=True)
    with OneInputOperatorHarness(operator) as harness:
        harness.process_chunk([3, 1, 2])

        assert harness.values == [3, 1]


def test_coroutines_may_wait_for_threads() -> None:
    with OneInputOperatorHarness(Sleeper(), checks_leaks=False) as harness:
        harness.process_element("thread")
        harness.end_input()

    assert harness.values == [True]


def test_a_wait_that_nothing_can_end_is_an_error_of_the_test() -> None:
    class Forever(StreamOperator):
        name = "Forever"

        def process_chunk(self, chunk: Chunk) -> None:
            self.ctx.mailbox_executor.yield_()

    with (
        OneInputOperatorHarness(Forever()) as harness,
        pytest.raises(AssertionError, match="no timer and no coroutine"),
    ):
        harness.process_element(1)


# -- life


def test_state_and_timers_come_back_in_a_fresh_harness() -> None:
    with KeyedOneInputOperatorHarness(Thermometer(), first_field) as harness:
        harness.process_element(("oven", 20), timestamp=1)
        snapshot = harness.snapshot()

    restored = KeyedOneInputOperatorHarness(Thermometer(), first_field)
    restored.initialize_state(snapshot)
    with restored:
        restored.process_watermark(11)

    assert restored.values == [("oven", 11, TimeDomain.EVENT_TIME, 0)]
    with pytest.raises(RuntimeError, match="must be called once, before open"):
        restored.initialize_state(snapshot)


def test_records_in_flight_come_back_too() -> None:
    with OneInputOperatorHarness(Sleeper()) as harness:
        harness.process_chunk([2, 1])
        snapshot = harness.snapshot()

    restored = OneInputOperatorHarness(Sleeper())
    restored.initialize_state(snapshot)
    with restored:
        restored.end_input()

    assert restored.values == [2, 1]


def test_the_users_error_surfaces_with_operator_and_record() -> None:
    with (
        pytest.raises(UserFunctionError) as caught,
        OneInputOperatorHarness(MapOperator(Broken("map"), name="my map")) as harness,
    ):
        harness.process_element("a record")

    assert (caught.value.operator, caught.value.record_preview) == ("my map", "'a record'")
    assert isinstance(caught.value.__cause__, ValueError)
    assert harness.operator._functions[0].function.events == ["open", "map", "close"]  # type: ignore[attr-defined]


def test_a_failing_open_is_closed() -> None:
    function = Broken("open")

    with pytest.raises(UserFunctionError), OneInputOperatorHarness(function, is_shipped=False):
        raise AssertionError("not reached")

    assert function.events == ["open", "close"]


def test_an_error_of_the_test_is_not_hidden_by_one_of_close() -> None:
    with pytest.raises(KeyError) as caught, OneInputOperatorHarness(Broken("close")):
        raise KeyError("the test's own")

    assert "while the harness was closed after it: UserFunctionError" in caught.value.__notes__[0]


def test_operators_are_shipped_as_jobs_ship_them() -> None:
    function = Broken()
    with OneInputOperatorHarness(function) as harness:
        harness.process_element(1)
    assert function.events == []

    with pytest.raises(JobSubmissionError, match=r"operator 'Map'.*cannot be sent"):
        OneInputOperatorHarness(MapOperator(threading.Lock().__enter__))


def test_nothing_may_come_before_open_or_after_close() -> None:
    harness = OneInputOperatorHarness(MapOperator(str.upper))
    with pytest.raises(RuntimeError, match="not open"):
        harness.process_element("a")

    harness.open()
    harness.close()
    harness.close()

    with pytest.raises(RuntimeError, match="not open"):
        harness.process_element("a")


def test_a_file_that_is_left_open_is_found() -> None:
    harness = OneInputOperatorHarness(Leaky(), is_shipped=False)
    harness.open()

    with pytest.raises(AssertionError, match=r"left behind: the descriptor \d+ of .*test_operator_harness.py"):
        harness.close()

    harness.operator._functions[0].function.file.close()  # type: ignore[attr-defined]


def test_a_chunk_that_is_changed_after_it_was_emitted_is_found() -> None:
    class Reuser(StreamOperator):
        name = "Reuser"

        def process_chunk(self, chunk: Chunk) -> None:
            self.output.collect(chunk)
            chunk.values[0] = "changed"

    harness = OneInputOperatorHarness(Reuser())
    harness.open()
    harness.process_element("a")

    with pytest.raises(AssertionError, match="changed after it was emitted"):
        harness.close()


def test_what_is_emitted_by_close_is_found() -> None:
    class Late(StreamOperator):
        name = "Late"

        def process_chunk(self, chunk: Chunk) -> None:
            self.kept = chunk

    harness = OneInputOperatorHarness(Late())
    harness.open()
    harness.process_element("a")
    harness.close()

    with pytest.raises(AssertionError, match="after the operator was closed"):
        harness.operator.output.collect(harness.operator.kept)  # type: ignore[attr-defined]


# -- keys


def test_a_record_of_another_subtask_is_refused() -> None:
    place = SubtaskPlace(subtask=0, parallelism=2)
    mine = next(key for key in "abcdefgh" if key_group(key, 128) in place.key_groups)
    other = next(key for key in "abcdefgh" if key_group(key, 128) not in place.key_groups)
    with KeyedOneInputOperatorHarness(Thermometer(), first_field, place=place) as harness:
        harness.process_element((mine, 91), timestamp=1)
        with pytest.raises(ValueError, match="belongs to key group"):
            harness.process_chunk([(mine, 92), (other, 93)])

    assert [record.value[1] for record in harness.side_output(HOT)] == [91]


def test_two_keyed_inputs_share_their_keys() -> None:
    class Match(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(5)

        def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
            ctx.timer_service().delete_event_time_timer(5)

        def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
            yield ctx.get_current_key()

    with KeyedTwoInputOperatorHarness(Match(), first_field, FirstField()) as harness:
        harness.process_chunk1(["a1", "b1"])
        harness.process_elements2(["b2", "c2"])
        harness.process_both_watermarks(5)

    assert harness.values == ["a"]


# -- functions


def test_functions_get_the_operator_that_a_job_would_choose() -> None:
    class Add(ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            return value1 + value2

    assert isinstance(operator_of(Broken()), MapOperator)
    assert isinstance(operator_of(Add(), first_field), KeyedReduceOperator)
    operator = FlatMapOperator(list)
    assert operator_of(operator) is operator
    with pytest.raises(JobGraphError, match="needs 1 key selectors, got 0"):
        operator_of(Add())
    with pytest.raises(JobGraphError, match="no operator is known for a function"):
        operator_of(first_field)


def test_a_process_function_without_keys() -> None:
    class Echo(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> list[Any]:
            return [(value, ctx.timestamp())]

    with OneInputOperatorHarness(Echo()) as harness:
        harness.process_element("a", 3)

    assert harness.values == [("a", 3)]


def test_all_that_is_public_is_documented_with_an_example() -> None:
    for name in flowlet.testing.__all__:
        documentation = getattr(flowlet.testing, name).__doc__ or ""
        assert documentation, name
    assert sorted(flowlet.testing.__all__) == flowlet.testing.__all__


def test_a_call_begins_before_time_moves() -> None:
    """The deadline of a quick call would otherwise come first."""

    class Quick(AsyncFunction):
        async def async_invoke(self, value: Any) -> list[Any]:
            await asyncio.sleep(0.01)
            return [value]

    operator = AsyncWaitOperator(Quick(), timeout_ms=20, capacity=10, is_ordered=True)
    with OneInputOperatorHarness(operator) as harness:
        harness.process_element("in time")
        harness.set_processing_time(100)

        assert harness.values == ["in time"]
