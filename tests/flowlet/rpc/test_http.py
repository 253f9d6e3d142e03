"""Tests of ``flowlet.rpc.http``: client and server over a real socket, also if one of them is a stranger."""

import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

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


class Echo:
    """A protected server on a free port; its handlers note the requests that reached them."""

    def __init__(
        self, secret: bytes = SECRET, advertised: Sequence[str] = (), clock: Callable[[], int] = lambda: NOW
    ) -> None:
        self.protection = AuthenticatingServer(secret, advertised=advertised, max_body_bytes=LIMIT, clock=clock)
        self.reached: list[str] = []
        self.port = 0

    async def start(self) -> web.AppRunner:
        routes = [Route(method, "/echo", self.echo) for method in ("GET", "POST")] + [Route("GET", "/bug", self.bug)]
        application = self.protection.create_application(routes, self.echo_messages)
        runner = web.AppRunner(application, access_log=None, lingering_time=0.1, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        return runner

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
    echo = Echo()
    runner = await echo.start()
    yield echo
    await runner.cleanup()


@pytest_asyncio.fixture
async def client(server: Echo) -> AsyncIterator[RpcClient]:
    async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: NOW) as client:
        yield client


@pytest_asyncio.fixture
async def plain() -> AsyncIterator[aiohttp.ClientSession]:
    """Provide a client of another library."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


def header_for(
    server: Echo, *, path: str = "/echo", method: str = "POST", body: bytes = b"", number: int = 0, now_ms: int = NOW
) -> str:
    return sign_request(
        SECRET, RequestLine(method, f"127.0.0.1:{server.port}", path), body, Nonce(f"{number:032x}"), now_ms
    )


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
    async def test_without_a_signature_nothing_is_reached(
        self, server: Echo, plain: aiohttp.ClientSession, path: str
    ) -> None:
        async with plain.get(f"http://127.0.0.1:{server.port}{path}") as answer:
            assert (answer.status, await answer.read()) == (401, b'{"errors":["authentication failed"]}')
            assert PROOF_HEADER not in answer.headers
        assert server.reached == []

    async def test_health_needs_none(self, server: Echo, plain: aiohttp.ClientSession) -> None:
        async with plain.get(f"http://127.0.0.1:{server.port}/healthz") as answer:
            assert (answer.status, await answer.read()) == (200, b'{"status":"ok"}')
            assert PROOF_HEADER not in answer.headers

    async def test_a_replay_is_refused(self, server: Echo, plain: aiohttp.ClientSession) -> None:
        headers = {AUTH_HEADER: header_for(server)}

        statuses = []
        for _ in range(2):
            async with plain.post(f"http://127.0.0.1:{server.port}/echo", headers=headers) as answer:
                statuses.append(answer.status)

        assert statuses == [202, 401]
        assert server.reached == ["/echo"]

    async def test_an_expired_signature_is_refused(self, server: Echo, plain: aiohttp.ClientSession) -> None:
        headers = {AUTH_HEADER: header_for(server, now_ms=NOW - 60_001)}

        async with plain.post(f"http://127.0.0.1:{server.port}/echo", headers=headers) as answer:
            assert answer.status == 401

    @pytest.mark.parametrize("encoding", [None, "gzip"])
    async def test_another_body_than_the_signed_one_is_refused(
        self, server: Echo, plain: aiohttp.ClientSession, encoding: str | None
    ) -> None:
        """A body that only looks different on the wire is another body, too."""
        headers = {AUTH_HEADER: header_for(server, body=gzip.compress(b"y"))}
        if encoding is not None:
            headers["Content-Encoding"] = encoding

        body = b"x" if encoding is None else gzip.compress(b"y")
        async with plain.post(f"http://127.0.0.1:{server.port}/echo", data=body, headers=headers) as answer:
            assert answer.status == 400
        assert server.reached == []

    async def test_a_bug_before_a_session_is_open_is_a_proven_500(
        self, server: Echo, plain: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr("flowlet.rpc.authenticating_server.new_nonce", fail)
        headers = {AUTH_HEADER: header_for(server, method="GET", path=SESSION_PATH)}

        async with plain.get(f"http://127.0.0.1:{server.port}{SESSION_PATH}", headers=headers) as answer:
            status, content, proof = answer.status, await answer.read(), answer.headers[PROOF_HEADER]

        assert (status, content) == (500, b'{"errors":["internal error; see the JobManager\'s log"]}')
        assert proof == sign_answer(SECRET, Nonce("0" * 32), status, content)

    async def test_a_body_that_cannot_be_unpacked_is_a_proven_500(
        self, server: Echo, plain: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The client would say that the secret is wrong if the answer had no proof."""
        body = b"this is no gzip"
        headers = {AUTH_HEADER: header_for(server, body=body), "Content-Encoding": "gzip"}

        async with plain.post(f"http://127.0.0.1:{server.port}/echo", data=body, headers=headers) as answer:
            status, content, proof = answer.status, await answer.read(), answer.headers[PROOF_HEADER]

        assert (status, content) == (500, b'{"errors":["internal error; see the JobManager\'s log"]}')
        assert proof == sign_answer(SECRET, Nonce("0" * 32), status, content)
        assert server.reached == []
        assert "request failed" in caplog.text

    async def test_a_body_without_end_is_cut_at_the_limit(self, server: Echo, plain: aiohttp.ClientSession) -> None:
        """Chunked, so that no length is announced."""

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * LIMIT

        async with plain.post(
            f"http://127.0.0.1:{server.port}/echo", data=endless(), headers={AUTH_HEADER: header_for(server, body=b"x")}
        ) as answer:
            assert answer.status == 413
        assert server.reached == []

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "10.0.0.1", "", "[fe80::1]:80", "0.0.0.0"],
    )
    async def test_a_foreign_host_name_is_refused(self, server: Echo, plain: aiohttp.ClientSession, host: str) -> None:
        """DNS rebinding: the browser sends the attacker's name, even to an open path."""
        async with plain.get(f"http://127.0.0.1:{server.port}/healthz", headers={"Host": host}) as answer:
            assert answer.status == 403
        assert server.reached == []

    @pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8081"])
    async def test_loopback_host_names_are_served(self, server: Echo, plain: aiohttp.ClientSession, host: str) -> None:
        async with plain.get(f"http://127.0.0.1:{server.port}/healthz", headers={"Host": host}) as answer:
            assert answer.status == 200

    @pytest.mark.parametrize(
        ("origin", "status"),
        [
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
            ("http://[", 403),
            ("http://localhost:3000", 200),
            ("http://127.0.0.1", 200),
        ],
    )
    async def test_a_foreign_origin_is_refused(
        self, server: Echo, plain: aiohttp.ClientSession, origin: str, status: int
    ) -> None:
        async with plain.get(f"http://127.0.0.1:{server.port}/healthz", headers={"Origin": origin}) as answer:
            assert answer.status == status

    @pytest.mark.parametrize(
        "host", ["127.0.0.1:{other}", "localhost:{other}", "127.0.0.2:{port}", "[::1]:{port}", "127.0.0.1"]
    )
    async def test_a_request_for_another_address_is_refused(
        self, server: Echo, plain: aiohttp.ClientSession, host: str
    ) -> None:
        """A server at another address could pass on the requests that clients sent to it."""
        host = host.format(port=server.port, other=server.port + 1)
        headers = {
            "Host": host,
            AUTH_HEADER: sign_request(SECRET, RequestLine("POST", host, "/echo"), b"", Nonce("0" * 32), NOW),
        }

        async with plain.post(f"http://127.0.0.1:{server.port}/echo", headers=headers) as answer:
            assert answer.status == 421
        assert server.reached == []

    async def test_localhost_and_advertised_addresses_are_its_own(self, plain: aiohttp.ClientSession) -> None:
        echo = Echo(advertised=("127.0.0.1:9",))
        runner = await echo.start()
        for number, host in enumerate((f"localhost:{echo.port}", "127.0.0.1:9")):
            signature = sign_request(SECRET, RequestLine("POST", host, "/echo"), b"", Nonce(f"{number:032x}"), NOW)
            async with plain.post(
                f"http://127.0.0.1:{echo.port}/echo", headers={"Host": host, AUTH_HEADER: signature}
            ) as answer:
                assert answer.status == 202
        await runner.cleanup()

    async def test_refusals_are_counted(self, server: Echo, plain: aiohttp.ClientSession) -> None:
        for _ in range(3):
            async with plain.get(f"http://127.0.0.1:{server.port}/echo"):
                pass

        assert server.protection.num_refused == 3


