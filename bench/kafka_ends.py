"""The Kafka source and sink beside a bare consumer and producer of confluent-kafka, on one broker.

Side:  any.
Rows:  texts of some 20 bytes in one partition; one subtask, in this process.
Forms: source: the messages of the topic as texts, dropped; bare: ``consume(1000)`` and ``decode``.  Sink, at least
       once: from a list in memory; exactly once: checkpoints every second; bare: ``produce`` of each text, ``poll``
       every 1,000, ``flush``.
Broker: the one of the tests (Tansu, in memory), or another with ``--servers``; topics ``flowlet-bench-...`` stay there.
"""

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from bench.jobs.pipeline import Run
from bench.load import ForeignLoad
from bench.report import Result
from bench.rounds import Contender, compare
from flowlet.common import Configuration
from flowlet.common.serialization import SimpleStringSchema
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
)

NUM_ROWS: Final = 300_000
QUICK_ROWS: Final = 2_000
BATCH: Final = 1_000


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench kafka-ends", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--servers", metavar="HOST:PORT", help="a broker in which topics can be made")
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, rows: int = NUM_ROWS, servers: str | None = None) -> list[Result]:
    """Measure both ends, each in turns with the bare client."""
    from tests.kafka.brokers import TestCluster, tansu_broker  # with the clients, which the other cases do not need

    records = [f"the name of row {number}" for number in range(QUICK_ROWS if quick else rows)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
        cluster = TestCluster(servers) if servers else stack.enter_context(tansu_broker(folder))
        full = cluster.new_topic(1, f"flowlet-bench-{uuid.uuid4().hex[:8]}")
        cluster.produce(full, records)
        reads: list[tuple[str, Callable[[], None]]] = [
            ("source", partial(_read_with_flowlet, cluster.servers, full, len(records))),
            ("bare consumer", partial(_read_bare, cluster.servers, full, len(records))),
        ]
        results = compare(
            [Contender(name, partial(_timed, len(records), call), is_peer="bare" in name) for name, call in reads],
            num_runs,
            "rows/s",
        )
        writes: list[tuple[str, Callable[[str], None]]] = [
            ("sink, at least once", partial(_write_with_flowlet, cluster.servers, records, None)),
            ("sink, exactly once", partial(_write_with_flowlet, cluster.servers, records, folder)),
            ("bare producer", partial(_write_bare, cluster.servers, records)),
        ]
        contenders = [
            Contender(name, partial(_written, cluster, len(records), call), is_peer="bare" in name)
            for name, call in writes
        ]
        return [*results, *compare(contenders, num_runs, "rows/s")]


def _timed(num_rows: int, call: Callable[[], None]) -> Run:
    with ForeignLoad() as load:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    return Run(num_rows / seconds, seconds, load.cores)


def _written(cluster: Any, num_rows: int, call: Callable[[str], None]) -> Run:
    topic = cluster.new_topic(1, f"flowlet-bench-{uuid.uuid4().hex[:8]}")
    measured = _timed(num_rows, partial(call, topic))
    count = len(cluster.read(topic))
    if count != num_rows:
        raise WrongOutputError(f"the topic has {count} messages, {num_rows} were written")
    return measured


def _read_with_flowlet(servers: str, topic: str, num_rows: int) -> None:
    ends = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): num_rows})
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).set_bounded(ends)
    source = builder.set_value_only_deserializer(SimpleStringSchema()).build()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka").sink_to(DiscardingSink())
    env.execute("bench")


def _read_bare(servers: str, topic: str, num_rows: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    num_read = 0
    while num_read < num_rows:
        texts = [
            (message.value() or b"").decode() for message in consumer.consume(min(BATCH, num_rows - num_read), 1.0)
        ]
        num_read += len(texts)
    consumer.close()


def _write_with_flowlet(servers: str, records: list[str], folder: Path | None, topic: str) -> None:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    builder = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(serializer)
        .set_transactional_id_prefix(topic)
    )
    configuration = Configuration()
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE if folder is None else DeliveryGuarantee.EXACTLY_ONCE
    if folder is not None:
        configuration.set_string("execution.checkpointing.dir", str(folder / "checkpoints"))
        configuration.set_string("execution.checkpointing.interval", "1 s")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)
    env.from_collection(records, Types.STRING()).sink_to(builder.set_delivery_guarantee(guarantee).build())
    env.execute("bench")


def _write_bare(servers: str, records: list[str], topic: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number, record in enumerate(records):
        while True:
            try:
                producer.produce(topic, record.encode())
                break
            except BufferError:
                producer.poll(0.1)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush()
