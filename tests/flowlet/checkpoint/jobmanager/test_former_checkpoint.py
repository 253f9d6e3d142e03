"""Tests of ``flowlet.checkpoint.jobmanager.former_checkpoint``: a job starts from the files of another one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowlet.checkpoint.jobmanager.former_checkpoint import FormerCheckpoint
from flowlet.checkpoint.jobmanager.job_checkpoints import read_former_checkpoint
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import JobSettings
from flowlet.errors import FlowletError, StateRestoreError, StorageError
from flowlet.messages.job_messages import (
    CheckpointPlace,
    EdgeMessage,
    JobGraphMessage,
    RestoredState,
    RestoredVertex,
    StateHandle,
    SubtaskEntry,
    VertexMessage,
)
from flowlet.storage.checkpoint_storage import CheckpointStorage, place_of
from flowlet.storage.manifest import CheckpointManifest, SourceEntry, VertexEntry

FORMER_JOB = f"{7:032x}"
PLACE = CheckpointPlace("/dir", FORMER_JOB, 5)
KEY = b"key"
MAX_PARALLELISM = 8


def op(name: str) -> str:
    return f"{ord(name):032x}"


def handle(text: str) -> StateHandle:
    return StateHandle(len(text), b"", inline=text.encode())


def entry(vertex: str, subtask: int, **fields: Any) -> SubtaskEntry:
    operators = fields.pop("operators", [op(vertex)])
    return SubtaskEntry(op(vertex), subtask, handle(f"{vertex}{subtask}"), operators=operators, **fields)


def vertex(chain: str, parallelism: int) -> VertexEntry:
    return VertexEntry(op(chain[0]), chain, parallelism, MAX_PARALLELISM, {op(each): each for each in chain})


def manifest(vertices: list[VertexEntry], entries: list[SubtaskEntry]) -> CheckpointManifest:
    widths = {each.vertex_id: each.parallelism for each in vertices}
    return CheckpointManifest(FORMER_JOB, "former", 5, 0, widths, entries, [SourceEntry(op("s"), b"splits")], vertices)


def job(*chains: str, parallelism: int = 2, max_parallelism: int = MAX_PARALLELISM, **settings: Any) -> JobGraphMessage:
    def message(chain: str) -> VertexMessage:
        ids = [op(each) for each in chain]
        return VertexMessage(ids[0], chain, parallelism, max_parallelism, "default", list(chain), b"", operator_ids=ids)

    vertices = [message(chain) for chain in chains]
    return JobGraphMessage("0" * 32, "new", vertices, [], settings=JobSettings(**settings))


def taken_by(new: JobGraphMessage, written: CheckpointManifest) -> FormerCheckpoint:
    """Return the checkpoint as a job takes it over."""
    ignores = new.settings.ignores_unclaimed_state
    return FormerCheckpoint(PLACE, written, CheckpointTopology(new), ignores_unclaimed_state=ignores)


def former(vertices: list[VertexEntry], entries: list[SubtaskEntry], new: JobGraphMessage) -> FormerCheckpoint:
    return taken_by(new, manifest(vertices, entries))


def own_parts(restored: RestoredState) -> list[SubtaskEntry]:
    """Return the parts of the vertex that the subtask belongs to."""
    return restored.vertices[0].parts if restored.vertices else []


def numbers(restored: RestoredState) -> list[int]:
    return [each.subtask for each in own_parts(restored)]


@pytest.mark.parametrize(
    "path", ["/dir/{job}/chk-5", "/dir/{job}/chk-5/", "file:///dir/{job}/chk-5", "/dir/{job}/chk-5/_metadata"]
)
def test_a_path_names_a_checkpoint(path: str) -> None:
    """The path may name the checkpoint's directory or its manifest, as a path or a URL."""
    assert place_of(path.format(job=FORMER_JOB)) == PLACE


def test_a_url_of_an_object_store_names_a_checkpoint() -> None:
    assert place_of(f"s3://bucket/dir/{FORMER_JOB}/chk-5") == CheckpointPlace("s3://bucket/dir", FORMER_JOB, 5)


@pytest.mark.parametrize(
    "path",
    ["/dir", "/dir/{job}", "/dir/7/chk-5", "/dir/{job}/chk-05", "/dir/savepoint-a-b", "s3://bucket/savepoint-a-b"],
)
def test_any_other_directory_is_that_of_a_savepoint(path: str) -> None:
    """The path may name a savepoint's directory or manifest, under any name, because it may have been copied."""
    place = path.format(job=FORMER_JOB)

    assert place_of(place) == place_of(f"{place}/") == place_of(f"{place}/_metadata") == place


