"""``StateTable``: the entries of one state, by key.

``TableCopy``: one snapshot of a ``StateTable`` that is under way.

The task goes on with its table.  The snapshot pool reads the table some keys at a time.  Before the task replaces or
drops the row of a key, or hands out an object that a user can change in place, it keeps in the copy the row as it was
when the snapshot began.

``CopyingEntries``: a table's entries while a snapshot is under way.

States use it instead of the dictionary itself, only as long as a ``TableCopy`` of their table is not complete.

Hot path, only during snapshots: a look at the type, at the copy, and at the rows that it has kept.

Hot path, per access of a state: one look at the type of the key and one dictionary access (bench: state).  A key that
is no str, int, bytes or None also needs ``exact_key``, which is computed only when the current key is another object
than before.

Side:       shared.
Invariants: ``rows`` gives the table as it was when the copy began.  The task keeps a row before it changes it, and the
            pool looks for kept rows after it has copied: so a row that was changed in the middle of its copy is always
            found among the kept ones.  Before a row is replaced, dropped or handed out in a form that can change, every
            copy under way has it.  An entry is stored under the exact key (``flowlet.keys.exact_keys``): 1, 1.0 and
            True have three.  ``user_key_of`` holds the key as the user knows it for every entry whose exact key is
            another object, and no other key.  While a copy is under way, the states read and write through
            ``CopyingEntries``; else they use the dictionary itself.  ``_order`` holds the keys in the order of the
            dictionary up to its newest ones, or is empty.
Source:     Flink ``StateTable``, ``CopyOnWriteStateMap``, ``CopyOnWriteStateMapSnapshot``: copy on read, copy on write.
            As there, a value that a user got before the snapshot began, and holds on to, must not be changed in place:
            values are changed while the record is processed for which they were got.  Flink keeps one map per key
            group; here the key groups are computed when a snapshot is finished.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from enum import Enum
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import ref

from flowlet.columns.column import UNCHANGING
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.keys.exact_keys import are_plain, exact_key, exact_keys
from flowlet.state.declared_values import DeclaredValues, copied_rows, frozen_row, thawed_row, thawed_rows
from flowlet.state.state_snapshots import (
    AGGREGATES,
    AGGREGATES_DESCRIPTION,
    ColumnRows,
    KeyedStateSnapshot,
    StateDescription,
    StateKind,
    StateRows,
)
from flowlet.timers.keyed_timer_service import NO_KEY, KeyContext
from netstack.late import dataclass
from netstack.late import numpy as np

if TYPE_CHECKING:
    from flowlet.columns.table import Columns
    from flowlet.state.ttl_states import Expiry


# Keys per step, which is about 1 ms of work in C, in which the task waits for the interpreter; not measured with other
# numbers.
STEP: Final = 4096


@dataclass(eq=False)
class TableCopy:
    """One snapshot of one table.

    Args:
        table: changes while the snapshot is under way.
        keys: the exact keys of the table, in an order; may grow meanwhile.
        expiry: leaves expired rows out; None: all are taken.
        now_ms: when the snapshot began.
    """

    _table: StateTable
    _keys: list[Any]
    _expiry: Expiry | None
    _now_ms: int
    # Written by the task thread, each key once; read by the pool.
    kept: dict[Any, Any] = field(init=False, default_factory=dict)
    kept_user_keys: dict[Any, Any] = field(init=False, default_factory=dict)
    is_complete: bool = field(init=False, default=False)  # Written by the pool; read by the task thread, late is fine.

    def __post_init__(self) -> None:
        """Note how many keys there are now."""
        # The list is shared with the table, which appends new keys to it: those are not in this copy.
        self._num_keys = len(self._keys)
        self._name = self._table.name
        self._kind = self._table.description.kind

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else "under way"
        return f"<TableCopy of {self._name!r}, {self._num_keys} keys, {state}, {len(self.kept)} kept>"

    def rows(self, max_parallelism: int) -> dict[int, StateRows]:
        """The rows by key group; on any thread, once.

        Raises:
            FlowletError: a value cannot be copied, or is not of the declared type; names the state.
        """
        assert not self.is_complete, "what was kept is gone"
        grouped = _GroupedRows()
        declared = self._table.declared
        try:
            for start in range(0, self._num_keys, STEP):
                exact = self._keys[start : min(start + STEP, self._num_keys)]
                some_keys, some_values = self._users_keys(exact), self._rows_of(exact)
                # Before the check of types: an expired value goes nowhere.
                if self._expiry is not None:
                    rows = [self._expiry.live(self._kind, row, self._now_ms) for row in some_values]
                    some_keys = [key for key, row in zip(some_keys, rows, strict=True) if row is not None]
                    some_values = [row for row in rows if row is not None]
                if declared.is_serialized_checked:
                    declared.check_rows(self._kind, some_values, has_ttl=self._table.description.has_ttl)
                if some_keys:
                    # Here, as a task without keys needs no numpy.
                    from flowlet.keys.key_columns import column_key_groups

                    grouped.add(some_keys, some_values, column_key_groups(some_keys, max_parallelism))
        finally:
            # First: a task that misses a kept row must find the copy complete, or would keep the row again.
            self.is_complete = True
            self.kept.clear()
            self.kept_user_keys.clear()
        return grouped.rows()

    def _users_keys(self, exact: list[Any]) -> list[Any]:
        user_keys = self._table.user_key_of
        if not user_keys and not self.kept_user_keys:
            return exact
        # The table's first: a key that is dropped between the two looks is kept before.
        known = list(map(user_keys.get, exact, repeat(_UNKNOWN)))
        kept = self.kept_user_keys
        return [kept.get(key, key) if found is _UNKNOWN else found for key, found in zip(exact, known, strict=True)]

    def _rows_of(self, exact: list[Any]) -> list[Any]:
        # Without a lock: a row that is gone already is None here, and is among the kept ones.
        stored = list(map(self._table.entries.get, exact))
        rows = self._copied(exact, stored)
        # After the copy: the task keeps a row before it changes it, so a row changed during the copy is found now.
        if not self.kept:
            return rows
        kept = list(map(self.kept.get, exact))
        if kept.count(None) < len(kept):
            rows = list(rows)
            for place, each in enumerate(kept):
                if each is not None:
                    rows[place] = thawed_row(self._name, self._kind, each)
        return rows

    def _copied(self, exact: list[Any], stored: list[Any]) -> list[Any]:
        """Copies of the rows; a row that the task changes meanwhile may be wrong here, but then it is kept, too."""
        if self._kind in (StateKind.LIST, StateKind.MAP):
            stored = [() if each is None else each for each in stored]
        try:
            return copied_rows(self._name, self._kind, stored)
        except Exception:  # noqa: BLE001 - perhaps the task was just changing one of them: each by itself
            return [self._copied_row(key, each) for key, each in zip(exact, stored, strict=True)]

    def _copied_row(self, key: Any, stored: Any) -> Any:
        try:
            return copied_rows(self._name, self._kind, [stored])[0]
        except Exception as error:
            # The task was changing it, which is why it failed: the kept row takes its place.
            if key in self.kept:
                return None
            if isinstance(error, FlowletError):
                raise
            raise FlowletError(
                f"state {self._name!r}: a value cannot be copied into a snapshot: {type(error).__name__}: {error}"
            ) from error


_UNKNOWN: Final = object()


class _GroupedRows:
    """Collects rows by key group, step by step, while their keys and values are still in the processor's cache.

    500,000 int keys with int values: 0.1 s of CPU from the table to the bytes, which the task lacks.  With one list of
    all rows, picked by key group at the end, it was 0.45 s, spent on waiting for memory.
    """

    def __init__(self) -> None:
        # The keys and the values of each group: lists, and arrays of numpy.
        self._pieces: dict[int, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))

    def add(self, keys: list[Any], values: list[Any], groups: Any) -> None:
        """Take rows, at least one, with the key group of each."""
        order, runs = _runs(groups)
        ordered_keys = _ordered(keys, order)
        ordered_values = _ordered(values, order)
        for group, start, end in runs:
            of_keys, of_values = self._pieces[group]
            of_keys.append(ordered_keys[start:end])
            of_values.append(ordered_values[start:end])

    def rows(self) -> dict[int, StateRows]:
        """All rows, by key group."""
        return {group: StateRows(*map(_joined, self._pieces[group])) for group in sorted(self._pieces)}


def _joined(pieces: list[Any]) -> Sequence[Any]:
    """The keys or values of one key group.

    Numbers are packed: an array is written in no time, and a list of ints takes 90 ns for each.
    """
    kinds = {piece.dtype.name if isinstance(piece, np.ndarray) else None for piece in pieces}
    typecode = _TYPECODES.get(kinds.pop()) if len(kinds) == 1 else None
    # Of one type in all pieces: a key group of ints and floats must keep both.
    if typecode is not None:
        return array(typecode, np.concatenate(pieces).tobytes())
    return list(chain.from_iterable(piece.tolist() if isinstance(piece, np.ndarray) else piece for piece in pieces))


def _runs(groups: Any) -> tuple[Any, list[tuple[int, int, int]]]:
    """An order of rows by key group, and for each group its first place in that order and the place after its last.

    There is at least one row.
    """
    # Stable, so that the keys of a group stay in the order in which they were first stored.  There are at most 32,768
    # groups, and numbers of 16 bits are sorted by digits, in a fifth of the time.
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    sorted_groups = groups[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist()]
    return order, list(zip(sorted_groups[starts].tolist(), starts, [*starts[1:], len(groups)], strict=True))


def rows_by_key_group(
    exact: list[Any], values: Iterable[Any] | ColumnRows, max_parallelism: int
) -> dict[int, StateRows]:
    """The rows of exact keys, at least one, by key group."""
    from flowlet.keys.key_columns import exact_key_groups, key_for  # as in ``TableCopy.rows``

    groups = exact_key_groups(exact, max_parallelism)
    keys = exact if are_plain(exact) else list(map(key_for, exact))
    if isinstance(values, ColumnRows):
        order, runs = _runs(groups)
        ordered = _ordered(keys, order)
        return {
            group: StateRows(_joined([ordered[start:end]]), ColumnRows(values.columns.take(order[start:end])))
            for group, start, end in runs
        }
    grouped = _GroupedRows()
    listed = list(values)
    for start in range(0, len(keys), STEP):
        part = slice(start, start + STEP)
        grouped.add(keys[part], listed[part], groups[part])
    return grouped.rows()


_PACKED: Final[dict[type, str]] = {int: "int64", float: "float64"}
_TYPECODES: Final[dict[str | None, str]] = {"int64": "q", "float64": "d"}


def _ordered(items: list[Any], order: Any) -> Any:
    kinds = set(map(type, items))
    packed = _PACKED.get(kinds.pop()) if len(kinds) == 1 else None
    if packed is not None:
        with suppress(OverflowError):  # an int of more than 64 bits
            return np.fromiter(items, packed, len(items))[order]
    # Through an array of objects, which numpy permutes in a fifth of the time of operator.itemgetter.
    return np.fromiter(items, object, len(items))[order].tolist()


class StateForm(Enum):
    """The form of the values in an ``AggregationSnapshot``."""

    COLUMNS = "columns"  # a row of columns
    SUMS = "sums"  # the second field of a pair, of which the key is the first one
    PAIRS = "pairs"  # a tuple of two fields
    TUPLES = "tuples"  # a tuple
    RECORDS = "records"  # any record


@dataclass(frozen=True, slots=True)
class AggregationSnapshot:
    """A snapshot of earlier versions of flowlet, in which the back end did not keep the rows; it is only read.

    Args:
        form: of the values.
        keys: exact keys (``flowlet.keys.exact_keys``), in the order in which they were first seen.
        values: for each key, unless the form is COLUMNS.
        columns: a row for each key, if the form is COLUMNS.
        has_timestamps: whether a record had one.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    form: StateForm
    keys: tuple[Any, ...]
    values: tuple[Any, ...] = ()
    columns: Columns | None = None
    has_timestamps: bool = False

    def rows(self) -> Iterable[Any] | ColumnRows:
        """A record for each key."""
        if self.columns is not None:
            return ColumnRows(self.columns)
        return zip(self.keys, self.values, strict=True) if self.form is StateForm.SUMS else self.values

    def keyed(self, max_parallelism: int) -> KeyedStateSnapshot:
        """The rows in the form that every back end reads."""
        by_group = rows_by_key_group(list(self.keys), self.rows(), max_parallelism) if self.keys else {}
        groups = {group: {AGGREGATES: rows} for group, rows in by_group.items()}
        return KeyedStateSnapshot({AGGREGATES: AGGREGATES_DESCRIPTION}, max_parallelism, groups)


