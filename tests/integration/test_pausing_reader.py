"""A client that pauses while it reads results, for longer than a checkpoint may take."""

import time
from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment

pytestmark = pytest.mark.slow
NUM_RECORDS = 400_000
PAUSE_S = 8.0  # two timeouts and more


@pytest.mark.long
def test_a_pause_of_the_reader_is_no_failure_of_the_job(tmp_path: Path) -> None:
    """Tasks wait for room, so no checkpoint is complete; none of them counts, though no failure is tolerated."""
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(tmp_path))
    configuration.set_string("execution.checkpointing.interval", "100 ms")
    configuration.set_string("execution.checkpointing.timeout", "3 s")
    configuration.set_string("execution.checkpointing.mode", "AT_LEAST_ONCE")
    configuration.set_string("restart-strategy.type", "none")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    texts = env.from_collection(range(NUM_RECORDS)).rebalance().map(lambda number: f"{number:0100d}")

    results = texts.execute_and_collect("paused")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [int(next(results))]
        time.sleep(PAUSE_S)  # the pause of the reader
        found += map(int, results)

    assert sorted(found) == list(range(NUM_RECORDS))
