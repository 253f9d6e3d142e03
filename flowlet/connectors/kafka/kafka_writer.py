"""``KafkaWriter``: sends records at once, and waits for all of them before a checkpoint.

Hot path: one call into librdkafka per record; ``bench/kafka_ends.py``.
Side:       task.
Invariants: the first failed delivery fails the task: nothing that a checkpoint counts as written is missing.
Source:     Flink ``KafkaWriter``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flowlet.datastream.connectors.kafka_serialization import KafkaMessage, KafkaRecordSerializationSchema
from flowlet.datastream.connectors.sink_writer import SinkWriter, SinkWriterContext
from flowlet.errors import FlowletError
from flowlet.splits.kafka_brokers import ClientEvents, failure, kafka_client, kafka_module

# How long one call waits for room or acknowledgements before it looks for a failure or a cancellation; a delivery has a
# limit, message.timeout.ms, which is longer than a cancelled task may take.
SLICE_S: Final = 0.25


class KafkaDelivery:
    """Hands messages to a client of librdkafka and keeps the first failure.

    Callbacks run in ``poll`` and ``flush``, by the task.

    ``check_cancelled`` raises if the task is being cancelled: its error ends every wait.
    """

    def __init__(self, producer: Any, servers: str, events: ClientEvents, check_cancelled: Callable[[], None]) -> None:
        self._producer = producer
        self._servers = servers
        self._events = events
        self._check_cancelled = check_cancelled
        self._failure: FlowletError | None = None

    def send(self, messages: Sequence[KafkaMessage]) -> None:
        """Send messages; waits while the client has no room.

        Raises:
            FlowletError: one cannot be sent, or one before could not be delivered; names topic, partition and servers.
        """
        produce, poll, delivered = self._producer.produce, self._producer.poll, self._delivered
        for topic, key, value in messages:
            while True:
                try:
                    produce(topic, value, key, on_delivery=delivered)
                except BufferError:
                    poll(SLICE_S)  # the client's queue is full
                    self._check_cancelled()
                    self.check()
                except Exception as error:
                    raise failure(f"a message for topic {topic}", self._servers, error, self._events) from error
                else:
                    break
        poll(0)
        self.check()

    def wait(self) -> None:
        """Wait until every message is acknowledged; ends with the last one, which has a time limit
        (``message.timeout.ms``).

        Raises:
            FlowletError: one could not be delivered.
        """
        while self._producer.flush(SLICE_S):
            self._check_cancelled()
            self.check()
        self.check()

    def check(self) -> None:
        """Raise the first failure."""
        refusal = self._events.refusal
        if self._failure is None and refusal is not None:
            self._failure = FlowletError(f"Kafka at {self._servers}: the brokers refuse the client: {refusal}")
        if self._failure is not None:
            raise self._failure

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            partition = message.partition()
            where = message.topic() if partition is None or partition < 0 else f"{message.topic()}-{partition}"
            told = self._events.text
            self._failure = FlowletError(
                f"Kafka at {self._servers}: a message for {where} was not delivered: {error.str()}"
                + (f" ({told})" if told else "")
            )


class KafkaWriter(SinkWriter[Any]):
    """The writer of one subtask without transactions.

    Args:
        properties: of librdkafka.
        serializer: makes messages.
        check_cancelled: raises if the task is being cancelled.
        flushes: whether a checkpoint waits for acknowledgements; the end of the input always does.
        create_producer: for tests.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        serializer: KafkaRecordSerializationSchema,
        *,
        check_cancelled: Callable[[], None] = lambda: None,
        flushes: bool,
        create_producer: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        events = ClientEvents()
        make = kafka_module().Producer if create_producer is None else create_producer
        # Messages keep their order, and a retry by the client writes none twice.
        self._producer = kafka_client(make, {**properties, "enable.idempotence": True}, events)
        self._delivery = KafkaDelivery(self._producer, properties.get("bootstrap.servers", ""), events, check_cancelled)
        self._serializer = serializer
        self._flushes = flushes

    def __repr__(self) -> str:
        return f"<KafkaWriter, {0 if self._producer is None else len(self._producer)} messages on their way>"

    def write(self, value: Any, context: SinkWriterContext) -> None:
        """Send one record."""
        self._delivery.send(self._serializer.messages((value,)))

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        """Send records."""
        self._delivery.send(self._serializer.messages(values))

    def flush(self, *, end_of_input: bool) -> None:
        """Wait for all acknowledgements."""
        if self._flushes or end_of_input:
            self._delivery.wait()  # waits for acknowledgements; ended by message.timeout.ms, or a cancellation

    def close(self) -> None:
        """Drop what is still on its way: after a failure it is sent again, and at the end nothing is left."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.poll(0)
