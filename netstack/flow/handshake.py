"""The handshake of a new connection: both ends prove that they know the secret.

Side:       pure.
Invariants: phases only go forward; a failure is final.  The client proves first: a peer without the secret never gets a
            proof.  A proof covers a label of its direction, the chosen version, both hellos and the binding of the TLS
            connection.  So a proof for another connection, direction, role or version does not fit, and cannot be
            relayed between two TLS connections.
Relays:     without TLS the client's hello names the address that its socket is connected to (after the look-up of a
            name), and the server refuses every address but the local one of its own socket and
            ``SecurityConfig.authorities``.  A relay at another address fails.  A relay at the very address (it forwards
            packets, or ``authorities`` name it) can pass the handshake on, but it learns no key: ``seal_keys`` depend
            on the secret and both hellos, and every later frame bears a seal.
TLS:        Python's ``ssl`` offers no exporter (RFC 9266), so the binding is the client's Finished message.  In TLS 1.3
            (RFC 8446, 4.4.4) that is a MAC over the whole handshake with a key of this connection, both key shares and
            both certificates included: no two connections share one, even if one attacker ends both, and the server
            certificate's digest would add nothing.  Without resumption (``transport/tls.py``) both ends read equal
            bytes.  The record layer protects later frames.  The dialled name is checked against the certificate,
            not here: behind a port that is forwarded a server does not know its names.
Flow:       client ``Hello`` -> server ``Hello`` -> client ``Proof`` -> server ``Proof``, ``Ready``.  The client is
            ready when it has received ``Ready``, the server when it has sent it.
Gates:      a producer that dials sends ``GateHello``, which names one gate; both ends use the key derived from the
            gate's token.
Source:     challenge-response (CRAM); RFC 5929 (tls-unique) for the binding.
Absent:     encryption without TLS, keys per job, resumption.
"""

import hmac
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, InitVar, replace
from enum import Enum, IntEnum, StrEnum, auto
from typing import Final, TypeAlias

from netstack.config import normalized_authority
from netstack.errors import LocalProtocolError, NetstackError
from netstack.late import dataclass
from netstack.wire.message_bytes import (
    CLIENT_MESSAGE_IDS,
    GATE_MESSAGE_IDS,
    HEARTBEAT_ID,
    OFFERING_MESSAGE_IDS,
    SERVER_MESSAGE_IDS,
    encode,
)
from netstack.wire.messages import HandshakeMessage, Hello, Message, Proof, Ready
from netstack.wire.offer_messages import GateHello, GateIdentity

PROTOCOL_VERSION_MIN: Final = 2  # 1: no authority in the hello, no seals
PROTOCOL_VERSION_MAX: Final = 2
NONCE_BYTES: Final = 32
_KEY_LABEL: Final = b"netstack data port key v1"
_CLIENT_LABEL: Final = b"netstack data port proof v1: client"
_SERVER_LABEL: Final = b"netstack data port proof v1: server"
_CLIENT_SEAL_LABEL: Final = b"netstack data port seal v1: client"
_SERVER_SEAL_LABEL: Final = b"netstack data port seal v1: server"

GateKey: TypeAlias = Callable[[GateIdentity], bytes | None]


class Role(IntEnum):
    """The part that an end plays on the connection; sent in its ``Hello``."""

    CONSUMER = 1
    """Dials, requests partitions and grants credit."""
    PRODUCER = 2
    """Listens and serves partitions."""
    GATE = 3
    """Listens, requests the partitions that the dialling producer offers, and grants credit."""


class HandshakePhase(Enum):
    """The states of a handshake."""

    NEW = auto()
    """Not connected."""
    TRANSPORT_READY = auto()
    """Connected, with TLS if required; the hellos are awaited."""
    CHALLENGED = auto()
    """Both hellos are known; the peer's proof is awaited."""
    AUTHENTICATED = auto()
    """Client only: the peer's proof was right; its ``Ready`` is awaited."""
    READY = auto()
    """Both ends have proven that they know the secret."""
    FAILED = auto()


class FailureReason(StrEnum):
    """Why a handshake failed; for this side's log only, the peer is never told."""

    UNEXPECTED = "a message out of turn"
    NOT_ENCRYPTED = "a message before the connection was encrypted"
    VERSION = "no common version"
    ROLE = "wrong role"
    AUTHORITY = "another address than ours: a relay, or a tunnel that security.authorities does not name"
    REFLECTED = "our own nonce came back"
    PROOF = "wrong proof: the peer does not know the secret"
    NO_GATE = "no key for that gate: its token has expired"
    DOWNGRADED = "another version than the agreed one"


class HandshakeFailedError(NetstackError):
    """The peer failed the handshake."""

    def __init__(self, reason: FailureReason, details: str = "") -> None:
        super().__init__(f"{reason}{details}")
        self.reason = reason


