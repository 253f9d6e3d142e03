"""``GateStatistics``: how much of its buffers a gate uses."""

from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from tests.netstack.gate.remote_gate import RemoteGate


def test_the_gate_says_how_much_of_its_buffers_is_used() -> None:
    """InputBuffersMetricsTest: testCalculateTotalBuffersSize, testExclusiveBuffersUsage, testFloatingBuffersUsage."""
    it = RemoteGate(2, num_segments=2)
    it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=8, max_buffers=8))
    it.gate.request_partitions()
    fresh = it.gate.statistics()
    it.receive(0, b"12345", backlog=3)
    channel = it.gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    channel.take_unannounced_credit()
    one_exclusive = it.gate.statistics()
    it.receive(0, b"678", backlog=2)

    used = it.gate.statistics()

    assert (fresh.num_exclusive_buffers, fresh.num_floating_buffers) == (4, 8)
    assert (fresh.exclusive_usage, fresh.floating_usage, fresh.in_pool_usage) == (0.0, 0.0, 0.0)
    assert (one_exclusive.num_exclusive_used, one_exclusive.num_floating_used, one_exclusive.exclusive_usage) == (
        1,
        0,
        0.25,
    )
    assert (used.num_exclusive_used, used.num_floating_used) == (1, 1)
    assert (used.floating_usage, used.in_pool_usage) == (1 / 8, 2 / 12)
    assert (used.num_queued_buffers, used.queue_size_bytes) == (2, 8)
    it.end()


def test_a_gate_of_local_channels_has_no_buffers_to_use() -> None:
    """InputBuffersMetricsTest: local channels do not count; nothing is divided by zero."""
    gate = SingleInputGate("reduce")

    numbers = gate.statistics()

    assert (numbers.exclusive_usage, numbers.floating_usage, numbers.in_pool_usage) == (0.0, 0.0, 0.0)
    gate.close()
