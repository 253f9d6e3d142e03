"""Programs with event time, timers, idleness and alignment, run to their end in this process."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.common import Duration, WatermarkStrategy
from flowlet.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeDomain,
)
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.records import MAX_TIMESTAMP, Chunk
from tests.flowlet.client.jobs import TimeIs, counts, operators_of, ran, released
from tests.waiting import PATIENCE_S, spin_until

WINDOW_MS = 10
NUM_LAST = 50


def is_over() -> bool:
    """Whether the test lets the readers end."""
    return released["over"].is_set()


class Moment:
    """The condition that some milliseconds have passed, so that watermarks come between the records around it."""

    def __init__(self) -> None:
        self._end_s: float | None = None

    def __call__(self) -> bool:
        if self._end_s is None:
            self._end_s = time.monotonic() + 0.005
        return time.monotonic() >= self._end_s


class Pace:
    """A step that goes on for ever, ten milliseconds of event time at a time; when the test is over, it comes so often
    once more.
    """

    def __init__(self) -> None:
        self._next = 0
        self._num_left = NUM_LAST

    def chunk(self) -> Chunk | None:
        time.sleep(0.0005)
        self._next += 10
        self._num_left -= is_over()
        return Chunk([self._next]) if self._num_left >= 0 else None


class Script:
    """Each step is a list of timestamps, or a condition to wait for."""

    def __init__(self, steps: list[list[int] | Callable[[], bool] | Pace]) -> None:
        self._steps = list(steps)

    def poll_chunk(self) -> Chunk | None:
        if not self._steps:
            return None
        step = self._steps[0]
        if isinstance(step, Pace):
            return step.chunk()
        if callable(step) and not step():
            time.sleep(0.001)  # nothing yet: be asked again
            return Chunk([])
        self._steps.pop(0)
        return Chunk([] if callable(step) else step)

    def close(self) -> None:
        pass


class Scripted(Source):
    """Subtask i plays script i."""

    def __init__(self, *scripts: list[Any]) -> None:
        self._scripts = scripts

    def create_reader(self, subtask: int, parallelism: int) -> Script:
        return Script(self._scripts[subtask])


class Windows(KeyedProcessFunction):
    """The records of each ten milliseconds, once event time has passed them; late ones are shouted about."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.windows: dict[int, list[int]] = {}

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        end = value - value % WINDOW_MS + WINDOW_MS - 1
        if end <= ctx.timer_service().current_watermark():
            yield ("late", value)
            return
        self.windows.setdefault(end, []).append(value)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (timestamp, sorted(self.windows.pop(timestamp)), ctx.timer_service().current_watermark() < MAX_TIMESTAMP)


class Alarm(KeyedProcessFunction):
    """One timer of the clock per record."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 5)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        released["over"].set()
        yield ctx.get_current_key(), ctx.time_domain() is TimeDomain.PROCESSING_TIME


class Distant(KeyedProcessFunction):
    """A timer of each domain per record; that of the clock is in the year 2096."""

    def process_element(self, value: int, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(4_000_000_000_000 + value)
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp % 10


class DistantOfBoth(KeyedCoProcessFunction):
    """The same for two inputs."""

    process_element1 = process_element2 = Distant.process_element
    on_timer = Distant.on_timer


class Counted(ProcessFunction):
    """Tells the test how many records passed under a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[int]:
        counts[self._name] += 1
        yield value


def same_key(value: int) -> str:
    return "all"


def bounded(milliseconds: int) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds))
    return strategy.with_timestamp_assigner(TimeIs(int))


@pytest.mark.parametrize("is_behind", [False, True], ids=["in the source", "behind the source"])
def test_records_out_of_order_end_up_in_their_windows(environment: StreamExecutionEnvironment, is_behind: bool) -> None:
    """The bound says that no record is late, even if the watermark comes by the clock."""
    environment.get_config().set_auto_watermark_interval(1)
    values = [value - value % 7 + 6 - value % 7 for value in range(700)]
    source = Scripted([step for start in range(0, 700, 50) for step in (values[start : start + 50], Moment())])
    if is_behind:
        plain = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        numbers = plain.assign_timestamps_and_watermarks(bounded(7))
    else:
        numbers = environment.from_source(source, bounded(7), "numbers")

    results = ran(numbers.key_by(same_key).process(Windows()))

    windows = {timestamp: found for timestamp, found, _ in results}
    assert windows == {end: list(range(end - 9, end + 1)) for end in range(9, 700, 10)}


