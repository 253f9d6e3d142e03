"""The back ends that keep the state of one operator of one subtask.

``KeyedStateBackend``: declares and restores keyed state, on the heap or in RocksDB.  ``OperatorStateBackend``: operator
state, in lists and dictionaries.  ``SharedFiles``: files of keyed state that several checkpoints of a job use.

Side:       task.
Invariants: one state per name.  Operator state that was restored and not declared again yet stays in every snapshot.
            Every subtask then has the whole of a union list: it stays in the snapshots of the first subtask alone, or
            it would multiply with each restart.  A shared file is named by its SHA-256; under that name it is whole
            and on disk, and the bytes read have the length and the SHA-256 of its handle.
Source:     Flink ``KeyedStateBackend``, ``CheckpointableKeyedStateBackend``, ``CheckpointListener``,
            ``CheckpointStreamFactory``; ``FsCheckpointStorageAccess`` (``shared``), ``RocksDBStateUploader``,
            ``RocksDBStateDownloader``; ``DefaultOperatorStateBackend``, ``PartitionableListState``,
            ``HeapBroadcastState``.
Absent:     time to live of operator state: only keyed state can have it, as in Flink.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from flowlet.columns.column import are_unchanging
from flowlet.common.values.field_values import Convert
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.keys.exact_keys import exact_key
from flowlet.messages.job_messages import StateHandle
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.serde.pickles.record_pickle import loads_record
from flowlet.state.declared_values import DeclaredValues, MapEntry, dumped_rows, map_pairs, stored_pair, thawed_rows
from flowlet.state.heap_states import HeapAggregatingState, HeapListState, HeapReducingState, MapOfEntries
from flowlet.state.state_snapshots import (
    AGGREGATES,
    INCREMENTAL_VERSION,
    VERSION,
    WINDOW_COLUMNS,
    ColumnHolder,
    IncrementalSnapshot,
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    RowHolder,
    SharedFile,
    StateDescription,
    StateKind,
)
from flowlet.state.state_table import StateTable
from flowlet.state.ttl_states import Expiry, TtlListState, TtlMapState, TtlValueState
from flowlet.state.type_compatibility import row_converter, type_form
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.timers.keyed_timer_service import KeyContext
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_columns import CachedColumns
    from flowlet.state.rocksdb.cached_rows import CachedRows


@dataclass(eq=False, slots=True)
class SharedFiles:
    """Files that several checkpoints of a job use.  Threading: any thread; blocking.

    Args:
        storage: of the job.
        former: the storage of the checkpoint that the job starts from; None: it is in ``storage``, too.

    Attributes:
        former_classes: maps the classes in restored files, if another program wrote them; else None.
    """

    _storage: CheckpointStorage
    _former: CheckpointStorage | None = None
    former_classes: RunningClasses | None = None

    def __repr__(self) -> str:
        return f"<SharedFiles of {self._storage!r}>"

    @property
    def are_restored_ones_own(self) -> bool:
        """Whether checkpoints may name the files that were restored; files of another job may be removed."""
        return self._former is None or self._former is self._storage

    def write_shared(self, path: Path) -> SharedFile:
        """Keep a copy of a local file for good.  Raises StorageError."""
        # Whole, as its name must be known before it is written.
        content = path.read_bytes()
        file = SharedFile(hashlib.sha256(content).digest(), len(content))
        self._storage.write_shared(handle_of(file), content)
        return file

    def read_shared(self, file: SharedFile, path: Path) -> None:
        """Copy a shared file into a new local one.  Raises StorageError: it is missing or changed."""
        path.write_bytes((self._former or self._storage).read_state(handle_of(file)))


def handle_of(file: SharedFile) -> StateHandle:
    """The handle under which a shared file is stored."""
    return StateHandle(file.num_bytes, file.sha256, path=f"shared/{file.sha256.hex()}")


_KINDS: Final[Mapping[type[StateDescriptor], StateKind]] = {
    ValueStateDescriptor: StateKind.VALUE,
    ListStateDescriptor: StateKind.LIST,
    MapStateDescriptor: StateKind.MAP,
    ReducingStateDescriptor: StateKind.REDUCING,
    AggregatingStateDescriptor: StateKind.AGGREGATING,
}


def keyed_kind(descriptor: StateDescriptor) -> type[StateDescriptor] | None:
    """The kind of keyed state that a descriptor describes; None: it is no such descriptor."""
    return next((each for each in _KINDS if isinstance(descriptor, each)), None)


_TTL_STATES: Final[Mapping[StateKind, Callable[..., Any]]] = {
    StateKind.VALUE: TtlValueState,
    StateKind.LIST: TtlListState,
    StateKind.MAP: TtlMapState,
}


StoredStates = Mapping[StateKind, Callable[..., Any]]
"""The class of states without expiry, for values, lists and maps.

