"""Work over many splits, partitions, offers and metrics grows as they do: counted in look-ups and comparisons, never in
time.

``bench scale`` measures the time with 5,000 to 20,000 of each.
"""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.common import Duration, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.connectors.kafka.split import KafkaBrokers, KafkaSplitEnumerator
from flowlet.connectors.planned_split_source import PlannedSplitReader
from flowlet.datastream.connectors import SplitSource
from flowlet.metrics.metricbase import MAX_METRICS, MetricRegistry
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.serde.pickles import program_pickle
from flowlet.splits.split_kinds import KafkaTopics, OffsetKind, OffsetRule, PlannedSplit
from flowlet.testing import TestProcessingTimeService
from netstack.offering_network import OfferingHandler
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.wire.messages import PartitionRequest
from netstack.wire.offer_messages import SubpartitionOffer
from tests.flowlet.operators.harness import RecordingOutput, set_up
from tests.netstack.handlers.test_offering_handler import Partition
from tests.netstack.wire.samples import PARTITION, RECEIVER

MAX_GROWTH = 2.3  # when the work doubles
INTERVAL_MS = 200
EARLIEST = OffsetRule(OffsetKind.EARLIEST)


class Counts:
    """How often names were hashed or compared."""

    def __init__(self) -> None:
        self.num_calls = 0


class Name(str):
    """A text that counts its look-ups and its encodings."""

    __slots__ = ("counts",)
    counts: Counts

    def __hash__(self) -> int:
        self.counts.num_calls += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.counts.num_calls += 1
        return super().__eq__(other)

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.counts.num_calls += 1
        return super().encode(encoding, errors)

    def __reduce__(self) -> Any:
        return str, (str(self),)


class OfferId(bytes):
    """Bytes that count comparisons."""

    counts: Counts

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.counts.num_calls += 1
        return super().__eq__(other)


def named(text: str, counts: Counts) -> Name:
    name = Name(text)
    name.counts = counts
    return name


class Numbers(SplitSource):
    """A source with a number of records per split."""

    def __init__(self, num_records: int, max_open_splits: int | None) -> None:
        self.max_open_splits = max_open_splits
        self._num_records = num_records

    def create_splits(self, parallelism: int) -> dict[str, Any]:
        raise AssertionError("the splits are given")

    def read_split(self, split: int, num_read: int) -> Iterator[int]:
        return iter(range(split + num_read, split + self._num_records))


