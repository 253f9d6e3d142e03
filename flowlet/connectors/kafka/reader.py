"""``KafkaReader``: the partitions of Kafka in the tasks.

``ArrivalWatch``: waits for the first message on a thread of its own, so that a task need not.

Hot path: one call into librdkafka per 1,000 messages, one comprehension per partition and call;
    ``bench/kafka_ends.py``.

Side:       task.
Invariants: the thread touches the consumer only between ``watch`` and the end of its future; the task thread does not
            consume meanwhile.  A watch ends with a message, an error or ``close``.  Its wait has a limit, so ``close``
            takes a quarter of a second at most.  The offset of a partition is behind the last record that was polled,
            not behind fetched ones: so state and records agree.  No call blocks the task: librdkafka fetches on its own
            threads, and an idle reader waits on a future (``ArrivalWatch``).  A partition is over when a record or
            the end of the log is at or behind its stop: the last offsets may belong to markers of transactions, which
            no consumer sees.
Source:     Flink ``SplitFetcher``, ``FutureCompletingBlockingQueue``, for idle times only: while there are messages,
            the task takes them itself, and no thread has to hand them over.  Flink ``KafkaSource``,
            ``KafkaSourceReader``, ``KafkaPartitionSplitReader``.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final
from uuid import uuid4

from flowlet.chain.stream_operator import OperatorContext
from flowlet.common.serialization import ByteArraySchema, DeserializationSchema, SimpleStringSchema
from flowlet.connectors.kafka.split import CLIENT_ID_PREFIX, ClientEvents, kafka_module
from flowlet.connectors.split_reader import SplitReaderBase
from flowlet.errors import FlowletError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS
from flowlet.records import Chunk
from flowlet.splits.split_kinds import KafkaSplit
from netstack.availability import AvailabilityFuture
from netstack.log_lines import LogLines

_SLICE_S: Final = 0.25  # how long close may have to wait; four wakeups a second per idle reader


class ArrivalWatch:
    """Waits for messages of one consumer.

    Threading: task thread.  The messages that the watch's thread found are the task's once the future is done.
    Life cycle: ``watch``, then ``take`` once its future is done, any number of times; ``close``, idempotent.

    Args:
        consume: waits up to so many seconds for messages, and returns them.
        name: of the thread.
    """

    def __init__(self, consume: Callable[[float], Sequence[Any]], name: str) -> None:
        self._consume = consume
        self._watches: SimpleQueue[AvailabilityFuture | None] = SimpleQueue()  # one at most; None: the thread ends
        # Without a lock: these are the thread's from ``watch`` until its future is done, and else the task's.
        self._found: Sequence[Any] = ()
        self._error: Exception | None = None
        self._is_closed = False  # Written by the task thread; a stale read costs one slice.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<ArrivalWatch {self._thread.name!r}{', closed' if self._is_closed else ''}>"

    def watch(self) -> AvailabilityFuture:
        """Begin to wait; the future is done when ``take`` has something to give."""
        future = AvailabilityFuture()
        self._watches.put(future)
        if not self._thread.ident:
            self._thread.start()
        return future

    def take(self) -> Sequence[Any]:
        """The messages that came.  Raises the consumer's error, if there was one."""
        if self._error is not None:
            raise self._error
        found = self._found
        self._found = ()
        return found

    def close(self) -> None:
        """End the thread and wait for it; then the consumer may be closed."""
        self._is_closed = True
        self._watches.put(None)
        if self._thread.ident:
            self._thread.join()  # waits for the slice of the thread; ended by its limit of a quarter of a second

    def _run(self) -> None:
        # waits for the reader to have nothing again; ended by watch() or close()
        while (future := self._watches.get()) is not None:
            while not (self._found or self._error or self._is_closed):
                try:
                    self._found = self._consume(_SLICE_S)
                except Exception as caught:  # noqa: BLE001 - the top of a thread: take() raises it on the task's
                    self._error = caught
            if self._is_closed:
                return
            future.complete()


_log = LogLines(__name__)
_MAX_OPEN_CHECKPOINTS: Final = 100  # whose offsets are kept; older ones, which never completed, are dropped
# A second client error of the kinds that librdkafka recovers from by itself.
_PASSING: Final = (
    *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"),
    *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"),
)


