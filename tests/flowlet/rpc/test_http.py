"""Tests of ``flowlet.rpc.http``: client and server over a real socket, also if one of them is a stranger."""

import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from flowlet.rpc.auth import (
    AUTH_HEADER,
    PROOF_HEADER,
    TIME_HEADER,
    AcceptedRequest,
    AuthenticationError,
    Nonce,
    RequestLine,
    sign_answer,
    sign_request,
)
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.http import RpcClient
from flowlet.rpc.request_head import RequestHead
from flowlet.rpc.requests import (
    SESSION_PATH,
    Request,
    Response,
    Route,
    RpcConnectError,
    RpcResponse,
    RpcStatusError,
    SessionEndedError,
    SessionTransport,
    steady_clock,
    wall_clock_ms,
)

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
NOW = 1_700_000_000_000
LIMIT = 1_000


@asynccontextmanager
async def listening(application: web.Application) -> AsyncIterator[int]:
    """Serve an application; yield its port."""
    runner = web.AppRunner(application, access_log=None, lingering_time=0.1, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


class Echo:
    """A protected server; its handlers note the requests that reached them."""

    def __init__(
        self, secret: bytes = SECRET, advertised: Sequence[str] = (), clock: Callable[[], int] = lambda: NOW
    ) -> None:
        self.protection = AuthenticatingServer(secret, advertised=advertised, max_body_bytes=LIMIT, clock=clock)
        self.reached: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Echo"]:
        routes = [Route(method, "/echo", self.echo) for method in ("GET", "POST")] + [Route("GET", "/bug", self.bug)]
        async with listening(self.protection.create_application(routes, self.echo_messages)) as self.port:
            yield self

    async def echo(self, request: Request) -> Response:
        self.reached.append(request.raw_path)
        return Response(status=202, body=request.body)

    async def echo_messages(self, transport: SessionTransport, peer: str | None) -> None:
        self.reached.append(SESSION_PATH)
        with suppress(SessionEndedError):
            while True:
                await transport.send(await transport.receive())

    async def bug(self, request: Request) -> Response:
        raise ZeroDivisionError("a bug of ours")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Echo]:
    async with Echo().running() as echo:
        yield echo


@pytest_asyncio.fixture
async def client(server: Echo) -> AsyncIterator[RpcClient]:
    async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: NOW) as client:
        yield client


@dataclass
class Answer:
    """An answer, as a client of another library has it."""

    status: int
    body: bytes
    headers: Mapping[str, str]


async def ask(
    server: Echo, method: str, path: str = "/echo", headers: Mapping[str, str] | None = None, data: Any = None
) -> Answer:
    """Send a request with a client of another library."""
    url = f"http://127.0.0.1:{server.port}{path}"
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, url, headers=headers, data=data) as answer,
    ):
        return Answer(answer.status, await answer.read(), answer.headers)


def signed_for(
    server: Echo, method: str = "POST", path: str = "/echo", *, body: bytes = b"", host: str = "", now_ms: int = NOW
) -> dict[str, str]:
    """Return the header with which a request is signed."""
    line = RequestLine(method, host or f"127.0.0.1:{server.port}", path)
    return {AUTH_HEADER: sign_request(SECRET, line, body, Nonce("0" * 32), now_ms)}


class TestTogether:
    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256))])
    @pytest.mark.parametrize("path", ["/echo", "/echo?mode=a%20b&x=%2F", "/%65cho"])
    async def test_a_signed_request_is_served(self, server: Echo, client: RpcClient, path: str, body: bytes) -> None:
        """Client and server sign one path, whatever it looks like on the wire."""
        answer = await client.request("POST", path, body=body)

        assert answer == RpcResponse(202, body)
        assert server.protection.num_refused == 0

    async def test_a_websocket_is_opened(self, client: RpcClient) -> None:
        websocket = await client.open_session()

        await websocket.send(b"hello")

        assert await websocket.receive() == b"hello"
        await websocket.close("the end")

    async def test_an_unknown_path_is_a_proven_404(self, client: RpcClient) -> None:
        answer = await client.request("GET", "/nowhere")

        assert (answer.status, answer.body) == (404, b'{"errors":["Not Found"]}')

    async def test_a_bug_is_a_500_that_shows_nothing(self, client: RpcClient) -> None:
        answer = await client.request("GET", "/bug")

        assert answer.status == 500
        assert b"bug of ours" not in answer.body

    @pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
    async def test_a_body_beyond_the_limit_is_refused(self, server: Echo, client: RpcClient, size: int) -> None:
        answer = await client.request("POST", "/echo", body=b"x" * size)

        assert (answer.status == 202) == (size == LIMIT)
        assert len(server.reached) == (size == LIMIT)


