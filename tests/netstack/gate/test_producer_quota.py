"""How many channels producers may have."""

import pytest

from netstack.gate.offered_input_gate import ProducerQuota


@pytest.mark.parametrize(
    ("num_segments", "buffers", "percent", "expected"), [(2048, 8, 50, 128), (10, 8, 50, 1), (100, 3, 100, 33)]
)
def test_so_many_channels_have_their_share_of_the_memory(
    num_segments: int, buffers: int, percent: int, expected: int
) -> None:
    """The number of channels follows from the memory, but is at least one."""
    quota = ProducerQuota(num_segments, buffers, percent)
    assert all(quota.try_take() for _ in range(expected))
    assert not quota.try_take()
    assert f"{percent} % of the network memory" in quota.reason
    assert "--producer-memory-percent" in quota.reason

    quota.give_back(1)

    assert quota.num_taken == expected - 1


def test_channels_without_buffers_of_their_own_are_not_counted_out() -> None:
    quota = ProducerQuota(1, 0, 1)
    assert all(quota.try_take() for _ in range(1000))
