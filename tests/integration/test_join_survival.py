"""A job that joins two streams loses a TaskManager by ``kill -9``, and its client reads each pair exactly once."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.time import Time
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    CloseableIterator,
    DataStream,
    KeyedStream,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.window import TumblingEventTimeWindows
from flowlet.tm.taskmanager_process import PROCESS_NAME

pytestmark = pytest.mark.slow

NUM_RECORDS = 6_000
NUM_KEYS = 11
PACE_S = 0.1  # of 500 records, in the chain of the source: barriers pass between its chunks
CHECKPOINT_MS = 100
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
CLOSE = 100  # milliseconds between records that meet


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
    if number % 500 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS, number


class Number(TimestampAssigner):
    """A record a millisecond."""

    def extract_timestamp(self, value: tuple[int, int], record_timestamp: int) -> int:
        return value[1]


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Number())
    made = env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).map(paced, output_type=PAIR).set_parallelism(1)
    return made.assign_timestamps_and_watermarks(strategy).set_parallelism(1)


def by_key(stream: DataStream) -> KeyedStream:
    return stream.key_by(lambda record: record[0], Types.LONG())


class Both(ProcessJoinFunction):
    """The numbers of both records."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[tuple[int, int]]:
        yield left[1], right[1]


def task_managers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


def read_while_a_taskmanager_is_killed(stream: DataStream) -> list[Any]:
    """The first result is handed out when a checkpoint in the middle of the data is complete."""
    results = stream.execute_and_collect("survivor")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        killed, *others = task_managers()
        assert others, "there was one TaskManager only"
        killed.kill()
        return found + list(results)


def test_an_interval_join_loses_no_pair_and_repeats_none(tmp_path: Path) -> None:
    env = environment(tmp_path)
    pairs = (
        by_key(numbers(env))
        .interval_join(by_key(numbers(env)))
        .between(Time.milliseconds(-CLOSE), Time.milliseconds(0))
    )

    found = read_while_a_taskmanager_is_killed(pairs.process(Both(), PAIR))

    sooner = [(left, right) for left in range(NUM_RECORDS) for right in range(max(0, left - CLOSE), left + 1)]
    assert Counter(found) == Counter(pair for pair in sooner if (pair[0] - pair[1]) % NUM_KEYS == 0)


def test_a_window_join_loses_no_pair_and_repeats_none(tmp_path: Path) -> None:
    env = environment(tmp_path)
    by_key = (
        numbers(env).join(numbers(env)).where(lambda record: record[0], Types.LONG()).equal_to(lambda record: record[0])
    )
    pairs = by_key.window(TumblingEventTimeWindows.of(Time.milliseconds(CLOSE)))

    found = read_while_a_taskmanager_is_killed(
        pairs.apply(lambda left, right: (left[1], right[1]), Types.TUPLE([Types.LONG(), Types.LONG()]))
    )

    windows = [range(start, start + CLOSE) for start in range(0, NUM_RECORDS, CLOSE)]
    together = [(left, right) for window in windows for left in window for right in window]
    assert Counter(found) == Counter(pair for pair in together if (pair[0] - pair[1]) % NUM_KEYS == 0)
