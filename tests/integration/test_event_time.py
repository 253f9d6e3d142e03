"""Event time, alignment and latency markers across real TaskManager processes."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration, Duration, WatermarkStrategy
from flowlet.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.records import Chunk
from tests.flowlet.client.jobs import TimeIs
from tests.integration.jobs import results_of
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

WINDOW_MS = 100
NUM_RECORDS = 20_000
NUM_KEYS = 5
SHUFFLED = 64  # records within so many milliseconds are out of order


@pytest.fixture
def env(cluster: Cluster) -> StreamExecutionEnvironment:
    configuration = Configuration.from_dict({"flowlet.jobmanager": cluster.address})
    made = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    made.get_config().set_auto_watermark_interval(5).set_latency_tracking_interval(50)
    return made


class ShuffledReader:
    """Reads every second number, out of order within bounds."""

    def __init__(self, first: int, step: int) -> None:
        ordered = list(range(first, NUM_RECORDS, step))
        self._values = [
            value
            for start in range(0, len(ordered), SHUFFLED // step)
            for value in ordered[start : start + SHUFFLED // step][::-1]
        ]
        self._position = 0

    def poll_chunk(self) -> Chunk | None:
        chunk = self._values[self._position : self._position + 500]
        self._position += 500
        return Chunk(chunk) if chunk else None

    def close(self) -> None:
        pass


class ShuffledSource(Source):
    def create_reader(self, subtask: int, parallelism: int) -> ShuffledReader:
        return ShuffledReader(subtask, parallelism)


class CountWindows(KeyedProcessFunction):
    """How many records each key has in each window; none is late."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.counts: dict[tuple[int, int], int] = {}

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        end = value - value % WINDOW_MS + WINDOW_MS - 1
        if end <= ctx.timer_service().current_watermark():
            raise ValueError(f"{value} is late")
        self.counts[ctx.get_current_key(), end] = self.counts.get((ctx.get_current_key(), end), 0) + 1
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.counts.pop((ctx.get_current_key(), timestamp))


def bounded(milliseconds: int) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds))
    return strategy.with_timestamp_assigner(TimeIs(int))


def test_records_out_of_order_are_counted_in_their_windows(env: StreamExecutionEnvironment) -> None:
    """Every window comes once and complete, though watermarks of two sources reach two subtasks while they read."""
    keyed = env.from_source(ShuffledSource(), bounded(SHUFFLED), "numbers").key_by(lambda value: value % NUM_KEYS)

    found = results_of(keyed.process(CountWindows()))

    assert sorted(found) == [
        (key, end, WINDOW_MS // NUM_KEYS) for key in range(NUM_KEYS) for end in range(99, NUM_RECORDS, WINDOW_MS)
    ]


class PacedReader:
    """A record about each millisecond, so many milliseconds of event time further; without an end."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._next = 0

    def poll_chunk(self) -> Chunk:
        time.sleep(0.001)  # not all of the machine: nothing depends on how long this takes
        self._next += self._step
        return Chunk([self._next])

    def close(self) -> None:
        pass


class PacedSource(Source):
    is_bounded = False

    def __init__(self, step: int) -> None:
        self._step = step

    def create_reader(self, subtask: int, parallelism: int) -> PacedReader:
        return PacedReader(self._step)


def test_a_fast_source_waits_for_a_slow_one_and_markers_tell_the_latency(env: StreamExecutionEnvironment) -> None:
    """The fast source is seen to wait, and the sink behind it has a latency."""
    strategy = bounded(0).with_watermark_alignment("group", Duration.of_millis(500), Duration.of_millis(50))
    fast = env.from_source(PacedSource(100), strategy, "fast")
    fast.union(env.from_source(PacedSource(1), strategy, "slow")).rebalance().sink_to(DiscardingSink()).name("end")
    client = env.execute_async("aligned")
    latencies: list[float] = []
    waited: list[str] = []

    def look() -> bool:
        assert not client.get_job_status().result().is_globally_terminal_state()
        found = [each["metrics"] for vertex in client.metrics()["vertices"] for each in vertex["subtasks"]]
        waited.extend(each["waiting_for"] for each in found if "alignment group" in (each["waiting_for"] or ""))
        latencies.extend(
            latency["max"] for each in found for operator in each["operators"] for latency in operator["latencies"]
        )
        return bool(waited and latencies)

    spin_until(look, "a source that waits, and a latency")
    client.cancel().result()
    env.close()

    assert 0 <= latencies[-1] < 1000 * PATIENCE_S
