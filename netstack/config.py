"""Settings of the network stack.

Side:   pure.
Units:  as the names say; one frozen object, checked when it is made.
Source: defaults of Flink's ``NettyShuffleEnvironmentOptions`` unless a line says otherwise.
"""

import math
import os
from dataclasses import dataclass
from typing import Final

from netstack.errors import ConfigError
from netstack.security import SecurityConfig
from netstack.wire.codec import FRAME_HEADER_BYTES

MIN_SEGMENT_SIZE_BYTES = 256
# Many times what checkpoints put between data; not measured.
MAX_QUEUED_EVENTS: Final = 1024
MAX_QUEUED_EVENT_BYTES: Final = 4 * 1024 * 1024
_PERCENT: Final = 100
KERNEL_CONGESTION_CONTROL: Final = "kernel"  # as ``congestion_control``: whatever the kernel chooses, everywhere
_MAX_CONGESTION_CONTROL_CHARS: Final = 15  # Linux: TCP_CA_NAME_MAX, which counts the zero at the end
_LEAST: Final = {
    "exclusive_buffers_per_channel": 0,
    "floating_buffers_per_gate": 0,
    # One open buffer and one that broadcast left behind may stay for ever in a quiet subpartition: with less its writer stops itself.
    "max_buffers_per_channel": 3,
    "max_overdraft_buffers_per_gate": 0,
    "connect_retries": 0,
    "max_waiting_requests": 1,
    "max_cancels_per_s": 1,
    "max_readers": 1,
    "max_queued_events": 1,
    "max_queued_event_bytes": 1,
    "initial_request_backoff_ms": 0,
    "max_connections": 1,
    "max_producers_per_gate": 1,
    "max_producer_memory_percent": 1,
    "backlog": 0,
    "busy_poll_us": 0,
    "send_buffer_bytes": 0,
    "receive_buffer_bytes": 0,
    "max_write_batch_bytes": 1,
    "max_run_bytes": 1,
    "max_gather_bytes": 1,
    "read_buffer_bytes": FRAME_HEADER_BYTES,
}
_TIMEOUTS: Final = ("request_buffers_timeout_s", "connect_timeout_s", "partition_request_timeout_s", "close_timeout_s")


