"""``finish`` returns when the whole job has processed the partition: operators that hold records, exchanges, sinks in
other tasks.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.time import Time
from flowlet.common.typeinfo import Types
from flowlet.datastream.async_data_stream import AsyncDataStream
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.functions import CoMapFunction
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.ingest import GateEndedError, GateError, PartitionOffer
from tests.flowlet.client.jobs import hold, reached, released
from tests.flowlet.ingest.conftest import GateCluster, in_processes, push
from tests.waiting import PATIENCE_S, spin_until

NUM_RECORDS = 100
TURNS = 30  # of the loop of users' coroutines: longer than an end of data travels

processed: list[Any] = []


def note(value: Any) -> bool:
    """A filter in front of a sink that then has nothing to print."""
    processed.append(value)
    return False


async def slowly(value: Any) -> list[Any]:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return [value]


def pushed(cluster: GateCluster, build: Callable[[DataStream], object]) -> list[Any]:
    """Return the records that the job had processed when ``finish`` returned."""
    processed.clear()
    env = cluster.environment()
    build(env.from_remote_gate("clicks", type_info=Types.LONG()))
    client = env.execute_async()
    push(cluster.open(), list(range(NUM_RECORDS)))
    found = list(processed)
    client.cancel()
    return found


def test_an_async_operator_has_processed_the_partition(cluster: GateCluster) -> None:
    """The operator's chain has taken every record long before its coroutines end."""

    def build(stream: DataStream) -> None:
        slow = AsyncDataStream.unordered_wait(stream, slowly, Time.seconds(100), 2 * NUM_RECORDS, Types.LONG())
        slow.filter(note).print()

    assert sorted(pushed(cluster, build)) == list(range(NUM_RECORDS))


def test_sinks_behind_an_exchange_have_processed_the_partition(make_cluster: Callable[..., GateCluster]) -> None:
    """The gate, a map with another parallelism and the sinks are tasks of their own, in two TaskManagers."""

    def build(stream: DataStream) -> None:
        narrow = stream.rebalance().map(lambda number: number).set_parallelism(1)
        narrow.key_by(lambda number: number).filter(note).print()

    assert sorted(pushed(make_cluster(2), build)) == list(range(NUM_RECORDS))


class Silent(SourceFunction):
    """A source that has no records, and never ends by itself."""

    def run(self, ctx: SourceContext) -> None:
        released["silent source"].wait(PATIENCE_S)

    def cancel(self) -> None:
        released["silent source"].set()


class Either(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return -value


@pytest.mark.slow
def test_marks_pass_jobs_with_several_gates_and_other_sources(make_cluster: Callable[..., GateCluster]) -> None:
    """A source that ends, one that has nothing, a union, and an operator with two inputs; many partitions at once."""
    processed.clear()
    cluster = make_cluster(2)
    env = cluster.environment()
    clicks, views = (env.from_remote_gate(name, type_info=Types.LONG()) for name in ("clicks", "views"))
    ends, is_silent = env.from_collection([1_000_000], Types.LONG()), env.add_source(Silent(), type_info=Types.LONG())
    both = clicks.union(ends, is_silent).connect(views.rebalance()).map(Either())
    both.key_by(lambda number: number).filter(note).print()
    client = env.execute_async()

    def push_and_look(partition: int) -> bool:
        records = [1000 * partition + number for number in range(10)]
        push(cluster.open("views" if partition % 2 else "clicks"), records, partition)
        sign = -1 if partition % 2 else 1
        return {sign * number for number in records} <= set(processed)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(push_and_look, range(1, 33)))
    client.cancel()


@pytest.mark.parametrize("way", ["cancelled", "failed"])
def test_a_job_that_ends_before_the_mark_has_passed_acknowledges_nothing(
    make_cluster: Callable[..., GateCluster], way: str
) -> None:
    """A sink in another task holds a record; the job is cancelled, or the sink fails: ``finish`` raises."""
    cluster = make_cluster(2)
    env = cluster.environment()
    stream = env.from_remote_gate("clicks", type_info=Types.LONG()).set_parallelism(1)
    stream.rebalance().map(partial(hold_then_fail, way)).print()
    client = env.execute_async()
    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1, 2])
        end: Callable[[], object] = {"cancelled": client.cancel, "failed": released[way].set}[way]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: reached[way].wait(PATIENCE_S) and end())
            with pytest.raises(GateEndedError, match="'clicks'"):
                writer.finish(PATIENCE_S)
        released[way].set()


def hold_then_fail(way: str, value: Any) -> Any:
    hold(way)
    raise ArithmeticError(value)


class Appending:
    """Appends each value to a file; at a negative one it stays for ever."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, value: int) -> bool:
        with Path(self._path).open("a") as file:
            file.write(f"{os.getpid()} {value}\n")
        if value < 0:
            threading.Event().wait()
        return False


@pytest.mark.long
@pytest.mark.slow
def test_what_was_acknowledged_is_in_the_sink_when_its_process_is_killed(tmp_path: Path) -> None:
    """Gate and sink are in two processes.  A partition that was not acknowledged makes ``finish`` raise."""
    path = tmp_path / "sink"

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_remote_gate("clicks", type_info=Types.LONG())
        stream.rebalance().filter(Appending(str(path))).slot_sharing_group("sink").print()

    with in_processes(2, build, tmp_path) as (cluster, _, gate):
        push(gate, list(range(6000)))
        pids = cluster.pids()
        lines = path.read_text().splitlines()
        pid = int(lines[0].split()[0])

        def kill() -> None:
            spin_until(lambda: " -1\n" in path.read_text())
            os.kill(pid, signal.SIGKILL)

        with gate.open_partition(PartitionOffer("job", 1)) as writer, ThreadPoolExecutor(1) as pool:
            writer.write_records([-1])
            pool.submit(kill)
            with pytest.raises(GateError, match="'clicks'"):
                writer.finish(PATIENCE_S)

    assert len(set(pids)) == 2
    assert lines == [f"{pid} {number}" for number in range(6000)]
