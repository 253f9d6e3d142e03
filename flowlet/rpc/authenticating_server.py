"""The server's side of signed HTTP: what is served, and the proof in each answer.

Side:       loop.
Invariants: the server neither reads a body nor runs a handler before the request's head is verified.  A refusal does
            not say what was wrong; the log does.
Rules:      only ``/healthz`` needs no signature.  ``FrontDoor`` asks ``judge`` before aiohttp sees a connection; the
            check in front of each handler asks again, for every request.  aiohttp is imported with the application,
            which needs no more than the first connection whose peer has proved something: to judge costs a tenth of
            that import.
Absent:     aiohttp's middlewares.  aiohttp keeps the handlers of an application that has one in a cache of the process,
            and with them all that they belong to: 0.4 MB for each JobManager that a program had.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowlet.rpc.auth import (
    AUTH_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TIME_HEADER,
    AcceptedRequest,
    AuthRefusal,
    Nonce,
    RequestLine,
    RequestVerifier,
    body_digest,
    message_keys,
    nonce_of,
    sign_answer,
)
from flowlet.rpc.request_head import RequestHead
from flowlet.rpc.requests import (
    JSON,
    MAX_MESSAGE_BYTES,
    RequestError,
    RequestHandler,
    Response,
    Route,
    WallClock,
    error_response,
    new_nonce,
    steady_clock,
)
from netstack.log_lines import LogLines
from netstack.loop.loop_timers import running_timeout

if TYPE_CHECKING:
    from aiohttp import web

HEALTH_PATH: Final = "/healthz"
_BODY_TIMEOUT_S: Final = 30.0
_LOG_INTERVAL_MS: Final = 1000

KeyOf = Callable[[str], bytes | None]
"""The key that must have signed a request with this target, if it is not the cluster's secret."""

log = LogLines(__name__)


