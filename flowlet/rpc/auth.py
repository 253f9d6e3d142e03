"""Proofs that both ends of a control request know the same secret.

Side:       pure.
Invariants: the secret never leaves the process; a nonce is accepted once; every comparison takes the same time whatever differs.
Units:      times in milliseconds since the epoch.
Wire form:  ``X-Flowlet-Auth: v1 <ms> <nonce> <sha256 of the body> <hmac>`` where the HMAC-SHA256 covers a label, method, authority (the
            ``Host`` header), path with query, the body's digest, time and nonce.  The digest travels, so a server can judge a request
            before it reads a single byte of the body.
            ``X-Flowlet-Proof: <hmac>`` in the answer covers another label, the nonce, the status and the digest of the answer's body.
Rules:      an answer to a request that was not accepted carries no proof: whoever does not know the secret gets nothing signed.
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
# Within two windows this is 500 requests each second, more than one JobManager answers; ~10 MB when full.
MAX_NONCES: Final = 65_536

Nonce = NewType("Nonce", str)  # 32 hex digits

_VERSION: Final = "v1"
_REQUEST_LABEL: Final = "flowlet request v1"
_ANSWER_LABEL: Final = "flowlet answer v1"
_HEADER: Final = re.compile(r"v1 ([0-9]{1,15}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)


class AuthenticationError(FlowletError):
    """The other end did not prove that it knows the secret."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What a signature covers besides the body: ``authority`` is ``host:port``, ``path`` includes the query, all as they travel."""

    method: str
    authority: str
    path: str


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request whose head is proven; its body is once it has this digest."""

    nonce: Nonce
    body_sha256: str


class Refusal(StrEnum):
    """Why a request is refused; for logs alone, the peer is always told the same."""

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
    """The value of the request's ``X-Flowlet-Auth``; ``nonce`` must be fresh and random."""
    digest = body_digest(body)
    return f"{_VERSION} {now_ms} {nonce} {digest} {_request_mac(secret, line, digest, nonce, now_ms)}"


def sign_answer(secret: bytes, nonce: Nonce, status: int, body: bytes) -> str:
    """The value of the answer's ``X-Flowlet-Proof``."""
    return _mac(secret, _ANSWER_LABEL, nonce, str(status), body_digest(body))


def check_answer(secret: bytes, nonce: Nonce, status: int, body: bytes, proof: str | None) -> None:
    """Make sure that the answer to the request with ``nonce`` comes from somebody who knows the secret.

    Raises:
        AuthenticationError: it does not, or it was changed on the way.
    """
    if proof is None or not hmac.compare_digest(proof.encode("utf-8", "replace"), sign_answer(secret, nonce, status, body).encode()):
        raise AuthenticationError("the answer is not from a process that knows the secret; do both use the same secret file?")


class RequestVerifier:
    """Judges requests and remembers the nonces of those it accepted.

    Threading: none; one owner.
    """

    def __init__(self, secret: bytes, *, window_ms: int = WINDOW_MS, max_nonces: int = MAX_NONCES) -> None:
        self._secret = secret
        self._window_ms = window_ms
        self._max_nonces = max_nonces
        self._nonces: OrderedDict[str, int] = OrderedDict()  # nonce -> when it may be forgotten; in the order of arrival

    def __repr__(self) -> str:
        return f"<RequestVerifier {len(self._nonces)} nonces>"

    def verify(self, header: str | None, line: RequestLine, now_ms: int) -> AcceptedRequest | Refusal:
        """Judge the head of a request.  Only an accepted one takes room in the memory of nonces."""
        if header is None:
            return Refusal.MISSING
        match = _HEADER.fullmatch(header)
        if match is None:
            return Refusal.MALFORMED
        sent_ms, nonce, digest, mac = int(match[1]), Nonce(match[2]), match[3], match[4]
        if not hmac.compare_digest(mac, _request_mac(self._secret, line, digest, nonce, sent_ms)):
            return Refusal.WRONG
        if abs(now_ms - sent_ms) > self._window_ms:
            return Refusal.EXPIRED
        return self._remember(nonce, now_ms) or AcceptedRequest(nonce, digest)

    def _remember(self, nonce: Nonce, now_ms: int) -> Refusal | None:
        while self._nonces and next(iter(self._nonces.values())) < now_ms:
            self._nonces.popitem(last=False)
        if nonce in self._nonces:
            return Refusal.REPLAYED
        if len(self._nonces) >= self._max_nonces:
            return Refusal.OVERLOADED
        # A signature from up to one window ahead stays valid for up to two.
        self._nonces[nonce] = now_ms + 2 * self._window_ms
        return None


def _request_mac(secret: bytes, line: RequestLine, digest: str, nonce: str, sent_ms: int) -> str:
    return _mac(secret, _REQUEST_LABEL, line.method, line.authority, line.path, digest, str(sent_ms), nonce)


def _mac(secret: bytes, *fields: str) -> str:
    # Each field is preceded by its length: no two different lists of fields give the same bytes.
    parts = [field.encode("utf-8", "surrogatepass") for field in fields]
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256").hex()