@dataclass(frozen=True, slots=True)
class NetstackConfig:
    """Every knob of the stack."""

    segment_size_bytes: int = 32 * 1024  # Flink's taskmanager.memory.segment-size
    network_memory_bytes: int = 64 * 1024 * 1024  # Flink's minimum of 64 MiB; pages are touched only when used
    # Flink: 2 per channel plus 8 floating ones per gate.  Credit is what batches writes, so a channel gets 8 of its own here.
    exclusive_buffers_per_channel: int = 8
    floating_buffers_per_gate: int = 8
    # Of one subpartition; more only make the pool unavailable, they are not refused (FLINK-27522).
    max_buffers_per_channel: int = 10
    max_overdraft_buffers_per_gate: int = 5
    # Of gates that producers outside the cluster offer partitions to: offers at once in one subtask, and the share of the network memory
    # that the exclusive buffers of all of them have at most.  64 of them have a quarter of 64 MiB.
    max_producers_per_gate: int = 64
    max_producer_memory_percent: int = 50
    request_buffers_timeout_s: float = 30.0
    compression: str | None = None  # "lz4"
    # Ask producers for buffers that hold about one second of what the task consumes (Flink's taskmanager.network.memory.buffer-debloat).
    buffer_debloat: bool = False
    # One pass of the loop hands at most this much to the kernel before the loop looks at its other work; with only one reader whose turn
    # it is, at most ``max_run_bytes``: its receiver then begins sooner, and the two sides work at the same time.  bench: transport.
    max_write_batch_bytes: int = 1024 * 1024
    max_run_bytes: int = 384 * 1024
    # Whether the channel is writable is asked before each gather write of so much, not before each buffer: with the watermarks of two
    # segments a system call would carry two buffers.  bench: transport.
    max_gather_bytes: int = 1024 * 1024
    read_buffer_bytes: int = 1024 * 1024
    connect_timeout_s: float = 120.0
    connect_retries: int = 0
    # Keep a connection that no channel uses any more for the next job; otherwise its last channel closes it (CloseRequest).
    reuse_connections: bool = True
    partition_request_timeout_s: float = 10.0
    # Of one connection: requests for partitions that are not there yet, cancelled requests (ten seconds' worth of them at once), and
    # receivers that were not cancelled, each of which may hold two read buffers and a file.
    max_waiting_requests: int = 1024
    max_cancels_per_s: int = 1000
    max_readers: int = 10_000
    # Of one channel: events that its task did not read yet.  Events need no credit; between data there are a few, for each checkpoint.
    max_queued_events: int = MAX_QUEUED_EVENTS
    max_queued_event_bytes: int = MAX_QUEUED_EVENT_BYTES
    # Of local channels, and of remote ones whose producer does not keep the request: doubles from initial to max; 0 disables retries.
    initial_request_backoff_ms: int = 100
    max_request_backoff_ms: int = 10_000
    backlog: int = 128
    # The kernel's congestion control of data connections, by its name there.  None: the kernel's own choice, but Reno where both ends are
    # on this machine and there is nothing to congest: BBR paces what it sends, at half the speed.  "kernel": the kernel's own choice there,
    # too.  Whether the kernel has what is named here is found out by whoever listens or dials first.  bench: transport.
    congestion_control: str | None = None
    send_buffer_bytes: int = 0  # 0: the kernel decides
    receive_buffer_bytes: int = 0
    # A loop that reads partitions over connections looks for more, without sleeping, for so long after the last data; 0: it sleeps at once.
    # bench: latency.
    busy_poll_us: int = 0
    close_timeout_s: float = 1.0
    # None: buffers, partitions and local channels work, but nothing listens and nothing is dialled (``netstack.security``).
    security: SecurityConfig | None = None
    max_connections: int = 1024  # of one server
    # Keepalive, unacknowledged data and a frame that stops in its middle: after this time without a sign of life a peer is dead.
    dead_peer_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.segment_size_bytes < MIN_SEGMENT_SIZE_BYTES:
            raise ConfigError(f"segment_size_bytes is {self.segment_size_bytes}, the least is {MIN_SEGMENT_SIZE_BYTES}")
        if self.network_memory_bytes < self.segment_size_bytes:
            raise ConfigError(f"network_memory_bytes is {self.network_memory_bytes}, less than one segment of {self.segment_size_bytes}")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, the least is {least}")
        if self.max_producer_memory_percent > _PERCENT:
            raise ConfigError(f"max_producer_memory_percent is {self.max_producer_memory_percent}, the most is {_PERCENT}")
        if self.max_request_backoff_ms < self.initial_request_backoff_ms:
            raise ConfigError(
                f"max_request_backoff_ms is {self.max_request_backoff_ms}, less than the initial {self.initial_request_backoff_ms}"
            )
        for name in _TIMEOUTS:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must not be negative, and finite")
        if not 0 < self.dead_peer_timeout_s < math.inf:
            raise ConfigError(f"dead_peer_timeout_s is {self.dead_peer_timeout_s}, it must be above 0 and finite")
        chosen = self.congestion_control
        if chosen is not None and not (chosen.isascii() and chosen.isprintable() and 0 < len(chosen) <= _MAX_CONGESTION_CONTROL_CHARS):
            raise ConfigError(
                f"congestion_control is {chosen!r}, expected the kernel's name of one, such as 'cubic' (1 to "
                f"{_MAX_CONGESTION_CONTROL_CHARS} ASCII characters), {KERNEL_CONGESTION_CONTROL!r} or None"
            )
        if self.compression not in (None, "lz4"):
            raise ConfigError(f"compression is {self.compression!r}, known are None and 'lz4'")

    @property
    def num_segments(self) -> int:
        """How many segments the network memory holds."""
        return self.network_memory_bytes // self.segment_size_bytes

    @property
    def low_watermark_bytes(self) -> int:
        """Writable again when no more than this is pending (Flink 1.10: below segment + 1)."""
        return self.segment_size_bytes

    @property
    def high_watermark_bytes(self) -> int:
        """No longer writable when more than this is pending (Flink 1.10: 2 x segment)."""
        return 2 * self.segment_size_bytes


def is_debug() -> bool:
    """Whether ``NETSTACK_DEBUG=1`` asks for the ownership checks."""
    return os.environ.get("NETSTACK_DEBUG", "") == "1"
