"""Chooses the record writer for the partitioner of an edge.

Record writers that need no key: to one channel, to all, to the next one, to a random one.

Hot path, per chunk; only ``ShuffleRecordWriter`` works per record.

Routes records by a function of the user.

Hot path.  Two calls of user functions per record.

Side:   task.
Source: Flink ``ChannelSelectorRecordWriter`` with ``ForwardPartitioner``, ``GlobalPartitioner``,
        ``RebalancePartitioner``, ``RescalePartitioner`` or ``ShufflePartitioner``; ``BroadcastRecordWriter``.  Flink
        ``ChannelSelectorRecordWriter`` with ``CustomPartitionerWrapper``.  Flink ``RecordWriterBuilder``,
        ``StreamTask.createRecordWriter``.
"""

import random
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np

from flowlet.chain.key_extractor import create_key_extractor
from flowlet.graph.partitioner import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroups,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
)
from flowlet.io.key_groups_record_writer import KeyGroupsRecordWriter
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.partition.result_partition import ResultPartition


class SingleChannelRecordWriter(RecordWriter):
    """Sends everything to channel 0: forward, global, and every partitioner with one consumer.  It has one lane."""

    def _collect_part(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        self._pending[0] += values
        if timestamps is not None:
            self._pending_timestamps[0] += timestamps
        if keys is not None:
            self._pending_keys[0] += keys

    def _lanes(self, num_records: int, keys: list[Any] | None) -> None:
        return None


class BroadcastRecordWriter(SingleChannelRecordWriter):
    """Sends every record to every channel: serialized once, into buffers that all channels share."""

    def _hand_over(self, chunk: Chunk, lane: int) -> bool:
        return False  # every consumer needs its own records

    def _write_bytes(self, element: bytes, lane: int) -> None:
        self._partition.broadcast_record(element)

    def _write_to_all(self, element: bytes) -> None:
        self._partition.broadcast_record(element)


class RoundRobinRecordWriter(RecordWriter):
    """Sends each record to the next channel, from ``first_channel`` on: a random one for rebalance, 0 for rescale."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, *, first_channel: int) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._next_channel = first_channel

    def _collect_part(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        num_channels, first = self._num_channels, self._next_channel
        for position in range(min(num_channels, len(values))):
            channel = (first + position) % num_channels
            self._pending[channel] += values[position::num_channels]
            if timestamps is not None:
                self._pending_timestamps[channel] += timestamps[position::num_channels]
        self._next_channel = (first + len(values)) % num_channels

    def _lanes(self, num_records: int, keys: list[Any] | None) -> Any:
        lanes = np.arange(self._next_channel, self._next_channel + num_records) % self._num_channels
        self._next_channel = (self._next_channel + num_records) % self._num_channels
        return lanes


class ShuffleRecordWriter(RecordWriter):
    """Sends each record to a random channel."""

    def _lanes(self, num_records: int, keys: list[Any] | None) -> list[int]:
        return self._rng.choices(range(self._num_channels), k=num_records)


class CustomRecordWriter(RecordWriter):
    """Sends each record to the channel that the user's partitioner chooses for its key, when the record is emitted."""

    def _lanes(self, num_records: int, keys: list[Any] | None) -> list[int]:
        assert keys is not None, "there is a key extractor"
        return keys


def create_record_writer(
    partition: ResultPartition,
    partitioner: Partitioner,
    *,
    buffer_timeout_ms: int,
    subtask: int,
    on_written: Callable[[], None] | None = None,
    rng: random.Random | None = None,
    max_element_bytes: int = DEFAULT_ELEMENT_LIMITS.max_element_bytes,
    operator: str | None = None,
    attention: Attention | None = None,
    serializer: StreamElementSerializer | None = None,
    first_channel: int | None = None,
) -> RecordWriter:
    """The record writer for a partitioner.

    ``partition`` has one subpartition per channel.  ``subtask`` is the producer's.  ``rng`` draws the first channel of
    a rebalance, and the channels of shuffles and latency markers.  ``serializer``: None: of chunks of any objects, of
    at most ``max_element_bytes``.  See ``RecordWriterOptions`` for the rest.  ``first_channel``: of a rebalance; None:
    a random one.

    Raises:
        ValueError: the buffer timeout is below -1.
    """
    rng = random.Random() if rng is None else rng  # noqa: S311 - spreads load, protects nothing
    serializer = serializer or StreamElementSerializer(max_element_bytes=max_element_bytes)
    options = RecordWriterOptions(buffer_timeout_ms, subtask, on_written, rng, serializer, operator, attention)
    num_channels = partition.num_subpartitions
    keys = create_key_extractor(partitioner, subtask, num_channels, attention)
    if num_channels == 1:
        return SingleChannelRecordWriter(partition, options, 1, keys)
    match partitioner:
        case Forward() | Global():
            return SingleChannelRecordWriter(partition, options, 1)
        case Broadcast():
            return BroadcastRecordWriter(partition, options, 1)
        case Rebalance():
            first = rng.randrange(num_channels) if first_channel is None else first_channel
            return RoundRobinRecordWriter(partition, options, first_channel=first)
        case Rescale():
            return RoundRobinRecordWriter(partition, options, first_channel=0)
        case Shuffle():
            return ShuffleRecordWriter(partition, options, num_channels)
        case Custom():
            return CustomRecordWriter(partition, options, num_channels, keys)
        case KeyGroups():
            return KeyGroupsRecordWriter(partition, options, partitioner, keys)
        case _:
            assert_never(partitioner)
