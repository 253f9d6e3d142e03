"""The wall clock is set an hour on or back, or the machine sleeps for ten minutes: the effects on each kind of time.

A machine that sleeps stops the monotonic clock; afterwards the wall clock is ahead by the time of the sleep.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from flowlet.common import Time
from flowlet.common.job_settings import RestartKind, RestartSettings
from flowlet.common.job_status import JobStatus
from flowlet.datastream.state import StateTtlConfig, ValueStateDescriptor
from flowlet.graph.execution_events import Effect, RestartAfter
from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.graph.restart_backoff_strategy import RestartStrategy
from flowlet.jm.client_lease import ClientLease
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.rest import RestApi
from flowlet.jm.taskmanager_session import TaskManagerSession
from flowlet.messages.control_messages import FailureInfo, RegisterTaskManager
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcConnectError
from flowlet.rpc.signed_websocket import SignedWebSocket
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager, Timer
from flowlet.timers.system_processing_time_service import SystemProcessingTimeService
from flowlet.tm.jobmanager_connection import JobManagerConnection, JobManagerUnreachableError, ReconnectConfig
from flowlet.tm.task_executor import TaskExecutor
from netstack.config import NetstackConfig
from netstack.errors import ConnectionLostError
from netstack.handlers.partition_request_client_handler import OfferedPartitionsHandler
from netstack.testing import EmbeddedChannel, EmbeddedEventLoop
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.heartbeat_handler import HeartbeatHandler
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.wire.message_bytes import GATE_MESSAGE_IDS, encode
from netstack.wire.offer_messages import GateIdentity, SubpartitionOffer
from tests.flowlet.graph.events import ExecutionReported, RestartDue, SlotsAllocated, handle
from tests.flowlet.rpc.manual_timers import ManualTimers
from tests.flowlet.task.scripted_loop import ScriptedLoop
from tests.netstack.wire.samples import PARTITION

HOUR_MS = 3_600_000
SLEEP_MS = 600_000
REGISTRATION = RegisterTaskManager("tm", 1, "127.0.0.1", 1, 1)
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

    def on_event_time(self, timer: Timer) -> None:
        raise AssertionError(timer)

    def on_processing_time(self, timer: Timer) -> None:
        self.fired.append((timer.namespace, self.loop.now_ns // 1_000_000))


@STEPS
def test_calls_with_a_fixed_delay_neither_stop_nor_repeat(
    loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int
) -> None:
    fired: list[int] = []
    service.schedule_with_fixed_delay(
        lambda _: fired.append(loop.now_ns // 1_000_000), initial_delay_ms=10, period_ms=10
    )

    loop.pass_time(15)
    loop.wall_offset_ms += step_ms
    loop.pass_time(30)

    assert fired == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("step_ms", "second", "third"),
    [(HOUR_MS, 102, 103), (-HOUR_MS, 201 + HOUR_MS, 301 + HOUR_MS), (SLEEP_MS, 102, 103)],
)
def test_timers_of_keys_follow_the_wall_clock_from_the_next_one_on(
    loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int, second: int, third: int
) -> None:
    """The timer for which the clock waits keeps its delay, as Flink's does; later ones are due by the time that the
    clock shows then.
    """
    keys, noting, now = KeyContext(), Noting(loop), loop.now_ms()
    timers = KeyedTimerServiceManager(keys, service, range(128), 128).timer_service("timers", noting)
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
def test_a_step_of_the_wall_clock_is_no_idle_time(
    loop: ScriptedLoop, service: SystemProcessingTimeService, step_ms: int
) -> None:
    """The step hides no idle time, either."""
    clock = service.relative_time_ns
    before = clock()

    loop.wall_offset_ms += step_ms
    assert clock() == before
    loop.advance(7)

    assert clock() - before == 7_000_000


@pytest.mark.parametrize(("step_ms", "is_there"), [(HOUR_MS, False), (-HOUR_MS, True), (SLEEP_MS, True)])
def test_the_time_to_live_of_state_is_by_the_wall_clock(step_ms: int, *, is_there: bool) -> None:
    """The time during which a job is down counts, too, as in Flink.

    A clock that was put back makes values live longer, by no more than the step.
    """
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


class FailingJob:
    """A job of one task, which fails again and again."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self.wall_ms, self.elapsed_ms = 10 * HOUR_MS, 0
        self.run = 0
        self.graph = ExecutionGraph([self._vertex()], self.wall_ms, strategy)
        self._start()

    def _vertex(self) -> Execution:
        return Execution(f"{self.run}".encode().ljust(40), "v", 0)

    def _handle(self, event: Any) -> list[Effect]:
        return handle(self.graph, event, self.wall_ms, self.elapsed_ms)

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


def failure_rate(max_failures: int) -> RestartStrategy:
    return RestartStrategy(RestartSettings(RestartKind.FAILURE_RATE, max_failures=max_failures, delay_ms=100))