@pytest.mark.parametrize("path", ["dir/{job}/chk-5", "savepoint-a-b", "memory://dir/{job}/chk-5"])
def test_another_path_names_none(path: str) -> None:
    """The message says which path to write."""
    with pytest.raises(
        StorageError,
        match=r"'.*' names no checkpoint or savepoint; name it by the absolute path, .*/chk-<n> or .*savepoint",
    ):
        place_of(path.format(job=FORMER_JOB))


def test_what_is_on_the_disk_is_verified(tmp_path: Path) -> None:
    """No file of a checkpoint is used that is missing, was changed, or belongs to another cluster."""
    storage = CheckpointStorage(str(tmp_path), FORMER_JOB, KEY)
    state = storage.write_state(5, "state", b"x" * 30_000)
    written = manifest([vertex("s", 1)], [SubtaskEntry(op("s"), 0, state, operators=[op("s")])])
    storage.write_manifest(written)
    path = tmp_path / FORMER_JOB / "chk-5"
    new = job("s", parallelism=1)

    found = read_former_checkpoint(str(path), CheckpointTopology(new), KEY)

    assert str(found) == str(path)
    assert [each.state for each in own_parts(found.restored_state(op("s"), 0))] == [state]
    with pytest.raises(StorageError, match="cluster with another secret"):
        read_former_checkpoint(str(path), CheckpointTopology(new), b"other")
    (path / "state").unlink()
    with pytest.raises(StorageError, match="state is missing"):
        read_former_checkpoint(str(path), CheckpointTopology(new), KEY)
    (path / "_metadata").unlink()
    with pytest.raises(StorageError, match="_metadata"):
        read_former_checkpoint(str(path), CheckpointTopology(new), KEY)


def test_a_subtask_gets_its_own_part_if_nothing_has_changed() -> None:
    """The subtask also gets what it needs to read the other job's files."""
    found = former([vertex("s", 2)], [entry("s", 0), entry("s", 1)], job("s")).restored_state(op("s"), 1)

    assert found.vertices == [RestoredVertex(2, [op("s")], [entry("s", 1)])]
    assert (found.checkpoint_id, found.former) == (5, PLACE)
    assert not found.is_finished


def test_union_state_is_that_of_all() -> None:
    """Each subtask gets the union state of all former subtasks, with an unchanged parallelism, too."""
    found = former([vertex("s", 2)], [entry("s", 0), entry("s", 1, has_union_state=True)], job("s"))

    assert numbers(found.restored_state(op("s"), 1)) == [0, 1]


@pytest.mark.parametrize(("width", "parts"), [(1, [[0, 1]]), (4, [[0], [0], [1], [1]]), (3, [[0], [0, 1], [1]])])
def test_with_another_parallelism_a_subtask_gets_the_parts_with_its_key_groups(
    width: int, parts: list[list[int]]
) -> None:
    """A subtask gets the parts with its key groups if all state is by key, and all parts otherwise."""
    keyed = former([vertex("s", 2)], [entry("s", each, is_by_key=True) for each in (0, 1)], job("s", parallelism=width))
    other = former([vertex("s", 2)], [entry("s", 0, is_by_key=True), entry("s", 1)], job("s", parallelism=width))

    assert [numbers(keyed.restored_state(op("s"), each)) for each in range(width)] == parts
    assert [numbers(other.restored_state(op("s"), each)) for each in range(width)] == [[0, 1]] * width


def test_operators_may_be_chained_otherwise() -> None:
    """Two vertices become one, or one becomes two."""
    joined = former([vertex("s", 2), vertex("k", 2)], [entry("s", 0), entry("k", 1)], job("sk", parallelism=1))
    parted = former([vertex("sk", 1)], [entry("s", 0, operators=[op("s"), op("k")])], job("s", "k"))

    assert joined.restored_state(op("s"), 0).vertices == [
        RestoredVertex(2, [op("s")], [entry("s", 0)]),
        RestoredVertex(2, [op("k")], [entry("k", 1)]),
    ]
    assert parted.restored_state(op("k"), 1).vertices == [
        RestoredVertex(1, [op("s"), op("k")], [entry("s", 0, operators=[op("s"), op("k")])])
    ]


def test_who_had_finished() -> None:
    """A subtask whose former one had; with another parallelism only if all had."""
    ended = SubtaskEntry(op("s"), 1, is_finished=True)
    some, all_of_them = [entry("s", 0), ended], [SubtaskEntry(op("s"), 0, is_finished=True), ended]

    same = former([vertex("s", 2)], some, job("s"))
    assert [same.restored_state(op("s"), each).is_finished for each in (0, 1)] == [False, True]
    wider = former([vertex("s", 2)], some, job("s", parallelism=3)).restored_state(op("s"), 2)
    assert (wider.is_finished, wider.vertices[0].finished, numbers(wider)) == (False, [1], [0])
    assert former([vertex("s", 2)], all_of_them, job("s", parallelism=3)).restored_state(op("s"), 2).is_finished