@dataclass(eq=False, slots=True)
class CopyingEntries:
    """Reads and writes the entries of a table for its states.

    Args:
        name: the state's name.
        kind: the state's kind.
        entries: the dictionary.
        on_end: called when an access finds that no copy is under way any more.
    """

    _name: str
    _kind: StateKind
    _entries: dict[Any, Any]
    _on_end: Callable[[], None]
    # Weak: a snapshot that was cancelled loses its last strong reference, and ends so.
    _copies: tuple[ref[TableCopy], ...] = field(init=False, default=())
    _newest: Callable[[], TableCopy | None] = field(init=False, default=lambda: None)
    # The kept rows of the only copy; empty if there are several.  The pool empties it in the end, so that the next
    # access finds out that the copy is complete.
    _kept: Mapping[Any, Any] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<CopyingEntries of {self._name!r}, {self._copies!r}>"

    def add(self, copy: TableCopy) -> None:
        """Keep rows for this copy, too, from now on."""
        # Ended ones go: the references of a table that nobody uses between its copies would add up.
        self._copies = (*map(ref, self.under_way()), ref(copy))
        self._newest = self._copies[-1]
        # With several, a row that one of them kept may still be missing in another.
        self._kept = copy.kept if len(self._copies) == 1 else {}

    def get(self, exact: Any) -> Any:
        """The entry of a key, for its state, which may hand it out or change it; None: there is none."""
        stored = self._entries.get(exact)
        if stored is None or type(stored) in UNCHANGING:
            newest = self._newest()
            # Not kept, since it cannot change; but this may be the first access after the copy's end.
            if newest is None or newest.is_complete:
                self.under_way()
            return stored
        if exact in self._kept:
            return stored
        frozen = None
        for copy in self.under_way():
            if exact not in copy.kept:
                if frozen is None:
                    # Once for all copies: none of them changes it.
                    frozen = frozen_row(self._name, self._kind, stored)
                copy.kept[exact] = frozen
        return stored

    def __setitem__(self, exact: Any, stored: Any) -> None:
        # Before the assignment: the pool looks for kept rows after it has read this one.
        if exact not in self._kept:
            self.keep(exact)
        self._entries[exact] = stored

    def keep(self, exact: Any) -> None:
        """Keep the entry of a key for the copies under way; called before it is replaced or dropped."""
        stored = self._entries.get(exact)
        if stored is None:
            return
        for copy in self.under_way():
            # As it is: the table forgets it, and it was not handed out since the copy began, or it would be kept
            # already.
            copy.kept.setdefault(exact, stored)

    def keep_user_key(self, exact: Any, key: Any) -> None:
        """Keep the user's form of a key for the copies under way; called before it is dropped."""
        for copy in self.under_way():
            copy.kept_user_keys.setdefault(exact, key)

    def under_way(self) -> list[TableCopy]:
        """The copies that are under way; if there are none, ``on_end`` has been called."""
        copies = [copy for each in self._copies if (copy := each()) is not None and not copy.is_complete]
        if not copies:
            self._copies = ()
            self._newest = lambda: None
            self._kept = {}
            self._on_end()
        return copies


