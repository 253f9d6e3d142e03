"""Tests of ``flowlet.jm.taskmanager_session``: registration, replacement, bad messages, and TaskManagers that do not
behave.
"""

import asyncio
from typing import Any, cast

import msgspec
import pytest
import structlog

from flowlet.jm import taskmanager_session
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.taskmanager_session import TaskManagerSession
from flowlet.messages.control_messages import (
    PROTOCOL_VERSION,
    CancelTask,
    Registered,
    RegistrationRefused,
    TaskManagerHeartbeat,
    TaskMetrics,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc import requests
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import SessionEndedError
from flowlet.rpc.signed_websocket import SignedWebSocket
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SECRET, registration, user_failure, word_count
from tests.waiting import PATIENCE_S, Stopwatch


class TestRegistration:
    async def test_the_welcome_says_how_often_to_report(self, cluster: Cluster) -> None:
        task_manager = await cluster.open()
        await task_manager.send(registration())

        welcome = await task_manager.expect(Registered)

        assert (welcome.heartbeat_interval_ms, welcome.heartbeat_timeout_ms) == (10_000, 50_000)
        assert len(welcome.jm_id) == 16

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"protocol_version": 1},
                f"it speaks protocol version 1, this JobManager {PROTOCOL_VERSION}: use the same release",
            ),
            ({"tm_id": ""}, "its id must be"),
            ({"tm_id": "x" * 65}, "its id must be"),
            ({"tm_id": "a b"}, "its id must be"),
            ({"tm_id": "tm\n"}, "its id must be"),
            ({"num_slots": 0}, "it offers 0 slots, it must offer 1 to 1024"),
            ({"num_slots": 1025}, "it offers 1025 slots, it must offer"),
            ({"data_port": 0}, "its data port is 0, it must be 1 to 65535"),
            ({"data_port": 65_536}, "its data port is 65536, it must be 1 to 65535"),
            ({"data_host": ""}, "its data host must have 1 to 255 printable characters"),
            ({"data_host": "a\x1b[2J"}, "its data host must have 1 to 255 printable characters"),
        ],
    )
    async def test_a_bad_one_is_refused_with_the_reason(
        self, cluster: Cluster, changes: dict[str, Any], reason: str
    ) -> None:
        task_manager = await cluster.open()
        await task_manager.send(msgspec.structs.replace(registration(), **changes))

        refusal = await task_manager.expect(RegistrationRefused)

        assert refusal.reason.startswith(reason)
        assert (await task_manager.expect_close()).startswith(reason)
        assert len(cluster.dispatcher.sessions) == 0

    @pytest.mark.parametrize(
        ("first", "reason"),
        [
            (TaskManagerHeartbeat("tm-1", {}), "the first message must be a registration, not a TaskManagerHeartbeat"),
            (None, "it sent a text message"),
        ],
    )
    async def test_anything_else_first_ends_the_connection(
        self, cluster: Cluster, first: TaskManagerHeartbeat | None, reason: str
    ) -> None:
        """The log of the JobManager has the reason, too."""
        task_manager = await cluster.open()
        if first is None:
            await task_manager.frames.send_str("hello")
        else:
            await task_manager.send(first)

        with structlog.testing.capture_logs() as logs:
            assert await task_manager.expect_close() == reason
        assert [(line["event"], line["reason"], line["peer"]) for line in logs] == [
            ("a TaskManager did not register", reason, "127.0.0.1")
        ]

    async def test_silence_instead_ends_the_connection(self, unstarted: Cluster) -> None:
        await unstarted.start(registration_timeout_s=0.01)
        task_manager = await unstarted.open()

        silence = "the first message must be a registration, and none came within 0.01 s"
        assert await task_manager.expect_close() == silence

    async def test_too_many_are_refused(self, unstarted: Cluster) -> None:
        await unstarted.start(max_task_managers=1)
        await unstarted.connect("tm-1")
        second = await unstarted.open("tm-2")
        await second.send(registration("tm-2"))

        assert "1 TaskManagers are registered already" in (await second.expect(RegistrationRefused)).reason

    async def test_a_second_session_replaces_the_first(self, cluster: Cluster) -> None:
        """The tasks of the TaskManager are lost, and later messages of the first session concern no task."""
        first = await cluster.connect()
        cluster.dispatcher.submit(word_count())
        attempts = [(await first.expect_deployment()).attempt for _ in range(2)]

        second = await cluster.connect()

        assert await first.expect_close() == "it registered again"
        job = cluster.dispatcher.jobs.get(JOB_ID)
        assert job is not None
        assert await job.wait_until_ended(5)
        assert job.graph.failure is not None
        assert job.graph.failure.message.endswith("was lost: it registered again")
        assert len(cluster.dispatcher.sessions) == 1
        await second.report(attempts[0], ExecutionState.RUNNING)
        await second.heartbeat(**{f"a{attempts[0].hex()}": TaskMetrics(num_records_in=1)})
        cluster.dispatcher.submit(word_count("f" * 32))
        assert (await second.expect_deployment()).job_id == "f" * 32


