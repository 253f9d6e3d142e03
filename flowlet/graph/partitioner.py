"""Partitioners: which subtask of the consumer gets a record.

Side:   pure.  A partitioner only says what is wanted; the record writer of the producing task does it.
Source: Flink ``StreamPartitioner`` and its subclasses; the ship strategies are the names that its plans print.
Absent: rescale, shuffle, custom partitioners.
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


Partitioner = Forward | Rebalance | Global | Broadcast | KeyGroups
