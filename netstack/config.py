"""Settings of the network stack, and those that protect the data port (``SecurityConfig``).

Side:       pure.
Invariants: a process is never unprotected by accident: without a ``SecurityConfig`` it neither listens nor dials;
            without TLS it uses loopback addresses only; ``none`` must be chosen by name.  A secret is never part of a
            ``repr`` or an error.
Source:     defaults of Flink's ``NettyShuffleEnvironmentOptions`` unless a line says otherwise.
Absent:     secrets of single jobs: a connection carries the channels of all jobs between two processes.
"""

import ipaddress
import math
import os
from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Final

from netstack.errors import ConfigError
from netstack.late import by_name, dataclass
from netstack.wire.message_bytes import FRAME_HEADER_BYTES, MIN_HEARTBEAT_INTERVAL_MS

MIN_SECRET_BYTES: Final = 32
_FINGERPRINT_BYTES: Final = 32


class SecurityMode(StrEnum):
    """The proof that a peer must give before any other message is accepted."""

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
    """The security of the data port; made by ``hmac``, ``mutual_tls``, ``certificates`` or ``none``."""

    mode: SecurityMode
    secret: bytes = field(default=b"", repr=False)
    tls: TlsConfig | None = None
    handshake_timeout_s: float = 5.0
    """From the connection (with TLS: from its handshake) until the peer is authenticated."""
    failure_delay_s: float = 1.0
    """From a failure until the connection is closed; one delay for every kind of failure."""
    max_unauthenticated: int = 64
    """Unauthenticated connections of one server; the oldest is cut for a new one."""
    max_unauthenticated_per_host: int = 16
    """Unauthenticated connections from one address other than loopback."""
    authorities: frozenset[str] = frozenset()
    """Further addresses (``host:port``, literal) at which this server is dialled without TLS, such as the entrance of a
    tunnel to it.
    """
    tls_handshake_timeout_s: float = 5.0
    tls_shutdown_timeout_s: float = 2.0

    @classmethod
    def hmac(cls, secret: bytes, *, authorities: Iterable[str] = ()) -> "SecurityConfig":
        """Choose a mutual challenge with a shared secret of at least ``MIN_SECRET_BYTES`` bytes; loopback only.

        ``authorities``: see the field.
        """
        return cls(SecurityMode.HMAC, secret, authorities=frozenset(authorities))

    @classmethod
    def mutual_tls(cls, tls: TlsConfig, secret: bytes) -> "SecurityConfig":
        """Choose TLS 1.3 with certificates on both sides, and the challenge inside it; required for addresses that
        other machines can reach.
        """
        return cls(SecurityMode.TLS, secret, tls)

    @classmethod
    def certificates(cls, tls: TlsConfig) -> "SecurityConfig":
        """Choose TLS 1.3 with certificates on both sides alone: every holder of a certificate of the CA is a peer."""
        return cls(SecurityMode.CERTIFICATES, tls=tls)

    @classmethod
    def none(cls) -> "SecurityConfig":
        """Choose no protection at all; loopback only."""
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
    """Return the 32 bytes of a SHA-256 fingerprint in hex, with or without colons.

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
    """Write ``host:port`` in the form in which authorities are compared: one spelling per literal address, IPv4 without
    the prefix of IPv6.
    """
    host, _, port = text.rpartition(":")
    address = _address_in(host.removeprefix("[").removesuffix("]"))
    if address is None:
        return text
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def required_security(security: SecurityConfig | None) -> SecurityConfig:
    """Return ``security``, which must be set.

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
    """Return the literal address in ``host``, None if that is a name; reads IPv4, too, in the form in which a
    dual-stack socket shows IPv4 peers.
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


MIN_SEGMENT_SIZE_BYTES = 256
DEAD_HOST_TIMEOUT_S: Final = 30.0  # of the connections of all ports; not measured
MAX_QUEUED_EVENTS: Final = 1024  # far more than checkpoints put between data; not measured
_PERCENT: Final = 100
KERNEL_CONGESTION_CONTROL: Final = "kernel"  # value of ``congestion_control``: the kernel chooses for every connection
_MAX_CONGESTION_CONTROL_CHARS: Final = 15  # Linux: TCP_CA_NAME_MAX, which counts the zero at the end
# The settings by their least value.
_LEAST: Final = {
    0: "exclusive_buffers_per_channel floating_buffers_per_gate max_overdraft_buffers_per_gate connect_retries "
    "connect_backoff_ms max_request_backoff_ms backlog busy_poll_us send_buffer_bytes receive_buffer_bytes",
    1: "max_waiting_requests max_cancels_per_s max_readers max_queued_events max_queued_event_bytes max_connections "
    "max_producers_per_gate max_producer_memory_percent max_write_batch_bytes max_run_bytes max_gather_bytes",
    # An open buffer and one left by a broadcast may stay for ever in an idle subpartition: with fewer than 3 its writer
    # would block itself.
    3: "max_buffers_per_channel",
    FRAME_HEADER_BYTES: "read_buffer_bytes",
    MIN_SEGMENT_SIZE_BYTES: "segment_size_bytes",
}
_MAX_HEARTBEAT_INTERVAL_S: Final = 86_400  # a day
_LEAST_REQUEST_TIMEOUT_S: Final = 0.001
_TIMEOUTS: Final = ("request_buffers_timeout_s", "connect_timeout_s", "partition_request_timeout_s", "close_timeout_s")


@dataclass(frozen=True, slots=True)
class NetstackConfig:
    """The settings; frozen, and checked when it is made (``ConfigError``)."""

    segment_size_bytes: int = 32 * 1024  # Flink's taskmanager.memory.segment-size
    network_memory_bytes: int = 64 * 1024 * 1024  # Flink's minimum of 64 MiB; pages are touched only when used
    # Flink: 2 per channel and 8 floating ones per gate.  8 here, because credit decides how many buffers one write
    # carries.
    exclusive_buffers_per_channel: int = 8
    floating_buffers_per_gate: int = 8
    # Of one subpartition; more buffers make the pool unavailable, but are not refused (FLINK-27522).
    max_buffers_per_channel: int = 10
    # Flink: 5, for the rest of one record.  Here for the chunks of one default action, 2 MiB: the task then waits for
    # room in its mailbox,
    # where it takes mails, and not inside a write.  Only memory that no other pool was promised.
    max_overdraft_buffers_per_gate: int = 64
    # For gates of producers outside the cluster: how many offers one subtask takes at once, and the share of the
    # network memory that the exclusive buffers of all of them may have.  64 offers take a quarter of 64 MiB.
    max_producers_per_gate: int = 64
    max_producer_memory_percent: int = 50
    request_buffers_timeout_s: float = 30.0
    compression: str | None = None  # "lz4"
    # One pass hands at most this much to the kernel before the loop does other work.  If only one reader is ready it is
    # ``max_run_bytes``: then its receiver starts sooner, and the two work side by side.  bench: transport.
    max_write_batch_bytes: int = 1024 * 1024
    max_run_bytes: int = 384 * 1024
    # Writability is checked before each gather write of this size, not before each buffer: with watermarks of two
    # segments a system call would otherwise carry only two buffers.  bench: transport.
    max_gather_bytes: int = 1024 * 1024
    read_buffer_bytes: int = 1024 * 1024
    connect_timeout_s: float = 120.0
    # Flink's taskmanager.network.retries.  A peer that failed to authenticate is not tried again.
    connect_retries: int = 0
    connect_backoff_ms: int = 100  # before the first retry; doubles up to ``max_request_backoff_ms``
    # Keep a connection that no channel uses any more for the next job; otherwise its last channel closes it
    # (CloseRequest).
    reuse_connections: bool = True
    partition_request_timeout_s: float = 10.0
    # Limits of one connection: requests for partitions that are not registered yet, cancelled requests (at once: ten
    # seconds' worth), and readers, each of which may hold two read buffers and a file.
    max_waiting_requests: int = 1024
    max_cancels_per_s: int = 1000
    max_readers: int = 10_000
    # Unread events of one channel.  Events need no credit; each checkpoint puts a few between data.
    max_queued_events: int = MAX_QUEUED_EVENTS
    max_queued_event_bytes: int = 4 * 1024 * 1024
    # The longest pause between two attempts to connect.  A partition that is not found is requested again, each time
    # behind ``partition_request_timeout_s`` at the producer, until that took twice as long.
    max_request_backoff_ms: int = 10_000
    backlog: int = 128
    # The kernel's name of a congestion control.  None: Reno if both ends are on this machine, where BBR's pacing would
    # halve the speed, else the kernel's choice.  "kernel": always the kernel's choice.  The first listen or dial
    # refuses a name that the kernel lacks.
    # bench: transport.
    congestion_control: str | None = None
    send_buffer_bytes: int = 0  # 0: the kernel decides
    receive_buffer_bytes: int = 0
    # After data arrived, the loop polls for this long before it sleeps; 0: it sleeps at once.  bench: latency.
    busy_poll_us: int = 0
    close_timeout_s: float = 1.0
    # None: partitions and local channels work, but the process neither listens nor dials (``netstack.config``).
    security: SecurityConfig | None = None
    max_connections: int = 1024  # of one server
    # The peer's host is gone after this time in which its kernel acknowledged nothing.  The kernel answers for a
    # process that stands still.
    dead_peer_timeout_s: float = DEAD_HOST_TIMEOUT_S
    # Of connections with authentication: how often the peer shall send something (Flink's heartbeat.interval), and
    # after which silence it is lost; of all: how long the rest of a frame may take, and how long its receive buffer may
    # be full.  A function that keeps the interpreter's lock silences a peer that is well.  More than the 50 s after
    # which a JobManager gives a TaskManager up, so that the error of a stopped TaskManager is the JobManager's, which
    # knows its name.
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name, least in by_name(_LEAST).items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, the least is {least}")
        if self.network_memory_bytes < self.segment_size_bytes:
            raise ConfigError(
                f"network_memory_bytes is {self.network_memory_bytes}, less than one segment of "
                f"{self.segment_size_bytes}"
            )
        if self.max_producer_memory_percent > _PERCENT:
            raise ConfigError(
                f"max_producer_memory_percent is {self.max_producer_memory_percent}, the most is {_PERCENT}"
            )
        for name in _TIMEOUTS:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be finite and not negative")
        if self.partition_request_timeout_s < _LEAST_REQUEST_TIMEOUT_S:
            raise ConfigError(
                f"partition_request_timeout_s is {self.partition_request_timeout_s}, the least is "
                f"{_LEAST_REQUEST_TIMEOUT_S}: a request that waits nowhere would be repeated without a pause"
            )
        if not 0 < self.dead_peer_timeout_s < math.inf:
            raise ConfigError(f"dead_peer_timeout_s is {self.dead_peer_timeout_s}, it must be above 0 and finite")
        least_s = MIN_HEARTBEAT_INTERVAL_MS / 1000
        if not least_s <= self.heartbeat_interval_s <= _MAX_HEARTBEAT_INTERVAL_S:
            raise ConfigError(
                f"heartbeat_interval_s is {self.heartbeat_interval_s}, expected {least_s:g} to "
                f"{_MAX_HEARTBEAT_INTERVAL_S}"
            )
        if not 2 * self.heartbeat_interval_s <= self.heartbeat_timeout_s < math.inf:
            raise ConfigError(
                f"heartbeat_timeout_s is {self.heartbeat_timeout_s}, it must be finite and at least twice the "
                f"heartbeat_interval_s of {self.heartbeat_interval_s:g}"
            )
        chosen = self.congestion_control
        if chosen is not None and not (
            chosen.isascii() and chosen.isprintable() and 0 < len(chosen) <= _MAX_CONGESTION_CONTROL_CHARS
        ):
            raise ConfigError(
                f"congestion_control is {chosen!r}, expected the kernel's name of one, such as 'cubic' (1 to "
                f"{_MAX_CONGESTION_CONTROL_CHARS} ASCII characters), {KERNEL_CONGESTION_CONTROL!r} or None"
            )
        if self.compression not in (None, "lz4"):
            raise ConfigError(f"compression is {self.compression!r}, known are None and 'lz4'")

    @property
    def num_segments(self) -> int:
        """The number of segments in the network memory."""
        return self.network_memory_bytes // self.segment_size_bytes

    @property
    def low_watermark_bytes(self) -> int:
        """The pending bytes down to which a channel becomes writable again (Flink 1.10: below segment + 1)."""
        return self.segment_size_bytes

    @property
    def high_watermark_bytes(self) -> int:
        """The pending bytes above which a channel becomes unwritable (Flink 1.10: 2 x segment)."""
        return 2 * self.segment_size_bytes


def is_debug() -> bool:
    """Whether ``NETSTACK_DEBUG=1`` turns the ownership checks on."""
    return os.environ.get("NETSTACK_DEBUG", "") == "1"
