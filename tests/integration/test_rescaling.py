"""A job is cancelled in the middle of its data, and another one goes on from its checkpoint with as many, more or fewer
subtasks.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import WatermarkStrategy
from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.datastream import DataStream, KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.connectors.file_system import FileSource, StreamFormat
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError
from tests.flowlet.connectors.files.file_formats import FORMATS, Format, fingerprint
from tests.integration.jobs import PAIR, RETAINED, cluster_fixture, environment, results_of, retained, stays_at
from tests.waiting import spin_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]

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


cluster = cluster_fixture(4)


def going_on(cluster: Cluster | None, folder: Path, parallelism: int, path: str = "") -> StreamExecutionEnvironment:
    options = {**RETAINED, "execution.state-recovery.path": path} if path else RETAINED
    return environment(folder / "checkpoints", options, interval_ms=50, parallelism=parallelism, cluster=cluster)


def cancelled(job: JobClient, folder: Path) -> str:
    """Cancel the job when its third checkpoint is complete; return the checkpoint that stays."""
    spin_until(lambda: list(folder.glob("checkpoints/*/chk-[3-9]/_metadata")), "the third checkpoint")
    job.cancel().result()
    return retained(job, "was cancelled")


def program(
    cluster: Cluster, folder: Path, parallelism: int, path: str = ""
) -> tuple[StreamExecutionEnvironment, DataStream]:
    env = going_on(cluster, folder, parallelism, path)
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
    """Run the job at parallelism 2, and cancel it."""
    (folder / "files").mkdir()
    for number in range(NUM_FILES):
        lines = "".join(f"{each}\n" for each in range(number, NUM_RECORDS, NUM_FILES))
        (folder / "files" / f"{number}.txt").write_text(lines, encoding="ascii")
    env, results = program(cluster, folder, FORMER_PARALLELISM)
    results.sink_to(DiscardingSink())
    return cancelled(env.execute_async("former"), folder)


def test_a_job_goes_on_from_the_checkpoint_of_another_with_any_parallelism(cluster: Cluster, tmp_path: Path) -> None:
    """Counts in state, timers and sums equal those of a run that was never disturbed; each record counts once, and the
    checkpoint stays.
    """
    path = retained_checkpoint(cluster, tmp_path)
    files = {file: file.read_bytes() for file in Path(path).iterdir()}
    (tmp_path / "hurry").touch()

    for parallelism in (2, 4, 1):
        found = results_of(program(cluster, tmp_path, parallelism, path)[1])

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
    for wrong, message in [
        (folder, r"names no checkpoint or savepoint: there is no file _metadata in it"),
        (Path(path).parent / "chk-99", r"chk-99/_metadata cannot be read: the file or its directory does not exist"),
    ]:
        env, results = program(cluster, folder, 1, str(wrong))
        results.sink_to(DiscardingSink())
        with pytest.raises(JobExecutionError, match=message) as caught:
            env.execute("later")
        assert caught.value.__cause__ is None
    env = going_on(cluster, folder, 1, path)
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

    def totals(parallelism: int, recovery: dict[str, str]) -> list[Any]:
        options = {
            "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
            "restart-strategy.type": "none",
            **recovery,
        }
        env = environment(tmp_path / "checkpoints", options, interval_ms=50, parallelism=parallelism)
        numbers = env.from_collection(list(range(20_000)), Types.LONG()).map(
            FailsAt(15_500, tmp_path / "hurry"), output_type=PAIR
        )
        return [total for _, total in results_of(numbers.key_by(lambda record: record[0]).sum(1))]

    with pytest.raises(JobExecutionError, match="not this one") as caught:
        totals(1, {})
    (tmp_path / "hurry").touch()

    for parallelism in (1, 2):  # with one subtask each, source, map and sum are one chain
        found = totals(parallelism, {"execution.state-recovery.path": stays_at(caught.value)})
        assert 0 < len(found) < 20_000, "the checkpoint is in the middle"
        assert found == list(range(20_000 - len(found) + 1, 20_001))


# ---------------------------------------------------------------- files

NUM_WRITTEN = 20_000
NUM_EASY = 15_000  # a record behind them takes as long by itself: the first job does not end before it is cancelled
TEXT, PARQUET = FORMATS[0], FORMATS[3]


class PacedRecords(MapFunction):
    """Makes records of a format, slowly until there is a file."""

    def __init__(self, hurry: Path, *, of_tuples: bool) -> None:
        self._hurry = hurry
        self._of_tuples = of_tuples

    def map(self, value: int) -> tuple[int] | int:
        if (value % 500 == 0 or value >= NUM_EASY) and not self._hurry.exists():
            time.sleep(PACE_S / 2)
        return (value,) if self._of_tuples else value


def writing(fmt: Format, folder: Path, parallelism: int, path: str = "") -> StreamExecutionEnvironment:
    env = going_on(None, folder, parallelism, path).enable_checkpointing(30)
    numbers = env.from_collection(list(range(NUM_WRITTEN)), Types.LONG()).uid("numbers")
    output_type = Types.TUPLE([Types.LONG()]) if fmt.of_tuples else Types.LONG()
    paced = numbers.map(PacedRecords(folder / "hurry", of_tuples=fmt.of_tuples), output_type=output_type).uid("paced")
    paced.set_parallelism(1).rebalance().sink_to(fmt.sink(folder / "output")).uid("files")
    return env


@pytest.mark.parametrize(
    ("fmt", "before", "after"),
    [
        (TEXT, 2, 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [(TEXT, 2, 3), (PARQUET, 2, 1), (PARQUET, 3, 2)]),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_another_parallelism_of_a_file_sink_loses_and_repeats_no_record(
    fmt: Format, before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job takes over files that went on, and records that the cancelled job had prepared and not
    committed.
    """
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    path = cancelled(writing(fmt, tmp_path, before).execute_async("former"), tmp_path)
    (tmp_path / "hurry").touch()
    assert len(fmt.visible(tmp_path / "output")) < NUM_WRITTEN

    writing(fmt, tmp_path, after, path).execute("latter")

    assert fingerprint(fmt.visible(tmp_path / "output")) == fingerprint(range(NUM_WRITTEN))
