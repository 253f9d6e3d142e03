"""What a checkpoint holds of the keyed state of one operator.

Side:       pure.
Invariants: nobody changes a snapshot.  A key is in the key group that ``key_group`` computes for it, so that the groups
            of several subtasks can be put together in another way.
Source:     Flink ``KeyedBackendSerializationProxy``, ``KeyGroupsStateHandle``,
            ``RegisteredKeyValueStateBackendMetaInfo``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, Final

from netstack.late import dataclass

VERSION: Final = 2
"""Of the form below: 2 since types have a ``TypeForm``."""


class StateKind(Enum):
    """What a state keeps for a key; the value is the name that users know."""

    VALUE = "ValueState"
    LIST = "ListState"
    MAP = "MapState"
    REDUCING = "ReducingState"
    AGGREGATING = "AggregatingState"


@dataclass(frozen=True, slots=True)
class TypeForm:
    """A declared type, such that a later flowlet can tell what it was.

    Args:
        name: ``Row``, ``Tuple``, ``Map``, ``List`` or another kind of array, the name of a basic type, or the text of
            any other type.
        parts: of the fields, of key and value, or of the element.
        fields: the names of the fields of a row.
    """

    name: str
    parts: "tuple[TypeForm, ...]" = ()
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.parts and not self.fields:
            return self.name
        parts = map("{}: {}".format, self.fields, self.parts) if self.fields else map(str, self.parts)
        return f"{self.name}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class StateDescription:
    """What a restart must declare again.

    Args:
        kind: what is kept for a key.
        type_name: the declared type as text.
        has_ttl: whether each entry is a pair of what the user stored and when it was last used, in milliseconds of
            processing time.
        type_form: the declared type; None: only the same text is the same type.
    """

    kind: StateKind
    type_name: str
    has_ttl: bool = False
    type_form: TypeForm | None = None

    def __str__(self) -> str:
        return f"a {self.kind.value} of type {self.type_name}{' with a time to live' if self.has_ttl else ''}"


@dataclass(frozen=True, slots=True)
class StateRows:
    """The keys of one state in one key group, as the user knows them, and what is kept for each, in lists, tuples or
    arrays.

    A list of the user is a tuple of its elements, a map a tuple of pairs.
    """

    keys: Sequence[Any]
    values: Sequence[Any]


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
    version: int = VERSION