class TestMessages:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xc1",
            msgspec.msgpack.encode({"type": "Nothing"}),
            msgspec.msgpack.encode({"type": "TaskDeploymentDescriptor"}),
        ],
    )
    async def test_an_invalid_one_ends_the_session(self, cluster: Cluster, data: bytes) -> None:
        """A message that only a JobManager may send is invalid, too."""
        task_manager = await cluster.connect()
        await task_manager.websocket.send(data)

        assert (await task_manager.expect_close()).startswith("it sent an invalid message: ")
        assert len(cluster.dispatcher.sessions) == 0

    async def test_a_text_or_a_second_registration_ends_the_session(self, cluster: Cluster) -> None:
        texts, registers = await cluster.connect("tm-1"), await cluster.connect("tm-2")
        await texts.frames.send_str("{}")
        await registers.send(registration())

        assert await texts.expect_close() == "it sent a text message"
        assert await registers.expect_close() == "it registered twice on one connection"

    async def test_one_that_is_not_signed_ends_the_session_and_both_ends_know_why(self, cluster: Cluster) -> None:
        task_manager = await cluster.connect()
        await task_manager.frames.send_bytes(msgspec.msgpack.encode(TaskManagerHeartbeat("tm-1", {})))

        with structlog.testing.capture_logs() as logs:
            reason = await task_manager.expect_close()

        assert reason.endswith("bytes came that is not signed with the key of this session")
        assert [(line["event"], line["reason"]) for line in logs] == [("TaskManager lost", reason)]

    async def test_what_it_was_sent_itself_is_not_one_of_its_messages(self, cluster: Cluster) -> None:
        """Each direction has its own key."""
        task_manager = await cluster.open()
        await task_manager.send(registration())
        await task_manager.frames.send_bytes((await task_manager.frames.receive()).data)

        assert "is not signed with the key of this session" in await task_manager.expect_close()

    async def test_a_message_about_somebody_elses_task_is_counted_and_ignored(self, cluster: Cluster) -> None:
        owner = await cluster.connect("tm-1")
        cluster.dispatcher.submit(word_count())
        attempt = (await owner.expect_deployment()).attempt
        stranger = await cluster.connect("tm-2")
        await stranger.report(attempt, ExecutionState.FAILED, user_failure())
        await stranger.report(b"", ExecutionState.FAILED, user_failure())
        await stranger.send(registration())  # ends the session: everything before it has been read then
        await stranger.expect_close()

        job = cluster.dispatcher.jobs.get(JOB_ID)

        assert job is not None
        assert job.graph.status.name == "RUNNING"
        assert cluster.dispatcher.num_ignored_messages == 2

    async def test_a_heartbeat_is_a_sign_of_life(self, cluster: Cluster) -> None:
        task_manager = await cluster.connect()
        session = next(iter(cluster.dispatcher.sessions.values()))
        session._last_heard_s -= 1_000

        await task_manager.heartbeat()
        await task_manager.frames.send_str("the end")
        await task_manager.expect_close()

        assert session.silence_s < 1_000


