"""Record writers that need no key: to one channel, to all, to the next one, to a random one.

Hot path, per chunk; only ``ShuffleRecordWriter`` works per record.
Side:       task.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``ForwardPartitioner``, ``GlobalPartitioner``,
            ``RebalancePartitioner``, ``RescalePartitioner`` or ``ShufflePartitioner``; ``BroadcastRecordWriter``.
"""

from typing import Any

import numpy as np

from flowlet.chain.key_extractor import KeyExtractor
from flowlet.io.pending_columns import LaneArray, lanes_of
from flowlet.io.record_writer import LaneRecordWriter, RecordWriterOptions
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition


class SingleChannelRecordWriter(LaneRecordWriter):
    """Sends everything to channel 0: forward, global, and every partitioner with one consumer."""

    def __init__(
        self, partition: ResultPartition, options: RecordWriterOptions, keys: KeyExtractor | None = None
    ) -> None:
        super().__init__(partition, options, num_lanes=1, keys=keys)

    def _route(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        self._pending[0] += values
        if timestamps is not None:
            self._pending_timestamps[0] += timestamps
        if keys is not None:
            self._pending_keys[0] += keys

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        return None


class BroadcastRecordWriter(SingleChannelRecordWriter):
    """Sends every record to every channel: serialized once, into buffers that all channels share."""

    def _hand_over(self, chunk: Chunk, lane: int) -> bool:
        return False  # every consumer needs its own records

    def _write_bytes(self, element: bytes, lane: int) -> None:
        self._partition.broadcast_record(element)

    def _write_to_all(self, element: bytes) -> None:
        self._partition.broadcast_record(element)


class RoundRobinRecordWriter(LaneRecordWriter):
    """Sends each record to the next channel, from ``first_channel`` on: a random one for rebalance, 0 for rescale."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, *, first_channel: int) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._next_channel = first_channel

    def _route(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        num_channels, first = self._num_channels, self._next_channel
        for position in range(min(num_channels, len(values))):
            channel = (first + position) % num_channels
            self._pending[channel] += values[position::num_channels]
            if timestamps is not None:
                self._pending_timestamps[channel] += timestamps[position::num_channels]
        self._next_channel = (first + len(values)) % num_channels

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        lanes = np.arange(self._next_channel, self._next_channel + len(chunk)) % self._num_channels
        self._next_channel = (self._next_channel + len(chunk)) % self._num_channels
        return lanes_of(lanes)


class ShuffleRecordWriter(LaneRecordWriter):
    """Sends each record to a random channel."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions) -> None:
        super().__init__(partition, options, partition.num_subpartitions)

    def _route(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        self._append_each(self._rng.choices(range(self._num_channels), k=len(values)), values, timestamps)

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        return lanes_of(self._rng.choices(range(self._num_channels), k=len(chunk)))
