"""A job on TaskManagers of this process fails behind a checkpoint, and goes on from it."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import CheckpointingMode, CheckpointListener, MapFunction
from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from flowlet.testing.mini_cluster import MiniCluster

NUM_KEYS, END = 7, 3_000
is_complete, has_failed = threading.Event(), threading.Event()  # a checkpoint; a map


class FailsOnce(MapFunction, CheckpointListener):
    """Fails at its first number behind a complete checkpoint."""

    def map(self, value: int) -> int:
        if is_complete.is_set() and not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("the first attempt fails")
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        is_complete.set()


@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE])
def test_a_job_goes_on_from_its_checkpoint_and_every_sum_is_exact(mode: CheckpointingMode, tmp_path: Path) -> None:
    """At least once, records behind a barrier may count twice, because no channel waits for another one."""
    is_complete.clear()
    has_failed.clear()
    options = {"execution.checkpointing.dir": str(tmp_path), "restart-strategy.fixed-delay.delay": "1 ms"}
    with MiniCluster(num_task_managers=2) as cluster:
        env = cluster.environment().enable_checkpointing(10, mode)
        env.configure(Configuration.from_dict(options | {"restart-strategy.type": "fixed-delay"}))
        source = DataGeneratorSource(int, END, RateLimiterStrategy.per_checkpoint(300))
        numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").map(FailsOnce())
        sums = numbers.map(lambda number: (number % NUM_KEYS, number)).key_by(lambda pair: pair[0]).sum(1)

        found = list(sums.execute_and_collect())

    assert has_failed.is_set()
    counts, totals = Counter(key for key, _ in found), dict(sorted(found))
    expected = {key: range(key, END, NUM_KEYS) for key in range(NUM_KEYS)}
    if mode is CheckpointingMode.EXACTLY_ONCE:
        assert counts == {key: len(each) for key, each in expected.items()}
        assert totals == {key: sum(each) for key, each in expected.items()}
    assert all(counts[key] >= len(each) and totals[key] >= sum(each) for key, each in expected.items())
