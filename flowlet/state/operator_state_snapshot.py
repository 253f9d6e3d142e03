"""What a checkpoint holds of the operator state of one operator: state that belongs to a subtask, and to no key.

Side:       pure.
Invariants: nobody changes a snapshot.
Source:     Flink ``OperatorStateHandle.Mode``, ``RoundRobinOperatorStateRepartitioner``.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from netstack.late import dataclass


class Redistribution(Enum):
    """Who gets what after a restart; the value is the name that users know."""

    SPLIT = "list state"  # with another parallelism the elements of all subtasks are dealt out anew
    UNION = "union list state"  # every subtask gets the elements of all
    BROADCAST = "broadcast state"  # the same everywhere: each subtask gets that of one former subtask


@dataclass(frozen=True, slots=True)
class OperatorStateRows:
    """One state: the elements of a list, or the pairs of a broadcast map."""

    redistribution: Redistribution
    type_name: str
    elements: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshot:
    """All operator state of one operator, by name of the state."""

    states: Mapping[str, OperatorStateRows] = field(default_factory=dict)

    @property
    def has_union(self) -> bool:
        """Whether it has a state of which every subtask needs all parts."""
        return any(each.redistribution is Redistribution.UNION for each in self.states.values())
