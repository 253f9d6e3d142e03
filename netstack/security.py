"""Settings that protect the data port.

Side:       pure.
Invariants: a process is never unprotected by accident: without a ``SecurityConfig`` it neither listens nor dials;
            without TLS it uses loopback addresses only; ``none`` must be chosen by name.  A secret is never part of a
            ``repr`` or an error.
Absent:     secrets of single jobs: a connection carries the channels of all jobs between two processes.
"""

import ipaddress
import math
from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Final

from netstack.errors import ConfigError
from netstack.late import dataclass

MIN_SECRET_BYTES: Final = 32
_FINGERPRINT_BYTES: Final = 32


class SecurityMode(StrEnum):
    """What a peer must prove before any other message is accepted."""

    HMAC = "hmac"
    """Both ends prove that they know the secret, and seal every later frame.

    Loopback only, because nothing is encrypted.
    """
    TLS = "tls"
    """TLS 1.3 with certificates of a private CA on both ends, and the proofs inside it."""
    CERTIFICATES = "certificates"
    """TLS 1.3 with certificates of a private CA on both ends, and nothing inside, for peers without our handshake:
    Flink's ``security.ssl.internal``."""
    NONE = "none"
    """Nothing.  Loopback only, for peers without our handshake, such as Flink's own classes."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The files of this process's certificate and of the CA that must have signed every peer's.

    ``peer_fingerprints``: the accepted certificates of the CA (SHA-256 in hex, colons allowed); empty: all.
    ``verify_hostname``: False allows one certificate for all machines.
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
    """From the connection (with TLS: from its handshake) until the peer is authenticated."""
    failure_delay_s: float = 1.0
    """From a failure until the connection is closed; the same for every failure."""
    max_unauthenticated: int = 64
    """Unauthenticated connections of one server; the oldest is cut for a new one."""
    max_unauthenticated_per_host: int = 16
    """The same for one address other than loopback."""
    authorities: frozenset[str] = frozenset()
    """Further addresses (``host:port``, literal) at which this server is dialled without TLS, such as the entrance of a
    tunnel to it.
    """
    tls_handshake_timeout_s: float = 5.0
    tls_shutdown_timeout_s: float = 2.0

    @classmethod
    def hmac(cls, secret: bytes, *, authorities: Iterable[str] = ()) -> "SecurityConfig":
        """Mutual challenge with a shared secret of at least ``MIN_SECRET_BYTES`` bytes; loopback only.

        ``authorities``: see the field.
        """
        return cls(SecurityMode.HMAC, secret, authorities=frozenset(authorities))

    @classmethod
    def mutual_tls(cls, tls: TlsConfig, secret: bytes) -> "SecurityConfig":
        """TLS 1.3 with certificates on both sides, and the challenge inside it; required for addresses that other
        machines can reach.
        """
        return cls(SecurityMode.TLS, secret, tls)

    @classmethod
    def certificates(cls, tls: TlsConfig) -> "SecurityConfig":
        """TLS 1.3 with certificates on both sides alone: whoever has a certificate of the CA is a peer."""
        return cls(SecurityMode.CERTIFICATES, tls=tls)

    @classmethod
    def none(cls) -> "SecurityConfig":
        """No protection at all; loopback only."""
        return cls(SecurityMode.NONE)

    def __post_init__(self) -> None:
        if self.mode is SecurityMode.NONE:
            if self.secret or self.tls is not None:
                raise ConfigError(
                    "security mode none takes neither a secret nor certificates: did you mean hmac or tls?"
                )
        elif self.mode is SecurityMode.CERTIFICATES:
            if self.secret:
                raise ConfigError("security mode certificates takes no secret: did you mean tls?")
        elif len(self.secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the secret of security mode {self.mode} has {len(self.secret)} bytes, the least is {MIN_SECRET_BYTES}"
            )
        if (self.mode in (SecurityMode.TLS, SecurityMode.CERTIFICATES)) != (self.tls is not None):
            raise ConfigError(f"security mode {self.mode} {'needs a' if self.tls is None else 'takes no'} TlsConfig")
        self._check_authorities()
        self._check_limits()

    def _check_authorities(self) -> None:
        if self.authorities and self.mode is not SecurityMode.HMAC:
            raise ConfigError(
                f"security mode {self.mode} takes no authorities: only hmac compares the address that a client dialled"
            )
        for each in self.authorities:
            host, _, port = each.rpartition(":")
            if not is_loopback(host.removeprefix("[").removesuffix("]")) or host == "localhost" or not port.isdecimal():
                raise ConfigError(
                    f"security.authorities has {each!r}, expected a literal loopback address and a port, as "
                    "127.0.0.1:6121"
                )

    def _check_limits(self) -> None:
        for name in ("handshake_timeout_s", "tls_handshake_timeout_s", "tls_shutdown_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"security.{name} is {getattr(self, name)}, it must be above 0 and finite")
        if not 0 <= self.failure_delay_s < math.inf:
            raise ConfigError(f"security.failure_delay_s is {self.failure_delay_s}, it must be finite and not negative")
        for name in ("max_unauthenticated", "max_unauthenticated_per_host"):
            if getattr(self, name) < 1:
                raise ConfigError(f"security.{name} is {getattr(self, name)}, the least is 1")


def normalized_fingerprint(text: str) -> bytes:
    """The 32 bytes of a SHA-256 fingerprint in hex, with or without colons.

    Raises:
        ConfigError: ``text`` is not such a fingerprint.
    """
    try:
        digest = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != _FINGERPRINT_BYTES:
        raise ConfigError(f"{text!r} is not a SHA-256 fingerprint, which has {2 * _FINGERPRINT_BYTES} hex digits")
    return digest


def normalized_authority(text: str) -> str:
    """``host:port`` in the form in which authorities are compared: one spelling per literal address, IPv4 without the
    prefix of IPv6.
    """
    host, _, port = text.rpartition(":")
    address = _address_in(host.removeprefix("[").removesuffix("]"))
    if address is None:
        return text
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def required_security(security: SecurityConfig | None) -> SecurityConfig:
    """Return ``security``.

    Raises:
        ConfigError: ``security`` is None; names the choices.
    """
    if security is None:
        raise ConfigError(
            "NetstackConfig.security is not set, so nothing listens and nothing is dialled: set "
            "SecurityConfig.hmac(secret) for processes on one machine, SecurityConfig.mutual_tls(...) for several "
            "machines, or SecurityConfig.none() for a plain peer on loopback"
        )
    return security


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a literal loopback address or ``localhost``; other names may resolve to any address."""
    address = _address_in(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address_in(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The literal address in ``host``, None if that is a name; of IPv4 also in the form in which a dual-stack socket
    shows IPv4 peers.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def check_loopback(host: str) -> None:
    """Check that ``host`` is a loopback address.

    Raises:
        ConfigError: it is not.
    """
    if not is_loopback(host):
        raise ConfigError(
            f"refusing to listen on {host}: only loopback addresses are allowed unless the port is protected by mutual "
            "TLS"
        )
