"""Every operator that keeps state by key, in every state back end: killed and restored, and restored with another
parallelism, its results are those of a run that nothing interrupts.

``JOBS`` has the rows, ``BACK_ENDS`` the columns.  All operators read one literal input, from a source that stops twice
until a checkpoint holds all that it has emitted, and then sets the clock of all tasks.  Those of a job share its
source.  A job runs to its end first, and then once more in each column: at the first stop the source fails, and the job
starts again from its checkpoint; at the second stop it fails for good, and another job goes on from the checkpoint with
more subtasks.

Side:   any.
Units:  milliseconds.
"""

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from flowlet.common import Configuration, Types
from flowlet.datastream import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    MapFunction,
    RuntimeExecutionMode,
    SourceContext,
    SourceFunction,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ListStateDescriptor
from flowlet.errors import JobExecutionError
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.task import operator_services
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.timers.system_processing_time_service import SystemProcessingTimeService
from tests.flowlet.operators.keyed_operators import ITEMS, JOBS, NUM_BY_CLOCK, TRIPLE, Counts, Streams
from tests.waiting import PATIENCE_S

pytest.importorskip("rocksdict")

pytestmark = pytest.mark.slow

CLOCK_BEHIND: Final = {9: 9, 18: 10}  # by stop, as a place in ``ITEMS``; before the first one the clock shows 0
NS_PER_MS: Final = 1_000_000
assert all(isinstance(ITEMS[stop], int) for stop in CLOCK_BEHIND), "what is late must not depend on a restart"
FORMER_PARALLELISM, PARALLELISM = 2, 3
BACK_ENDS: Final[dict[str, dict[str, str]]] = {
    "heap": {"state.backend.type": "hashmap"},
    "rocksdb": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    "rocksdb-full": {"state.backend.type": "rocksdb"},
}
OF_ALL: Final = {"window of all", "column window of all"}  # one subtask has all their records


# -- the source, the sink, and what they meet the test in


@dataclass
class Stage:
    """What a run meets the test in.

    Args:
        folder: of checkpoints and databases.
        kills: whether the source fails at its stops.
        num_by_clock: how many results of an operator the source waits for at its end, while the clock goes on by
            itself: a clock that stands fires one timer of a task and leaves the next one for a millisecond later.
    """

    folder: Path
    kills: bool
    num_by_clock: dict[str, int]
    changed: threading.Condition = field(default_factory=threading.Condition)
    clock_ms: int = 0
    stops: set[int] = field(default_factory=set)  # those that are over
    passed: dict[int, Any] = field(default_factory=dict)  # by checkpoint: the last record in front of it
    num_in_files: int = 0  # databases that have rows in files, at the last stop
    results: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by operator
    moving_since_ns: int | None = None

    def now_ns(self) -> int:
        moved_ns = 0 if self.moving_since_ns is None else time.monotonic_ns() - self.moving_since_ns
        return self.clock_ms * NS_PER_MS + moved_ns

    @property
    def databases(self) -> Path:
        return self.folder / "databases"

    def list_files(self) -> list[str]:
        return [name for _, _, names in os.walk(self.databases) for name in names]

    def count_databases(self) -> int:
        """Return how many there are with rows in files."""
        folders = {path: names for path, _, names in os.walk(self.databases) if Path(path).name == "db"}
        return sum(any(name.endswith(".sst") for name in names) for names in folders.values())

    def is_over(self) -> bool:
        """Whether the clock has brought all results."""
        return all(len(self.results[operator]) >= num for operator, num in self.num_by_clock.items())

    def sorted_results(self) -> dict[str, list[str]]:
        return {operator: sorted(results) for operator, results in self.results.items()}


STAGE: Stage


def set_stage(folder: Path, operators: Iterable[str], *, kills: bool) -> None:
    global STAGE
    STAGE = Stage(folder, kills, {each: NUM_BY_CLOCK[each] for each in operators if each in NUM_BY_CLOCK})


class KilledError(Exception):
    """Ends an attempt of the job."""


