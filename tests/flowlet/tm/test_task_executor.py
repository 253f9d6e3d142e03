"""A TaskManager and its JobManager: registration, loss, and the way back."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from flowlet.client.executor import to_message
from flowlet.client.remote import JobManagerApi
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.messages.control_messages import CancelTask, ReleaseResults
from flowlet.rpc.http import RpcClient
from flowlet.shipping.job_file_cache import JobFileCache
from flowlet.tm.jobmanager_connection import ReconnectConfig
from flowlet.tm.latency import latency_policy
from flowlet.tm.latency.latency_policy import BusyTasks, LatencyPolicy, TaskLoad
from flowlet.tm.task import Task
from flowlet.tm.task_executor import ProcessHooks, TaskExecutor, TaskExecutorConfig
from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import ConfigError
from netstack.ids import ExecutionAttemptID, IntermediateResultPartitionID, ResultPartitionID
from netstack.loop.eventloop import EventLoopThread
from tests.flowlet.client.jobs import endless_shuffle, hold, mapped, reached, released, word_count
from tests.waiting import PATIENCE_S

SECRET = secrets.token_bytes(32)
CONFIG = TaskExecutorConfig(
    num_slots=2,
    network=NetstackConfig(network_memory_bytes=4 * 1024 * 1024, security=SecurityConfig.hmac(SECRET)),
    reconnect=ReconnectConfig(first_pause_s=0.01, longest_pause_s=0.02),
)


class Hooks:
    """The calls of a TaskManager to the process around it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failure = asyncio.get_running_loop().create_future()
        self.is_idle = asyncio.Event()
        self.loads: list[TaskLoad] = []
        self.is_loaded = asyncio.Event()
        self.hooks = ProcessHooks(
            busy=lambda: self.calls.append("busy"), idle=self._idle, failed=self.failure.set_result, loaded=self._loaded
        )

    def _idle(self) -> None:
        self.calls.append("idle")
        self.is_idle.set()

    def _loaded(self, load: TaskLoad) -> None:
        self.loads.append(load)
        self.is_loaded.set()

    async def reason(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            reason: str = await self.failure
            return reason


class Cluster:
    """One TaskManager; JobManagers come and go at one address."""

    def __init__(self, loop: EventLoopThread) -> None:
        self.loop = loop
        self.hooks = Hooks()
        self.job_manager: JobManager | None = None
        self.address = ("127.0.0.1", 0)
        self._executor: TaskExecutor | None = None
        self._rpc: list[RpcClient] = []

    async def start_job_manager(self) -> None:
        self.job_manager = JobManager(JobManagerConfig(secret=SECRET))
        self.address = await self.job_manager.start(*self.address)

    async def stop_job_manager(self) -> None:
        if self.job_manager is not None:
            await self.job_manager.close()

    async def start_executor(self, config: TaskExecutorConfig = CONFIG, secret: bytes = SECRET) -> TaskExecutor:
        self._executor = TaskExecutor("tm-1", config, self.loop, self.hooks.hooks)
        await self._executor.start(self.rpc(secret))
        return self._executor

    async def registered(self, config: TaskExecutorConfig = CONFIG) -> TaskExecutor:
        """Start a JobManager, and the TaskManager, which registers there."""
        await self.start_job_manager()
        executor = await self.start_executor(config)
        await until_registered(executor)
        return executor

    async def submit(self, function: Callable[[Any], Any]) -> str:
        """Submit a job of one task that calls the function once, and whose results nobody reads; return its id."""
        job = to_message(mapped([1], function)[0])
        await self.api.submit(msgspec.structs.replace(job, edges=[]))
        return job.job_id

    async def submit_held(self, name: str) -> str:
        """Submit a job whose function has been called, and waits for ``name`` to be released; return its id."""
        job_id = await self.submit(lambda value: hold(name, value))
        await asyncio.to_thread(reached[name].wait, PATIENCE_S)
        assert reached[name].is_set()
        return job_id

    async def end_of(self, job_id: str) -> dict[str, Any]:
        document = await self.api.wait_terminal(job_id, PATIENCE_S)
        assert document is not None
        return document

    def rpc(self, secret: bytes = SECRET) -> RpcClient:
        self._rpc.append(RpcClient(*self.address, secret))
        return self._rpc[-1]

    @property
    def api(self) -> JobManagerApi:
        return JobManagerApi(self.rpc())

    async def close(self) -> None:
        if self._executor is not None:
            await self._executor.stop(PATIENCE_S)
        for rpc in self._rpc:
            await rpc.close()
        await self.stop_job_manager()


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    reached.clear()
    released.clear()
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    cluster = Cluster(loop)
    yield cluster
    await cluster.close()
    loop.close()


async def until_registered(executor: TaskExecutor) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await executor.is_registered.wait()


async def until_reached(name: str) -> None:
    await asyncio.to_thread(reached[name].wait, PATIENCE_S)
    assert reached[name].is_set()


async def test_a_task_manager_tells_who_it_is_and_the_address_at_which_peers_shall_dial_it(cluster: Cluster) -> None:
    """The entrance of a tunnel is such an address."""
    executor = await cluster.registered(replace(CONFIG, advertised=("127.0.0.1", 6121)))

    (document,) = await cluster.api.list_task_managers()
    assert (document["id"], document["path"]) == ("tm-1", "127.0.0.1:6121")
    assert "tm-1" in repr(executor)


async def test_it_waits_for_a_job_manager_that_is_not_there_yet(cluster: Cluster) -> None:
    """Processes may be started in any order."""
    await cluster.start_job_manager()
    await cluster.stop_job_manager()  # now the address is known, and nobody listens there
    executor = await cluster.start_executor()
    assert not executor.is_registered.is_set()

    await cluster.start_job_manager()

    await until_registered(executor)


async def test_it_runs_what_it_is_told_to_and_says_when_it_is_busy(cluster: Cluster) -> None:
    executor = await cluster.registered()
    job_id = await cluster.submit_held("map")
    (attempt,) = executor.heartbeat().tasks
    released["map"].set()
    document = await cluster.end_of(job_id)

    assert document["state"] == "FINISHED"
    assert attempt[:16].hex() == job_id
    assert executor.heartbeat().tasks == {}
    assert cluster.hooks.calls == ["busy", "idle"]


CROWDED = TaskLoad(is_crowded=True, num_working=2)


class AlwaysBusy(BusyTasks):
    """Reports a crowded process, as if its threads wanted the core."""

    def look(self) -> TaskLoad:
        return CROWDED


@pytest.mark.parametrize("follows_load", [False, True])
@pytest.mark.parametrize("busy_poll_us", [0, 1000])
async def test_who_asks_hears_what_the_tasks_do_and_a_loop_that_polls_leaves_them_the_core(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, busy_poll_us: int, *, follows_load: bool
) -> None:
    """The load is told some times per second, and when the last task ended; it is measured only if a caller asks."""
    monkeypatch.setattr(latency_policy, "BusyTasks", AlwaysBusy)
    await cluster.start_job_manager()
    policy = LatencyPolicy(follows_load=follows_load, busy_poll_us=busy_poll_us)
    executor = await cluster.start_executor(replace(CONFIG, latency=policy))
    await until_registered(executor)
    hooks, poller = cluster.hooks, executor.network.busy_poller

    await cluster.submit_held("map")
    if follows_load or busy_poll_us:
        async with asyncio.timeout(PATIENCE_S):
            await hooks.is_loaded.wait()
        assert set(hooks.loads) == {CROWDED}
        assert poller is None or "held" in repr(poller)
    released["map"].set()
    async with asyncio.timeout(PATIENCE_S):
        await hooks.is_idle.wait()

    assert hooks.loads[-1:] == ([TaskLoad()] if follows_load or busy_poll_us else [])
    assert poller is None or "held" not in repr(poller)


async def test_it_ends_itself_when_a_function_has_taken_its_data_port(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TaskManager without its data port would go on to take tasks whose results nobody can read."""
    await cluster.start_job_manager()
    monkeypatch.setattr(NetworkEnvironment, "has_lost_port", True)

    executor = await cluster.start_executor()
    await until_registered(executor)

    assert await cluster.hooks.reason() == (
        "its data port is gone: a function has closed or replaced file descriptors that are not its own; jobs that run "
        "here: none"
    )
    executor.heartbeat()  # says it no second time


async def test_a_lost_job_manager_ends_the_tasks_and_a_new_one_is_found(cluster: Cluster) -> None:
    """The ended tasks would serve nobody, and their slots must be free for the next JobManager."""
    executor = await cluster.registered()
    await cluster.api.submit(to_message(endless_shuffle(lambda value: hold("map", value))))
    await until_reached("map")
    released["map"].set()

    await cluster.stop_job_manager()
    async with asyncio.timeout(PATIENCE_S):
        await cluster.hooks.is_idle.wait()
    assert not executor.is_registered.is_set()
    await cluster.start_job_manager()
    await until_registered(executor)

    assert executor.heartbeat().tasks == {}
    assert len(await cluster.api.list_task_managers()) == 1


async def test_it_does_not_offer_the_slot_of_a_task_that_does_not_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next JobManager would give it to a job that then waits for the old one."""
    monkeypatch.setattr("flowlet.tm.task_executor._LOST_SESSION_GRACE_S", 0.0)
    executor = await cluster.registered()
    await cluster.submit_held("late")
    executor.is_registered.clear()

    lost = asyncio.create_task(executor.session_lost("a test"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(lost), 0.05)
    released["late"].set()

    async with asyncio.timeout(PATIENCE_S):
        await lost


async def test_results_of_a_lost_job_manager_are_released_when_all_tasks_have_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of a task that had finished before it heard of the cancel are released, too, as nobody would do so
    later.
    """
    results = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(bytes(40)))
    monkeypatch.setattr("flowlet.tm.task_executor.blocking_results", lambda _: [results])
    monkeypatch.setattr(Task, "cancel", lambda _: released["late"].set())  # too late
    executor = await cluster.registered()
    running: list[int] = []

    def release(partition_id: ResultPartitionID, cause: BaseException | None) -> None:
        if partition_id == results:
            running.append(len(executor.heartbeat().tasks))

    monkeypatch.setattr(executor.network.partition_manager, "release", release)
    await cluster.submit_held("late")

    async with asyncio.timeout(PATIENCE_S):
        await executor.session_lost("a test")

    assert running == [0]


@pytest.mark.slow
async def test_a_task_whose_thread_died_without_a_word_fails_its_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace function that a user's function has set ends threads before their first line."""

    def raise_error(*_: object) -> None:
        raise RuntimeError("a trace function")

    await cluster.registered()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    threading.settrace(raise_error)
    try:
        document = await cluster.end_of(await cluster.submit(abs))  # a heartbeat finds it
    finally:
        threading.settrace(None)

    assert "its thread ended without a report" in document["failure"]["message"]


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_task_whose_thread_cannot_be_started_fails_and_the_task_manager_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has only so many threads; the tasks that have theirs must not end for one that has none."""
    await cluster.registered()
    other = await cluster.submit_held("map")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        document = await cluster.end_of(await cluster.submit(abs))
    released["map"].set()

    assert document["failure"]["message"].startswith("its thread cannot be started (can't start new thread); ")
    assert document["failure"]["message"].endswith(
        "raise the limit of processes (ulimit -u, or the container's), or offer fewer slots"
    )
    assert (await cluster.end_of(other))["state"] == "FINISHED"
    assert not cluster.hooks.failure.done()


async def test_results_are_released_here_where_no_thread_can_be_started(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones go on another thread, if there is one; the order to release them must not end the session."""
    results = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(bytes(40)))
    monkeypatch.setattr("flowlet.tm.task_executor.blocking_results", lambda _: [results])
    monkeypatch.setattr("flowlet.tm.task_executor._LARGE_RESULTS_BYTES", 0)
    executor = await cluster.registered()
    on: list[str] = []

    def release(partition_id: ResultPartitionID, cause: BaseException | None) -> None:
        if partition_id == results:
            on.append(threading.current_thread().name)

    monkeypatch.setattr(executor.network.partition_manager, "release", release)
    await cluster.submit_held("late")
    [attempt] = executor.heartbeat().tasks
    released["late"].set()
    async with asyncio.timeout(PATIENCE_S):
        await cluster.hooks.is_idle.wait()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        executor.handle(ReleaseResults(attempt))

    assert on == [threading.current_thread().name]


async def test_the_files_of_jobs_are_removed_on_another_thread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large folder takes seconds, in which the loop would stand still."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(JobFileCache, "close", lambda _: threads.append(threading.current_thread()))
    executor = await cluster.registered()

    await executor.stop(PATIENCE_S)

    assert [each.name for each in threads] == ["files of tm-1"]


async def test_it_says_why_it_ends_and_its_jobs_get_that_as_their_cause(cluster: Cluster) -> None:
    executor = await cluster.registered()
    job_graph, edge_id = word_count()
    await cluster.api.submit(to_message(job_graph))
    channels = (await cluster.api.wait_channels(job_graph.job_id, edge_id)).channels

    assert [channel.tm_id for channel in channels] == ["tm-1", "tm-1"], "both subtasks have found a slot"
    executor.announce_end("it got SIGTERM")
    document = await cluster.end_of(job_graph.job_id)

    assert document["failure"]["message"].endswith("was lost: it got SIGTERM")


async def test_another_secret_is_not_tried_again(cluster: Cluster) -> None:
    """A wrong secret would be wrong for ever, and the person who started the TaskManager must hear of it."""
    await cluster.start_job_manager()

    await cluster.start_executor(secret=secrets.token_bytes(32))

    assert "same secret file" in await cluster.hooks.reason()


async def test_a_refused_registration_is_final_and_says_why(cluster: Cluster) -> None:
    await cluster.start_job_manager()

    await cluster.start_executor(replace(CONFIG, num_slots=100_000))

    assert (await cluster.hooks.reason()).startswith("the JobManager refused this TaskManager: it offers 100000 slots")


async def test_it_gives_up_when_there_is_no_job_manager_for_too_long(cluster: Cluster) -> None:
    await cluster.start_job_manager()
    await cluster.stop_job_manager()

    await cluster.start_executor(replace(CONFIG, reconnect=ReconnectConfig(0.001, 0.001, give_up_after_s=0.01)))

    reason = await cluster.hooks.reason()
    assert reason.startswith("no JobManager for 0 s, giving up: JobManager 127.0.0.1:")


async def test_the_data_port_is_for_this_machine_alone(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"refusing to listen on 0\.0\.0\.0"):
        await cluster.start_executor(replace(CONFIG, host="0.0.0.0"))


async def test_cancelling_an_unknown_attempt_does_nothing(cluster: Cluster) -> None:
    """The attempt may have ended while the message was under way."""
    await cluster.start_job_manager()
    executor = await cluster.start_executor()

    executor.handle(CancelTask(bytes(40)))

    assert executor.heartbeat().tasks == {}


async def test_stopping_cancels_what_runs_and_names_what_does_not_end(cluster: Cluster) -> None:
    executor = await cluster.registered()
    await cluster.submit_held("map")

    (stuck,) = await executor.stop(0.01)
    description = stuck.describe_stuck()
    released["map"].set()
    await stuck.ended.wait()
    stuck.join(PATIENCE_S)

    assert stuck.name == "mapped (1/1)"
    assert "in hold" in description


async def test_a_task_that_is_deployed_while_the_task_manager_stops_is_not_started(cluster: Cluster) -> None:
    """Nobody would cancel it, or wait for it."""
    executor = await cluster.registered()
    await cluster.submit_held("map")
    [(attempt, running)] = executor._tasks.items()
    stopping = asyncio.create_task(executor.stop(PATIENCE_S))
    await asyncio.sleep(0)  # its first step, up to the wait for the tasks
    assert running._cancelled.is_set()

    executor.handle(msgspec.structs.replace(running.descriptor, attempt=bytes(40)))
    attempts = list(executor.heartbeat().tasks)
    released["map"].set()

    assert await stopping == []
    assert attempts == [attempt]
