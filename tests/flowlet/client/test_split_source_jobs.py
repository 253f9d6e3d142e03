"""Programs that read a ``SplitSource``: watermarks per split, idleness per split, alignment of splits, splits on
demand, restarts.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flowlet.common import Configuration, Duration, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import MapFunction, ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import NO_RECORD, DiscardingSink, SplitSource
from flowlet.datastream.data_stream import CloseableIterator
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

NUM_FAST = 3_000


class Stage:
    """The signals between a test and its readers, which run in this process."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.num_read: dict[str, int] = {}
        self.opened: list[tuple[str, int]] = []


STAGES: dict[str, Stage] = {}


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    STAGES[name] = Stage()
    yield name
    STAGES.pop(name).may_go_on.set()


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")


def environment_of(parallelism: int, options: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment(Configuration.from_dict(options or {}))
    environment.set_parallelism(parallelism)
    environment.get_config().set_auto_watermark_interval(5)
    return environment


class Stamp(TimestampAssigner):
    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        return value[1]


def monotonous() -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamp())


class FastAndSlow(SplitSource):
    """Pairs of split and time: a split whose records are all there, and one that begins when the test says so."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"fast": NUM_FAST, "slow": 100}

    def read_split(self, split: int, num_read: int) -> Iterator[Any]:
        stage = STAGES[self._stage]
        name = "fast" if split == NUM_FAST else "slow"
        for number in range(num_read, split):
            while name == "slow" and not stage.may_go_on.is_set():
                yield NO_RECORD
            yield name, number
            stage.num_read[name] = number + 1


class LateFinder(ProcessFunction):
    """Counts records at or behind the watermark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._late = runtime_context.get_metrics_group().counter("late")

    def process_element(self, value: tuple[str, int], ctx: ProcessFunction.Context) -> Iterator[tuple[str, int]]:
        if value[1] <= ctx.timer_service().current_watermark():
            self._late.inc()
        yield value


def operators(document: dict[str, Any]) -> dict[str, Any]:
    return {
        each["name"]: each
        for vertex in document["vertices"]
        for task in vertex["subtasks"]
        for each in task["metrics"]["operators"]
    }


def test_no_record_of_a_slow_split_is_late(stage: str) -> None:
    """The fast split was read to its end before the slow one began: the watermark waited for the slow one."""
    environment = environment_of(1)
    pairs = environment.from_source(FastAndSlow(stage), monotonous(), "splits")
    pairs.rebalance().process(LateFinder()).name("finder").sink_to(DiscardingSink())
    client = environment.execute_async("splits")
    spin_until(lambda: STAGES[stage].num_read.get("fast") == NUM_FAST)
    spin_until(lambda: operators(client.metrics()).get("finder", {}).get("num_records_in") == NUM_FAST)
    watermark = operators(client.metrics())["finder"]["current_input_watermark"]

    STAGES[stage].may_go_on.set()
    client.get_job_execution_result().result()
    found = operators(client.metrics())["finder"]
    environment.close()

    assert watermark == -(2**63)
    assert found["num_records_in"] == NUM_FAST + 100
    assert [metric["value"] for metric in found["user_metrics"]] == [0]


class Endless(SplitSource):
    """One split that goes on, one that gives its first record and no other until the test says so."""

    is_bounded = False

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"busy": "busy", "silent": "silent"}

    def read_split(self, split: str, num_read: int) -> Iterator[Any]:
        number = num_read
        while not STAGES[self._stage].may_go_on.is_set():
            if split == "busy" or not number:
                yield split, number
                number += 1
            yield NO_RECORD


def test_a_split_without_records_becomes_idle_by_itself(stage: str) -> None:
    """The watermark follows the other split then."""
    environment = environment_of(1)
    strategy = monotonous().with_idleness(Duration.of_millis(20))
    pairs = environment.from_source(Endless(stage), strategy, "splits")
    pairs.rebalance().process(LateFinder()).name("finder").sink_to(DiscardingSink())
    client = environment.execute_async("idle split")

    spin_until(lambda: operators(client.metrics()).get("finder", {}).get("current_input_watermark", -1) > 3)
    STAGES[stage].may_go_on.set()
    client.get_job_execution_result().result()
    environment.close()