It is made of the object that keeps the entries, and of the declared type if values are checked where they enter.
"""


@dataclass(eq=False)
class KeyedStateBackend(ABC):
    """The keyed states of one operator of one subtask.

    Threading: task thread only; the callable that ``snapshot`` returns is called on any thread.
    Life cycle: ``restore``, if at all, before the first ``state``; ``close`` when the task has ended.

    Args:
        key_context: the operator's.
        now_ms: processing time.
        key_groups: this subtask's.
        max_parallelism: the number of key groups.
    """

    _stored: ClassVar[StoredStates]
    _key_context: KeyContext
    _now_ms: Callable[[], int]
    _key_groups: range
    _max_parallelism: int
    _states: dict[str, tuple[State, StateDescription, KeyContext]] = field(init=False, default_factory=dict)
    # Of states whose full snapshots leave out expired entries.
    _expiries: dict[str, Expiry] = field(init=False, default_factory=dict)
    _refusal: str | None = field(init=False, default=None)
    _cleanups: list[Callable[[], None]] = field(init=False, default_factory=list)

    @property
    def is_used(self) -> bool:
        """Whether a state was declared."""
        return bool(self._states)

    @property
    def cleans_at_records(self) -> bool:
        """Whether ``clean`` must be called for every record."""
        return bool(self._cleanups)

    def clean(self) -> None:
        """Remove some expired entries of the states that clean up at every record."""
        for clean in self._cleanups:
            clean()

    def refuse_new_states(self, reason: str) -> None:
        """Let ``state`` raise FlowletError with this reason from now on."""
        self._refusal = reason

    def state(
        self, descriptor: StateDescriptor, kind: type[StateDescriptor], key_context: KeyContext | None = None
    ) -> Any:
        """The state of a descriptor, which must be of the class ``kind``; all calls with one name return one object.

        ``key_context``: holds the current key that the state belongs to; None: the operator's.

        Raises:
            FlowletError: it is another descriptor, or the name is taken by a state of another kind, type or context.
            StateRestoreError: the state was restored, and is of another kind or type there.
        """
        if not isinstance(descriptor, kind):
            raise FlowletError(f"this state needs a {kind.__name__}, got {descriptor!r}")
        name = descriptor.name
        if name == AGGREGATES:
            raise FlowletError(
                f"state {name!r}: sums and reductions keep their results under this name; use another name"
            )
        type_info = descriptor.type_info
        declared = StateDescription(
            _KINDS[kind], repr(type_info), descriptor.ttl_config is not None, type_form(type_info)
        )
        context = self._key_context if key_context is None else key_context
        # Refused for new names only: one that was declared in time may be asked for again.
        if name not in self._states:
            if self._refusal is not None:
                raise FlowletError(f"state {name!r}: {self._refusal}")
            values = DeclaredValues(name, type_info, declared.kind)
            table = self._new_table(name, declared, context, values)
            self._states[name] = self._state_of(descriptor, declared.kind, table, values), declared, context
        state, known, known_context = self._states[name]
        # Also for the state just made, which passes: one check for the first call and all later ones.
        if known_context is not context:
            raise FlowletError(
                f"state {name!r} is declared twice: for a window and for all windows of a key; use two names"
            )
        if known != declared:
            raise FlowletError(f"state {name!r} is declared twice: as {known} and as {declared}; use two names")
        return state

    @abstractmethod
    def _new_table(self, name: str, declared: StateDescription, key: KeyContext, values: DeclaredValues) -> object:
        """The object that keeps the entries of a new state, the restored ones too; ``key``: has the current key."""

    def _row_converter(self, name: str, declared: StateDescription) -> Convert | None:
        """A function from the restored rows of a state to rows of the declared form; None: they have it.

        Raises StateRestoreError: see ``row_converter``.
        """
        written = self._written(name)
        return None if written is None else row_converter(name, written, declared, self._now_ms())

    def _state_of(self, descriptor: StateDescriptor, kind: StateKind, entries: object, values: DeclaredValues) -> State:
        """The state that keeps its values in ``entries``."""
        # The combining states are made of a state of one value, with or without expiry.
        kept = kind if kind in (StateKind.LIST, StateKind.MAP) else StateKind.VALUE
        stored_in = self._stored[kept]
        expiry = self._expiry_of(descriptor)
        if expiry is None:
            stored = stored_in(entries, values if values.is_entered else None)
        else:
            # The state around it checks values: what is stored is a pair of value and time.
            stored = _TTL_STATES[kept](stored_in(entries), expiry, values)
        match descriptor:
            case ReducingStateDescriptor():
                function = descriptor.get_reduce_function()
                return HeapReducingState(stored, getattr(function, "reduce", function))
            case AggregatingStateDescriptor():
                return HeapAggregatingState(stored, descriptor.get_agg_function())
            case _:
                return stored  # type: ignore[no-any-return]  # of the classes above

    def _expiry_of(self, descriptor: StateDescriptor) -> Expiry | None:
        config = descriptor.ttl_config
        if config is None:
            return None
        expiry = Expiry(config, self._now_ms)
        # Else expired entries stay in snapshots, and a restored one may still be returned.
        if config.get_cleanup_strategies().in_full_snapshot():
            self._expiries[descriptor.name] = expiry
        return expiry

    @abstractmethod
    def open_rows(self, holder: RowHolder) -> "CachedRows | None":
        """Keep the rows of an operator, which is being opened, under the name ``AGGREGATES``.

        None: the holder has all rows, restored ones too.  Else it has the rows of one generation, and asks for others.
        """

    @abstractmethod
    def open_columns(self, holder: ColumnHolder, description: str) -> "CachedColumns | None":
        """Keep the columns of an operator, as ``open_rows`` does, under the name ``WINDOW_COLUMNS``.

        Raises StateRestoreError: the restored columns have another description.
        """

    def _declared_columns(self, description: str) -> StateDescription:
        written = self._written(WINDOW_COLUMNS)
        if written is not None and written.type_name != description:
            raise StateRestoreError(
                f"the state is of {written.type_name}, the program has {description}; restore it with the former "
                "windows and aggregations, or give the operator another uid and start without its state"
            )
        return StateDescription(StateKind.COLUMNS, description)

    @abstractmethod
    def forget_keys(self) -> None:
        """Drop the entries of all keys; only of a back end on the heap, without a snapshot under way."""

    @abstractmethod
    def keys_of(self, name: str) -> list[Any]:
        """The keys, as the user knows them, that have an entry of a declared state."""

    @abstractmethod
    def snapshot(
        self, checkpoint_id: int = 0, *, is_full: bool = False
    ) -> "Callable[[], KeyedStateSnapshot | IncrementalSnapshot] | None":
        """Do the synchronous part; return a callable that makes the snapshot on any thread.  None: there is no state.

        ``is_full``: in the form that every back end reads, with no file that other checkpoints share.

        Raises:
            FlowletError: a value cannot be copied; names the state.
        """

    def discard_snapshot(self, checkpoint_id: int) -> None:
        """Release what the synchronous part of a snapshot holds: it is finished, or never will be; any thread,
        idempotent.
        """
        return  # a snapshot on the heap holds memory only

    def restore(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        """Take over the state of this subtask's key groups; may be called for several snapshots, of subtasks of one
        job.

        Raises:
            StateRestoreError: the snapshot has another form, version or number of key groups, or two snapshots differ
                about a state.
        """
        if self._states:
            raise RuntimeError(f"state must be restored before the first one is declared: {self!r}")
        version = VERSION if isinstance(snapshot, KeyedStateSnapshot) else INCREMENTAL_VERSION
        if snapshot.version != version:
            raise StateRestoreError(
                f"keyed state has version {snapshot.version}, this flowlet reads version {version}: restore it with "
                "the flowlet that wrote it, or start without the checkpoint"
            )
        # Another number puts keys into other groups: they would be looked for in the wrong subtask.
        if snapshot.max_parallelism != self._max_parallelism:
            raise StateRestoreError(
                f"keyed state was written with max parallelism {snapshot.max_parallelism}, the operator has "
                f"{self._max_parallelism} now; call set_max_parallelism({snapshot.max_parallelism})"
            )
        for name, description in snapshot.descriptions.items():
            known = self._written(name)
            if known is not None and known != description:
                raise StateRestoreError(
                    f"state {name!r} was written as {known} by one subtask and as {description} by another one; "
                    "restore it with the former parallelism first, and declare the state in open(), so that every "
                    "subtask does"
                )
        # Only when all checks have passed: a refused snapshot leaves no part of itself.
        self._take_over(snapshot)

    @abstractmethod
    def _written(self, name: str) -> StateDescription | None:
        """The description of a state in the snapshots restored so far; None: they have no such state."""

    @abstractmethod
    def _take_over(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        """Take over a snapshot that agrees with the ones before."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: later ones may use its files."""
        return  # each checkpoint of the heap has the whole state

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Assert the invariants."""


class OperatorBroadcastState(MapOfEntries, BroadcastState[Any, Any]):
    """A map of the subtask; keys are told apart as in a ``MapState``.

    ``entries``: by exact key; changed in place only, since ``ReadOnlyOperatorBroadcastState`` shares them.
    """

    __slots__ = ("_name", "declared", "entries")

    def __init__(self, name: str, entries: dict[Any, Any], declared: DeclaredValues) -> None:
        self._name = name
        self.entries = entries
        self.declared = declared

    def __repr__(self) -> str:
        return f"<OperatorBroadcastState {self._name!r}, {len(self.entries)} keys>"

    def _map(self) -> dict[Any, Any]:
        return self.entries

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key.  Raises FlowletError: key or value is not of the declared type."""
        self.declared.check_key(key)
        value = self.declared.entered(value)
        # Behind both checks: a refused pair changes nothing.
        exact = exact_key(key)
        self.entries[exact] = value if exact is key else MapEntry(key, value)

    def remove(self, key: Any) -> None:
        """Remove a key, if it is there."""
        self.entries.pop(exact_key(key), None)

    def clear(self) -> None:
        """Remove all keys."""
        self.entries.clear()