class TestForeignClients:
    @pytest.mark.parametrize("path", ["/echo", SESSION_PATH, "/nowhere", "/bug"])
    async def test_without_a_signature_nothing_is_reached(self, server: Echo, path: str) -> None:
        answer = await ask(server, "GET", path)

        assert (answer.status, answer.body) == (401, b'{"errors":["authentication failed"]}')
        assert PROOF_HEADER not in answer.headers
        assert server.reached == []

    async def test_health_needs_none(self, server: Echo) -> None:
        answer = await ask(server, "GET", "/healthz")

        assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
        assert PROOF_HEADER not in answer.headers

    async def test_a_replay_is_refused(self, server: Echo) -> None:
        assert [(await ask(server, "POST", headers=signed_for(server))).status for _ in range(2)] == [202, 401]
        assert server.reached == ["/echo"]

    async def test_an_expired_signature_is_refused(self, server: Echo) -> None:
        assert (await ask(server, "POST", headers=signed_for(server, now_ms=NOW - 60_001))).status == 401

    @pytest.mark.parametrize("encoding", [None, "gzip"])
    async def test_another_body_than_the_signed_one_is_refused(self, server: Echo, encoding: str | None) -> None:
        """A body that only looks different on the wire is another body, too."""
        headers = signed_for(server, body=gzip.compress(b"y"))
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        body = b"x" if encoding is None else gzip.compress(b"y")

        assert (await ask(server, "POST", headers=headers, data=body)).status == 400
        assert server.reached == []

    @staticmethod
    def check_proven_error(answer: Answer) -> None:
        """The client would say that the secret is wrong if the answer had no proof."""
        assert (answer.status, answer.body) == (500, b'{"errors":["internal error; see the JobManager\'s log"]}')
        assert answer.headers[PROOF_HEADER] == sign_answer(SECRET, Nonce("0" * 32), 500, answer.body)

    async def test_a_bug_before_a_session_is_open_is_a_proven_500(
        self, server: Echo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr("flowlet.rpc.authenticating_server.new_nonce", fail)

        answer = await ask(server, "GET", SESSION_PATH, signed_for(server, "GET", SESSION_PATH))

        self.check_proven_error(answer)

    async def test_a_body_that_cannot_be_unpacked_is_a_proven_500(
        self, server: Echo, caplog: pytest.LogCaptureFixture
    ) -> None:
        body = b"this is no gzip"

        answer = await ask(
            server, "POST", headers=signed_for(server, body=body) | {"Content-Encoding": "gzip"}, data=body
        )

        self.check_proven_error(answer)
        assert server.reached == []
        assert "request failed" in caplog.text

    async def test_a_body_without_end_is_cut_at_the_limit(self, server: Echo) -> None:
        """Chunked, so that no length is announced."""

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * LIMIT

        assert (await ask(server, "POST", headers=signed_for(server, body=b"x"), data=endless())).status == 413
        assert server.reached == []

    @pytest.mark.parametrize(
        ("header", "status", "values"),
        [
            pytest.param(
                "Host",
                403,
                [
                    "evil.example",
                    "evil.example:8081",
                    "127.0.0.1.evil.example",
                    "10.0.0.1",
                    "",
                    "[fe80::1]:80",
                    "0.0.0.0",
                ],
                id="foreign hosts",
            ),
            pytest.param(
                "Host",
                200,
                ["localhost", "localhost:99", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8081"],
                id="hosts of loopback",
            ),
            pytest.param("Origin", 403, ["http://evil.example", "null", "", "http://["], id="foreign origins"),
            pytest.param("Origin", 200, ["http://localhost:3000", "http://127.0.0.1"], id="origins of loopback"),
        ],
    )
    async def test_what_names_another_host_is_refused_even_an_open_path(
        self, server: Echo, header: str, status: int, values: list[str]
    ) -> None:
        """DNS rebinding: the browser sends the attacker's name."""
        found = {each: (await ask(server, "GET", "/healthz", {header: each})).status for each in values}

        assert found == dict.fromkeys(values, status)

    @pytest.mark.parametrize(
        "host", ["127.0.0.1:{other}", "localhost:{other}", "127.0.0.2:{port}", "[::1]:{port}", "127.0.0.1"]
    )
    async def test_a_request_for_another_address_is_refused(self, server: Echo, host: str) -> None:
        """A server at another address could pass on the requests that clients sent to it."""
        host = host.format(port=server.port, other=server.port + 1)

        assert (await ask(server, "POST", headers={"Host": host} | signed_for(server, host=host))).status == 421
        assert server.reached == []

    @pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:9"])
    async def test_localhost_and_advertised_addresses_are_its_own(self, host: str) -> None:
        async with Echo(advertised=("127.0.0.1:9",)).running() as echo:
            host = host.format(port=echo.port)

            assert (await ask(echo, "POST", headers={"Host": host} | signed_for(echo, host=host))).status == 202

    async def test_refusals_are_counted(self, server: Echo) -> None:
        for _ in range(3):
            await ask(server, "GET")

        assert server.protection.num_refused == 3


class TestClocks:
    @pytest.mark.parametrize("behind_ms", [-3_600_000, 3_600_000, NOW])
    async def test_a_client_with_another_time_asks_again_with_the_servers(self, server: Echo, behind_ms: int) -> None:
        """The server's is not put back or forward with the machine's clock, so the two may differ by any time."""
        async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: NOW - behind_ms) as client:
            assert (await client.request("POST", "/echo", body=b"x")).body == b"x"
            await (await client.open_session()).close("the end")
        async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: NOW - behind_ms) as client:
            await (await client.open_session()).close("the end")

        assert server.reached == ["/echo", SESSION_PATH, SESSION_PATH]
        assert server.protection.num_refused == 2, "each client asks again once"

    @pytest.mark.parametrize("proof", [None, "0" * 64])
    async def test_the_time_of_a_stranger_is_not_believed(self, proof: str | None) -> None:
        """A stranger could collect requests that are dated ahead."""
        num_requests = 0

        async def refuse(request: web.Request) -> web.Response:
            nonlocal num_requests
            num_requests += 1
            return web.Response(
                status=401, headers={TIME_HEADER: str(NOW)} | ({} if proof is None else {PROOF_HEADER: proof})
            )

        async with served(refuse) as port, RpcClient("127.0.0.1", port, SECRET, clock=lambda: 0) as client:
            with pytest.raises(AuthenticationError):
                await client.request("GET", "/")
            with pytest.raises(AuthenticationError):
                await client.open_session()
        assert num_requests == 2

    def test_the_servers_clock_is_not_put_back_or_forward(self) -> None:
        wall_ms, monotonic_ns = 1_000, 5_000_000
        clock = steady_clock(lambda: wall_ms, lambda: monotonic_ns)

        wall_ms = 0
        assert clock() == 1_000
        monotonic_ns += 2_500_000
        assert clock() == 1_002

    async def test_the_usual_clock_of_a_server_is_such_a_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        protection = AuthenticatingServer(SECRET)
        now_ms = wall_clock_ms()
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        head = RequestHead("GET", "/", "localhost:1", None, None, "127.0.0.1", 1)
        signature = sign_request(SECRET, RequestLine("GET", "localhost:1", "/"), b"", Nonce("0" * 32), now_ms)

        assert isinstance(
            protection.judge(msgspec.structs.replace(head, signature=signature), remember=True), AcceptedRequest
        )

    async def test_a_replay_is_refused_after_the_clock_was_put_back(self) -> None:
        wall_ms, monotonic_ns = NOW, 0
        statuses = []
        async with Echo(clock=steady_clock(lambda: wall_ms, lambda: monotonic_ns)).running() as echo:
            for minutes, put_back_minutes in ((0, 0), (1, 1), (2, 5), (10, 20)):
                monotonic_ns, wall_ms = minutes * 60_000_000_000, NOW + (minutes - put_back_minutes) * 60_000
                statuses.append((await ask(echo, "POST", headers=signed_for(echo))).status)

        assert statuses == [202, 401, 401, 401]


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Yield the port of a server that knows no secret."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with listening(application) as port:
        yield port


