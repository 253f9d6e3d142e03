"""The remote gates of a job: where they are, and the tokens that let producers in.

Side:       pure.
Rules:      a gate's token is made anew for every question, good for ``TOKEN_LIFETIME_MS``; blobs are passed on unopened.
Units:      milliseconds since the epoch.
"""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec

from flowlet.jm.deployment_plan import TaskManagerLocation
from flowlet.jm.job_document import Document
from flowlet.rpc.control_messages import GateCounts, JobGraphMessage, RemoteGateMessage, VertexMessage
from netstack.wire.gate_access import GateIdentity, gate_token

# A producer that knows the cluster's secret asks again when it is over; one that was only given a token has this long.
TOKEN_LIFETIME_MS: Final = 24 * 3600 * 1000


def gate_vertex(job: JobGraphMessage, name: str) -> VertexMessage | None:
    """The vertex that begins with this gate, if the job has it."""
    return next((vertex for vertex in job.vertices if vertex.remote_gate is not None and vertex.remote_gate.name == name), None)


def gate_names(job: JobGraphMessage) -> list[str]:
    """The names of all gates of a job."""
    return [vertex.remote_gate.name for vertex in job.vertices if vertex.remote_gate is not None]


class GateEnd:
    """When the gates of one job end: all subtasks of a gate together, so that none is gone while another one still needs a partition.

    Threading: none.
    """

    def __init__(self, job: JobGraphMessage) -> None:
        self._vertices = {vertex.id: vertex for vertex in job.vertices if vertex.remote_gate is not None}
        self._counts = {vertex_id: [GateCounts()] * vertex.parallelism for vertex_id, vertex in self._vertices.items()}
        self._finishing: set[str] = set()

    def __repr__(self) -> str:
        return f"<GateEnd of {len(self._vertices)} gates, {len(self._finishing)} of them finishing>"

    def report(self, vertex_id: str, subtask: int, counts: GateCounts) -> bool:
        """Note what a subtask has taken; whether the gate has all it waits for now."""
        vertex = self._vertices.get(vertex_id)
        if vertex is None or vertex.remote_gate is None:
            return False
        of_gate = self._counts[vertex_id]
        of_gate[subtask] = counts
        wanted = vertex.remote_gate.producers
        return wanted is not None and min(each.num_completed for each in of_gate) >= wanted and self.finish(vertex_id)

    def finish(self, vertex_id: str) -> bool:
        """The gate is told to finish; whether that is news."""
        is_news = vertex_id not in self._finishing
        self._finishing.add(vertex_id)
        return is_news

    def documents(self) -> list[Document]:
        """The gates of the job, and what their subtasks have taken."""
        return [
            {
                "name": vertex.remote_gate.name,
                "producers": vertex.remote_gate.producers,
                "type": vertex.remote_gate.type_name,
                "is-finishing": vertex_id in self._finishing,
                "completed": min(each.num_completed for each in self._counts[vertex_id]),
                "subtasks": [msgspec.to_builtins(each) for each in self._counts[vertex_id]],
            }
            for vertex_id, vertex in self._vertices.items()
            if vertex.remote_gate is not None
        ]


def gate_document(
    job: JobGraphMessage, gate: RemoteGateMessage, locations: Sequence[TaskManagerLocation], secret: bytes, now_ms: int
) -> Document:
    """All that a producer needs to offer partitions to a gate; ``locations`` by subtask."""
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
        "endpoints": [{"host": location.host, "port": location.data_port} for location in locations],
        "expires_ms": identity.expires_ms,
        "token": gate_token(secret, identity).hex(),
    }
