"""Programs that read a ``HybridSource``: its sources in their order, and jobs that go on from a savepoint on each side
of a switch.
"""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import NO_RECORD, DiscardingSink, FileSource, SplitSource, StreamFormat
from flowlet.datastream.connectors.base import Source
from flowlet.datastream.connectors.hybrid_source import HybridSource
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.testing.mini_cluster import MiniCluster
from tests.integration.jobs import collected
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

PART = 1_000  # numbers in each source
may_go_on = threading.Event()  # the held split gives its second half
results: list[int] = []  # the tasks run in this process


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    may_go_on.clear()
    results.clear()
    with MiniCluster(num_task_managers=2, slots_per_task_manager=2) as cluster:
        yield cluster
    may_go_on.set()


class Held(SplitSource):
    """``PART`` numbers from ``start`` on, in four splits; the last one stays in its middle until the test lets it go
    on.
    """

    def __init__(self, start: int) -> None:
        self._start = start

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        size = PART // 4
        return {
            str(number): range(self._start + number * size, self._start + (number + 1) * size) for number in range(4)
        }

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        for number in split[num_read:]:
            while number == self._start + PART - 100 and not may_go_on.is_set():
                yield NO_RECORD
            yield number


def files(folder: Path, start: int) -> Source:
    """Return a source of ``PART`` numbers from ``start`` on, in two files of unequal size."""
    folder.mkdir(exist_ok=True)
    for name, part in (("a", range(start, start + 700)), ("b", range(start + 700, start + PART))):
        (folder / name).write_text("".join(f"{number}\n" for number in part))
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()


class Keep(MapFunction):
    """Numbers of lines, too."""

    def map(self, value: int | str) -> int:
        results.append(int(value))
        return int(value)


class FailOnce(MapFunction):
    """Fails at one number, in the first attempt."""

    def __init__(self, number: int) -> None:
        self._number = number

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_first = runtime_context.get_attempt_number() == 0

    def map(self, value: int | str) -> int:
        if int(value) == self._number and self._is_first:
            raise ValueError("once")
        return int(value)


def switching(folder: Path, *, is_switched: bool) -> HybridSource:
    """Return a source of three parts; it is held in the first one, or in the second if it is to have switched."""
    first, second = (files(folder, 0), Held(PART)) if is_switched else (Held(0), files(folder, PART))
    return (
        HybridSource.builder(first).add_source(second).add_source(NumberSequenceSource(2 * PART, 3 * PART - 1)).build()
    )


def started(cluster: MiniCluster, source: HybridSource, parallelism: int, options: Mapping[str, str]) -> JobClient:
    environment = cluster.environment().set_parallelism(parallelism)
    environment.configure(Configuration.from_dict(dict(options)))
    numbers = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers.map(Keep(), Types.LONG()).uid("kept").sink_to(DiscardingSink())
    return environment.execute_async("hybrid")


def finish(job: JobClient) -> None:
    may_go_on.set()
    job.get_job_execution_result().result()


def test_no_subtask_begins_a_source_before_all_have_read_the_one_before(cluster: MiniCluster, tmp_path: Path) -> None:
    """No subtask of two file sources and a sequence begins a source before all have read the one before."""
    sources = (
        files(tmp_path / "first", 0),
        files(tmp_path / "second", PART),
        NumberSequenceSource(2 * PART, 3 * PART - 1),
    )
    builder = HybridSource.builder(sources[0])
    for source in sources[1:]:
        builder = builder.add_source(source)

    finish(started(cluster, builder.build(), 3, {}))

    assert sorted(results) == list(range(3 * PART))
    assert [number // PART for number in results] == [0] * PART + [1] * PART + [2] * PART


def test_the_files_of_a_later_source_are_those_that_are_there_when_it_begins(
    cluster: MiniCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "later"
    job = started(cluster, HybridSource.builder(Held(0)).add_source(files(folder, PART)).build(), 2, {})
    spin_until(lambda: len(results) == PART - 100, "the held split")

    (folder / "c").write_text("7777\n")
    finish(job)

    assert sorted(results) == [*range(2 * PART), 7777]


@pytest.mark.parametrize(("former", "now"), [(2, 3), (3, 1)])
@pytest.mark.parametrize("is_switched", [False, True])
def test_a_job_goes_on_from_a_savepoint_on_each_side_of_the_switch(
    cluster: MiniCluster, tmp_path: Path, former: int, now: int, is_switched: bool
) -> None:
    """A job goes on with more or fewer subtasks; each number counts once."""
    source = switching(tmp_path / "files", is_switched=is_switched)
    options = {"execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints")}
    job = started(cluster, source, former, options)
    num_before = (2 if is_switched else 1) * PART - 100
    spin_until(lambda: len(results) == num_before, "everything before the held number")
    path = job.stop_with_savepoint(False).result()
    assert len(results) == num_before

    finish(started(cluster, source, now, {**options, "execution.state-recovery.path": path}))

    assert sorted(results) == list(range(3 * PART))


@pytest.mark.parametrize("is_switched", [False, True])
def test_a_failed_job_goes_on_from_its_checkpoint_on_each_side_of_the_switch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_switched: bool
) -> None:
    """Results are handed out with a checkpoint, so the job has one before it fails."""
    may_go_on.clear()
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    options = {
        "execution.checkpointing.dir": f"file://{tmp_path}",
        "execution.checkpointing.interval": "10 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0",
    }
    environment = StreamExecutionEnvironment(Configuration.from_dict(options)).set_parallelism(2)
    source = switching(tmp_path / "files", is_switched=is_switched)
    num_before = (2 if is_switched else 1) * PART - 100

    numbers = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    found = collected(numbers.map(FailOnce(num_before + 99), Types.LONG()))
    taken = [next(found) for _ in range(num_before)]
    may_go_on.set()
    taken += found
    environment.close()

    assert sorted(taken) == list(range(3 * PART))
