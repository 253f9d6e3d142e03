"""``FormerCheckpoint``: the checkpoint or savepoint of another job that a job starts from.

Which data in flight of a checkpoint concern the inputs of a vertex.

Side:       pure.
Rules:      data in flight on an edge are in two places: what had reached the consumer is in the consumer's part of the
            checkpoint, by the index of the gate; what had not is in the producer's part, by the index of the partition.
            Gates count the edges into a vertex, partitions those out of it, both in the order of the job.  All of it is
            processed by the consumers; producers restore nothing.  Another job's data go to the operator that would
            have read them, by its input, wherever it is now: at the head of a vertex, or inside a chain.  Which
            operator sent them does not matter.
Source:     Flink ``StateAssignmentOperation.reDistributeInputChannelStates``, ``reDistributeResultSubpartitionStates``;
            there, producers send what they had again, and an edge that became part of a chain is refused.  Flink
            ``Checkpoints.loadAndValidateCheckpoint``, ``StateAssignmentOperation``,
            ``CheckpointCoordinator.restoreSavepoint``.
Invariants: nothing of the other job is changed or removed (Flink's NO_CLAIM).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec

from flowlet.common.job_settings import IGNORES_UNCLAIMED_STATE
from flowlet.common.paths import root_of
from flowlet.errors import StateRestoreError, StorageError
from flowlet.graph.partitioner import KeyGroups
from flowlet.keys.exact_keys import key_group_range
from flowlet.messages.control_messages import (
    JobGraphMessage,
    RestoredEdge,
    RestoredPart,
    RestoredState,
    RestoredVertex,
    VertexMessage,
)
from flowlet.storage.manifest import CheckpointManifest, EdgeEntry, SubtaskEntry, VertexEntry


class InFlightEdge(msgspec.Struct, frozen=True):
    """One edge between two vertices, without its blob: ``gate`` of ``target`` reads partition
    ``output`` of ``source``.
    """

    edge_id: str
    source: str
    output: int
    target: str
    gate: int
    is_pointwise: bool
    num_producers: int


def in_flight_edges(job: JobGraphMessage) -> list[InFlightEdge]:
    """The edges of a job that can have data in flight in a checkpoint: those that tasks read."""
    num_outputs: dict[str, int] = {}
    num_gates: dict[str, int] = {}
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    edges = []
    for edge in job.edges:
        output = num_outputs[edge.source] = num_outputs.get(edge.source, -1) + 1
        if edge.target is not None:
            gate = num_gates[edge.target] = num_gates.get(edge.target, -1) + 1
            edges.append(
                InFlightEdge(
                    edge.id, edge.source, output, edge.target, gate, edge.is_pointwise, parallelisms[edge.source]
                )
            )
    return edges


def edge_entries(job: JobGraphMessage) -> list[EdgeEntry]:
    """The edges of ``in_flight_edges``, in the same order, as a checkpoint names them."""
    operators = {vertex.id: vertex.operator_ids for vertex in job.vertices}
    messages = {edge.id: edge for edge in job.edges}
    entries = []
    for each in in_flight_edges(job):
        edge, ids = messages[each.edge_id], operators[each.source]
        emitter = ids[edge.source_operator] if ids else ""
        is_by_key = edge.ship_strategy == KeyGroups.ship_strategy
        entries.append(
            EdgeEntry(each.source, each.output, each.target, each.gate, emitter, edge.input_id, edge.tag, is_by_key)
        )
    return entries


def vertex_entries(job: JobGraphMessage) -> list[VertexEntry]:
    """The vertices of a job, as a checkpoint names them: without their blobs."""
    return [
        VertexEntry(
            each.id,
            each.name,
            each.parallelism,
            each.max_parallelism,
            dict(zip(each.operator_ids, each.operator_names)),  # noqa: B905 - without ids there are none
            {operator: uid for operator, uid in zip(each.operator_ids, each.operator_uids) if uid},  # noqa: B905
        )
        for each in job.vertices
    ]


def parts_of(manifest: CheckpointManifest) -> dict[str, dict[int, SubtaskEntry]]:
    """What the subtasks kept, by vertex id and subtask."""
    parts: dict[str, dict[int, SubtaskEntry]] = {}
    for entry in manifest.subtasks:
        parts.setdefault(entry.vertex_id, {})[entry.subtask] = entry
    return parts


def restored_part(entry: SubtaskEntry) -> RestoredPart:
    """What a subtask kept, for one that begins with it."""
    return RestoredPart(entry.subtask, entry.state, entry.channels, entry.shared)


def in_flight_parts(entries: Mapping[int, SubtaskEntry]) -> list[RestoredPart]:
    """The data in flight of the subtasks of a vertex, by subtask; only of those that had some."""
    return [
        RestoredPart(subtask, channels=entry.channels)
        for subtask, entry in sorted(entries.items())
        if entry.channels is not None
    ]


class MovedEdge(msgspec.Struct, frozen=True):
    """An edge of another job's checkpoint, and where its data in flight go now.

    ``vertex_id``: that of the operator that read it; None: there is no such operator, or it has no such input.
    ``operator``: the index of that in its chain.  ``edge``: the one that leads to it; None: it is inside a chain.
    ``is_same``: the same operator feeds that edge.
    """

    former: EdgeEntry
    vertex_id: str | None = None
    operator: int = 0
    edge: InFlightEdge | None = None
    is_same: bool = False
    is_by_key_now: bool = False


def moved_edges(former: Sequence[EdgeEntry], job: JobGraphMessage) -> list[MovedEdge]:
    """Where the data in flight of each edge of a checkpoint go in a job."""
    places = {
        operator: (vertex.id, index) for vertex in job.vertices for index, operator in enumerate(vertex.operator_ids)
    }
    into: dict[str, list[tuple[EdgeEntry, InFlightEdge]]] = {}
    for entry, edge in zip(edge_entries(job), in_flight_edges(job), strict=True):
        into.setdefault(edge.target, []).append((entry, edge))
    taken: set[str] = set()
    return [_moved(each, places.get(each.target), into.get(each.target, []), taken) for each in former]


def _moved(
    former: EdgeEntry, place: tuple[str, int] | None, edges: list[tuple[EdgeEntry, InFlightEdge]], taken: set[str]
) -> MovedEdge:
    if place is None:
        return MovedEdge(former)
    vertex_id, index = place
    if index:
        return MovedEdge(former, vertex_id, index)
    fitting = [each for each in edges if each[0].input_id == former.input_id]
    same = [each for each in fitting if (each[0].source_operator, each[0].tag) == (former.source_operator, former.tag)]
    # Of several edges between the same operators, each goes on as the one that has its place among them.
    entry, edge = next((each for each in same if each[1].edge_id not in taken), next(iter(fitting), (None, None)))
    if entry is None or edge is None:
        return MovedEdge(former)
    is_same = any(each[1] is edge for each in same) and edge.edge_id not in taken
    taken.add(edge.edge_id)
    return MovedEdge(former, vertex_id, 0, edge, is_same, entry.is_by_key and not former.is_by_key)


def restored_edges(
    edges: Sequence[InFlightEdge],
    manifest: CheckpointManifest,
    parts: Mapping[str, Mapping[int, SubtaskEntry]],
    vertex_id: str,
) -> list[RestoredEdge]:
    """The edges into a vertex that may have data in flight in a checkpoint; ``parts`` of it by vertex and subtask."""
    has_input = bool(in_flight_parts(parts.get(vertex_id, {})))
    found = []
    for edge in edges:
        if edge.target != vertex_id or not {vertex_id, edge.source} <= manifest.parallelisms.keys():
            continue
        producers = in_flight_parts(parts.get(edge.source, {}))
        if producers or has_input:
            former_producers, former_consumers = manifest.parallelisms[edge.source], manifest.parallelisms[vertex_id]
            found.append(
                RestoredEdge(
                    edge.edge_id,
                    edge.gate,
                    edge.output,
                    producers,
                    former_producers,
                    former_consumers,
                    edge.num_producers,
                    edge.is_pointwise,
                )
            )
    return found


_PLACE: Final = re.compile(r"(?P<root>.*)/(?P<job>[0-9a-f]{32})/chk-(?P<id>0|[1-9][0-9]{0,18})(/_metadata)?")
_MAX_NAMED: Final = 5  # operators in one message


class CheckpointPlace(NamedTuple):
    """Where a checkpoint lies, below a directory of its job, or a ``savepoint``, which is a directory of its own."""

    directory: str
    job_id: str
    checkpoint_id: int
    savepoint: str = ""

    def __str__(self) -> str:
        return self.savepoint or f"{self.directory.rstrip('/')}/{self.job_id}/chk-{self.checkpoint_id}"


def place_of(path: str) -> CheckpointPlace | str:
    """What a path names: the place of a checkpoint, or the directory of a savepoint.

    Raises StorageError: it can be neither.
    """
    try:
        root = root_of(path)
    except StorageError as error:
        raise StorageError(
            f"{path!r} names no checkpoint or savepoint; name it by the absolute path, or the URL, of its directory, "
            "which is <execution.checkpointing.dir>/<job id>/chk-<n> or <savepoint directory>/savepoint-..., or of the "
            "file _metadata in it"
        ) from error
    found = _PLACE.fullmatch(root)
    if found is None:
        return root.removesuffix("/_metadata") or "/"
    return CheckpointPlace(found["root"] or "/", found["job"], int(found["id"]))


class FormerCheckpoint:
    """What the subtasks of a job take over.  Threading: any thread.

    Args:
        place: where it lies.
        manifest: of it.
        job: the job that starts from it.

    Raises:
        StateRestoreError: an operator that has state is not in the program, or has another number of key groups.
    """

    def __init__(self, place: CheckpointPlace, manifest: CheckpointManifest, job: JobGraphMessage) -> None:
        if not manifest.vertices:
            raise StateRestoreError(
                f"checkpoint {place} names no operators: it is of an older flowlet; go on with that one"
            )
        self.place = place
        self._manifest = manifest
        self._sources = {each.vertex_id: each.state for each in manifest.sources}
        self._former = {each.vertex_id: each for each in manifest.vertices}
        self._entries = {each.vertex_id: dict[int, SubtaskEntry]() for each in manifest.vertices} | parts_of(manifest)
        self._vertex_of = {operator: each.vertex_id for each in manifest.vertices for operator in each.operators}
        self._new = {each.vertex_id: each for each in vertex_entries(job)}
        if not job.settings.ignores_unclaimed_state:
            self._check_operators()
        for vertex in job.vertices:
            self._check_key_groups(vertex)
        if not manifest.edges:
            self._check_same_edges(job)
        self._edges: dict[str, list[MovedEdge]] = {}  # those with data in flight, by the vertex that processes these
        for edge in moved_edges(manifest.edges or edge_entries(job), job):
            if not self._has_in_flight(edge):
                continue
            if edge.vertex_id is not None:
                self._edges.setdefault(edge.vertex_id, []).append(edge)
            elif not job.settings.ignores_unclaimed_state:
                self._refuse_lost(edge)

    def __repr__(self) -> str:
        return f"<FormerCheckpoint {self.place.checkpoint_id} of job {self.place.job_id}>"

    def __str__(self) -> str:
        return str(self.place)

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState:
        """What a subtask of the job begins with."""
        new = self._new[vertex_id]
        former = [
            self._former[each]
            for each in dict.fromkeys(self._vertex_of[each] for each in new.operators if each in self._vertex_of)
        ]
        same = next((each for each in former if each.vertex_id == vertex_id), None)
        own = None if same is None else self._entries[vertex_id].get(subtask)
        is_kept = (
            same is not None and same.parallelism == new.parallelism and same.operators.keys() == new.operators.keys()
        )
        if is_kept and own is not None:
            is_finished = own.is_finished
        else:
            is_finished = bool(former) and all(len(self._finished(each)) == each.parallelism for each in former)
        return RestoredState(
            self.place.checkpoint_id,
            [] if same is None else self._parts(same, new, subtask),
            is_finished,
            None if same is None else same.parallelism,
            [self._restored_edge(each) for each in self._edges.get(vertex_id, ())],
            former_job=self.place.job_id,
            former_directory=self.place.directory,
            former_savepoint=self.place.savepoint,
            former_operators=[] if same is None else list(same.operators),
            # Of a vertex that is as it was, those that had finished do not run again, and nobody takes their share.
            former_finished=[] if same is None or is_kept else self._finished(same),
            moved=[
                RestoredVertex(
                    each.parallelism, list(each.operators), self._parts(each, new, subtask), self._finished(each)
                )
                for each in former
                if each is not same
            ],
        )

    def source_state(self, vertex_id: str) -> bytes | None:
        """The state of a source's split enumerator; None: there is none."""
        return self._sources.get(vertex_id)

    def _finished(self, former: VertexEntry) -> list[int]:
        return [subtask for subtask, each in self._entries[former.vertex_id].items() if each.is_finished]

    def _parts(self, former: VertexEntry, new: VertexEntry, subtask: int) -> list[RestoredPart]:
        entries = [
            each
            for each in self._entries[former.vertex_id].values()
            if each.state is not None or each.channels is not None
        ]
        if (
            former.parallelism == new.parallelism
            and not self._finished(former)
            and not any(each.has_union_state for each in entries)
        ):
            entries = [each for each in entries if each.subtask == subtask]
        elif all(each.is_by_key and each.channels is None for each in entries):
            wanted = key_group_range(new.max_parallelism, new.parallelism, subtask)
            had = [key_group_range(former.max_parallelism, former.parallelism, each.subtask) for each in entries]
            entries = [each for each, groups in zip(entries, had, strict=True) if _overlap(groups, wanted)]
        return [restored_part(each) for each in entries]

    def _check_operators(self) -> None:
        known = {operator for vertex in self._new.values() for operator in vertex.operators}
        missing = {
            operator: self._former[vertex_id]
            for vertex_id, entries in self._entries.items()
            for entry in entries.values()
            for operator in entry.operators
            if operator not in known
        }
        if missing:
            names = _listed([_called(operator, vertex) for operator, vertex in missing.items()])
            raise StateRestoreError(
                f"checkpoint {self} has state of operators that this program does not have: {names}; "
                f"{self._renamed(missing)}or set {IGNORES_UNCLAIMED_STATE} (flowlet run --allow-non-restored-state) to "
                "true to start without this state"
            )

    def _renamed(self, missing: Mapping[str, VertexEntry]) -> str:
        """What may have become of the operators."""
        new = {
            operator: vertex
            for vertex in self._new.values()
            for operator in vertex.operators
            if operator not in self._vertex_of and self._may_have_been(vertex.operators[operator], missing)
        }
        if not new:
            return (
                "give operators a uid() before the first run, because without one their ids follow from their places "
                "in the program, and give these the uids that they had; "
            )
        uids = [vertex.uids[operator] for operator, vertex in missing.items() if operator in vertex.uids]
        wanted = f"uid({uids[0]!r})" if len(uids) == 1 == len(missing) else "the uid() that it had"
        names = _listed([_called(operator, vertex) for operator, vertex in new.items()])
        return (
            f"this program has {names}, which the checkpoint does not know: if it is the same operator, give it "
            f"{wanted} again; "
        )

    @staticmethod
    def _may_have_been(name: str, missing: Mapping[str, VertexEntry]) -> bool:
        """Whether an operator without state in the checkpoint may be one of the missing ones: those with the same name,
        else all.
        """
        names = {vertex.operators[operator] for operator, vertex in missing.items()}
        return name in names

    def _has_in_flight(self, edge: MovedEdge) -> bool:
        """Whether the edge may have data in flight: its producers or consumers have some of any edge."""
        return bool(self._with_channels(edge.former.source) or self._with_channels(edge.former.target))

    def _with_channels(self, vertex_id: str) -> list[RestoredPart]:
        return in_flight_parts(self._entries.get(vertex_id, {}))

    def _restored_edge(self, moved: MovedEdge) -> RestoredEdge:
        former, now = moved.former, moved.edge
        widths = self._manifest.parallelisms
        return RestoredEdge(
            "" if now is None else now.edge_id,
            former.gate,
            former.output,
            self._with_channels(former.source),
            widths[former.source],
            widths[former.target],
            0 if now is None or not moved.is_same else now.num_producers,
            now is not None and now.is_pointwise,
            new_gate=None if now is None else now.gate,
            operator=moved.operator,
            consumers=None if former.target == moved.vertex_id else self._with_channels(former.target),
            is_by_key_now=moved.is_by_key_now,
        )

    def _refuse_lost(self, edge: MovedEdge) -> NoReturn:
        reader = self._former[edge.former.target]
        operator = next(iter(reader.operators), reader.vertex_id)
        name = _called(operator, reader) if operator in reader.operators else repr(reader.name)
        raise StateRestoreError(
            f"checkpoint {self} has records in flight to operator {name}, which this program does not have, or which "
            f"has no input {edge.former.input_id} any more; give the operator that shall process them the uid() that "
            f"it had, start from a checkpoint that is not unaligned, or set {IGNORES_UNCLAIMED_STATE} (flowlet run "
            "--allow-non-restored-state) to true to lose them"
        )

    def _check_same_edges(self, job: JobGraphMessage) -> None:
        """An older manifest does not name its edges: those of the vertices with records in flight must begin and end
        where they did.
        """
        holding = {vertex_id for vertex_id, entries in self._entries.items() if in_flight_parts(entries)}
        if holding - self._new.keys():
            self._refuse_edge(self._former[min(holding - self._new.keys())].name)
        operators = {each.id: each.operator_ids for each in job.vertices}
        for edge in job.edges:
            if edge.target is None or not holding & {edge.source, edge.target}:
                continue
            source = self._former.get(edge.source)
            if (
                source is None
                or edge.target not in self._former
                or operators[edge.source][edge.source_operator] not in source.operators
            ):
                self._refuse_edge(self._new[edge.source].name, self._new[edge.target].name)

    def _refuse_edge(self, *names: str) -> NoReturn:
        ends = " and ".join(map(repr, names))
        raise StateRestoreError(
            f"checkpoint {self} has records in flight, and there is another way from or to {ends} now: operators are "
            "chained otherwise, were added or were removed; start from a checkpoint that is not unaligned, or leave "
            "the program and its chains as they were"
        )

    def _check_key_groups(self, vertex: VertexMessage) -> None:
        for operator, name in zip(vertex.operator_ids, vertex.operator_names, strict=False):
            former_id = self._vertex_of.get(operator)
            if former_id is None or not self._has_state(former_id, operator):
                continue
            former = self._former[former_id]
            if former.max_parallelism != vertex.max_parallelism:
                raise StateRestoreError(
                    f"operator {name!r} has {vertex.max_parallelism} key groups, in checkpoint {self} it has "
                    f"{former.max_parallelism}: set "
                    f"its max parallelism, or pipeline.max-parallelism, to {former.max_parallelism}"
                )

    def _has_state(self, vertex_id: str, operator: str) -> bool:
        entries: Iterable[SubtaskEntry] = self._entries[vertex_id].values()
        return any(operator in each.operators for each in entries)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _called(operator: str, vertex: VertexEntry) -> str:
    uid = vertex.uids.get(operator)
    return f"{vertex.operators[operator]!r} ({operator if uid is None else f'uid {uid!r}, {operator}'})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
