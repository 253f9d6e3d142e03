"""A coordinator that a test drives, and jobs for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.coordinator_events import (
    CheckpointFailed,
    DiscardCheckpoint,
    Effect,
    FailJob,
    KeepCheckpoint,
    SavepointCompleted,
    SavepointFailed,
    WriteManifest,
)
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology, SavepointRequest
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.errors import FlowletError
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointReport,
    FinalCheckpointAwaited,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, StateHandle, VertexMessage
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.ids import execution_attempt_id, subtask_of
from netstack.wire.events import SnapshotType
from tests.flowlet.jm.acknowledgements import acknowledged

JOB_ID = f"{1:032x}"
SETTINGS = CheckpointSettings(interval_ms=100, directory="/checkpoints", timeout_ms=1000)
STATE = StateHandle(3, b"sum", path="chk/state")


def vertex_id(name: str) -> str:
    return f"{ord(name):032x}"


def job_of(
    vertices: Mapping[str, int],
    edges: Sequence[str],
    settings: CheckpointSettings | None = SETTINGS,
    pointwise: Sequence[str] = (),
) -> JobGraphMessage:
    """``vertices``: the parallelism by a name of one letter.

    ``edges``: two letters each, the second one ``-`` for the client's.
    """
    messages = [
        VertexMessage(vertex_id(name), name, width, 128, "default", [name], b"chain")
        for name, width in vertices.items()
    ]
    edge_messages = [
        EdgeMessage(
            f"{100 + index:032x}",
            vertex_id(edge[0]),
            0,
            None if edge[1] == "-" else vertex_id(edge[1]),
            edge in pointwise,
            "",
            b"partitioner",
            100,
        )
        for index, edge in enumerate([*edges, *pointwise])
    ]
    return JobGraphMessage(JOB_ID, "job", messages, edge_messages, settings=JobSettings(checkpoints=settings))


def attempt(name: str, subtask: int = 0, run: int = 0) -> bytes:
    return execution_attempt_id(bytes.fromhex(JOB_ID), bytes.fromhex(vertex_id(name)), subtask, run)


def attempts_of(job: JobGraphMessage, run: int = 0) -> dict[bytes, Subtask]:
    found = [attempt(vertex.name, subtask, run) for vertex in job.vertices for subtask in range(vertex.parallelism)]
    return {each: Subtask(*subtask_of(each)) for each in found}


class Coordinated:
    """A coordinator of source ``s`` and sink ``t``, if nothing else is said; its sources answer at once."""

    def __init__(self, job: JobGraphMessage | None = None, **settings: object) -> None:
        self.job = job or job_of({"s": 1, "t": 1}, ["st"])
        self.problem: str | None = None  # of the sources
        topology, all_settings = CheckpointTopology(self.job), replace(SETTINGS, **settings)  # type: ignore[arg-type]  # ints
        self.coordinator = CheckpointCoordinator(topology, all_settings, snapshot_sources=self.sources)
        self.now_ms = 0
        self.run = -1
        self.effects: list[Effect] = []
        self.manifests: dict[int, CheckpointManifest] = {}

    def handle(self, happened: Callable[..., None], *facts: object) -> list[Effect]:
        """Tell it what has happened."""
        effects = self.coordinator.handle(lambda it: happened(it, *facts), self.now_ms)
        for effect in effects:
            if isinstance(effect, WriteManifest):
                self.manifests[effect.manifest.checkpoint_id] = effect.manifest
        self.coordinator.check_invariants()
        self.effects += effects
        return effects

    def sources(self, checkpoint_id: int) -> list[SourceEntry]:
        if self.problem is not None:
            raise FlowletError(self.problem)
        return [SourceEntry(vertex_id("s"), b"splits")]

    def start(self, restored: int | None = None) -> None:
        """All attempts of the next run are running."""
        self.run += 1
        attempts = attempts_of(self.job, self.run)
        self.handle(lambda it: it.run_started(attempts, restored))
        for each in attempts:
            self.handle(CheckpointCoordinator.attempt_changed, each, ExecutionState.RUNNING)

    def stop(self) -> list[Effect]:
        return self.handle(CheckpointCoordinator.run_ended)

    def at(self, now_ms: int) -> list[Effect]:
        """The time moves on; every timer on the way fires when it is due."""
        effects: list[Effect] = []
        while (due_ms := self.coordinator.next_due_ms) is not None and due_ms <= now_ms:
            self.now_ms = max(due_ms, self.now_ms)
            effects += self.handle(CheckpointCoordinator.time_passed)
            later_ms = self.coordinator.next_due_ms
            assert later_ms is None or later_ms > self.now_ms, "a timer that changes nothing would fire for ever"
        self.now_ms = now_ms
        return effects

    def attempt(self, name: str, subtask: int = 0) -> bytes:
        """Return the id of the subtask's attempt in this run."""
        return attempt(name, subtask, self.run)

    def acknowledge(self, checkpoint_id: int, *tasks: str) -> list[Effect]:
        """Each task is a letter and the subtask; all of them if none is named."""
        names = tasks or [
            f"{vertex.name}{index}" for vertex in self.job.vertices for index in range(vertex.parallelism)
        ]
        return [
            effect
            for name in names
            for effect in self.report(acknowledged(self.attempt(name[0], int(name[1:] or 0)), checkpoint_id, STATE))
        ]

    def report(self, message: CheckpointReport) -> list[Effect]:
        return self.handle(CheckpointCoordinator.reported, message)

    def decline(self, checkpoint_id: int, name: str, reason: str = "ASYNCHRONOUS_PART_FAILED") -> list[Effect]:
        return self.report(CheckpointDeclined(self.attempt(name), checkpoint_id, reason, "no space left"))

    def change(self, name: str, state: ExecutionState, subtask: int = 0) -> list[Effect]:
        return self.handle(lambda it: it.attempt_changed(self.attempt(name, subtask), state))

    def write(self, checkpoint_id: int) -> list[Effect]:
        return self.handle(lambda it: it.manifest_written(self.manifests[checkpoint_id]))

    def fail_to_write(self, checkpoint_id: int) -> list[Effect]:
        return self.handle(lambda it: it.manifest_failed(checkpoint_id, "the disk is full"))

    def complete(self, checkpoint_id: int) -> list[Effect]:
        """All running tasks acknowledge, and the manifest is written."""
        return [*self.acknowledge(checkpoint_id), *self.write(checkpoint_id)]

    def want(self, request: SavepointRequest) -> list[Effect]:
        """A savepoint is wanted."""
        return self.handle(lambda it: it.savepoint_requested(request))

    def play(self, *steps: str) -> "Coordinated":
        """Each step is what happens and, behind an arrow, all that the coordinator does then.

        ``complete 1`` stands for the acknowledgements of all tasks and the written manifest: what they bring without
        fail is not told.
        """
        for step in steps:
            what, _, expected = step.partition("->")
            assert self.text_of(self._happen(*what.split())) == expected.strip(), step
        return self

    def _happen(self, what: str, *facts: str) -> list[Effect]:
        match what, *facts:
            case "deploy", *_:
                self.run += 1
                return self.handle(lambda it: it.run_started(attempts_of(self.job, self.run)))
            case "start", *_:
                before = len(self.effects)
                self.start()
                return self.effects[before:]
            case "stop", *_:
                return self.stop()
            case "end", *_:
                return self.handle(CheckpointCoordinator.job_ended)
            case "at", now_ms:
                return self.at(int(now_ms))
            case "clock", now_ms:  # it goes on, and no timer fires
                self.now_ms = int(now_ms)
                return []
            case "late", now_ms:  # the loop stood still
                self.now_ms = int(now_ms)
                return self.handle(CheckpointCoordinator.time_passed)
            case "want", *_:
                return self.handle(CheckpointCoordinator.checkpoint_wanted)
            case "savepoint" | "drain", location:
                kind = SnapshotType.SAVEPOINT if what == "savepoint" else SnapshotType.SAVEPOINT_TERMINATE
                return self.want(SavepointRequest(location, kind))
            case "ack", checkpoint_id, *names:
                return self.acknowledge(int(checkpoint_id), *names)
            case "decline", checkpoint_id, name, *reason:
                return self.decline(int(checkpoint_id), name, *reason)
            case "write", checkpoint_id:
                return self.write(int(checkpoint_id))
            case "cannot-write", checkpoint_id:
                return self.fail_to_write(int(checkpoint_id))
            case "complete", checkpoint_id:
                effects = self.complete(int(checkpoint_id))
                assert any(isinstance(effect, WriteManifest) for effect in effects)
                usual = (WriteManifest, KeepCheckpoint, CheckpointCompleted)
                return [effect for effect in effects if not isinstance(effect, usual)]
            case name, "waits":
                return self.report(FinalCheckpointAwaited(self.attempt(name[0], int(name[1:] or 0))))
            case name, state:
                return self.change(name[0], ExecutionState[state], int(name[1:] or 0))
            case _:
                raise AssertionError(f"nobody knows what this means: {what}")

    def text_of(self, effects: Sequence[Effect]) -> str:
        """Return the effects in words; attempts that hear the same are told together."""
        told: list[list[str]] = []
        for effect in effects:
            words = _in_words(effect)
            if not isinstance(effect, TriggerCheckpoint | CheckpointCompleted | CheckpointAborted):
                told.append([words])
            elif told and told[-1][0] == words:
                told[-1].append(self._name(effect.attempt))
            else:
                told.append([words, self._name(effect.attempt)])
        return "; ".join(map(" ".join, told))

    def _name(self, attempt: bytes) -> str:
        vertex, subtask = subtask_of(attempt)
        name = chr(int(vertex, 16))
        is_wide = any(each.name == name and each.parallelism > 1 for each in self.job.vertices)
        old = "" if attempt == self.attempt(name, subtask) else "old "
        return f"{old}{name}{subtask if is_wide else ''}"

    def document(self) -> Any:
        """Return the document for people, if no checkpoint is kept."""
        topology = CheckpointTopology(self.job)
        return self.coordinator.document(CompletedCheckpoints(SETTINGS, topology))

    @property
    def pending(self) -> list[int]:
        return list(self.coordinator.pending)