class Itself(TimestampAssigner):
    """A number is its time."""

    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class Given(Source):
    """A source with one reader."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return self.reader


def reading(num_items: int, counts: Counts, source: SplitSource) -> tuple[SourceOperator, TestProcessingTimeService]:
    """Return an aligned source that has been assigned many splits."""
    clock = TestProcessingTimeService()
    reader = PlannedSplitReader(source, 1)
    strategy = (
        WatermarkStrategy.for_monotonous_timestamps()
        .with_timestamp_assigner(Itself())
        .with_watermark_alignment("group", Duration.of_hours(1), Duration.of_millis(INTERVAL_MS))
    )
    operator = SourceOperator(Given(reader), strategy=strategy)
    operator.auto_watermark_interval_ms = INTERVAL_MS
    ctx = OperatorContext("task", 0, 1, 128, "Source", clock=clock, report_watermark=lambda _: None)
    set_up(operator, ctx, RecordingOutput())
    operator.open()
    operator.allow_watermark(10**12)
    reader.start(lambda: None)
    reader.add_splits(
        [PlannedSplit(named(f"split {number}", counts), program_pickle.dumps(number)) for number in range(num_items)], 0
    )
    return operator, clock


def read_splits(num_items: int, counts: Counts) -> None:
    """Read many splits one after the other, with some watermark intervals between."""
    operator, clock = reading(num_items, counts, Numbers(1, max_open_splits=1))
    for number in range(num_items):
        operator.emit_next()
        if number % (num_items // 5) == 0:
            clock.advance(INTERVAL_MS)


def align_splits(num_items: int, counts: Counts) -> None:
    """Let the watermarks of many open splits rise, interval by interval."""
    operator, clock = reading(num_items, counts, Numbers(5_000, max_open_splits=None))
    for _ in range(2):
        for _ in range(num_items):
            operator.emit_next()
        clock.advance(INTERVAL_MS)


class Brokers(KafkaBrokers):
    """Brokers that know many partitions."""

    def __init__(self, num_items: int, counts: Counts) -> None:
        self._partitions = [(named("topic", counts), number) for number in range(num_items)]

    def partitions(self, topics: KafkaTopics) -> list[Any]:
        return self._partitions

    def edges(self, partitions: Sequence[Any], kind: OffsetKind) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def at_time(self, partitions: Sequence[Any], timestamp_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def committed(self, partitions: Sequence[Any]) -> dict[Any, int]:
        return {}

    def close(self) -> None:
        pass


def search_partitions(num_items: int, counts: Counts) -> None:
    """Look for new partitions where all are known."""
    brokers = Brokers(num_items, counts)
    enumerator = KafkaSplitEnumerator(
        KafkaTopics({"bootstrap.servers": "a:1"}, EARLIEST, topics=("topic",)), lambda _: brokers
    )
    enumerator.discover(1)
    enumerator.next_splits(0)
    assert enumerator.find_new() == []


def assign_partitions(num_items: int, counts: Counts) -> None:
    """Give each of as many readers its partition."""
    brokers = Brokers(num_items, counts)
    enumerator = KafkaSplitEnumerator(
        KafkaTopics({"bootstrap.servers": "a:1"}, EARLIEST, topics=("topic",)), lambda _: brokers
    )
    enumerator.discover(num_items)
    assert [len(enumerator.next_splits(reader)) for reader in range(num_items)] == [1] * num_items


class Metadata:
    """The description of a topic, which counts how many partitions were looked at."""

    error = None

    def __init__(self, num_items: int, counts: Counts) -> None:
        self._counts = counts
        self._numbers = range(num_items)

    @property
    def partitions(self) -> range:
        self._counts.num_calls += len(self._numbers)
        return self._numbers


def check_partitions(num_items: int, counts: Counts) -> None:
    """Check that partitions which the program names exist."""
    brokers = object.__new__(KafkaBrokers)
    admin = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics={"topic": Metadata(num_items, counts)}))
    for name, value in {"_servers": "a:1", "_timeout_s": 1, "_admin": admin}.items():  # all that the call needs
        setattr(brokers, name, value)
    topics = KafkaTopics(
        {"bootstrap.servers": "a:1"}, EARLIEST, partitions=tuple(("topic", number) for number in range(num_items))
    )
    assert len(brokers.partitions(topics)) == num_items


def withdraw_offers(num_items: int, counts: Counts) -> None:
    """End many offers of a wide gate, each of which was asked for."""
    handler = OfferingHandler()
    channel = EmbeddedChannel(handler)
    offers = []
    for number in range(num_items):
        offer_id = OfferId(number.to_bytes(16, "big"))
        offer_id.counts = counts
        offers.append(SubpartitionOffer(offer_id, PARTITION, number, num_items, 0, "job", 0, 0, 0, b"T" * 16))
        listener: Any = Partition()
        handler.offer(offers[-1], listener)
        channel.write_inbound(
            PartitionRequest(PARTITION, number, 0, type(RECEIVER)(number.to_bytes(len(RECEIVER), "big")), 2)
        )
    for offer in offers:
        handler.forget(offer)
    assert handler.num_offers == 0


@pytest.mark.parametrize(
    "work", [read_splits, align_splits, search_partitions, assign_partitions, check_partitions, withdraw_offers]
)
def test_twice_the_items_are_at_most_little_more_than_twice_the_work(work: Callable[[int, Counts], None]) -> None:
    """A set that is made again for each item, or a list that is searched for each, makes it four times the work."""
    found = []
    for num_items in (100, 200):
        counts = Counts()
        work(num_items, counts)
        found.append(counts.num_calls)

    assert found[1] <= MAX_GROWTH * max(found[0], num_items), found


def test_metrics_over_the_limit_are_not_kept() -> None:
    """Names made of values of records have no end; metrics over the limit share one metric of their kind."""
    registry = MetricRegistry()
    first = registry.group.counter("first")
    for number in range(MAX_METRICS - 1):
        registry.group.counter(f"kept {number}")

    over = [registry.group.counter(f"user {number}") for number in range(3)]
    meters = [registry.group.meter(f"rate {number}") for number in range(2)]
    registry.group.gauge("asked", lambda: 1)
    over[0].inc(5)

    assert len({id(each) for each in over}) == 1
    assert len({id(each) for each in meters}) == 1
    assert over[2].get_count() == 5
    assert registry.group.counter("first") is first
    assert registry.num_refused == 6
    assert len(registry.values()) == MAX_METRICS
