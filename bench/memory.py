"""Memory is bounded and nothing leaks: a consumer that is stalled for a minute, and ten thousand reads that are broken
off.

Side:    any.
Stall:   two TaskManagers, an endless source in one, a consumer that blocks at its first chunk in the other.  The
         resident memory of both is sampled; the figure is the highest sample after the first second minus the sample at
         one second, of the TaskManager where it is larger.  The producer never stops: what holds it is its pool, and
         what bounds the consumer is its credit.  Both should also rest meanwhile (``cpu_s_per_tm``).
Cycles:  two network stacks in this process, connected by TCP.  Each cycle opens a partition and a gate and ends in one
         of five ways (cancelled before, during and after the first buffers, failed by the producer, read to the end); a
         fresh consumer stack, with a connection and a loop of its own, every hundred cycles.  The figure is how many
         buffers, file descriptors, threads, asyncio tasks, partitions, connections and objects of netstack's classes
         there are more at the end than after the first two hundred cycles.
"""

import argparse
import asyncio
import gc
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.isolation import StallingConsumer, add_pair, wait_for_fifo
from bench.jobs.pipeline import running
from bench.report import ProcessUse, Result
from netstack import (
    ChannelSpec,
    ConnectionID,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    NetstackConfig,
    ProducerFailedError,
    ResultPartition,
    ResultPartitionID,
    SecurityConfig,
    SingleInputGate,
    StandaloneNetwork,
    wait_consumed,
)

STALL_S: Final = 60.0
QUICK_STALL_S: Final = 3.0
SETTLED_S: Final = 1.0  # from here on nothing may grow
SAMPLE_EVERY_S: Final = 0.25
NUM_CYCLES: Final = 10_000
QUICK_CYCLES: Final = 600
CYCLES_PER_CONSUMER: Final = 100
WARM_UP_CYCLES: Final = 200
TIMEOUT_S: Final = 30.0
MIB: Final = 1024 * 1024

# ---------------------------------------------------------------- stall


