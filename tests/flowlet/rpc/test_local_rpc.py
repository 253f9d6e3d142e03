"""A JobManager without HTTP: the promises of HTTP, kept by a pair of sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from flowlet.rpc.local_rpc import MAX_WAITING, LocalServer, PipeRpc
from flowlet.rpc.requests import (
    MSGPACK,
    Request,
    Response,
    Route,
    Router,
    RpcConnectError,
    RpcGateway,
    RpcResponse,
    SessionEndedError,
    SessionTransport,
    error_response,
    refuse,
)
from tests.waiting import PATIENCE_S

Serve = Callable[[SessionTransport], Awaitable[None]]


class JobManager:
    """A JobManager that serves echoes, mistakes, and sessions that play a script."""

    def __init__(self) -> None:
        self.server = LocalServer(
            [
                Route("POST", "/echo/{name}", self.echo),
                Route("GET", "/bug", self.bug),
                Route("GET", "/never", self.never),
                Route("GET", "/refused", self.refused),
                Route("GET", "/empty", self.empty),
            ],
            self.serve,
        )
        self.script: Serve = self.echo_messages
        self.was_cancelled = asyncio.Event()

    async def echo(self, request: Request) -> Response:
        text = f"{request.match_info['name']} {request.query.get('mode')}".encode()
        return Response(status=202, body=text + b" " + request.body, content_type=MSGPACK)

    async def bug(self, request: Request) -> Response:
        raise ZeroDivisionError("a bug of ours")

    async def never(self, request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cancelled.set()
        return error_response(500)

    async def refused(self, request: Request) -> Response:
        refuse(409, "not now")

    async def empty(self, request: Request) -> Response:
        return Response(status=204)

    async def serve(self, transport: SessionTransport, peer: str | None) -> None:
        await self.script(transport)

    async def echo_messages(self, transport: SessionTransport) -> None:
        while (message := await transport.receive()) != b"end":
            await transport.send(message)


@pytest_asyncio.fixture
async def job_manager() -> AsyncIterator[JobManager]:
    job_manager = JobManager()
    yield job_manager
    await job_manager.server.close(0)


@pytest_asyncio.fixture
async def rpc(job_manager: JobManager) -> AsyncIterator[RpcGateway]:
    ours, theirs = socket.socketpair()
    job_manager.server.begin_pipe(ours, "child")
    async with await PipeRpc.open(theirs, "jm:1") as gateway:
        yield gateway


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 1000])
async def test_a_request_is_answered(rpc: RpcGateway, body: bytes) -> None:
    """Parts of the path are decoded; of a parameter's values the first one counts."""
    assert await rpc.request("POST", "/echo/a%20b%2F?mode=x%26&mode=y", body=body) == RpcResponse(
        202, b"a b/ x& " + body
    )


async def test_many_requests_are_answered_at_once(rpc: RpcGateway) -> None:
    answers = await asyncio.gather(*(rpc.request("POST", f"/echo/{number}") for number in range(50)))

    assert [answer.body for answer in answers] == [b"%d None " % number for number in range(50)]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nowhere", RpcResponse(404, b'{"errors":["Not Found"]}')),
        ("POST", "/echo/", RpcResponse(404, b'{"errors":["Not Found"]}')),
        ("GET", "/echo/a", RpcResponse(405, b'{"errors":["Method Not Allowed"]}')),
        ("GET", "/bug", RpcResponse(500, b'{"errors":["internal error; see the JobManager\'s log"]}')),
        ("GET", "/refused", RpcResponse(409, b'{"errors":["not now"]}')),
        ("GET", "/empty", RpcResponse(204, b"")),
    ],
)
async def test_errors_are_answers_as_over_http(rpc: RpcGateway, method: str, path: str, expected: RpcResponse) -> None:
    """A bug of ours shows nothing of itself."""
    assert await rpc.request(method, path) == expected


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["its time is over", "it was cancelled"])
async def test_a_request_that_nobody_waits_for_is_cancelled_at_the_job_manager(
    job_manager: JobManager, rpc: RpcGateway, is_cancelled: bool
) -> None:
    """The JobManager stops such a request, as it does at the end of an HTTP connection; other requests on the pipe go
    on.
    """
    request = asyncio.create_task(rpc.request("GET", "/never", timeout_s=PATIENCE_S if is_cancelled else 0.01))
    await rpc.request("GET", "/empty")
    if is_cancelled:
        request.cancel()

    async with asyncio.timeout(PATIENCE_S):
        await job_manager.was_cancelled.wait()

    [end] = await asyncio.gather(request, return_exceptions=True)
    assert type(end) is (asyncio.CancelledError if is_cancelled else RpcConnectError)
    assert is_cancelled or "no answer within 0.01 s" in str(end)
    assert (await rpc.request("GET", "/empty")).status == 204


