"""Routes chunks to the subpartitions of one output and serializes them.

Hot path, per chunk: here nothing is done per record, but for ``ShuffleRecordWriter``.

Side:       task.
Invariants: those of ``record_writer``.
Source:     Flink ``ChannelSelectorRecordWriter``, ``BroadcastRecordWriter``, ``RebalancePartitioner``, ``RescalePartitioner``,
            ``ShufflePartitioner``.
"""

import random
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np

from flowlet.chain.key_extractor import KeyExtractor, create_key_extractor
from flowlet.graph.partitioner import Broadcast, Custom, Forward, Global, KeyGroups, Partitioner, Rebalance, Rescale, Shuffle
from flowlet.io.custom_record_writer import CustomRecordWriter
from flowlet.io.key_groups_record_writer import KeyGroupsRecordWriter
from flowlet.io.pending_columns import LaneArray, lanes_of
from flowlet.io.record_writer import LaneRecordWriter, RecordWriter, RecordWriterOptions
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition

__all__ = [
    "BroadcastRecordWriter",
    "RecordWriter",
    "RecordWriterOptions",
    "RoundRobinRecordWriter",
    "ShuffleRecordWriter",
    "SingleChannelRecordWriter",
    "create_record_writer",
]


class SingleChannelRecordWriter(LaneRecordWriter):
    """Everything goes to channel 0: forward, global, and every partitioner with one consumer.

    Args:
        keys: takes the keys of records for their consumer.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, keys: KeyExtractor | None = None) -> None:
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
    """Every record goes to every channel, serialized once, into buffers that all channels share."""

    def _hand_over(self, chunk: Chunk, lane: int) -> bool:
        return False  # every consumer has records of its own

    def _write_bytes(self, element: bytes, lane: int) -> None:
        self._partition.broadcast_record(element)

    def _write_to_all(self, element: bytes) -> None:
        self._partition.broadcast_record(element)


class RoundRobinRecordWriter(LaneRecordWriter):
    """Record by record to the next channel: rebalance from a random channel on, rescale from the first.

    Args:
        first_channel: which one gets the first record.
    """

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
    """Each record goes to a channel drawn for it, all channels being equally likely."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions) -> None:
        super().__init__(partition, options, partition.num_subpartitions)

    def _route(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        self._append_each(self._rng.choices(range(self._num_channels), k=len(values)), values, timestamps)

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        return lanes_of(self._rng.choices(range(self._num_channels), k=len(chunk)))


def create_record_writer(
    partition: ResultPartition,
    partitioner: Partitioner,
    *,
    buffer_timeout_ms: int,
    subtask: int,
    on_written: Callable[[], None] | None = None,
    rng: random.Random | None = None,
) -> RecordWriter:
    """The writer for a partitioner.

    Args:
        partition: where the bytes go; its number of subpartitions is the number of channels.
        partitioner: chooses channels.
        buffer_timeout_ms: see ``RecordWriterOptions``.
        subtask: of the producer.
        on_written: see ``RecordWriterOptions``.
        rng: for the first channel of a rebalance, for shuffles and for latency markers.

    Raises:
        ValueError: the buffer timeout is below -1.
    """
    rng = random.Random() if rng is None else rng  # noqa: S311 - spreads load, protects nothing
    options = RecordWriterOptions(buffer_timeout_ms, subtask, on_written, rng)
    if partition.num_subpartitions == 1:
        return SingleChannelRecordWriter(partition, options, create_key_extractor(partitioner, options.subtask, 1))
    match partitioner:
        case Forward() | Global():
            return SingleChannelRecordWriter(partition, options)
        case Broadcast():
            return BroadcastRecordWriter(partition, options)
        case Rebalance():
            return RoundRobinRecordWriter(partition, options, first_channel=rng.randrange(partition.num_subpartitions))
        case Rescale():
            return RoundRobinRecordWriter(partition, options, first_channel=0)
        case Shuffle():
            return ShuffleRecordWriter(partition, options)
        case Custom():
            return CustomRecordWriter(partition, options, partitioner)
        case KeyGroups():
            return KeyGroupsRecordWriter(partition, options, partitioner)
        case _:
            assert_never(partitioner)
