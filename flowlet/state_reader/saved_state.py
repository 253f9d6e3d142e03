"""``SavedState``: the state in a savepoint or checkpoint, operator by operator.

``arrow_column``: values of state as Arrow arrays.  ``full_snapshot_of``: reads keyed state that RocksDB has written
incrementally.

Side:       shared.
Rules:      a value has its declared type; without a declared type it has the type that Arrow finds, and a value that
            Arrow does not know is its ``repr``.  A column never mixes the two: if one value does not fit, all are
            texts.
Invariants: no byte is unpickled before the MAC of the manifest, with the cluster's secret, and the SHA-256 of the state
            were checked.  Files are only read.
Source:     Flink ``SavepointReader``, ``SavepointMetadata``.
Absent:     data in flight of unaligned checkpoints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.checkpoint.task.state_codec import decode_state, operator_sizes
from flowlet.common.paths import absolute_url
from flowlet.common.typeinfo import BasicType, BasicTypeInfo
from flowlet.common.types import Row, field_names_of, fields_of_record
from flowlet.errors import FlowletError, StateRestoreError, StorageError
from flowlet.keys.exact_keys import ExactKey, NamespacedKey
from flowlet.rpc.secret import load_secret
from flowlet.state.state_backends import SharedFiles
from flowlet.state.state_snapshots import (
    AGGREGATES,
    IncrementalSnapshot,
    KeyedStateSnapshot,
    OperatorStateRows,
    Redistribution,
    StateDescription,
    StateKind,
    StateRows,
    TypeForm,
)
from flowlet.state.state_table import AggregationSnapshot
from flowlet.storage.checkpoint_storage import CheckpointStorage, open_checkpoint
from flowlet.storage.manifest import CheckpointManifest, VertexEntry, manifest_key
from flowlet.storage.state_files import StateFiles
from flowlet.timers.keyed_timer_service import KeyContext
from flowlet.types.leaf_forms import arrow_type_of
from netstack.late import dataclass

_BASIC: Final = {each.value: arrow_type_of(BasicTypeInfo(each)) for each in BasicType} | {"Char": pa.string()}
# The types of columns whose values do not decide it.
_OF_COLUMNS: Final = {
    **dict.fromkeys(("service", "time_domain", "position"), pa.string()),
    "subtask": pa.int32(),
    "timestamp_ms": pa.int64(),
}
_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_ANY_NUMBER: Final = 1  # of key groups, which are not shown
_LISTS: Final = ("List", "BasicArray", "ObjectArray", "PrimitiveArray")


def arrow_column(values: Sequence[Any], form: TypeForm | None = None) -> pa.Array:
    """The values as an array; ``form``: their declared type."""
    declared = None if form is None else _arrow_type(form)
    if form is not None and declared is not None:
        try:
            return pa.array([_plain(each, form) for each in values], type=declared)
        except _UNFIT:
            # A value has another type than the declared one, which no check refuses when it is stored: Arrow infers
            # one.
            pass
    try:
        return pa.array([_plain(each, None) for each in values])
    except _UNFIT:
        texts = [each if each is None or isinstance(each, str) else repr(each) for each in values]
        return pa.array(texts, type=pa.string())


def _arrow_type(form: TypeForm) -> pa.DataType | None:
    """The Arrow type of a declared type; None: Arrow has no such type."""
    if form.name in _BASIC:
        return _BASIC[form.name]
    parts = [_arrow_type(each) for each in form.parts]
    if not parts or None in parts:
        return None
    if form.name == "Map":
        return pa.map_(*parts)
    if form.name in _LISTS:
        return pa.list_(parts[0])
    return pa.struct(list(zip(_names(form.fields, len(parts)), parts, strict=True)))


def _names(fields: Sequence[str], number: int) -> list[str]:
    return list(fields) or [f"f{index}" for index in range(number)]


def _plain(value: Any, form: TypeForm | None) -> Any:
    """The value in a form that Arrow can read: rows and tuples by the names of their fields, maps as pairs."""
    parts = () if form is None else form.parts
    match value:
        case Row():
            if form is None:
                return _fields(list(value), field_names_of(value) or (), parts)
            return _fields(fields_of_record(value, _names(form.fields, len(parts))), form.fields, parts)
        case tuple():
            return _fields(value, () if form is None else form.fields, parts)
        case list():
            return [_plain(each, parts[0] if parts else None) for each in value]
        case dict():
            of_key, of_value = parts if parts else (None, None)
            return [(_plain(key, of_key), _plain(each, of_value)) for key, each in value.items()]
        case _:
            return value


def _fields(values: Sequence[Any], names: Sequence[str], parts: Sequence[TypeForm]) -> dict[str, Any]:
    forms: Sequence[TypeForm | None] = parts or [None] * len(values)
    found = [_plain(each, form) for each, form in zip(values, forms, strict=True)]
    return dict(zip(_names(names, len(found)), found, strict=True))


def full_snapshot_of(snapshot: IncrementalSnapshot, storage: StateFiles) -> KeyedStateSnapshot:
    """The state of a snapshot in the form that every back end reads.

    Raises:
        StateRestoreError: RocksDB is not installed, or the state cannot be read.
        StorageError: a file is missing or was changed.
    """
    try:
        from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
    except ImportError as error:
        raise StateRestoreError(
            "this state was written by RocksDB, incrementally: pip install 'flowlet[rocksdb]' to read it"
        ) from error
    assert isinstance(storage, CheckpointStorage), "savepoints are never incremental"
    groups = range(snapshot.first_key_group, snapshot.end_key_group)
    place = RocksDBPlace(shared_files=SharedFiles(storage))
    backend = RocksDBKeyedStateBackend(KeyContext(), lambda: 0, groups, snapshot.max_parallelism, place)
    try:
        backend.restore(snapshot)
        finish = backend.snapshot(is_full=True)
        if finish is None:
            return KeyedStateSnapshot(snapshot.descriptions, snapshot.max_parallelism)
        found = finish()
        assert isinstance(found, KeyedStateSnapshot), "it is full"
        return found
    finally:
        backend.close()


AGGREGATE: Final = "aggregate"
"""The name of the state in which ``sum``, ``reduce``, ``min``, ``max`` and ``count`` keep their results by key."""
POSITION: Final = "position"
"""The name of a source's position, and of the elements that an asynchronous function works on."""
_AGGREGATION: Final = "aggregation"
_KEYED: Final = (_AGGREGATION, *(each.value for each in StateKind))
_OF_SUBTASKS: Final = tuple(each.value for each in Redistribution)