class TestClocks:
    @pytest.mark.parametrize("behind_ms", [-3_600_000, 3_600_000])
    async def test_a_client_with_another_time_asks_again_with_the_servers(self, server: Echo, behind_ms: int) -> None:
        """The server's is not put back or forward with the machine's clock, so the two may differ by any time."""
        async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: NOW - behind_ms) as client:
            assert (await client.request("POST", "/echo", body=b"x")).body == b"x"
            websocket = await client.open_session()
            await websocket.close("the end")

        assert server.reached == ["/echo", SESSION_PATH]
        assert server.protection.num_refused == 1

    async def test_a_websocket_is_opened_with_the_servers_time(self, server: Echo) -> None:
        async with RpcClient("127.0.0.1", server.port, SECRET, clock=lambda: 0) as client:
            await (await client.open_session()).close("the end")

        assert server.reached == [SESSION_PATH]

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

    async def test_a_replay_is_refused_after_the_clock_was_put_back(self, plain: aiohttp.ClientSession) -> None:
        wall_ms, monotonic_ns = NOW, 0
        echo = Echo(clock=steady_clock(lambda: wall_ms, lambda: monotonic_ns))
        runner = await echo.start()
        statuses = []

        for minutes, put_back_minutes in ((0, 0), (1, 1), (2, 5), (10, 20)):
            monotonic_ns, wall_ms = minutes * 60_000_000_000, NOW + (minutes - put_back_minutes) * 60_000
            async with plain.post(
                f"http://127.0.0.1:{echo.port}/echo", headers={AUTH_HEADER: header_for(echo)}
            ) as answer:
                statuses.append(answer.status)

        assert statuses == [202, 401, 401, 401]
        await runner.cleanup()


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Yield the port of a server that knows no secret."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


