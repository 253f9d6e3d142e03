"""A job is cancelled in the middle of its data, and another one goes on from its checkpoint with as many, more or fewer
subtasks.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    CloseableIterator,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.connectors.file_system import FileSource, StreamFormat
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS = 60_000
NUM_KEYS = 37
NUM_FILES = 5  # two of them are begun when the checkpoint is taken
FORMER_PARALLELISM = 2
PACE_S = 0.1  # of 1000 / 5 lines, in the chain of the source: barriers pass between its chunks
AT_THE_END = 10**15  # event time
SIZES = Counter(str(number % NUM_KEYS) for number in range(NUM_RECORDS))


class Paced(MapFunction):
    """Makes pairs, slowly until there is a file."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry

    def map(self, value: str) -> tuple[str, int]:
        number = int(value)
        if number % 1000 < NUM_FILES and not self._hurry.exists():
            time.sleep(PACE_S)
        return str(number % NUM_KEYS), 1


class CountInState(KeyedProcessFunction):
    """Counts with a ``ValueState``; the count is emitted by a timer at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = self.count.value()
        if count is None:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
        self.count.update((count or 0) + value[1])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "counted", ctx.get_current_key(), self.count.value()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield a cluster of four TaskManagers with a slot each, and a client that knows their secret."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, num_task_managers=4) as running:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        yield running


def environment(cluster: Cluster, folder: Path, parallelism: int, **options: str) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("flowlet.jobmanager", cluster.address)
    configuration.set_string("execution.checkpointing.dir", str(folder / "checkpoints"))
    configuration.set_string("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
    for name, value in options.items():
        configuration.set_string(f"execution.state-recovery.{name.replace('_', '-')}", value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(parallelism)
    return env.enable_checkpointing(50)


def program(
    cluster: Cluster, folder: Path, parallelism: int, **options: str
) -> tuple[StreamExecutionEnvironment, DataStream]:
    env = environment(cluster, folder, parallelism, **options)
    lines = StreamFormat.text_line_format()
    source = FileSource.for_record_stream_format(lines, str(folder / "files")).build()
    pairs = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").map(
        Paced(folder / "hurry"), output_type=Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    keyed = pairs.key_by(lambda record: record[0], Types.STRING())
    triple = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])
    counted = keyed.process(CountInState(), output_type=triple)
    summed = keyed.sum(1).map(lambda record: ("summed", *record), output_type=triple)
    return env, counted.union(summed)


def retained_checkpoint(cluster: Cluster, folder: Path) -> str:
    """Run the job at parallelism 2, cancel it when its third checkpoint is complete, and return the path that its error
    names.
    """
    (folder / "files").mkdir()
    for number in range(NUM_FILES):
        lines = "".join(f"{each}\n" for each in range(number, NUM_RECORDS, NUM_FILES))
        (folder / "files" / f"{number}.txt").write_text(lines, encoding="ascii")
    env, results = program(cluster, folder, FORMER_PARALLELISM)
    results.sink_to(DiscardingSink())
    job = env.execute_async("former")
    spin_until(lambda: list(folder.glob("checkpoints/*/chk-[3-9]/_metadata")), "the third checkpoint")
    job.cancel().result()
    with pytest.raises(JobExecutionError, match="was cancelled") as caught:
        job.get_job_execution_result().result()
    (named,) = re.findall(r"stays at (\S+);", str(caught.value))
    return str(named)


def test_a_job_goes_on_from_the_checkpoint_of_another_with_any_parallelism(cluster: Cluster, tmp_path: Path) -> None:
    """Counts in state, timers and sums equal those of a run that was never disturbed; each record counts once, and the
    checkpoint stays.
    """
    path = retained_checkpoint(cluster, tmp_path)
    files = {file: file.read_bytes() for file in Path(path).iterdir()}
    (tmp_path / "hurry").touch()

    for parallelism in (2, 4, 1):
        _, results = program(cluster, tmp_path, parallelism, path=path)
        values = results.execute_and_collect("later")
        assert isinstance(values, CloseableIterator)
        with values:
            found = list(values)

        counted = {key: count for kind, key, count in found if kind == "counted"}
        sums: dict[str, list[int]] = {key: [] for key in SIZES}
        for kind, key, total in found:
            if kind == "summed":
                sums[key].append(total)
        assert counted == SIZES, f"at parallelism {parallelism}"
        assert sum(kind == "counted" for kind, _, _ in found) == NUM_KEYS, "each timer fires once"
        for key, totals in sums.items():
            assert totals == list(range(SIZES[key] - len(totals) + 1, SIZES[key] + 1)), (
                f"key {key} at parallelism {parallelism}"
            )
        num_left = sum(map(len, sums.values()))
        assert 0 < num_left < NUM_RECORDS, "the checkpoint is in the middle"
    assert {file: file.read_bytes() for file in Path(path).iterdir()} == files
    check_errors(cluster, tmp_path, path)


def check_errors(cluster: Cluster, folder: Path, path: str) -> None:
    """Check that a job that cannot start from its checkpoint fails before it runs, with one sentence and without a
    traceback.
    """
    (Path(path).parent / "chk-99").mkdir()
    for options, message in [
        ({"path": str(folder)}, r"names no checkpoint or savepoint: there is no file _metadata in it"),
        (
            {"path": str(Path(path).parent / "chk-99")},
            r"chk-99/_metadata cannot be read: the file or its directory does not exist",
        ),
    ]:
        env, results = program(cluster, folder, 1, **options)
        results.sink_to(DiscardingSink())
        with pytest.raises(JobExecutionError, match=message) as caught:
            env.execute("later")
        assert caught.value.__cause__ is None
    env = environment(cluster, folder, 1, path=path)
    env.from_collection([1]).print()
    with pytest.raises(
        JobExecutionError, match=r"has state of operators that this program does not have: '.*ignore-unclaimed-state"
    ):
        env.execute("another")


class FailsAt(MapFunction):
    """Fails at a number until there is a file; slow until then."""

    def __init__(self, number: int, hurry: Path) -> None:
        self._number = number
        self._hurry = hurry

    def map(self, value: int) -> tuple[int, int]:
        if not self._hurry.exists():
            if value % 1000 == 0:
                time.sleep(PACE_S)
            if value == self._number:
                raise ValueError("not this one")
        return 7, 1


def test_a_local_job_that_failed_goes_on_in_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of the jobs' own verify each other's checkpoints by the user's secret; a chain may be taken apart."""
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))

    def totals(parallelism: int = 1, **options: str) -> list[Any]:
        configuration = Configuration()
        configuration.set_string("execution.checkpointing.dir", str(tmp_path / "checkpoints"))
        configuration.set_string("execution.checkpointing.externalized-checkpoint-retention", "DELETE_ON_CANCELLATION")
        configuration.set_string("restart-strategy.type", "none")
        for name, value in options.items():
            configuration.set_string(f"execution.state-recovery.{name}", value)
        env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(parallelism)
        env.enable_checkpointing(50)
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        numbers = env.from_collection(list(range(20_000)), Types.LONG()).map(
            FailsAt(15_500, tmp_path / "hurry"), output_type=pair
        )
        results = numbers.key_by(lambda record: record[0]).sum(1).execute_and_collect("local")
        assert isinstance(results, CloseableIterator)
        with results:
            return [total for _, total in results]

    with pytest.raises(JobExecutionError, match="not this one") as caught:
        totals()
    (path,) = re.findall(r"stays at (\S+);", str(caught.value))
    (tmp_path / "hurry").touch()

    for parallelism in (1, 2):  # with one subtask each, source, map and sum are one chain
        found = totals(parallelism, path=path)
        assert 0 < len(found) < 20_000, "the checkpoint is in the middle"
        assert found == list(range(20_000 - len(found) + 1, 20_001))
