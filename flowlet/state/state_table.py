"""``StateTable``: the entries of one state, by key.

``TableCopy``: one snapshot of a ``StateTable`` that is under way.

The task goes on with its table.  The snapshot pool reads the table some keys at a time; before the task replaces or
drops what is kept for a key, or hands out something that a user can change in place, it keeps here what was there when
the snapshot began.

``CopyingEntries``: a table's entries while a snapshot is under way.

States use it instead of the dictionary itself, only as long as a ``TableCopy`` of their table is not complete.

Hot path, only during snapshots: a look at the type, at the copy, and at what it has kept.

Hot path, per access of a state: one look at the type of the key and one dictionary access (bench: state).  A key that
is no str, int, bytes or None also needs ``exact_key``, which is not computed again while the current key is the same
object.

Side:       shared.
Invariants: what ``rows`` gives is the table as it was when the copy began.  The task keeps a row before it changes it,
            and the pool looks for kept rows after it has copied: so a row that was changed in the middle of its copy is
            always found here.  before a row is replaced, dropped or handed out in a form that can change, every copy
            under way has it.  an entry is stored under the exact key (``flowlet.keys.exact_keys``): 1, 1.0 and True
            have three. ``_user_keys`` holds the key as the user knows it for every entry whose exact key is another
            object, and nothing else.  While a copy is under way, the states read and write through ``CopyingEntries``;
            else they use the dictionary itself.  ``_order`` holds the keys in the order of the dictionary up to its
            newest ones, or is empty.
Source:     Flink ``CopyOnWriteStateMap``, ``CopyOnWriteStateMapSnapshot``.  As there, a value that a user got before
            the snapshot began, and holds on to, must not be changed in place: values are changed while the record is
            processed for which they were got.  Flink ``CopyOnWriteStateMap.get`` and ``put``: copy on read, copy on
            write.  Flink ``StateTable``, ``CopyOnWriteStateMap``.  Flink keeps one map per key group; here the key
            groups are computed when a snapshot is finished.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, repeat
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from flowlet.columns.column import UNCHANGING
from flowlet.common.typeinfo import PickledBytesTypeInfo
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import are_plain, exact_key, exact_keys
from flowlet.state.declared_values import DeclaredValues, copied_rows, frozen_row, thawed_row, thawed_rows
from flowlet.state.state_snapshots import ColumnRows, StateDescription, StateKind, StateRows
from flowlet.timers.time_api import NO_KEY, KeyContext
from netstack.late import numpy as np

if TYPE_CHECKING:
    from flowlet.state.ttl_states import Expiry


# Keys per step, which is about 1 ms of work in C, in which the task waits for the interpreter; not measured with other
# numbers.
STEP: Final = 4096


class TableCopy:
    """What one snapshot takes of one table.

    Args:
        table: what it takes; changes meanwhile.
        expiry: leaves expired rows out; None: all are taken.
        now_ms: when the snapshot began.
    """

    __slots__ = (
        "__weakref__",
        "_declared",
        "_description",
        "_entries",
        "_expiry",
        "_keys",
        "_name",
        "_now_ms",
        "_num_keys",
        "_user_keys",
        "is_complete",
        "kept",
        "kept_user_keys",
    )

    def __init__(self, table: StateTable, expiry: Expiry | None, now_ms: int) -> None:
        self._name = table.name
        self._description = table.description
        self._entries = table.entries
        self._user_keys = table._user_keys
        self._keys = table._order  # exact keys, in an order; may grow meanwhile
        self._num_keys = len(self._keys)
        self._expiry = expiry
        self._now_ms = now_ms
        self._declared = table.declared if table.declared.is_serialized_checked else None
        # Written by the task thread, each key once; read by the pool.
        self.kept: dict[Any, Any] = {}
        self.kept_user_keys: dict[Any, Any] = {}
        self.is_complete = False  # Written by the pool; read by the task thread, late is fine.

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
        try:
            for exact in self._steps():
                some_keys, some_values = self._users_keys(exact), self._rows_of(exact)
                if self._expiry is not None:
                    some_keys, some_values = self._live(self._expiry, some_keys, some_values)
                if self._declared is not None:
                    self._declared.check_rows(self._description.kind, some_values, has_ttl=self._description.has_ttl)
                if some_keys:
                    # Here, as a task without keys needs no numpy.
                    from flowlet.keys.key_columns import column_key_groups

                    grouped.add(some_keys, some_values, column_key_groups(some_keys, max_parallelism))
        finally:
            self.is_complete = True
            self.kept.clear()
            self.kept_user_keys.clear()
        return grouped.rows()

    def _steps(self) -> Iterator[list[Any]]:
        for start in range(0, self._num_keys, STEP):
            yield self._keys[start : min(start + STEP, self._num_keys)]

    def _users_keys(self, exact: list[Any]) -> list[Any]:
        if not self._user_keys and not self.kept_user_keys:
            return exact
        # The table's first: a key that is dropped between the two looks is kept before.
        known = list(map(self._user_keys.get, exact, repeat(_UNKNOWN)))
        kept = self.kept_user_keys
        return [kept.get(key, key) if found is _UNKNOWN else found for key, found in zip(exact, known, strict=True)]

    def _rows_of(self, exact: list[Any]) -> list[Any]:
        stored = list(map(self._entries.get, exact))
        rows = self._copied(exact, stored)
        if not self.kept:
            return rows
        kept = list(map(self.kept.get, exact))
        if kept.count(None) < len(kept):
            rows = list(rows)
            for place, each in enumerate(kept):
                if each is not None:
                    rows[place] = thawed_row(self._name, self._description.kind, each)
        return rows

    def _copied(self, exact: list[Any], stored: list[Any]) -> list[Any]:
        """Copies; without meaning where the task changed something meanwhile, for that is kept."""
        kind = self._description.kind
        if kind in (StateKind.LIST, StateKind.MAP):
            stored = [() if each is None else each for each in stored]
        try:
            return copied_rows(self._name, kind, stored)
        except Exception:  # noqa: BLE001 - perhaps the task was just changing one of them: each by itself
            return [self._copied_row(key, each) for key, each in zip(exact, stored, strict=True)]

    def _copied_row(self, key: Any, stored: Any) -> Any:
        try:
            return copied_rows(self._name, self._description.kind, [stored])[0]
        except Exception as error:
            if key in self.kept:
                return None
            if isinstance(error, FlowletError):
                raise
            raise FlowletError(
                f"state {self._name!r}: a value cannot be copied into a snapshot: {type(error).__name__}: {error}"
            ) from error

    def _live(self, expiry: Expiry, keys: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
        kind, now_ms = self._description.kind, self._now_ms
        rows = [expiry.live_row(kind, row, now_ms) for row in values]
        return [key for key, row in zip(keys, rows, strict=True) if row is not None], [
            row for row in rows if row is not None
        ]


_UNKNOWN: Final = object()


class _GroupedRows:
    """Collects rows by key group, step by step, while their keys and values are still in the processor's cache.

    500,000 int keys with int values: 0.1 s of CPU from the table to the bytes, which the task lacks.  With one list of
    all rows, picked by key group at the end, it was 0.45 s, spent on waiting for memory.
    """

    def __init__(self) -> None:
        self._keys = _GroupedColumn()
        self._values = _GroupedColumn()

    def add(self, keys: list[Any], values: list[Any], groups: Any) -> None:
        """Take rows, at least one, with the key group of each."""
        order, runs = _runs(groups)
        self._keys.add(keys, order, runs)
        self._values.add(values, order, runs)

    def rows(self) -> dict[int, StateRows]:
        """All of them."""
        return {
            group: StateRows(self._keys.of_group(group), self._values.of_group(group)) for group in self._keys.groups()
        }


class _GroupedColumn:
    """Keys or values by key group.

    Numbers are packed: an array is written in no time, and a list of ints takes 90 ns for each.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, list[Any]] = defaultdict(list)  # lists, and arrays of numpy

    def add(self, items: list[Any], order: Any, runs: list[tuple[int, int, int]]) -> None:
        """Take items; ``runs``: key groups, with their places among the items in ``order``."""
        ordered = _ordered(items, order)
        for group, start, end in runs:
            self._pieces[group].append(ordered[start:end])

    def groups(self) -> list[int]:
        """The key groups that have items."""
        return sorted(self._pieces)

    def of_group(self, group: int) -> Sequence[Any]:
        """All items of one key group."""
        pieces = self._pieces[group]
        kinds = {piece.dtype.name if isinstance(piece, np.ndarray) else None for piece in pieces}
        typecode = _TYPECODES.get(kinds.pop()) if len(kinds) == 1 else None
        if typecode is not None:
            return array(typecode, np.concatenate(pieces).tobytes())
        return list(chain.from_iterable(piece.tolist() if isinstance(piece, np.ndarray) else piece for piece in pieces))