def test_an_idle_source_lets_the_others_go_on(environment: StreamExecutionEnvironment) -> None:
    """The first subtask's window fires although the second one never sends a record before it is over."""
    environment.set_parallelism(2)
    environment.get_config().set_auto_watermark_interval(5)
    strategy = bounded(0).with_idleness(Duration.of_millis(50))
    numbers = environment.from_source(Scripted([[1, 2], [25], is_over], [is_over]), strategy, "numbers")

    windows: Any = numbers.key_by(same_key).process(Windows())
    with windows.execute_and_collect() as results:
        first = next(results)
        released["over"].set()
        rest = list(results)

    assert first == (9, [1, 2], True)
    assert rest == [(29, [25], False)]


def test_timers_of_the_clock_fire(environment: StreamExecutionEnvironment) -> None:
    """A timer needs no record to fire, so the source may have nothing."""
    numbers = environment.from_source(Scripted([[1], is_over]), WatermarkStrategy.no_watermarks(), "numbers")

    assert ran(numbers.key_by(lambda value: value).process(Alarm())) == [(1, True)]


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("mode", list(RuntimeExecutionMode))
def test_batch_mode_fires_timers_of_the_clock_at_the_end_of_each_key(
    environment: StreamExecutionEnvironment, mode: RuntimeExecutionMode, inputs: int
) -> None:
    """Timers of event time fire first.  In STREAMING mode a job that ends forgets timers of the clock, as in Flink."""
    environment.set_runtime_mode(mode)
    keyed = environment.from_collection([1, 2, 3]).key_by(lambda value: value % 2)
    fired: Any = keyed.process(Distant()) if inputs == 1 else keyed.connect(keyed).process(DistantOfBoth())

    found = ran(fired)

    if mode is RuntimeExecutionMode.STREAMING:
        assert found == [(1, "EVENT_TIME", 1), (0, "EVENT_TIME", 2), (1, "EVENT_TIME", 3)]
    else:
        of_1 = [(1, domain, value) for domain in ("EVENT_TIME", "PROCESSING_TIME") for value in (1, 3)]
        assert found == [(0, "EVENT_TIME", 2), (0, "PROCESSING_TIME", 2), *of_1]  # key by key, in their order


def test_a_fast_source_waits_for_a_slow_one_of_its_group(environment: StreamExecutionEnvironment) -> None:
    """A fast source that waits reads nothing, and goes on when the slow one has ended."""
    environment.get_config().set_auto_watermark_interval(5)
    aligned = bounded(0).with_watermark_alignment("group", Duration.of_millis(100), Duration.of_millis(10))
    fast = environment.from_source(Scripted([Pace()]), aligned, "fast").process(Counted("fast"))
    slow = environment.from_source(Scripted([[1], is_over]), aligned, "slow")
    fast.union(slow.process(Counted("slow"))).sink_to(DiscardingSink())
    client = environment.execute_async("aligned")

    def sources() -> dict[str, Any]:
        document = client.metrics()
        return {vertex["name"].split(" ")[1]: vertex["subtasks"][0]["metrics"] for vertex in document["vertices"][:2]}

    spin_until(lambda: "alignment group" in (sources()["fast"]["waiting_for"] or ""))
    before = counts["fast"]

    assert sources()["fast"]["watermark_alignment_drift_ms"] > 0
    released["over"].set()
    client.get_job_execution_result().result()

    assert counts == {"fast": before + NUM_LAST, "slow": 1}


def test_latency_markers_and_watermarks_are_in_the_job_document(environment: StreamExecutionEnvironment) -> None:
    environment.get_config().set_latency_tracking_interval(5).set_auto_watermark_interval(5)
    numbers = environment.from_source(Scripted([[1, 2], [1_000], is_over]), bounded(10), "numbers")
    numbers.key_by(same_key).process(Windows()).name("windows").sink_to(DiscardingSink())
    client = environment.execute_async("latencies")

    def operators() -> dict[str, Any]:
        return operators_of(client.metrics())

    spin_until(lambda: any(each["latencies"] for each in operators().values()))
    spin_until(lambda: operators()["windows"]["current_output_watermark"] == 989)
    found = operators()
    released["over"].set()
    client.get_job_execution_result().result()

    windows, source = found["windows"], found["Source: numbers"]
    (latency,) = windows["latencies"]
    assert source["operator_id"] in latency["name"]
    assert windows["operator_id"] in latency["name"]
    assert latency["count"] > 0
    assert 0 <= latency["min"] <= latency["p50"] <= latency["max"] < 1_000 * PATIENCE_S
    assert source["current_input_watermarks"] == []
    assert source["current_output_watermark"] == 989
    assert windows["current_input_watermarks"] == [windows["current_input_watermark"]] == [989]
    assert (windows["num_records_in"], windows["num_records_out"]) == (3, 1)
    assert operators()["windows"]["current_output_watermark"] == MAX_TIMESTAMP