def stall(seconds: float) -> dict[str, Any]:
    """Return the resident bytes of both TaskManagers, second by second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stalled, release = folder / "stalled", folder / "release"
        for fifo in (stalled, release):
            os.mkfifo(fifo)
        stalled_fd, release_fd = (os.open(fifo, os.O_RDWR | os.O_NONBLOCK) for fifo in (stalled, release))
        build = partial(add_pair, number=1, make_consumer=partial(StallingConsumer, stalled, release))
        try:
            with Cluster(folder) as cluster, running(cluster, build):
                wait_for_fifo(stalled_fd)
                pids = [tm.pid for tm in cluster.task_managers]
                before = [ProcessUse.of(pid).cpu_s for pid in pids]
                samples = sample_rss(pids, seconds)
                cpu_s = [ProcessUse.of(pid).cpu_s - start for pid, start in zip(pids, before, strict=True)]
                os.close(release_fd)  # end of file: the consumer goes on, so that the job can be cancelled at once
                release_fd = -1
        finally:
            os.close(stalled_fd)
            if release_fd >= 0:
                os.close(release_fd)
    return {
        "seconds": seconds,
        "cpu_s_per_tm": cpu_s,
        "growth_bytes_per_tm": growth(samples),
        "rss_bytes_per_tm": [rss for _, rss in samples],
    }


def sample_rss(pids: Sequence[int], seconds: float) -> list[tuple[float, list[int]]]:
    """Return ``(seconds since the start, resident bytes of each process)``."""
    start, samples = time.monotonic(), []
    while (at := time.monotonic() - start) <= seconds:
        samples.append((at, [ProcessUse.of(pid).rss_bytes for pid in pids]))
        time.sleep(SAMPLE_EVERY_S)
    return samples


def growth(samples: Sequence[tuple[float, Sequence[int]]]) -> list[int]:
    """Return how far each process ever rose above its memory after the first second."""
    late = [rss for at, rss in samples if at >= SETTLED_S]
    return [max(process) - process[0] for process in zip(*late, strict=True)]


# ---------------------------------------------------------------- cycles


@dataclass(frozen=True)
class Held:
    """The resources that this process holds."""

    buffers: int
    partitions: int
    fds: int
    threads: int
    tasks: int
    objects: dict[str, int]  # of netstack's classes

    def more_than(self, before: "Held") -> dict[str, int]:
        """Return what is left over since ``before``, by name; empty if all was given back."""
        now, then = asdict(self), asdict(before)
        now |= {f"objects of {name}": count for name, count in now.pop("objects").items()}
        then |= {f"objects of {name}": count for name, count in then.pop("objects").items()}
        return {name: count - then.get(name, 0) for name, count in now.items() if count > then.get(name, 0)}


def take_stock(producer: StandaloneNetwork) -> Held:
    """Count; garbage does not."""
    gc.collect()
    pool = producer.environment.buffer_pool
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Held(
        buffers=pool.num_total - pool.num_available,
        partitions=len(producer.environment.partition_manager),
        fds=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        tasks=len(asyncio.all_tasks(producer.event_loop.loop)),
        objects={kind: count for kind, count in kinds.items() if kind.startswith("netstack.")},
    )


def network(name: str) -> StandaloneNetwork:
    """Return one of the two networks."""
    config = NetstackConfig(
        network_memory_bytes=4 * MIB, segment_size_bytes=4096, security=SecurityConfig.hmac(bytes(32))
    )
    return StandaloneNetwork(config, name)


def cancel_at_once(_partition: ResultPartition, gate: SingleInputGate) -> None:
    """Cancel when the request may not even have arrived."""
    gate.close()


def cancel_while_it_flows(partition: ResultPartition, gate: SingleInputGate) -> None:
    """Cancel when some buffers were read, some are received, and some are under way."""
    for _ in range(8):
        partition.emit_record(bytes(4096), 0)
    partition.flush_all()
    read(gate)
    gate.close()


def cancel_with_a_buffer_in_hand(partition: ResultPartition, gate: SingleInputGate) -> None:
    """Recycle a buffer after its channel was released."""
    partition.emit_record(bytes(100), 0)
    partition.flush_all()
    found = gate.get_next(TIMEOUT_S)
    gate.close()
    if found is not None and found.buffer is not None:
        found.buffer.recycle()


def fail(partition: ResultPartition, gate: SingleInputGate) -> None:
    """Fail the partition while its consumer reads."""
    partition.emit_record(bytes(100), 0)
    partition.flush_all()
    read(gate)
    partition.fail(RuntimeError("on purpose"))
    try:
        while read(gate):
            pass
    except ProducerFailedError:
        gate.close()


def read_all(partition: ResultPartition, gate: SingleInputGate) -> None:
    """Read to the end."""
    partition.emit_record(bytes(5000), 0)
    partition.finish()
    while read(gate):
        pass
    gate.close()


WAYS: Final[Sequence[Callable[[ResultPartition, SingleInputGate], None]]] = (
    cancel_at_once,
    cancel_while_it_flows,
    cancel_with_a_buffer_in_hand,
    fail,
    read_all,
)


def read(gate: SingleInputGate) -> bool:
    """Read one buffer and recycle it; return False if none was left."""
    found = gate.get_next(TIMEOUT_S)
    if found is None:
        assert gate.is_finished, f"nothing came within {TIMEOUT_S} s: {gate!r}"
    elif found.buffer is not None:
        found.buffer.recycle()
    return found is not None


def cycle(number: int, producer: StandaloneNetwork, consumer: StandaloneNetwork, address: ConnectionID) -> None:
    """Open, break off, wait until the producer's side has let go.

    Raises:
        TimeoutError: the partition was not released.
    """
    attempt = ExecutionAttemptID(number.to_bytes(40, "big"))
    partition_id = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), attempt)
    partition = producer.create_partition(partition_id)
    try:
        gate = consumer.open_gate([ChannelSpec(partition_id, 0, address, initial_credit=2)])
        WAYS[number % len(WAYS)](partition, gate)
    finally:
        partition.close()
    if not wait_consumed(partition, TIMEOUT_S):
        raise TimeoutError(f"cycle {number} ({WAYS[number % len(WAYS)].__name__}): {partition!r} was not released")


def break_off(num_cycles: int) -> dict[str, Any]:
    """Cancel and break connections ``num_cycles`` times; return what is left over, by kind."""
    with network("producer") as producer:
        address = producer.serve()

        def generation(first: int) -> None:
            with network("consumer") as consumer:
                for number in range(first, first + CYCLES_PER_CONSUMER):
                    cycle(number, producer, consumer, address)
                wait_for(
                    lambda: consumer.environment.buffer_pool.num_available == consumer.environment.buffer_pool.num_total
                )

        for first in range(0, WARM_UP_CYCLES, CYCLES_PER_CONSUMER):
            generation(first)
        wait_for(lambda: producer.environment.num_accepted_connections == 0)
        before, start = take_stock(producer), time.monotonic()
        for first in range(WARM_UP_CYCLES, WARM_UP_CYCLES + num_cycles, CYCLES_PER_CONSUMER):
            generation(first)
        elapsed_s = time.monotonic() - start
        wait_for(lambda: producer.environment.num_accepted_connections == 0)
        leaked = take_stock(producer).more_than(before)
    return {
        "num_cycles": num_cycles,
        "cycles_per_s": num_cycles / elapsed_s,
        "leaked": leaked,
        "held_before": asdict(before),
    }


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true: messages take a moment to cross the wire.

    Raises:
        TimeoutError: it did not become true in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_S} s")
        time.sleep(0.001)


# ---------------------------------------------------------------- the case


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench memory", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=STALL_S, help="how long the consumer is stalled")
    parser.add_argument("--cycles", type=int, default=NUM_CYCLES)
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, seconds: float = STALL_S, cycles: int = NUM_CYCLES) -> list[Result]:
    """Measure both parts, ``num_runs`` times."""
    stalls = [stall(QUICK_STALL_S if quick else seconds) for _ in range(num_runs)]
    broken_off = [break_off(QUICK_CYCLES if quick else cycles) for _ in range(num_runs)]
    grown = [max(each["growth_bytes_per_tm"]) / MIB for each in stalls]
    left = [float(sum(each["leaked"].values())) for each in broken_off]
    return [
        Result("memory stall", "MiB of growth after the first second", grown, {"samples": stalls}),
        Result("memory cycles", "things leaked", left, {"samples": broken_off}),
    ]