def _runs(groups: Any) -> tuple[Any, list[tuple[int, int, int]]]:
    """An order of rows, by the key group of each, and each group with its first place there and the one after its last.

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
        grouped_keys = _GroupedColumn()
        order, runs = _runs(groups)
        grouped_keys.add(keys, order, runs)
        return {
            group: StateRows(grouped_keys.of_group(group), ColumnRows(values.columns.take(order[start:end])))
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


class CopyingEntries:
    """Reads and writes the entries of a table for its states.

    Args:
        name: the state's.
        kind: the state's.
        entries: the dictionary.
        on_end: called when an access finds that no copy is under way any more.
    """

    __slots__ = ("_copies", "_entries", "_kept", "_kind", "_name", "_newest", "_on_end")

    def __init__(self, name: str, kind: StateKind, entries: dict[Any, Any], on_end: Callable[[], None]) -> None:
        self._name = name
        self._kind = kind
        self._entries = entries
        self._on_end = on_end
        # Weak: a snapshot that was cancelled is given up by whoever would have finished it.
        self._copies: tuple[ref[TableCopy], ...] = ()
        self._newest: Callable[[], TableCopy | None] = _no_copy
        # What the only copy has kept; empty if there are several.  The pool empties it in the end, so that the next
        # look finds that out.
        self._kept: Mapping[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<CopyingEntries of {self._name!r}, {self._copies!r}>"

    def add(self, copy: TableCopy) -> None:
        """From now on keep for this copy, too."""
        self._copies = (*(each for each in self._copies if not _is_over(each())), ref(copy))
        self._newest = self._copies[-1]
        self._kept = copy.kept if len(self._copies) == 1 else {}

    def has_copies(self) -> bool:
        """Whether a copy is under way; if not, ``on_end`` has been called."""
        return bool(self._under_way())

    def get(self, exact: Any) -> Any:
        """What is kept for a key, for its state, which may hand it out or change it; None if there is nothing."""
        stored = self._entries.get(exact)
        if stored is None or type(stored) in UNCHANGING:
            newest = self._newest()
            if newest is None or newest.is_complete:
                self._under_way()
            return stored
        if exact in self._kept:
            return stored
        frozen = None
        for copy in self._under_way():
            if exact not in copy.kept:
                if frozen is None:
                    frozen = frozen_row(self._name, self._kind, stored)
                copy.kept[exact] = frozen
        return stored

    def __setitem__(self, exact: Any, stored: Any) -> None:
        if exact not in self._kept:
            self.keep(exact)
        self._entries[exact] = stored

    def keep(self, exact: Any) -> None:
        """Called before what is kept for a key is replaced or dropped."""
        stored = self._entries.get(exact)
        if stored is None:
            return
        for copy in self._under_way():
            # As it is: the table forgets it, and it was not handed out since the copy began, or it would be kept
            # already.
            copy.kept.setdefault(exact, stored)

    def keep_user_key(self, exact: Any, key: Any) -> None:
        """Called before the user's form of a key is dropped."""
        for copy in self._under_way():
            copy.kept_user_keys.setdefault(exact, key)

    def _under_way(self) -> list[TableCopy]:
        copies = [copy for each in self._copies if (copy := each()) is not None and not copy.is_complete]
        if not copies:
            self._copies, self._newest, self._kept = (), _no_copy, {}
            self._on_end()
        return copies


