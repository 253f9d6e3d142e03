"""Kafka sources in jobs of one process, on real clients: their beginnings and ends, partitions that they find later,
and failures.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Types
from flowlet.common.serialization import SimpleStringSchema
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.connectors.kafka.split import KafkaBrokers
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, FileSource, StreamFormat
from flowlet.datastream.connectors.hybrid_source import HybridSource
from flowlet.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)
from flowlet.datastream.formats.csv import CsvRowDeserializationSchema
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.splits.split_kinds import KafkaTopics, OffsetKind, OffsetRule
from tests.kafka.brokers import TestCluster

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")


def reading(cluster: TestCluster, *topics: str) -> KafkaSourceBuilder:
    builder = (
        KafkaSource.builder().set_bootstrap_servers(cluster.servers).set_value_only_deserializer(SimpleStringSchema())
    )
    return builder.set_topics(*topics) if topics else builder


def results(builder: KafkaSourceBuilder, parallelism: int = 1) -> Iterator[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    stream = env.from_source(builder.build(), WatermarkStrategy.for_monotonous_timestamps(), "kafka")
    return iter(stream.execute_and_collect())


def test_a_bounded_source_reads_up_to_the_end_that_was_there_at_its_start(mocked: TestCluster) -> None:
    """Two subtasks read all four partitions of two topics up to the ends at their start."""
    topics = [mocked.new_topic(), mocked.new_topic()]
    for topic in topics:
        mocked.produce(topic, [f"{topic} {number}" for number in range(900)], partitions=4)

    found = list(results(reading(mocked, *topics).set_bounded(KafkaOffsetsInitializer.latest()), 2))

    assert sorted(found) == sorted(f"{topic} {number}" for topic in topics for number in range(900))


def test_messages_that_are_left_out_are_counted_by_their_reason(mocked: TestCluster) -> None:
    """The program reads the counts of its job: of a message without a value, a comment, a line that does not fit, and a
    field that does not.
    """
    topic = mocked.new_topic()
    mocked.produce(topic, ["a,1", None, "# a comment", "b,2,3", "c,x"])
    schema = CsvRowDeserializationSchema.Builder(Types.ROW([Types.STRING(), Types.INT()])).set_allow_comments(True)
    builder = reading(mocked, topic).set_value_only_deserializer(schema.set_ignore_parse_errors(True).build())
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = builder.set_bounded(KafkaOffsetsInitializer.latest()).build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka").sink_to(DiscardingSink())

    client = env.execute_async("counted")
    client.get_job_execution_result().result()
    operator = client.metrics()["vertices"][0]["subtasks"][0]["metrics"]["operators"][0]
    env.close()

    assert {name: count for name, count in operator.items() if name.endswith(("_dropped", "_nulled")) and count} == {
        "num_null_records_dropped": 1,
        "num_schema_records_dropped": 1,
        "num_unparsable_records_dropped": 1,
        "num_unparsable_fields_nulled": 1,
    }
    assert operator["num_records_out"] == 2


def test_offsets_say_what_is_read(tansu: TestCluster) -> None:
    """A source reads one partition from a group's offset, and the other from the beginning, up to given ends."""
    topic = tansu.new_topic(2)
    tansu.produce(topic, map(str, range(20)), partitions=2)
    tansu.commit("reader", topic, [6])
    ends = {KafkaTopicPartition(topic, 0): 9, KafkaTopicPartition(topic, 1): 2}
    start = {KafkaTopicPartition(topic, 0): 6}
    builder = reading(tansu, topic).set_bounded(KafkaOffsetsInitializer.offsets(ends))

    found = list(results(builder.set_starting_offsets(KafkaOffsetsInitializer.offsets(start))))

    assert sorted(map(int, found)) == [1, 3, 12, 14, 16]


def test_a_source_goes_on_when_something_comes_and_finds_new_topics(tansu: TestCluster) -> None:
    """An idle source wakes up: its thread waits for the message, while its task sleeps."""
    first = tansu.new_topic(1)
    tansu.produce(first, ["a"])
    builder = reading(tansu).set_topic_pattern(f"{first}.*").set_property("partition.discovery.interval.ms", "200")
    found = results(builder)
    assert next(found) == "a"

    tansu.produce(first, ["b"])
    assert next(found) == "b"
    tansu.produce(tansu.new_topic(1, f"{first}-more"), ["c"])

    assert next(found) == "c"
    found.close()  # type: ignore[attr-defined]  # a CloseableIterator: cancels the job


