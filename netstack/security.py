"""How the data port is protected.

Side:       pure.
Invariants: there is no way to be unprotected by accident: without a ``SecurityConfig`` nothing listens and nothing is dialled; without TLS
            only loopback addresses are used; ``none`` has to be asked for by name.  A secret is never part of a ``repr`` or a message.
Units:      as the names say.
Absent:     secrets of single jobs (a connection carries the channels of all jobs between two processes).
"""

import ipaddress
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from netstack.errors import ConfigError

MIN_SECRET_BYTES: Final = 32
_FINGERPRINT_BYTES: Final = 32


class SecurityMode(StrEnum):
    """What a peer has to show before anything else is understood."""

    HMAC = "hmac"
    """Both ends prove that they know the secret.  For loopback: what follows the proofs is neither encrypted nor signed."""
    TLS = "tls"
    """TLS 1.3 with certificates of a private CA on both ends, and the proofs inside it."""
    NONE = "none"
    """Nothing.  For loopback, to talk to a peer that knows no handshake, such as Flink's own classes."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The files of this process's identity and of the CA that every peer's certificate must come from.

    ``peer_fingerprints`` (SHA-256 of the certificate, hex, colons allowed) accepts only these certificates of the CA; empty: all of them.
    ``verify_hostname`` False allows one certificate for all machines; the CA still has to be right.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path
    peer_fingerprints: frozenset[str] = frozenset()
    verify_hostname: bool = True

    def __post_init__(self) -> None:
        for each in self.peer_fingerprints:
            normalized_fingerprint(each)

    @property
    def pins(self) -> frozenset[bytes]:
        """``peer_fingerprints`` as digests."""
        return frozenset(normalized_fingerprint(each) for each in self.peer_fingerprints)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Made by ``hmac``, ``mutual_tls`` or ``none``."""

    mode: SecurityMode
    secret: bytes = field(default=b"", repr=False)
    tls: TlsConfig | None = None
    handshake_timeout_s: float = 5.0
    """From connected (TLS: from encrypted) to ready."""
    failure_delay_s: float = 1.0
    """A peer that failed is cut after this time and not before, whatever it did wrong."""
    max_unauthenticated: int = 64
    """Of connections to one server; the oldest is cut for a new one."""
    max_unauthenticated_per_host: int = 16
    """The same for one address other than a loopback one."""
    tls_handshake_timeout_s: float = 5.0
    tls_shutdown_timeout_s: float = 2.0

    @classmethod
    def hmac(cls, secret: bytes) -> "SecurityConfig":
        """Mutual challenge with a shared secret; loopback only."""
        return cls(SecurityMode.HMAC, secret)

    @classmethod
    def mutual_tls(cls, tls: TlsConfig, secret: bytes) -> "SecurityConfig":
        """TLS 1.3 both ways, and the challenge inside it; the only choice for addresses that other machines can reach."""
        return cls(SecurityMode.TLS, secret, tls)

    @classmethod
    def none(cls) -> "SecurityConfig":
        """No protection at all; loopback only."""
        return cls(SecurityMode.NONE)

    def __post_init__(self) -> None:
        if self.mode is SecurityMode.NONE:
            if self.secret or self.tls is not None:
                raise ConfigError("security mode none takes neither a secret nor certificates: did you mean hmac or tls?")
        elif len(self.secret) < MIN_SECRET_BYTES:
            raise ConfigError(f"the secret of security mode {self.mode} has {len(self.secret)} bytes, the least is {MIN_SECRET_BYTES}")
        if (self.mode is SecurityMode.TLS) != (self.tls is not None):
            raise ConfigError(f"security mode {self.mode} {'needs a' if self.tls is None else 'takes no'} TlsConfig")
        self._check_limits()

    def _check_limits(self) -> None:
        for name in ("handshake_timeout_s", "tls_handshake_timeout_s", "tls_shutdown_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"security.{name} is {getattr(self, name)}, it must be above 0 and finite")
        if not 0 <= self.failure_delay_s < math.inf:
            raise ConfigError(f"security.failure_delay_s is {self.failure_delay_s}, it must not be negative, and finite")
        for name in ("max_unauthenticated", "max_unauthenticated_per_host"):
            if getattr(self, name) < 1:
                raise ConfigError(f"security.{name} is {getattr(self, name)}, the least is 1")


def normalized_fingerprint(text: str) -> bytes:
    """The 32 bytes of a SHA-256 fingerprint in hex, colons or not.

    Raises:
        ConfigError: it is something else.
    """
    try:
        digest = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != _FINGERPRINT_BYTES:
        raise ConfigError(f"{text!r} is no SHA-256 fingerprint: {2 * _FINGERPRINT_BYTES} hex digits are expected")
    return digest


def required_security(security: SecurityConfig | None) -> SecurityConfig:
    """``security``, unless nobody chose one.

    Raises:
        ConfigError: it is None; names the choices.
    """
    if security is None:
        raise ConfigError(
            "NetstackConfig.security is not set, so nothing listens and nothing is dialled: set SecurityConfig.hmac(secret) for processes "
            "on one machine, SecurityConfig.mutual_tls(...) for several machines, or SecurityConfig.none() for a plain peer on loopback"
        )
    return security


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a literal loopback address or ``localhost``; any other name may be anything."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # what a socket of both families calls a peer that came over IPv4
    return address.is_loopback


def check_loopback(host: str) -> None:
    """Refuse to listen where others can reach it.

    Raises:
        ConfigError: ``host`` is not a loopback address; names it.
    """
    if not is_loopback(host):
        raise ConfigError(f"refusing to listen on {host}: only loopback addresses are allowed unless the port is protected by mutual TLS")
