"""``KafkaWriter``: sends records at once, and waits for all of them before a checkpoint.

Hot path: one call into librdkafka per record; ``bench/kafka_ends.py``.

``KafkaTarget``: one transaction of Kafka per batch of messages that waited in a checkpoint, with its marker.

The marker of a writer is an offset that the transaction commits for the group ``<prefix>-<writer>``, which no consumer
ever joins.

Side:       task.
Invariants: the first failed delivery fails the task: no record that a checkpoint counts as written is missing.  A
            writer's transactions have an id of their own, ``<prefix>-<writer>``.  Its marker is read only after
            ``init_transactions``, which ends the transaction of a process that was believed dead; no such process can
            commit afterwards.  So the marker tells whether a transaction happened, and no other process can change
            it.  A call that waits for brokers is made in slices, and a cancelled task ends between two of them.  A
            call about transactions goes on in the background after a timeout, and a repeated call takes it up; a
            question for an offset is asked anew.  ``send_offsets_to_transaction`` alone returns no sooner than its
            request does, after ``socket.timeout.ms`` (60 s) at the latest.
Source:     Flink ``KafkaWriter``.  Kafka KIP-98 (fencing by the epoch of a transactional id), KIP-447; Flink's
            ``KafkaCommitter`` resumes a transaction in another process instead, which librdkafka cannot do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowlet.connectors.kafka.split import ClientEvents, kafka_module
from flowlet.datastream.connectors.base import SinkWriter, SinkWriterContext
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError, WriteAheadTarget
from flowlet.errors import FlowletError
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.connectors.kafka.api import KafkaMessage, KafkaRecordSerializationSchema

# How long one call waits for room or acknowledgements before it looks for a failure or a cancellation; a delivery has a
# limit, message.timeout.ms, which is longer than a cancelled task may take.
SLICE_S: Final = 0.25


class KafkaDelivery:
    """Hands messages to its own producer, and keeps the first failure.

    Callbacks run in ``poll`` and ``flush``, by the task.

    Args:
        properties: of librdkafka.
        check_cancelled: raises if the task is being cancelled: its error ends every wait.
    """

    def __init__(self, properties: Mapping[str, Any], check_cancelled: Callable[[], None]) -> None:
        self.events = ClientEvents(properties)
        self.producer = self.events.client("Producer", properties)
        self._check_cancelled = check_cancelled
        self._failure: FlowletError | None = None

    def send(self, messages: Sequence[KafkaMessage]) -> None:
        """Send messages; waits while the client has no room.

        Raises:
            FlowletError: a message cannot be sent, or an earlier one was not delivered; names topic, partition and
                servers.
        """
        produce = self.producer.produce
        poll = self.producer.poll
        delivered = self._delivered
        for topic, key, value in messages:
            while True:
                try:
                    produce(topic, value, key, on_delivery=delivered)
                except BufferError:
                    poll(SLICE_S)  # the client's queue is full
                    self._check_cancelled()
                    self.check()
                except Exception as error:
                    raise self.events.failure(f"a message for topic {topic}", error) from error
                else:
                    break
        poll(0)
        self.check()

    def wait(self) -> None:
        """Wait until every message is acknowledged; ends with the last one, which has a time limit
        (``message.timeout.ms``).

        Raises:
            FlowletError: a message could not be delivered.
        """
        while self.producer.flush(SLICE_S):
            self._check_cancelled()
            self.check()
        self.check()

    def check(self) -> None:
        """Raise the first failure, if there is one, or a refusal by the brokers."""
        if self._failure is not None:
            raise self._failure
        self.events.check_refusal()

    def close(self) -> None:
        """Drop messages that are on their way, and the producer, whose threads end with it; idempotent.

        After a failure messages are sent again, and at the end of a writer none is left.
        """
        producer = self.producer
        self.producer = None
        if producer is not None:
            producer.purge()
            producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            partition = message.partition()
            where = message.topic() if partition is None or partition < 0 else f"{message.topic()}-{partition}"
            self._failure = FlowletError(
                f"Kafka at {self.events.servers}: a message for {where} was not delivered: {error.str()}"
                f"{self.events.told()}"
            )


class KafkaWriter(KafkaDelivery, SinkWriter[Any]):
    """The writer of one subtask without transactions.

    Args:
        properties: of librdkafka.
        serializer: makes messages.
        check_cancelled: raises if the task is being cancelled.
        flushes: whether a checkpoint waits for acknowledgements; the end of the input always does.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        serializer: KafkaRecordSerializationSchema,
        *,
        check_cancelled: Callable[[], None] = lambda: None,
        flushes: bool,
    ) -> None:
        # Messages keep their order, and a retry by the client writes none twice.
        super().__init__({**properties, "enable.idempotence": True}, check_cancelled)
        self._serializer = serializer
        self._flushes = flushes

    def __repr__(self) -> str:
        return f"<KafkaWriter, {len(self.producer or ())} messages on their way>"

    def write(self, value: Any, context: SinkWriterContext) -> None:
        """Send one record."""
        self.send(self._serializer.messages((value,)))

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        """Send records."""
        self.send(self._serializer.messages(values))

    def flush(self, *, end_of_input: bool) -> None:
        """Wait for all acknowledgements."""
        if self._flushes or end_of_input:
            self.wait()  # waits for acknowledgements; ended by message.timeout.ms, or a cancellation