def test_after_the_files_of_a_hybrid_source_come_the_messages_and_those_that_are_written_later(
    mocked: TestCluster, tmp_path: Path
) -> None:
    """Messages follow the files of a hybrid source; one of two subtasks has neither a file nor a partition, and
    waits.
    """
    topic = mocked.new_topic()
    mocked.produce(topic, ["c", "d"])
    (tmp_path / "lines").write_text("a\nb\n")
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "lines")).build()
    messages = reading(mocked).set_partitions({KafkaTopicPartition(topic, 0)}).build()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    source = HybridSource.builder(lines).add_source(messages).build()

    found = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "both").execute_and_collect()

    assert isinstance(found, CloseableIterator)
    assert sorted(next(found) for _ in range(4)) == ["a", "b", "c", "d"]
    mocked.produce(topic, ["e"])
    assert next(found) == "e"
    found.close()


def test_an_offset_that_is_not_there_fails_and_says_so(mocked: TestCluster) -> None:
    topic = mocked.new_topic()
    mocked.produce(topic, ["a"])
    start = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): 5})
    builder = reading(mocked).set_partitions({KafkaTopicPartition(topic, 0)}).set_starting_offsets(start)

    with pytest.raises(JobExecutionError, match=rf"partition {topic}-0 does not have offset 5 any more, or not yet"):
        list(results(builder))


def test_an_offset_that_is_not_there_is_replaced_if_the_program_says_so(mocked: TestCluster) -> None:
    topic = mocked.new_topic()
    mocked.produce(topic, ["a", "b"])
    partition = KafkaTopicPartition(topic, 0)
    builder = reading(mocked).set_partitions({partition}).set_property("auto.offset.reset", "earliest")
    builder.set_starting_offsets(KafkaOffsetsInitializer.offsets({partition: 50}))

    found = results(builder.set_unbounded(KafkaOffsetsInitializer.offsets({partition: 60})))

    assert [next(found), next(found)] == ["a", "b"]
    found.close()  # type: ignore[attr-defined]  # a CloseableIterator: cancels the job


def test_a_topic_that_does_not_exist_is_named(tansu: TestCluster) -> None:
    with pytest.raises(
        JobExecutionError, match=rf"Kafka at {tansu.servers}: there is no topic 'nothing', or the client may not see it"
    ):
        list(results(reading(tansu, "nothing").set_bounded(KafkaOffsetsInitializer.latest())))


def test_a_partition_that_does_not_exist_is_named(tansu: TestCluster) -> None:
    topic = tansu.new_topic(1)

    with pytest.raises(JobExecutionError, match=f"topic '{topic}' has no partition 7"):
        list(results(reading(tansu).set_partitions({KafkaTopicPartition(topic, 7)})))


def test_no_broker_within_the_time_fails_with_the_address() -> None:
    builder = reading(TestCluster("127.0.0.1:1"), "t").set_property("default.api.timeout.ms", "300")

    with pytest.raises(
        JobExecutionError, match=r"Kafka at 127.0.0.1:1: no list of the partitions of t within 0.3 s: .*refused"
    ):
        list(results(builder))


def test_a_property_that_does_not_exist_is_named(tansu: TestCluster) -> None:
    builder = reading(tansu, "t").set_property("request.timeout.seconds", "5")

    with pytest.raises(
        JobExecutionError,
        match=r'No such configuration property: "request.timeout.seconds"; properties are those of libr',
    ):
        list(results(builder))


def test_a_property_that_loads_code_is_refused() -> None:
    topics = KafkaTopics(
        {"bootstrap.servers": "a:1", "plugin.library.paths": "/tmp/evil.so"}, OffsetRule(OffsetKind.EARLIEST), ("t",)
    )

    with pytest.raises(FlowletError, match=r"plugin.library.paths loads code and cannot be set in a job"):
        KafkaBrokers(topics)


def test_brokers_tell_offsets(mocked: TestCluster, tansu: TestCluster) -> None:
    """Brokers tell a group's committed offset and both ends; where no record is late enough, the end."""
    topic, other = mocked.new_topic(), tansu.new_topic(2)
    mocked.produce(topic, map(str, range(8)), partitions=4)
    tansu.produce(other, map(str, range(8)), partitions=2)
    tansu.commit("g", other, [3])
    mock = KafkaBrokers(KafkaTopics({"bootstrap.servers": mocked.servers}, OffsetRule(OffsetKind.EARLIEST)))
    real = KafkaBrokers(
        KafkaTopics({"bootstrap.servers": tansu.servers, "group.id": "g"}, OffsetRule(OffsetKind.EARLIEST))
    )
    partitions = [(topic, number) for number in range(4)]

    assert mock.edges(partitions, OffsetKind.EARLIEST) == dict.fromkeys(partitions, 0)
    assert mock.edges(partitions, OffsetKind.LATEST) == dict.fromkeys(partitions, 2)
    assert mock.at_time(partitions, 10**15) == dict.fromkeys(partitions, 2)
    assert real.committed([(other, 0), (other, 1)]) == {(other, 0): 3}
    mock.close()
    real.close()