class EarlyAnswer(msgspec.Struct, frozen=True):
    """The answer to a request that no handler sees; JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class AuthenticatingServer:
    """Admits only signed requests for this very server, and signs the answers.

    Threading: the server's loop.

    Args:
        advertised: ``host:port`` of other addresses that lead here, such as a tunnel's end.
        clock: the time of requests; must not be put back.
        key_of: of requests and answers that gate tokens sign.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        advertised: Collection[str] = (),
        max_body_bytes: int = MAX_MESSAGE_BYTES,
        clock: WallClock | None = None,
        key_of: KeyOf = lambda _target: None,
    ) -> None:
        self._secret = secret
        self._key_of = key_of
        self._advertised = frozenset(advertised)
        self._max_body_bytes = max_body_bytes
        self._clock = steady_clock() if clock is None else clock
        self._verifier = RequestVerifier(secret, self._clock())
        self._logged_ms = 0
        self.num_refused = 0

    def __repr__(self) -> str:
        return f"<AuthenticatingServer {self.num_refused} refused>"

    def create_application(self, routes: "Iterable[Route | web.RouteDef]") -> "web.Application":
        """An application with these routes behind this check; another path or method is an answer behind it, too."""
        from aiohttp import web

        application = web.Application(client_max_size=self._max_body_bytes)
        paths: dict[str, list[Route | web.RouteDef]] = {}
        for route in routes:
            paths.setdefault(route.path, []).append(route)
        for path, found in paths.items():
            application.add_routes(
                [web.RouteDef(each.method, path, self._behind_check(each.handler), _options_of(each)) for each in found]
            )
            methods = [each.method for each in found]
            if "*" not in methods:
                application.router.add_route("*", path, self._behind_check(_refuse_method(methods)))
        application.router.add_route("*", "/{path:.*}", self._behind_check(_refuse_path))
        application.on_response_prepare.append(self._prove)
        return application

    def _behind_check(self, handler: RequestHandler) -> "Callable[[web.Request], Awaitable[web.StreamResponse]]":
        async def check_and_handle(request: "web.Request") -> "web.StreamResponse":
            return await self.handle(request, handler)

        return check_and_handle

    def judge(self, head: RequestHead, *, remember: bool) -> AcceptedRequest | EarlyAnswer:
        """Whether a request is served; ``remember`` False: the same head will be judged again."""
        if not head.is_from_loopback:
            return self._refused(head, 403, "only requests to a loopback address are served")
        if head.target == HEALTH_PATH and head.method in ("GET", "HEAD"):
            return EarlyAnswer(200, b'{"status":"ok"}' if head.method == "GET" else b"")
        if not head.is_for_server_at(self._advertised):
            return self._refused(head, 421, "this is not the address of the server", "a request for another address")
        now_ms = self._clock()
        key = self._key_of(head.target) or self._secret
        line = RequestLine(head.method, head.host, head.target)
        verdict = self._verifier.verify(head.signature, line, now_ms, key=key, remember=remember)
        if isinstance(verdict, AcceptedRequest):
            return verdict
        headers = {}
        if verdict is AuthRefusal.EXPIRED:
            assert head.signature is not None, "it was verified"
            headers = {
                TIME_HEADER: str(now_ms),
                PROOF_HEADER: sign_answer(key, nonce_of(head.signature), 401, b"%d" % now_ms),
            }
        return self._refused(head, 401, "authentication failed", verdict.value, headers)

    def refused(self, status: int, text: str, reason: str, **details: object) -> EarlyAnswer:
        """Count and log a refusal; the peer gets ``text``, the log ``reason`` (at most once a
        second) with the details.
        """
        # No raw text: a refused peer must not be able to fill the disk or forge lines.
        now_ms = self._clock()
        if now_ms - self._logged_ms >= _LOG_INTERVAL_MS:
            self._logged_ms = now_ms
            log.warning("request refused", reason=reason, refused_before=self.num_refused, **details)
        self.num_refused += 1
        return EarlyAnswer(status, msgspec.json.encode({"errors": [text]}))

    async def handle(self, request: "web.Request", handler: RequestHandler) -> "web.StreamResponse":
        """The handler's answer, or a refusal."""
        from aiohttp import web

        from flowlet.rpc.signed_websocket import ACCEPTED

        verdict = self.judge(_head_of(request), remember=True)
        if isinstance(verdict, EarlyAnswer):
            return _closing_response(verdict)
        request[ACCEPTED] = verdict
        try:
            problem = await self._problem_of_body(request)
            if problem is not None:
                log.warning(
                    "request refused",
                    reason=problem[1],
                    method=request.method,
                    path=repr(request.path[:200]),
                    peer=request.remote,
                )
                return _as_http(error_response(*problem))
            return _as_http(await handler(request))
        except RequestError as error:
            return _as_http(error_response(error.status, error.reason))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _as_http(error_response(error.status, error.reason))
        except Exception:  # the top of a request: log it, and go on serving others
            log.exception("request failed", method=request.method, path=request.path)
            return _as_http(error_response(500, "internal error; see the JobManager's log"))

    async def serve_websocket(
        self, request: "web.Request", serve: Callable[[Any], Awaitable[None]]
    ) -> "web.StreamResponse":
        """Open the WebSocket that an accepted request asks for, and serve it as a ``SignedWebSocket``; returns when
        ``serve`` has.
        """
        from aiohttp import web

        from flowlet.rpc.signed_websocket import ACCEPTED, CLOSE_TIMEOUT_S, HEADER_BYTES, SignedWebSocket

        websocket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_MESSAGE_BYTES + HEADER_BYTES, compress=False
        )
        server_nonce = new_nonce()
        websocket.headers[NONCE_HEADER] = server_nonce
        await websocket.prepare(request)
        keys = message_keys(self._secret, request[ACCEPTED].nonce, server_nonce)
        await serve(SignedWebSocket(websocket, send_key=keys.to_client, receive_key=keys.to_server))
        return websocket

    def _refused(
        self,
        head: RequestHead,
        status: int,
        text: str,
        reason: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EarlyAnswer:
        path, host = repr(head.target[:200]), repr(head.host[:200])
        answer = self.refused(status, text, reason or text, method=repr(head.method[:20])[1:-1], path=path, host=host)
        return EarlyAnswer(answer.status, answer.body, headers or {})

    async def _problem_of_body(self, request: "web.Request") -> tuple[int, str] | None:
        """Read the body; None if it is the one that was signed, else a status and what is wrong."""
        from aiohttp import web

        from flowlet.rpc.signed_websocket import ACCEPTED

        if request.content_length is not None and request.content_length > self._max_body_bytes:
            return 413, f"the body has {request.content_length} bytes, the limit is {self._max_body_bytes}"
        try:
            async with running_timeout(_BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            return 408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s"
        except web.HTTPRequestEntityTooLarge:
            return 413, f"the body has more than {self._max_body_bytes} bytes, which is the limit"
        return (
            None
            if body_digest(body) == request[ACCEPTED].body_sha256
            else (400, "the body does not match the request's signature")
        )

    async def _prove(self, request: "web.Request", response: "web.StreamResponse") -> None:
        from aiohttp import web

        from flowlet.rpc.signed_websocket import ACCEPTED

        if ACCEPTED not in request:
            return
        # Other answers without a whole body are those that open a WebSocket.
        body = (
            response.body
            if isinstance(response, web.Response)
            else response.headers.get(NONCE_HEADER, Nonce("")).encode()
        )
        assert body is None or isinstance(body, bytes), "answers are made whole"
        key = self._key_of(request.raw_path) or self._secret
        response.headers[PROOF_HEADER] = sign_answer(key, request[ACCEPTED].nonce, response.status, body or b"")


def _options_of(route: "Route | web.RouteDef") -> dict[str, Any]:
    return {} if isinstance(route, Route) else route.kwargs


def _as_http(response: "Response | web.StreamResponse") -> "web.StreamResponse":
    if not isinstance(response, Response):
        return response
    from aiohttp import web

    content_type = None if response.body is None else response.content_type
    return web.Response(status=response.status, body=response.body, content_type=content_type)


def _refuse_method(allowed: Collection[str]) -> RequestHandler:
    async def refuse(request: "web.Request") -> Response:
        from aiohttp import web

        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return refuse


async def _refuse_path(_request: object) -> Response:
    raise RequestError(404, "Not Found")


def _head_of(request: "web.Request") -> RequestHead:
    headers = request.headers
    address = request.get_extra_info("sockname", ("", 0))
    return RequestHead(
        request.method,
        request.raw_path,
        request.host,
        headers.get("Origin"),
        headers.get(AUTH_HEADER),
        address[0],
        address[1],
    )


def _closing_response(answer: EarlyAnswer) -> "web.Response":
    from aiohttp import web

    response = web.Response(status=answer.status, body=answer.body, content_type=JSON, headers=answer.headers)
    response.force_close()  # a peer that proved nothing keeps no connection
    return response