class ReadOnlyOperatorBroadcastState(OperatorBroadcastState):
    """A view of a broadcast state, whose ``entries`` it shares, for a function that must not change it.

    Every attempt to change it raises FlowletError.
    """

    __slots__ = ()

    def put(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the change."""
        raise FlowletError(
            f"broadcast state {self._name!r} can only be changed in process_broadcast_element(), where every subtask "
            "makes the same change"
        )

    put_all = remove = clear = put


class OperatorStateBackend(OperatorStateStore):
    """The operator state of one operator of one subtask.

    Threading: task thread only; the callable that ``snapshot`` returns is called on any thread.
    Life cycle: ``restore``, if at all, before the first state is asked for.

    Args:
        subtask: the number of the subtask, from 0.
    """

    def __init__(self, subtask: int = 0) -> None:
        self._subtask = subtask
        self._key_context = KeyContext()
        self._key_context.current_key = None  # the one key of lists: the subtask
        self._states: dict[str, tuple[ListState[Any] | OperatorBroadcastState, DeclaredValues]] = {}
        # Of ``_states``, with the name of the declared type.
        self._descriptions: dict[str, tuple[Redistribution, str]] = {}
        self._restored: dict[str, OperatorStateRows] = {}  # of states that were not declared yet
        self._frozen: Callable[[], OperatorStateSnapshot] | None = None  # makes the next snapshot

    def __repr__(self) -> str:
        return f"<OperatorStateBackend of {list(self._states)}, not declared yet: {sorted(self._restored)}>"

    # -- states

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of this subtask, dealt out anew at a restart with another parallelism; raises as
        ``OperatorStateStore`` says.
        """
        return self._list_state(state_descriptor, Redistribution.SPLIT)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of this subtask; at a restart every subtask gets the lists of all; raises as ``OperatorStateStore``
        says.
        """
        return self._list_state(state_descriptor, Redistribution.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> OperatorBroadcastState:
        """A map that is equal in every subtask; raises as ``OperatorStateStore`` says."""
        name = self._declared(state_descriptor, MapStateDescriptor, Redistribution.BROADCAST)
        if name not in self._states:
            values = DeclaredValues(name, state_descriptor.type_info, StateKind.MAP)
            # The snapshot has the keys as the user knows them.
            entries = dict(stored_pair(key, value) for key, value in self._taken(name))
            self._states[name] = OperatorBroadcastState(name, entries, values), values
        return self._states[name][0]  # type: ignore[return-value]  # its description was compared

    def _list_state(self, descriptor: ListStateDescriptor, redistribution: Redistribution) -> ListState[Any]:
        name = self._declared(descriptor, ListStateDescriptor, redistribution)
        if name not in self._states:
            values = DeclaredValues(name, descriptor.type_info, StateKind.LIST)
            table = StateTable(name, StateDescription(StateKind.LIST, ""), self._key_context, values)
            # An empty list has no entry, as in ``HeapListState``.
            if elements := self._taken(name):
                table.entries[None] = elements
            self._states[name] = HeapListState(table, values if values.is_entered else None), values
        return self._states[name][0]  # type: ignore[return-value]  # its description was compared

    def _declared(
        self, descriptor: StateDescriptor, kind: type[StateDescriptor], redistribution: Redistribution
    ) -> str:
        """The name of a state, after its descriptor was compared with earlier ones and with the snapshot."""
        if not isinstance(descriptor, kind):
            raise FlowletError(f"a {redistribution.value} needs a {kind.__name__}, got {descriptor!r}")
        name, declared = descriptor.name, (redistribution, repr(descriptor.type_info))
        if descriptor.ttl_config is not None:
            raise FlowletError(f"{redistribution.value} {name!r} cannot have a time to live: only keyed state can")
        known = self._descriptions.setdefault(name, declared)
        if known != declared:
            raise FlowletError(
                f"state {name!r} is declared twice: as {_named(known)} and as {_named(declared)}; use two names"
            )
        # Taken out by the first declaration: later ones are compared with that one, above.
        rows = self._restored.get(name)
        if rows is not None and (written := (rows.redistribution, rows.type_name)) != declared:
            raise StateRestoreError(
                f"state {name!r} was written as {_named(written)}, and is declared as {_named(declared)} now; "
                "declare it as it was written, or use another name"
            )
        return name

    def _taken(self, name: str) -> list[Any]:
        """The restored elements of a state; they share no changeable object with the snapshot."""
        rows = self._restored.pop(name, None)
        # A snapshot never changes, and may be another subtask's, too.
        return [] if rows is None else thawed_rows(StateKind.VALUE, rows.elements)

    # -- checkpoints

    def freeze(self) -> None:
        """Copy all states as they are now; the next ``snapshot`` is this copy.

        Raises:
            FlowletError: a value cannot be copied; names the state.
        """
        frozen = {name: (self._descriptions[name], _frozen(name, *each)) for name, each in self._states.items()}
        # A union list is whole in every subtask: in all snapshots it would multiply with each restart.
        undeclared = {
            name: rows
            for name, rows in self._restored.items()
            if rows.redistribution is not Redistribution.UNION or not self._subtask
        }

        # Without a look at this back end: the pool may run it after more states were declared.
        def finish() -> OperatorStateSnapshot:
            declared = {
                name: OperatorStateRows(*description, tuple(elements()))
                for name, (description, elements) in frozen.items()
            }
            return OperatorStateSnapshot(declared | undeclared)

        self._frozen = finish

    def snapshot(self) -> Callable[[], OperatorStateSnapshot] | None:
        """A callable that makes the snapshot on any thread: of the copy that ``freeze`` made, else of a copy made now.

        None: there is no state.

        Raises:
            FlowletError: a value cannot be copied; names the state.
        """
        if not self._states and not self._restored:
            return None
        if self._frozen is None:
            self.freeze()
        # Once: the next snapshot must not get a copy of this one's time.
        frozen, self._frozen = self._frozen, None
        return frozen

    def restore(self, snapshot: OperatorStateSnapshot) -> None:
        """Take over the state that this subtask was assigned."""
        if self._states:
            raise RuntimeError(f"state must be restored before the first one is declared: {self!r}")
        self._restored = dict(snapshot.states)


def _named(description: tuple[Redistribution, str]) -> str:
    redistribution, type_name = description
    return f"{redistribution.value} of {type_name}"


def _frozen(
    name: str, state: ListState[Any] | OperatorBroadcastState, declared: DeclaredValues
) -> Callable[[], list[Any]]:
    """Copy the elements of a list, or the pairs of a map; return a callable that gives the copy, on any thread."""
    if isinstance(state, OperatorBroadcastState):
        kind = StateKind.MAP
        elements = map_pairs(state.entries)
    else:
        kind = StateKind.LIST
        elements = list(state.get())
    if declared.is_serialized_checked:
        declared.check_rows(kind, [elements], has_ttl=False)
    # Fast path: values that cannot change need no copy.
    if are_unchanging(elements):
        return lambda: elements
    data = dumped_rows(name, elements)
    return lambda: loads_record(data)
