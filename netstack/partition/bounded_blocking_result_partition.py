"""A partition that is written to a file first, and then read as often as one likes.

Side:   shared.  The task thread writes and flushes; anybody releases.
Source: Flink ``BoundedBlockingResultPartition``.
"""

from pathlib import Path

from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.ids import ResultPartitionID
from netstack.partition.bounded_blocking_subpartition import BoundedBlockingSubpartition
from netstack.partition.bounded_data import BoundedData, BoundedDataFile, BoundedDataKind
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_type import ResultPartitionType


class BoundedBlockingResultPartition(ResultPartition):
    """A partition in one file, whatever the number of its consumers: it can be read from its finish until its release.

    Threading: as its base, but ``flush`` and ``flush_all`` belong to the task thread, since they end the buffers that
               are being written.
    Ownership: its file, which goes with ``release`` (or ``fail``, or an unfinished ``close``).

    Args:
        directory: where the file is made.
        kind: how it is read back.
        has_named_file: whether the file has a name; one without is gone however the process ends.
        compressor: makes buffers smaller before they are written.

    Raises:
        ResourceBrokenError: the file cannot be made.
    """

    def __init__(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        buffer_pool: LocalBufferPool,
        owner: str,
        directory: Path,
        *,
        kind: BoundedDataKind = BoundedDataKind.MMAP,
        has_named_file: bool = True,
        partition_type: ResultPartitionType = ResultPartitionType.BLOCKING,
        compressor: BufferCompressor | None = None,
    ) -> None:
        if not partition_type.is_blocking:
            raise ValueError(f"{owner}: {partition_type.name} is no blocking type")
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        file = BoundedDataFile(directory, num_subpartitions, is_named=has_named_file)

        def new_subpartition(index: int, parent: ResultPartition) -> BoundedBlockingSubpartition:
            return BoundedBlockingSubpartition(index, parent, BoundedData(kind, file), compressor)

        super().__init__(
            partition_id,
            num_subpartitions,
            buffer_pool,
            owner,
            partition_type=partition_type,
            new_subpartition=new_subpartition,
        )

    def flush(self, subpartition: int) -> None:
        """Write what was emitted to ``subpartition``, and end its buffer."""
        self.finish_buffer(subpartition)

    def flush_all(self) -> None:
        """Write everything emitted, and end every buffer."""
        self._finish_builders()
        super().flush_all()

    def on_consumed_subpartition(self, index: int, *, has_read_all: bool) -> None:
        """For the readers: one is done; others may come."""
        self._tell_consumer_left(index, has_read_all=has_read_all)
