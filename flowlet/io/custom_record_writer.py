"""Routes records by a function of the user.

Hot path.  Two calls of user functions per record.
Side:       task.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``CustomPartitionerWrapper``.
"""

from typing import Any

from flowlet.chain.key_extractor import create_key_extractor
from flowlet.graph.partitioner import Custom
from flowlet.io.pending_columns import LaneArray, lanes_of
from flowlet.io.record_writer import LaneRecordWriter, RecordWriterOptions
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition


class CustomRecordWriter(LaneRecordWriter):
    """Sends each record to the channel that the user's partitioner chooses for its key, when the record is emitted."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: Custom) -> None:
        keys = create_key_extractor(partitioner, options.subtask, partition.num_subpartitions, options.attention)
        super().__init__(partition, options, partition.num_subpartitions, keys)

    def _route(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        assert keys is not None, "there is a key extractor"
        self._append_each(keys, values, timestamps)

    def _lanes_of(self, chunk: Chunk) -> LaneArray | None:
        assert chunk.keys is not None, "there is a key extractor"
        return lanes_of(chunk.keys)
