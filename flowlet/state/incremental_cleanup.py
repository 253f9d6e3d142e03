"""Removes expired entries of a state, a few at a time.

Side:       task.
Invariants: every entry that is not removed meanwhile is looked at once per round; a round costs one list of the keys.
Source:     Flink ``TtlIncrementalCleanup``.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from flowlet.state.keyed_state_snapshot import StateKind
from flowlet.state.state_table import StateTable
from flowlet.state.ttl_states import Expiry


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