async def test_what_is_under_way_fails_when_the_job_manager_closes(job_manager: JobManager, rpc: RpcGateway) -> None:
    call = asyncio.create_task(rpc.request("GET", "/never"))
    session = await rpc.open_session()
    await session.send(b"x")
    assert await session.receive(PATIENCE_S) == b"x"

    await job_manager.server.close(0)

    with pytest.raises(RpcConnectError, match="JobManager jm:1: the connection broke"):
        await call
    with pytest.raises(SessionEndedError):
        await session.receive(PATIENCE_S)
    with pytest.raises(RpcConnectError):
        await rpc.request("GET", "/empty")


async def test_messages_of_a_session_arrive_in_order_in_both_directions(rpc: RpcGateway) -> None:
    session = await rpc.open_session()
    messages = [b"%d" % number * number for number in range(200)]

    async def send_all() -> None:
        for message in messages:
            await session.send(message)

    sender = asyncio.create_task(send_all())
    assert [await session.receive(PATIENCE_S) for _ in messages] == messages
    await sender


async def test_the_end_of_a_session_says_why(job_manager: JobManager, rpc: RpcGateway) -> None:
    """Messages from before the end are received first; afterwards no message can be sent."""

    async def say_goodbye(transport: SessionTransport) -> None:
        await transport.send(b"last")
        await transport.close("enough")

    job_manager.script = say_goodbye
    session = await rpc.open_session()

    assert await session.receive(PATIENCE_S) == b"last"
    for _ in range(2):
        with pytest.raises(SessionEndedError, match="it closed the connection: enough"):
            await session.receive(PATIENCE_S)
    await session.close("thanks")
    with pytest.raises(ConnectionError):
        await session.send(b"more")


async def test_a_session_can_follow_another_one(rpc: RpcGateway) -> None:
    for _ in range(3):
        session = await rpc.open_session()
        await session.send(b"hello")
        assert await session.receive(PATIENCE_S) == b"hello"
        await session.close("the end")


async def test_a_job_manager_that_stops_opens_no_session(job_manager: JobManager, rpc: RpcGateway) -> None:
    job_manager.server.refuse_sessions()

    with pytest.raises(SessionEndedError, match="the JobManager is stopping"):
        await (await rpc.open_session()).receive(PATIENCE_S)


async def test_a_receiver_that_waits_in_vain_times_out(rpc: RpcGateway) -> None:
    session = await rpc.open_session()

    with pytest.raises(TimeoutError):
        await session.receive(0.01)
    await session.send(b"still there")
    assert await session.receive(PATIENCE_S) == b"still there"


@pytest.mark.slow  # looks twice for 0.2 s whether a sender waits
async def test_a_sender_waits_for_a_receiver_that_does_not_receive(job_manager: JobManager, rpc: RpcGateway) -> None:
    """The sender goes on when the receiver does, or ends with the session."""
    may_receive = asyncio.Event()
    messages = [bytes(1024)] * (5 * MAX_WAITING)

    async def receive_late(transport: SessionTransport) -> None:
        await may_receive.wait()
        for _ in messages:
            await transport.receive()
        await asyncio.Event().wait()

    async def send_all() -> None:
        for message in messages:
            await session.send(message)

    job_manager.script = receive_late
    session = await rpc.open_session()
    waiting = asyncio.create_task(send_all())
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()

    may_receive.set()
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    waiting = asyncio.create_task(send_all())
    await asyncio.wait([waiting], timeout=0.2)
    await job_manager.server.close(0)
    with pytest.raises(ConnectionError):
        await waiting


async def test_a_job_manager_whose_process_is_gone_is_told(job_manager: JobManager) -> None:
    ours, theirs = socket.socketpair()
    async with await PipeRpc.open(theirs, "jm:1") as rpc:
        call = asyncio.create_task(rpc.request("GET", "/never"))
        session = await rpc.open_session()
        await asyncio.sleep(0)
        ours.close()

        with pytest.raises(RpcConnectError, match="JobManager jm:1: the connection broke"):
            await call
        with pytest.raises(SessionEndedError, match="the connection broke"):
            await session.receive(PATIENCE_S)
        with pytest.raises(RpcConnectError, match="JobManager jm:1: the connection broke"):
            await rpc.open_session()


async def test_a_session_ends_with_the_child_that_has_it(job_manager: JobManager) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait_for_end(transport: SessionTransport) -> None:
        try:
            await transport.receive()
        except SessionEndedError as error:
            ended.set_result(str(error))

    job_manager.script = wait_for_end
    ours, theirs = socket.socketpair()
    job_manager.server.begin_pipe(ours, "child")
    async with await PipeRpc.open(theirs, "jm:1") as rpc:
        await rpc.open_session()

    async with asyncio.timeout(PATIENCE_S):
        assert "the connection broke" in await ended


async def test_of_two_routes_the_first_one_answers() -> None:
    async def first(_: Request) -> Response:
        return Response(body=b"first")

    async def second(_: Request) -> Response:
        return Response(body=b"second")

    router = Router([Route("GET", "/jobs/overview", first), Route("GET", "/jobs/{job_id}", second)])

    assert (await router.answer("GET", "/jobs/overview?x=1", b"")).body == b"first"
    assert (await router.answer("GET", "/jobs/other", b"")).body == b"second"
