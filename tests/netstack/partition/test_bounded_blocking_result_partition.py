"""``BoundedBlockingResultPartition``: the scenarios of Flink's tests of partitions in files."""

import os
from pathlib import Path

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.partition.result_subpartition import ResultSubpartitionView
from tests.netstack.partition.doubles import SEGMENT as SIZE
from tests.netstack.partition.doubles import RecordingListener, partition_id_of


def test_blocking_partition_is_consumable_multiple_times(tmp_path: Path) -> None:
    """ResultPartitionTest.testBlockingPartitionIsConsumableMultipleTimesIfNotReleasedOnConsumption (row A10)."""
    network, manager = NetworkBufferPool(16, SIZE), ResultPartitionManager()
    pool = network.create_buffer_pool(owner="map", num_required=2, max_buffers=8)
    partition = BoundedBlockingResultPartition(partition_id_of(), 1, pool, "map", tmp_path)
    manager.register(partition)
    partition.finish()
    partition.close()

    for _ in range(2):
        manager.create_subpartition_view(partition.partition_id, 0, RecordingListener()).release()
        assert (len(manager), partition.is_released) == (1, False)

    partition.release()
    network.destroy()
    assert (len(manager), list(tmp_path.iterdir())) == (0, [])


def test_flush_bounded_blocking_result_partition(tmp_path: Path) -> None:
    """ResultPartitionTest.testFlushBoundedBlockingResultPartition: each flush ends a buffer; 4 and 2 of them, then the
    end.
    """
    network, record = NetworkBufferPool(16, SIZE), b"\0\0\4\0"
    pool = network.create_buffer_pool(owner="map", num_required=3, max_buffers=16)
    partition = BoundedBlockingResultPartition(partition_id_of(), 2, pool, "map", tmp_path)

    partition.emit_record(record, 0)
    partition.flush(0)
    partition.emit_record(record, 0)
    partition.broadcast_record(record)
    partition.flush_all()
    partition.broadcast_record(record)
    partition.finish()
    partition.close()

    for index, expected in enumerate((4, 2)):
        view = partition.create_subpartition_view(index, RecordingListener())
        found = []
        while (one := view.next_buffer()) is not None:
            found.append(bytes(one.buffer.view))
            one.buffer.recycle()
        assert found == [record] * expected + [b"\0\0\0\0"]
        view.release()
    partition.release()
    network.destroy()
    assert network.num_available == network.num_total


def test_a_partition_holds_one_descriptor(tmp_path: Path) -> None:
    """SortMergeResultPartition's role: 64 producers with 64 consumers need no 4,096 files, neither while they write nor
    later.
    """
    network = NetworkBufferPool(80, SIZE)
    pool = network.create_buffer_pool(owner="map", num_required=65, max_buffers=70)
    before = num_descriptors()
    partition = BoundedBlockingResultPartition(partition_id_of(), 64, pool, "map", tmp_path)
    for _ in range(3):
        for index in range(64):
            partition.emit_record(bytes([index]) * SIZE, index)
    counts = [num_descriptors() - before]
    partition.finish()
    partition.close()
    counts.append(num_descriptors() - before)

    views = [partition.create_subpartition_view(index, RecordingListener()) for index in range(64)]
    contents = [first_content(view) for view in views]
    counts.append(num_descriptors() - before)
    for view in views:
        view.release()
    partition.release()
    network.destroy()

    assert contents == [bytes([index]) * SIZE for index in range(64)]
    assert counts == [1, 1, 1]
    assert num_descriptors() == before


def first_content(view: ResultSubpartitionView) -> bytes:
    """Return the bytes of the first buffer of ``view``."""
    found = view.next_buffer()
    assert found is not None
    content = bytes(found.buffer.view)
    found.buffer.recycle()
    return content


def num_descriptors() -> int:
    """Return the number of this process's open descriptors."""
    return len(os.listdir("/dev/fd"))
