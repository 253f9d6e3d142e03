"""The control connection against a JobManager that misbehaves; ``test_task_executor`` has the well-behaved one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
import pytest_asyncio
import structlog
from aiohttp import web

from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import SubtaskEntry
from flowlet.rpc.auth import AcceptedRequest, AuthenticationError
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.http import RpcClient
from flowlet.rpc.request_head import RequestHead
from flowlet.rpc.requests import Response, SessionEndedError, SessionTransport
from flowlet.rpc.signed_websocket import SignedWebSocket
from flowlet.splits.split_kinds import FileSplit
from flowlet.tm.jobmanager_connection import JobManagerConnection, ReconnectConfig, heartbeat_interval_s
from flowlet.tm.task_executor import TaskExecutor
from tests.flowlet.rpc.frames import frames_of
from tests.waiting import PATIENCE_S

SECRET = bytes(32)
Script = Callable[[SignedWebSocket], Awaitable[None]]


class Listener(TaskExecutor):
    """Notes the calls of the connection."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.handled: list[messages.ToTaskManager] = []
        self.lost: asyncio.Queue[str] = asyncio.Queue()

    def registered(self, jm_id: str) -> None:
        self.sessions.append(jm_id)

    def handle(self, message: messages.ToTaskManager) -> None:
        self.handled.append(message)

    def heartbeat(self) -> messages.TaskManagerHeartbeat:
        return messages.TaskManagerHeartbeat("tm-1", {})

    async def session_lost(self, reason: str) -> None:
        await self.lost.put(reason)


class Server(AuthenticatingServer):
    """Plays a script on each connection, one after the other; the last one again and again."""

    def __init__(self) -> None:
        super().__init__(SECRET)
        self.scripts: list[Script] = []
        self.received: list[messages.ToJobManager] = []
        self.port = 0
        self.num_refusals = 0  # so many requests are refused, behind the first one or from it on
        self.refuses_first = False

    def judge(self, head: RequestHead, *, remember: bool) -> AcceptedRequest | Response:
        if self.num_refusals and (self.received or self.refuses_first):
            self.num_refusals -= 1
            return Response(status=401, body=b"")
        return super().judge(head, remember=remember)

    async def play(self, socket: SessionTransport, peer: str | None) -> None:
        assert isinstance(socket, SignedWebSocket)
        await self.receive(socket)
        await (self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0])(socket)
        await socket.close("the script is over")

    async def receive(self, socket: SignedWebSocket) -> messages.ToJobManager:
        message: messages.ToJobManager = msgspec.msgpack.Decoder(messages.union_of(messages.ToJobManager)).decode(
            await socket.receive()
        )
        self.received.append(message)
        return message


async def wait_for_end(socket: SignedWebSocket) -> None:
    with suppress(SessionEndedError):
        while True:
            await socket.receive()


async def welcome(socket: SignedWebSocket) -> None:
    """Accept the registration, and say no more."""
    await send(socket, messages.Registered("jm-1", 1000))


async def send(socket: SignedWebSocket, message: messages.ToTaskManager) -> None:
    await socket.send(msgspec.msgpack.encode(message))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    application = server.create_application([], server.play)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


def connection_over(rpc: RpcClient, listener: Listener) -> JobManagerConnection:
    registration = messages.RegisterTaskManager("tm-1", 1, "127.0.0.1", 1, 1)
    return JobManagerConnection(rpc, registration, listener, ReconnectConfig(0.001, 0.001))


@pytest_asyncio.fixture
async def listener(server: Server) -> AsyncIterator[Listener]:
    """Provide a connection that runs for as long as the test does."""
    listener = Listener()
    async with RpcClient("127.0.0.1", server.port, SECRET) as rpc:
        session = asyncio.create_task(connection_over(rpc, listener).run())
        yield listener
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)


async def lost(listener: Listener) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return await listener.lost.get()


async def test_the_first_message_is_the_registration_and_heartbeats_follow(server: Server, listener: Listener) -> None:
    async def welcome_and_listen(socket: SignedWebSocket) -> None:
        await send(socket, messages.Registered("jm-1", 1))
        await server.receive(socket)
        await server.receive(socket)

    server.scripts.append(welcome_and_listen)

    assert await lost(listener) == "the JobManager's session ended: it closed the connection: the script is over"
    assert listener.sessions[0] == "jm-1"
    assert isinstance(server.received[0], messages.RegisterTaskManager)
    assert server.received[1:3] == [messages.TaskManagerHeartbeat("tm-1", {})] * 2


async def test_orders_reach_the_listener_in_their_order(server: Server, listener: Listener) -> None:
    orders: list[messages.ToTaskManager] = []
    for number in range(3):
        attempt = bytes([number]) * 40
        orders += [
            messages.CancelTask(attempt),
            messages.AllowSourceWatermark(attempt, number),
            messages.FinishGate(attempt),
        ]
        orders += [messages.AddSplits(attempt, [FileSplit("a", 0, 9)], number), messages.NoMoreSplits(attempt)]
        orders += [messages.EmitMark(attempt, number), messages.MarkCompleted(attempt, number)]

    async def script(socket: SignedWebSocket) -> None:
        await welcome(socket)
        for order in orders:
            await send(socket, order)

    server.scripts.append(script)
    await lost(listener)

    assert listener.handled[: len(orders)] == orders


def test_heartbeats_come_often_enough_for_the_gauges_of_five_seconds() -> None:
    assert [heartbeat_interval_s(interval_ms) for interval_ms in (1, 1_000, 60_000)] == [0.001, 1.0, 1.0]


