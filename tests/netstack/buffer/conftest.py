"""Fixtures for the tests of buffers and pools."""

from collections.abc import Iterator

import pytest

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from tests.netstack.buffer.pools import NUM_BUFFERS, SEGMENT, set_num_buffers
from tests.waiting import LONG_S


@pytest.fixture(autouse=True)
def _no_time_slice_comes_to_the_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that got lost fails the test instead of being found by the next look around."""
    monkeypatch.setattr("netstack.buffer.local_buffer_pool.PARK_SLICE_S", LONG_S)


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    """A network pool of Flink's size: 1,024 segments."""
    pool = NetworkBufferPool(NUM_BUFFERS, SEGMENT)
    yield pool
    pool.check_invariants()
    pool.destroy()
    assert pool.num_available == pool.num_total, f"leaked: {pool!r}"


@pytest.fixture
def pool(network: NetworkBufferPool) -> LocalBufferPool:
    """A pool with a guarantee of one and no limit, cut down to one for the start, as in LocalBufferPoolTest."""
    pool = network.create_buffer_pool(owner="map (1/2)", num_required=1, max_buffers=None)
    set_num_buffers(pool, 1)
    assert pool.num_available == 1
    return pool


@pytest.fixture
def bounded(network: NetworkBufferPool) -> LocalBufferPool:
    """A pool with a guarantee of two and a limit of three."""
    return network.create_buffer_pool(owner="map (1/2)", num_required=2, max_buffers=3)
