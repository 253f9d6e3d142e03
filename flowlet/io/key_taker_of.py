"""What the writer of an edge needs to know of each record when it is emitted.

Side:   task.
Source: Flink ``KeyGroupStreamPartitioner``, ``CustomPartitionerWrapper``.
"""

import operator
from typing import Any

from flowlet.chain.key_taker import KeyTaker
from flowlet.graph.partitioner import Custom, KeyGroups, Partitioner
from flowlet.io.record_writer import RecordWriterOptions


def key_taker_of(partitioner: Partitioner, options: RecordWriterOptions, num_channels: int) -> KeyTaker | None:
    """Takes the key, or for a custom partitioner the channel; None where nothing of a record counts."""
    if isinstance(partitioner, KeyGroups):
        return KeyTaker(partitioner.key_function, "key_by", options.subtask, selector=partitioner.key_selector)
    if isinstance(partitioner, Custom):
        return KeyTaker(_channel_of(partitioner, num_channels), "partition_custom", options.subtask, makes_keys=False)
    return None


def _channel_of(partitioner: Custom, num_channels: int) -> Any:
    select, choose, index = partitioner.key_function, partitioner.channel_function, operator.index

    def channel_of(record: Any) -> int:
        channel = index(choose(select(record), num_channels))
        if not 0 <= channel < num_channels:
            raise ValueError(f"the partitioner chose {channel}, but there are the {num_channels} subtasks from 0 on")
        return channel

    return channel_of
