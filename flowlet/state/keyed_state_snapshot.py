"""What a checkpoint holds of the keyed state of one operator.

Side:       pure.
Invariants: nobody changes a snapshot.  A key is in the key group that ``key_group`` computes for it, so that the groups of several
            subtasks can be put together in another way.
Source:     Flink ``KeyedBackendSerializationProxy``, ``KeyGroupsStateHandle``, ``RegisteredKeyValueStateBackendMetaInfo``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class StateKind(Enum):
    """What a state keeps for a key; the value is the name that users know."""

    VALUE = "ValueState"
    LIST = "ListState"
    MAP = "MapState"
    REDUCING = "ReducingState"
    AGGREGATING = "AggregatingState"


@dataclass(frozen=True, slots=True)
class StateDescription:
    """What a restart must declare again.

    Args:
        kind: what is kept for a key.
        type_name: the declared type as text.
        has_ttl: whether each entry is a pair of what the user stored and when it was last used, in milliseconds of processing time.
    """

    kind: StateKind
    type_name: str
    has_ttl: bool = False

    def __str__(self) -> str:
        return f"a {self.kind.value} of type {self.type_name}"


@dataclass(frozen=True, slots=True)
class StateRows:
    """The keys of one state in one key group, as the user knows them, and what is kept for each.

    A list is a tuple of its elements, a map a tuple of pairs.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class KeyedStateSnapshot:
    """All keyed state of one operator; whoever changes a field of this module raises ``version``.

    Args:
        descriptions: by name of the state.
        max_parallelism: the number of key groups.
        groups: by key group, then by name of the state.
        version: of this format.
    """

    descriptions: Mapping[str, StateDescription]
    max_parallelism: int
    groups: Mapping[int, Mapping[str, StateRows]] = field(default_factory=dict)
    version: int = 1
