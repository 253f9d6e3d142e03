"""Pools under every order of events that a few thousand seeds can think of: no wait is for ever,
and nothing is lost.
"""

import random
from collections.abc import Callable
from functools import partial

import pytest

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError
from tests.netstack.buffer.interleaving import ScheduledLock, Scheduler, Stuck, schedule_locks
from tests.netstack.buffer.pools import builder_of, num_in_use, set_num_buffers

NUM_SEEDS = 400


class Listener:
    """Takes a buffer, or not, and recycles it at once."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        if self.takes:
            buffer.recycle()
        return self.takes

    def notify_buffer_destroyed(self) -> None:
        pass


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
        pool.add_buffer_listener(Listener(takes=rng.random() < 0.7))


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
    """Writers, recyclers, listeners, resizes, pools and exclusive segments that come and go; the
    seed is in the error.
    """
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
    """FLINK-25407: the error path of a request took the locks in the other order; here requests are refused, fail later
    or succeed.
    """
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
    """The scheduler finds a lost wake-up at once, without a time-out: a thread that waits for a segment which no thread
    recycles is stuck.
    """
    schedule_locks(monkeypatch)
    network = NetworkBufferPool(1, 1)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=1)
    kept = builder_of(pool)
    assert kept is not None

    with pytest.raises(Stuck):
        Scheduler(0).run([partial(write, pool, 1)])

    kept.close()
    network.destroy()