def test_operators_that_the_checkpoint_does_not_have_begin_anew() -> None:
    """The source's splits go on."""
    found = former([vertex("s", 2)], [entry("s", 0)], job("s", "n"))

    assert (found.restored_state(op("n"), 0).vertices, found.restored_state(op("n"), 0).is_finished) == ([], False)
    assert (found.sources.get(op("s")), found.sources.get(op("n"))) == (b"splits", None)


def test_state_that_nobody_claims_is_refused_unless_that_is_wanted() -> None:
    """An operator without state may be missing."""
    vertices, entries = [vertex("s", 2), vertex("k", 2), vertex("m", 1)], [entry("s", 0), entry("k", 0)]

    with pytest.raises(
        StateRestoreError, match=rf"does not have: 'k' \({op('k')}\); .*ignore-unclaimed-state .* to true"
    ):
        former(vertices, entries, job("s"))
    assert numbers(former(vertices, entries, job("s", ignores_unclaimed_state=True)).restored_state(op("s"), 0)) == [0]
    assert own_parts(former(vertices, entries[:1], job("s")).restored_state(op("s"), 0))


def test_key_groups_must_stay() -> None:
    """The message says which option to set; a vertex without state may change its key groups."""
    new = job("s", max_parallelism=16)

    with pytest.raises(
        StateRestoreError, match=r"'s' has 16 key groups, .* it has 8: set its max parallelism, .* to 8"
    ):
        former([vertex("s", 2)], [entry("s", 0)], new)
    assert former([vertex("s", 2)], [SubtaskEntry(op("s"), 0)], new).restored_state(op("s"), 0).vertices[0].parts == []


def test_a_checkpoint_without_operators_is_refused() -> None:
    """A checkpoint that names no operators was written by an older flowlet; it is refused."""
    with pytest.raises(FlowletError, match="older flowlet"):
        former([], [], job("s"))


def linked(*edges: tuple[str, str, int], chains: tuple[str, ...]) -> JobGraphMessage:
    """Return a job with edges: from, to, and the index of the operator in the first one's chain."""
    message = job(*chains, parallelism=1)
    made = [
        EdgeMessage(f"{n:032x}", op(a), index, op(b), False, "HASH", b"", 100) for n, (a, b, index) in enumerate(edges)
    ]
    return structs.replace(message, edges=made)


@pytest.mark.parametrize(
    ("former_chains", "holds", "now"),
    [
        (("s", "c"), "sc", linked(chains=("sc",))),
        (("sm", "k"), "sk", linked(("s", "m", 0), ("m", "k", 0), chains=("s", "m", "k"))),
        (("s", "m", "k"), "s", linked(("s", "k", 1), chains=("sm", "k"))),
    ],
    ids=["edge gone", "chain taken apart", "chains put together"],
)
def test_records_in_flight_that_would_be_lost_or_go_astray_are_refused(
    former_chains: tuple[str, ...], holds: str, now: JobGraphMessage
) -> None:
    vertices = [vertex(each, 1) for each in former_chains]
    entries = [entry(each[0], 0, channels=handle("in flight") if each[0] in holds else None) for each in former_chains]

    with pytest.raises(
        StateRestoreError, match=r"has records in flight, and there is another way from or to .* chained otherwise"
    ):
        former(vertices, entries, now)


def test_records_in_flight_go_on_if_only_what_is_behind_the_chain_changes() -> None:
    """A sink that is chained to the consumer, or is not any more, is no matter."""
    vertices = [vertex("s", 1), vertex("kw", 1)]
    entries = [entry("s", 0, channels=handle("in flight")), entry("k", 0, channels=handle("in flight"))]

    taken = former(vertices, entries, linked(("s", "k", 0), chains=("s", "k")))

    (edge,) = taken.restored_state(op("k"), 0).edges
    assert [each.subtask for each in edge.producers] == [0]


def taken_over(
    before: JobGraphMessage, holds: str, now: JobGraphMessage, parallelism: int = 1, *, has_state: bool = True
) -> FormerCheckpoint:
    """Return a checkpoint of a job in which the vertices that begin with these operators have records in flight."""
    chains = ["".join(chr(int(each, 16)) for each in of.operator_ids) for of in before.vertices]
    entries = [
        entry(chain[0], subtask, channels=handle(f"{chain[0]}{subtask} in flight") if chain[0] in holds else None)
        for chain in chains
        for subtask in range(parallelism)
    ]
    if not has_state:
        entries = [structs.replace(each, state=None, operators=[]) for each in entries]
    written = manifest([vertex(chain, parallelism) for chain in chains], entries)
    return taken_by(now, structs.replace(written, edges=CheckpointTopology(before).edges))


