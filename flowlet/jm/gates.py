"""The remote gates of a job: their addresses, their progress, and the tokens that admit producers.

Side:       pure.
Rules:      each ``gate_document`` has a fresh token, valid for ``TOKEN_LIFETIME_MS``; blobs are passed on unopened.
Units:      milliseconds since the epoch.
"""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.jm.deployment_plan import TaskManagerLocation
from flowlet.jm.job_document import Document
from flowlet.jm.remote_gates.gate_writes import GateWrites, WritesState
from flowlet.messages.control_messages import (
    CountedPartition,
    GateCounts,
    JobGraphMessage,
    RemoteGateMessage,
    VertexMessage,
)
from netstack.wire.offer_messages import GateIdentity, gate_token

# A producer that knows the cluster's secret can fetch a new token when this one expires; one that was handed only a
# token cannot.
TOKEN_LIFETIME_MS: Final = 24 * 3600 * 1000
_STATE_VERSION: Final = 1


class GateState(msgspec.Struct, frozen=True):
    """What a checkpoint holds of a gate in the JobManager; which partitions are counted is in the states of its
    subtasks.
    """

    version: int
    is_told_to_finish: bool
    writes: WritesState


_state_decoder: Final = msgspec.msgpack.Decoder(GateState)


def gate_vertex(job: JobGraphMessage, name: str) -> VertexMessage | None:
    """The vertex whose source is this gate, or None."""
    return next(
        (vertex for vertex in job.vertices if vertex.remote_gate is not None and vertex.remote_gate.name == name), None
    )


def known_vertex(job: JobGraphMessage, name: str) -> VertexMessage:
    """The vertex of a gate that the job has."""
    vertex = gate_vertex(job, name)
    assert vertex is not None, "a gate of this job"
    return vertex


def gate_names(job: JobGraphMessage) -> list[str]:
    """The names of all gates of a job."""
    return [vertex.remote_gate.name for vertex in job.vertices if vertex.remote_gate is not None]


class JobGates:
    """Counts the partitions of the remote gates of one job, and decides when the gates end.

    All subtasks of a gate end together: a partition of a producer may need any of them.  Threading: one thread.
    """

    def __init__(self, job: JobGraphMessage) -> None:
        self._vertices = {vertex.id: vertex for vertex in job.vertices if vertex.remote_gate is not None}
        self._counts = {vertex_id: [GateCounts()] * vertex.parallelism for vertex_id, vertex in self._vertices.items()}
        self._writes = {
            vertex_id: GateWrites(vertex.parallelism, vertex.remote_gate.producers)
            for vertex_id, vertex in self._vertices.items()
            if vertex.remote_gate is not None
        }
        self._told: set[str] = set()  # to finish, by people
        self._finishing: set[str] = set()  # these, and those that are complete in this run

    def __repr__(self) -> str:
        return f"<JobGates of {len(self._vertices)} gates, {len(self._finishing)} of them finishing>"

    def report(self, vertex_id: str, subtask: int, counts: GateCounts, completed: Sequence[CountedPartition]) -> bool:
        """Record a subtask's counts and the partitions that it completed; True if the gate ends now, for the first
        time.
        """
        writes = self._writes.get(vertex_id)
        if writes is None:
            return False
        self._counts[vertex_id][subtask] = counts
        is_complete = [writes.complete(subtask, partition) for partition in completed]
        return any(is_complete) and self.finish(vertex_id)

    def commit(self, vertex_id: str, job: str, epoch: int, num_partitions: int) -> bool:
        """As ``GateWrites.commit``; True if the gate ends now, for the first time."""
        return self._writes[vertex_id].commit(job, epoch, num_partitions) and self.finish(vertex_id)

    def writes(self, vertex_id: str) -> GateWrites:
        """The writes into one gate."""
        return self._writes[vertex_id]

    def finish(self, vertex_id: str) -> bool:
        """Mark a gate as finishing; True if it was not before."""
        is_news = vertex_id not in self._finishing
        self._finishing.add(vertex_id)
        return is_news

    @property
    def vertex_ids(self) -> list[str]:
        """The vertices of the gates."""
        return list(self._vertices)

    def vertex_id(self, name: str) -> str:
        """The vertex of the gate with this name, which is one of the job's."""
        return next(
            key
            for key, each in self._vertices.items()
            if each.remote_gate is not None and each.remote_gate.name == name
        )

    def is_finishing(self, vertex_id: str) -> bool:
        """Whether the gate takes no more producers."""
        return vertex_id in self._finishing

    def request_finish(self, vertex_id: str) -> bool:
        """As ``finish``, for later runs, too."""
        self._told.add(vertex_id)
        return self.finish(vertex_id)

    def begin_run(self, vertex_id: str) -> None:
        """All subtasks of the gate begin anew, and will say which partitions they have."""
        self._counts[vertex_id] = [GateCounts()] * self._vertices[vertex_id].parallelism
        self._writes[vertex_id].begin_run()
        if vertex_id not in self._told:
            self._finishing.discard(vertex_id)

    def snapshot(self, vertex_id: str) -> bytes:
        """What a checkpoint that is triggered now holds of the gate."""
        return msgspec.msgpack.encode(
            GateState(_STATE_VERSION, vertex_id in self._told, self._writes[vertex_id].snapshot())
        )

    def restore(self, vertex_id: str, state: bytes) -> None:
        """Take over what ``snapshot`` gave.  Raises StateRestoreError: it cannot be read."""
        try:
            found: GateState = _state_decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(
                f"the state of the gate of vertex {vertex_id} in a checkpoint cannot be read: {error}"
            ) from error
        if found.version != _STATE_VERSION:
            raise StateRestoreError(
                f"the state of a gate has version {found.version}, this flowlet reads {_STATE_VERSION}"
            )
        self._writes[vertex_id].restore(found.writes)
        if found.is_told_to_finish:
            self.request_finish(vertex_id)

    def documents(self) -> list[Document]:
        """One document per gate, with the counts of its subtasks."""
        return [
            {
                "name": vertex.remote_gate.name,
                "producers": vertex.remote_gate.producers,
                "type": vertex.remote_gate.type_name,
                "is-finishing": vertex_id in self._finishing,
                "completed": self._writes[vertex_id].num_counted,
                "subtasks": [msgspec.to_builtins(each) for each in self._counts[vertex_id]],
            }
            for vertex_id, vertex in self._vertices.items()
            if vertex.remote_gate is not None
        ]


def gate_document(
    job: JobGraphMessage, gate: RemoteGateMessage, locations: Sequence[TaskManagerLocation], secret: bytes, now_ms: int
) -> Document:
    """Everything that a producer needs to offer partitions to a gate; ``locations`` has one entry per subtask."""
    identity = GateIdentity(bytes.fromhex(job.job_id), gate.name, now_ms + TOKEN_LIFETIME_MS)
    return {
        "name": gate.name,
        "job_id": job.job_id,
        "job_name": job.name,
        "type": gate.type_name,
        "fingerprint": gate.fingerprint.hex(),
        "type_blob": base64.b64encode(gate.type_blob).decode(),
        "key_blob": base64.b64encode(gate.key_blob).decode(),
        "producers": gate.producers,
        "has_checkpoints": job.settings.takes_checkpoints,
        "acknowledges_checkpointed": job.settings.acknowledges_checkpointed,
        "endpoints": [{"host": location.host, "port": location.data_port} for location in locations],
        "expires_ms": identity.expires_ms,
        "token": gate_token(secret, identity).hex(),
    }