class KafkaReader(SplitReaderBase[KafkaSplit, None, tuple[KafkaSplit, ...]]):
    """Reads all partitions that it is assigned at once.  Threading: task thread.

    Args:
        properties: of librdkafka.
        deserializer: makes records of values.
        commits_offsets: whether the group gets the offsets of complete checkpoints.
    """

    never_waits = True
    pauses_splits = True

    _consumer: Any = None  # from setup on, as the watch; None: closed
    _watch: ArrivalWatch | None = None

    def __init__(
        self,
        properties: Mapping[str, str],
        deserializer: DeserializationSchema,
        *,
        commits_offsets: bool,
        num_readers: int = 1,
    ) -> None:
        super().__init__(num_readers)
        self._kafka = kafka_module()
        self._properties: dict[str, Any] = dict(properties)
        self._events = ClientEvents(properties)
        self._deserializer = deserializer
        self._num_unparsable = deserializer.num_unparsable_records  # of which the counters know
        self._commits_offsets = commits_offsets
        self._open: dict[str, KafkaSplit] = {}  # the open ones, at their present offsets
        self._ended: set[str] = set()
        self._fetched: deque[tuple[str, list[Any]]] = deque()  # messages by partition, not yet polled
        self._arrival: AvailabilityFuture | None = None  # while the watch has the consumer
        self._taken: dict[int, tuple[KafkaSplit, ...]] = {}  # offsets by checkpoint that is under way
        # Ended, and not in a complete checkpoint: the group does not know their ends.
        self._over: dict[str, KafkaSplit] = {}
        # The partition of the last chunk, and the message of each of its records.
        self._given: tuple[str, list[Any]] = "", []

    def __repr__(self) -> str:
        return f"<KafkaReader of {len(self._open)} partitions, {len(self._fetched)} batches fetched, {self._watch!r}>"

    def setup(self, ctx: OperatorContext) -> None:
        """Take the counters, and make the consumer; a user's schema, which may be slow, is left between messages."""
        super().setup(ctx)
        self._values = _values_by(self._deserializer, ctx.interrupts)
        own: dict[str, Any] = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "on_commit": _log_commit,
        }
        properties = self._properties
        prefix = properties.pop(CLIENT_ID_PREFIX, None)
        if prefix is not None:
            own["client.id"] = f"{prefix}-{ctx.subtask}"
        if "group.id" not in properties:
            own["group.id"] = f"flowlet-{uuid4()}"  # librdkafka wants one; without commits the brokers never see it
        self._consumer = self._events.client("Consumer", {**properties, **own})
        name = f"kafka {ctx.subtask + 1}/{ctx.parallelism}"
        self._watch = ArrivalWatch(lambda seconds: self._consumer.consume(1, seconds), name)

    # -- splits

    def start(self, request_splits: Callable[[], None]) -> None:
        """Go on with the partitions of a checkpoint, and ask for more."""
        self._assign()
        super().start(request_splits)

    def add_splits(self, splits: Sequence[KafkaSplit], waiting_bytes: int) -> None:
        """Read these partitions, too; then ask again, because new ones may appear."""
        super().add_splits([split for split in splits if split.split_id not in self._open], waiting_bytes)
        self._assign()
        self.keep_stocked(0)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch no more messages of some partitions; fetched ones still come."""
        self._consumer.pause([self._partition(self._open[each]) for each in pause if each in self._open])
        self._consumer.resume([self._partition(self._open[each]) for each in resume if each in self._open])

    def _assign(self) -> None:
        to_read = [split for split, _ in self._splits if split.stop is None or split.offset < split.stop]
        self._splits.clear()
        self._open |= {split.split_id: split for split in to_read}
        if to_read:
            self._consumer.incremental_assign([self._partition(split) for split in to_read])
            self.wait.end()
        self._open_splits.add(split.split_id for split in to_read)

    def _partition(self, split: KafkaSplit) -> Any:
        return self._kafka.TopicPartition(split.topic, split.partition, split.offset)

    # -- records

    def available_future(self) -> AvailabilityFuture:
        """A future that is done when a message has come, or when there are partitions."""
        return self.wait.future if self._arrival is None else self._arrival

    def poll_chunk(self) -> Chunk | None:
        """The next records of one partition, 1,000 at most; an empty chunk if there are none just now, None at the end.

        Raises:
            FlowletError: a partition cannot be read, or its offset is not there any more; names topic, partition and
                servers.
            Exception: whatever the schema raised.
        """
        if not self._fetched:
            if not self._open:
                self.wait.reset_unavailable()
                return self.nothing()
            if not self._fetch():
                return Chunk([])
        return self._next_chunk()

    def _fetch(self) -> bool:
        """Get messages; False if there are none, and then the watch waits for some."""
        watch = self._watch
        assert watch is not None, "set up"
        take: Callable[[], Sequence[Any]] = partial(self._consumer.consume, MAX_CHUNK_RECORDS, 0)
        if self._arrival is not None:
            if not self._arrival.is_done:
                return False
            self._arrival = None
            take = watch.take
        try:
            messages = take()
        except (self._kafka.KafkaException, RuntimeError) as error:
            raise self._events.failure("the messages", error) from error
        self._events.check_refusal()
        by_split: dict[str, list[Any]] = {}
        for message in messages:
            if message.error() is None:
                by_split.setdefault(f"{message.topic()}-{message.partition()}", []).append(message)
            else:
                self._handle_error(message)
        self._fetched.extend((split_id, found) for split_id, found in by_split.items() if split_id in self._open)
        self._end_splits()
        if not self._fetched and self._open and not messages:
            self._arrival = watch.watch()
        return bool(self._fetched)

    def _next_chunk(self) -> Chunk:
        while self._fetched:
            split_id, messages = self._fetched.popleft()
            split = self._open.get(split_id)
            if split is None:
                continue  # it has ended
            if split.stop is not None and messages[-1].offset() + 1 >= split.stop:
                messages = [message for message in messages if message.offset() < split.stop]
                self._ended.add(split_id)
            self.current_split = split_id
            with_value = [message for message in messages if message.value() is not None]
            values = self._values(with_value)
            if len(values) < len(with_value):
                num_done = messages.index(with_value[len(values)])
                self._fetched.appendleft((split_id, messages[num_done:]))
                messages = messages[:num_done]
                with_value = with_value[: len(values)]
            chunk = self._chunk_of(split, with_value, values)
            self.ctx.counters.num_null_records_dropped += len(messages) - len(with_value)
            if messages:
                self._open[split_id] = KafkaSplit(split.topic, split.partition, messages[-1].offset() + 1, split.stop)
            self._end_splits()
            if len(chunk):
                return chunk
        return Chunk([])

    def _chunk_of(self, split: KafkaSplit, with_value: list[Any], values: list[Any]) -> Chunk:
        timestamps = [message.timestamp()[1] for message in with_value]
        self.ctx.counters.num_unparsable_fields_nulled = self._deserializer.num_unparsable_fields
        if None in values:
            num_unparsable = self._deserializer.num_unparsable_records - self._num_unparsable
            self._num_unparsable += num_unparsable
            self.ctx.counters.num_unparsable_records_dropped += num_unparsable
            pairs = [(value, time) for value, time in zip(values, timestamps, strict=True) if value is not None]
            self.ctx.counters.num_schema_records_dropped += len(values) - len(pairs) - num_unparsable
            if self._commits_offsets:
                with_value = [message for message, value in zip(with_value, values, strict=True) if value is not None]
            values = [value for value, _ in pairs]
            timestamps = [time for _, time in pairs]
        if self._commits_offsets:
            self._given = split.split_id, with_value
        return Chunk(values, None if timestamps and min(timestamps) < 0 else timestamps)

    def _end_splits(self) -> None:
        """Release partitions that have ended and have no message that waits to be polled."""
        over = self._ended - {split_id for split_id, _ in self._fetched}
        if not over:
            return
        self._ended -= over
        ended = [self._open.pop(each) for each in over if each in self._open]
        if self._commits_offsets:
            self._over |= {split.split_id: split for split in ended}
        if ended:
            self._consumer.incremental_unassign([self._partition(split) for split in ended])
        self._open_splits.remove(split.split_id for split in ended)

    def _handle_error(self, message: Any) -> None:
        error = message.error()
        name = error.name()
        split_id = f"{message.topic()}-{message.partition()}"
        split = self._open.get(split_id)
        if name == "_PARTITION_EOF":
            if split is not None and split.stop is not None and message.offset() >= split.stop:
                self._ended.add(split_id)
            return
        if name == "_AUTO_OFFSET_RESET":
            offset = "its offset" if split is None else f"offset {split.offset}"
            raise FlowletError(
                f"Kafka at {self._events.servers}: partition {split_id} does not have {offset} any more, or not yet: "
                f"{error.str()}; to go on "
                "elsewhere, and lose records, set the property auto.offset.reset to earliest or latest"
            )
        if name in _PASSING or error.retriable():
            _log.warning("Kafka cannot be read just now, the client tries again", partition=split_id, error=error.str())
            return
        where = "" if message.topic() is None else f" of partition {split_id}"
        raise FlowletError(f"Kafka at {self._events.servers}: the messages{where}: {error.str()}")

    # -- state

    def begun(self) -> list[tuple[KafkaSplit, None]]:
        """The open partitions, at their next offsets."""
        return [(split, None) for split in self._open.values()]

    @staticmethod
    def parts_of(position: tuple[KafkaSplit, ...]) -> list[tuple[KafkaSplit, None]]:
        """The partitions."""
        return [(split, None) for split in position]

    @staticmethod
    def position_of(parts: Sequence[tuple[KafkaSplit, None]]) -> tuple[KafkaSplit, ...]:
        """The partitions."""
        return tuple(split for split, _ in parts)

    def position_taken(self, checkpoint_id: int, num_waiting: int = 0) -> None:
        """Keep the offsets until the checkpoint is complete; the group does not get those of records that wait."""
        if self._commits_offsets:
            self._taken[checkpoint_id] = self._processed((*self._open.values(), *self._over.values()), num_waiting)
            for old in sorted(self._taken)[:-_MAX_OPEN_CHECKPOINTS]:
                del self._taken[old]

    def _processed(self, splits: tuple[KafkaSplit, ...], num_waiting: int) -> tuple[KafkaSplit, ...]:
        """The partitions at their first unprocessed messages; only the partition that was read last can have some."""
        if not num_waiting:
            return splits
        split_id, messages = self._given
        if num_waiting > len(messages):
            return ()  # they were restored: the group has its offsets of when they were read
        offset = messages[-num_waiting].offset()
        return tuple(
            KafkaSplit(each.topic, each.partition, offset, each.stop) if each.split_id == split_id else each
            for each in splits
        )

    def position_kept(self, checkpoint_id: int) -> None:
        """Commit the checkpoint's offsets to the group; a failure is only logged, as no state depends on them."""
        splits = self._taken.get(checkpoint_id)
        for old in [each for each in self._taken if each <= checkpoint_id]:
            del self._taken[old]
        if splits:
            for split in splits:
                if self._over.get(split.split_id) == split:
                    del self._over[split.split_id]
            try:
                self._consumer.commit(offsets=[self._partition(split) for split in splits], asynchronous=True)
            except self._kafka.KafkaException as error:
                _log.warning("offsets could not be committed to the group", error=str(error))

    def close(self) -> None:
        """End the thread, then the consumer; idempotent."""
        if self._watch is not None:
            self._watch.close()
        consumer = self._consumer
        self._consumer = None
        if consumer is not None:
            consumer.close()


def _values_by(deserializer: DeserializationSchema, interrupts: Interrupts) -> Callable[[list[Any]], list[Any]]:
    """A function that makes records of messages with a value, up to the first in front of which a mail has come.

    Bytes and plain texts need no call of Python code per message, so all messages are converted at once.
    """
    if type(deserializer) is ByteArraySchema:
        return lambda messages: [message.value() for message in messages]
    if type(deserializer) is SimpleStringSchema:
        charset = deserializer.charset
        return lambda messages: [message.value().decode(charset, "replace") for message in messages]

    def deserialized(messages: list[Any]) -> list[Any]:
        found = []
        for message in messages:
            try:
                found.append(deserializer.deserialize(message.value()))
            except Exception as error:
                error.add_note(f"while message {message.offset()} of {message.topic()}-{message.partition()} was read")
                raise
            if interrupts:
                break
        return found

    return deserialized


def _log_commit(error: Any, _: Any) -> None:
    if error is not None:
        _log.warning("offsets could not be committed to the group", error=str(error))
