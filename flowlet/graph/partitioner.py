"""Partitioners: which subtask of the consumer gets a record.

Side:       pure.  A partitioner only says what is wanted; the record writer of the producing task does it.
Invariants: a pointwise edge gives every producer and every consumer at least one partner, and ``consumers_of`` and ``producers_of`` name
            the same pairs.
Source:     Flink ``StreamPartitioner`` and its subclasses; the ship strategies are the names that its plans print.
            ``VertexInputInfoComputationUtils`` for who meets whom on a pointwise edge.
Absent:     the adaptive choice among the next channels by their load (Flink 2.x, off by default there).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

# Flink's smallest default number of key groups (KeyGroupRangeAssignment.DEFAULT_LOWER_BOUND_MAX_PARALLELISM).
DEFAULT_MAX_PARALLELISM = 128


@dataclass(frozen=True, slots=True)
class Forward:
    """Subtask i sends everything to subtask i; both sides have the same parallelism."""

    is_pointwise: ClassVar[bool] = True
    ship_strategy: ClassVar[str] = "FORWARD"


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Every subtask sends its records to all subtasks in turn."""

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "REBALANCE"


@dataclass(frozen=True, slots=True)
class Rescale:
    """Every subtask sends its records in turn to those few subtasks that it shares the edge with (``consumers_of``)."""

    is_pointwise: ClassVar[bool] = True
    ship_strategy: ClassVar[str] = "RESCALE"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Each record goes to a subtask drawn at random."""

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "SHUFFLE"


@dataclass(frozen=True, slots=True)
class Global:
    """Everything goes to subtask 0."""

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "GLOBAL"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Everything goes to every subtask."""

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "BROADCAST"


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Records of one key go to the subtask that owns the key's group.

    ``key_selector`` is a callable, or an object with ``get_key(value)``.  ``max_parallelism`` is the number of key groups: the max
    parallelism of the *consumer*.
    """

    key_selector: Any
    max_parallelism: int = DEFAULT_MAX_PARALLELISM

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "HASH"

    @property
    def key_function(self) -> Callable[[Any], Any]:
        """The selector as a plain function from a record to its key."""
        get_key: Callable[[Any], Any] = getattr(self.key_selector, "get_key", self.key_selector)
        return get_key


@dataclass(frozen=True, slots=True)
class Custom:
    """The user says for each key which subtask gets its records.

    ``partition_function`` is called with a key and the number of subtasks and returns one of them, counted from 0; or it is an object with
    ``partition(key, num_partitions)``.  ``selector`` is a callable, or an object with ``get_key(value)``; its keys may be any objects, and
    they make no keyed stream.
    """

    partition_function: Any
    selector: Any

    is_pointwise: ClassVar[bool] = False
    ship_strategy: ClassVar[str] = "CUSTOM"

    @property
    def key_function(self) -> Callable[[Any], Any]:
        """The selector as a plain function from a record to its key."""
        get_key: Callable[[Any], Any] = getattr(self.selector, "get_key", self.selector)
        return get_key

    @property
    def channel_function(self) -> Callable[[Any, int], Any]:
        """The user's choice as a plain function from a key and the number of subtasks to one of them."""
        partition: Callable[[Any, int], Any] = getattr(self.partition_function, "partition", self.partition_function)
        return partition


Partitioner = Forward | Rebalance | Rescale | Shuffle | Global | Broadcast | Custom | KeyGroups


def consumers_of(producer: int, num_producers: int, num_consumers: int) -> range:
    """The subtasks that read what subtask ``producer`` writes on a pointwise edge; the first of them reads subpartition 0, and so on."""
    if num_producers >= num_consumers:
        # The inverse of ``producers_of``: the last consumer whose range starts at or before the producer.
        consumer = ((producer + 1) * num_consumers - 1) // num_producers
        return range(consumer, consumer + 1)
    start, end = (_ceil_div(number * num_consumers, num_producers) for number in (producer, producer + 1))
    return range(start, end)


def producers_of(consumer: int, num_producers: int, num_consumers: int) -> range:
    """The subtasks whose output subtask ``consumer`` reads on a pointwise edge."""
    if num_producers >= num_consumers:
        return range(consumer * num_producers // num_consumers, (consumer + 1) * num_producers // num_consumers)
    producer = consumer * num_producers // num_consumers
    return range(producer, producer + 1)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
