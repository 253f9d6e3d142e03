"""The forms of one operator's state in a checkpoint, and the share of it that a subtask takes over.

Keyed state has a form that every back end reads, or is in files of RocksDB that checkpoints share; operator state
belongs to a subtask and to no key.  ``RowHolder`` and ``ColumnHolder``: operators that keep their rows by themselves.

Side:       pure.
Invariants: a snapshot, and the files that it names, never change.  A key is in the key group that ``key_group``
            computes for it, so that the groups of several subtasks can be put together in another way.
Source:     Flink ``KeyedBackendSerializationProxy``, ``KeyGroupsStateHandle``,
            ``RegisteredKeyValueStateBackendMetaInfo``, ``IncrementalRemoteKeyedStateHandle``,
            ``OperatorStateHandle.Mode``, ``StateAssignmentOperation``, ``RoundRobinOperatorStateRepartitioner``.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from flowlet.keys.exact_keys import key_group_range
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.columns import Columns

VERSION: Final = 2
"""The version of the form below: 2 since types have a ``TypeForm``."""


class StateKind(Enum):
    """The kinds of keyed state; the value is the name that users know."""

    VALUE = "ValueState"
    LIST = "ListState"
    MAP = "MapState"
    REDUCING = "ReducingState"
    AGGREGATING = "AggregatingState"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class TypeForm:
    """A declared type, in a form that a later flowlet can compare.

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
    """The description of a state, which a restart must declare again.

    Args:
        kind: the kind of state.
        type_name: the declared type as text.
        has_ttl: whether each entry is a pair of the user's value and the time of its last use, in milliseconds of
            processing time.
        type_form: the declared type; None: types are compared by ``type_name`` alone.
    """

    # Compared as a whole: two subtasks that wrote one state differently cannot be put together.
    kind: StateKind
    type_name: str
    has_ttl: bool = False
    type_form: TypeForm | None = None

    def __str__(self) -> str:
        return f"a {self.kind.value} of type {self.type_name}{' with a time to live' if self.has_ttl else ''}"


@dataclass(frozen=True, slots=True)
class StateRows:
    """The keys of one state in one key group, as the user knows them, and the value of each; lists, tuples or arrays.

    A list of the user is a tuple of its elements, a map a tuple of pairs.
    """

    keys: Sequence[Any]
    values: "Sequence[Any] | ColumnRows"

    def converted(self, convert: Callable[[Any], Any]) -> "StateRows":
        """These keys, each with what ``convert`` makes of its value."""
        return StateRows(self.keys, tuple(map(convert, self.values)))


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """The values of ``StateRows`` as columns."""

    columns: "Columns"

    def __len__(self) -> int:
        return self.columns.num_rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.columns.to_list())


AGGREGATES: Final = "_op_state"
"""The name of the state in which ``sum``, ``count``, ``min``, ``max`` and ``reduce`` keep a record for each key."""
AGGREGATES_DESCRIPTION: Final = StateDescription(StateKind.VALUE, "record")

WINDOW_COLUMNS: Final = "window-columns"
"""The name of the state in which windows and joins of columns keep their rows.

Its keys are the keys of ``ColumnBlock``, its values the blocks' contents, and its type says what the operator computes.
"""
_BLOCK_KEY: Final = struct.Struct(">BQQ")
ALL_STARTS: Final = 1 << 63
"""An upper bound of the starts of rows, which are also not below its negative."""


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Rows of one key group and one table of an operator.

    Args:
        group: the key group.
        table: 0: not rows, but one block of facts about the whole group.
        start: the start of the first row.
        number: blocks with higher numbers have newer rows.
        content: bytes, which only the operator understands.
    """

    group: int
    table: int
    start: int
    number: int
    content: bytes

    @property
    def key(self) -> bytes:
        """The block's key within its key group; keys of a table are ordered by start, then by number."""
        # Shifted, so that negative starts come first in the order of bytes, too.
        return _BLOCK_KEY.pack(self.table, self.start + ALL_STARTS, self.number)

    @staticmethod
    def with_key(group: int, key: bytes, content: bytes) -> "ColumnBlock":
        """The block that was stored under this key."""
        table, start, number = _BLOCK_KEY.unpack(key)
        return ColumnBlock(group, table, start - ALL_STARTS, number, content)


def first_block_key(table: int, start: int) -> bytes:
    """A bound between the keys of a table's earlier blocks and of its blocks from this start on; any whole number."""
    # Within the bounds: a time that an operator computes may lie outside.
    return _BLOCK_KEY.pack(table, min(max(start, -ALL_STARTS), ALL_STARTS - 1) + ALL_STARTS, 0)


