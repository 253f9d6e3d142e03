"""Copies of what a state keeps, for snapshots, and back.

Values that cannot change are not copied: per snapshot one pass in C over their types.  Others are pickled in one call, which is a tenth of
the time of ``copy.deepcopy``; the snapshot pool unpickles them.

Side:       pure.
Invariants: what is frozen does not change when the user changes a value in place.  What is thawed shares no list or map with the snapshot.
Source:     Flink ``TypeSerializer.copy``, ``HeapSnapshotStrategy``.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from flowlet.columns.unchanging import are_unchanging
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record
from flowlet.state.keyed_state_snapshot import StateKind


class MapEntry:
    """A value of a map, and its key where that is not its own exact key."""

    __slots__ = ("key", "value")

    def __init__(self, key: Any, value: Any) -> None:
        self.key = key
        self.value = value


def map_pairs(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values of a map."""
    return [(value.key, value.value) if type(value) is MapEntry else (key, value) for key, value in entries.items()]


def frozen_rows(name: str, kind: StateKind, entries: list[Any]) -> Callable[[], Sequence[Any]]:
    """Copy what a state keeps; what is returned gives it in the form of ``StateRows``, on any thread.

    Raises:
        FlowletError: something cannot be copied; names the state.
    """
    match kind:
        case StateKind.LIST:
            rows: list[Any] = [tuple(entry) for entry in entries]
            is_fixed = are_unchanging(list(chain.from_iterable(rows)))
        case StateKind.MAP:
            rows = [tuple(map_pairs(entry)) for entry in entries]
            is_fixed = are_unchanging(list(chain.from_iterable(rows)))
        case _:
            rows = entries
            is_fixed = are_unchanging(rows)
    if is_fixed:
        return lambda: rows
    data = _dumped(name, rows)
    return lambda: loads_record(data)


def thawed_rows(kind: StateKind, values: Sequence[Any]) -> list[Any]:
    """What a state keeps for values of ``StateRows``; shares nothing that can change with them."""
    rows = list(values)
    rows = rows if are_unchanging(rows) else loads_record(dumps_record(rows))
    match kind:
        case StateKind.LIST:
            return [list(row) for row in rows]
        case StateKind.MAP:
            return [dict(stored_pair(key, value) for key, value in row) for row in rows]
        case _:
            return rows


def stored_pair(key: Any, value: Any) -> tuple[Any, Any]:
    """Key and value of the dictionary that keeps a map."""
    exact = exact_key(key)
    return (key, value) if exact is key else (exact, MapEntry(key, value))


def _dumped(name: str, rows: list[Any]) -> bytes:
    try:
        return dumps_record(rows)
    except Exception as error:
        raise FlowletError(
            f"state {name!r} holds a value that cannot be pickled into a snapshot ({error}); keep values that can be pickled"
        ) from error
