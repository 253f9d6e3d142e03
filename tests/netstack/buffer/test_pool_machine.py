"""Any order of what pools can do, and threads that race for their segments: promises are kept, and every segment comes
back.
"""

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError
from tests.netstack.buffer.interleaving import ScheduledLock, Scheduler, Stuck, schedule_locks
from tests.netstack.buffer.pools import Listener, builder_of, num_in_use, num_overdraft, set_num_buffers
from tests.netstack.threads import run_together

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

    run_together(*(partial(work, pool) for pool in pools))

    network.check_invariants()
    network.destroy()
    assert network.num_available == 8


# ---------------------------------------------------------------- every order of events that a seed decides


NUM_SEEDS = 400


def write(pool: LocalBufferPool, num_buffers: int) -> None:
    """Hold one builder at a time, so that every writer can have one some day."""
    for index in range(num_buffers):
        pool.request_builder_blocking(index % 2).close()


def hand_over(pool: LocalBufferPool, handed: list[object], num_buffers: int) -> None:
    """Request builders, which another thread recycles."""
    for _ in range(num_buffers):
        handed.append(pool.request_builder_blocking())


def recycle(handed: list[object], lock: ScheduledLock, num_buffers: int) -> None:
    while num_buffers:
        with lock:
            builder = handed.pop() if handed else None
        if builder is not None:
            builder.close()  # type: ignore[attr-defined]
            num_buffers -= 1


def listen(pool: LocalBufferPool, rng: random.Random, num_times: int) -> None:
    for _ in range(num_times):
        pool.add_buffer_listener(Listener(takes=rng.random() < 0.7, recycles=True))


def churn(network: NetworkBufferPool, rng: random.Random, num_times: int) -> None:
    """Create and destroy pools and exclusive segments, so that sizes change all the time."""
    for _ in range(num_times):
        try:
            if rng.random() < 0.5:
                segments = network.request_unpooled("gate", rng.randint(1, 3), 1.0)
                network.recycle_unpooled(segments)
            else:
                pool = network.create_buffer_pool(
                    owner="short", num_required=rng.randint(1, 2), max_buffers=rng.choice([2, 4, None])
                )
                builder = builder_of(pool)
                pool.destroy()
                if builder is not None:
                    builder.close()
        except InsufficientNetworkBuffersError:
            continue


def resize(pool: LocalBufferPool, rng: random.Random, num_times: int) -> None:
    for _ in range(num_times):
        set_num_buffers(pool, rng.randint(pool.num_required, 5))


def make_programs(
    network: NetworkBufferPool, pools: list[LocalBufferPool], rng: random.Random
) -> list[Callable[[], object]]:
    programs: list[Callable[[], object]] = []
    for pool in pools:
        programs += [partial(write, pool, rng.randint(1, 4)) for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.5:
            programs.append(partial(listen, pool, rng, 2))
        if rng.random() < 0.5:
            programs.append(partial(resize, pool, rng, 2))
    if rng.random() < 0.7:
        programs.append(partial(churn, network, rng, 2))
    if rng.random() < 0.5:
        handed: list[object] = []
        number = rng.randint(1, 3)
        programs.append(partial(hand_over, pools[0], handed, number))
        programs.append(partial(recycle, handed, ScheduledLock(), number))
    return programs


@pytest.mark.slow
def test_no_schedule_loses_a_wakeup_or_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers, recyclers, listeners, resizes, and pools that come and go; the error has the seed."""
    schedule_locks(monkeypatch)
    for seed in range(NUM_SEEDS):
        rng = random.Random(seed)
        network = NetworkBufferPool(rng.randint(3, 6), 1)
        pools = [
            network.create_buffer_pool(
                owner=f"pool {index}",
                num_required=1,
                max_buffers=rng.choice([1, 2, None]),
                num_subpartitions=2,
                max_buffers_per_channel=1,
                max_overdraft_buffers=rng.randint(0, 1),
            )
            for index in range(2)
        ]

        try:
            Scheduler(seed).run(make_programs(network, pools, rng))
            network.check_invariants()
            for pool in pools:
                pool.check_invariants()
                assert num_in_use(pool) == 0
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}, {network!r}, {pools!r}") from error
        network.destroy()
        assert network.num_available == network.num_total


@pytest.mark.slow
def test_no_schedule_leaves_a_writer_behind_when_its_pool_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parked writer and every listener learns of the end, and every segment comes home."""
    schedule_locks(monkeypatch)
    for seed in range(NUM_SEEDS):
        rng = random.Random(seed)
        network = NetworkBufferPool(2, 1)
        pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=1)
        ends: list[str] = []

        def work(pool: LocalBufferPool = pool, ends: list[str] = ends) -> None:
            try:
                write(pool, 3)
            except ResourceClosedError:
                ends.append("destroyed")
            else:
                ends.append("done")

        try:
            Scheduler(seed).run(
                [work, work, partial(listen, pool, rng, 1), network.destroy if seed % 2 else pool.destroy]
            )
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}, {network!r}, {pool!r}") from error

        assert len(ends) == 2
        network.check_invariants()
        network.destroy()
        assert network.num_available == 2, f"seed {seed}"


@pytest.mark.slow
def test_hist_25407_failing_requests_among_pools_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLINK-25407: the error path of a request took the locks in the other order."""
    schedule_locks(monkeypatch)
    results: set[str] = set()

    def request(network: NetworkBufferPool, rng: random.Random) -> None:
        for _ in range(3):
            try:
                segments = network.request_unpooled("gate", rng.randint(1, 6), 0.0)
            except InsufficientNetworkBuffersError as error:
                results.add(str(error).split(" ", 1)[0])
            else:
                results.add("succeeded")
                network.recycle_unpooled(segments)

    for seed in range(NUM_SEEDS // 2):
        rng = random.Random(seed)
        network = NetworkBufferPool(6, 1)
        pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=None)
        programs = [
            partial(request, network, rng),
            partial(churn, network, rng, 2),
            partial(request, network, rng),
            partial(write, pool, 3),
        ]
        try:
            Scheduler(seed).run(programs)
            network.check_invariants()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}, {network!r}") from error
        network.destroy()
        assert network.num_available == 6, f"seed {seed}"

    assert results == {"Insufficient", "Timeout", "succeeded"}


def test_a_lost_wakeup_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, without a time-out: a thread that waits for a segment which no thread recycles is stuck."""
    schedule_locks(monkeypatch)
    network = NetworkBufferPool(1, 1)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=1)
    kept = builder_of(pool)
    assert kept is not None

    with pytest.raises(Stuck):
        Scheduler(0).run([partial(write, pool, 1)])

    kept.close()
    network.destroy()
