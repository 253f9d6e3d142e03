"""The wall clock is set an hour on or back, or the machine sleeps for ten minutes: what each kind of time does then.

A machine that sleeps stops the monotonic clock; afterwards the wall clock is ahead by the time of the sleep.
"""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common import Time
from flowlet.common.job_status import JobStatus
from flowlet.common.settings.restart_settings import RestartSettings
from flowlet.datastream.state import StateTtlConfig, ValueStateDescriptor
from flowlet.graph.execution_graph import (
    Effect,
    ExecutionGraph,
    ExecutionReported,
    ExecutionVertex,
    RestartAfter,
    RestartDue,
    SlotsAllocated,
)
from flowlet.graph.execution_state import ExecutionState
from flowlet.graph.restart_backoff_strategy import ExponentialDelay, FailureRate, RestartStrategy
from flowlet.rpc.control_messages import FailureInfo
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.timers.keyed_timer_service import KeyedTimerService
from flowlet.timers.system_processing_time_service import SystemProcessingTimeService
from flowlet.timers.time_api import InternalTimer, KeyContext
from flowlet.watermarks.event_time_stream import idleness_clock
from netstack.wire.gate_access import GateIdentity
from tests.flowlet.task.scripted_loop import ScriptedLoop

HOUR_MS = 3_600_000
SLEEP_MS = 600_000
STEPS = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, SLEEP_MS], ids=["an hour on", "an hour back", "slept"])


@pytest.fixture
def loop() -> ScriptedLoop:
    loop = ScriptedLoop()
    loop.wall_offset_ms = 10 * HOUR_MS
    return loop


@pytest.fixture
def service(loop: ScriptedLoop) -> SystemProcessingTimeService:
    return SystemProcessingTimeService(loop.schedule_timer, loop.executor, now_ms=loop.now_ms, clock_ns=loop.clock_ns)