class TestForeignServers:
    async def test_one_with_another_secret_refuses_us(self) -> None:
        echo = Echo(OTHER_SECRET)
        runner = await echo.start()
        async with RpcClient("127.0.0.1", echo.port, SECRET, clock=lambda: NOW) as client:
            with pytest.raises(AuthenticationError, match="same secret file"):
                await client.request("GET", "/echo")
            with pytest.raises(AuthenticationError, match="same secret file"):
                await client.open_session()
        await runner.cleanup()

    @pytest.mark.parametrize("proof", [None, "0" * 64])
    async def test_an_answer_without_a_proof_is_not_believed(self, proof: str | None) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(headers={} if proof is None else {PROOF_HEADER: proof})

        async def websocket(request: web.Request) -> web.WebSocketResponse:
            response = web.WebSocketResponse(timeout=0.1)
            if proof is not None:
                response.headers[PROOF_HEADER] = proof
            await response.prepare(request)
            await response.receive()
            return response

        application = web.Application()
        application.router.add_get("/", answer)
        application.router.add_get(SESSION_PATH, websocket)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with RpcClient("127.0.0.1", runner.addresses[0][1], SECRET) as client:
            with pytest.raises(AuthenticationError):
                await client.request("GET", "/")
            with pytest.raises(AuthenticationError):
                await client.open_session()
        await runner.cleanup()

    async def test_a_redirect_is_not_followed(self) -> None:
        """A signed request goes to the server it was meant for, and nowhere else."""

        async def redirect(request: Request) -> Response:
            return Response(status=302)

        async def add_location(request: web.Request, response: web.StreamResponse) -> None:
            response.headers["Location"] = f"http://{request.host}/other"

        echo = Echo()
        application = echo.protection.create_application([Route("GET", "/", redirect)], echo.echo_messages)
        application.on_response_prepare.append(add_location)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with RpcClient("127.0.0.1", runner.addresses[0][1], SECRET) as client:
            assert (await client.request("GET", "/")).status == 302
        await runner.cleanup()

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


def test_an_error_answer_is_raised_with_the_servers_words() -> None:
    with pytest.raises(RpcStatusError, match=r"^one; two$") as caught:
        RpcResponse(400, b'{"errors":["one","two"]}').raise_for_status()
    assert (caught.value.status, caught.value.errors) == (400, ["one", "two"])


def test_an_error_answer_that_is_no_json_is_raised_as_text() -> None:
    with pytest.raises(RpcStatusError, match=r"^oops$"):
        RpcResponse(500, b"oops").raise_for_status()


def test_a_good_answer_passes() -> None:
    answer = RpcResponse(204, b"")

    assert answer.raise_for_status() is answer


@pytest.mark.parametrize(("host", "authority"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")])
async def test_the_authority_names_host_and_port(host: str, authority: str) -> None:
    """The port is named even if it is 80, which browsers leave out."""
    async with RpcClient(host, 80, SECRET) as client:
        assert client.authority == authority