T = TypeVar("T")

# Of one call, all slices together; then the task tries again after a pause, or the job restarts.
_TIMEOUT_S: Final = 30.0
# A subtask has one writer; after a restart the writers of former subtasks come first, one after the other.
_MAX_CLIENTS: Final = 2


class _Transactions(KafkaDelivery):
    """The transactions of one writer: a producer, and a consumer that knows the group of the markers."""

    def __init__(self, properties: Mapping[str, Any], name: str, check_cancelled: Callable[[], None]) -> None:
        super().__init__({**properties, "transactional.id": name}, check_cancelled)
        own = {"bootstrap.servers", "security.protocol", "client.id"}
        # The consumer gets only the properties about connections: librdkafka would warn of the others.
        connection = {
            key: value
            for key, value in properties.items()
            if key in own or key.startswith(("ssl.", "sasl.", "socket."))
        }
        try:
            self.consumer = self.events.client(
                "Consumer", {**connection, "group.id": name, "enable.auto.commit": False}
            )
        except FlowletError:
            super().close()
            raise

    def close(self) -> None:
        """Close the consumer and the producer."""
        self.consumer.close()
        super().close()


@dataclass(eq=False, repr=False)
class KafkaTarget(WriteAheadTarget):
    """The transactions of the writers whose messages one subtask has.

    Threading: the task thread; calls wait for brokers.

    Args:
        properties: of librdkafka.
        prefix: of the ids of transactions and groups.
        marker_topic: an existing topic, to which the offsets that serve as markers belong.
        check_cancelled: raises if the task is being cancelled.
        timeout_s: of one call, all slices together.
        monotonic: the clock of the timeout.
    """

    _properties: Mapping[str, str]
    _prefix: str
    _marker_topic: str
    _: KW_ONLY
    check_cancelled: Callable[[], None] = lambda: None
    timeout_s: float = _TIMEOUT_S
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._kafka = kafka_module()
        self._properties = dict(self._properties)
        self._clients: dict[str, _Transactions] = {}  # by writer, the one used last at the end

    def __repr__(self) -> str:
        servers = self._properties.get("bootstrap.servers", "")
        return f"<KafkaTarget {self._prefix!r} at {servers}, {len(self._clients)} writers>"

    def committed(self, writer: str) -> int:
        """The number of the writer's last transaction; -1: it had none.

        Raises:
            CommitLaterError: the brokers do not answer.
            FlowletError: they refuse.
        """
        self._drop(writer)
        clients = self._connected(writer)
        marker = self._kafka.TopicPartition(self._marker_topic, 0)
        with self._failures(writer, "the marker of a writer"):
            (found,) = self._in_slices(
                lambda slice_s: clients.consumer.committed([marker], timeout=slice_s), is_question=True
            )
            if found.error is not None:
                raise self._kafka.KafkaException(found.error)
        return max(int(found.offset), -1)

    def commit(self, writer: str, number: int, rows: Sequence[KafkaMessage]) -> None:
        """Send the messages and the marker in one transaction.

        Raises:
            CommitLaterError: it failed for a reason that will pass; whether it happened may be unknown.
            FlowletError: the brokers refuse it.
        """
        clients = self._clients.get(writer)
        if clients is None:  # it was not used for a while
            if self.committed(writer) >= number:
                return
            clients = self._clients[writer]
        with self._failures(writer, f"transaction {number}"):
            clients.producer.begin_transaction()
            clients.send(rows)
            clients.wait()  # waits for acknowledgements; ended by message.timeout.ms, or a cancellation
            marker = self._kafka.TopicPartition(self._marker_topic, 0, number)
            group = clients.consumer.consumer_group_metadata()
            self._in_slices(lambda slice_s: clients.producer.send_offsets_to_transaction([marker], group, slice_s))
            self._in_slices(clients.producer.commit_transaction)
        self._clients[writer] = self._clients.pop(writer)

    def close(self) -> None:
        """Close all clients; transactions that are under way are aborted by their brokers, or by the next process."""
        for writer in list(self._clients):
            self._drop(writer)

    def _connected(self, writer: str) -> _Transactions:
        while len(self._clients) >= _MAX_CLIENTS:
            self._drop(next(iter(self._clients)))
        name = f"{self._prefix}-{writer}"
        clients = self._clients[writer] = _Transactions(self._properties, name, self.check_cancelled)
        with self._failures(writer, "the start of transactions"):
            self._in_slices(clients.producer.init_transactions)
        return clients

    def _in_slices(self, call: Callable[[float], T], *, is_question: bool = False) -> T:
        """Call with short timeouts until there is an answer or ``timeout_s`` is over.

        Raises:
            TaskCancelled: the task is being cancelled; or whatever ``check_cancelled`` raises.
            KafkaException: the call failed, or the time is over.
        """
        slice_s = SLICE_S
        left_s = self.timeout_s
        deadline_s = self.monotonic() + left_s
        while True:
            try:
                return call(min(slice_s, left_s))
            except self._kafka.KafkaException as error:
                left_s = deadline_s - self.monotonic()
                (cause,) = error.args
                can_go_on = cause.name() == "_TIMED_OUT" and (is_question or cause.retriable())
                if not can_go_on or left_s <= 0:
                    raise
            self.check_cancelled()
            if is_question:
                slice_s *= 2  # an answer that takes longer than its slice is lost, so far brokers need longer ones

    def _drop(self, writer: str) -> None:
        clients = self._clients.pop(writer, None)
        if clients is not None:
            clients.close()

    @contextmanager
    def _failures(self, writer: str, what: str) -> Iterator[None]:
        """Turn errors of the client into errors of a target.

        The writer's clients are dropped: the next ones find out whether the transaction happened.
        """
        try:
            yield
        except Exception as error:
            clients = self._clients.get(writer)
            events = ClientEvents(self._properties) if clients is None else clients.events
            self._drop(writer)
            text = str(error)
            is_passing = isinstance(error, FlowletError)
            if isinstance(error, self._kafka.KafkaException):
                text = str(events.failure(what, error))
                (cause,) = error.args
                is_timeout = cause.name() in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN")
                is_passing = is_timeout or cause.retriable() or cause.txn_requires_abort()
            kind = CommitLaterError if is_passing and events.refusal is None else FlowletError
            raise kind(text) from error
