"""A partition that is written to files first, and then read as often as one likes.

Side:   shared.  The task thread writes and flushes; anybody releases.
Source: Flink ``BoundedBlockingResultPartition``.
"""

from pathlib import Path

from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.errors import ResourceBrokenError
from netstack.ids import ResultPartitionID
from netstack.partition.bounded_blocking_subpartition import BoundedBlockingSubpartition
from netstack.partition.bounded_data import BoundedData, BoundedDataKind, create_bounded_data
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_type import ResultPartitionType
from netstack.wakeups import run_all


class BoundedBlockingResultPartition(ResultPartition):
    """A partition in files: it can be read from its finish until its release.

    Threading: as its base, but ``flush`` and ``flush_all`` belong to the task thread, since they end the buffers that are being written.
    Ownership: its files, which go with ``release`` (or ``fail``, or an unfinished ``close``).

    Args:
        directory: where the files are made, one per subpartition.
        kind: how they are read back.
        has_named_files: whether the files have names; those without are gone however the process ends.
        compressor: makes buffers smaller before they are written.

    Raises:
        ResourceBrokenError: the files cannot be made.
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
        has_named_files: bool = True,
        partition_type: ResultPartitionType = ResultPartitionType.BLOCKING,
        compressor: BufferCompressor | None = None,
    ) -> None:
        if not partition_type.is_blocking:
            raise ValueError(f"{owner}: {partition_type.name} is no blocking type")
        stores: list[BoundedData] = []
        try:
            for _ in range(num_subpartitions):
                stores.append(create_bounded_data(kind, directory, is_named=has_named_files))  # noqa: PERF401 - those made before a failure are closed
        except ResourceBrokenError:
            run_all([store.close for store in stores])
            raise

        def new_subpartition(index: int, parent: ResultPartition) -> BoundedBlockingSubpartition:
            return BoundedBlockingSubpartition(index, parent, stores[index], compressor)

        super().__init__(
            partition_id, num_subpartitions, buffer_pool, owner, partition_type=partition_type, new_subpartition=new_subpartition
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
