"""A user's program for the tests of time across processes: ``python event_time_job.py JOB --jobmanager HOST:PORT``."""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from flowlet.common import Configuration, Duration, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.records import Chunk

WINDOW_MS = 100
NUM_RECORDS = 20_000
NUM_KEYS = 5
SHUFFLED = 64  # records within so many milliseconds are out of order


class Stamp(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


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


def key_of(value: int) -> int:
    return value % NUM_KEYS


def bounded(milliseconds: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds)).with_timestamp_assigner(
        Stamp()
    )


def windows(env: StreamExecutionEnvironment) -> None:
    """Prints the number of windows, and the number of windows with a wrong count."""
    counted: Any = (
        env.from_source(ShuffledSource(), bounded(SHUFFLED), "numbers").key_by(key_of).process(CountWindows())
    )
    with counted.execute_and_collect() as results:
        found = sorted(results)
    num_wrong = sum(count != WINDOW_MS // NUM_KEYS for _, _, count in found)
    print("windows", len(found), num_wrong, flush=True)


def aligned(env: StreamExecutionEnvironment) -> None:
    """Prints how often the fast source was seen to wait, and the latency of the sink behind it; until there is one of
    each.
    """
    strategy = bounded(0).with_watermark_alignment("group", Duration.of_millis(500), Duration.of_millis(50))
    fast = env.from_source(PacedSource(100), strategy, "fast")
    fast.union(env.from_source(PacedSource(1), strategy, "slow")).rebalance().sink_to(DiscardingSink()).name("end")
    client = env.execute_async("aligned")
    seen: dict[str, Any] = {}
    while (
        not {"waited", "latency"} <= seen.keys() and not client.get_job_status().result().is_globally_terminal_state()
    ):
        # Each question takes its time; the test ends a program that waits for ever.
        for vertex in client._job.metrics()["vertices"]:
            for subtask in vertex["subtasks"]:
                look(subtask["metrics"], seen)
    client.cancel().result()
    print("waited", seen.get("waited", 0), flush=True)
    print("latency", seen.get("latency"), flush=True)
    env.close()


def look(metrics: dict[str, Any], seen: dict[str, Any]) -> None:
    if "alignment group" in (metrics["waiting_for"] or ""):
        seen["waited"] = seen.get("waited", 0) + 1
    for operator in metrics["operators"]:
        for latency in operator["latencies"]:
            seen["latency"] = latency["max"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["windows", "aligned"])
    parser.add_argument("--jobmanager", required=True)
    options = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({"flowlet.jobmanager": options.jobmanager})
    )
    env.set_parallelism(2)
    env.get_config().set_auto_watermark_interval(5).set_latency_tracking_interval(50)
    {"windows": windows, "aligned": aligned}[options.job](env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
