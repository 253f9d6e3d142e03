"""A job that writes files loses TaskManagers by ``kill -9``, and each number is in exactly one visible file."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.tm.taskmanager_process import PROCESS_NAME
from tests.flowlet.connectors.files.file_formats import FORMATS, Format, fingerprint
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS = 16_000
PACE_S = 0.05  # of 1000 records, in the chain of the source: barriers pass between its chunks
CHECKPOINT_MS = 60


def environment(folder: Path) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(folder))
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "5")
    configuration.set_string("restart-strategy.fixed-delay.delay", "20 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    env.enable_checkpointing(CHECKPOINT_MS)
    return env


def paced_tuple(number: int) -> tuple[int]:
    if number % 1000 == 0:
        time.sleep(PACE_S)
    return (number,)


def paced(number: int) -> int:
    return paced_tuple(number)[0]


def task_managers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


def completed_checkpoints(folder: Path) -> Iterator[Path]:
    return folder.glob("*/chk-*/_metadata")


def newest(folder: Path) -> int:
    return max((int(each.parent.name[4:]) for each in completed_checkpoints(folder)), default=0)


@pytest.mark.parametrize(
    "fmt",
    [FORMATS[0], *(pytest.param(each, marks=pytest.mark.long) for each in FORMATS[1:])],
    ids=lambda each: each.name,
)
def test_killed_taskmanagers_cost_no_record_and_repeat_none(fmt: Format, tmp_path: Path) -> None:
    """Kills at a complete checkpoint, and at another one of the restarted job, lose and repeat no record."""
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "output"
    env = environment(checkpoints)
    numbers = env.from_collection(list(range(NUM_RECORDS)), Types.LONG())
    mapped: Any = numbers.map(
        paced_tuple if fmt.of_tuples else paced,
        output_type=Types.TUPLE([Types.LONG()]) if fmt.of_tuples else Types.LONG(),
    )
    mapped.set_parallelism(1).rebalance().sink_to(fmt.sink(output, part_size=4_000))

    job = env.execute_async("files")
    num_killed = 0
    for _ in range(2):
        seen = newest(checkpoints)
        spin_until(lambda seen=seen: newest(checkpoints) > seen)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        task_managers()[0].kill()
        num_killed += 1
    job.get_job_execution_result().result()

    assert num_killed == 2
    assert fingerprint(fmt.visible(output)) == fingerprint(range(NUM_RECORDS))
    assert list(output.rglob(".*")) == []
