"""Windows and joins of columns on real processes: over TCP, and after a TaskManager was killed, with as many, more and
fewer subtasks.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.cluster import Cluster
from flowlet.common import Duration, Time
from flowlet.datastream import OutputTag, StreamExecutionEnvironment
from flowlet.datastream.column_stream import ColumnStream
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from tests.integration.jobs import cluster_fixture, results_of
from tests.integration.test_recovery_matrix import BACK_ENDS, checkpoint_after_a_kill, retaining

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]

NUM_BATCHES, BATCH_ROWS, NUM_KEYS = 30, 500, 23
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("ms"))])
PACE_S = 0.1  # of a batch: barriers pass between
SMALL_MS = 1_000


def batch(number: int) -> Any:
    rows = np.arange(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
    keys = pa.array([f"key {row * row % NUM_KEYS}" if row % 7 else None for row in rows.tolist()], pa.string())
    return pa.RecordBatch.from_arrays(
        [keys, pa.array(rows % 101), pa.array(rows * 2).cast(pa.timestamp("ms"))], schema=SCHEMA
    )


def row_of(row: int) -> tuple[str | None, int, int]:
    """Return key, number and time of a row."""
    return f"key {row * row % NUM_KEYS}" if row % 7 else None, row % 101, row * 2


ROWS = [row_of(row) for row in range(NUM_BATCHES * BATCH_ROWS)]


class Batches:
    """Emits all batches from subtask 0, slowly until there is a file; tells by another file where it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, subtask: int, parallelism: int) -> Iterator[Any]:
        (self._folder / f"pid-{os.getpid()}").touch()
        for number in range(NUM_BATCHES if subtask == 0 else 0):
            if not (self._folder / "hurry").exists():
                time.sleep(PACE_S)  # the pace of the data
            yield batch(number)


def expected_windows(size_ms: int) -> dict[tuple[Any, int], list[int]]:
    found = defaultdict(list)
    for key, number, timestamp in ROWS:
        found[key, timestamp // size_ms * size_ms].append(number)
    return found


def milliseconds(moment: Any) -> int:
    return (
        int(moment.timestamp() * 1000)
        if moment.tzinfo
        else int((moment - np.datetime64(0, "ms").astype(object)).total_seconds() * 1000)
    )


@pytest.mark.usefixtures("secret")
def test_windows_and_joins_of_two_task_managers_are_exact(tmp_path: Path) -> None:
    """Windows and joins of two TaskManagers are exact; several jobs are one job, so that one cluster serves them."""
    (tmp_path / "hurry").touch()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    rows = env.from_arrow(Batches(tmp_path), SCHEMA).with_event_time("ts", Duration.of_millis(100))
    late = OutputTag("late")
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(SMALL_MS))
    summed = (
        rows.key_by("k")
        .window(tumbling)
        .side_output_late_data(late)
        .agg(total=("n", "sum"), count="count", top=("n", "max"))
    )
    in_parts = (
        rows.key_by("k").window(tumbling).agg(total=("n", "sum"), first=("n", "first"), count="count", top=("k", "max"))
    )
    counted = rows.window_all(SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1))).agg(count="count")
    sessions = rows.key_by("k").window(EventTimeSessionWindows.with_gap(Time.milliseconds(15))).agg(count="count")
    other = rows.map_batches(double, pa.schema([("key", pa.string()), ("double", pa.int64())]))
    joined = (
        rows.join(other)
        .where("k")
        .equal_to("key")
        .window(TumblingEventTimeWindows.of(Time.milliseconds(40)))
        .select(n=("left", "n"), double=("right", "double"))
    )
    streams = [summed, counted, sessions, joined, summed.get_side_output(late), in_parts]
    named = [stream.map(Named(name)) for name, stream in zip("abcdef", streams, strict=True)]

    found = defaultdict(list)
    for name, row in results_of(named[0].union(*named[1:])):
        found[name].append(row)

    expected = expected_windows(SMALL_MS)
    assert {
        (row["k"], milliseconds(row["window_start"])): (row["total"], row["count"], row["top"]) for row in found["a"]
    } == {window: (sum(numbers), len(numbers), max(numbers)) for window, numbers in expected.items()}
    assert len(found["a"]) == len(expected)
    assert sum(row["count"] for row in found["b"]) == 2 * len(ROWS)
    assert sum(row["count"] for row in found["c"]) == len(ROWS)
    assert len(found["c"]) == num_sessions(15)
    assert Counter((row["k"], row["n"], row["double"]) for row in found["d"]) == expected_pairs(40)
    assert found["e"] == []
    assert {
        (row["k"], milliseconds(row["window_start"])): (row["total"], row["count"], row["first"]) for row in found["f"]
    } == {window: (sum(numbers), len(numbers), numbers[0]) for window, numbers in expected.items()}
    assert all(row["top"] == row["k"] for row in found["f"])
    assert len(found["f"]) == len(expected)


class Named:
    """Puts a name in front of each row."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: Any) -> tuple[str, Any]:
        return self._name, row


def double(given: Any) -> Any:
    doubled = pa.compute.multiply(given.column("n"), 2)
    return pa.RecordBatch.from_arrays([given.column("k"), doubled], names=["key", "double"])


def num_sessions(gap_ms: int) -> int:
    last: dict[Any, int] = {}
    found = 0
    for key, _, timestamp in ROWS:
        found += key not in last or timestamp - last[key] > gap_ms
        last[key] = timestamp
    return found


def expected_pairs(size_ms: int) -> Counter[Any]:
    pairs: Counter[Any] = Counter()
    for (key, _), numbers in expected_windows(size_ms).items():
        pairs.update((key, n, 2 * other) for n in numbers for other in numbers)
    return pairs


cluster = cluster_fixture(4)  # three after one was killed


def program(
    cluster: Cluster, folder: Path, parallelism: int, options: dict[str, str]
) -> tuple[StreamExecutionEnvironment, ColumnStream]:
    env = retaining(cluster, folder, parallelism, options)
    rows = env.from_arrow(Batches(folder), SCHEMA).set_parallelism(1).with_event_time("ts", Duration.of_millis(1_500))
    whole = TumblingEventTimeWindows.of(Time.days(1))
    return env, rows.key_by("k").window(whole).agg(total=("n", "sum"), count="count", last=("n", "last")).uid("windows")


@pytest.mark.long
@pytest.mark.parametrize("options", BACK_ENDS.values(), ids=BACK_ENDS)
def test_windows_are_exact_after_a_kill_with_any_number_of_slots(
    options: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    """Every row counts once in the window that spans the failure."""
    if options:
        pytest.importorskip("rocksdict")
    env, windows = program(cluster, tmp_path, 2, options)
    windows.sink_to(DiscardingSink())
    path = checkpoint_after_a_kill(cluster, tmp_path, env.execute_async("former"))
    (tmp_path / "hurry").touch()
    expected = {
        key: (sum(numbers), len(numbers), numbers[-1]) for (key, _), numbers in expected_windows(24 * 3_600_000).items()
    }

    for parallelism in (2, 3, 1):
        _, windows = program(cluster, tmp_path, parallelism, {**options, "execution.state-recovery.path": path})
        found = results_of(windows)

        assert {row["k"]: (row["total"], row["count"], row["last"]) for row in found} == expected, (
            f"at parallelism {parallelism}"
        )
        assert len(found) == len(expected)
