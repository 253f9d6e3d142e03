"""Signs control requests and their answers with the cluster's secret.

Side:       pure.
Invariants: the secret never leaves the process; a nonce is accepted once; comparisons take constant time.
Units:      times in milliseconds since the epoch.
Wire form:  ``X-Flowlet-Auth: v1 <ms> <nonce> <sha256 of the body> <hmac>``.  The HMAC-SHA256 covers a label, method, authority (the
            ``Host`` header), path with query, the body's digest, time and nonce.  The digest is sent, too, so that a server can verify a
            request before it reads the body.
            ``X-Flowlet-Proof: <hmac>`` in the answer covers another label, the nonce, the status and the digest of the answer's body.
Rules:      only answers to accepted requests are signed: a peer that does not know the secret gets nothing signed.
Absent:     protection of what follows a WebSocket handshake (that needs TLS), roles, keys per job.
"""

import hashlib
import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from flowlet.errors import FlowletError

AUTH_HEADER: Final = "X-Flowlet-Auth"
PROOF_HEADER: Final = "X-Flowlet-Proof"
SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 16
WINDOW_MS: Final = 60_000
# Within two windows this allows 500 requests per second, more than one JobManager answers; about 10 MB when full.
MAX_NONCES: Final = 65_536

Nonce = NewType("Nonce", str)  # 32 hex digits

_VERSION: Final = "v1"
_REQUEST_LABEL: Final = "flowlet request v1"
_ANSWER_LABEL: Final = "flowlet answer v1"
_HEADER: Final = re.compile(r"v1 ([0-9]{1,15}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)


class AuthenticationError(FlowletError):
    """The peer did not prove that it knows the secret."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What a signature covers besides the body, all as sent: ``authority`` is ``host:port``, ``path`` includes the query."""

    method: str
    authority: str
    path: str


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request whose head is verified; the body must still have this digest."""

    nonce: Nonce
    body_sha256: str


class Refusal(StrEnum):
    """Why a request is refused.  For our log only: the peer always gets the same answer."""

    MISSING = "no signature"
    MALFORMED = "malformed signature"
    WRONG = "wrong signature"
    EXPIRED = "outside the time window"
    REPLAYED = "nonce used before"
    OVERLOADED = "too many requests within the time window"


def body_digest(body: bytes) -> str:
    """The SHA-256 of a body in hex."""
    return hashlib.sha256(body).hexdigest()


def sign_request(secret: bytes, line: RequestLine, body: bytes, nonce: Nonce, now_ms: int) -> str:
    """The value of a request's ``X-Flowlet-Auth``; ``nonce`` must be fresh and random."""
    digest = body_digest(body)
    return f"{_VERSION} {now_ms} {nonce} {digest} {_request_mac(secret, line, digest, nonce, now_ms)}"


def sign_answer(secret: bytes, nonce: Nonce, status: int, body: bytes) -> str:
    """The value of an answer's ``X-Flowlet-Proof``."""
    return _mac(secret, _ANSWER_LABEL, nonce, str(status), body_digest(body))


def check_answer(secret: bytes, nonce: Nonce, status: int, body: bytes, proof: str | None) -> None:
    """Check that the answer to the request with ``nonce`` comes from a process that knows the secret.

    Raises:
        AuthenticationError: it does not, or it was changed on the way.
    """
    if proof is None or not hmac.compare_digest(proof.encode("utf-8", "replace"), sign_answer(secret, nonce, status, body).encode()):
        raise AuthenticationError("the answer is not from a process that knows the secret; do both use the same secret file?")


class RequestVerifier:
    """Verifies requests and remembers the nonces of accepted ones.  Threading: one thread."""

    def __init__(self, secret: bytes, *, max_nonces: int = MAX_NONCES) -> None:
        self._secret = secret
        self._max_nonces = max_nonces
        self._nonces: OrderedDict[str, int] = OrderedDict()  # nonce -> when it may be forgotten; in the order of arrival

    def __repr__(self) -> str:
        return f"<RequestVerifier {len(self._nonces)} nonces>"

    def verify(self, header: str | None, line: RequestLine, now_ms: int) -> AcceptedRequest | Refusal:
        """Verify the head of a request.  Only accepted requests add to the memory of nonces."""
        if header is None:
            return Refusal.MISSING
        match = _HEADER.fullmatch(header)
        if match is None:
            return Refusal.MALFORMED
        sent_ms, nonce, digest, mac = int(match[1]), Nonce(match[2]), match[3], match[4]
        if not hmac.compare_digest(mac, _request_mac(self._secret, line, digest, nonce, sent_ms)):
            return Refusal.WRONG
        if abs(now_ms - sent_ms) > WINDOW_MS:
            return Refusal.EXPIRED
        return self._remember(nonce, now_ms) or AcceptedRequest(nonce, digest)

    def _remember(self, nonce: Nonce, now_ms: int) -> Refusal | None:
        while self._nonces and next(iter(self._nonces.values())) < now_ms:
            self._nonces.popitem(last=False)
        if nonce in self._nonces:
            return Refusal.REPLAYED
        if len(self._nonces) >= self._max_nonces:
            return Refusal.OVERLOADED
        # A signature may be dated up to one window ahead, and is then valid for two windows from now.
        self._nonces[nonce] = now_ms + 2 * WINDOW_MS
        return None


def _request_mac(secret: bytes, line: RequestLine, digest: str, nonce: str, sent_ms: int) -> str:
    return _mac(secret, _REQUEST_LABEL, line.method, line.authority, line.path, digest, str(sent_ms), nonce)


def _mac(secret: bytes, *fields: str) -> str:
    # Each field is preceded by its length; without it, two different lists of fields could give the same bytes.
    parts = [field.encode("utf-8", "surrogatepass") for field in fields]
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256").hex()
