"""Finds the partitions of a Kafka source and assigns each to one reader.

Side:       shared.  ``discover`` and ``find_new`` ask brokers, on a thread of their own; the rest only decides, on the
            JobManager's loop.
Invariants: a partition is assigned once, also if it is found again; the partitions that are known, and those that wait,
            are the state.
Rules:      offsets are numbers as soon as a partition is found: what "latest" means does not depend on when its reader
            begins.  A partition that appears later is read from its beginning, whatever the start is.
Source:     Flink ``KafkaSourceEnumerator``, whose owner of a partition this is, too: the partitions of a topic go round
            the readers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Final, assert_never
from zlib import crc32

import msgspec

from flowlet.errors import FlowletError
from flowlet.splits.enumerator import STATE_VERSION, SplitEnumerator, stored_state
from flowlet.splits.kafka_brokers import KafkaBrokers, Partition
from flowlet.splits.split_kinds import KafkaSplit, KafkaTopics, OffsetKind, OffsetRule

Offsets = Mapping[Partition, int]
# The version; the partitions that were found; those of them that were not assigned, with offset and end.
_State = tuple[int, list[Partition], list[tuple[str, int, int, int | None]]]
_state_decoder: Final = msgspec.msgpack.Decoder(_State)
_EARLIEST: Final = OffsetRule(OffsetKind.EARLIEST)


class KafkaSplitEnumerator(SplitEnumerator):
    """The partitions of one source; see ``SplitEnumerator``.

    Args:
        topics: what to look for.
        connect: makes a connection to the brokers for one search.
    """

    def __init__(self, topics: KafkaTopics, connect: Callable[[KafkaTopics], KafkaBrokers] = KafkaBrokers) -> None:
        self.split_set = topics
        self._connect = connect
        self._num_readers = 1
        self._known: defaultdict[str, set[int]] = defaultdict(set)  # by topic: a set of numbers is in order
        self._waiting: defaultdict[int, list[KafkaSplit]] = defaultdict(list)  # by the number of their reader

    def __repr__(self) -> str:
        num_waiting = sum(map(len, self._waiting.values()))
        return (
            f"<KafkaSplitEnumerator of {self.split_set.described}: {sum(map(len, self._known.values()))} partitions, "
            f"{num_waiting} wait>"
        )

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new partitions; None: never again."""
        return self.split_set.discovery_interval_ms

    def discover(self, num_readers: int) -> None:
        """Find the partitions and where to begin.

        Raises:
            FlowletError: the brokers do not answer, or refuse; a topic is unknown; an offset is not known and has no
                fallback.
        """
        found = self._search({}, self.split_set.start)
        self._num_readers = num_readers
        self.add_found(found)

    def find_new(self) -> list[KafkaSplit]:
        """Partitions that were not there before; changes nothing.

        Raises:
            FlowletError: as ``discover``.
        """
        return self._search(self._known, _EARLIEST)

    def add_found(self, found: Iterable[KafkaSplit]) -> None:
        """Assign these, too, unless they are known."""
        for split in found:
            if split.partition not in self._known[split.topic]:
                self._known[split.topic].add(split.partition)
                self._wait(split)

    def next_splits(self, reader: int) -> list[KafkaSplit]:
        """All partitions of the reader with this number."""
        return self._waiting.pop(reader, [])

    def snapshot(self) -> bytes:
        """The partitions that are known, and those that are not assigned."""
        known = [(topic, number) for topic, numbers in sorted(self._known.items()) for number in sorted(numbers)]
        waiting = [
            (each.topic, each.partition, each.offset, each.stop) for each in chain.from_iterable(self._waiting.values())
        ]
        return msgspec.msgpack.encode((STATE_VERSION, known, waiting))

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        _, known, waiting = stored_state(_state_decoder, state, "the partitions of a Kafka source")
        self._num_readers = num_readers
        self._known.clear()
        for topic, number in known:
            self._known[topic].add(number)
        self._waiting.clear()
        for each in waiting:
            self._wait(KafkaSplit(*each))

    def _wait(self, split: KafkaSplit) -> None:
        self._waiting[(crc32(split.topic.encode()) + split.partition) % self._num_readers].append(split)

    def _search(self, known: Mapping[str, Set[int]], start: OffsetRule) -> list[KafkaSplit]:
        brokers = self._connect(self.split_set)
        try:
            new = [each for each in brokers.partitions(self.split_set) if each[1] not in known.get(each[0], ())]
            if not new:
                return []
            starts = self._offsets(brokers, new, start)
            stops = None if self.split_set.stop is None else self._offsets(brokers, new, self.split_set.stop)
            return [KafkaSplit(*each, starts[each], None if stops is None else stops[each]) for each in new]
        finally:
            brokers.close()

    def _offsets(
        self, brokers: KafkaBrokers, partitions: Sequence[Partition], rule: OffsetRule
    ) -> dict[Partition, int]:
        match rule.kind:
            case OffsetKind.EARLIEST | OffsetKind.LATEST:
                return dict(brokers.edges(partitions, rule.kind))
            case OffsetKind.TIMESTAMP:
                return dict(brokers.at_time(partitions, rule.timestamp_ms))
            case OffsetKind.OFFSETS:
                return self._completed(
                    brokers, partitions, rule, {(topic, number): offset for topic, number, offset in rule.offsets}
                )
            case OffsetKind.COMMITTED:
                return self._completed(brokers, partitions, rule, brokers.committed(partitions))
            case _:
                assert_never(rule.kind)

    def _completed(
        self, brokers: KafkaBrokers, partitions: Sequence[Partition], rule: OffsetRule, known: Offsets
    ) -> dict[Partition, int]:
        """The known offsets, with the fallback of the rule for the others."""
        found = dict(known)
        missing = [each for each in partitions if each not in found]
        if missing and rule.fallback is None:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in missing[:5])
            raise FlowletError(
                f"group {self.split_set.properties.get('group.id')!r} has committed no offset for {names} at "
                f"{self.split_set.servers}; say where "
                "to begin then: KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)"
            )
        if missing:
            assert rule.fallback is not None, "checked above"
            found |= brokers.edges(missing, rule.fallback)
        return {each: found[each] for each in partitions}