class SilentWebSocket:
    """A ``SignedWebSocket``, as far as reading goes: times out again and again, each time late by the next of
    ``stalls_s``.
    """

    def __init__(self, *stalls_s: float) -> None:
        self.now_s = 0.0
        self.stalls_s = list(stalls_s)

    async def receive(self, timeout_s: float) -> Any:
        self.now_s += timeout_s + (self.stalls_s.pop(0) if self.stalls_s else 0.0)
        raise TimeoutError


@pytest.mark.parametrize("stalls_s", [[], [0.5], [45.0], [0.0, 1000.0, 60.0]])
async def test_silence_while_our_own_loop_stood_still_does_not_count(cluster: Cluster, stalls_s: list[float]) -> None:
    """The TaskManager's messages of that time are still in the socket, so it gets its whole time without the stall."""
    websocket = SilentWebSocket(*stalls_s)
    session = TaskManagerSession(
        cast(SignedWebSocket, websocket),
        cluster.dispatcher,
        JobManagerConfig(SECRET),
        "jm",
        monotonic=lambda: websocket.now_s,
    )

    assert await session._read() == "no message from it for 50 s: it hangs, or a function keeps the interpreter's lock"
    assert websocket.now_s == pytest.approx(50.0 + sum(stalls_s))


class HeldWebSocket:
    """A ``SignedWebSocket`` of a TaskManager that registers; the test decides when and how reading and sending end."""

    def __init__(self) -> None:
        self.hangs_up = asyncio.Event()
        self.sends = asyncio.Event()
        self.is_cancelled = asyncio.Event()
        self.may_end = asyncio.Event()
        self.send_error: Exception | None = None
        self.close_reasons: list[str] = []
        self._has_registered = False

    async def receive(self, timeout_s: float) -> bytes:
        if not self._has_registered:
            self._has_registered = True
            return msgspec.msgpack.encode(registration())
        await self.hangs_up.wait()
        raise SessionEndedError("it hung up")

    async def send(self, content: bytes) -> None:
        self.sends.set()
        if self.send_error is not None:
            raise self.send_error
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled.set()
            await self.may_end.wait()

    async def close(self, reason: str, **_: Any) -> None:
        self.close_reasons.append(reason)
        self.hangs_up.set()


def session_over(websocket: HeldWebSocket, cluster: Cluster) -> TaskManagerSession:
    return TaskManagerSession(cast(SignedWebSocket, websocket), cluster.dispatcher, JobManagerConfig(SECRET), "jm")


async def test_a_session_that_is_cancelled_while_its_writer_ends_is_cancelled(cluster: Cluster) -> None:
    """The task that cancels the session waits for its end; the connection is closed nevertheless."""
    websocket = HeldWebSocket()
    session = asyncio.create_task(session_over(websocket, cluster).run())
    await websocket.sends.wait()
    websocket.hangs_up.set()
    await websocket.is_cancelled.wait()

    session.cancel()
    await asyncio.sleep(0)
    websocket.may_end.set()
    await asyncio.wait([session])

    assert session.cancelled()
    assert websocket.close_reasons == ["it hung up"]
    assert len(cluster.dispatcher.sessions) == 0


async def test_a_writer_that_fails_ends_its_session(cluster: Cluster) -> None:
    """A session that reads but sends nothing would look alive, and no task would ever start."""
    websocket = HeldWebSocket()
    websocket.send_error = ValueError("not this message")
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            await session_over(websocket, cluster).run()

    reason = "the JobManager's side failed: ValueError: not this message"
    assert [line["reason"] for line in logs if line["event"] == "TaskManager lost"] == [reason]
    assert set(websocket.close_reasons) == {reason}
    assert len(cluster.dispatcher.sessions) == 0


