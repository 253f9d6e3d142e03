"""Rows in RocksDB: their keys, and what they are in snapshots that every back end reads.

Side:       task.
Invariants: no key's bytes (``key_bytes``) with their length are the beginning of another key's.  A row whose keys can
            be read back from its bytes holds the value alone; any other one the keys as the user knows them, too.
Format:     key group (u16), number of the state (u16), size of the key (u32), the key; in a map, the key of the map
            follows.
Source:     Flink ``CompositeKeySerializationUtils``.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from flowlet.errors import StateRestoreError
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.keys.exact_keys import exact_key, key_bytes, key_group, plain_key
from flowlet.serde.pickles.former_classes import RunningClasses, loads_former, may_hold_classes
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.state.state_snapshots import StateDescription, StateKind, StateRows
from flowlet.state.ttl_states import Expiry

HEAD: Final = struct.Struct(">HHI")
PREFIX: Final = struct.Struct(">HH")
MAX_STATES: Final = 1 << 16
WITH_KEYS: Final = 1
"""What a row begins with that holds the keys, too; a pickle begins with another byte (``record_pickle``)."""
WITH_KEYS_PREFIX: Final = bytes([WITH_KEYS])


def row_prefix(key_group: int, state_id: int, content: bytes) -> bytes:
    """What all rows of a key of the stream begin with, from the bytes of the key."""
    return HEAD.pack(key_group, state_id, len(content)) + content


def taken_apart(row: bytes) -> tuple[int, int, bytes, bytes]:
    """Key group, number of the state, bytes of the key, and of the key of the map (none: empty)."""
    key_group, state_id, size = HEAD.unpack_from(row)
    end = HEAD.size + size
    return key_group, state_id, row[HEAD.size : end], row[end:]


def _by_key(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Iterator[tuple[Any, bytes]]]]:
    """Rows in the order of the database, taken apart: the key group, the state and the key, with its rows; a map has
    several.
    """
    return groupby(((taken_apart(row), content) for row, content in rows), key=lambda row: row[0][:3])


def full_snapshot(
    rows: Iterable[tuple[bytes, bytes]], states: Mapping[int, tuple[str, StateKind, Expiry | None]], now_ms: int
) -> dict[int, dict[str, StateRows]]:
    """The rows of a whole database, in its order, by key group and name of the state.

    ``states``: by their numbers; with an expiry, what has expired at ``now_ms`` is left out.
    """
    found: dict[int, dict[str, tuple[list[Any], list[Any]]]] = {}
    for (group, number, _), of_key in _by_key(rows):
        name, kind, expiry = states[number]
        row_kind = StateKind.LIST if kind is StateKind.LIST else StateKind.VALUE  # a row of a map is one entry
        key: Any = None
        entries = []
        for (_, _, outer, inner), content in of_key:
            (key, *map_key), value = _read(kind, outer, inner, content)
            # None is a value in a map without expiry.
            if expiry is None or (value := expiry.live(row_kind, value, now_ms)) is not None:
                entries.append((*map_key, value) if kind is StateKind.MAP else value)
        if entries:
            keys, values = found.setdefault(group, {}).setdefault(name, ([], []))
            keys.append(key)
            # A list of the user is a tuple here, and a map a tuple of pairs.
            whole = entries if kind is StateKind.MAP else entries[0]
            values.append(tuple(whole) if kind in (StateKind.MAP, StateKind.LIST) else whole)
    return {
        group: {name: StateRows(tuple(keys), tuple(values)) for name, (keys, values) in of_group.items()}
        for group, of_group in found.items()
    }


def rows_of_snapshot(kind: StateKind, group: int, state_id: int, rows: StateRows) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a state in a key group for RocksDB."""
    for key, value in zip(rows.keys, rows.values, strict=True):
        prefix = row_prefix(group, state_id, key_bytes(exact_key(key)))
        match kind:
            case StateKind.MAP:
                for map_key, each in value:
                    yield prefix + key_bytes(exact_key(map_key)), row_content(each, key, map_key)
            case StateKind.LIST:
                yield prefix, row_content(list(value), key)
            case StateKind.COLUMNS:
                yield row_prefix(group, state_id, key), value
            case _:
                yield prefix, row_content(value, key)


def with_other_ttl(declared: StateDescription, row: bytes, content: bytes, now_ms: int) -> bytes:
    """The content of a row whose entries begin, at ``now_ms``, or cease to expire."""

    def converted(entry: Any) -> Any:
        return (entry, now_ms) if declared.has_ttl else entry[0]

    _, _, outer, inner = taken_apart(row)
    keys, value = _read(declared.kind, outer, inner, content)
    return row_content(list(map(converted, value)) if declared.kind is StateKind.LIST else converted(value), *keys)


def with_running_classes(
    kind: StateKind, row: bytes, content: bytes, max_parallelism: int, classes: RunningClasses
) -> bytes:
    """The content of a row that another program wrote, with the classes of the program that runs.

    Raises:
        FormerClassError: a class is not there any more, or cannot take what was written.
        StateRestoreError: the keys would become other ones.
    """
    if kind is StateKind.COLUMNS:
        return content
    body = content if content[0] != WITH_KEYS else memoryview(content)[1:]
    if not may_hold_classes(body):
        return content
    _, number, outer, inner = taken_apart(row)
    keys, value = _read(kind, outer, inner, content, lambda data: loads_former(data, classes))
    key, *map_key = [key_bytes(exact_key(each)) for each in keys]
    if row != row_prefix(key_group(keys[0], max_parallelism), number, key) + b"".join(map_key):
        raise StateRestoreError(
            "the class of its keys has another name, or other fields that count for ==, than when they were written, "
            "so that they would be other keys; keep both, or start without the state"
        )
    return row_content(value, *keys)


def user_keys(kind: StateKind, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Any]:
    """The keys of the stream in rows of one state, as the user knows them; the rows are in the
    order of the database.
    """
    for _, of_key in _by_key(rows):
        (_, _, outer, inner), content = next(of_key)
        yield _read(kind, outer, inner, content)[0][0]


def row_content(value: Any, *keys: Any) -> bytes:
    """The content of a row with these keys: of the stream and, in a map, of the map.

    Raises SerdeError: the value cannot be pickled.
    """
    for key in keys:
        if type(key) not in PLAIN:
            return WITH_KEYS_PREFIX + dumps_value((*keys, value))
    return dumps_value(value)


def _read(
    kind: StateKind, outer: bytes, inner: bytes, content: bytes, loads: Callable[[bytes], Any] = loads_value
) -> tuple[tuple[Any, ...], Any]:
    """The keys, of the stream and in a map that of the map, and the value."""
    if kind is StateKind.COLUMNS:
        return (outer,), content
    if content[0] != WITH_KEYS:
        return tuple(map(plain_key, (outer, inner) if kind is StateKind.MAP else (outer,))), loads(content)
    *keys, value = loads(content[1:])
    return tuple(keys), value