class Noting:
    """Notes which timers fired, and when by the monotonic clock."""

    def __init__(self, loop: ScriptedLoop) -> None:
        self.loop = loop
        self.fired: list[tuple[int, int]] = []

    def on_event_time(self, timer: InternalTimer) -> None:
        raise AssertionError(timer)

    def on_processing_time(self, timer: InternalTimer) -> None:
        self.fired.append((timer.namespace, self.loop.now_ns // 1_000_000))


@STEPS
def test_calls_at_a_fixed_rate_neither_stop_nor_repeat(loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int) -> None:
    """They keep to the monotonic clock."""
    fired: list[int] = []
    service.schedule_at_fixed_rate(lambda _: fired.append(loop.now_ns // 1_000_000), initial_delay_ms=10, period_ms=10)

    loop.pass_time(15)
    loop.wall_offset_ms += step_ms
    loop.pass_time(30)

    assert fired == [10, 20, 30, 40]


@STEPS
def test_calls_with_a_fixed_delay_neither_stop_nor_repeat(loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int) -> None:
    fired: list[int] = []
    service.schedule_with_fixed_delay(lambda _: fired.append(loop.now_ns // 1_000_000), initial_delay_ms=10, period_ms=10)

    loop.pass_time(15)
    loop.wall_offset_ms += step_ms
    loop.pass_time(30)

    assert fired == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("step_ms", "second", "third"), [(HOUR_MS, 102, 103), (-HOUR_MS, 201 + HOUR_MS, 301 + HOUR_MS), (SLEEP_MS, 102, 103)]
)
def test_timers_of_keys_follow_the_wall_clock_from_the_next_one_on(
    loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int, second: int, third: int
) -> None:
    """The one that the clock waits for keeps its delay, as Flink's does; those behind it are due by what the clock shows then."""
    keys, noting, now = KeyContext(), Noting(loop), loop.now_ms()
    timers = KeyedTimerService("timers", noting, key_context=keys, clock=service, key_groups=range(128), max_parallelism=128)
    keys.current_key = "key"
    for number in (1, 2, 3):
        timers.register_processing_time_timer(number, now + 100 * number)

    loop.pass_time(50)
    loop.wall_offset_ms += step_ms
    # Each part ends at a time at which something may be due.
    for duration_ms in (51, 1, 1, 100, 100, HOUR_MS - 102, 100, HOUR_MS):
        loop.advance(duration_ms)
        loop.run_mails()

    assert noting.fired == [(1, 101), (2, second), (3, third)]
    timers.check_invariants()


@STEPS
def test_a_step_of_the_wall_clock_is_no_idle_time(loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int) -> None:
    """Nor does it hide any."""
    clock = idleness_clock(service)
    before = clock()

    loop.wall_offset_ms += step_ms
    assert clock() == before
    loop.advance(7)

    assert clock() - before == 7_000_000


@pytest.mark.parametrize(("step_ms", "is_there"), [(HOUR_MS, False), (-HOUR_MS, True), (SLEEP_MS, True)])
def test_the_time_to_live_of_state_is_by_the_wall_clock(step_ms: int, *, is_there: bool) -> None:
    """As in Flink: time that a job is down counts, too.  A clock that was put back makes values live longer, by no more than the step."""
    keys, now = KeyContext(), [10 * HOUR_MS]
    backend = HeapKeyedStateBackend(keys, lambda: now[0], range(128), 128)
    descriptor = ValueStateDescriptor("value")
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.minutes(30)).build())
    state = backend.state(descriptor, ValueStateDescriptor)
    keys.current_key = "key"
    state.update("there")

    now[0] += step_ms

    assert state.value() == ("there" if is_there else None)
    now[0] += HOUR_MS + 30 * 60_000
    assert state.value() is None


class Middle:
    def randint(self, a: int, b: int) -> int:
        return (a + b) // 2


class FailingJob:
    """A job of one task, which fails again and again."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self.wall_ms, self.elapsed_ms = 10 * HOUR_MS, 0
        self.run = 0
        self.graph = ExecutionGraph.create([self._vertex()], self.wall_ms, strategy)
        self._start()

    def _vertex(self) -> ExecutionVertex:
        return ExecutionVertex(f"{self.run}".encode().ljust(40), "v", 0)

    def _handle(self, event: Any) -> list[Effect]:
        return self.graph.handle(event, self.wall_ms, self.elapsed_ms)

    def _start(self) -> None:
        self._handle(SlotsAllocated({self._vertex().attempt: "tm"}))
        for state in (ExecutionState.INITIALIZING, ExecutionState.RUNNING):
            self._handle(ExecutionReported(self._vertex().attempt, "tm", state, None))

    def pass_time(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.elapsed_ms += duration_ms

    def fail(self) -> int | None:
        """The delay of the restart; None: the job ends."""
        failure = FailureInfo("ValueError", "boom", "", None, "task", 0, None, "tm", 0)
        effects = self._handle(ExecutionReported(self._vertex().attempt, "tm", ExecutionState.FAILED, failure))
        delays = [each.delay_ms for each in effects if isinstance(each, RestartAfter)]
        if not delays:
            assert self.graph.status is JobStatus.FAILED
            return None
        self.pass_time(delays[0] + 1)
        self.run += 1
        self._handle(RestartDue([self._vertex()]))
        self._start()
        return delays[0]


STRATEGIES: list[tuple[Callable[[], RestartStrategy], list[int | None]]] = [
    (lambda: FailureRate(2, 60_000, 100), [100, 100, None]),
    (lambda: ExponentialDelay(RestartSettings(jitter=0.0), Middle()), [1000, 1500, 2250]),
]


@STEPS
@pytest.mark.parametrize(("make", "delays"), STRATEGIES, ids=["failure rate", "exponential delay"])
def test_restarts_are_counted_by_a_clock_that_nobody_sets(
    make: Callable[[], RestartStrategy], delays: list[int | None], step_ms: int
) -> None:
    """A step between failures neither forgives them nor lets them count for longer."""
    job = FailingJob(make())
    found = []
    for _ in delays:
        job.pass_time(5)
        found.append(job.fail())
        job.wall_ms += step_ms

    assert found == delays


def test_failures_of_long_ago_are_forgotten_although_the_clock_was_put_back() -> None:
    job = FailingJob(FailureRate(1, 60_000, 100))
    assert job.fail() == 100

    job.wall_ms -= HOUR_MS
    job.pass_time(61_000)

    assert job.fail() == 100


@STEPS
def test_a_token_of_a_gate_outlives_a_step(step_ms: int) -> None:
    """Its end is a time of the wall clock, for it is told to other machines; it is a day away, far more than a step."""
    now = 10 * HOUR_MS
    identity = GateIdentity(bytes(16), "gate", now + 24 * HOUR_MS)

    assert not identity.is_expired(now + step_ms)
    assert identity.is_expired(now + step_ms + 26 * HOUR_MS)
