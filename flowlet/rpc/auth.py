"""Signs control requests and their answers with the cluster's secret.

Side:       pure.
Invariants: the secret never leaves the process; a request is accepted once; comparisons take constant time.
Units:      times in milliseconds since the epoch.
Wire form:  ``X-Flowlet-Auth: v1 <ms> <nonce> <sha256 of the body> <hmac>``.  The HMAC-SHA256 covers a label, method,
            authority (the ``Host`` header), path with query, the body's digest, time and nonce.  The digest is sent,
            too, so that a server can verify a request before it reads the body.  ``X-Flowlet-Proof: <hmac>`` in the
            answer covers another label, the nonce, the status and the digest of the answer's body.  The answer that
            opens a WebSocket has ``X-Flowlet-Nonce``, the server's, in place of a body.  Both nonces give the keys of
            the WebSocket's messages (``SignedWebSocket``).
Rules:      only answers to requests with a right signature are signed: a peer that does not know the secret gets
            nothing signed.
Clocks:     the server counts its time from its start by a clock that nobody sets (``steady_clock``).  So a nonce is
            remembered until its request is too old, and that request stays too old: putting the clock back or forward
            makes no request valid again.  A request from before the start is too old as well, because the server before
            may have accepted it.  Where the clocks of client and server differ, the refusal tells the server's time,
            signed, and the client dates its request again.
Absent:     secrecy (that needs TLS), roles, keys per job.  A server that was started again after its machine's clock
            was put back accepts requests that its predecessor at that address had accepted in the last minute.
"""

import hashlib
import hmac
import re
from collections import OrderedDict
from enum import StrEnum
from typing import Final, NewType

from flowlet.errors import FlowletError
from netstack.late import dataclass

AUTH_HEADER: Final = "X-Flowlet-Auth"
PROOF_HEADER: Final = "X-Flowlet-Proof"
NONCE_HEADER: Final = "X-Flowlet-Nonce"
TIME_HEADER: Final = "X-Flowlet-Time"
SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 16
WINDOW_MS: Final = 60_000
# Within two windows this allows 500 requests per second, more than one JobManager answers; about 10 MB when full.
MAX_NONCES: Final = 65_536

Nonce = NewType("Nonce", str)  # 32 hex digits

