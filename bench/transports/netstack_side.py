"""The network stack for the two netstack transports: environments, ids, and the one partition and gate.

Side:  any.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bench.transports.common import BUFFER_BYTES, PayloadSource, Setting
from netstack.config import NetstackConfig, SecurityConfig, is_debug
from netstack.environment import ChannelSpec, NetworkEnvironment
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID, ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.result_partition import ResultPartition

PARTITION: Final = ResultPartitionID(
    intermediate_partition_id(b"bench transport.", 0),
    execution_attempt_id(b"bench transport.", b"the producer....", 0, 0),
)
TIMEOUT_S: Final = 30.0
_IS_POISONED: Final = is_debug()  # freed segments are overwritten


def network_config(setting: Setting) -> NetstackConfig:
    """Return a configuration with as much memory as the channels need, but no less than the default."""
    num_segments = 2 * setting.num_channels * setting.num_credits + 64
    return NetstackConfig(
        segment_size_bytes=BUFFER_BYTES,
        network_memory_bytes=max(64 * 1024 * 1024, num_segments * BUFFER_BYTES),
        exclusive_buffers_per_channel=setting.num_credits,
        max_buffers_per_channel=max(10, setting.num_credits),  # the sender may hold as many as the receiver takes
        congestion_control=setting.congestion_control,
        security=SecurityConfig.hmac(bytes(32)),  # as between TaskManagers; it costs one round trip per connection
    )


@contextmanager
def environment(config: NetstackConfig) -> Iterator[tuple[EventLoopThread, NetworkEnvironment]]:
    """Start a loop on a thread of its own and the network stack on it; both end with the block."""
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
def open_partition(
    setting: Setting, listening: Callable[[int], None]
) -> Iterator[tuple[EventLoopThread, ResultPartition]]:
    """Serve a partition; the block finishes it, and is left when all of it was consumed."""
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
    """Open a gate over all channels; no partition is requested yet."""
    with environment(network_config(setting)) as (loop, network):
        peer = ConnectionID("127.0.0.1", port)
        gate = network.create_input_gate(
            "bench consumer", [ChannelSpec(PARTITION, index, peer) for index in range(setting.num_channels)]
        )
        try:
            yield loop, gate
        finally:
            gate.close()


class InPlaceEmitter:
    """Emits buffers that were filled before and are only labelled anew, as raw sockets send them.

    Threading: one thread.
    """

    def __init__(self, partition: ResultPartition, source: PayloadSource) -> None:
        self._partition = partition
        self._source = source
        self._full = source.new_buffer()
        self._filled: set[int] = set()  # segments that have everything but their labels
        self._max_segments = source.buffers_per_turn

    def emit(self) -> int:
        """Fill buffers for the next channel, which may block; return how many."""
        channel = self._source.next_channel()
        segments = self._partition.reserve_segments(self._max_segments, channel)
        for segment in segments:
            if segment.index not in self._filled or _IS_POISONED:
                segment.view[:] = self._full
                self._filled.add(segment.index)
        self._source.label_in_place([segment.view for segment in segments], channel)
        self._partition.emit_segments(segments, channel)
        return len(segments)


class CopyingEmitter:
    """Emits records, which the partition copies into its buffers, as tasks do.

    Threading: one thread.
    """

    def __init__(self, partition: ResultPartition, source: PayloadSource) -> None:
        self._emit_record = partition.emit_record
        self._source = source
        self._record = memoryview(source.new_buffer() * source.buffers_per_turn)
        self._views = [
            self._record[start : start + BUFFER_BYTES] for start in range(0, len(self._record), BUFFER_BYTES)
        ]

    def emit(self) -> int:
        """Emit records for the next channel, which may block; return how many buffers they fill."""
        channel = self._source.next_channel()
        self._source.label_in_place(self._views, channel)
        self._emit_record(self._record, channel)
        return len(self._views)


def new_emitter(setting: Setting, partition: ResultPartition, source: PayloadSource) -> InPlaceEmitter | CopyingEmitter:
    """Return the emitter that ``setting`` asks for."""
    return (CopyingEmitter if setting.is_copied else InPlaceEmitter)(partition, source)
