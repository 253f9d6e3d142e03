"""Tests of ``flowlet.state_reader.saved_state``: content is shown as a task writes it, and only to readers that know
the secret.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.checkpoint.task.state_codec import encode_state
from flowlet.common.typeinfo import Types
from flowlet.errors import ConfigError, FlowletError, StorageError
from flowlet.messages.job_messages import SubtaskEntry
from flowlet.state.state_snapshots import (
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    StateDescription,
    StateKind,
    StateRows,
)
from flowlet.state.state_table import AggregationSnapshot, StateForm
from flowlet.state.type_compatibility import type_form
from flowlet.state_reader import SavedState, read_state
from flowlet.state_reader.saved_state import AGGREGATE, POSITION
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage
from flowlet.storage.manifest import (
    CheckpointManifest,
    VertexEntry,
    manifest_key,
)
from flowlet.timers.keyed_timer_service import KeyGroupTimers, Timer

JOB, SECRET = "ab" * 16, b"s" * 32
SOURCE, COUNT, OTHER = "01" * 16, "02" * 16, "03" * 16


def description(kind: StateKind, type_info: Any = None, *, has_ttl: bool = False) -> StateDescription:
    return StateDescription(
        kind, "" if type_info is None else repr(type_info), has_ttl, None if type_info is None else type_form(type_info)
    )


DESCRIPTIONS = {
    "value": description(StateKind.VALUE, Types.LONG()),
    "lasting": description(StateKind.VALUE, Types.LONG(), has_ttl=True),
    "list": description(StateKind.LIST, Types.LIST(Types.LONG())),
    "lasting list": description(StateKind.LIST, Types.LIST(Types.LONG()), has_ttl=True),
    "map": description(StateKind.MAP, Types.MAP(Types.STRING(), Types.LONG())),
    "lasting map": description(StateKind.MAP, Types.MAP(Types.STRING(), Types.LONG()), has_ttl=True),
    "pickled": description(StateKind.VALUE),
}


def keyed(key: str, number: int) -> KeyedStateSnapshot:
    values = {
        "value": number,
        "lasting": (number, 5),
        "list": (number, 7),
        "lasting list": ((number, 5), (7, 6)),
        "map": (("a", number),),
        "lasting map": (("a", (number, 5)),),
        "pickled": complex(number),
    }
    rows = {name: StateRows((key,), (value,)) for name, value in values.items()}
    return KeyedStateSnapshot(DESCRIPTIONS, 128, {number: rows})


def subtask(number: int) -> SubtaskState:
    timers = {
        number: {"timers": KeyGroupTimers((Timer(100 + number, f"key {number}", None),), (Timer(7, "late", "window"),))}
    }
    lists = OperatorStateSnapshot(
        {
            "elements": OperatorStateRows(Redistribution.SPLIT, "Long", (number, 10 * number)),
            "all": OperatorStateRows(Redistribution.UNION, "Long", (number,)),
            "rules": OperatorStateRows(Redistribution.BROADCAST, "Map", (("add", 7),)),
        }
    )
    aggregate = AggregationSnapshot(StateForm.SUMS, (f"key {number}",), (number,))
    return SubtaskState(
        {
            SOURCE: OperatorState(own=("position", number)),
            COUNT: OperatorState(keyed=keyed(f"key {number}", number), timers=timers, by_subtask=lists),
            OTHER: OperatorState(own=aggregate),
        }
    )


def manifest_of(storage: CheckpointStorage | SavepointStorage, *, is_savepoint: bool) -> CheckpointManifest:
    operators = [SOURCE, COUNT, OTHER]
    entries = [
        SubtaskEntry(
            SOURCE,
            number,
            storage.write_state(4, f"state-{number}", encode_state(subtask(number))),
            operators=operators,
        )
        for number in (0, 1)
    ]
    names = {SOURCE: "Source", COUNT: "Process", OTHER: "Sum"}
    vertices = [VertexEntry(SOURCE, "chain", 2, 128, names, {COUNT: "count", OTHER: "sum"})]
    return CheckpointManifest(JOB, "counting", 4, 1000, {SOURCE: 2}, entries, [], vertices, is_savepoint=is_savepoint)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage = SavepointStorage.create(str(tmp_path), JOB, manifest_key(SECRET))
    storage.write_manifest(manifest_of(storage, is_savepoint=True))
    return Path(storage.location)


@pytest.fixture
def state(path: Path) -> SavedState:
    return read_state(path, secret=SECRET)


def test_what_it_is_of(state: SavedState) -> None:
    assert (state.job_id, state.job_name, state.checkpoint_id, state.timestamp_ms, state.is_savepoint) == (
        JOB,
        "counting",
        4,
        1000,
        True,
    )


def test_operators_with_their_states(state: SavedState) -> None:
    """Operators have names, kinds, declared types and numbers of entries, over all subtasks."""
    source, count, other = state.operators()

    assert [
        (each.uid, each.name, each.vertex, each.parallelism, each.max_parallelism) for each in (source, count, other)
    ] == [
        (None, "Source", "chain", 2, 128),
        ("count", "Process", "chain", 2, 128),
        ("sum", "Sum", "chain", 2, 128),
    ]
    assert [each.name for each in count.states] == [*DESCRIPTIONS, "elements", "all", "rules"]
    assert [each.num_entries for each in count.states] == [2] * len(DESCRIPTIONS) + [4, 2, 1]
    assert (count.states[0].kind, count.states[0].type_name) == ("ValueState", repr(Types.LONG()))
    assert [(each.name, each.num_entries) for each in (*source.states, *other.states)] == [
        (POSITION, 2),
        (AGGREGATE, 2),
    ]
    assert count.num_timers == 4
    assert all(each.num_bytes > 0 for each in (source, count, other))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("value", [{"key": "key 0", "value": 0}, {"key": "key 1", "value": 1}]),
        ("lasting", [{"key": "key 0", "last_used_ms": 5, "value": 0}, {"key": "key 1", "last_used_ms": 5, "value": 1}]),
        ("list", [{"key": "key 0", "value": [0, 7]}, {"key": "key 1", "value": [1, 7]}]),
        ("map", [{"key": "key 0", "map_key": "a", "value": 0}, {"key": "key 1", "map_key": "a", "value": 1}]),
        ("lasting map", [{"key": f"key {each}", "map_key": "a", "last_used_ms": 5, "value": each} for each in (0, 1)]),
        ("pickled", [{"key": "key 0", "value": "0j"}, {"key": "key 1", "value": "(1+0j)"}]),
    ],
)
def test_keyed_state(state: SavedState, name: str, expected: list[dict[str, object]]) -> None:
    assert state.keyed_state("count", name).to_pylist() == expected


def test_a_list_with_a_time_to_live_has_a_row_per_element(state: SavedState) -> None:
    rows = state.keyed_state("count", "lasting list").to_pylist()

    assert [(row["key"], row["value"], row["last_used_ms"]) for row in rows] == [
        ("key 0", 0, 5),
        ("key 0", 7, 6),
        ("key 1", 1, 5),
        ("key 1", 7, 6),
    ]


def test_declared_types_are_those_of_the_columns(state: SavedState) -> None:
    assert state.keyed_state("count", "value").schema.field("value").type == pa.int64()
    assert state.keyed_state("count", "list").schema.field("value").type == pa.list_(pa.int64())


def test_operator_state(state: SavedState) -> None:
    """Broadcast state is equal in all subtasks, and shown once."""
    assert state.list_state("count", "elements").to_pydict() == {"subtask": [0, 0, 1, 1], "element": [0, 0, 1, 10]}
    assert state.list_state("count", "all").to_pydict() == {"subtask": [0, 1], "element": [0, 1]}
    assert state.broadcast_state("count", "rules").to_pydict() == {"key": ["add"], "value": [7]}


def test_timers_of_both_clocks(state: SavedState) -> None:
    rows = state.timers("count").to_pylist()

    assert [(row["time_domain"], row["key"], row["namespace"], row["timestamp_ms"]) for row in rows] == [
        ("event_time", "key 0", None, 100),
        ("processing_time", "late", "window", 7),
        ("event_time", "key 1", None, 101),
        ("processing_time", "late", "window", 7),
    ]


def test_aggregations_and_positions(state: SavedState) -> None:
    """A source has no uid here: its name or its id will do."""
    assert state.keyed_state("sum", AGGREGATE).num_rows == 2
    assert state.positions("Source").to_pydict() == {
        "subtask": [0, 1],
        "position": ["('position', 0)", "('position', 1)"],
    }
    assert state.positions(SOURCE).num_rows == 2


@pytest.mark.parametrize(
    ("uid", "name", "columns"),
    [
        ("count", "value", ["key", "value"]),
        ("count", "elements", ["subtask", "element"]),
        ("count", "rules", ["key", "value"]),
        ("count", "timers", ["service", "time_domain", "key", "namespace", "timestamp_ms"]),
        ("sum", AGGREGATE, ["key", "value"]),
        ("Source", POSITION, ["subtask", "position"]),
    ],
)
def test_a_state_of_any_kind_by_its_name(state: SavedState, uid: str, name: str, columns: list[str]) -> None:
    assert state.table(uid, name).column_names == columns


def test_what_is_not_there_is_said_with_what_is(state: SavedState) -> None:
    with pytest.raises(FlowletError, match=r"there is no operator 'cuont'; the operators are 'Source', 'count', 'sum'"):
        state.keyed_state("cuont", "value")
    reason = r"operator 'count' has no such state 'valeu'; its states are 'value' \(ValueState\)"
    with pytest.raises(FlowletError, match=reason):
        state.keyed_state("count", "valeu")
    with pytest.raises(FlowletError, match="has no such state 'rules'"):
        state.list_state("count", "rules")
    with pytest.raises(FlowletError, match="has no such state 'elements'"):
        state.broadcast_state("count", "elements")


def test_a_checkpoint_is_read_in_the_same_way(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path), JOB, manifest_key(SECRET))
    storage.write_manifest(manifest_of(storage, is_savepoint=False))

    found = read_state(tmp_path / JOB / "chk-4", secret=SECRET)

    assert not found.is_savepoint
    assert found.keyed_state("count", "value").num_rows == 2


def test_the_secret_is_that_of_a_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is not read without the secret, or with another one."""
    secret_file = tmp_path / "secret"
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(secret_file))
    with pytest.raises(ConfigError, match="does not exist"):
        read_state(path)
    secret_file.touch(0o600)
    secret_file.write_text(SECRET.hex())

    assert read_state(path).job_id == read_state(path, secret_file=secret_file).job_id == JOB
    with pytest.raises(StorageError, match="cluster with another secret"):
        read_state(path, secret=b"t" * 32)


