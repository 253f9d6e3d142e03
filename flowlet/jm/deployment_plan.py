"""Makes the deployment descriptors of a job's tasks from its graph and their locations.

Side:   pure.
Source: Flink ``TaskDeploymentDescriptorFactory``, ``EdgeManagerBuildUtil``.
Rules:  on an all-to-all edge each producer has one subpartition per consumer, and consumer i reads subpartition i of
        every producer.  On a pointwise edge a producer has one subpartition for each consumer that it feeds.  On an
        edge that the client reads it has one.  Blobs are passed on unopened.
"""

from collections.abc import Mapping

import msgspec

from flowlet.graph.partitioner import consumers_of, producers_of
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import Subtask
from flowlet.messages.program_bundle import pieces_of
from netstack.ids import intermediate_partition_id, subtask_of
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class TaskManagerLocation:
    """The address of a TaskManager's data port."""

    tm_id: str
    host: str
    data_port: int
    pid: int

    def __str__(self) -> str:
        return f"TaskManager {self.tm_id} ({self.host}:{self.data_port}, pid {self.pid})"


class DeploymentPlan:
    """Makes the descriptors of a job's tasks; ``locations`` has an entry for the newest attempt of every subtask.

    Immutable.
    """

    def __init__(self, job: messages.JobGraphMessage, locations: Mapping[bytes, TaskManagerLocation]) -> None:
        self._job = job
        self._locations = dict(locations)
        self._attempts = {subtask_of(attempt): attempt for attempt in locations}
        self._vertices = {vertex.id: vertex for vertex in job.vertices}

    def __repr__(self) -> str:
        return f"<DeploymentPlan of {self._job.job_id}, {len(self._locations)} tasks>"

    def place_of(self, subtask: Subtask) -> tuple[str, bytes]:
        """The TaskManager and the attempt of a subtask."""
        attempt = self._attempts[subtask]
        return self._locations[attempt].tm_id, attempt

    def describe_task(
        self, vertex_id: str, subtask: int, restored: messages.RestoredState | None = None
    ) -> messages.TaskDeploymentDescriptor:
        """Everything that a TaskManager needs to run this subtask; ``restored``: what it begins with."""
        vertex = self._vertices[vertex_id]
        outputs = [edge for edge in self._job.edges if edge.source == vertex.id]
        restored = None if restored is None else self._with_partitioners(restored, vertex.parallelism)
        former = [] if restored is None else restored.edges
        blobs = [vertex.chain, *(edge.partitioner for edge in outputs), *(edge.partitioner for edge in former)]
        code = self._job.code
        if code.pieces:
            code = msgspec.structs.replace(code, pieces=pieces_of(blobs, code.pieces))
        return messages.TaskDeploymentDescriptor(
            job_id=self._job.job_id,
            job_name=self._job.name,
            vertex_id=vertex.id,
            task_name=vertex.name,
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt=self._attempts[vertex.id, subtask],
            chain=vertex.chain,
            gates=[self._gate(edge, subtask) for edge in self._job.edges if edge.target == vertex.id],
            partitions=[self._partition(edge, subtask) for edge in outputs],
            code=code,
            settings=self._job.settings,
            restored=restored,
        )

    def _with_partitioners(self, restored: messages.RestoredState, parallelism: int) -> messages.RestoredState:
        """With what tells to which subtask a record in flight goes now, where that may be another one."""
        if all(each.former_consumers == parallelism and not each.is_by_key_now for each in restored.edges):
            return restored
        blobs = {edge.id: edge.partitioner for edge in self._job.edges}
        edges = [
            msgspec.structs.replace(each, partitioner=blobs[each.edge_id]) if each.edge_id else each
            for each in restored.edges
        ]
        return msgspec.structs.replace(restored, edges=edges)

    def external_channels(self, edge: messages.EdgeMessage) -> list[messages.InputChannelDescriptor]:
        """The channels through which the client reads ``edge``: one per producer."""
        assert edge.target is None, "the client reads only edges without a target vertex"
        return [self._channel(edge, producer, 0) for producer in range(self._vertices[edge.source].parallelism)]

    def _gate(self, edge: messages.EdgeMessage, subtask: int) -> messages.InputGateDescriptor:
        num_producers = self._vertices[edge.source].parallelism
        if edge.is_pointwise:
            num_consumers = _target(edge, self._vertices).parallelism
            channels = [
                self._channel(edge, producer, subtask - consumers_of(producer, num_producers, num_consumers).start)
                for producer in producers_of(subtask, num_producers, num_consumers)
            ]
            return messages.InputGateDescriptor(edge.id, channels, edge.input_id)
        producers = range(num_producers)
        return messages.InputGateDescriptor(
            edge.id, [self._channel(edge, producer, subtask) for producer in producers], edge.input_id
        )

    def _channel(self, edge: messages.EdgeMessage, producer: int, subpartition: int) -> messages.InputChannelDescriptor:
        attempt = self._attempts[edge.source, producer]
        location = self._locations[attempt]
        return messages.InputChannelDescriptor(
            partition=intermediate_partition_id(bytes.fromhex(edge.id), producer),
            producer=attempt,
            subpartition=subpartition,
            tm_id=location.tm_id,
            host=location.host,
            port=location.data_port,
        )

    def _partition(self, edge: messages.EdgeMessage, subtask: int) -> messages.ResultPartitionDescriptor:
        return messages.ResultPartitionDescriptor(
            edge_id=edge.id,
            partition=intermediate_partition_id(bytes.fromhex(edge.id), subtask),
            num_subpartitions=self._num_subpartitions(edge, subtask),
            source_operator=edge.source_operator,
            partitioner=edge.partitioner,
            buffer_timeout_ms=edge.buffer_timeout_ms,
            tag=edge.tag,
            is_blocking=edge.is_blocking,
        )

    def _num_subpartitions(self, edge: messages.EdgeMessage, producer: int) -> int:
        if edge.target is None:
            return 1
        num_consumers = _target(edge, self._vertices).parallelism
        if not edge.is_pointwise:
            return num_consumers
        return len(consumers_of(producer, self._vertices[edge.source].parallelism, num_consumers))


def _target(edge: messages.EdgeMessage, vertices: Mapping[str, messages.VertexMessage]) -> messages.VertexMessage:
    assert edge.target is not None, "an edge between vertices"
    return vertices[edge.target]