def _in_words(effect: Effect) -> str:
    match effect:
        case TriggerCheckpoint(_, checkpoint_id, location=location):
            return f"trigger {checkpoint_id} {location}".rstrip()
        case CheckpointCompleted(_, checkpoint_id):
            return f"completed {checkpoint_id}"
        case CheckpointAborted(_, checkpoint_id):
            return f"aborted {checkpoint_id}"
        case WriteManifest(manifest, location):
            return f"write {manifest.checkpoint_id} {location}".rstrip()
        case KeepCheckpoint(manifest):
            return f"keep {manifest.checkpoint_id}"
        case DiscardCheckpoint(checkpoint_id, location):
            return f"discard {checkpoint_id} {location}".rstrip()
        case CheckpointFailed(checkpoint_id, failure):
            return f"failed {checkpoint_id} {failure.reason}"
        case SavepointCompleted(request, checkpoint_id):
            return f"savepoint {checkpoint_id} {request.location}"
        case SavepointFailed(request):
            return f"no savepoint {request.location}"
        case FailJob():
            return "fail the job"


def started(job: JobGraphMessage | None = None, **settings: object) -> Coordinated:
    """Return a coordinator whose tasks run."""
    coordinated = Coordinated(job, **settings)
    coordinated.start()
    return coordinated


def under_way(**settings: object) -> Coordinated:
    """Return a coordinator that has triggered checkpoint 1, at 100 ms."""
    coordinated = started(**settings)  # type: ignore[arg-type]  # of CheckpointSettings
    coordinated.at(100)
    return coordinated


def triggered(effects: Sequence[Effect]) -> dict[int, set[bytes]]:
    """Return the attempts that are told to take a checkpoint, by its id."""
    found: dict[int, set[bytes]] = {}
    for effect in effects:
        if isinstance(effect, TriggerCheckpoint):
            found.setdefault(effect.checkpoint_id, set()).add(effect.attempt)
    return found


def told(effects: Sequence[Effect], kind: type[CheckpointCompleted | CheckpointAborted]) -> list[tuple[int, bytes]]:
    return [(effect.checkpoint_id, effect.attempt) for effect in effects if isinstance(effect, kind)]