class Feed(SourceFunction, CheckpointedFunction, CheckpointListener):
    """Emits ``ITEMS``."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.position = context.get_operator_state_store().get_list_state(ListStateDescriptor("position", Types.LONG()))
        self.next = sum(self.position)
        self.last_stored: Any = None
        self.is_cancelled = False
        if self.next in CLOCK_BEHIND:
            # Not earlier: timers of the attempt that was killed would fire, and their results would come again.
            STAGE.clock_ms = CLOCK_BEHIND[self.next]

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.position.update([self.next])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with STAGE.changed:
            self.last_stored = STAGE.passed.get(checkpoint_id)
            STAGE.changed.notify_all()

    def cancel(self) -> None:
        with STAGE.changed:
            self.is_cancelled = True
            STAGE.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with STAGE.changed:
            assert STAGE.changed.wait_for(lambda: self.is_cancelled or condition(), PATIENCE_S)

    def run(self, ctx: SourceContext) -> None:
        while self.next < len(ITEMS) and not self.is_cancelled:
            if self.next in CLOCK_BEHIND and self.next not in STAGE.stops:
                self.stop()
            with ctx.get_checkpoint_lock():
                item = ITEMS[self.next]
                if isinstance(item, int):
                    ctx.emit_watermark(item)
                else:
                    ctx.collect_with_timestamp(item, item[2])
                self.next += 1
        if STAGE.num_by_clock:
            self.wait_until(lambda: self.last_stored == ITEMS[-1])  # all records are with the operator
            STAGE.moving_since_ns = time.monotonic_ns()
            self.wait_until(lambda: STAGE.is_over())

    def stop(self) -> None:
        self.wait_until(lambda: self.last_stored == ITEMS[self.next - 1])
        if self.is_cancelled:
            return
        STAGE.num_in_files = STAGE.count_databases()
        STAGE.stops.add(self.next)
        if STAGE.kills:
            raise KilledError(f"at {self.next}")
        STAGE.clock_ms = CLOCK_BEHIND[self.next]


class Pass(MapFunction, CheckpointedFunction):
    """Tells the last record in front of each checkpoint: the source's state may hold records that it has not seen."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.last: Any = None

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        STAGE.passed[context.get_checkpoint_id()] = self.last

    def map(self, value: Any) -> Any:
        self.last = value
        return value


class Keep(MapFunction):
    def __init__(self, operator: str) -> None:
        self.operator = operator

    def map(self, value: Any) -> Any:
        with STAGE.changed:
            STAGE.results[self.operator].append(repr(value))
            STAGE.changed.notify_all()
        return value


