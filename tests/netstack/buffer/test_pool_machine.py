"""Any order of what pools can do, and threads that race for their segments: promises are kept, and every segment comes
back.
"""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError
from tests.netstack.buffer.pools import builder_of, num_overdraft, set_num_buffers
from tests.waiting import PATIENCE_S

Held = tuple[LocalBufferPool, MemorySegment, int]


PER_CHANNEL = 2


class KeepingListener:
    """Takes every buffer; the machine gives them back."""

    def __init__(self, machine: "PoolMachine") -> None:
        self.machine = machine

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        self.machine.num_waiting -= 1
        self.machine.listened.append(buffer)
        return True

    def notify_buffer_destroyed(self) -> None:
        self.machine.num_waiting -= 1


class PoolMachine(RuleBasedStateMachine):
    """Any order of creating, sizing, taking, listening, recycling and destroying keeps the books and the promises."""

    pools: Bundle[LocalBufferPool] = Bundle("pools")
    held: Bundle[Held] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(8, 8)
        self.alive: set[LocalBufferPool] = set()
        self.num_held = 0
        self.num_waiting = 0
        self.listened: list[NetworkBuffer] = []
        self.exclusive: list[MemorySegment] = []

    @rule(target=pools, required=st.integers(1, 3), extra=st.none() | st.integers(0, 6), overdraft=st.integers(0, 2))
    def create(
        self, required: int, extra: int | None, overdraft: int
    ) -> LocalBufferPool | MultipleResults[LocalBufferPool]:
        try:
            pool = self.network.create_buffer_pool(
                owner="p",
                num_required=required,
                max_buffers=None if extra is None else required + extra,
                num_subpartitions=2,
                max_buffers_per_channel=PER_CHANNEL,
                max_overdraft_buffers=overdraft,
            )
        except InsufficientNetworkBuffersError:
            assert self.network.num_total - self.network.num_reserved < required
            return multiple()
        self.alive.add(pool)
        return pool

    @rule(target=held, pool=pools, subpartition=st.integers(-1, 1))
    def take(self, pool: LocalBufferPool, subpartition: int) -> Held | MultipleResults[Held]:
        if pool not in self.alive:
            with pytest.raises(ResourceClosedError):
                pool.request_segment_nowait(subpartition)
            return multiple()
        could, was_free = pool.is_available, pool.num_available > 0
        segment = pool.request_segment_nowait(subpartition)
        assert segment is not None or not could
        assert segment is not None or not was_free
        if segment is None:
            assert pool.num_requested >= min(pool.num_required, pool.num_buffers) or self.network.num_available == 0
            return multiple()
        self.num_held += 1
        return (pool, segment, subpartition)

    @rule(item=consumes(held))
    def recycle(self, item: Held) -> None:
        item[0].recycler(item[2]).recycle(item[1])
        self.num_held -= 1

    @rule(pool=pools, size=st.integers(1, 10))
    def resize(self, pool: LocalBufferPool, size: int) -> None:
        set_num_buffers(pool, max(size, pool.num_required))

    @rule(pool=pools)
    def listen(self, pool: LocalBufferPool) -> None:
        could = pool in self.alive and pool.num_available == 0
        self.num_waiting += 1
        assert pool.add_buffer_listener(KeepingListener(self)) == could
        self.num_waiting -= not could

    @rule()
    def recycle_what_listeners_took(self) -> None:
        while self.listened:
            self.listened.pop().recycle()

    @rule(pool=consumes(pools))
    def destroy(self, pool: LocalBufferPool) -> None:
        pool.destroy()
        self.alive.discard(pool)

    @rule(number=st.integers(1, 3))
    def take_unpooled(self, number: int) -> None:
        try:
            self.exclusive += self.network.request_unpooled("gate", number)
        except InsufficientNetworkBuffersError:
            return

    @rule()
    def return_unpooled(self) -> None:
        segments, self.exclusive = self.exclusive, []
        self.network.recycle_unpooled(segments)

    @invariant()
    def books_are_balanced(self) -> None:
        self.network.check_invariants()
        for pool in self.alive:
            pool.check_invariants()
        free = self.network.num_available + sum(pool.num_available for pool in self.alive)
        assert free + self.num_held + len(self.listened) + len(self.exclusive) == 8
        assert self.num_waiting == sum(len(pool._listeners) for pool in self.alive)

    @invariant()
    def sizes_share_what_is_there(self) -> None:
        assert all(pool.num_buffers >= pool.num_required for pool in self.alive)
        assert all(num_overdraft(pool) == 0 or pool.num_available == 0 for pool in self.alive)

    def teardown(self) -> None:
        self.network.destroy()


TestPoolMachine = PoolMachine.TestCase


TestPoolMachine.settings = settings(max_examples=50, stateful_step_count=40)


@pytest.mark.slow
def test_racing_pools_starve_nobody(tiny_switch_interval: None) -> None:
    """Six writers on six pools and eight segments, with blocking requests, all end, and no segment is lost."""
    network = NetworkBufferPool(8, 8)
    pools = [network.create_buffer_pool(owner=str(index), num_required=1, max_buffers=4) for index in range(6)]

    def work(pool: LocalBufferPool) -> None:
        for _ in range(400):
            builders = [pool.request_builder_blocking()]
            extra = builder_of(pool)
            if extra is not None:
                builders.append(extra)
            for builder in builders:
                builder.close()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in threads)
    network.check_invariants()
    network.destroy()
    assert network.num_available == 8
