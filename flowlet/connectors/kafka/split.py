"""Partitions of Kafka: ``KafkaSplitEnumerator`` finds the partitions of a source and assigns each to one reader.

``KafkaBrokers`` asks a cluster for partitions and offsets; ``ClientEvents`` makes clients of librdkafka, also for
readers and writers.

Side:       shared.  ``discover`` and ``find_new`` ask brokers, on a thread of their own, and block, up to the timeout;
            librdkafka has threads of its own, which end with the client.  The rest only decides, on the JobManager's
            loop.
Invariants: a partition is assigned once, also if it is found again; known and waiting partitions are the state.
Rules:      offsets are numbers as soon as a partition is found: the meaning of "latest" does not depend on when its
            reader begins.  A partition that appears later is read from its beginning, for any start.  librdkafka tells
            why it cannot connect by events, not by the error of the call that waits: both are in the message.
Source:     Flink ``KafkaSourceEnumerator``, which assigns as here: the partitions of a topic go round the readers.
            librdkafka ``rd_kafka_metadata``, ``ListOffsets``; Flink ``KafkaSubscriberUtils``,
            ``PartitionOffsetsRetrieverImpl``.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import chain
from typing import Any, Final, assert_never
from zlib import crc32

import msgspec

from flowlet.errors import ConfigError, FlowletError
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.split_kinds import KafkaSplit, KafkaTopics, OffsetKind, OffsetRule

Partition = tuple[str, int]
"""Topic and number."""
CLIENT_ID_PREFIX: Final = "client.id.prefix"  # Flink's; librdkafka does not know it
# These make librdkafka load a library or run a program: a job's settings must not do that in the JobManager.
REFUSED_PROPERTIES: Final = ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd")
_KEPT_EVENTS: Final = 4
_REFUSALS: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "CLUSTER_AUTHORIZATION_FAILED")
_UNKNOWN_TOPIC: Final = "UNKNOWN_TOPIC_OR_PART"


def kafka_module(name: str = "confluent_kafka") -> Any:
    """The module of the client.  Raises ConfigError: it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"Kafka needs the package confluent-kafka ({error}); install flowlet[kafka] where the cluster runs, too"
        ) from error