_UNSET: Final = object()


Entries = dict[Any, Any] | CopyingEntries
"""The mapping in which a state keeps its entries, by exact key."""


@dataclass(eq=False)
class ExactKeys:
    """Finds the exact key of the current key of the state ``name``; task thread only."""

    name: str
    _last_key: Any = field(init=False, default=_UNSET)
    _last_exact: Any = field(init=False, default=None)

    def exact(self, key: Any) -> Any:
        """The exact key of the current key.  Raises FlowletError: there is none."""
        # By identity: an equal key may be of another type.
        if key is self._last_key:
            return self._last_exact
        if key is NO_KEY:
            raise FlowletError(
                f"state {self.name!r} was used without a current key: use it only while a record or a timer is "
                "processed, not in open()"
            )
        exact = exact_key(key)
        self._last_key = key
        self._last_exact = exact
        return exact


@dataclass(eq=False)
class StateTable(ExactKeys):
    """The entries of one state; task thread only.

    Args:
        name: the state's name.
        description: the description of the state in snapshots.
        key_context: holds the current key.
        declared: the declared type.
    """

    description: StateDescription
    key_context: KeyContext
    declared: DeclaredValues
    # Changed in place only: states keep its bound methods.
    entries: dict[Any, Any] = field(init=False, default_factory=dict)
    user_key_of: dict[Any, Any] = field(init=False, default_factory=dict)
    _is_copying: bool = field(init=False, default=False)
    _order: list[Any] = field(init=False, default_factory=list)  # Only appended to, never changed: copies share it.

    def __post_init__(self) -> None:
        """Make the ``CopyingEntries``, which are used while a copy is under way."""
        self._bind: Callable[[Callable[[Any], Any], Entries], None] = lambda _get, _entries: None
        self._copying = CopyingEntries(self.name, self.description.kind, self.entries, self._settle)

    def __repr__(self) -> str:
        return f"<StateTable {self.name!r}, {self.description}, {len(self.entries)} keys>"

    def exact_to_store(self, key: Any) -> Any:
        """The exact key of the current key, whose entry is stored next; notes the user's form if it is another object.

        Raises:
            FlowletError: there is no current key.
        """
        exact = self.exact(key)
        if exact is not key:
            self.user_key_of[exact] = key
        return exact

    def clear(self) -> None:
        """Drop the entry of the current key."""
        key = self.key_context.current_key
        self.drop(key if type(key) in PLAIN else self.exact(key))

    @property
    def is_copying(self) -> bool:
        """Whether a copy is under way."""
        return self._is_copying and bool(self._copying.under_way())

    def forget_keys(self) -> None:
        """Drop all entries; no copy is under way."""
        assert not self.is_copying, "a copy would miss them"
        self.entries.clear()
        self.user_key_of.clear()
        self._order = []
        # It would keep the last key, an object of the user's, alive.
        self._last_key = _UNSET

    def attach(self, bind: Callable[[Callable[[Any], Any], Entries], None]) -> None:
        """Give the table's one state the ``get`` and the entries that it must use: ``bind`` is called now and at each
        change.
        """
        self._bind = bind
        bind(self.entries.get, self.entries)

    def drop(self, exact: Any) -> None:
        """Drop the entry of an exact key."""
        # Before the removal: a copy that misses the entry in the table looks among the kept ones next.
        if self._is_copying:
            self._copying.keep(exact)
            if exact in self.user_key_of:
                self._copying.keep_user_key(exact, self.user_key_of[exact])
        if self.entries.pop(exact, None) is not None:
            # A new list, not a cleared one: copies under way read the old one.
            self._order = []
        self.user_key_of.pop(exact, None)

    def retain(self, exact: Any, expiry: Expiry, now_ms: int) -> None:
        """Drop the expired parts of the entry of an exact key, if there is one."""
        stored = self.entries.get(exact)
        if stored is None:
            return
        live = expiry.live(self.description.kind, stored, now_ms)
        if live is None:
            self.drop(exact)
        elif live is not stored:
            if self._is_copying:
                self._copying.get(exact)  # frozen, not only kept: the live part of it stays in use
            self.entries[exact] = live

    def user_keys(self) -> list[Any]:
        """The keys of all entries, as the user knows them."""
        user_keys = self.user_key_of
        return [user_keys.get(exact, exact) for exact in self.entries]

    # -- snapshots

    def copy(self, expiry: Expiry | None = None, now_ms: int = 0) -> TableCopy:
        """Begin a snapshot; it is given up when its last reference goes.

        Takes time for the keys that are new since the last copy, or for all keys if one was dropped meanwhile.

        Args:
            expiry: leaves out rows that have expired at ``now_ms``; None: none are left out.
            now_ms: see ``expiry``.
        """
        num_new = len(self.entries) - len(self._order)
        if not self._order:
            self._order = list(self.entries)
        elif num_new:
            # No key was dropped since, so that new keys are the last ones of the dictionary.
            newest = list(islice(reversed(self.entries), num_new))
            newest.reverse()
            self._order += newest
        # The copy before the switch: from the next access on, the state keeps rows for it.
        copy = TableCopy(self, self._order, expiry, now_ms)
        self._copying.add(copy)
        self._is_copying = True
        self._bind(self._copying.get, self._copying)
        return copy

    def _settle(self) -> None:
        """Let the state use the dictionary itself: no copy is under way any more."""
        # In the middle of an access of the state, perhaps: it has its entry already, and goes on with it.
        self._is_copying = False
        self._bind(self.entries.get, self.entries)

    def restore(self, rows: Iterable[StateRows]) -> None:
        """Take over entries; keys that are there already are replaced."""
        for each in rows:
            keys = list(each.keys)
            exact = exact_keys(keys)
            self.entries.update(zip(exact, thawed_rows(self.description.kind, each.values), strict=True))
            # The list itself comes back if all keys are plain: then no form of a user's is noted.
            if exact is not keys:
                self.user_key_of.update(
                    (stored, key) for stored, key in zip(exact, keys, strict=True) if stored is not key
                )

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert self.user_key_of.keys() <= self.entries.keys(), "a key without an entry"
        assert all(exact_key(key) == exact for exact, key in self.user_key_of.items()), "a key that is another one"
        assert self._order == list(islice(self.entries, len(self._order))), "the order is another one"
