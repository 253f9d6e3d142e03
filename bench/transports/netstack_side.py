"""The network stack for the two netstack transports: environments, ids, and the one partition and gate.

Side:  any.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bench.transports.common import BUFFER_BYTES, Setting
from netstack.config import NetstackConfig
from netstack.environment import ChannelSpec, NetworkEnvironment
from netstack.eventloop import EventLoopThread
from netstack.gate.input_gate import SingleInputGate
from netstack.ids import ConnectionID, ResultPartitionID, execution_attempt_id, partition_id
from netstack.partition.result_partition import ResultPartition
from netstack.security import SecurityConfig

PARTITION: Final = ResultPartitionID(
    partition_id(b"bench transport.", 0), execution_attempt_id(b"bench transport.", b"the producer....", 0, 0)
)
TIMEOUT_S: Final = 30.0


def network_config(setting: Setting) -> NetstackConfig:
    """As much memory as the channels need, but no less than the default."""
    num_segments = 2 * setting.num_channels * setting.num_credits + 64
    return NetstackConfig(
        segment_size_bytes=BUFFER_BYTES,
        network_memory_bytes=max(64 * 1024 * 1024, num_segments * BUFFER_BYTES),
        exclusive_buffers_per_channel=setting.num_credits,
        max_buffers_per_channel=max(10, setting.num_credits),  # what the receiver takes, the sender may hold
        security=SecurityConfig.hmac(bytes(32)),  # as between TaskManagers; it costs one round trip per connection
    )


@contextmanager
def environment(config: NetstackConfig) -> Iterator[tuple[EventLoopThread, NetworkEnvironment]]:
    """A loop on a thread of its own and the network stack on it; both end with the block."""
    loop = EventLoopThread.start("bench")
    try:
        network = NetworkEnvironment(config, loop)
        try:
            yield loop, network
        finally:
            loop.submit(network.close()).result(TIMEOUT_S)
    finally:
        loop.close()


@contextmanager
def open_partition(setting: Setting, listening: Callable[[int], None]) -> Iterator[tuple[EventLoopThread, ResultPartition]]:
    """A partition that is served; the block finishes it, and is left when all of it was consumed."""
    with environment(network_config(setting)) as (loop, network):
        address = loop.submit(network.start("127.0.0.1", 0)).result(TIMEOUT_S)
        partition = network.create_result_partition("bench producer", PARTITION, setting.num_channels)
        is_consumed = threading.Event()
        partition.add_release_listener(is_consumed.set)
        try:
            listening(address.port)
            yield loop, partition
        finally:
            partition.close()
        if not is_consumed.wait(TIMEOUT_S):
            raise TimeoutError(f"not consumed within {TIMEOUT_S} s: {partition!r}")


@contextmanager
def open_gate(setting: Setting, port: int) -> Iterator[tuple[EventLoopThread, SingleInputGate]]:
    """A gate over all channels, nothing requested yet."""
    with environment(network_config(setting)) as (loop, network):
        peer = ConnectionID("127.0.0.1", port)
        gate = network.create_input_gate("bench consumer", [ChannelSpec(PARTITION, index, peer) for index in range(setting.num_channels)])
        try:
            yield loop, gate
        finally:
            gate.close()
