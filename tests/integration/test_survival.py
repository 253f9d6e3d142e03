"""A job with checkpoints loses a TaskManager by ``kill -9``, and its client reads each result exactly once."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.tm.taskmanager_process import PROCESS_NAME

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
NUM_KEYS = 7
PACE_S = 0.1  # of 1000 records, in the chain of the source: barriers pass between its chunks
CHECKPOINT_MS = 100


def environment(folder: Path) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(folder))
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("restart-strategy.fixed-delay.delay", "50 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    env.enable_checkpointing(CHECKPOINT_MS)
    return env


def paced(number: int) -> tuple[int, int]:
    if number % 1000 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS, 1


class CountInState(KeyedProcessFunction):
    """Counts with a ``ValueState``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


def task_managers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


@pytest.mark.parametrize("form", ["sum", "state"])
def test_a_killed_taskmanager_costs_no_result_and_repeats_none(form: str, tmp_path: Path) -> None:
    """The first result is handed out when a checkpoint in the middle of the data is complete; then one of two
    TaskManagers is killed.
    """
    env = environment(tmp_path)
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    keyed = (
        env.from_collection(list(range(NUM_RECORDS)), Types.LONG())
        .map(paced, output_type=pair)
        .set_parallelism(1)
        .key_by(lambda record: record[0])
    )
    counted = keyed.sum(1) if form == "sum" else keyed.process(CountInState(), output_type=pair)

    results = counted.execute_and_collect("survivor")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        killed, *others = task_managers()
        killed.kill()
        found += results

    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    assert others, "there was one TaskManager only"
    assert Counter(found) == Counter((key, count) for key, size in sizes.items() for count in range(1, size + 1))
