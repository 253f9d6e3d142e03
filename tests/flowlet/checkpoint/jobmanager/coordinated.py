"""A coordinator that a test drives, and jobs for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.coordinator_events import (
    Effect,
    WriteManifest,
)
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.errors import FlowletError
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointReport,
    EdgeMessage,
    JobGraphMessage,
    StateHandle,
    TriggerCheckpoint,
    VertexMessage,
)
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.ids import execution_attempt_id, subtask_of
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

    def decline(self, checkpoint_id: int, name: str, reason: str) -> list[Effect]:
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

    def document(self) -> Any:
        """Return the document for people, if no checkpoint is kept."""
        topology = CheckpointTopology(self.job)
        return self.coordinator.document(CompletedCheckpoints(SETTINGS, topology))

    @property
    def pending(self) -> list[int]:
        return list(self.coordinator.pending)


def triggered(effects: Sequence[Effect]) -> dict[int, set[bytes]]:
    """Return the attempts that are told to take a checkpoint, by its id."""
    found: dict[int, set[bytes]] = {}
    for effect in effects:
        if isinstance(effect, TriggerCheckpoint):
            found.setdefault(effect.checkpoint_id, set()).add(effect.attempt)
    return found


def told(effects: Sequence[Effect], kind: type[CheckpointCompleted | CheckpointAborted]) -> list[tuple[int, bytes]]:
    return [(effect.checkpoint_id, effect.attempt) for effect in effects if isinstance(effect, kind)]
