"""Unaligned checkpoints of jobs on real processes: they end while the records before them wait, and a restart loses
none of these.

Source: Flink ``UnalignedCheckpointITCase``, ``UnalignedCheckpointStressITCase``.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.client.executor import execute
from flowlet.client.translate import translate
from flowlet.common import Configuration
from flowlet.common.job_client import SubmittedJob
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.graph.stream_graph import StreamGraph
from flowlet.testing import MiniCluster
from tests.integration.jobs import (
    PAIR,
    RESTARTING,
    RETAINED,
    cluster_fixture,
    collected,
    results_of,
    running_counts,
    stays_at,
    target_of,
)
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])
NUM_KEYS = 7


class UnalignedJob:
    """One job on a cluster; ``results`` if the client reads them."""

    def __init__(
        self,
        cluster: Cluster | MiniCluster,
        folder: Path,
        timeout: str = "0 ms",
        parallelism: int = 2,
        more_options: dict[str, str] | None = None,
    ) -> None:
        options = {
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "execution.checkpointing.interval": "500 ms",
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": timeout,
            **RESTARTING,
            **(more_options or {}),
        }
        self.environment = StreamExecutionEnvironment(Configuration.from_dict(options), self._submit).set_parallelism(
            parallelism
        )
        self._target = cluster.target if isinstance(cluster, MiniCluster) else target_of(cluster)

    def _submit(self, stream_graph: StreamGraph, *_: object) -> SubmittedJob:
        job_graph = translate(stream_graph)
        self.job = execute(job_graph, self._target)
        return SubmittedJob(self.job, tuple(edge.id for edge in job_graph.external_edges()))

    def checkpoints(self) -> dict[str, Any]:
        return self.job.checkpoints()

    def wait_for_restore(self) -> dict[str, Any]:
        """The checkpoint that the job went on from."""
        deadline = time.monotonic() + PATIENCE_S
        while (latest := self.checkpoints())["latest"]["restored"] is None:
            assert time.monotonic() < deadline, f"nothing was restored: {latest}"
            time.sleep(0.05)  # as below
        found: dict[str, Any] = next(
            each for each in latest["history"] if each["id"] == latest["latest"]["restored"]["id"]
        )
        return found

    def wait_for(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The newest complete checkpoint of which the condition is true."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = [
                each for each in self.checkpoints()["history"] if each["status"] == "COMPLETED" and condition(each)
            ]
            if found:
                return max(found, key=lambda each: each["id"])
            assert time.monotonic() < deadline, f"no such checkpoint: {self.checkpoints()}"
            # The JobManager is asked again, and refuses to be asked too often; ended by the checkpoint.
            time.sleep(0.05)


class Gated:
    """Lets records pass slowly until a file exists, then at once."""

    def __init__(self, gate: Path, pause_s: float) -> None:
        self._gate = gate
        self._pause_s = pause_s
        self._is_open = False

    def __call__(self, value: Any) -> Any:
        if not self._is_open:
            self._is_open = self._gate.exists()
            if not self._is_open:
                time.sleep(self._pause_s)  # what makes the back pressure; ended by the gate
        return value


def numbers(job: UnalignedJob, num_records: int, filler: str = "") -> DataStream:
    """Emit a key, 1 and a text each, from one subtask."""
    stream = job.environment.from_collection(range(num_records), Types.LONG())
    return stream.map(lambda number: (number % NUM_KEYS, 1, f"{filler}{number}"), output_type=TRIPLE).set_parallelism(1)


cluster = cluster_fixture(3)  # a spare one


@pytest.fixture
def four_slots() -> Iterator[MiniCluster]:
    """Yield a cluster of four slots on two TaskManagers in this process."""
    with MiniCluster(num_task_managers=2, slots_per_task_manager=2) as running:
        yield running


def unaligned_subtasks(checkpoint: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        part for task in checkpoint["tasks"].values() for part in task["subtasks"] if part.get("unaligned_checkpoint")
    ]


@pytest.mark.parametrize("timeout", ["0 ms", "300 ms"])
def test_a_checkpoint_overtakes_a_backlog(
    four_slots: MiniCluster, tmp_path: Path, timeout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint ends soon although a function takes 5 ms for each record, and minutes for the records in flight."""
    num_records, gate = 200_000, tmp_path / "gate"
    job = UnalignedJob(four_slots, tmp_path, timeout)
    slow = numbers(job, num_records).key_by(lambda pair: pair[0]).map(Gated(gate, 0.005), output_type=TRIPLE)
    slow.sink_to(DiscardingSink())
    job.environment.execute_async("backlog")
    try:
        found = job.wait_for(lambda checkpoint: checkpoint["persisted_data"] > 100_000)
        processed = job.job.metrics()["vertices"][1]["metrics"]["read-records"]
    finally:
        job.job.cancel()
        job.job.close()

    with capsys.disabled():
        sys.stderr.write(
            f"\n[timeout {timeout}] checkpoint {found['id']}: {found['end_to_end_duration']} ms, "
            f"{found['persisted_data']} bytes in flight, {processed} of {num_records} records processed\n"
        )
    assert found["checkpoint_type"] == "UNALIGNED_CHECKPOINT"
    assert unaligned_subtasks(found)
    assert processed < num_records / 4, "the records before the barrier were processed first"


