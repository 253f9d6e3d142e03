"""Jobs whose async operator is full, because its calls do not answer: nothing else waits for them."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration, Duration, Time, WatermarkStrategy
from flowlet.common.job_client import JobClient
from flowlet.common.job_status import JobStatus
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.async_retry_predicates import empty_result_predicate
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.datastream.connectors import DiscardingSink, NumberSequenceSource
from flowlet.datastream.window import TumblingEventTimeWindows
from flowlet.errors import JobExecutionError
from flowlet.testing import MiniCluster
from flowlet.timers import keyed_timer_service
from tests.waiting import PATIENCE_S, all_run, spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS, CAPACITY = 30, 2
NO_TIMEOUT = Time.milliseconds(0)


class Calls:
    """Record and steer the calls of the running test; the job runs in this process."""

    def __init__(self) -> None:
        self.answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.started: list[Any] = []
        self.interrupted: list[Any] = []
        self.results: list[Any] = []
        self.num_read = 0
        self.has_happened = threading.Event()
        self.may_end = threading.Event()


calls = Calls()


@pytest.fixture(autouse=True)
def new_calls() -> Iterator[None]:
    global calls
    calls = Calls()
    yield
    calls = Calls()


@pytest.fixture(autouse=True)
def timers_that_are_always_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers of a watermark are interrupted after each one, as a slow machine or a mail does now and then."""
    monkeypatch.setattr(keyed_timer_service, "BUDGET_NS", 0)


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(num_task_managers=1, slots_per_task_manager=2) as cluster:
        yield cluster


class Ask(AsyncFunction):
    """Calls that answer when the test says so."""

    async def async_invoke(self, value: Any) -> list[Any]:
        calls.started.append(value)
        try:
            await asyncio.shield(asyncio.wrap_future(calls.answer))
        except asyncio.CancelledError:
            calls.interrupted.append(value)
            raise
        return [value]


class AskOrGiveUp(Ask):
    def timeout(self, value: Any) -> list[Any]:
        return [-value]


class NoAnswer(AsyncFunction):
    """Answers at once, with nothing: so a retry strategy asks again."""

    async def async_invoke(self, value: Any) -> list[Any]:
        calls.started.append(value)
        return [value] if calls.answer.done() else []


class Keep(MapFunction):
    """The sink: into a list of this process."""

    def map(self, value: Any) -> Any:
        calls.results.append(value)
        return value


Build = Callable[[StreamExecutionEnvironment], DataStream]


def numbers(env: StreamExecutionEnvironment, number: int = NUM_RECORDS) -> DataStream:
    return env.from_collection(list(range(number)), Types.LONG())


def behind_the_source(env: StreamExecutionEnvironment) -> DataStream:
    """Put the operator into one task with the source, whose data ends at once."""
    return AsyncDataStream.ordered_wait(numbers(env), Ask(), NO_TIMEOUT, CAPACITY, Types.LONG())


def behind_a_partition(env: StreamExecutionEnvironment) -> DataStream:
    """Put the operator into a task of its own, with another operator before it."""
    moved = numbers(env).rebalance().map(lambda value: value, Types.LONG())
    return AsyncDataStream.unordered_wait(moved, Ask(), NO_TIMEOUT, CAPACITY, Types.LONG())


def at_the_head_of_a_task(env: StreamExecutionEnvironment) -> DataStream:
    return AsyncDataStream.unordered_wait(numbers(env).rebalance(), Ask(), NO_TIMEOUT, CAPACITY, Types.LONG())


def with_retries(env: StreamExecutionEnvironment) -> DataStream:
    """The next attempt is an hour away."""
    strategy = AsyncRetryStrategy.fixed_delay(5, 3_600_000, empty_result_predicate, None)
    return AsyncDataStream.ordered_wait_with_retry(
        numbers(env), NoAnswer(), Time.days(1), strategy, CAPACITY, Types.LONG()
    )