STRATEGIES: list[tuple[Callable[[], RestartStrategy], list[int | None]]] = [
    (lambda: failure_rate(2), [100, 100, None]),
    (lambda: RestartStrategy(RestartSettings(RestartKind.EXPONENTIAL_DELAY)), [1000, 1500, 2250]),
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
    job = FailingJob(failure_rate(1))
    assert job.fail() == 100

    job.wall_ms -= HOUR_MS
    job.pass_time(61_000)

    assert job.fail() == 100


@pytest.fixture
def step_wall_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the wall clock of the whole process on or back, by milliseconds; no other clock moves."""
    time_s, time_ns = time.time, time.time_ns

    def step(step_ms: int) -> None:
        monkeypatch.setattr(time, "time", lambda: time_s() + step_ms / 1000)
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + step_ms * 1_000_000)

    return step


@STEPS
def test_a_lease_of_a_client_does_not_follow_the_wall_clock(
    step_wall_clock: Callable[[int], None], step_ms: int
) -> None:
    timers = ManualTimers()
    expired: list[float] = []
    lease = ClientLease(30, timers, lambda _reason: expired.append(timers.now_s))
    timers.advance(20)

    step_wall_clock(step_ms)
    timers.advance(5)
    lease.renew()
    timers.advance(40)

    assert expired == [155.0]


def test_a_sleep_that_the_monotonic_clock_counts_ends_no_lease() -> None:
    """The client slept, too, if the system's monotonic clock goes on in a sleep, or if a virtual machine was paused.

    The sleep counts as one of the five looks of a lease.
    """
    timers = ManualTimers()
    expired: list[float] = []
    ClientLease(30, timers, lambda _reason: expired.append(timers.now_s))

    timers.stall(SLEEP_MS / 1000)
    assert not expired
    timers.advance(30)

    assert expired == [pytest.approx(724.0)]


class Silence:
    """A ``SignedWebSocket`` on which nothing arrives: each wait is late by the next of ``sleeps_s``."""

    def __init__(self, *sleeps_s: float) -> None:
        self.now_s = 0.0
        self.sleeps_s = list(sleeps_s)
        self._registration: RegisterTaskManager | None = REGISTRATION

    async def receive(self, timeout_s: float) -> bytes:
        if self._registration is not None:
            message, self._registration = self._registration, None
            return msgspec.msgpack.encode(message)
        self.now_s += timeout_s + (self.sleeps_s.pop(0) if self.sleeps_s else 0.0)
        raise TimeoutError

    async def send(self, content: bytes) -> None:
        """Takes it."""

    async def close(self, reason: str) -> None:
        """Takes it."""


class Sessions:
    """The JobManager's side of sessions; notes why they ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def task_manager_registered(self, _session: TaskManagerSession) -> None:
        """Refuses none."""

    def task_manager_lost(self, _session: TaskManagerSession, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(("step_ms", "sleeps_s"), [(HOUR_MS, []), (-HOUR_MS, []), (SLEEP_MS, []), (0, [600.0])])
def test_a_silent_task_manager_is_lost_after_the_time_of_a_clock_that_nobody_sets(
    step_wall_clock: Callable[[int], None], step_ms: int, sleeps_s: list[float]
) -> None:
    """The JobManager declares it lost; a sleep that the monotonic clock counts is not counted here."""
    websocket, sessions = Silence(*sleeps_s), Sessions()
    session = TaskManagerSession(
        cast(SignedWebSocket, websocket),
        cast(Any, sessions),
        JobManagerConfig(bytes(32)),
        "jm",
        monotonic=lambda: websocket.now_s,
    )

    step_wall_clock(step_ms)
    asyncio.run(session.run())

    (reason,) = sessions.reasons
    assert "no message from it for 50 s" in reason
    assert websocket.now_s == pytest.approx(50.0 + sum(sleeps_s))


class Peer:
    """One end of a connection between TaskManagers, by a clock that moves by hand."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.loop = EmbeddedEventLoop()
        config = NetstackConfig(heartbeat_interval_s=2.0, heartbeat_timeout_s=10.0)
        handlers = (self.Errors(self.errors), HeartbeatHandler(config, self.loop.loop, sends_first=True))
        self.channel = EmbeddedChannel(MessageEncoder(), MessageDecoder(config), *handlers, event_loop=self.loop)

    class Errors(ChannelHandler):
        def __init__(self, errors: list[Exception]) -> None:
            self._errors = errors

        def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
            self._errors.append(error)

    def sleep(self, duration_ms: int) -> None:
        """The clock goes on, and the loop stands still."""
        self.loop.clock.advance(duration_ms * 1_000_000)
        self.loop.advance(0)


@STEPS
def test_heartbeats_between_task_managers_do_not_follow_the_wall_clock(
    step_wall_clock: Callable[[int], None], step_ms: int
) -> None:
    """A silent peer is cut when it was silent for the timeout, neither earlier nor later."""
    peer = Peer()
    peer.loop.advance(5)

    step_wall_clock(step_ms)
    peer.loop.advance(4.5)
    assert peer.channel.is_active
    peer.loop.advance(1.5)

    assert not peer.channel.is_active
    assert [type(error) for error in peer.errors] == [ConnectionLostError]


def test_a_sleep_that_the_monotonic_clock_counts_cuts_no_peer() -> None:
    """One look, of a second, is all of it that counts as silence."""
    peer = Peer()

    peer.sleep(SLEEP_MS)
    peer.loop.advance(8.5)

    assert peer.channel.is_active
    peer.loop.advance(2)
    assert not peer.channel.is_active


class Unreachable:
    """An ``RpcClient`` that reaches no JobManager."""

    async def open_session(self) -> Any:
        raise RpcConnectError("refused")


class Pauses:
    """A clock, and pauses that take their time by it; ``late``: seconds more in the pause of a number."""

    def __init__(self, late: dict[int, float]) -> None:
        self.now_s = 0.0
        self.taken: list[float] = []
        self._late = late

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s + self._late.get(len(self.taken), 0.0)
        self.taken.append(duration_s)


def pauses_until_given_up(late: dict[int, float]) -> list[float]:
    """Return the pauses of a TaskManager that looks for its JobManager for 20 s."""
    pauses = Pauses(late)
    connection = JobManagerConnection(
        cast(RpcClient, Unreachable()),
        REGISTRATION,
        cast(TaskExecutor, None),
        ReconnectConfig(give_up_after_s=20.0),
        clock=pauses.clock,
        sleep=pauses.sleep,
    )
    with pytest.raises(JobManagerUnreachableError, match="no JobManager for 2"):
        asyncio.run(connection.run())
    return pauses.taken


def test_a_sleep_is_no_time_without_a_job_manager() -> None:
    """The TaskManager tries for as long as if its machine had not slept, with the pauses of that case."""
    expected = pauses_until_given_up({})

    assert pauses_until_given_up({2: SLEEP_MS / 1000, 5: 3600.0}) == expected
    assert expected[:4] == [0.1, 0.2, 0.4, 0.8]


@STEPS
def test_reconnecting_does_not_follow_the_wall_clock(step_wall_clock: Callable[[int], None], step_ms: int) -> None:
    expected = pauses_until_given_up({})

    step_wall_clock(step_ms)

    assert pauses_until_given_up({}) == expected


class Admission:
    """A gate's end of a producer's connection, whose token is good for a day; ``wall_ms`` is the wall clock."""

    def __init__(self) -> None:
        self.wall_ms = 10 * HOUR_MS
        self.num_taken = 0
        self.loop = EmbeddedEventLoop()
        self.identity = GateIdentity(b"J" * 16, "gate", self.wall_ms + 24 * HOUR_MS)
        handler = OfferedPartitionsHandler(self.loop, self.take_offer, lambda: self.wall_ms)
        handler.identity = self.identity
        config = NetstackConfig(network_memory_bytes=1 << 20)
        decoder = MessageDecoder(config, handler, accepted_ids=GATE_MESSAGE_IDS)
        self.channel = EmbeddedChannel(MessageEncoder(), decoder, handler, config=config)

    def take_offer(self, _gate: GateIdentity, _offer: SubpartitionOffer, _client: Any) -> None:
        self.num_taken += 1

    def offer(self) -> None:
        self.channel.write_inbound(encode(SubpartitionOffer(bytes(16), PARTITION, 0, 1, 0, "job", 0, 0, 0, b"T" * 16)))
        self.loop.run_pending()

    def pass_minutes(self, minutes: int) -> None:
        for _ in range(minutes):
            self.wall_ms += 60_000
            self.loop.advance(60)


@STEPS
def test_offers_are_admitted_until_the_wall_clock_is_at_the_end_of_their_token(step_ms: int) -> None:
    """The token says a time that other machines read, too; a step moves the end by no more than the step."""
    admission = Admission()
    admission.offer()

    admission.wall_ms += step_ms
    admission.offer()
    admission.wall_ms = admission.identity.expires_ms
    admission.offer()
    admission.wall_ms += 1
    admission.offer()

    assert admission.num_taken == 3


@pytest.mark.slow
@STEPS
def test_an_unused_connection_ends_with_its_token_although_the_clock_was_set(step_ms: int) -> None:
    """The connection lives on if the clock was put back, and ends a day after its beginning if it was put on; meanwhile
    no offer is taken.
    """
    admission = Admission()
    admission.pass_minutes(60)

    admission.wall_ms += step_ms
    admission.pass_minutes(22 * 60 + 50)
    before = admission.channel.is_active
    admission.pass_minutes(75)

    assert before
    assert not admission.channel.is_active


@STEPS
def test_a_request_of_a_producer_is_admitted_by_the_wall_clock(step_ms: int) -> None:
    """The JobManager knows the key of a gate's token until it ends."""
    now = [10 * HOUR_MS]
    api = RestApi(cast(Any, None), JobManagerConfig(bytes(32)), "jm", lambda: now[0], cast(Any, None))
    target = f"/producers/{'4a' * 16}/gate/{now[0] + 24 * HOUR_MS}/place"

    now[0] += step_ms
    assert api.key_of(target) is not None
    now[0] += 26 * HOUR_MS

    assert api.key_of(target) is None
