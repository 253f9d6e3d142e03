"""The server's side of signed HTTP: what is served, and the proof in each answer.

Side:       loop.
Invariants: the server neither reads a body nor runs a handler before the request's head is verified.  A refusal does
            not say what was wrong; the log does.
Rules:      only ``/healthz`` needs no signature.  ``FrontDoor`` asks ``judge`` before aiohttp sees a connection; the
            application, whose one route has all paths, asks again for every request.  aiohttp is imported with the
            application, which needs no more than the first connection whose peer has proved something: to judge costs
            a tenth of that import.
Absent:     aiohttp's routes: ``Router`` finds the handlers, as it does for requests that come by a pipe.  And its
            middlewares: aiohttp keeps the handlers of an application that has one in a cache of the process, and with
            them all that they belong to: 0.4 MB for each JobManager that a program had.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Final

import msgspec

from flowlet.rpc import auth
from flowlet.rpc.request_head import RequestHead
from flowlet.rpc.requests import (
    MAX_MESSAGE_BYTES,
    SESSION_PATH,
    RequestError,
    Response,
    Route,
    Router,
    ServeSession,
    WallClock,
    error_response,
    new_nonce,
    refuse,
    steady_clock,
)
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import running_timeout

if TYPE_CHECKING:
    from aiohttp import web

    from flowlet.rpc.signed_websocket import SignedWebSocket

HEALTH_PATH: Final = "/healthz"
_BODY_TIMEOUT_S: Final = 30.0
_LOG_INTERVAL_MS: Final = 1000

KeyOf = Callable[[str], bytes | None]
"""The key that must have signed a request with this target, if it is not the cluster's secret."""

log = LogLines(__name__)