_VERSION: Final = "v1"
_REQUEST_LABEL: Final = "flowlet request v1"
_ANSWER_LABEL: Final = "flowlet answer v1"
_TO_SERVER_LABEL: Final = "flowlet messages to the server v1"
_TO_CLIENT_LABEL: Final = "flowlet messages to the client v1"
_NONCE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_HEADER: Final = re.compile(r"v1 ([0-9]{1,15}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)


class AuthenticationError(FlowletError):
    """The peer did not prove that it knows the secret."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The fields that a signature covers besides the body, all as sent: ``authority`` is ``host:port``, ``path``
    includes the query.
    """

    method: str
    authority: str
    path: str


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request whose head is verified; the body must still have this digest."""

    nonce: Nonce
    body_sha256: str


class AuthRefusal(StrEnum):
    """Why a request is refused.  For our log only: the peer gets one answer for all reasons."""

    MISSING = "no signature"
    MALFORMED = "malformed signature"
    WRONG = "wrong signature"
    EXPIRED = "outside the time window"
    REPLAYED = "nonce used before"
    OVERLOADED = "too many requests within the time window"


def body_digest(body: bytes) -> str:
    """Return the SHA-256 of a body in hex."""
    return hashlib.sha256(body).hexdigest()


def sign_request(secret: bytes, line: RequestLine, body: bytes, nonce: Nonce, now_ms: int) -> str:
    """Make the value of a request's ``X-Flowlet-Auth``; ``nonce`` must be fresh and random."""
    digest = body_digest(body)
    return f"{_VERSION} {now_ms} {nonce} {digest} {_request_mac(secret, line, digest, nonce, now_ms)}"


def sign_answer(secret: bytes, nonce: Nonce, status: int, body: bytes) -> str:
    """Make the value of an answer's ``X-Flowlet-Proof``."""
    return _mac(secret, _ANSWER_LABEL, nonce, str(status), body_digest(body))


def check_answer(secret: bytes, nonce: Nonce, status: int, body: bytes, proof: str | None, who: str = "") -> None:
    """Check that the answer to the request with ``nonce`` comes from a process that knows the secret; ``who``: the
    beginning of the error's text.

    Raises:
        AuthenticationError: it does not, or it was changed on the way.
    """
    # In constant time: how long ``==`` takes tells how many digits were right.
    if proof is None or not hmac.compare_digest(
        proof.encode("utf-8", "replace"), sign_answer(secret, nonce, status, body).encode()
    ):
        raise AuthenticationError(
            f"{who}the answer is not from a process that knows the secret; do both use the same secret file?"
        )


def message_keys(secret: bytes, request_nonce: Nonce, server_nonce: Nonce) -> tuple[bytes, bytes]:
    """Derive the keys of messages to the server and to the client on the WebSocket that a request opened, 32 bytes
    each: one per direction, so that no message can be sent back to its sender.

    Each side chose one of the nonces, so the keys are new to both.
    """
    # Of both nonces: a peer that repeats one of them still cannot make old messages fit.
    to_server, to_client = (
        bytes.fromhex(_mac(secret, label, request_nonce, server_nonce))
        for label in (_TO_SERVER_LABEL, _TO_CLIENT_LABEL)
    )
    return to_server, to_client


def parse_nonce(text: str | None) -> Nonce | None:
    """Parse a nonce; None: the text is none."""
    return None if text is None or _NONCE.fullmatch(text) is None else Nonce(text)


def nonce_of(header: str) -> Nonce:
    """Return the nonce in the ``X-Flowlet-Auth`` of a request that was accepted or came too late."""
    # Not checked for form: the signature covers it, so a peer that holds the key wrote it.
    match = _HEADER.fullmatch(header)
    assert match is not None, "the header was verified"
    return Nonce(match[2])


class RequestVerifier:
    """Verifies requests and remembers the nonces of accepted ones.

    Threading: one thread.

    Args:
        started_ms: what was signed before may have been accepted by another server.
    """

    def __init__(self, secret: bytes, started_ms: int, *, max_nonces: int = MAX_NONCES) -> None:
        self._secret = secret
        self._started_ms = started_ms
        self._max_nonces = max_nonces
        # Nonce -> when it may be forgotten; in the order of arrival.
        self._nonces: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RequestVerifier {len(self._nonces)} nonces>"

    def verify(
        self, header: str | None, line: RequestLine, now_ms: int, *, key: bytes | None = None, remember: bool = True
    ) -> AcceptedRequest | AuthRefusal:
        """Verify the head of a request.  Only accepted requests add to the memory of nonces.

        Args:
            header: its ``X-Flowlet-Auth``.
            line: what else the signature covers.
            now_ms: by a clock that is never put back; otherwise a nonce could be forgotten while its request is still
                valid.
            key: what it must be signed with; None: the secret.
            remember: False: the request comes again, to be accepted.
        """
        if header is None:
            return AuthRefusal.MISSING
        match = _HEADER.fullmatch(header)
        if match is None:
            return AuthRefusal.MALFORMED
        sent_ms, nonce, digest, mac = int(match[1]), Nonce(match[2]), match[3], match[4]
        # First: a peer without the secret learns nothing of clocks and nonces, and fills no memory.
        if not hmac.compare_digest(mac, _request_mac(key or self._secret, line, digest, nonce, sent_ms)):
            return AuthRefusal.WRONG
        # Before the nonce: one that is too old may have been forgotten, and would look new.
        if abs(now_ms - sent_ms) > WINDOW_MS or sent_ms < self._started_ms:
            return AuthRefusal.EXPIRED
        return self._judge_nonce(nonce, now_ms, remember=remember) or AcceptedRequest(nonce, digest)

    def _judge_nonce(self, nonce: Nonce, now_ms: int, *, remember: bool) -> AuthRefusal | None:
        # In the order of arrival, which is that of their ends: the look stops at the first that counts.
        while self._nonces and next(iter(self._nonces.values())) < now_ms:
            self._nonces.popitem(last=False)
        if nonce in self._nonces:
            return AuthRefusal.REPLAYED
        # Refused rather than forgotten: a nonce that is forgotten too early is good once more.
        if len(self._nonces) >= self._max_nonces:
            return AuthRefusal.OVERLOADED
        if remember:
            # A signature may be dated up to one window ahead, and is then valid for two windows from now.
            self._nonces[nonce] = now_ms + 2 * WINDOW_MS
        return None


def _request_mac(secret: bytes, line: RequestLine, digest: str, nonce: str, sent_ms: int) -> str:
    return _mac(secret, _REQUEST_LABEL, line.method, line.authority, line.path, digest, str(sent_ms), nonce)


def _mac(secret: bytes, *fields: str) -> str:
    # Each field is preceded by its length; without it, two different lists of fields could give equal bytes.
    parts = [field.encode("utf-8", "surrogatepass") for field in fields]
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256").hex()
