"""``StateTable``: the entries of one state, by key.

Hot path, per access of a state: one look at the type of the key and one dictionary access (bench: state).  A key that is no str, int, bytes
or None also needs ``exact_key``, which is not computed again while the current key is the same object.

Side:       task.
Invariants: an entry is stored under the exact key (``flowlet.keys.exact_keys``): 1, 1.0 and True have three.  ``_user_keys`` holds the key
            as the user knows it for every entry whose exact key is another object, and nothing else.
            What ``freeze`` gave does not change when the user changes a value in place.
Source:     Flink ``StateTable``, ``CopyOnWriteStateMap``.  Flink keeps one map per key group; here the key groups are computed when a
            snapshot is finished.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Final, Protocol

import numpy as np

from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.keys.key_columns import column_key_groups
from flowlet.state.frozen_rows import frozen_rows, thawed_rows
from flowlet.state.keyed_state_snapshot import StateDescription, StateKind, StateRows
from flowlet.timers.time_api import NO_KEY, KeyContext

# Keys of these types are their own exact keys.
PLAIN: Final = frozenset({str, int, bytes, NoneType})
_UNSET: Final = object()


class LiveEntries(Protocol):
    """Decides which entries have expired."""

    def live(self, kind: StateKind, stored: Any, now_ms: int) -> Any:
        """What is left of what is stored for a key: the same object if nothing expired, None if nothing is left."""


class StateTable:
    """The entries of one state; task thread only.

    Args:
        name: the state's.
        description: what a snapshot says about it.
        key_context: holds the current key.
    """

    __slots__ = ("_last_exact", "_last_key", "_user_keys", "description", "entries", "key_context", "name")

    def __init__(self, name: str, description: StateDescription, key_context: KeyContext) -> None:
        self.name = name
        self.description = description
        self.key_context = key_context
        self.entries: dict[Any, Any] = {}  # Changed in place only: states keep its bound methods.
        self._user_keys: dict[Any, Any] = {}
        self._last_key: Any = _UNSET
        self._last_exact: Any = None

    def __repr__(self) -> str:
        return f"<StateTable {self.name!r}, {self.description}, {len(self.entries)} keys>"

    def exact(self, key: Any) -> Any:
        """The exact key of the current key.  Raises FlowletError: there is none."""
        if key is self._last_key:
            return self._last_exact
        if key is NO_KEY:
            raise FlowletError(
                f"state {self.name!r} was used without a current key: use it only while a record or a timer is processed, not in open()"
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

    def drop(self, exact: Any) -> None:
        """Drop the entry of an exact key."""
        self.entries.pop(exact, None)
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
            self.entries[exact] = live

    def retain_all(self, expiry: LiveEntries, now_ms: int) -> None:
        """Drop what has expired of all entries."""
        for exact in list(self.entries):
            self.retain(exact, expiry, now_ms)

    # -- snapshots

    def freeze(self) -> Callable[[int], dict[int, StateRows]]:
        """Copy what may change; what is returned makes the rows of each key group, on any thread, from the number of key groups.

        Raises:
            FlowletError: a value cannot be copied; names state and key.
        """
        exact_keys, user_keys = list(self.entries), self._user_keys.copy()
        rows = frozen_rows(self.name, self.description.kind, list(self.entries.values()))

        def finish(max_parallelism: int) -> dict[int, StateRows]:
            return _by_key_group([user_keys.get(exact, exact) for exact in exact_keys], rows(), max_parallelism)

        return finish

    def restore(self, rows: Iterable[StateRows]) -> None:
        """Take over entries; keys that are there already are replaced."""
        for each in rows:
            keys = list(each.keys)
            exact = exact_keys(keys)
            self.entries.update(zip(exact, thawed_rows(self.description.kind, each.values), strict=True))
            if exact is not keys:
                self._user_keys.update((stored, key) for stored, key in zip(exact, keys, strict=True) if stored is not key)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert self._user_keys.keys() <= self.entries.keys(), "a key without an entry"
        assert all(exact_key(key) == exact for exact, key in self._user_keys.items()), "a key that is another one"


def _by_key_group(keys: list[Any], values: Sequence[Any], max_parallelism: int) -> dict[int, StateRows]:
    if not keys:
        return {}
    groups = column_key_groups(keys, max_parallelism)
    # Stable, so that the keys of a group stay in the order in which they were first stored.
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist(), len(keys)]
    places = order.tolist()
    sorted_keys, sorted_values = [keys[place] for place in places], [values[place] for place in places]
    return {
        int(sorted_groups[start]): StateRows(tuple(sorted_keys[start:end]), tuple(sorted_values[start:end]))
        for start, end in pairwise(starts)
    }
