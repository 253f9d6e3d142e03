"""``TableCopy``: one snapshot of a ``StateTable`` that is under way.

The task goes on with its table.  The snapshot pool reads the table some keys at a time; before the task replaces or
drops what is kept for a key, or hands out something that a user can change in place, it keeps here what was there when
the snapshot began.

Side:       shared.  ``keep`` on the task thread; ``rows`` once, on any thread.  Nothing else is shared but
            dictionaries, of which each thread uses single operations (get, set) only.
Invariants: what ``rows`` gives is the table as it was when the copy began.  The task keeps a row before it changes it,
            and the pool looks for kept rows after it has copied: so a row that was changed in the middle of its copy is
            always found here.
Source:     Flink ``CopyOnWriteStateMap``, ``CopyOnWriteStateMapSnapshot``.  As there, a value that a user got before
            the snapshot began, and holds on to, must not be changed in place: values are changed while the record is
            processed for which they were got.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from flowlet.errors import FlowletError
from flowlet.state.declared_values import DeclaredValues, copied_rows, thawed_row
from flowlet.state.state_snapshots import StateDescription, StateKind, StateRows
from netstack.late import numpy as np

if TYPE_CHECKING:
    from flowlet.state.ttl_states import Expiry

# Keys per step, which is about 1 ms of work in C, in which the task waits for the interpreter; not measured with other
# numbers.
STEP: Final = 4096


class TableCopy:
    """What one snapshot takes of one table.

    Args:
        name: the state's.
        description: what the snapshot says about it.
        entries: of the table; changes meanwhile.
        user_keys: of the table; changes meanwhile.
        keys: the exact keys, in an order; may grow meanwhile.
        expiry: leaves expired rows out; None: all are taken.
        now_ms: when the snapshot began.
        declared: the declared type of the values.
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

    def __init__(
        self,
        name: str,
        description: StateDescription,
        entries: dict[Any, Any],
        user_keys: dict[Any, Any],
        keys: list[Any],
        expiry: Expiry | None,
        now_ms: int,
        declared: DeclaredValues,
    ) -> None:
        self._name = name
        self._description = description
        self._entries = entries
        self._user_keys = user_keys
        self._keys = keys
        self._num_keys = len(keys)
        self._expiry = expiry
        self._now_ms = now_ms
        self._declared = declared if declared.is_serialized_checked else None
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
        # Stable, so that the keys of a group stay in the order in which they were first stored.  There are at most
        # 32,768 groups, and numbers of 16 bits are sorted by digits, in a fifth of the time.
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        sorted_groups = groups[order]
        starts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist()]
        runs = list(zip(sorted_groups[starts].tolist(), starts, [*starts[1:], len(keys)], strict=True))
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