class Trap:
    """Unpickled, it would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled_that_was_changed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change may be in a manifest or in a file of state."""
    monkeypatch.chdir(tmp_path)
    storage = SavepointStorage.create(str(tmp_path), JOB, manifest_key(SECRET))
    handle = storage.write_state(4, "large", bytes(30_000))
    entry = SubtaskEntry(SOURCE, 0, handle)
    vertices = [VertexEntry(SOURCE, "chain", 1, 128, {SOURCE: "Source"})]
    storage.write_manifest(
        CheckpointManifest(JOB, "counting", 4, 1000, {SOURCE: 1}, [entry], [], vertices, is_savepoint=True)
    )
    trap = encode_state(SubtaskState({SOURCE: OperatorState(own=Trap())}))
    (Path(storage.location) / "large").write_bytes(trap + bytes(30_000 - len(trap)))
    manifest = (path / "_metadata").read_bytes()
    (path / "_metadata").write_bytes(manifest[:-1] + bytes([manifest[-1] ^ 1]))

    with pytest.raises(StorageError, match="its SHA-256 is wrong"):
        read_state(storage.location, secret=SECRET).operators()
    with pytest.raises(StorageError, match="its MAC is wrong"):
        read_state(path, secret=SECRET)
    assert not (tmp_path / "unpickled").exists()