@dataclass(frozen=True, slots=True)
class SavedStateInfo:
    """One state: ``kind`` as users know it, its declared type, and how many entries it has."""

    name: str
    kind: str
    type_name: str
    num_entries: int


@dataclass(frozen=True, slots=True)
class SavedOperator:
    """One operator of the job; ``uid`` None: it has none.  ``num_bytes``: the size of all its state, as written."""

    operator_id: str
    uid: str | None
    name: str
    vertex: str
    parallelism: int
    max_parallelism: int
    num_bytes: int
    num_timers: int
    states: tuple[SavedStateInfo, ...]


class SavedState:
    """A savepoint or checkpoint, which was verified; made by ``read_state``.

    Threading: one thread.
    """

    def __init__(self, path: str, storage: StateFiles, manifest: CheckpointManifest) -> None:
        self.path = path
        """The directory of the savepoint or checkpoint."""
        self._storage = storage
        self._manifest = manifest
        self._sizes: dict[str, int] = {}
        self._parts: dict[str, list[tuple[int, OperatorState]]] = {}  # by operator id: subtask and state
        self._is_read = False

    def __repr__(self) -> str:
        kind = "savepoint" if self.is_savepoint else "checkpoint"
        return f"<SavedState of {kind} {self._manifest.checkpoint_id} of job {self._manifest.job_name!r}>"

    @property
    def job_id(self) -> str:
        """The id of the job that wrote it."""
        return self._manifest.job_id

    @property
    def job_name(self) -> str:
        """The name of that job."""
        return self._manifest.job_name

    @property
    def checkpoint_id(self) -> int:
        """The number of the checkpoint or savepoint within its job."""
        return self._manifest.checkpoint_id

    @property
    def timestamp_ms(self) -> int:
        """The time at which it was begun, in milliseconds since the epoch."""
        return self._manifest.timestamp_ms

    @property
    def is_savepoint(self) -> bool:
        """Whether it is a savepoint, which a user asked for."""
        return self._manifest.is_savepoint

    def operators(self) -> list[SavedOperator]:
        """All operators of the job, also those without state, from the sources on."""
        return [self._operator(vertex, each) for vertex in self._manifest.vertices for each in vertex.operators]

    def keyed_state(self, uid: str, name: str) -> pa.Table:
        """The entries of a keyed state: ``key`` and ``value``; of a map, ``key``, ``map_key`` and ``value``.

        A state of windows has ``namespace``, too: the window, as text.  A state with a time to live has
        ``last_used_ms``, too.  ``AGGREGATE`` is the state of ``sum`` and the like.

        Raises:
            FlowletError: there is no such operator or state; the message names the existing ones.
        """
        return self._table_of(uid, name, *_KEYED)

    def list_state(self, uid: str, name: str) -> pa.Table:
        """The elements of a list or union list state: ``subtask`` and ``element``.

        Raises FlowletError: there is none.
        """
        return self._table_of(uid, name, Redistribution.SPLIT.value, Redistribution.UNION.value)

    def broadcast_state(self, uid: str, name: str) -> pa.Table:
        """The entries of a broadcast state, which is equal in every subtask: ``key`` and ``value``.

        Raises FlowletError: there is no such operator or state.
        """
        return self._table_of(uid, name, Redistribution.BROADCAST.value)

    def timers(self, uid: str) -> pa.Table:
        """All timers of an operator: ``service``, ``time_domain``, ``key``, ``namespace`` and ``timestamp_ms``.

        Raises FlowletError: there is no such operator.
        """
        names = ("service", "time_domain", "key", "namespace", "timestamp_ms")
        return _table(names, list(self._timers(self._find(uid))))

    def positions(self, uid: str) -> pa.Table:
        """The positions of a source, or the elements of an asynchronous function: ``subtask``, ``position`` (as text).

        Raises FlowletError: there is no such operator.
        """
        return _table(("subtask", "position"), [(at, repr(own)) for at, own in self._positions(self._find(uid))])

    def table(self, uid: str, name: str) -> pa.Table:
        """The entries of a state of any kind.

        Raises FlowletError: there is no such operator or state; the message names the existing ones.
        """
        operator_id = self._find(uid)
        if name == "timers" and any(state.timers for _, state in self._parts_of(operator_id)):
            of_subtasks = (info for info, _ in self._states_of(operator_id) if info.kind in _OF_SUBTASKS)
            if all(info.name != name for info in of_subtasks):
                return self.timers(uid)
        return self._table_of(uid, name, *_OF_SUBTASKS, POSITION, *_KEYED)

    # -- parts

    def _operator(self, vertex: VertexEntry, operator_id: str) -> SavedOperator:
        num_timers = sum(1 for _ in self._timers(operator_id))  # first: it reads the sizes, too
        return SavedOperator(
            operator_id,
            vertex.uids.get(operator_id),
            vertex.operators[operator_id],
            vertex.name,
            vertex.parallelism,
            vertex.max_parallelism,
            self._sizes.get(operator_id, 0),
            num_timers,
            tuple([each for each, _ in self._states_of(operator_id)]),
        )

    def _states_of(self, operator_id: str) -> "list[tuple[SavedStateInfo, Callable[[], pa.Table]]]":
        """The states of an operator, each with a function that makes its table."""
        found: list[tuple[SavedStateInfo, Callable[[], pa.Table]]] = []
        keyed = self._keyed_parts(operator_id)
        for name, description in {name: each for part in keyed for name, each in part.descriptions.items()}.items():
            rows = [of_group[name] for part in keyed for of_group in part.groups.values() if name in of_group]
            shown = (name, description.kind.value, description.type_name)
            if name == AGGREGATES:
                shown = (AGGREGATE, _AGGREGATION, "")
            info = SavedStateInfo(*shown, sum(len(each.keys) for each in rows))
            found.append((info, partial(_keyed_table, rows, description)))
        by_subtask: dict[str, list[tuple[int, OperatorStateRows]]] = {}
        for subtask, state in self._parts_of(operator_id):
            for name, each in ({} if state.by_subtask is None else state.by_subtask.states).items():
                by_subtask.setdefault(name, []).append((subtask, each))
        for name, parts in by_subtask.items():
            _, first = parts[0]
            names = ("key", "value")
            entries = list(first.elements)
            if first.redistribution is not Redistribution.BROADCAST:
                names = ("subtask", "element")
                entries = [(subtask, element) for subtask, each in parts for element in each.elements]
            info = SavedStateInfo(name, first.redistribution.value, first.type_name, len(entries))
            found.append((info, partial(_table, names, entries)))
        if positions := self._positions(operator_id):
            info = SavedStateInfo(POSITION, POSITION, "", len(positions))
            found.append((info, partial(self.positions, operator_id)))
        return found

    def _table_of(self, uid: str, name: str, *kinds: str) -> pa.Table:
        """The table of the state of this name, of the first of these kinds that there is."""
        states = self._states_of(self._find(uid))
        shown = AGGREGATE if name == AGGREGATES else name
        found = {info.kind: make for info, make in states if info.name == shown}
        for kind in kinds:
            if kind in found:
                return found[kind]()
        known = ", ".join(f"{each.name!r} ({each.kind})" for each, _ in states)
        raise FlowletError(
            f"{self.path}: operator {uid!r} has no such state {name!r}; its states are {known or 'none'}"
        )

    def _positions(self, operator_id: str) -> list[tuple[int, object]]:
        """The operator's own state in each subtask, but for aggregates: positions and waiting elements."""
        parts = ((subtask, state.own) for subtask, state in self._parts_of(operator_id) if state.own is not None)
        return [(subtask, own) for subtask, own in parts if not isinstance(own, AggregationSnapshot)]

    def _timers(self, operator_id: str) -> Iterator[tuple[str, str, Any, Any, int]]:
        for _, state in self._parts_of(operator_id):
            for services in state.timers.values():
                for service, timers in services.items():
                    for domain in ("event_time", "processing_time"):
                        for timer in getattr(timers, domain):
                            yield service, domain, timer.key, timer.namespace, timer.timestamp

    def _keyed_parts(self, operator_id: str) -> list[KeyedStateSnapshot]:
        found = []
        for _, state in self._parts_of(operator_id):
            if isinstance(state.own, AggregationSnapshot):
                found.append(state.own.keyed(_ANY_NUMBER))
            match state.keyed:
                case KeyedStateSnapshot():
                    found.append(state.keyed)
                case IncrementalSnapshot():
                    found.append(full_snapshot_of(state.keyed, self._storage))
                case _:  # a sequence is made only for a task
                    pass
        return found

    def _parts_of(self, operator_id: str) -> Sequence[tuple[int, OperatorState]]:
        if not self._is_read:
            self._read()
        return self._parts.get(operator_id, ())

    def _read(self) -> None:
        names = {operator: name for vertex in self._manifest.vertices for operator, name in vertex.operators.items()}
        for entry in self._manifest.subtasks:
            if entry.state is None:
                continue
            content = self._storage.read_state(entry.state)
            for operator_id, size in operator_sizes(content).items():
                self._sizes[operator_id] = self._sizes.get(operator_id, 0) + size
            for operator_id, state in decode_state(content, names).operators.items():
                assert isinstance(state, OperatorState), "decode_state makes it"
                self._parts.setdefault(operator_id, []).append((entry.subtask, state))
        self._is_read = True

    def _find(self, wanted: str) -> str:
        """The id of the operator with this uid, id, or name, if only one has it."""
        names: dict[str, str] = {}
        called: list[str] = []  # as a user may call them
        for vertex in self._manifest.vertices:
            for operator_id, name in vertex.operators.items():
                if wanted in (operator_id, vertex.uids.get(operator_id)):
                    return operator_id
                names[operator_id] = name
                called.append(vertex.uids.get(operator_id, name))
        found = [operator_id for operator_id, name in names.items() if name == wanted]
        if len(found) == 1:
            return found[0]
        known = ", ".join(map(repr, called))
        what = f"{len(found)} operators are called" if found else "there is no operator"
        raise FlowletError(f"{self.path}: {what} {wanted!r}; the operators are {known}")