def derive_key(secret: bytes) -> bytes:
    """Derive the key of the data port's proofs, 32 bytes, from the control port's secret."""
    # A key of its own: a signature of the control port is never a proof of the data port.
    return hmac.digest(secret, _KEY_LABEL, "sha256")


@dataclass(eq=False, repr=False)
class Handshake:
    """One end of the handshake of one connection.

    Threading: none; its owner calls it on the loop thread.
    Life cycle: ``connected`` once, then ``receive`` until ``phase`` is READY or FAILED.

    Args:
        role: this end's.
        key: ``derive_key`` of the secret, or of the token of ``gate``.
        nonce: 32 fresh random bytes.
        is_tls_required: refuse a connection without TLS.
        versions: the least and the greatest that this end speaks.
        gate: producer that dials only: the gate that it offers to.
        gate_key: server only: returns the key of a gate's token, None if the token has expired.
        authorities: server only: addresses at which it is dialled, besides the one given to ``connected``.
    """

    _role: Role
    _key: bytes
    _nonce: bytes
    _: KW_ONLY
    is_tls_required: bool = False
    versions: InitVar[tuple[int, int]] = (PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX)
    gate: InitVar[GateIdentity | None] = None
    gate_key: GateKey | None = None
    authorities: InitVar[Collection[str]] = ()

    def __post_init__(self, versions: tuple[int, int], gate: GateIdentity | None, authorities: Collection[str]) -> None:
        if len(self._nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"a nonce has {NONCE_BYTES} bytes, not {len(self._nonce)}")
        self.phase = HandshakePhase.NEW
        self.is_client = self._role is Role.CONSUMER or gate is not None
        """Whether this end dialled."""
        self._authorities = frozenset(map(normalized_authority, authorities))
        self._mine: Hello | GateHello
        if gate is None:
            self._mine = Hello(*versions, self._role, self._nonce)
            self._peer_role = Role.PRODUCER if self._role is Role.CONSUMER else Role.CONSUMER
        else:
            self._mine = GateHello(*versions, self._nonce, gate)
            self._peer_role = Role.GATE
        self._theirs: Hello | GateHello | None = None
        self._tls_binding = b""
        self.version = 0
        """The greatest version that both ends speak; 0 before both hellos are known."""

    def __repr__(self) -> str:
        what = "producer that dials" if isinstance(self._mine, GateHello) else Role(self._mine.role).name.lower()
        return f"<Handshake of a {what}, {self.phase.name.lower()}>"

    @property
    def welcome_ids(self) -> frozenset[int]:
        """Ids of the messages that the peer may send once the connection is ready."""
        if self.is_client:
            ids = OFFERING_MESSAGE_IDS if isinstance(self._mine, GateHello) else CLIENT_MESSAGE_IDS
        else:
            ids = SERVER_MESSAGE_IDS if self.peer_gate is None else GATE_MESSAGE_IDS
        return ids | {HEARTBEAT_ID}

    @property
    def peer_gate(self) -> GateIdentity | None:
        """The gate that the peer offers partitions to; None for any other peer."""
        return self._theirs.gate if isinstance(self._theirs, GateHello) else None

    @property
    def is_consumer(self) -> bool:
        """Whether this end dialled in order to read partitions."""
        return isinstance(self._mine, Hello) and self._mine.role == Role.CONSUMER

    def seal_keys(self) -> tuple[bytes, bytes] | None:
        """Return the keys of the seals of this end's frames and the peer's, 32 bytes each; None with TLS, which needs
        none.
        """
        if self._tls_binding:
            return None
        # A key per direction: a frame that comes back to its sender does not fit.
        keys = [
            hmac.digest(self._key, self._covered(label), "sha256") for label in (_CLIENT_SEAL_LABEL, _SERVER_SEAL_LABEL)
        ]
        return (keys[0], keys[1]) if self.is_client else (keys[1], keys[0])

    def connected(self, *, tls_binding: bytes | None, authority: str = "") -> list[HandshakeMessage]:
        """Begin; returns the messages to send.

        Args:
            tls_binding: the channel binding of the TLS connection, unique to it; None: no TLS.
            authority: ``host:port`` of the end that listens; used without TLS.

        Raises:
            HandshakeFailedError: TLS is required and the connection has none.
        """
        if self.phase is not HandshakePhase.NEW:
            raise LocalProtocolError(f"{self!r} was connected twice")
        # Before any message of this end: it must not prove itself to a peer that took TLS away.
        if self.is_tls_required and not tls_binding:
            raise self._fail(FailureReason.NOT_ENCRYPTED)
        self._tls_binding = tls_binding or b""
        # With TLS the certificate names the server, and a server behind a forwarded port does not know its own address.
        if not tls_binding and self.is_client:
            self._mine = replace(self._mine, authority=normalized_authority(authority))
        elif not tls_binding:
            self._authorities |= {normalized_authority(authority)}
        self.phase = HandshakePhase.TRANSPORT_READY
        return [self._mine] if self.is_client else []

    def receive(self, message: Message) -> list[HandshakeMessage]:
        """Process the peer's next message; returns the messages to send.

        Raises:
            HandshakeFailedError: the peer's proof, role, version or message is wrong; the phase is FAILED.
        """
        match self.phase, message:
            case HandshakePhase.TRANSPORT_READY, GateHello() if not self.is_client and self.gate_key is not None:
                return self._on_gate_hello(message, self.gate_key)
            case HandshakePhase.TRANSPORT_READY, Hello():
                if message.role != self._peer_role:
                    raise self._fail(FailureReason.ROLE)
                return self._on_hello(message)
            case HandshakePhase.CHALLENGED, Proof(mac):
                return self._on_proof(mac)
            case HandshakePhase.AUTHENTICATED, Ready(version):
                return self._on_ready(version)
            case HandshakePhase.NEW, _:
                raise self._fail(FailureReason.NOT_ENCRYPTED)
            case _:
                raise self._fail(FailureReason.UNEXPECTED)

    def _on_gate_hello(self, theirs: GateHello, gate_key: GateKey) -> list[HandshakeMessage]:
        key = gate_key(theirs.gate)
        if key is None:
            raise self._fail(FailureReason.NO_GATE)
        # All that follows is proven with the token's key: the holder of a token cannot pass for a holder of the secret.
        self._key = key
        # The proofs cover the role: an answer to a consumer cannot serve as an answer to a producer.
        self._mine = Hello(self._mine.version_min, self._mine.version_max, Role.GATE, self._mine.nonce)
        return self._on_hello(theirs)

    def _on_hello(self, theirs: Hello | GateHello) -> list[HandshakeMessage]:
        mine = self._mine
        # The labels of the two proofs stop a reflection as well; here the log gets its name.
        if hmac.compare_digest(theirs.nonce, mine.nonce):
            raise self._fail(FailureReason.REFLECTED)
        version = min(mine.version_max, theirs.version_max)
        if version < max(mine.version_min, theirs.version_min):
            raise self._fail(FailureReason.VERSION)
        # Without TLS an address is the one sign of a relay: the hello that it passes on names the relay that the client
        # dialled, not this server.
        if (
            not (self.is_client or self._tls_binding)
            and normalized_authority(theirs.authority) not in self._authorities
        ):
            raise self._fail(
                FailureReason.AUTHORITY,
                f" (it dialled {theirs.authority}, here is {', '.join(sorted(self._authorities))})",
            )
        self._theirs = theirs
        self.version = version
        self.phase = HandshakePhase.CHALLENGED
        # The server answers with its hello alone: its proof comes behind the client's.
        return [self._proof(_CLIENT_LABEL)] if self.is_client else [mine]

    def _on_proof(self, mac: bytes) -> list[HandshakeMessage]:
        expected = self._proof(_SERVER_LABEL if self.is_client else _CLIENT_LABEL)
        # In constant time: how long ``==`` takes tells how many bytes were right.
        if not hmac.compare_digest(mac, expected.mac):
            raise self._fail(FailureReason.PROOF)
        if self.is_client:
            self.phase = HandshakePhase.AUTHENTICATED
            return []
        self.phase = HandshakePhase.READY
        # Only behind the client's proof: otherwise a stranger would get a digest to guess the secret against, offline.
        return [self._proof(_SERVER_LABEL), Ready(self.version)]

    def _on_ready(self, version: int) -> list[HandshakeMessage]:
        if not self.is_client:
            raise self._fail(FailureReason.UNEXPECTED)
        if version != self.version:
            raise self._fail(FailureReason.DOWNGRADED)
        self.phase = HandshakePhase.READY
        return []

    def _proof(self, label: bytes) -> Proof:
        return Proof(hmac.digest(self._key, self._covered(label), "sha256"))

    def _covered(self, label: bytes) -> bytes:
        assert self._theirs is not None, "a proof needs both hellos"
        # What was decoded is encoded again: both ends cover equal bytes only if each has understood the other one's
        # hello.
        hellos = [encode(self._mine), encode(self._theirs)]
        client, server = hellos if self.is_client else reversed(hellos)
        # Every part but the last has a fixed length or starts with its length, and no label is a prefix of the other.
        # Otherwise two different handshakes could cover equal bytes, and a proof of one would fit the other.
        return b"".join((label, self.version.to_bytes(2, "big"), client, server, self._tls_binding))

    def _fail(self, reason: FailureReason, details: str = "") -> HandshakeFailedError:
        self.phase = HandshakePhase.FAILED
        return HandshakeFailedError(reason, details)
