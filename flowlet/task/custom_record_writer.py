"""Routes records by a function of the user's.

Hot path.  Per record there are two calls of the user's functions.

Side:       task.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``CustomPartitionerWrapper``.
"""

import operator
from typing import Any

from flowlet.errors import UserFunctionError
from flowlet.graph.partitioner import Custom
from flowlet.operators.user_function import last_of, preview
from flowlet.records import Chunk
from flowlet.task.pending_columns import LaneArray, lanes_of
from flowlet.task.record_writer_base import LaneRecordWriter, RecordWriterOptions
from netstack.partition.result_partition import ResultPartition


class CustomRecordWriter(LaneRecordWriter):
    """Records go where the user's function sends their keys.

    Args:
        partitioner: the user's function and key selector.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: Custom) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._subtask = options.subtask
        self._key_function = partitioner.key_function
        self._channel_function = partitioner.channel_function

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._append_each(self._channels(values), values, timestamps)

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        return lanes_of(self._channels(chunk.values))

    def _channels(self, values: list[Any]) -> list[int]:
        select, choose, num_channels, index = self._key_function, self._channel_function, self._num_channels, operator.index
        remaining = iter(values)
        try:
            channels = [index(choose(select(value), num_channels)) for value in remaining]
        except Exception as error:
            raise self._failure(last_of(values, remaining)) from error
        for channel, value in zip(channels, values, strict=True):
            if not 0 <= channel < num_channels:
                cause = ValueError(f"the partitioner chose {channel}, but there are the {num_channels} subtasks from 0 on")
                raise self._failure(value) from cause
        return channels

    def _failure(self, record: object) -> UserFunctionError:
        return UserFunctionError("partition_custom", self._subtask, preview(record))
