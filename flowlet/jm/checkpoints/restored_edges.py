"""Which data in flight of a checkpoint concern the inputs of a vertex.

Side:       pure.
Rules:      data in flight on an edge are in two places: what had reached the consumer is in the consumer's part of the checkpoint, by the
            index of the gate; what had not is in the producer's part, by the index of the partition.  Gates count the edges into a vertex,
            partitions those out of it, both in the order of the job.  All of it is processed by the consumers; producers restore nothing.
Source:     Flink ``StateAssignmentOperation.reDistributeInputChannelStates``, ``reDistributeResultSubpartitionStates``; there, producers
            send what they had again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowlet.rpc.control_messages import JobGraphMessage, RestoredEdge, RestoredPart
from flowlet.storage.manifest import CheckpointManifest, SubtaskEntry


@dataclass(frozen=True, slots=True)
class InFlightEdge:
    """One edge between two vertices, without its blob: ``gate`` of ``target`` reads partition ``output`` of ``source``."""

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
            edges.append(InFlightEdge(edge.id, edge.source, output, edge.target, gate, edge.is_pointwise, parallelisms[edge.source]))
    return edges


def restored_edges(
    edges: Sequence[InFlightEdge], manifest: CheckpointManifest, parts: Mapping[str, Mapping[int, SubtaskEntry]], vertex_id: str
) -> list[RestoredEdge]:
    """The edges into a vertex that may have data in flight in a checkpoint; ``parts`` of it by vertex and subtask."""
    has_input = any(entry.channels is not None for entry in parts.get(vertex_id, {}).values())
    found = []
    for edge in edges:
        if edge.target != vertex_id or not {vertex_id, edge.source} <= manifest.parallelisms.keys():
            continue
        producers = [
            RestoredPart(subtask, channels=entry.channels)
            for subtask, entry in sorted(parts.get(edge.source, {}).items())
            if entry.channels is not None
        ]
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
