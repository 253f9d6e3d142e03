"""Historical bugs that need a whole gate, told in a few steps."""

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import EndOfPartition
from tests.netstack.partition.doubles import partition_id_of


def test_hist_8750_a_late_notification_makes_nothing_available() -> None:
    """A channel that has ended is told of data once more: the gate, whose other channel has none, stays unavailable."""
    pool, manager = NetworkBufferPool(8, 256), ResultPartitionManager()
    partitions = []
    gate = SingleInputGate("reduce (1/1)")
    for number in range(2):
        local_pool = pool.create_buffer_pool(owner="map", num_required=2, max_buffers=4)
        partitions.append(ResultPartition(partition_id_of(number), 1, local_pool, "map"))
        manager.register(partitions[-1])
        gate.add_channel(LocalInputChannel(gate, number, partition_id_of(number), 0, manager))
    gate.request_partitions()
    partitions[0].finish()
    found = gate.poll_next()
    assert found is not None
    assert isinstance(found.event, EndOfPartition)

    gate.notify_channel_non_empty(gate.channels[0])

    assert not gate.available_future().is_done
    assert gate.poll_next() is None
    gate.check_invariants()
    gate.close()
    for partition in partitions:
        partition.close()
    assert pool.num_available == pool.num_total
    pool.destroy()