class _Counting:
    """Counts in state, slowly until a file exists; tells in which process it runs by a file's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gated = Gated(folder / "gate", 0.002)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        (self._folder / f"pid-{os.getpid()}").touch()

    def process_element(self, value: tuple[int, int, str], ctx: Any) -> Any:
        self._gated(value)
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


class CountOne(_Counting, KeyedProcessFunction):
    """Counts the records of one input."""


class CountTwo(_Counting, KeyedCoProcessFunction):
    """Counts the records of two inputs."""

    process_element1 = _Counting.process_element
    process_element2 = _Counting.process_element


def is_full(checkpoint: dict[str, Any]) -> bool:
    """Whether it is complete and has data in flight of every task; later ones have, too, as long as the functions are
    slow.
    """
    return checkpoint["status"] == "COMPLETED" and all(each["persisted_data"] for each in checkpoint["tasks"].values())


@pytest.mark.parametrize("num_inputs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_killed_taskmanager_costs_no_record_in_flight_and_repeats_none(
    cluster: Cluster, tmp_path: Path, num_inputs: int
) -> None:
    """The checkpoint that is restored lies in the middle of the data, which are mostly in flight."""
    num_records = 30_000
    job = UnalignedJob(cluster, tmp_path)
    keyed = [
        numbers(job, num_records, filler="x" * 300).key_by(lambda pair: pair[0], Types.LONG())
        for _ in range(num_inputs)
    ]
    one, *other = keyed
    counted = (
        one.connect(*other).process(CountTwo(tmp_path), output_type=PAIR)
        if other
        else one.process(CountOne(tmp_path), output_type=PAIR)
    )
    first = []
    with collected(counted, "in flight") as results:
        while not any(is_full(each) for each in job.checkpoints()["history"]):
            first += [next(results) for _ in range(100)]  # handed out as checkpoints complete
        killed = next(tmp_path.glob("pid-*"))
        os.kill(int(killed.name.removeprefix("pid-")), signal.SIGKILL)
        (tmp_path / "gate").touch()
        restored = job.wait_for_restore()
        found = Counter([*first, *results])

    *sources, counting = restored["tasks"].values()
    assert all(each["persisted_data"] for each in sources), "nothing was on its way from a source"
    assert counting["persisted_data"], "nothing had reached the functions"
    assert unaligned_subtasks(restored)
    assert found == running_counts(num_records, NUM_KEYS, num_inputs)


def has_sums_in_flight(checkpoint: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds records in flight of every task but the last, which gets none before the
    end.
    """
    num_in_flight = sum(bool(each["persisted_data"]) for each in checkpoint["tasks"].values())
    return checkpoint["status"] == "COMPLETED" and num_in_flight >= len(checkpoint["tasks"]) - 1


AT_THE_END = 10**15  # event time
TOTAL = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])


class Sums(KeyedProcessFunction):
    """Counts and sums in state, slowly until a file exists; a timer emits both at the end."""

    def __init__(self, folder: Path) -> None:
        self._gated = Gated(folder / "gate", 0.002)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sums = runtime_context.get_state(ValueStateDescriptor("sums", Types.TUPLE([Types.LONG(), Types.LONG()])))

    def process_element(self, value: tuple[int, int, str], ctx: KeyedProcessFunction.Context) -> None:
        self._gated(value)
        count, total = self.sums.value() or (0, 0)
        if not count:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
        self.sums.update((count + 1, total + value[1]))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), *self.sums.value()


def sums(
    job: UnalignedJob, folder: Path, num_records: int, *, added: bool = False, removable: bool = False
) -> DataStream:
    """Return sums from one subtask through a map of as many subtasks as there are, then by key.  ``added``: with more
    steps on all sides.  ``removable``: with a step on either side of each edge, one with state.
    """
    texts = job.environment.from_collection(range(num_records), Types.LONG()).uid("numbers")
    texts = texts.map(lambda number: f"{number:300}", output_type=Types.STRING()).set_parallelism(1).uid("texts")
    if added:
        texts = texts.map(lambda text: text, output_type=Types.STRING()).set_parallelism(1)
    if removable:
        texts = texts.map(lambda text: text, output_type=Types.STRING()).set_parallelism(1).uid("before the first edge")
    triples = texts.map(lambda text: (int(text) % NUM_KEYS, int(text), text), output_type=TRIPLE).uid("triples")
    if removable:
        triples = triples.map(lambda triple: triple, output_type=TRIPLE).uid("before the second edge")
    if added:
        triples = triples.filter(lambda _: True)
    summed = triples.key_by(lambda triple: triple[0], Types.LONG()).process(Sums(folder), output_type=TOTAL).uid("sums")
    if removable:
        summed = (
            summed.key_by(lambda total: total[0], Types.LONG())
            .process(Passes(), output_type=TOTAL)
            .uid("behind the sums")
        )
    return summed.map(lambda total: total, output_type=TOTAL) if added else summed