class Uneven(SplitSource):
    """A split that is further ahead with each record, and one that stays behind and sees whether the other one gives
    records.
    """

    is_bounded = False

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"fast": "fast", "slow": "slow"}

    def read_split(self, split: str, num_read: int) -> Iterator[Any]:
        stage = STAGES[self._stage]
        number = num_read
        fast_before = -1
        while not stage.may_go_on.is_set():
            if split == "fast":
                stage.num_read["fast"] = number
                yield split, number * 1_000
                number += 1
            else:
                is_alone = stage.num_read.get("fast", 0) == fast_before
                fast_before = stage.num_read.get("fast", 0)
                stage.num_read["alone"] = stage.num_read.get("alone", 0) + is_alone
                yield split, 1
            yield NO_RECORD


def test_a_split_that_is_ahead_of_its_group_is_paused(stage: str) -> None:
    """A split that is ahead pauses, so that the other one gives records alone, and goes on once that one has ended."""
    environment = environment_of(1)
    strategy = monotonous().with_watermark_alignment("group", Duration.of_seconds(5), Duration.of_millis(10))
    environment.from_source(Uneven(stage), strategy, "splits").sink_to(DiscardingSink())
    client = environment.execute_async("aligned splits")

    spin_until(lambda: STAGES[stage].num_read.get("alone", 0) >= 3)
    STAGES[stage].may_go_on.set()
    client.get_job_execution_result().result()
    environment.close()


class Ranges(SplitSource):
    """Numbers, one split at a time."""

    def __init__(self, stage: str, num_splits: int) -> None:
        self.max_open_splits = 1
        self._stage = stage
        self._num_splits = num_splits

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {f"part {number}": range(number * 2_000, (number + 1) * 2_000) for number in range(self._num_splits)}

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        STAGES[self._stage].opened.append((f"part {split.start // 2_000}", num_read))
        return iter(split[num_read:])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_every_record_of_every_split_is_read_once(stage: str, parallelism: int) -> None:
    environment = environment_of(parallelism)

    found = list(
        environment.from_source(Ranges(stage, 5), WatermarkStrategy.no_watermarks(), "ranges").execute_and_collect()
    )
    environment.close()

    assert sorted(found) == list(range(10_000))
    assert sorted(STAGES[stage].opened) == [(f"part {number}", 0) for number in range(5)]


class HeldRanges(Ranges):
    """The last split begins when the test says so."""

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        numbers = super().read_split(split, num_read)
        while split.stop == 10_000 and not STAGES[self._stage].may_go_on.is_set():
            yield NO_RECORD
        yield from numbers


class FailsOnce(MapFunction):
    """Fails once, at the last number."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_first = runtime_context.get_attempt_number() == 0

    def map(self, value: int) -> int:
        if value == 9_999 and self._is_first:
            raise ValueError("once")
        return value


def test_a_restarted_job_goes_on_in_the_middle_of_its_splits(stage: str, tmp_path: Any) -> None:
    """Splits that a checkpoint has as read are not opened again, and each number counts once."""
    environment = environment_of(
        1,
        {
            "execution.checkpointing.dir": f"file://{tmp_path}",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0",
        },
    )
    environment.enable_checkpointing(10)
    numbers = environment.from_source(HeldRanges(stage, 5), WatermarkStrategy.no_watermarks(), "ranges")
    results = numbers.rebalance().map(FailsOnce()).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    # They are handed out once a checkpoint behind them is complete; one more than the first split has, so that it was
    # seen to end.
    found = [next(results) for _ in range(2_001)]
    STAGES[stage].may_go_on.set()
    found += results
    environment.close()

    assert sorted(found) == list(range(10_000))
    names = [name for name, _ in STAGES[stage].opened]
    assert names.count("part 0") == 1
    assert names.count("part 4") == 2