class ClientEvents:
    """The clients of librdkafka of one owner, and the errors that they reported by events, on the thread that polls.

    Threading: the callback, ``refusal`` and ``failure`` from any thread: a bounded deque, whose methods are atomic.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.servers: str = properties.get("bootstrap.servers", "")
        self._errors: deque[Any] = deque(maxlen=_KEPT_EVENTS)

    def client(self, kind: str, properties: Mapping[str, Any]) -> Any:
        """A client: a ``Producer``, ``Consumer`` or ``AdminClient``.

        Raises ConfigError: a property is unknown or wrong, or must not be set.
        """
        module = kafka_module("confluent_kafka.admin" if kind == "AdminClient" else "confluent_kafka")
        refused = [name for name in REFUSED_PROPERTIES if name in properties]
        if refused:
            raise ConfigError(f"Kafka: the property {refused[0]} loads code and cannot be set in a job")
        try:
            return getattr(module, kind)({"log_level": 2, **properties, "error_cb": self._errors.append})
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("confluent_kafka", "cimpl", "builtins"):
                raise
            raise ConfigError(
                f"Kafka: {_reason(error)}; properties are those of librdkafka, not of Kafka's Java client"
            ) from error

    @property
    def refusal(self) -> str | None:
        """Why a broker refused the client, in the words of an error; None: none did."""
        for error in tuple(self._errors):
            if error.name() in _REFUSALS:
                return f"the brokers refuse the client: {error.str()}"
        return None

    def check_refusal(self) -> None:
        """Raise FlowletError if a broker refused the client."""
        refusal = self.refusal
        if refusal is not None:
            raise FlowletError(f"Kafka at {self.servers}: {refusal}")

    def told(self) -> str:
        """The different reported errors, for the end of a message; empty if there are none."""
        text = "; ".join(dict.fromkeys(str(error.str()) for error in tuple(self._errors)))
        return f" ({text})" if text else ""

    def failure(self, what: str, error: Exception) -> FlowletError:
        """The error for a call that failed, with the errors that the client reported meanwhile."""
        return FlowletError(f"Kafka at {self.servers}: {what}: {self.refusal or _reason(error) + self.told()}")


class KafkaBrokers:
    """One connection to a cluster, for the enumerator.

    Every method may block, up to the timeout of the topics, and raises FlowletError if there is no answer, or a
    refusal; the error names topic and servers.
    """

    def __init__(self, topics: KafkaTopics) -> None:
        self._kafka = kafka_module()
        self._admin_module = kafka_module("confluent_kafka.admin")
        self._servers = topics.servers
        self._timeout_s = topics.timeout_ms / 1000
        self._events = ClientEvents(topics.properties)
        self._properties = {key: value for key, value in topics.properties.items() if key != CLIENT_ID_PREFIX}
        self._admin = self._events.client("AdminClient", self._properties)

    def __repr__(self) -> str:
        return f"<KafkaBrokers at {self._servers}>"

    def partitions(self, topics: KafkaTopics) -> list[Partition]:
        """All partitions, in order.

        Raises:
            FlowletError: no answer, a refusal, or a topic that does not exist.
        """
        # All topics are listed, because a question for one of them would create it, if the brokers allow that.
        with self._asking(f"no list of the partitions of {topics.described} within {self._timeout_s:g} s"):
            found: dict[str, Any] = self._admin.list_topics(timeout=self._timeout_s).topics
        if topics.pattern is not None:
            names = [name for name in sorted(found) if re.fullmatch(topics.pattern, name)]
            return list(chain.from_iterable(self._of_topic(name, found) for name in names))
        chosen = set(topics.partitions)
        existing = {each for name in {topic for topic, _ in chosen} for each in self._of_topic(name, found)}
        for topic, number in topics.partitions:
            if (topic, number) not in existing:
                raise FlowletError(f"Kafka at {self._servers}: topic {topic!r} has no partition {number}")
        return sorted(chosen.union(each for name in topics.topics for each in self._of_topic(name, found)))

    def edges(self, partitions: Sequence[Partition], kind: OffsetKind) -> dict[Partition, int]:
        """The first offsets of partitions, or the offsets behind their last records."""
        spec = self._admin_module.OffsetSpec
        return self._listed(partitions, spec.earliest() if kind is OffsetKind.EARLIEST else spec.latest())

    def at_time(self, partitions: Sequence[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """The offsets of the first records that are not older; where there is none, the end."""
        found = self._listed(partitions, self._admin_module.OffsetSpec.for_timestamp(timestamp_ms))
        late = [each for each, offset in found.items() if offset < 0]
        return found | (self.edges(late, OffsetKind.LATEST) if late else {})

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offsets that the group committed."""
        asked = [self._kafka.TopicPartition(*each) for each in partitions]
        with closing(self._events.client("Consumer", {"group.id": "", **self._properties})) as consumer:
            try:
                found = consumer.committed(asked, timeout=self._timeout_s)
            except self._kafka.KafkaException as error:
                raise self._events.failure("the offsets of the group", error) from error
        for each in found:
            if each.error is not None:
                raise FlowletError(
                    f"Kafka at {self._servers}: the committed offset of {each.topic}-{each.partition}: "
                    f"{each.error.str()}"
                )
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def close(self) -> None:
        """Release the client; its threads end with it."""
        self._admin = None

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Translate the errors of a question to the brokers; ``what``: the answer that could not be had."""
        try:
            yield
        except (self._kafka.KafkaException, TimeoutError) as error:
            self._admin.poll(0)  # gives the events to their callback
            raise self._events.failure(what, error) from error

    def _of_topic(self, name: str, found: Mapping[str, Any]) -> list[Partition]:
        topic = found.get(name)
        if topic is None or not topic.partitions or (topic.error is not None and topic.error.name() == _UNKNOWN_TOPIC):
            raise FlowletError(f"Kafka at {self._servers}: there is no topic {name!r}, or the client may not see it")
        if topic.error is not None:
            raise FlowletError(f"Kafka at {self._servers}: topic {name!r}: {topic.error.str()}")
        return [(name, number) for number in sorted(topic.partitions)]

    def _listed(self, partitions: Sequence[Partition], spec: Any) -> dict[Partition, int]:
        asked = {self._kafka.TopicPartition(*each): spec for each in partitions}
        with self._asking(f"no offsets of {partitions[0][0]} within {self._timeout_s:g} s"):
            answers = self._admin.list_offsets(asked, request_timeout=self._timeout_s).items()
            return {(each.topic, each.partition): found.result(self._timeout_s + 1).offset for each, found in answers}


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else error
    text = getattr(first, "str", None)
    return str(text()) if callable(text) else str(first) or type(error).__name__


# Topic, number, offset and end of a partition.
_Waiting = list[tuple[str, int, int, int | None]]
_EARLIEST: Final = OffsetRule(OffsetKind.EARLIEST)


class KafkaSplitEnumerator(SplitEnumerator):
    """The partitions of one source.

    Args:
        topics: the partitions to look for.
        connect: makes a connection to the brokers for one search.
    """

    name = "the partitions of a Kafka source"
    state_form = msgspec.msgpack.Decoder(tuple[int, list[Partition], _Waiting])  # that were found, and that wait
    discovery_interval_ms: int | None = None

    def __init__(self, topics: KafkaTopics, connect: Callable[[KafkaTopics], KafkaBrokers] = KafkaBrokers) -> None:
        self.split_set = topics
        self.discovery_interval_ms = topics.discovery_interval_ms
        self._connect = connect
        self._known: defaultdict[str, set[int]] = defaultdict(set)  # by topic: a set of numbers is in order
        self._waiting: defaultdict[int, list[KafkaSplit]] = defaultdict(list)  # by the number of their reader

    def __repr__(self) -> str:
        num_waiting = sum(map(len, self._waiting.values()))
        return (
            f"<KafkaSplitEnumerator of {self.split_set.described}: {sum(map(len, self._known.values()))} partitions, "
            f"{num_waiting} wait>"
        )

    def find(self) -> list[KafkaSplit]:
        """Find the partitions, and the offsets to begin with.

        Raises:
            FlowletError: the brokers do not answer, or refuse; a topic is unknown; an offset is not known and has no
                fallback.
        """
        return self._search({}, self.split_set.start)

    def find_new(self) -> list[KafkaSplit]:
        """Find partitions that were not there before; change nothing.

        Raises:
            FlowletError: as ``discover``.
        """
        return self._search(self._known, _EARLIEST)

    def add_found(self, found: Iterable[KafkaSplit]) -> None:
        """Assign these splits, too, unless they are known."""
        for split in found:
            if split.partition not in self._known[split.topic]:
                self._known[split.topic].add(split.partition)
                self._wait(split)

    def next_splits(self, reader: int) -> list[KafkaSplit]:
        """All partitions of the reader with this number."""
        return self._waiting.pop(reader, [])

    def left(self) -> tuple[list[Partition], _Waiting]:
        """The known partitions, and the splits that are not assigned."""
        known = [(topic, number) for topic, numbers in sorted(self._known.items()) for number in sorted(numbers)]
        waiting = chain.from_iterable(self._waiting.values())
        return known, [(each.topic, each.partition, each.offset, each.stop) for each in waiting]

    def take_left(self, known: list[Partition], waiting: _Waiting) -> None:
        """Go on with these partitions."""
        self._known.clear()
        for topic, number in known:
            self._known[topic].add(number)
        self._waiting.clear()
        for each in waiting:
            self._wait(KafkaSplit(*each))

    def _wait(self, split: KafkaSplit) -> None:
        self._waiting[(crc32(split.topic.encode()) + split.partition) % self._num_readers].append(split)

    def _search(self, known: Mapping[str, Set[int]], start: OffsetRule) -> list[KafkaSplit]:
        with closing(self._connect(self.split_set)) as brokers:
            new = [each for each in brokers.partitions(self.split_set) if each[1] not in known.get(each[0], ())]
            if not new:
                return []
            starts = self._offsets(brokers, new, start)
            stops = None if self.split_set.stop is None else self._offsets(brokers, new, self.split_set.stop)
            return [KafkaSplit(*each, starts[each], None if stops is None else stops[each]) for each in new]

    def _offsets(
        self, brokers: KafkaBrokers, partitions: Sequence[Partition], rule: OffsetRule
    ) -> dict[Partition, int]:
        match rule.kind:
            case OffsetKind.EARLIEST | OffsetKind.LATEST:
                return brokers.edges(partitions, rule.kind)
            case OffsetKind.TIMESTAMP:
                return brokers.at_time(partitions, rule.timestamp_ms)
            case OffsetKind.OFFSETS:
                found = {(topic, number): offset for topic, number, offset in rule.offsets}
            case OffsetKind.COMMITTED:
                found = brokers.committed(partitions)
            case _:
                assert_never(rule.kind)
        missing = [each for each in partitions if each not in found]
        if missing:
            if rule.fallback is None:
                names = ", ".join(f"{topic}-{partition}" for topic, partition in missing[:5])
                raise FlowletError(
                    f"group {self.split_set.properties.get('group.id')!r} has committed no offset for {names} at "
                    f"{self.split_set.servers}; say where "
                    "to begin then: KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)"
                )
            found = found | brokers.edges(missing, rule.fallback)
        return {each: found[each] for each in partitions}