class Passes(KeyedProcessFunction):
    """Passes on each record, and remembers the last one of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", TOTAL))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: tuple[int, int, int], ctx: KeyedProcessFunction.Context) -> Any:
        self.last.update(value)
        self.seen.update(1)
        yield value


def cancelled_in_flight(
    cluster: MiniCluster, folder: Path, parallelism: int, num_records: int, *, removable: bool = False
) -> str:
    """Run the job until a checkpoint holds records in flight of every task, and cancel it; the checkpoint's path."""
    job = UnalignedJob(cluster, folder, parallelism=parallelism, more_options=RETAINED)
    sums(job, folder, num_records, removable=removable).sink_to(DiscardingSink())
    job.environment.execute_async("former")
    try:
        job.wait_for(has_sums_in_flight if removable else is_full)
        job.job.cancel()
        with pytest.raises(JobExecutionError, match="was cancelled") as caught:
            job.job.wait()
    finally:
        job.job.close()
    return stays_at(caught.value)


def totals(num_records: int) -> list[tuple[int, int, int]]:
    """Return what ``sums`` gives, sorted."""
    numbers_of = {key: range(key, num_records, NUM_KEYS) for key in range(NUM_KEYS)}
    return [(key, len(of), sum(of)) for key, of in numbers_of.items()]


@pytest.mark.long
@pytest.mark.parametrize("later", [1, 3])
def test_records_in_flight_go_on_where_steps_beside_their_edges_are_gone(
    four_slots: MiniCluster, tmp_path: Path, later: int
) -> None:
    """One removed step has a state of its own, which the option allows to leave behind; without the option the job is
    refused.
    """
    num_records = 30_000
    path = cancelled_in_flight(four_slots, tmp_path, 3, num_records, removable=True)
    (tmp_path / "gate").touch()
    more = {"execution.state-recovery.path": path}

    job = UnalignedJob(
        four_slots,
        tmp_path,
        parallelism=later,
        more_options={**more, "execution.state-recovery.ignore-unclaimed-state": "true"},
    )
    found = results_of(sums(job, tmp_path, num_records))

    assert sorted(found) == totals(num_records)
    strict = UnalignedJob(four_slots, tmp_path, parallelism=later, more_options=more)
    with pytest.raises(FlowletError, match="allow-non-restored-state"):
        results_of(sums(strict, tmp_path, num_records))
    strict.job.close()


@pytest.mark.long
def test_records_in_flight_go_on_in_a_new_job_after_taskmanagers_were_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The job may not restart, so it fails; one subtask of a later job reads the records in flight between two of each
    task.
    """
    num_records = 30_000
    former = UnalignedJob(cluster, tmp_path, more_options={**RETAINED, "restart-strategy.fixed-delay.attempts": "0"})
    sums(former, tmp_path, num_records).sink_to(DiscardingSink())
    former.environment.execute_async("former")
    try:
        former.wait_for(is_full)
        for process in cluster.task_managers[:2]:  # of three with a slot each, two of which run the job
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(JobExecutionError):
            former.job.wait()
        path = former.wait_for(is_full)["external_path"]
    finally:
        former.job.close()
    (tmp_path / "gate").touch()

    later = UnalignedJob(cluster, tmp_path, parallelism=1, more_options={"execution.state-recovery.path": path})
    found = results_of(sums(later, tmp_path, num_records))

    assert sorted(found) == totals(num_records)


@pytest.mark.parametrize(
    "former",
    [
        pytest.param(1, marks=pytest.mark.long),
        2,
        pytest.param(3, marks=pytest.mark.long),
        pytest.param(4, marks=pytest.mark.long),
    ],
)
def test_records_in_flight_go_on_with_any_parallelism_and_chains(
    four_slots: MiniCluster, tmp_path: Path, former: int
) -> None:
    """Edges on which one subtask feeds one become parts of chains: with parallelism 1 the first, without unaligned
    checkpoints both.
    """
    num_records = 30_000
    path = cancelled_in_flight(four_slots, tmp_path, former, num_records)
    (tmp_path / "gate").touch()
    aligned = {"execution.checkpointing.unaligned.enabled": "false"}

    for parallelism, options, added in [
        (1, {}, False),
        (1, aligned, False),
        (2, {}, False),
        (3, {}, True),
        (4, {}, False),
        (1, {}, True),
    ]:
        more = {"execution.state-recovery.path": path, **options}
        job = UnalignedJob(four_slots, tmp_path, parallelism=parallelism, more_options=more)
        found = results_of(sums(job, tmp_path, num_records, added=added))

        assert sorted(found) == totals(num_records), f"at parallelism {parallelism}, {added=}"