async def test_a_task_manager_that_sends_but_never_reads_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TaskManager's heartbeats would keep a session alive in which no order arrives."""
    monkeypatch.setattr(requests, "DRAIN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(taskmanager_session, "MAX_QUEUED_MESSAGES", 1)
    websocket = HeldWebSocket()
    websocket.may_end.set()
    session = session_over(websocket, cluster)
    running = asyncio.create_task(session.run())
    await websocket.sends.wait()

    for _ in range(2):
        session.send(CancelTask(bytes(40)))

    async with asyncio.timeout(PATIENCE_S):
        await running
    assert set(websocket.close_reasons) == {"it does not read its messages, 1 are waiting"}
    assert len(cluster.dispatcher.sessions) == 0


async def test_a_session_that_cannot_send_ends_also_if_it_can_receive(cluster: Cluster) -> None:
    """The reader may see nothing of a connection that is broken in one direction."""
    websocket = HeldWebSocket()
    websocket.send_error = ConnectionResetError("broken in one direction")

    async with asyncio.timeout(PATIENCE_S):
        await session_over(websocket, cluster).run()

    assert websocket.close_reasons[0] == "it takes no more messages"
    assert len(cluster.dispatcher.sessions) == 0


async def test_a_listener_that_fails_leaves_no_connection_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    websocket = HeldWebSocket()
    websocket.may_end.set()

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cluster.dispatcher, "task_manager_lost", fail)
    session = asyncio.create_task(session_over(websocket, cluster).run())
    await websocket.sends.wait()
    websocket.hangs_up.set()

    with pytest.raises(ValueError, match="a bug"):
        await session
    assert websocket.close_reasons == ["it hung up"]
    assert websocket.is_cancelled.is_set()


class TestBadTaskManagers:
    async def test_one_with_too_many_unread_messages_is_lost(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The queue is bounded; messages that were in it before still go out."""
        monkeypatch.setattr(taskmanager_session, "MAX_QUEUED_MESSAGES", 1)
        task_manager = await cluster.connect()
        job = cluster.dispatcher.submit(word_count())

        await task_manager.expect_deployment()
        reason = await task_manager.expect_close()

        assert reason == "it does not read its messages, 1 are waiting"
        assert await job.wait_until_ended(5)
        assert job.graph.failure is not None
        assert job.graph.failure.message.endswith(reason)

    async def test_one_that_cuts_the_connection_is_lost_at_once(self, cluster: Cluster) -> None:
        """A cut connection looks like a killed process: there is no goodbye."""
        task_manager = await cluster.connect()
        job = cluster.dispatcher.submit(word_count())
        task_manager.transport.abort()

        assert await job.wait_until_ended(5)

        assert job.graph.failure is not None
        assert "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost" in job.graph.failure.message
        assert len(cluster.dispatcher.sessions) == 0

    @pytest.mark.slow
    async def test_one_that_does_not_read_cannot_hold_up_the_end(self, cluster: Cluster) -> None:
        """The receive buffer of such a TaskManager is full; the JobManager still closes within two seconds."""
        task_manager = await cluster.connect()
        task_manager.transport.pause_reading()
        vertices = [msgspec.structs.replace(each, chain=b"x" * (40 << 20)) for each in word_count().vertices]
        cluster.dispatcher.submit(msgspec.structs.replace(word_count(), vertices=vertices))

        with Stopwatch() as watch:
            await cluster.job_manager.close()

        assert watch.seconds < 2


async def test_a_client_with_another_secret_gets_no_websocket(cluster: Cluster) -> None:
    async with RpcClient(*cluster.address, b"t" * 32) as client:
        with pytest.raises(AuthenticationError):
            await client.open_session()
    assert len(cluster.dispatcher.sessions) == 0