def _is_over(copy: TableCopy | None) -> bool:
    return copy is None or copy.is_complete


def _no_copy() -> None:
    return None


# Keys of these types are their own exact keys.
PLAIN: Final = frozenset({str, int, bytes, NoneType})
_UNSET: Final = object()


class Entries(Protocol):
    """Where a state puts what it keeps for a key."""

    def __setitem__(self, exact: Any, stored: Any) -> None: ...


class BoundState(Protocol):
    """A state that keeps its entries in a table."""

    def bind(self, get: Callable[[Any], Any], entries: Entries) -> None:
        """From now on read entries with ``get`` and put them into ``entries``."""


class ExactKeys:
    """Finds the exact key of the current key of the state ``name``; task thread only."""

    __slots__ = ("_last_exact", "_last_key", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._last_key: Any = _UNSET
        self._last_exact: Any = None

    def exact(self, key: Any) -> Any:
        """The exact key of the current key.  Raises FlowletError: there is none."""
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


class StateTable(ExactKeys):
    """The entries of one state; task thread only.

    Args:
        name: the state's.
        description: what a snapshot says about it.
        key_context: holds the current key.
        declared: the declared type; None: any value will do.
    """

    __slots__ = (
        "_copying",
        "_is_copying",
        "_order",
        "_state",
        "_user_keys",
        "declared",
        "description",
        "entries",
        "key_context",
    )

    def __init__(
        self, name: str, description: StateDescription, key_context: KeyContext, declared: DeclaredValues | None = None
    ) -> None:
        super().__init__(name)
        self.declared = declared or DeclaredValues(name, PickledBytesTypeInfo(), StateKind.VALUE)
        self.description = description
        self.key_context = key_context
        self.entries: dict[Any, Any] = {}  # Changed in place only: states keep its bound methods.
        self._user_keys: dict[Any, Any] = {}
        self._state: BoundState | None = None
        self._copying = CopyingEntries(name, description.kind, self.entries, self._settle)
        self._is_copying = False
        self._order: list[Any] = []  # Only appended to, never changed: copies share it.

    def __repr__(self) -> str:
        return f"<StateTable {self.name!r}, {self.description}, {len(self.entries)} keys>"

    def exact_to_store(self, key: Any) -> Any:
        """As ``exact``, of a key whose entry is stored next."""
        exact = self.exact(key)
        if exact is not key:
            self._user_keys[exact] = key
        return exact

    def clear(self) -> None:
        """Drop the entry of the current key."""
        key = self.key_context.current_key
        self.drop(key if type(key) in PLAIN else self.exact(key))

    @property
    def is_copying(self) -> bool:
        """Whether a copy is under way."""
        return self._is_copying and self._copying.has_copies()

    def forget_keys(self) -> None:
        """Drop all entries; no copy is under way."""
        assert not self.is_copying, "a copy would miss them"
        self.entries.clear()
        self._user_keys.clear()
        self._order = []
        self._last_key = _UNSET

    def attach(self, state: BoundState) -> None:
        """Bind the one state whose entries these are."""
        self._state = state
        state.bind(self.entries.get, self.entries)

    def drop(self, exact: Any) -> None:
        """Drop the entry of an exact key."""
        if self._is_copying:
            self._keep_dropped(exact)
        if self.entries.pop(exact, None) is not None:
            self._order = []
        self._user_keys.pop(exact, None)

    def retain(self, exact: Any, expiry: Expiry, now_ms: int) -> None:
        """Drop what has expired of the entry of an exact key, if there is one."""
        stored = self.entries.get(exact)
        if stored is None:
            return
        live = expiry.live(self.description.kind, stored, now_ms)
        if live is None:
            self.drop(exact)
        elif live is not stored:
            if self._is_copying:
                self._copying.get(exact)  # frozen, not only kept: what is left of it stays in use
            self.entries[exact] = live

    def _keep_dropped(self, exact: Any) -> None:
        self._copying.keep(exact)
        if exact in self._user_keys:
            self._copying.keep_user_key(exact, self._user_keys[exact])

    def user_keys(self) -> list[Any]:
        """The keys of all entries, as the user knows them."""
        user_keys = self._user_keys
        return [user_keys.get(exact, exact) for exact in self.entries]

    # -- snapshots

    def copy(self, expiry: Expiry | None = None, now_ms: int = 0) -> TableCopy:
        """Begin a snapshot; it is given up when its last reference goes.

        Takes time for the keys that are new since the last copy, or for all keys if one was dropped meanwhile.

        Args:
            expiry: leaves out rows that have expired at ``now_ms``; None: none are left out.
            now_ms: see ``expiry``.
        """
        self._list_keys()
        copy = TableCopy(self, expiry, now_ms)
        self._copying.add(copy)
        self._is_copying = True
        if self._state is not None:
            self._state.bind(self._copying.get, self._copying)
        return copy

    def _list_keys(self) -> None:
        num_new = len(self.entries) - len(self._order)
        if not self._order:
            self._order = list(self.entries)
        elif num_new:
            # Nothing was dropped since, so that new keys are the last ones of the dictionary.
            newest = list(islice(reversed(self.entries), num_new))
            newest.reverse()
            self._order += newest

    def _settle(self) -> None:
        """No copy is under way any more."""
        self._is_copying = False
        if self._state is not None:
            self._state.bind(self.entries.get, self.entries)

    def restore(self, rows: Iterable[StateRows]) -> None:
        """Take over entries; keys that are there already are replaced."""
        for each in rows:
            keys = list(each.keys)
            exact = exact_keys(keys)
            self.entries.update(zip(exact, thawed_rows(self.description.kind, each.values), strict=True))
            if exact is not keys:
                self._user_keys.update(
                    (stored, key) for stored, key in zip(exact, keys, strict=True) if stored is not key
                )

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert self._user_keys.keys() <= self.entries.keys(), "a key without an entry"
        assert all(exact_key(key) == exact for exact, key in self._user_keys.items()), "a key that is another one"
        assert self._order == list(islice(self.entries, len(self._order))), "the order is another one"