class ValueAsTime(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class FirstOfWindow(ProcessWindowFunction):
    def process(self, key: int, context: ProcessWindowFunction.Context, elements: Iterable[int]) -> Iterable[int]:
        return list(elements)[:1]


class WatermarkAfterEachRecord(WatermarkGenerator):
    """No more records of a time follow the first one."""

    def on_event(self, event: int, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing: the job's watermarks do not depend on the clock."""


def windows_that_end_with_the_input(env: StreamExecutionEnvironment, size: Duration) -> DataStream:
    """Return a job whose windows all end at one time, for every key, so that their timers fire together."""
    strategy = WatermarkStrategy.for_generator(WatermarkAfterEachRecord).with_timestamp_assigner(ValueAsTime())
    stamped = numbers(env).assign_timestamps_and_watermarks(strategy)
    windows = stamped.key_by(lambda value: value, Types.LONG()).window(TumblingEventTimeWindows.of(size))
    return AsyncDataStream.ordered_wait(
        windows.process(FirstOfWindow(), Types.LONG()), Ask(), NO_TIMEOUT, CAPACITY, Types.LONG()
    )


def behind_windows_that_end_with_the_input(env: StreamExecutionEnvironment) -> DataStream:
    """The watermark before their end came before their results: timers that are interrupted have none to emit."""
    return windows_that_end_with_the_input(env, Duration.of_millis(NUM_RECORDS))


def behind_a_watermark_between_windows(env: StreamExecutionEnvironment) -> DataStream:
    """Interrupted timers emit no watermark in between, which would take the second place."""
    return windows_that_end_with_the_input(env, Duration.of_days(1))


KINDS = pytest.mark.parametrize(
    "build",
    [
        behind_the_source,
        behind_a_partition,
        at_the_head_of_a_task,
        with_retries,
        behind_windows_that_end_with_the_input,
        behind_a_watermark_between_windows,
    ],
)


def started(cluster: MiniCluster, folder: Path, build: Build, savepoint: str = "", **options: str) -> JobClient:
    env = cluster.environment().set_parallelism(1)
    settings = {
        "execution.checkpointing.savepoint-dir": str(folder),
        "execution.checkpointing.timeout": "20 s",
        **options,
    }
    if savepoint:
        settings["execution.state-recovery.path"] = savepoint
    env.configure(Configuration.from_dict(settings))
    build(env).map(Keep()).sink_to(DiscardingSink())
    return env.execute_async("asks")


def full(cluster: MiniCluster, folder: Path, build: Build, **options: str) -> JobClient:
    """Return a job whose operator is full: so many calls run, or watermarks are in the other places, and the JobManager
    knows that all tasks run.
    """
    job = started(cluster, folder, build, **options)
    spin_until(lambda: len(calls.started) >= CAPACITY and all_run(job), "the first calls")
    return job


def ended(job: JobClient) -> JobStatus:
    result = job.get_job_execution_result()
    spin_until(result.done, "the end of the job")
    status = job.get_job_status().result()
    with contextlib.suppress(JobExecutionError):
        result.result()
    return status


@KINDS
def test_a_savepoint_waits_for_no_call(cluster: MiniCluster, tmp_path: Path, build: Build) -> None:
    """A savepoint holds the running calls and the records that wait unstarted; a job that begins with it asks for all
    of them, in order.
    """
    job = full(cluster, tmp_path, build)

    savepoint = job.trigger_savepoint().result()
    started_before = list(calls.started)
    job.cancel()
    ended(job)

    assert sorted(started_before) == list(range(CAPACITY))
    assert calls.results == []
    calls.started.clear()
    calls.answer.set_result(None)
    assert ended(started(cluster, tmp_path, build, savepoint)) is JobStatus.FINISHED
    assert calls.started == sorted(calls.started)
    assert sorted(calls.results) == list(range(NUM_RECORDS))


class Silence(SourceFunction):
    """Emits nothing, until the test lets it end."""

    def run(self, ctx: SourceContext) -> None:
        calls.may_end.wait(PATIENCE_S)

    def cancel(self) -> None:
        calls.may_end.set()


def test_a_barrier_right_behind_the_records_in_hand_is_taken_while_calls_run(
    cluster: MiniCluster, tmp_path: Path
) -> None:
    """The task looks at the next element though it has no room for records, and its data has not ended."""

    def build(env: StreamExecutionEnvironment) -> DataStream:
        united = numbers(env).union(env.add_source(Silence(), type_info=Types.LONG()))
        return AsyncDataStream.ordered_wait(united, Ask(), NO_TIMEOUT, CAPACITY, Types.LONG())

    job = full(cluster, tmp_path, build)

    savepoint = job.trigger_savepoint().result()
    has_waited = list(calls.results)
    job.cancel()
    ended(job)

    assert has_waited == []
    calls.answer.set_result(None)
    calls.may_end.set()
    assert ended(started(cluster, tmp_path, build, savepoint)) is JobStatus.FINISHED
    assert calls.results == list(range(NUM_RECORDS))


@KINDS
def test_a_stop_without_drain_waits_for_no_call(cluster: MiniCluster, tmp_path: Path, build: Build) -> None:
    """A stop without drain ends the job while calls run; they are interrupted, and the next job asks for them again."""
    job = full(cluster, tmp_path, build)

    savepoint = job.stop_with_savepoint(False).result()

    assert ended(job) is JobStatus.FINISHED
    assert sorted(calls.started) == list(range(CAPACITY))
    assert calls.results == []
    calls.answer.set_result(None)
    assert ended(started(cluster, tmp_path, build, savepoint)) is JobStatus.FINISHED
    assert sorted(calls.results) == list(range(NUM_RECORDS))


@KINDS
def test_a_cancelled_job_waits_for_no_call(cluster: MiniCluster, tmp_path: Path, build: Build) -> None:
    """A cancelled job interrupts its running calls and starts no waiting one."""
    job = full(cluster, tmp_path, build)

    job.cancel()

    assert ended(job) is JobStatus.CANCELED
    assert sorted(calls.started) == list(range(CAPACITY))
    assert build is with_retries or sorted(calls.interrupted) == list(range(CAPACITY))


@pytest.mark.parametrize("build", [behind_the_source, behind_a_partition, at_the_head_of_a_task])
def test_a_stop_with_drain_waits_for_all_answers(cluster: MiniCluster, tmp_path: Path, build: Build) -> None:
    """The savepoint has none of the records then: a job that begins with it asks for nothing."""
    # So that a source that has ended waits for its last checkpoint.
    options = {"execution.checkpointing.interval": "1 h"}
    job = full(cluster, tmp_path, build, **options)

    savepoint = job.stop_with_savepoint(True)
    num_results, has_ended = len(calls.results), savepoint.done()
    calls.answer.set_result(None)

    assert (num_results, has_ended) == (0, False)
    path = savepoint.result()
    assert ended(job) is JobStatus.FINISHED
    assert sorted(calls.results) == list(range(NUM_RECORDS))
    calls.started.clear()
    assert ended(started(cluster, tmp_path, build, path)) is JobStatus.FINISHED
    assert calls.started == []


def test_a_stop_with_drain_waits_no_longer_than_the_timeouts(cluster: MiniCluster, tmp_path: Path) -> None:
    """The timeouts end calls that never answer."""

    def build(env: StreamExecutionEnvironment) -> DataStream:
        timeout = Time.milliseconds(30)
        return AsyncDataStream.ordered_wait(numbers(env, 5), AskOrGiveUp(), timeout, CAPACITY, Types.LONG())

    # The calls may be over before the savepoint begins: the source's end waits for a checkpoint then.
    options = {"execution.checkpointing.interval": "1 h"}
    job = full(cluster, tmp_path, build, **options)

    job.stop_with_savepoint(True).result()

    assert ended(job) is JobStatus.FINISHED
    assert calls.results == [-value for value in range(5)]


class RemindInATimer(KeyedProcessFunction):
    """Passes records on, and says when its timer fired."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterable[int]:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1)
        return [value]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        calls.has_happened.set()
        return []


def test_timers_before_a_full_operator_fire(cluster: MiniCluster, tmp_path: Path) -> None:
    """Timers of an operator fire while its records wait in the full async operator of its task."""

    def build(env: StreamExecutionEnvironment) -> DataStream:
        reminded = numbers(env).key_by(lambda value: value % 2, Types.LONG()).process(RemindInATimer(), Types.LONG())
        return AsyncDataStream.ordered_wait(reminded, Ask(), NO_TIMEOUT, CAPACITY, Types.LONG())

    job = full(cluster, tmp_path, build)

    assert calls.has_happened.wait(PATIENCE_S), "no timer fires while the queue is full"

    job.cancel()
    ended(job)


class CountRead(MapFunction):
    def map(self, value: int) -> int:
        calls.num_read += 1
        return value


@pytest.mark.parametrize("is_moved", [False, True])
def test_no_input_is_read_while_records_wait_unstarted(cluster: MiniCluster, tmp_path: Path, *, is_moved: bool) -> None:
    """No more than the rest of the chunk in hand waits, and a savepoint that is taken meanwhile has no more."""

    def build(env: StreamExecutionEnvironment) -> DataStream:
        read = env.from_source(
            NumberSequenceSource(0, 10**9), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )
        moved = read.rebalance() if is_moved else read
        return AsyncDataStream.ordered_wait(moved.map(CountRead(), Types.LONG()), Ask(), NO_TIMEOUT, 500, Types.LONG())

    job = started(cluster, tmp_path, build)
    spin_until(lambda: len(calls.started) == 500, "the first calls")

    if not is_moved:  # else the barrier waits behind the data in the channel
        job.trigger_savepoint().result()
    spin_until(lambda: "room in operator" in str(job.metrics()), "the wait for room")
    num_read = calls.num_read
    assert num_read <= 40_000, "the records of one chunk"
    if not is_moved:  # else the chunk in hand has 16,000 records
        calls.answer.set_result(None)
        spin_until(lambda: calls.num_read > num_read, "further input")

    job.cancel()
    ended(job)


class OpenNever(Ask):
    async def open(self, runtime_context: RuntimeContext) -> None:  # type: ignore[override]  # may be a coroutine function
        calls.has_happened.set()
        try:
            await asyncio.shield(asyncio.wrap_future(calls.answer))
        except asyncio.CancelledError:
            calls.interrupted.append("open")
            raise


def test_a_cancelled_job_does_not_wait_for_a_coroutine_that_opens(cluster: MiniCluster, tmp_path: Path) -> None:
    """A cancelled job interrupts an ``open`` that is a coroutine, as it interrupts a call."""
    job = started(
        cluster,
        tmp_path,
        lambda env: AsyncDataStream.ordered_wait(numbers(env), OpenNever(), NO_TIMEOUT, CAPACITY, Types.LONG()),
    )
    assert calls.has_happened.wait(PATIENCE_S)

    job.cancel()

    assert ended(job) is JobStatus.CANCELED
    assert calls.interrupted == ["open"]
