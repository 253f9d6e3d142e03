"""Programs that read a ``SplitSource``: watermarks per split, idleness per split, alignment of splits, splits on
demand, restarts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import pytest

from flowlet.common import Duration, WatermarkStrategy
from flowlet.datastream import MapFunction, ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import NO_RECORD, DiscardingSink, SplitSource
from flowlet.datastream.data_stream import CloseableIterator
from tests.flowlet.client.jobs import TimeIs, counts, operators_of, ran, released
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

NUM_FAST = 3_000


def may_go_on() -> bool:
    """Whether the test lets the readers go on."""
    return released["splits"].is_set()


@pytest.fixture(autouse=True)
def frequent_watermarks(environment: StreamExecutionEnvironment) -> None:
    environment.get_config().set_auto_watermark_interval(5)


def monotonous() -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(TimeIs(itemgetter(1)))


class FastAndSlow(SplitSource):
    """Pairs of split and time: a split whose records are all there, and one that begins when the test says so."""

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"fast": NUM_FAST, "slow": 100}

    def read_split(self, split: int, num_read: int) -> Iterator[Any]:
        name = "fast" if split == NUM_FAST else "slow"
        for number in range(num_read, split):
            while name == "slow" and not may_go_on():
                yield NO_RECORD
            yield name, number
            counts[name] = number + 1


class LateFinder(ProcessFunction):
    """Counts records at or behind the watermark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._late = runtime_context.get_metrics_group().counter("late")

    def process_element(self, value: tuple[str, int], ctx: ProcessFunction.Context) -> Iterator[tuple[str, int]]:
        if value[1] <= ctx.timer_service().current_watermark():
            self._late.inc()
        yield value


def test_no_record_of_a_slow_split_is_late(environment: StreamExecutionEnvironment) -> None:
    """The fast split was read to its end before the slow one began: the watermark waited for the slow one."""
    pairs = environment.from_source(FastAndSlow(), monotonous(), "splits")
    pairs.rebalance().process(LateFinder()).name("finder").sink_to(DiscardingSink())
    client = environment.execute_async("splits")
    spin_until(lambda: counts["fast"] == NUM_FAST)
    spin_until(lambda: operators_of(client.metrics()).get("finder", {}).get("num_records_in") == NUM_FAST)
    watermark = operators_of(client.metrics())["finder"]["current_input_watermark"]

    released["splits"].set()
    client.get_job_execution_result().result()
    found = operators_of(client.metrics())["finder"]

    assert watermark == -(2**63)
    assert found["num_records_in"] == NUM_FAST + 100
    assert [metric["value"] for metric in found["user_metrics"]] == [0]


class Endless(SplitSource):
    """One split that goes on, one that gives its first record and no other until the test says so."""

    is_bounded = False

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"busy": "busy", "silent": "silent"}

    def read_split(self, split: str, num_read: int) -> Iterator[Any]:
        number = num_read
        while not may_go_on():
            if split == "busy" or not number:
                yield split, number
                number += 1
            yield NO_RECORD


def test_a_split_without_records_becomes_idle_by_itself(environment: StreamExecutionEnvironment) -> None:
    """The watermark follows the other split then."""
    strategy = monotonous().with_idleness(Duration.of_millis(20))
    pairs = environment.from_source(Endless(), strategy, "splits")
    pairs.rebalance().process(LateFinder()).name("finder").sink_to(DiscardingSink())
    client = environment.execute_async("idle split")

    spin_until(lambda: operators_of(client.metrics()).get("finder", {}).get("current_input_watermark", -1) > 3)
    released["splits"].set()
    client.get_job_execution_result().result()


class Uneven(SplitSource):
    """A split that is further ahead with each record, and one that stays behind and sees whether the other one gives
    records.
    """

    is_bounded = False

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"fast": "fast", "slow": "slow"}

    def read_split(self, split: str, num_read: int) -> Iterator[Any]:
        number = num_read
        fast_before = -1
        while not may_go_on():
            if split == "fast":
                counts["fast"] = number
                yield split, number * 1_000
                number += 1
            else:
                is_alone = counts["fast"] == fast_before
                fast_before = counts["fast"]
                counts["alone"] += is_alone
                yield split, 1
            yield NO_RECORD


def test_a_split_that_is_ahead_of_its_group_is_paused(environment: StreamExecutionEnvironment) -> None:
    """A split that is ahead pauses, so that the other one gives records alone, and goes on once that one has ended."""
    strategy = monotonous().with_watermark_alignment("group", Duration.of_seconds(5), Duration.of_millis(10))
    environment.from_source(Uneven(), strategy, "splits").sink_to(DiscardingSink())
    client = environment.execute_async("aligned splits")

    spin_until(lambda: counts["alone"] >= 3)
    released["splits"].set()
    client.get_job_execution_result().result()


class Ranges(SplitSource):
    """Numbers, one split at a time."""

    max_open_splits: int | None = 1

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {f"part {number}": range(number * 2_000, (number + 1) * 2_000) for number in range(5)}

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        counts[f"part {split.start // 2_000} from {num_read}"] += 1
        return iter(split[num_read:])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_every_record_of_every_split_is_read_once(environment: StreamExecutionEnvironment, parallelism: int) -> None:
    environment.set_parallelism(parallelism)

    found = ran(environment.from_source(Ranges(), WatermarkStrategy.no_watermarks(), "ranges"))

    assert sorted(found) == list(range(10_000))
    assert counts == {f"part {number} from 0": 1 for number in range(5)}


class HeldRanges(Ranges):
    """The last split begins when the test says so."""

    def read_split(self, split: range, num_read: int) -> Iterator[Any]:
        numbers = super().read_split(split, num_read)
        while split.stop == 10_000 and not may_go_on():
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


def test_a_restarted_job_goes_on_in_the_middle_of_its_splits(surviving: StreamExecutionEnvironment) -> None:
    """Splits that a checkpoint has as read are not opened again, and each number counts once."""
    numbers = surviving.from_source(HeldRanges(), WatermarkStrategy.no_watermarks(), "ranges")
    results = numbers.rebalance().map(FailsOnce()).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    # They are handed out once a checkpoint behind them is complete; one more than the first split has, so that it was
    # seen to end.
    found = [next(results) for _ in range(2_001)]
    released["splits"].set()
    found += results

    assert sorted(found) == list(range(10_000))
    opened = Counter(name.partition(" from ")[0] for name in counts.elements())
    assert (opened["part 0"], opened["part 4"]) == (1, 2)