def read_state(path: str | Path, *, secret_file: Path | None = None, secret: bytes | None = None) -> SavedState:
    """Read and verify a savepoint or checkpoint.

    Classes that its values need must be importable.

    Args:
        path: the directory of the savepoint or checkpoint, or its URL.
        secret_file: of the cluster that wrote it; None: ``$FLOWLET_SECRET_FILE``, or else ``~/.flowlet/secret``.
        secret: the secret itself, instead of a file.

    Raises:
        StorageError: there is nothing at ``path``, a file is missing or was changed, or a cluster with another secret
            wrote it.
        ConfigError: there is no secret.
    """
    key = manifest_key(load_secret(secret_file) if secret is None else secret)
    place, storage, manifest = open_checkpoint(absolute_url(str(path)), key)
    if not manifest.vertices:
        raise StorageError(f"{place} names no operators: it is of an older flowlet")
    return SavedState(str(place), storage, manifest)


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows as columns of these names."""
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    return pa.table(
        {
            name: pa.array(each, _OF_COLUMNS[name]) if name in _OF_COLUMNS else arrow_column(each)
            for name, each in columns.items()
        }
    )


def _keyed_table(parts: Sequence[StateRows], description: StateDescription) -> pa.Table:
    """One row per key, or per entry of a map, or per element of a list with a time to live."""
    form = description.type_form
    entries = [entry for each in parts for entry in zip(each.keys, each.values, strict=True)]
    plain = [(key.exact if isinstance(key, ExactKey) else key, value) for key, value in entries]
    names = ["key", "value"]
    rows: Sequence[tuple[Any, ...]] = plain
    forms: Mapping[str, Any] = {"value": form}
    if description.kind is StateKind.MAP:
        names = ["key", "map_key", "value"]
        rows = [(key, inner, value) for key, of_key in plain for inner, value in of_key]
        forms = dict(zip(names[1:], form.parts, strict=True)) if form is not None and form.name == "Map" else {}
    elif description.kind is StateKind.LIST and description.has_ttl:
        rows = [(key, element) for key, of_key in plain for element in of_key]
        forms = {"value": form.parts[0]} if form is not None and form.name == "List" else {}
    elif description.kind is StateKind.LIST:
        rows = [(key, list(elements)) for key, elements in plain]
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    if description.has_ttl:
        values = columns.pop("value")
        columns["last_used_ms"] = [each[1] for each in values]
        columns["value"] = [each[0] for each in values]
    if any(isinstance(each, NamespacedKey) for each in columns["key"]):
        named = columns.pop("key")
        columns = {"key": [each.key for each in named], "namespace": [each.namespace for each in named], **columns}
    return pa.table({name: arrow_column(each, forms.get(name)) for name, each in columns.items()})
