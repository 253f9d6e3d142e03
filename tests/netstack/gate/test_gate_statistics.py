"""``GateStatistics``: what waits in a gate."""

from tests.netstack.gate.remote_gate import RemoteGate


def test_the_gate_says_what_waits_in_it() -> None:
    """InputBuffersMetricsTest: the length and the size of the input queue."""
    it = RemoteGate(2, num_segments=2)
    it.gate.request_partitions()
    it.receive(0, b"12345", backlog=3)
    it.receive(1, b"678", backlog=2)

    used = it.gate.statistics()

    assert (used.num_queued_buffers, used.queue_size_bytes) == (2, 8)
    it.end()
