"""The client's side of signed HTTP, whatever library sends it; and the client of commands, which waits for one answer
and ends.

Side:       shared.
Invariants: no answer is used without a valid proof.
Absent:     connections that are kept, and WebSockets: ``RpcClient`` has them.  It needs aiohttp, which costs a command
            four times what the rest of it does.
"""

import errno
import os
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from flowlet.rpc import auth
from flowlet.rpc.requests import MAX_MESSAGE_BYTES, RpcConnectError, RpcResponse, WallClock, new_nonce, wall_clock_ms

_TIMEOUT_S: Final = 30.0


Header = Callable[[str], Any]
"""Gives the value of a header of an answer, whatever the case of its name; None: there is none."""


class OtherTimeError(Exception):
    """The server refused a request because of its date; its time is known now."""


class RequestSigner:
    """Signs the requests to one JobManager, and checks its answers.

    Threading: one thread at a time.

    Args:
        authority: ``host:port``.
        secret: of the cluster.
        clock: the time of requests.
    """

    def __init__(self, authority: str, secret: bytes, clock: WallClock = wall_clock_ms) -> None:
        self._authority = authority
        self._secret = secret
        self._clock = clock
        self._ahead_ms = 0  # of the server's time over ours; a server that was started again may have another one

    def sign(self, method: str, path: str, body: bytes) -> tuple[auth.Nonce, dict[str, str]]:
        """Make the nonce and the headers of a request."""
        # A fresh one for each: the server takes each once.
        nonce = new_nonce()
        line = auth.RequestLine(method, self._authority, path)
        signature = auth.sign_request(self._secret, line, body, nonce, self._clock() + self._ahead_ms)
        return nonce, {"Host": self._authority, auth.AUTH_HEADER: signature}

    def check(self, nonce: auth.Nonce, answer: RpcResponse, header: Header, *, is_second: bool) -> None:
        """Check the proof of an answer.

        Raises:
            AuthenticationError: it is not that of a server with this secret; says what to do.
            OtherTimeError: the request is to be sent again, unless it was the second one.
        """
        # First: a refusal has no proof of its own.
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.MISDIRECTED_REQUEST):
            self.check_refusal(nonce, answer.status, header, is_second=is_second)
        proof = header(auth.PROOF_HEADER)
        auth.check_answer(self._secret, nonce, answer.status, answer.body, proof, f"{self._authority}: ")

    def check_refusal(self, nonce: auth.Nonce, status: int, header: Header, *, is_second: bool) -> None:
        """Raise the error of a refusal; does nothing for other answers."""
        time_ms = header(auth.TIME_HEADER)
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            raise auth.AuthenticationError(
                f"{self._authority} refused the request, because the JobManager there has another address: name the "
                f"one that it shows when it starts, or start it with --advertise {self._authority}"
            )
        # Once: a second refusal with a time says that something else is wrong.
        if status == HTTPStatus.UNAUTHORIZED and not is_second and time_ms is not None:
            auth.check_answer(
                self._secret, nonce, status, time_ms.encode("utf-8", "replace"), header(auth.PROOF_HEADER)
            )
            # Only a signed time counts: otherwise a stranger could make this end date its requests as he likes.
            self._ahead_ms = int(time_ms) - self._clock()
            raise OtherTimeError
        if status == HTTPStatus.UNAUTHORIZED:
            raise auth.AuthenticationError(
                f"{self._authority} refused the request: authentication failed; do both use the same secret file?"
            )

    def keys_of_session(self, nonce: auth.Nonce, header: Header) -> tuple[bytes, bytes]:
        """Return the keys (``message_keys``) of the session that an answer with these headers opens.

        Raises AuthenticationError: its proof is wrong.
        """
        server_nonce = auth.parse_nonce(header(auth.NONCE_HEADER)) or auth.Nonce("")
        proof = header(auth.PROOF_HEADER)
        auth.check_answer(self._secret, nonce, 101, server_nonce.encode(), proof, f"{self._authority}: ")
        return auth.message_keys(self._secret, nonce, server_nonce)


def ask_once(host: str, port: int, secret: bytes, path: str, timeout_s: float = _TIMEOUT_S) -> RpcResponse:
    """Return the answer of a JobManager to one ``GET``, whatever its status; on this thread.

    Raises:
        RpcConnectError: there is no server, or no answer within ``timeout_s``.
        AuthenticationError: client and server have different secrets.
    """
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    signer = RequestSigner(authority, secret)
    try:
        return _ask(host, port, signer, path, timeout_s, is_second=False)
    except OtherTimeError:
        return _ask(host, port, signer, path, timeout_s, is_second=True)
    # Before OSError, of which it is one: its text names no host.
    except socket.gaierror:
        raise RpcConnectError(f"JobManager {authority}: {unknown_host(host)}") from None
    except OSError as error:
        raise RpcConnectError(f"JobManager {authority}: {reason_of(error, timeout_s)}") from None


def _ask(host: str, port: int, signer: RequestSigner, path: str, timeout_s: float, *, is_second: bool) -> RpcResponse:
    from http.client import HTTPConnection, HTTPException  # here, as other clients need no second library

    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        nonce, headers = signer.sign("GET", path, b"")
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        # Bounded: the answer is not proven yet.
        answer = RpcResponse(response.status, response.read(MAX_MESSAGE_BYTES))
        signer.check(nonce, answer, response.headers.get, is_second=is_second)
        return answer
    except HTTPException as error:
        raise ConnectionResetError(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def unknown_host(host: str) -> str:
    """Explain why no connection could be made, if nothing knows the host."""
    return f"the host {host!r} is unknown: correct its name, or give its address"


def reason_of(error: Exception, timeout_s: float) -> str:
    """Explain why there is no answer, for the person who asked."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, OSError) and error.errno:
        reason = os.strerror(error.errno)  # asyncio's own text does not give the reason
        if error.errno == errno.ECONNREFUSED:
            return f"{reason}: nothing listens there; start a JobManager (flowlet jm), or correct host and port"
        return reason
    return str(error) or type(error).__name__
