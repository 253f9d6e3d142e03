"""Settings of the network stack.

Side:   pure.
Units:  as the names say; one frozen object, checked when it is made.
Source: defaults of Flink's ``NettyShuffleEnvironmentOptions`` unless a line says otherwise.
"""

import ipaddress
import os
from dataclasses import dataclass

from netstack.errors import ConfigError

MIN_SEGMENT_SIZE_BYTES = 256


@dataclass(frozen=True, slots=True)
class NetstackConfig:
    """Every knob of the stack."""

    segment_size_bytes: int = 32 * 1024  # Flink's taskmanager.memory.segment-size
    network_memory_bytes: int = 64 * 1024 * 1024  # Flink's minimum of 64 MiB; pages are touched only when used
    # Flink: 2 per channel plus 8 floating ones per gate.  Floating buffers are absent here, so a channel gets 8 of its own.
    exclusive_buffers_per_channel: int = 8
    floating_buffers_per_output: int = 8
    # One gather write hands at most this much to the kernel before the loop looks at its other work.
    max_write_batch_bytes: int = 512 * 1024
    read_buffer_bytes: int = 512 * 1024
    connect_timeout_s: float = 120.0
    partition_request_timeout_s: float = 10.0
    backlog: int = 128
    close_timeout_s: float = 1.0

    def __post_init__(self) -> None:
        if self.segment_size_bytes < MIN_SEGMENT_SIZE_BYTES:
            raise ConfigError(f"segment_size_bytes is {self.segment_size_bytes}, the least is {MIN_SEGMENT_SIZE_BYTES}")
        if self.network_memory_bytes < self.segment_size_bytes:
            raise ConfigError(f"network_memory_bytes is {self.network_memory_bytes}, less than one segment of {self.segment_size_bytes}")
        if self.exclusive_buffers_per_channel < 1:
            raise ConfigError(f"exclusive_buffers_per_channel is {self.exclusive_buffers_per_channel}, the least is 1")

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


def check_loopback(host: str) -> None:
    """Refuse an address that other machines can reach: there is no authentication on the data port yet."""
    if host == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigError(f"refusing to listen on {host}: only loopback addresses are allowed until the port is protected by mutual TLS")