def rows_of_blocks(blocks: Iterable[ColumnBlock]) -> dict[int, StateRows]:
    """Blocks by key group, as a snapshot has them."""
    found: dict[int, tuple[list[bytes], list[bytes]]] = {}
    for block in blocks:
        keys, contents = found.setdefault(block.group, ([], []))
        keys.append(block.key)
        contents.append(block.content)
    return {group: StateRows(*rows) for group, rows in found.items()}


class RowHolder(ABC):
    """An operator of ours that keeps a value for each key by itself, in the form that its loops need."""

    @abstractmethod
    def held_rows(self) -> tuple[list[Any], Iterable[Any] | ColumnRows]:
        """Exact keys and the value of each: a list of values that may change later, or values that will not."""

    @abstractmethod
    def take_rows(self, keys: list[Any], values: Iterable[Any] | ColumnRows) -> None:
        """Go on with these exact keys and values, which become the holder's own, and with no others."""


class ColumnHolder(ABC):
    """An operator of ours that keeps rows of its keys in columns, in the arrays that its loops need."""

    num_tables: ClassVar[int]  # of rows; their numbers begin with 1
    windows: Any  # the rows, ``WindowTables``; others when the keys have ended

    @abstractmethod
    def held_blocks(self, *, in_order: bool) -> Callable[[], Iterable[ColumnBlock]]:
        """Do the synchronous part of a snapshot; return a callable that makes blocks of all held rows, on any thread.

        ``in_order``: blocks begin where their first rows start, and a block has few rows that start later.
        """

    @abstractmethod
    def take_blocks(self, blocks: list[ColumnBlock], before: int | None = None) -> list[ColumnBlock]:
        """Hold these rows in front of all others; return rows that start at ``before`` or later, as blocks with their
        former numbers.
        """


@dataclass(frozen=True, slots=True)
class KeyedStateSnapshot:
    """All keyed state of one operator; a change of a field of this module needs a higher ``version``.

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


class Redistribution(Enum):
    """The ways in which operator state is shared out after a restart; the value is the name that users know."""

    SPLIT = "list state"  # with another parallelism the elements of all subtasks are dealt out anew
    UNION = "union list state"  # every subtask gets the elements of all
    BROADCAST = "broadcast state"  # equal in all subtasks: each subtask gets the state of one former subtask


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
        """Whether there is a union list, of which every subtask needs all parts."""
        return any(each.redistribution is Redistribution.UNION for each in self.states.values())


INCREMENTAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file below the job's directory of shared files, where its SHA-256 is its name."""

    sha256: bytes
    num_bytes: int


@dataclass(frozen=True, slots=True)
class IncrementalSnapshot:
    """All keyed state of one operator; a change of a field, or of the form of a row, needs a higher ``version``.

    Args:
        descriptions: by name of the state.
        state_ids: by name of the state, the number that its rows begin with.
        max_parallelism: the number of key groups.
        first_key_group: of the subtask.
        end_key_group: the key group after the subtask's last.
        shared: by name within the database, files that other checkpoints have, too.
        private: by name within the database, the content of its other files.
        version: of this format.
    """

    descriptions: Mapping[str, StateDescription]
    state_ids: Mapping[str, int]
    max_parallelism: int
    first_key_group: int
    end_key_group: int
    shared: Mapping[str, SharedFile]
    private: Mapping[str, bytes]
    version: int = INCREMENTAL_VERSION


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateShare:
    """One subtask's share of the state of the former vertex.

    Args:
        subtask: from 0 to ``parallelism`` - 1.
        former_parallelism: the number of subtasks that the operator had.
        finished: the former subtasks that had processed all input, and left no state, if they run again.
    """

    subtask: int
    parallelism: int
    max_parallelism: int
    former_parallelism: int
    finished: frozenset[int] = frozenset()

    @property
    def key_groups(self) -> range:
        """The key groups that the subtask owns now."""
        return key_group_range(self.max_parallelism, self.parallelism, self.subtask)

    @property
    def is_the_same(self) -> bool:
        """Whether the subtask takes over the state of the former one with its number, and no other."""
        # One that had finished has no state to take over.
        return self.former_parallelism == self.parallelism and not self.finished

    def dealt(self, items: Sequence[T]) -> list[T]:
        """The subtask's items, if all are dealt out one by one: each item to exactly one subtask."""
        return list(items[self.subtask :: self.parallelism])