@pytest.mark.slow  # waits for a timeout of 0.3 s
async def test_a_jobmanager_that_says_nothing_more_is_lost(server: Server, listener: Listener) -> None:
    """A silent JobManager hangs, or a link acknowledges bytes and forwards none; the timeout is the JobManager's."""

    async def fall_silent(socket: SignedWebSocket) -> None:
        await send(socket, messages.Registered("jm-1", 1000, 300))
        for _ in range(3):
            await server.receive(socket)
        await wait_for_end(socket)

    server.scripts.append(fall_silent)

    silence = "no message from it for 0.3 s: it hangs, or a function keeps the interpreter's lock"
    assert await lost(listener) == f"the JobManager's session ended: {silence}"


async def test_garbage_ends_the_session_and_the_next_one_is_tried(server: Server, listener: Listener) -> None:
    """The peer may be a JobManager of another release, and be replaced by the right one."""

    async def garbage(socket: SignedWebSocket) -> None:
        await welcome(socket)
        await socket.send(b"\xc1")
        await wait_for_end(socket)

    async def text(socket: SignedWebSocket) -> None:
        await send(socket, messages.Registered("jm-2", 1000))
        await frames_of(socket).send_str("hello")
        await wait_for_end(socket)

    server.scripts += [garbage, text]

    assert (await lost(listener)).startswith(
        "the JobManager's session ended: it sent a message that is not understood: "
    )
    assert await lost(listener) == "the JobManager's session ended: it sent a text message"
    assert listener.sessions[:2] == ["jm-1", "jm-2"]


@pytest.mark.parametrize("is_signed", [False, True])
async def test_what_was_not_signed_for_this_session_deploys_nothing(
    server: Server, listener: Listener, is_signed: bool
) -> None:
    """A peer that only passed the handshake on has no key of the session; the listener raises if it has to deploy."""
    task = messages.TaskDeploymentDescriptor("", "", "", "", 0, 1, 1, bytes(40), b"a pickle", [], [])
    order = msgspec.msgpack.encode(task)

    async def deploy(socket: SignedWebSocket) -> None:
        await welcome(socket)
        if is_signed:
            await SignedWebSocket(frames_of(socket), send_key=bytes(32), receive_key=bytes(32)).send(order)
        else:
            await frames_of(socket).send_bytes(order)
        await wait_for_end(socket)

    server.scripts.append(deploy)

    assert (await lost(listener)).endswith("came that is not signed with the key of this session")


async def test_a_connection_that_never_registered_is_not_a_lost_session(server: Server, listener: Listener) -> None:
    """The connection has no session to give up; it is tried again without a word to the tasks."""
    attempts = asyncio.Queue[int]()

    async def hang_up(socket: SignedWebSocket) -> None:
        await attempts.put(1)

    server.scripts.append(hang_up)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await attempts.get()

    assert listener.lost.empty()
    assert listener.sessions == []


async def test_a_stranger_on_the_port_of_a_lost_job_manager_does_not_end_a_task_manager(
    server: Server, listener: Listener
) -> None:
    """Anybody can answer 401, or without a proof; the TaskManager goes on looking for its JobManager."""
    server.scripts.append(welcome)
    server.num_refusals = 3
    await lost(listener)
    await lost(listener)

    assert server.num_refusals == 0
    assert listener.sessions[:2] == ["jm-1", "jm-1"]


async def test_before_its_first_session_a_task_manager_ends_where_it_is_refused(server: Server) -> None:
    """Another secret is a mistake of the person who starts the TaskManager and is to hear of it at once."""
    server.num_refusals, server.refuses_first = 1, True
    async with RpcClient("127.0.0.1", server.port, SECRET) as rpc:
        with pytest.raises(AuthenticationError, match="same secret file"):
            await connection_over(rpc, Listener()).run()


@pytest.mark.parametrize(
    "last",
    [
        messages.TaskStateChanged(bytes(40), ExecutionState.FINISHED),
        messages.CheckpointAcknowledged(bytes(40), 7, SubtaskEntry("v", 0)),
        messages.TaskManagerHeartbeat("tm-1", {}),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_message_that_finds_no_room_ends_the_session(server: Server, last: messages.ToJobManager) -> None:
    """A session that goes on without it would leave a job that waits for ever; a lost session
    starts the tasks again.
    """
    listener, is_over = Listener(), asyncio.Event()

    async def welcome_and_read_nothing(socket: SignedWebSocket) -> None:
        await welcome(socket)
        await is_over.wait()

    server.scripts.append(welcome_and_read_nothing)
    async with RpcClient("127.0.0.1", server.port, SECRET) as rpc:
        connection = connection_over(rpc, listener)

        def registered(jm_id: str) -> None:
            if not listener.sessions:
                asyncio.get_running_loop().call_soon(flood)
            listener.sessions.append(jm_id)

        def flood() -> None:
            for _ in range(10_000):  # the loop has no time to send any of them meanwhile
                connection.send(messages.TaskManagerHeartbeat("tm-1", {}))
            connection.send(last)

        listener.registered = registered  # type: ignore[method-assign]
        session = asyncio.create_task(connection.run())
        reason = await lost(listener)
        is_over.set()
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)

    assert reason == "the JobManager's session ended: the JobManager does not read its messages, 10000 are waiting"


async def test_a_heartbeat_that_cannot_be_made_ends_the_session(server: Server, listener: Listener) -> None:
    """A session without heartbeats would look alive for seconds, and then be taken for a lost process."""

    def broken() -> messages.TaskManagerHeartbeat:
        raise RuntimeError("no counters")

    async def welcome_and_listen(socket: SignedWebSocket) -> None:
        await welcome(socket)
        await socket.receive()

    listener.heartbeat = broken  # type: ignore[method-assign]
    server.scripts.append(welcome_and_listen)

    with structlog.testing.capture_logs() as logs:
        await lost(listener)

    assert any(line["event"] == "a helper of the control connection failed" for line in logs)