class TestForeignServers:
    async def test_one_with_another_secret_refuses_us(self) -> None:
        async with (
            Echo(OTHER_SECRET).running() as echo,
            RpcClient("127.0.0.1", echo.port, SECRET, clock=lambda: NOW) as client,
        ):
            with pytest.raises(AuthenticationError, match="same secret file"):
                await client.request("GET", "/echo")
            with pytest.raises(AuthenticationError, match="same secret file"):
                await client.open_session()

    @pytest.mark.parametrize("proof", [None, "0" * 64])
    async def test_an_answer_without_a_proof_is_not_believed(self, proof: str | None) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            headers = {} if proof is None else {PROOF_HEADER: proof}
            if request.path != SESSION_PATH:
                return web.Response(headers=headers)
            response = web.WebSocketResponse(timeout=0.1)
            response.headers.update(headers)
            await response.prepare(request)
            await response.receive()
            return response

        async with served(answer) as port, RpcClient("127.0.0.1", port, SECRET) as client:
            with pytest.raises(AuthenticationError):
                await client.request("GET", "/")
            with pytest.raises(AuthenticationError):
                await client.open_session()

    async def test_a_redirect_is_not_followed(self) -> None:
        """A signed request goes to the server it was meant for, and nowhere else."""

        async def redirect(request: Request) -> Response:
            return Response(status=302)

        async def add_location(request: web.Request, response: web.StreamResponse) -> None:
            response.headers["Location"] = f"http://{request.host}/other"

        echo = Echo()
        application = echo.protection.create_application([Route("GET", "/", redirect)], echo.echo_messages)
        application.on_response_prepare.append(add_location)
        async with listening(application) as port, RpcClient("127.0.0.1", port, SECRET) as client:
            assert (await client.request("GET", "/")).status == 302

    async def test_nobody_there_is_an_error_with_the_address(self, unused_port: int) -> None:
        async with RpcClient("127.0.0.1", unused_port, SECRET) as client:
            with pytest.raises(RpcConnectError, match=f"127.0.0.1:{unused_port}: Connection refused"):
                await client.request("GET", "/")
            with pytest.raises(RpcConnectError, match=f"127.0.0.1:{unused_port}"):
                await client.open_session()

    async def test_silence_ends_with_the_timeout(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, nobody reads
            async with RpcClient("127.0.0.1", listener.getsockname()[1], SECRET) as client:
                with pytest.raises(RpcConnectError, match=r"no answer within 0\.01 s"):
                    await client.request("GET", "/", timeout_s=0.01)


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def test_an_error_answer_is_raised_with_the_servers_words_and_a_good_one_passes() -> None:
    with pytest.raises(RpcStatusError, match=r"^one; two$") as caught:
        RpcResponse(400, b'{"errors":["one","two"]}').raise_for_status()
    assert (caught.value.status, caught.value.errors) == (400, ["one", "two"])
    with pytest.raises(RpcStatusError, match=r"^oops$"):
        RpcResponse(500, b"oops").raise_for_status()
    good = RpcResponse(204, b"")
    assert good.raise_for_status() is good


@pytest.mark.parametrize(("host", "authority"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")])
async def test_the_authority_names_host_and_port(host: str, authority: str) -> None:
    """The port is named even if it is 80, which browsers leave out."""
    async with RpcClient(host, 80, SECRET) as client:
        assert client.authority == authority
