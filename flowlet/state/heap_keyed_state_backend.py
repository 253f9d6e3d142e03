"""``HeapKeyedStateBackend``: all keyed state of one operator, in dictionaries.

Rows of a snapshot in the form that the program declares now.

Removes expired entries of a state, a few at a time.

Side:       task.
Source:     Flink ``StateTable`` with a serializer that is compatible after migration; ``TtlAwareSerializer`` for
            entries that begin, or cease, to expire.  Flink ``TtlIncrementalCleanup``.  Flink ``HeapKeyedStateBackend``,
            ``StateBackend.createKeyedStateBackend``; PyFlink's ``RuntimeContext.get_state`` and its like.
Invariants: every entry that is not removed meanwhile is looked at once per round; a round costs one list of the keys.
            one table per name.  State that was restored and not declared again yet stays in every snapshot.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.state.declared_values import DeclaredValues
from flowlet.state.heap_states import (
    DeclaredHeapListState,
    DeclaredHeapMapState,
    DeclaredHeapValueState,
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
)
from flowlet.state.state_snapshots import (
    VERSION,
    IncrementalSnapshot,
    KeyedStateSnapshot,
    StateDescription,
    StateKind,
    StateRows,
    TypeForm,
)
from flowlet.state.state_table import StateTable
from flowlet.state.ttl_states import (
    DeclaredTtlListState,
    DeclaredTtlMapState,
    DeclaredTtlValueState,
    Expiry,
    TtlListState,
    TtlMapState,
    TtlValueState,
)
from flowlet.state.type_compatibility import Convert, converter, type_form
from flowlet.timers.time_api import KeyContext


def row_converter(
    name: str, written: StateDescription, declared: StateDescription, now_ms: int
) -> Callable[[Any], Any] | None:
    """What makes rows of the declared form of rows that were written; None: they are the same.

    Args:
        name: the state's.
        written: what the snapshot says.
        declared: what the program says.
        now_ms: entries that begin to expire were last used then.

    Raises:
        StateRestoreError: they do not go together; names the state, both types and what to do.  The converter raises
            it, too: of a value that is not of the type that was declared for it.
    """
    convert = _value_converter(name, written, declared)
    if convert is None and written.has_ttl == declared.has_ttl:
        return None

    def entry(stored: Any) -> Any:
        value, used_ms = stored if written.has_ttl else (stored, now_ms)
        if convert is not None:
            try:
                value = convert(value)
            except Exception as error:
                raise StateRestoreError(
                    f"state {name!r} has a value that is not of the type {written.type_name} with which it was "
                    "written, so that it cannot "
                    f"become {declared.type_name} ({type(error).__name__}: {error}); declare the type as it was written"
                ) from error
        return (value, used_ms) if declared.has_ttl else value

    match declared.kind:
        case StateKind.LIST:
            return lambda row: tuple(map(entry, row))
        case StateKind.MAP:
            return lambda row: tuple((key, entry(stored)) for key, stored in row)
        case _:
            return entry


def _value_converter(name: str, written: StateDescription, declared: StateDescription) -> Convert | None:
    if written.kind is declared.kind and written.type_name == declared.type_name:
        return None
    reason = ""
    if written.kind is declared.kind and written.type_form is not None and declared.type_form is not None:
        try:
            return _element_converter(declared.kind, written.type_form, declared.type_form)
        except StateRestoreError as error:
            reason = f" ({error})"
    raise StateRestoreError(
        f"state {name!r} was written as {written}, and is declared as {declared} now{reason}; "
        "declare it as it was written, or use another name"
    )


def _element_converter(kind: StateKind, written: TypeForm, declared: TypeForm) -> Convert | None:
    """Of what a row has one or many of: the value, an element, or the value of an entry of a map."""
    match kind:
        case StateKind.LIST:
            return converter(written.parts[0], declared.parts[0])
        case StateKind.MAP:
            converter(written, declared)  # looks at the keys
            return converter(written.parts[1], declared.parts[1])
        case _:
            return converter(written, declared)


class IncrementalCleanup:
    """Looks at ``num_entries`` keys of a table at each call of ``clean``; task thread only."""

    __slots__ = ("_expiry", "_holds_pairs", "_keys", "_num_entries", "_table")

    def __init__(self, table: StateTable, expiry: Expiry, num_entries: int) -> None:
        self._table = table
        self._expiry = expiry
        self._num_entries = num_entries
        self._holds_pairs = table.description.kind not in (StateKind.LIST, StateKind.MAP)
        self._keys: Iterator[Any] = iter(())

    def __repr__(self) -> str:
        return f"<IncrementalCleanup of {self._num_entries} keys of {self._table!r}>"

    def clean(self) -> None:
        """Look at the next keys; the round after the last one begins with the next call."""
        keys = list(islice(self._keys, self._num_entries))
        if keys:
            now_ms = self._expiry.now_ms()
            if self._holds_pairs:
                self._drop_expired(keys, now_ms)
            else:
                for key in keys:
                    self._table.retain(key, self._expiry, now_ms)
        elif self._num_entries:
            self._keys = iter(list(self._table.entries))

    def _drop_expired(self, keys: list[Any], now_ms: int) -> None:
        """For one value per key: without a call per key, which would take longer than all the rest of an access."""
        newest_expired_ms = now_ms - self._expiry.ttl_ms
        get = self._table.entries.get
        for key in keys:
            pair = get(key)
            if pair is not None and pair[1] <= newest_expired_ms:
                self._table.drop(key)


_KINDS = {
    ValueStateDescriptor: StateKind.VALUE,
    ListStateDescriptor: StateKind.LIST,
    MapStateDescriptor: StateKind.MAP,
    ReducingStateDescriptor: StateKind.REDUCING,
    AggregatingStateDescriptor: StateKind.AGGREGATING,
}


class HeapKeyedStateBackend:
    """The keyed states of one operator of one subtask.

    Threading: task thread only; what ``snapshot`` returns is called on any thread.
    Life cycle: ``restore``, if at all, before the first ``state``.

    Args:
        key_context: the operator's.
        now_ms: processing time.
        key_groups: this subtask's.
        max_parallelism: the number of key groups.
    """

    def __init__(
        self, key_context: KeyContext, now_ms: Callable[[], int], key_groups: range, max_parallelism: int
    ) -> None:
        self._key_context = key_context
        self._now_ms = now_ms
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._tables: dict[str, StateTable] = {}
        self._states: dict[str, State] = {}
        self._expiries: dict[str, Expiry] = {}  # of tables whose snapshots leave out expired entries
        # For states that were not declared yet.
        self._restored: dict[str, tuple[StateDescription, dict[int, StateRows]]] = {}
        self._cleanups: list[Callable[[], None]] = []
        self._refusal: str | None = None

    def __repr__(self) -> str:
        return f"<HeapKeyedStateBackend of {list(self._tables.values())!r}, not declared yet: {sorted(self._restored)}>"

    @property
    def is_used(self) -> bool:
        """Whether a state was declared."""
        return bool(self._tables)

    @property
    def cleans_at_records(self) -> bool:
        """Whether ``clean`` must be called for every record."""
        return bool(self._cleanups)

    def clean(self) -> None:
        """Remove some expired entries of the states that want that for every record."""
        for clean in self._cleanups:
            clean()

    def refuse_new_states(self, reason: str) -> None:
        """From now on ``state`` raises FlowletError with this reason."""
        self._refusal = reason

    # -- states

    def state(
        self, descriptor: StateDescriptor, kind: type[StateDescriptor], key_context: KeyContext | None = None
    ) -> Any:
        """See ``KeyedStateBackend``."""
        if not isinstance(descriptor, kind):
            raise FlowletError(f"this state needs a {kind.__name__}, got {descriptor!r}")
        type_info = descriptor.type_info
        description = StateDescription(
            _KINDS[kind], repr(type_info), descriptor.ttl_config is not None, type_form(type_info)
        )
        name = descriptor.name
        table = self._tables.get(name)
        context = self._key_context if key_context is None else key_context
        if table is None:
            return self._new_state(descriptor, description, context)
        if table.key_context is not context:
            raise FlowletError(
                f"state {name!r} is declared twice: for a window and for all windows of a key; use two names"
            )
        if table.description != description:
            raise FlowletError(
                f"state {name!r} is declared twice: as {table.description} and as {description}; use two names"
            )
        return self._states[name]

    def _new_state(self, descriptor: StateDescriptor, description: StateDescription, context: KeyContext) -> State:
        name = descriptor.name
        if self._refusal is not None:
            raise FlowletError(f"state {name!r}: {self._refusal}")
        declared = DeclaredValues(name, descriptor.type_info, description.kind)
        table = StateTable(name, description, context, declared)
        if name in self._restored:
            table.restore(self._compatible_rows(name, description))
            del self._restored[name]
        self._tables[name] = table
        self._states[name] = self._state_of(table, descriptor)
        return self._states[name]

    def _compatible_rows(self, name: str, declared: StateDescription) -> Iterable[StateRows]:
        """The restored rows of a state in the form that is declared.

        Raises:
            StateRestoreError: it was written as another kind, or with a type that cannot become the declared one.
        """
        written, groups = self._restored[name]
        convert = row_converter(name, written, declared, self._now_ms())
        for rows in groups.values():
            yield rows if convert is None else StateRows(rows.keys, tuple(map(convert, rows.values)))

    def _state_of(self, table: StateTable, descriptor: StateDescriptor) -> State:
        expiry = self._expiry_of(table, descriptor)
        declared = table.declared
        match descriptor:
            case ListStateDescriptor() if expiry is not None:
                elements = HeapListState(table)
                return (
                    DeclaredTtlListState(elements, expiry, declared)
                    if declared.is_entered
                    else TtlListState(elements, expiry)
                )
            case ListStateDescriptor():
                return DeclaredHeapListState(table, declared) if declared.is_entered else HeapListState(table)
            case MapStateDescriptor() if expiry is not None:
                entries = HeapMapState(table)
                return (
                    DeclaredTtlMapState(entries, expiry, declared)
                    if declared.is_entered
                    else TtlMapState(entries, expiry)
                )
            case MapStateDescriptor():
                return DeclaredHeapMapState(table, declared) if declared.is_entered else HeapMapState(table)
            case _:
                return self._single_value_state(table, descriptor, expiry)

    def _single_value_state(self, table: StateTable, descriptor: StateDescriptor, expiry: Expiry | None) -> State:
        declared = table.declared
        stored: ValueState[Any]
        if expiry is None:
            stored = DeclaredHeapValueState(table, declared) if declared.is_entered else HeapValueState(table)
        else:
            value = HeapValueState(table)
            stored = (
                DeclaredTtlValueState(value, expiry, declared) if declared.is_entered else TtlValueState(value, expiry)
            )
        match descriptor:
            case ReducingStateDescriptor():
                function = descriptor.get_reduce_function()
                return HeapReducingState(stored, getattr(function, "reduce", function))
            case AggregatingStateDescriptor():
                return HeapAggregatingState(stored, descriptor.get_agg_function())
            case _:
                return stored

    def _expiry_of(self, table: StateTable, descriptor: StateDescriptor) -> Expiry | None:
        config = descriptor.ttl_config
        if config is None:
            return None
        expiry = Expiry(config, self._now_ms)
        cleanups = config.get_cleanup_strategies()
        if cleanups.in_full_snapshot():
            self._expiries[table.name] = expiry
        steps = cleanups.get_incremental_cleanup_strategy()
        if steps is not None:
            cleanup = IncrementalCleanup(table, expiry, steps.get_cleanup_size())
            expiry.clean = cleanup.clean
            if steps.run_cleanup_for_every_record():
                self._cleanups.append(cleanup.clean)
        return expiry

    def forget_keys(self) -> None:
        """Drop the entries of all keys: in BATCH mode no more records of them follow."""
        for table in self._tables.values():
            table.forget_keys()

    def keys_of(self, name: str) -> list[Any]:
        """The keys, as the user knows them, that have an entry of a state which was declared."""
        return self._tables[name].user_keys()

    # -- checkpoints

    def snapshot(self, checkpoint_id: int = 0, *, is_full: bool = False) -> Callable[[], KeyedStateSnapshot] | None:
        """Begin a snapshot; what is returned makes it, once, on any thread, while the states go on.

        None: there is no state.

        The snapshot is given up when what is returned is no longer referred to.  What is returned raises FlowletError
        if a value cannot be copied; the message names the state.
        """
        if not self._tables and not self._restored:
            return None
        now_ms = self._now_ms()
        copies = {name: table.copy(self._expiries.get(name), now_ms) for name, table in self._tables.items()}
        descriptions = {name: table.description for name, table in self._tables.items()}
        undeclared = dict(self._restored)
        max_parallelism = self._max_parallelism

        def finish() -> KeyedStateSnapshot:
            by_name = {name: copy.rows(max_parallelism) for name, copy in copies.items()}
            by_name |= {name: groups for name, (_, groups) in undeclared.items()}
            groups: dict[int, dict[str, StateRows]] = {}
            for name, rows in by_name.items():
                for group, of_group in rows.items():
                    groups.setdefault(group, {})[name] = of_group
            all_descriptions = descriptions | {name: each for name, (each, _) in undeclared.items()}
            return KeyedStateSnapshot(all_descriptions, max_parallelism, groups, VERSION)

        return finish

    def restore(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        """Take over the state of this subtask's key groups; may be called for several snapshots, of subtasks of one
        job.

        Raises:
            StateRestoreError: the snapshot has another version, another number of key groups, or two snapshots differ
                about a state.
        """
        if self._tables:
            raise RuntimeError(f"state must be restored before the first one is declared: {self!r}")
        if isinstance(snapshot, IncrementalSnapshot):
            raise StateRestoreError(
                "keyed state was written by RocksDB, incrementally, which only RocksDB reads: set state.backend.type "
                "to 'rocksdb', and to "
                "change it take a checkpoint with execution.checkpointing.incremental: false first"
            )
        if snapshot.version != VERSION:
            raise StateRestoreError(
                f"keyed state has version {snapshot.version}, this flowlet reads version {VERSION}: restore it with "
                "the flowlet that "
                "wrote it, or start without the checkpoint"
            )
        if snapshot.max_parallelism != self._max_parallelism:
            raise StateRestoreError(
                f"keyed state was written with max parallelism {snapshot.max_parallelism}, the operator has "
                f"{self._max_parallelism} now; "
                f"call set_max_parallelism({snapshot.max_parallelism})"
            )
        for name, description in snapshot.descriptions.items():
            known, _ = self._restored.setdefault(name, (description, {}))
            if known != description:
                raise StateRestoreError(
                    f"state {name!r} was written as {known} by one subtask and as {description} by another one"
                )
        for group in self._key_groups:
            for name, rows in snapshot.groups.get(group, {}).items():
                self._restored[name][1][group] = rows

    def discard_snapshot(self, checkpoint_id: int) -> None:
        """Does nothing: a snapshot holds memory only."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Does nothing: each checkpoint has the whole state."""

    def close(self) -> None:
        """Let go of all entries; those that a snapshot is still copying stay until it has ended.

        The task that used them is in cycles of references, and the collector of cycles may not run for hours while
        other tasks run.
        """
        for table in self._tables.values():
            if not table.is_copying:
                table.forget_keys()

    def check_invariants(self) -> None:
        """Assert the invariants of the tables."""
        for table in self._tables.values():
            table.check_invariants()