@dataclass(eq=False)
class AuthenticatingServer:
    """Admits only signed requests for this very server, and signs the answers.

    Threading: the server's loop.

    Args:
        advertised: ``host:port`` of other addresses that lead here, such as a tunnel's end.
        clock: the time of requests; must not be put back.
        key_of: of requests and answers that gate tokens sign.
    """

    secret: bytes
    advertised: Collection[str] = ()
    max_body_bytes: int = MAX_MESSAGE_BYTES
    clock: WallClock = field(default_factory=steady_clock)
    key_of: KeyOf = lambda _target: None
    num_refused: int = field(init=False, default=0)
    _logged_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._verifier = auth.RequestVerifier(self.secret, self.clock())

    def __repr__(self) -> str:
        return f"<AuthenticatingServer {self.num_refused} refused>"

    def create_application(self, routes: Iterable[Route], serve_session: ServeSession) -> "web.Application":
        """Make an application with these routes, and the sessions of TaskManagers, behind this check."""
        from aiohttp import web

        router = Router(routes)

        async def check_and_answer(request: "web.Request") -> "web.StreamResponse":
            headers = request.headers
            local_host, local_port, *_ = request.get_extra_info("sockname", ("", 0))
            origin = headers.get("Origin")
            signature = headers.get(auth.AUTH_HEADER)
            head = RequestHead(
                request.method, request.raw_path, request.host, origin, signature, local_host, local_port
            )
            # Once more, behind the front door: a connection may bring many requests, and the nonce is used up only
            # here.
            verdict = self.judge(head, remember=True)
            if isinstance(verdict, auth.AcceptedRequest):
                return await self._answer(request, verdict, router, serve_session)
            refusal = web.Response(
                status=verdict.status, body=verdict.body, content_type=verdict.content_type, headers=verdict.headers
            )
            refusal.force_close()  # a peer that proved nothing keeps no connection
            return refusal

        application = web.Application(client_max_size=self.max_body_bytes)
        application.router.add_route("*", "/{path:.*}", check_and_answer)
        return application

    def judge(self, head: RequestHead, *, remember: bool) -> auth.AcceptedRequest | Response:
        """Judge whether a request is served: return it as accepted, or a refusal, or the answer to a health check.

        ``remember`` False: this head will be judged again, so its nonce is not used up.
        """
        # First, and without the secret: a web page's request must not even learn whether it is signed.
        if not head.is_from_loopback:
            return self.refused(403, "only requests to a loopback address are served", **head.for_log)
        if head.target == HEALTH_PATH and head.method in ("GET", "HEAD"):
            return Response(body=b'{"status":"ok"}' if head.method == "GET" else b"")
        # A signed request that another listener was sent must not be passed on to this one.
        if not head.is_for_server_at(self.advertised):
            reason = "a request for another address"
            return self.refused(421, "this is not the address of the server", reason, **head.for_log)
        now_ms = self.clock()
        key = self.key_of(head.target) or self.secret
        line = auth.RequestLine(head.method, head.host, head.target)
        verdict = self._verifier.verify(head.signature, line, now_ms, key=key, remember=remember)
        if isinstance(verdict, auth.AcceptedRequest):
            return verdict
        refusal = self.refused(401, "authentication failed", verdict.value, **head.for_log)
        # Its signature was right: that peer may hear the time, and any other one nothing.
        if verdict is not auth.AuthRefusal.EXPIRED:
            return refusal
        assert head.signature is not None, "it was verified"
        proof = auth.sign_answer(key, auth.nonce_of(head.signature), 401, b"%d" % now_ms)
        headers = {auth.TIME_HEADER: str(now_ms), auth.PROOF_HEADER: proof}
        return msgspec.structs.replace(refusal, headers=headers)

    def refused(self, status: int, text: str, reason: str | None = None, **details: object) -> Response:
        """Count and log a refusal, and return the answer.

        The peer gets ``text``; the log, at most once a second, ``reason`` (None: ``text``) with the details.
        """
        # No raw text: a refused peer must not be able to fill the disk or forge lines.
        now_ms = self.clock()
        # One line a second, with the number of the others: a stranger must not fill the disk.
        if now_ms - self._logged_ms >= _LOG_INTERVAL_MS:
            self._logged_ms = now_ms
            log.warning("request refused", reason=reason or text, refused_before=self.num_refused, **details)
        self.num_refused += 1
        return error_response(status, text)

    async def _answer(
        self, request: "web.Request", accepted: auth.AcceptedRequest, router: Router, serve_session: ServeSession
    ) -> "web.StreamResponse":
        from aiohttp import web

        method = "GET" if request.method == "HEAD" else request.method  # aiohttp leaves the body out
        path = repr(request.path[:200])
        answer: Response | SignedWebSocket
        try:
            # Only behind the head: a stranger's body takes no memory.
            body = await self._body_of(request, accepted)
            if request.path == SESSION_PATH and method == "GET":
                answer = await self._open_session(request, accepted)
            else:
                answer = await router.answer(method, request.raw_path, body)
        except RequestError as error:
            log.warning("request refused", reason=str(error), method=request.method, path=path, peer=request.remote)
            answer = error_response(error.http_status, str(error))
        except web.HTTPException as error:  # it asks for no WebSocket
            answer = error_response(error.status, error.reason)
        except Exception:  # the top of a request: aiohttp's own answer has no proof, and would look forged
            log.exception("request failed", method=request.method, path=path, peer=request.remote)
            answer = error_response(500, "internal error; see the JobManager's log")
        if not isinstance(answer, Response):  # outside the try: an open WebSocket takes no answer
            assert isinstance(answer.websocket, web.WebSocketResponse), "the server's end"
            await serve_session(answer, request.remote)
            return answer.websocket
        # The key that signed the request: a producer knows its gate's token alone.
        key = self.key_of(request.raw_path) or self.secret
        proof = auth.sign_answer(key, accepted.nonce, answer.status, answer.body or b"")
        content_type = None if answer.body is None else answer.content_type
        headers = {auth.PROOF_HEADER: proof}
        return web.Response(status=answer.status, body=answer.body, content_type=content_type, headers=headers)

    async def _open_session(self, request: "web.Request", accepted: auth.AcceptedRequest) -> "SignedWebSocket":
        from aiohttp import web

        from flowlet.rpc.signed_websocket import CLOSE_TIMEOUT_S, HEADER_BYTES, SignedWebSocket

        websocket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_MESSAGE_BYTES + HEADER_BYTES, compress=False
        )
        server_nonce = new_nonce()
        websocket.headers[auth.NONCE_HEADER] = server_nonce
        websocket.headers[auth.PROOF_HEADER] = auth.sign_answer(
            self.secret, accepted.nonce, websocket.status, server_nonce.encode()
        )
        # Behind the headers: they leave with it, and the client makes its keys of them.
        await websocket.prepare(request)
        to_server, to_client = auth.message_keys(self.secret, accepted.nonce, server_nonce)
        return SignedWebSocket(websocket, send_key=to_client, receive_key=to_server)

    async def _body_of(self, request: "web.Request", accepted: auth.AcceptedRequest) -> bytes:
        """Read the whole body.  Raises RequestError: it is not the one that was signed."""
        from aiohttp import web

        # By its own word, before it is read; one that lies is cut off at the limit below.
        if request.content_length is not None and request.content_length > self.max_body_bytes:
            refuse(413, f"the body has {request.content_length} bytes, the limit is {self.max_body_bytes}")
        try:
            async with running_timeout(_BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            refuse(408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s")
        except web.HTTPRequestEntityTooLarge:
            refuse(413, f"the body has more than {self.max_body_bytes} bytes, which is the limit")
        # The signature covers the digest: until here the body may be anybody's.
        if auth.body_digest(body) != accepted.body_sha256:
            refuse(400, "the body does not match the request's signature")
        return body
