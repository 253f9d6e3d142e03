"""``HeapKeyedStateBackend``: all keyed state of one operator, in dictionaries.

``IncrementalCleanup``: removes expired entries of a state, a few at a time.

Side:       task.
Source:     Flink ``TtlIncrementalCleanup``, ``HeapKeyedStateBackend``, ``StateBackend.createKeyedStateBackend``;
            PyFlink's ``RuntimeContext.get_state`` and its like.
Invariants: one table per name.  State that was restored and not declared again yet stays in every snapshot.  The
            clean-up looks once per round at every entry that is not removed meanwhile; a round costs one list of the
            keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

from flowlet.datastream.state import StateDescriptor
from flowlet.errors import StateRestoreError
from flowlet.keys.exact_keys import exact_keys
from flowlet.state.declared_values import DeclaredValues, copied_rows, thawed_rows
from flowlet.state.heap_states import HeapListState, HeapMapState, HeapValueState
from flowlet.state.state_backends import KeyedStateBackend, StoredStates
from flowlet.state.state_snapshots import (
    AGGREGATES,
    AGGREGATES_DESCRIPTION,
    WINDOW_COLUMNS,
    ColumnBlock,
    ColumnHolder,
    ColumnRows,
    IncrementalSnapshot,
    KeyedStateSnapshot,
    RowHolder,
    StateDescription,
    StateKind,
    StateRows,
    rows_of_blocks,
)
from flowlet.state.state_table import StateTable, rows_by_key_group
from flowlet.state.ttl_states import Expiry
from flowlet.timers.keyed_timer_service import KeyContext
from netstack.late import dataclass


@dataclass(eq=False, slots=True)
class IncrementalCleanup:
    """Looks at ``num_entries`` keys of a table at each call of ``clean``; task thread only."""

    _table: StateTable
    _expiry: Expiry
    _num_entries: int
    _holds_pairs: bool = field(init=False)  # one pair of a value and a time per key
    _keys: Iterator[Any] = field(init=False, default=iter(()))

    def __post_init__(self) -> None:
        self._holds_pairs = self._table.description.kind not in (StateKind.LIST, StateKind.MAP)

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
            self._keys = iter(list(self._table.entries))  # a copy: the dictionary changes during a round

    def _drop_expired(self, keys: list[Any], now_ms: int) -> None:
        """Drop the expired entries of a state with one value per key.

        There is no call per key, which would take longer than all the rest of an access.
        """
        newest_expired_ms = now_ms - self._expiry.ttl_ms
        get = self._table.entries.get
        for key in keys:
            pair = get(key)
            # It may be gone since the round began.
            if pair is not None and pair[1] <= newest_expired_ms:
                self._table.drop(key)


@dataclass(eq=False)
class HeapKeyedStateBackend(KeyedStateBackend):
    """Implements ``KeyedStateBackend``."""

    _stored: ClassVar[StoredStates] = {
        StateKind.VALUE: HeapValueState,
        StateKind.LIST: HeapListState,
        StateKind.MAP: HeapMapState,
    }
    _tables: dict[str, StateTable] = field(init=False, default_factory=dict)
    # For states that were not declared yet.
    _restored: dict[str, tuple[StateDescription, dict[int, StateRows]]] = field(init=False, default_factory=dict)
    _holder: RowHolder | None = field(init=False, default=None)
    _columns: tuple[ColumnHolder, StateDescription] | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<HeapKeyedStateBackend of {list(self._tables.values())!r}, not declared yet: {sorted(self._restored)}>"

    # -- states

    def _new_table(self, name: str, declared: StateDescription, key: KeyContext, values: DeclaredValues) -> StateTable:
        table = StateTable(name, declared, key, values)
        convert = self._row_converter(name, declared)
        _, groups = self._restored.get(name, (None, {}))
        # Only now: until it is declared, a state's rows stay as they were written, for the next snapshot.
        table.restore(rows if convert is None else rows.converted(convert) for rows in groups.values())
        # After the conversion: if that refuses a value, the rows are still there.
        self._restored.pop(name, None)
        # The base class looks for the table if the state cleans up step by step.
        self._tables[name] = table
        return table

    def _expiry_of(self, descriptor: StateDescriptor) -> Expiry | None:
        expiry = super()._expiry_of(descriptor)
        config = descriptor.ttl_config
        steps = None if config is None else config.get_cleanup_strategies().get_incremental_cleanup_strategy()
        if expiry is not None and steps is not None:
            cleanup = IncrementalCleanup(self._tables[descriptor.name], expiry, steps.get_cleanup_size())
            expiry.clean = cleanup.clean
            if steps.run_cleanup_for_every_record():
                self._cleanups.append(cleanup.clean)
        return expiry

    def open_rows(self, holder: RowHolder) -> None:
        """Hand all restored rows to the holder, which keeps all its rows from then on."""
        self._holder = holder
        _, groups = self._restored.pop(AGGREGATES, (None, {}))
        if groups:
            # All key groups together: the holder takes its rows once, and drops those it has.
            keys = exact_keys([key for rows in groups.values() for key in rows.keys])
            holder.take_rows(keys, _joined([rows.values for rows in groups.values()]))

    def open_columns(self, holder: ColumnHolder, description: str) -> None:
        """Hand all restored blocks to the holder, which keeps all its rows from then on."""
        self._columns = (holder, self._declared_columns(description))
        _, groups = self._restored.pop(WINDOW_COLUMNS, (None, {}))
        holder.take_blocks(
            [
                ColumnBlock.with_key(group, key, content)
                for group, rows in groups.items()
                for key, content in zip(rows.keys, rows.values, strict=True)
            ]
        )

    def forget_keys(self) -> None:
        """Drop the entries of all keys: in BATCH mode no more records of them follow."""
        for table in self._tables.values():
            table.forget_keys()

    def keys_of(self, name: str) -> list[Any]:
        """The keys, as the user knows them, that have an entry of a declared state."""
        return self._tables[name].user_keys()

    # -- checkpoints

    def snapshot(self, checkpoint_id: int = 0, *, is_full: bool = False) -> Callable[[], KeyedStateSnapshot] | None:
        """Begin a snapshot; return a callable that makes it, once, on any thread, while the states go on.

        None: there is no state.

        The snapshot is given up when the callable is no longer referred to.  The callable raises FlowletError if a
        value cannot be copied; the message names the state.
        """
        # Here, not in the callable: the operator changes its rows with the next record.  Before the tables: a copy that
        # has begun keeps rows aside, and these two may fail.
        held = None if self._holder is None else _copied(*self._holder.held_rows())
        blocks = None if self._columns is None else self._columns[0].held_blocks(in_order=False)
        # One time for all tables: entries of several states that end together are left out together.
        now_ms = self._now_ms()
        max_parallelism = self._max_parallelism
        # The description of each state, and a callable that gives its rows.
        parts: dict[str, tuple[StateDescription, Callable[[], Mapping[int, StateRows]]]] = {
            name: (table.description, partial(table.copy(self._expiries.get(name), now_ms).rows, max_parallelism))
            for name, table in self._tables.items()
        }
        if held is not None:
            parts[AGGREGATES] = AGGREGATES_DESCRIPTION, partial(rows_by_key_group, *held, max_parallelism)
        if self._columns is not None and blocks is not None:
            parts[WINDOW_COLUMNS] = self._columns[1], lambda: rows_of_blocks(blocks())
        # As they were written.  Not ``_restored`` itself: a state that is declared meanwhile leaves it.
        parts |= {name: (description, partial(dict, groups)) for name, (description, groups) in self._restored.items()}

        def finish() -> KeyedStateSnapshot:
            groups: dict[int, dict[str, StateRows]] = {}
            for name, (_, rows) in parts.items():
                for group, of_group in rows().items():
                    groups.setdefault(group, {})[name] = of_group
            return KeyedStateSnapshot({name: each for name, (each, _) in parts.items()}, max_parallelism, groups)

        return finish if parts else None

    def restore(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        """Implement ``KeyedStateBackend.restore``; also raises StateRestoreError for an incremental snapshot."""
        if isinstance(snapshot, IncrementalSnapshot):
            raise StateRestoreError(
                "keyed state was written by RocksDB, incrementally, which only RocksDB reads: set state.backend.type "
                "to 'rocksdb', and to change it take a checkpoint with execution.checkpointing.incremental: false first"
            )
        super().restore(snapshot)

    def _written(self, name: str) -> StateDescription | None:
        return self._restored[name][0] if name in self._restored else None

    def _take_over(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        assert isinstance(snapshot, KeyedStateSnapshot), "the other form was refused"
        for name, description in snapshot.descriptions.items():
            # Also without rows in these key groups: the type must be compared, and stay in the next snapshot.
            self._restored.setdefault(name, (description, {}))
        for group in self._key_groups:
            for name, rows in snapshot.groups.get(group, {}).items():
                self._restored[name][1][group] = rows

    def close(self) -> None:
        """Let go of all entries; tables that a snapshot is still copying stay until it has ended.

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


def _copied(keys: list[Any], values: Iterable[Any] | ColumnRows) -> tuple[list[Any], Iterable[Any] | ColumnRows] | None:
    """Copies of rows, which do not change any more; None: there are no rows.

    Raises FlowletError: a value cannot be copied.
    """
    if not keys:
        return None
    if isinstance(values, ColumnRows):
        # The operator goes on writing into its arrays.
        columns = values.columns
        return keys, ColumnRows(columns.with_fields(tuple([field.detached() for field in columns.fields])))
    return keys, copied_rows(AGGREGATES, StateKind.VALUE, values) if isinstance(values, list) else values


def _joined(parts: list[Sequence[Any] | ColumnRows]) -> list[Any] | ColumnRows:
    """The values of several key groups together; they share no changeable object with the parts."""
    tables = [part.columns for part in parts if isinstance(part, ColumnRows)]
    # Some groups may be rows: former subtasks may differ in that.
    if len(tables) == len(parts):
        from flowlet.columns.table import try_concatenate  # here, as a task without keys needs no columns

        if (columns := try_concatenate(tables)) is not None:
            return ColumnRows(columns)
    return thawed_rows(StateKind.VALUE, chain.from_iterable(parts))
