"""Jobs whose state is in RocksDB: one that loses a TaskManager by ``kill -9``, and what their checkpoints and
directories leave behind.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    CloseableIterator,
    DataStream,
    EmbeddedRocksDBStateBackend,
    KeyedProcessFunction,
    KeyedStream,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flowlet.tm.taskmanager_process import PROCESS_NAME

pytest.importorskip("rocksdict")

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
NUM_KEYS = 700
PACE_S = 0.1  # of 1000 records, in the chain of the source: barriers pass between its chunks
CHECKPOINT_MS = 100
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


def environment(checkpoints: Path, databases: Path, *, is_incremental: bool) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(checkpoints))
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("restart-strategy.fixed-delay.delay", "50 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    backend = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=is_incremental)
    backend.set_db_storage_paths(str(databases))
    env.set_state_backend(backend)
    env.enable_checkpointing(CHECKPOINT_MS)
    return env


def paced(number: int) -> tuple[int, int]:
    if number % 1000 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS, 1


class CountInThreeStates(KeyedProcessFunction):
    """Counts with a value, a list and a map, which must agree."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.ones = runtime_context.get_list_state(ListStateDescriptor("ones", Types.LONG()))
        self.by_count = runtime_context.get_map_state(MapStateDescriptor("by count", Types.LONG(), Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        self.ones.add(value[1])
        self.by_count.put(count, value[0])
        agreed = {count, len(list(self.ones.get())), len(list(self.by_count.keys()))}
        yield value[0], count if len(agreed) == 1 else -1


def task_managers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


COUNTED: dict[str, Callable[[KeyedStream], DataStream]] = {
    "states": lambda stream: stream.process(CountInThreeStates(), output_type=PAIR),
    "sum": lambda stream: stream.sum(1),
    "reduce": lambda stream: stream.reduce(lambda one, other: (one[0], one[1] + other[1])),
}


@pytest.mark.parametrize(
    ("counted", "is_incremental"),
    [("states", True), ("sum", True), *(pytest.param(each, False, marks=pytest.mark.long) for each in COUNTED)],
)
def test_a_killed_taskmanager_costs_no_result_and_its_files_are_removed(
    *, counted: str, is_incremental: bool, tmp_path: Path
) -> None:
    """The first result is handed out when a checkpoint in the middle of the data is complete; then one of two
    TaskManagers is killed.
    """
    checkpoints, databases = tmp_path / "checkpoints", tmp_path / "databases"
    env = environment(checkpoints, databases, is_incremental=is_incremental)
    numbers = env.from_collection(list(range(NUM_RECORDS)), Types.LONG())
    pairs = numbers.map(paced, output_type=PAIR).set_parallelism(1)

    results = COUNTED[counted](pairs.key_by(lambda record: record[0])).execute_and_collect("survivor")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        shared = list(checkpoints.glob("*/shared/*"))
        # Not by Path.glob: it fails if the directory of a snapshot goes while it looks.
        files = [name for _, _, names in os.walk(databases) for name in names]
        assert any(name.endswith(".sst") for name in files), "checkpoints write the rows"
        killed, *others = task_managers()
        killed.kill()
        found += results

    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    assert others, "there was one TaskManager only"
    assert Counter(found) == Counter((key, count) for key, size in sizes.items() for count in range(1, size + 1))
    assert bool(shared) == is_incremental
    assert not list(checkpoints.glob("*/*")), "the job has ended"
    assert not [file for base in databases.iterdir() for file in base.iterdir()], (
        "the killed process's databases are removed, too"
    )
