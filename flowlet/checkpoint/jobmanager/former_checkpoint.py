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

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import IGNORES_UNCLAIMED_STATE
from flowlet.errors import StateRestoreError
from flowlet.keys.exact_keys import key_group_range
from flowlet.messages.job_messages import CheckpointPlace, RestoredEdge, RestoredState, RestoredVertex, SubtaskEntry
from flowlet.storage.manifest import CheckpointManifest, EdgeEntry, VertexEntry
from netstack.late import dataclass

_MAX_NAMED: Final = 5  # operators in one message


@dataclass(eq=False)
class FormerCheckpoint:
    """A complete checkpoint, as the subtasks of a job take it over: of the job itself, or of another job.

    Threading: any thread.

    Args:
        place: where it lies; None: it is one of the job.
        manifest: of it.
        topology: of the job that starts from it.
        ignores_unclaimed_state: whether state and records of operators that the job does not have are left out.

    Raises:
        StateRestoreError: an operator that has state is not in the program, or has another number of key groups.
    """

    place: CheckpointPlace | None
    manifest: CheckpointManifest
    topology: CheckpointTopology
    ignores_unclaimed_state: bool = False

    def __post_init__(self) -> None:
        manifest = self.manifest
        place = self.place
        if not manifest.vertices and place is not None:
            raise StateRestoreError(
                f"checkpoint {place} names no operators: it is of an older flowlet; go on with that one"
            )
        self.checkpoint_id = manifest.checkpoint_id
        self.sources = {each.vertex_id: each.state for each in manifest.sources}  # of split enumerators, by vertex id
        vertices = manifest.vertices or self.topology.vertices
        self._former = {each.vertex_id: each for each in vertices}
        self._entries: dict[str, dict[int, SubtaskEntry]] = {each.vertex_id: {} for each in vertices}
        for entry in manifest.subtasks:
            self._entries.setdefault(entry.vertex_id, {})[entry.subtask] = entry
        self._vertex_of = {operator: each.vertex_id for each in vertices for operator in each.operators}
        self._new = {each.vertex_id: each for each in self.topology.vertices}
        # Another job's: of its own checkpoints a job knows that they fit.
        if place is not None:
            self._check()
        self._edges: dict[str, list[RestoredEdge]] = {}  # edges with data in flight, by the vertex that processes it
        self._place_edges()

    def __repr__(self) -> str:
        return f"<FormerCheckpoint {self}>"

    def __str__(self) -> str:
        return f"{self.checkpoint_id} of this job" if self.place is None else str(self.place)

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState:
        """Return the state of a subtask of the job at its start."""
        new = self._new[vertex_id]
        ids = [vertex_id, *(self._vertex_of[each] for each in new.operators if each in self._vertex_of)]
        # Its own vertex comes first, if there was one: the ids of both are those of their first operators.
        former = [self._former[each] for each in dict.fromkeys(ids) if each in self._former]
        same = former[0] if former and former[0].vertex_id == vertex_id else None
        is_kept = same is not None and (same.parallelism, set(same.operators)) == (new.parallelism, set(new.operators))
        # Only where nothing changed does a subtask go on from the one with its number.
        own = self._entries[vertex_id].get(subtask) if is_kept else None
        if own is not None:
            is_finished = own.is_finished
        else:
            # All of them: if one had not finished, its share has records to come.
            is_finished = bool(former) and all(len(self._finished(each)) == each.parallelism for each in former)
        return RestoredState(
            self.checkpoint_id,
            # Of a vertex that is as it was, those that had finished do not run again, and nobody takes their share.
            [self._vertex(each, [] if is_kept else self._finished(each), new, subtask) for each in former],
            is_finished,
            self._edges.get(vertex_id, []),
            self.place,
        )

    def _finished(self, former: VertexEntry) -> list[int]:
        return [subtask for subtask, each in self._entries[former.vertex_id].items() if each.is_finished]

    def _vertex(self, former: VertexEntry, finished: list[int], new: VertexEntry, subtask: int) -> RestoredVertex:
        every = self._entries[former.vertex_id].values()
        entries = [each for each in every if each.state is not None or each.channels is not None]
        # Fast path: each subtask reads its own part; with many subtasks all parts for all would be quadratic.
        if former.parallelism == new.parallelism and not finished and not any(each.has_union_state for each in entries):
            entries = [each for each in entries if each.subtask == subtask]
        # A part without any of the wanted key groups has nothing for this subtask.
        elif all(each.is_by_key and each.channels is None for each in entries):
            wanted = key_group_range(new.max_parallelism, new.parallelism, subtask)
            had = [key_group_range(former.max_parallelism, former.parallelism, each.subtask) for each in entries]
            entries = [
                each
                for each, groups in zip(entries, had, strict=True)
                if groups.start < wanted.stop and wanted.start < groups.stop
            ]
        return RestoredVertex(former.parallelism, list(former.operators), entries, finished)

    # ---------------------------------------------------------------- data in flight

    def _place_edges(self) -> None:
        """Find where the data in flight of each edge of the checkpoint goes now."""
        vertices = self.topology.vertices
        places = {name: (each.vertex_id, index) for each in vertices for index, name in enumerate(each.operators)}
        places |= {each.vertex_id: (each.vertex_id, 0) for each in vertices}
        taken: set[str] = set()
        for former in self.manifest.edges or self.topology.edges:
            if not self._in_flight(former.source) and not self._in_flight(former.target):
                continue
            found = self._moved(former, places.get(former.target), taken)
            if found is not None:
                self._edges.setdefault(places[former.target][0], []).append(found)
            # Records would be lost without a word; only the user may want that.
            elif not self.ignores_unclaimed_state:
                self._refuse_lost(former)

    def _moved(self, former: EdgeEntry, place: tuple[str, int] | None, taken: set[str]) -> RestoredEdge | None:
        """Find the way to the operator that read a former edge; None: the job has no such operator, or
        no such input.
        """
        if place is None:
            return None
        vertex_id, operator = place
        now = None
        num_producers = 0
        if not operator:
            fitting = [each for each in self.topology.inputs[vertex_id] if each.entry.input_id == former.input_id]
            # Two operators may have several edges between them: each goes on as the edge with its place among these.
            same = [
                each
                for each in fitting
                if (each.entry.source_operator, each.entry.tag) == (former.source_operator, former.tag)
                and each.edge_id not in taken
            ]
            now = next(iter(same or fitting), None)
            if now is None:
                return None
            # Two former edges between two operators must not both go to one of now.
            taken.add(now.edge_id)
            num_producers = self.topology.parallelisms[now.entry.source] if same else 0
        widths = self.manifest.parallelisms
        is_by_key_now = now is not None and now.entry.is_by_key and not former.is_by_key
        return RestoredEdge(
            "" if now is None else now.edge_id,
            former.gate,
            former.output,
            self._in_flight(former.source),
            widths[former.source],
            widths[former.target],
            num_producers,
            now is not None and now.is_pointwise,
            new_gate=None if now is None else now.entry.gate,
            operator=operator,
            # Where keys are dealt out anew each subtask reads what all had, and keeps its own keys.
            consumers=self._in_flight(former.target) if is_by_key_now or former.target != vertex_id else None,
            is_by_key_now=is_by_key_now,
        )

    def _in_flight(self, vertex_id: str) -> list[SubtaskEntry]:
        """Return the data in flight of the subtasks of a vertex, by subtask; subtasks without any are left out."""
        return [
            SubtaskEntry(vertex_id, subtask, channels=entry.channels)
            for subtask, entry in sorted(self._entries.get(vertex_id, {}).items())
            if entry.channels is not None
        ]

    # ---------------------------------------------------------------- what does not fit

    def _check(self) -> None:
        if not self.ignores_unclaimed_state:
            self._check_operators()
        for vertex in self.topology.vertices:
            self._check_key_groups(vertex)
        if not self.manifest.edges:
            self._check_same_edges()

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
        """Write a sentence about operators with equal names and no state there, which may be the missing ones."""
        missing_names = {vertex.operators[operator] for operator, vertex in missing.items()}
        new = {
            operator: vertex
            for vertex in self._new.values()
            for operator in vertex.operators
            if operator not in self._vertex_of and vertex.operators[operator] in missing_names
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

    def _refuse_lost(self, edge: EdgeEntry) -> NoReturn:
        reader = self._former[edge.target]
        operator = next(iter(reader.operators), reader.vertex_id)
        name = _called(operator, reader) if operator in reader.operators else repr(reader.name)
        raise StateRestoreError(
            f"checkpoint {self} has records in flight to operator {name}, which this program does not have, or which "
            f"has no input {edge.input_id} any more; give the operator that shall process them the uid() that "
            f"it had, start from a checkpoint that is not unaligned, or set {IGNORES_UNCLAIMED_STATE} (flowlet run "
            "--allow-non-restored-state) to true to lose them"
        )

    def _check_same_edges(self) -> None:
        """Check that vertices with records in flight have the edges that they had, if an older manifest does not name
        its edges.
        """
        holding = {vertex_id for vertex_id in self._entries if self._in_flight(vertex_id)}
        if holding - self._new.keys():
            self._refuse_edge(self._former[min(holding - self._new.keys())].name)
        for edge in self.topology.edges:
            if not holding & {edge.source, edge.target}:
                continue
            source = self._former.get(edge.source)
            if source is None or edge.target not in self._former or edge.source_operator not in source.operators:
                self._refuse_edge(self._new[edge.source].name, self._new[edge.target].name)

    def _refuse_edge(self, *names: str) -> NoReturn:
        ends = " and ".join(map(repr, names))
        raise StateRestoreError(
            f"checkpoint {self} has records in flight, and there is another way from or to {ends} now: operators are "
            "chained otherwise, were added or were removed; start from a checkpoint that is not unaligned, or leave "
            "the program and its chains as they were"
        )

    def _check_key_groups(self, vertex: VertexEntry) -> None:
        for operator, name in vertex.operators.items():
            former_id = self._vertex_of.get(operator)
            if former_id is None:
                continue
            # Without state the number of key groups may change.
            if not any(operator in each.operators for each in self._entries[former_id].values()):
                continue  # it has no state
            former = self._former[former_id]
            if former.max_parallelism != vertex.max_parallelism:
                raise StateRestoreError(
                    f"operator {name!r} has {vertex.max_parallelism} key groups, in checkpoint {self} it has "
                    f"{former.max_parallelism}: set "
                    f"its max parallelism, or pipeline.max-parallelism, to {former.max_parallelism}"
                )


def _called(operator: str, vertex: VertexEntry) -> str:
    uid = vertex.uids.get(operator)
    return f"{vertex.operators[operator]!r} ({operator if uid is None else f'uid {uid!r}, {operator}'})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