# -- the test


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(num_task_managers=1, slots_per_task_manager=PARALLELISM) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tasks go by the clock of the stage."""
    on_stage = partial(
        SystemProcessingTimeService,
        now_ms=lambda: STAGE.now_ns() // NS_PER_MS,
        clock_ns=lambda: STAGE.now_ns(),
    )
    monkeypatch.setattr(operator_services, "SystemProcessingTimeService", on_stage)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, dict[str, list[str]]]:
    """The results of each operator of a job, once that has run to its end."""
    return {}


def run(cluster: MiniCluster, job: str, parallelism: int, options: dict[str, str]) -> None:
    settings = {
        "execution.checkpointing.dir": str(STAGE.folder / "checkpoints"),
        "execution.checkpointing.interval": "25 ms",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "pipeline.max-parallelism": "128",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0 ms",
        **options,
    }
    env = cluster.environment().set_parallelism(parallelism)
    env.configure(Configuration.from_dict(settings))
    source = env.add_source(Feed(), type_info=TRIPLE).set_parallelism(1)
    records = source.map(Pass(), output_type=TRIPLE).set_parallelism(1)
    for operator, make in JOBS[job].items():
        make(Streams(records)).map(Keep(operator)).sink_to(DiscardingSink())
    env.execute(job)


@pytest.mark.parametrize("back_end", ["heap", "rocksdb", pytest.param("rocksdb-full", marks=pytest.mark.long)])
@pytest.mark.parametrize("job", JOBS)
def test_results_are_those_of_a_run_that_nothing_interrupts(
    cluster: MiniCluster, uninterrupted: dict[str, dict[str, list[str]]], job: str, back_end: str, tmp_path: Path
) -> None:
    """A job that was killed, and another one that goes on from its checkpoint with another parallelism, give each
    result of each operator once; its state is in files of RocksDB exactly where RocksDB keeps it.
    """
    if job not in uninterrupted:
        set_stage(tmp_path / "whole", JOBS[job], kills=False)
        run(cluster, job, 1, {})
        uninterrupted[job] = STAGE.sorted_results()
    set_stage(tmp_path, JOBS[job], kills=True)
    options = dict(BACK_ENDS[back_end])
    is_rocksdb = back_end != "heap"
    if is_rocksdb:
        options["state.backend.rocksdb.localdir"] = str(STAGE.databases)

    with pytest.raises(JobExecutionError, match=f"KilledError: at {max(CLOCK_BEHIND)}") as caught:
        run(cluster, job, FORMER_PARALLELISM, options)
    (checkpoint,) = re.findall(r"stays at (\S+);", str(caught.value))
    num_before = {operator: len(results) for operator, results in STAGE.results.items()}
    run(cluster, job, PARALLELISM, {**options, "execution.state-recovery.path": checkpoint})

    assert STAGE.sorted_results() == uninterrupted[job]
    assert uninterrupted[job].keys() == JOBS[job].keys()
    assert [each for each in JOBS[job] if num_before.get(each, 0) == len(STAGE.results[each])] == []
    assert STAGE.num_in_files == is_rocksdb * sum(1 if each in OF_ALL else FORMER_PARALLELISM for each in JOBS[job])
    assert STAGE.list_files() == []


@pytest.mark.parametrize("job", [job for job, operators in JOBS.items() if not operators.keys() & NUM_BY_CLOCK.keys()])
def test_each_operator_would_notice_that_its_state_is_lost(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch, job: str, tmp_path: Path
) -> None:
    """Without its state a job that was killed has other results than one that nothing interrupts.  Operators that go by
    the clock are left out: their source waits for the number of results, and would wait in vain.
    """
    set_stage(tmp_path / "whole", JOBS[job], kills=False)
    run(cluster, job, 1, {})
    whole = STAGE.sorted_results()
    set_stage(tmp_path, JOBS[job], kills=True)
    monkeypatch.setattr(HeapKeyedStateBackend, "restore", lambda *_: None)

    with pytest.raises(JobExecutionError, match=f"KilledError: at {max(CLOCK_BEHIND)}") as caught:
        run(cluster, job, FORMER_PARALLELISM, BACK_ENDS["heap"])
    (checkpoint,) = re.findall(r"stays at (\S+);", str(caught.value))
    run(cluster, job, PARALLELISM, {**BACK_ENDS["heap"], "execution.state-recovery.path": checkpoint})

    lost = STAGE.sorted_results()
    assert [each for each in JOBS[job] if lost.get(each) == whole[each]] == [], "take other cases: they need no state"


class ShowFiles(Counts, KeyedProcessFunction):
    """Shows the files of RocksDB beside its counts."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield *self.counted(value), STAGE.list_files()


def test_batch_mode_keeps_state_on_the_heap(cluster: MiniCluster, tmp_path: Path) -> None:
    """Inputs are sorted by key, so that there is the state of one key at a time."""
    set_stage(tmp_path, [], kills=False)
    env = cluster.environment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    settings = {"state.backend.type": "rocksdb", "state.backend.rocksdb.localdir": str(STAGE.databases)}
    env.configure(Configuration.from_dict(settings))

    records = env.from_collection([("a", 1, 1), ("b", 2, 2), ("a", 3, 3)], TRIPLE)
    Streams(records).keyed.process(ShowFiles()).map(Keep("")).sink_to(DiscardingSink())
    env.execute()

    assert sorted(STAGE.results[""]) == ["('a', 1, 1, [])", "('a', 2, 2, [])", "('b', 1, 1, [])"]
