from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common.serialization import SimpleStringSchema
from flowlet.common.typeinfo import Types
from flowlet.datastream.connectors.kafka import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)
from flowlet.errors import JobGraphError
from flowlet.splits.split_kinds import OffsetKind, OffsetRule


def builder() -> KafkaSourceBuilder:
    return (
        KafkaSource.builder()
        .set_bootstrap_servers("a:1")
        .set_topics("t")
        .set_value_only_deserializer(SimpleStringSchema())
    )


def test_the_defaults_are_those_of_flink_but_for_offsets_that_are_not_there() -> None:
    """A source reads from the beginning, committed records only, and looks for new partitions every five minutes."""
    source = builder().set_group_id("g").build()

    assert source.topics.start == OffsetRule(OffsetKind.EARLIEST)
    assert source.topics.stop is None
    assert source.topics.properties["isolation.level"] == "read_committed"
    assert source.topics.properties["auto.offset.reset"] == "error"
    assert source.topics.discovery_interval_ms == 300_000
    assert (source.is_bounded, source.commits_offsets) == (False, True)
    assert source.type_info == Types.STRING()


def test_a_bounded_source_looks_for_partitions_once() -> None:
    source = builder().set_bounded(KafkaOffsetsInitializer.latest()).build()

    assert source.is_bounded
    assert source.topics.stop == OffsetRule(OffsetKind.LATEST)
    assert source.topics.discovery_interval_ms is None


def test_properties_of_the_connector_are_taken_out() -> None:
    source = (
        builder()
        .set_properties(
            {"partition.discovery.interval.ms": "-1", "commit.offsets.on.checkpoint": "false", "fetch.min.bytes": "7"}
        )
        .set_property("auto.offset.reset", "latest")
        .set_property("default.api.timeout.ms", "1500")
        .set_client_id_prefix("c")
        .set_group_id("g")
        .build()
    )

    assert source.topics.discovery_interval_ms is None
    assert source.topics.timeout_ms == 1_500
    assert not source.commits_offsets
    assert source.topics.properties == {
        "bootstrap.servers": "a:1",
        "group.id": "g",
        "client.id.prefix": "c",
        "fetch.min.bytes": "7",
        "auto.offset.reset": "latest",
        "isolation.level": "read_committed",
    }


def test_offsets_say_where_to_begin() -> None:
    given = KafkaOffsetsInitializer.offsets({KafkaTopicPartition("t", 1): 7})
    group = KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.LATEST)

    assert given.rule == OffsetRule(OffsetKind.OFFSETS, offsets=(("t", 1, 7),), fallback=OffsetKind.EARLIEST)
    assert group.rule == OffsetRule(OffsetKind.COMMITTED, fallback=OffsetKind.LATEST)
    assert KafkaOffsetsInitializer.committed_offsets().rule.fallback is None
    assert KafkaOffsetsInitializer.timestamp(5).rule == OffsetRule(OffsetKind.TIMESTAMP, timestamp_ms=5)


def test_partitions_and_patterns_are_other_ways_to_subscribe() -> None:
    partitions = KafkaSource.builder().set_partitions({KafkaTopicPartition("b", 2), KafkaTopicPartition("a", 0)})
    pattern = KafkaSource.builder().set_topic_pattern("a.*")
    schema = SimpleStringSchema()

    assert partitions.set_bootstrap_servers("a:1").set_value_only_deserializer(schema).build().topics.partitions == (
        ("a", 0),
        ("b", 2),
    )
    assert pattern.set_bootstrap_servers("a:1").set_value_only_deserializer(schema).build().topics.pattern == "a.*"


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: KafkaSource.builder().build(), r"needs brokers: set_bootstrap_servers\('host:port'\)"),
    (
        lambda: KafkaSource.builder().set_bootstrap_servers("a:1").build(),
        r"needs set_topics\(\), set_topic_pattern\(\) or set_partitions\(\)",
    ),
    (
        lambda: KafkaSource.builder().set_bootstrap_servers("a:1").set_topics("t").build(),
        r"needs set_value_only_deserializer\(\)",
    ),
    (lambda: builder().set_topics("u"), "call one of the methods, once"),
    (lambda: KafkaSource.builder().set_topics(), r"set_topics\(\) needs names"),
    (lambda: KafkaSource.builder().set_topic_pattern("("), "needs a regular expression, got '\\('"),
    (lambda: builder().set_property("enable.auto.commit", "true").build(), "sets enable.auto.commit itself"),
    (
        lambda: builder().set_property("auto.offset.reset", "soon").build(),
        "one of earliest, latest and none, got 'soon'",
    ),
    (
        lambda: builder().set_property("partition.discovery.interval.ms", "5 s").build(),
        "a number of milliseconds, got '5 s'",
    ),
    (lambda: builder().set_property("a", 1), "two texts, got 'a' and 1"),  # type: ignore[arg-type]  # the mistake
    (
        lambda: builder().set_starting_offsets(KafkaOffsetsInitializer.committed_offsets()).build(),
        "needs a consumer group",
    ),
    (lambda: builder().set_starting_offsets(5), "needs a KafkaOffsetsInitializer"),  # type: ignore[arg-type]  # the mistake
    (lambda: KafkaOffsetsInitializer.timestamp(-1), "needs milliseconds since 1970, got -1"),
    (lambda: KafkaOffsetsInitializer.offsets({KafkaTopicPartition("t", 0): -1}), "needs numbers from 0 on"),
    (lambda: KafkaTopicPartition("", 0), "a topic and a number from 0 on"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_mistakes_are_named_where_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        make()
