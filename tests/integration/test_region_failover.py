"""A job of independent pipelines on real processes: one of them fails, and the others go on as if
nothing had happened.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common import JobStatus, WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.records import Chunk
from tests.integration.jobs import RESTARTING, environment
from tests.waiting import spin_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]
NUM_RECORDS = 3_000
NUM_KEYS = 5
CHUNK = 50
PACE_S = 0.02  # of each chunk: checkpoints complete on the way
FAIL_AT = 2_000
HELD_AT = 1_000  # until two checkpoints have completed: what fails later has one to go on at, however slow the machine


class Numbers(Source):
    """Numbers 0 to ``NUM_RECORDS``, for each subtask; its readers know their position."""

    is_bounded = True

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints

    def create_reader(self, subtask: int, parallelism: int) -> "NumberReader":
        return NumberReader(subtask, self._checkpoints)


class NumberReader:
    def __init__(self, subtask: int, checkpoints: Path) -> None:
        self._subtask = subtask
        self._checkpoints = checkpoints
        self._next = 0
        self._former: int | None = None  # the newest checkpoint when it was held

    def poll_chunk(self) -> Chunk | None:
        if self._next == NUM_RECORDS:
            return None
        time.sleep(PACE_S)  # the pace of the source
        if self._next == HELD_AT:
            newest = max(map(number_of, self._checkpoints.glob("*/chk-*/_metadata")), default=0)
            self._former = newest if self._former is None else self._former
            if newest < self._former + 2:
                return Chunk([])
        first, self._next = self._next, self._next + CHUNK
        return Chunk([(self._subtask, number) for number in range(first, self._next)])

    def snapshot_position(self) -> object:
        return self._next

    def restore_position(self, position: Any) -> None:
        self._next = position

    def close(self) -> None:
        pass


class Record(MapFunction):
    """Writes down each record, and each start with its process; subtask 1 fails once."""

    def __init__(self, folder: Path, fails: bool = True) -> None:
        self._folder = folder
        self._fails = fails

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()
        number = runtime_context.get_attempt_number()
        with (self._folder / f"starts-{self._subtask}").open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        self._out = (self._folder / f"out-{self._subtask}-{number}").open("a", buffering=1)
        self._may_fail = self._fails and self._subtask == 1 and number == 0

    def map(self, value: tuple[int, int]) -> tuple[int, int]:
        if self._may_fail and value[1] == FAIL_AT:
            raise ValueError("the pipeline breaks")
        self._out.write(f"{value[1]}\n")
        return value

    def close(self) -> None:
        self._out.close()


class CountByKey(KeyedProcessFunction):
    """Counts in keyed state, and writes down each count."""

    def __init__(self, path: Path, fail_once: Path | None) -> None:
        self._path = path
        self._fail_once = fail_once

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._out = self._path.open("a", buffering=1)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        if self._fail_once is not None and value == FAIL_AT and not self._fail_once.exists():
            self._fail_once.touch()
            raise ValueError("the pipeline breaks")
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        self._out.write(f"{value % NUM_KEYS} {count}\n")
        yield count

    def close(self) -> None:
        self._out.close()


def paced(number: int) -> int:
    if number % CHUNK == 0:
        time.sleep(PACE_S)
    return number


def attempt_numbers(document: dict[str, Any]) -> dict[str, list[int]]:
    return {
        vertex["name"]: [subtask["attempt-number"] for subtask in vertex["subtasks"]] for vertex in document["vertices"]
    }


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def job_of_subtasks(env: StreamExecutionEnvironment, folder: Path, *, fails: bool = True) -> None:
    """Return a job of two subtasks that exchange no records."""
    source = env.from_source(Numbers(folder / "checkpoints"), WatermarkStrategy.no_watermarks(), "numbers")
    source.map(Record(folder, fails)).sink_to(DiscardingSink())


def number_of(metadata: Path) -> int:
    """The number of the checkpoint whose folder ends in it."""
    return int(metadata.parent.name.rpartition("-")[2])


def test_a_subtask_that_shares_nothing_fails_alone(tmp_path: Path) -> None:
    """A neighbour keeps its attempt; each subtask reads everything, and the one that failed goes on at its
    checkpoint.
    """
    env = environment(tmp_path / "checkpoints")
    job_of_subtasks(env, tmp_path)

    job = env.execute_async("subtasks")
    job.get_job_execution_result().result()
    document = job.metrics()

    assert list(attempt_numbers(document).values()) == [[0, 1]]
    assert (document["state"], document["numRestarts"]) == ("FINISHED", 1)
    assert [line.split()[0] for line in lines(tmp_path / "starts-0")] == ["0"]
    assert [line.split()[0] for line in lines(tmp_path / "starts-1")] == ["0", "1"]
    assert [int(line) for line in lines(tmp_path / "out-0-0")] == list(range(NUM_RECORDS)), (
        "each once: it was never disturbed"
    )
    before, again = ([int(line) for line in lines(tmp_path / f"out-1-{number}")] for number in range(2))
    assert before == list(range(FAIL_AT))
    assert 0 < again[0] <= FAIL_AT, "it goes on at a checkpoint"
    assert again == list(range(again[0], NUM_RECORDS))


@pytest.mark.long
def test_with_the_strategy_full_both_start_again(tmp_path: Path) -> None:
    env = environment(tmp_path / "checkpoints", {**RESTARTING, "jobmanager.execution.failover-strategy": "full"})
    job_of_subtasks(env, tmp_path)

    env.execute("subtasks")

    assert [line.split()[0] for line in lines(tmp_path / "starts-0")] == ["0", "1"]


def test_a_killed_task_manager_costs_the_other_one_nothing(tmp_path: Path) -> None:
    """Regions of a killed TaskManager go on in a new process, in place of the slot that is gone."""
    env = environment(tmp_path / "checkpoints")
    job_of_subtasks(env, tmp_path, fails=False)

    job = env.execute_async("subtasks")
    out = tmp_path / "out-1-0"
    spin_until(lambda: out.exists() and len(lines(out)) >= NUM_RECORDS // 2, "half of the records")
    spin_until(lambda: any(number_of(each) > 1 for each in tmp_path.rglob("_metadata")), "a checkpoint with records")
    (start,) = lines(tmp_path / "starts-1")
    psutil.Process(int(start.split()[1])).kill()
    job.get_job_execution_result().result()

    (only,) = lines(tmp_path / "starts-0")
    _, second = lines(tmp_path / "starts-1")
    assert second.split()[0] == "1"
    assert len({only.split()[1], start.split()[1], second.split()[1]}) == 3
    assert [int(line) for line in lines(tmp_path / "out-0-0")] == list(range(NUM_RECORDS))
    again = [int(line) for line in lines(tmp_path / "out-1-1")]
    assert again[0] > 0
    assert again == list(range(again[0], NUM_RECORDS))


@pytest.mark.long
def test_of_two_pipelines_with_keyed_state_one_fails(tmp_path: Path) -> None:
    """Both pipelines count each record once, the failed one once its last counts are looked at."""
    env = environment(tmp_path / "checkpoints")
    for name, fail_once in (("calm", None), ("wild", tmp_path / "failed")):
        stream = (
            env.from_collection(list(range(NUM_RECORDS)), Types.LONG())
            .map(paced, output_type=Types.LONG())
            .set_parallelism(1)
        )
        counted = stream.key_by(lambda number: number % NUM_KEYS).process(
            CountByKey(tmp_path / name, fail_once), Types.LONG()
        )
        counted.name(name).sink_to(DiscardingSink())

    client = env.execute_async("pipelines")
    client.get_job_execution_result().result()
    attempts = {
        number
        for name, found in attempt_numbers(client.metrics()).items()
        if name.startswith("calm")
        for number in found
    }

    assert attempts == {0}
    expected = [(str(key), str(count)) for key in range(NUM_KEYS) for count in range(1, NUM_RECORDS // NUM_KEYS + 1)]
    calm = Counter(tuple(line.split()) for line in lines(tmp_path / "calm"))
    wild = Counter(tuple(line.split()) for line in lines(tmp_path / "wild"))
    assert calm == Counter(expected), "each count once"
    assert set(wild) == set(expected)
    assert wild != Counter(expected), "those since the last checkpoint come again"
    assert client.get_job_status().result() is JobStatus.FINISHED
