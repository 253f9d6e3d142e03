"""Partitioners: to which subtask of the consumer a record goes.

Side:       pure.  Record writers do the routing.
Invariants: on a pointwise edge every producer and every consumer has at least one partner, and ``consumers_of`` and
            ``producers_of`` agree.
Source:     Flink ``StreamPartitioner`` and its subclasses; ``ship_strategy`` is the name in Flink's plans.
            ``VertexInputInfoComputationUtils`` for the partners on a pointwise edge.
Absent:     the adaptive partitioner, which chooses channels by their load (Flink 2.x, off by default there).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from netstack.late import dataclass

# Flink's smallest default number of key groups (KeyGroupRangeAssignment.DEFAULT_LOWER_BOUND_MAX_PARALLELISM).
DEFAULT_MAX_PARALLELISM = 128
_UPPER_BOUND_MAX_PARALLELISM: Final = 1 << 15


def default_max_parallelism(parallelism: int) -> int:
    """Return the number of key groups for an operator whose user did not choose one: 1.5 times the parallelism, rounded
    up to a power of two.
    """
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), DEFAULT_MAX_PARALLELISM), _UPPER_BOUND_MAX_PARALLELISM)


@dataclass(frozen=True, slots=True)
class _Strategy:
    """The base of all partitioners.

    Partitioners without fields have the methods of its dataclass: two of one class are equal, and a copy or a pickle of
    one names its class only.

    ``is_pointwise``: whether a producer sends to some of the consumers only.
    """

    is_pointwise: ClassVar[bool] = False


class Forward(_Strategy):
    """Subtask i sends everything to subtask i; both sides have equal parallelism."""

    is_pointwise: ClassVar[bool] = True
    ship_strategy: ClassVar[str] = "FORWARD"


class Rebalance(_Strategy):
    """Each subtask sends its records to all subtasks in turn."""

    ship_strategy: ClassVar[str] = "REBALANCE"


class Rescale(_Strategy):
    """Each subtask sends its records in turn to its partners (``consumers_of``)."""

    is_pointwise: ClassVar[bool] = True
    ship_strategy: ClassVar[str] = "RESCALE"


class Shuffle(_Strategy):
    """Each record goes to a random subtask."""

    ship_strategy: ClassVar[str] = "SHUFFLE"


class Global(_Strategy):
    """Everything goes to subtask 0."""

    ship_strategy: ClassVar[str] = "GLOBAL"


class Broadcast(_Strategy):
    """Everything goes to every subtask."""

    ship_strategy: ClassVar[str] = "BROADCAST"


@dataclass(frozen=True, slots=True)
class KeyGroups(_Strategy):
    """All records with one key go to the subtask that owns the key's group.

    ``key_selector`` is a callable, or an object with ``get_key(value)``.  ``max_parallelism``, the number of key
    groups, is that of the *consumer*.
    """

    key_selector: Any
    max_parallelism: int = DEFAULT_MAX_PARALLELISM

    ship_strategy: ClassVar[str] = "HASH"

    @property
    def key_function(self) -> Callable[[Any], Any]:
        """The selector as a function from a record to its key."""
        get_key: Callable[[Any], Any] = getattr(self.key_selector, "get_key", self.key_selector)
        return get_key


@dataclass(frozen=True, slots=True)
class Custom(_Strategy):
    """A function of the user's chooses the subtask for each key.

    ``partition_function`` takes a key and the number of subtasks and returns one of them, counted from 0; or it is an
    object with ``partition(key, num_partitions)``.  ``selector`` is a callable, or an object with ``get_key(value)``.
    Its keys may be any objects; the result is no keyed stream.
    """

    partition_function: Any
    selector: Any

    ship_strategy: ClassVar[str] = "CUSTOM"

    @property
    def key_function(self) -> Callable[[Any], Any]:
        """The selector as a function from a record to its key."""
        get_key: Callable[[Any], Any] = getattr(self.selector, "get_key", self.selector)
        return get_key

    @property
    def channel_function(self) -> Callable[[Any, int], Any]:
        """The user's choice as a function from a key and the number of subtasks to a subtask."""
        partition: Callable[[Any, int], Any] = getattr(self.partition_function, "partition", self.partition_function)
        return partition


Partitioner = Forward | Rebalance | Rescale | Shuffle | Global | Broadcast | Custom | KeyGroups


def consumers_of(producer: int, num_producers: int, num_consumers: int) -> range:
    """Return the subtasks that read subtask ``producer`` on a pointwise edge; the n-th of them reads subpartition n,
    from 0.
    """
    if num_producers >= num_consumers:
        # The inverse of ``producers_of``: the last consumer whose range starts at or before the producer.
        consumer = ((producer + 1) * num_consumers - 1) // num_producers
        return range(consumer, consumer + 1)
    start, end = (_ceil_div(number * num_consumers, num_producers) for number in (producer, producer + 1))
    return range(start, end)


def producers_of(consumer: int, num_producers: int, num_consumers: int) -> range:
    """Return the subtasks that subtask ``consumer`` reads on a pointwise edge."""
    if num_producers >= num_consumers:
        return range(consumer * num_producers // num_consumers, (consumer + 1) * num_producers // num_consumers)
    producer = consumer * num_producers // num_consumers
    return range(producer, producer + 1)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
