"""``CopyingEntries``: a table's entries while a snapshot is under way.

States use it instead of the dictionary itself, only as long as a ``TableCopy`` of their table is not complete.

Hot path, only during snapshots: a look at the type, at the copy, and at what it has kept.

Side:       task.
Invariants: before a row is replaced, dropped or handed out in a form that can change, every copy under way has it.
Source:     Flink ``CopyOnWriteStateMap.get`` and ``put``: copy on read, copy on write.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from flowlet.columns.unchanging import UNCHANGING
from flowlet.state.frozen_rows import frozen_row
from flowlet.state.keyed_state_snapshot import StateKind
from flowlet.state.table_copy import TableCopy


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
