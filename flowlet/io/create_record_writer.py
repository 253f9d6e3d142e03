"""Chooses the record writer for the partitioner of an edge.

Side:   task.
Source: Flink ``RecordWriterBuilder``, ``StreamTask.createRecordWriter``.
"""

import random
from collections.abc import Callable
from typing import assert_never

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
from flowlet.io.custom_record_writer import CustomRecordWriter
from flowlet.io.key_groups_record_writer import KeyGroupsRecordWriter
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.io.unkeyed_record_writers import (
    BroadcastRecordWriter,
    RoundRobinRecordWriter,
    ShuffleRecordWriter,
    SingleChannelRecordWriter,
)
from flowlet.mailbox.task_mailbox import Attention
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.partition.result_partition import ResultPartition


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
    if partition.num_subpartitions == 1:
        return SingleChannelRecordWriter(
            partition, options, create_key_extractor(partitioner, options.subtask, 1, attention)
        )
    match partitioner:
        case Forward() | Global():
            return SingleChannelRecordWriter(partition, options)
        case Broadcast():
            return BroadcastRecordWriter(partition, options)
        case Rebalance():
            first = rng.randrange(partition.num_subpartitions) if first_channel is None else first_channel
            return RoundRobinRecordWriter(partition, options, first_channel=first)
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