def in_flight(parts: Sequence[SubtaskEntry] | None) -> list[str]:
    """Return the records in flight of these parts."""
    assert parts is not None
    return [each.channels.inline.decode() for each in parts if each.channels is not None]


def test_records_in_flight_follow_their_operator_into_a_chain() -> None:
    """The edges from s to m and to k are inside of the only chain now; each goes to its reader, from all tasks."""
    before = linked(("s", "m", 0), ("m", "k", 0), chains=("s", "m", "k"))

    taken = taken_over(before, "smk", linked(chains=("smk",)), parallelism=2)

    to_m, to_k = taken.restored_state(op("s"), 0).edges
    assert (to_m.operator, to_m.edge_id, to_m.gate, to_m.output) == (1, "", 0, 0)
    assert (to_k.operator, to_k.edge_id, to_k.gate, to_k.output) == (2, "", 0, 0)
    assert in_flight(to_m.producers) == ["s0 in flight", "s1 in flight"]
    assert in_flight(to_m.consumers) == ["m0 in flight", "m1 in flight"]
    assert in_flight(to_k.consumers) == ["k0 in flight", "k1 in flight"]


def test_records_in_flight_stay_with_their_reader_whatever_is_added_or_removed_beside_its_edge() -> None:
    """Records in flight on an edge stay with their reader if operators are added or removed in front of the reader or
    behind it, or as other edges of its vertices, so that gates and outputs are counted anew.
    """
    before = linked(("s", "k", 1), chains=("sa", "k"))
    now = linked(("s", "x", 0), ("s", "k", 1), ("y", "k", 0), chains=("sb", "x", "y", "kw"))

    taken = taken_over(before, "sk", now)

    (edge,) = taken.restored_state(op("k"), 0).edges
    assert (edge.edge_id, edge.gate, edge.output, edge.new_gate) == (f"{1:032x}", 0, 0, 0)
    assert edge.consumers is None, "the reader's own part has them"
    assert edge.num_producers == 0, "another operator feeds the edge: its channels are not those of before"
    assert not taken.restored_state(op("x"), 0).edges


def test_each_of_several_edges_between_two_operators_goes_on_as_itself() -> None:
    before = linked(("s", "k", 0), ("s", "k", 0), chains=("s", "k"))

    taken = taken_over(before, "k", linked(("t", "k", 0), ("s", "k", 0), ("s", "k", 0), chains=("s", "t", "k")))

    first, second = taken.restored_state(op("k"), 0).edges
    assert [(each.gate, each.new_gate, each.edge_id, each.num_producers) for each in (first, second)] == [
        (0, 1, f"{1:032x}", 1),
        (1, 2, f"{2:032x}", 1),
    ]


def test_records_that_were_dealt_out_are_dealt_by_key_where_the_edge_has_one_now() -> None:
    """A former consumer's records in flight may be of any subtask now: each reads the parts of all consumers."""
    before = linked(("s", "k", 0), chains=("s", "k"))
    before = structs.replace(before, edges=[structs.replace(each, ship_strategy="REBALANCE") for each in before.edges])

    taken = taken_over(before, "k", linked(("s", "k", 0), chains=("s", "k")), parallelism=2)
    (edge,) = taken.restored_state(op("k"), 0).edges

    assert edge.is_by_key_now
    assert in_flight(edge.consumers) == ["k0 in flight", "k1 in flight"]


def test_records_in_flight_to_an_operator_that_is_gone_are_refused_unless_that_is_wanted() -> None:
    """Records in flight to an operator that is gone would be lost, so the job is refused with the operator's name."""
    before, now = linked(("s", "m", 0), ("m", "k", 0), chains=("s", "m", "k")), linked(("s", "k", 0), chains=("s", "k"))
    wanted = structs.replace(now, settings=JobSettings(ignores_unclaimed_state=True))
    lost = structs.replace(now, settings=JobSettings())

    with pytest.raises(
        StateRestoreError, match=r"records in flight to operator 'm' .*uid\(\).*allow-non-restored-state"
    ):
        taken_over(before, "m", lost, has_state=False)
    (edge,) = taken_over(before, "sk", wanted, has_state=False).restored_state(op("k"), 0).edges
    assert edge.new_gate == 0
