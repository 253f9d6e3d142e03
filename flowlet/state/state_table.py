"""``StateTable``: the entries of one state, by key.

``CopyingEntries``: a table's entries while a snapshot is under way.

States use it instead of the dictionary itself, only as long as a ``TableCopy`` of their table is not complete.

Hot path, only during snapshots: a look at the type, at the copy, and at what it has kept.

Hot path, per access of a state: one look at the type of the key and one dictionary access (bench: state).  A key that
is no str, int, bytes or None also needs ``exact_key``, which is not computed again while the current key is the same
object.

Side:       task.
Invariants: before a row is replaced, dropped or handed out in a form that can change, every copy under way has it.  an
            entry is stored under the exact key (``flowlet.keys.exact_keys``): 1, 1.0 and True have three.
            ``_user_keys`` holds the key as the user knows it for every entry whose exact key is another object, and
            nothing else.  While a copy is under way, the states read and write through ``CopyingEntries``; else they
            use the dictionary itself.  ``_order`` holds the keys in the order of the dictionary up to its newest ones,
            or is empty.
Source:     Flink ``CopyOnWriteStateMap.get`` and ``put``: copy on read, copy on write.  Flink ``StateTable``,
            ``CopyOnWriteStateMap``.  Flink keeps one map per key group; here the key groups are computed when a
            snapshot is finished.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from flowlet.columns.column import UNCHANGING
from flowlet.common.typeinfo import PickledBytesTypeInfo
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.state.declared_values import DeclaredValues, frozen_row, thawed_rows
from flowlet.state.state_snapshots import StateDescription, StateKind, StateRows
from flowlet.state.table_copy import TableCopy
from flowlet.timers.time_api import NO_KEY, KeyContext

if TYPE_CHECKING:
    from flowlet.state.ttl_states import Expiry


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


class LiveEntries(Protocol):
    """Decides which entries have expired."""

    def live(self, kind: StateKind, stored: Any, now_ms: int) -> Any:
        """What is left of what is stored for a key: the same object if nothing expired, None if nothing is left."""


class Entries(Protocol):
    """Where a state puts what it keeps for a key."""

    def __setitem__(self, exact: Any, stored: Any) -> None: ...


class BoundState(Protocol):
    """A state that keeps its entries in a table."""

    def bind(self, get: Callable[[Any], Any], entries: Entries) -> None:
        """From now on read entries with ``get`` and put them into ``entries``."""


class StateTable:
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
        "_last_exact",
        "_last_key",
        "_order",
        "_state",
        "_user_keys",
        "declared",
        "description",
        "entries",
        "key_context",
        "name",
    )

    def __init__(
        self, name: str, description: StateDescription, key_context: KeyContext, declared: DeclaredValues | None = None
    ) -> None:
        self.name = name
        self.declared = declared or DeclaredValues(name, PickledBytesTypeInfo(), StateKind.VALUE)
        self.description = description
        self.key_context = key_context
        self.entries: dict[Any, Any] = {}  # Changed in place only: states keep its bound methods.
        self._user_keys: dict[Any, Any] = {}
        self._last_key: Any = _UNSET
        self._last_exact: Any = None
        self._state: BoundState | None = None
        self._copying = CopyingEntries(name, description.kind, self.entries, self._settle)
        self._is_copying = False
        self._order: list[Any] = []  # Only appended to, never changed: copies share it.

    def __repr__(self) -> str:
        return f"<StateTable {self.name!r}, {self.description}, {len(self.entries)} keys>"

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
        self._last_key, self._last_exact = key, exact
        return exact

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

    def retain(self, exact: Any, expiry: LiveEntries, now_ms: int) -> None:
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

    def copy(self, expiry: "Expiry | None" = None, now_ms: int = 0) -> TableCopy:
        """Begin a snapshot; it is given up when its last reference goes.

        Takes time for the keys that are new since the last copy, or for all keys if one was dropped meanwhile.

        Args:
            expiry: leaves out rows that have expired at ``now_ms``; None: none are left out.
            now_ms: see ``expiry``.
        """
        self._list_keys()
        copy = TableCopy(
            self.name, self.description, self.entries, self._user_keys, self._order, expiry, now_ms, self.declared
        )
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
