"""Where a Kafka source begins and ends: ``KafkaOffsetsInitializer``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.kafka``.
"""

from collections.abc import Mapping
from dataclasses import dataclass  # not late: programs may ask for the parameters of its __init__
from enum import Enum
from typing import final

from flowlet.common.checks import is_name
from flowlet.errors import JobGraphError
from flowlet.splits.kafka_split import OffsetKind, OffsetRule

__all__ = ["KafkaOffsetResetStrategy", "KafkaOffsetsInitializer", "KafkaTopicPartition"]


@dataclass(frozen=True, slots=True)
class KafkaTopicPartition:
    """One partition of a topic.

    Raises:
        JobGraphError: an argument is not of its kind.
    """

    topic: str
    partition: int

    def __post_init__(self) -> None:
        if not is_name(self.topic) or type(self.partition) is not int or self.partition < 0:
            raise JobGraphError(
                f"a partition of Kafka has a topic and a number from 0 on, got {self.topic!r} and {self.partition!r}"
            )


class KafkaOffsetResetStrategy(Enum):
    """Where to begin in a partition whose offset is not known; ``NONE``: that is an error."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


_FALLBACKS = {
    KafkaOffsetResetStrategy.LATEST: OffsetKind.LATEST,
    KafkaOffsetResetStrategy.EARLIEST: OffsetKind.EARLIEST,
    KafkaOffsetResetStrategy.NONE: None,
}


@final
class KafkaOffsetsInitializer:
    """An offset for each partition; made by one of the static methods."""

    __slots__ = ("rule",)

    def __init__(self, rule: OffsetRule) -> None:
        self.rule = rule

    def __repr__(self) -> str:
        return f"<KafkaOffsetsInitializer {self.rule.kind.value}>"

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> "KafkaOffsetsInitializer":
        """What the consumer group has committed."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.COMMITTED, fallback=_fallback(offset_reset_strategy)))

    @staticmethod
    def timestamp(timestamp: int) -> "KafkaOffsetsInitializer":
        """The first record that is not older than ``timestamp``, in milliseconds since 1970.

        JobGraphError: it is no such number.
        """
        if type(timestamp) is not int or timestamp < 0:
            raise JobGraphError(f"timestamp() needs milliseconds since 1970, got {timestamp!r}")
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.TIMESTAMP, timestamp_ms=timestamp))

    @staticmethod
    def earliest() -> "KafkaOffsetsInitializer":
        """The first record that the broker still has."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.EARLIEST))

    @staticmethod
    def latest() -> "KafkaOffsetsInitializer":
        """The end, as it is when the job starts."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.LATEST))

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> "KafkaOffsetsInitializer":
        """These offsets; other partitions by the strategy.  JobGraphError: one is no offset."""
        for partition, offset in offsets.items():
            if type(partition) is not KafkaTopicPartition or type(offset) is not int or offset < 0:
                raise JobGraphError(
                    f"offsets() needs numbers from 0 on by KafkaTopicPartition, got {offset!r} for {partition!r}"
                )
        listed = tuple((each.topic, each.partition, offset) for each, offset in offsets.items())
        return KafkaOffsetsInitializer(
            OffsetRule(OffsetKind.OFFSETS, offsets=listed, fallback=_fallback(offset_reset_strategy))
        )


def _fallback(strategy: KafkaOffsetResetStrategy) -> OffsetKind | None:
    if not isinstance(strategy, KafkaOffsetResetStrategy):
        raise JobGraphError(f"an offset reset strategy is one of KafkaOffsetResetStrategy, got {strategy!r}")
    return _FALLBACKS[strategy]
