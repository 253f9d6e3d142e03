"""From a job graph and the places of its tasks to what each TaskManager is told.

Side:   pure.
Source: Flink ``TaskDeploymentDescriptorFactory``, ``EdgeManagerBuildUtil``.
Rules:  an all-to-all edge gives each producer one subpartition per consumer, and consumer i reads subpartition i of every producer; a
        pointwise one gives each producer one per consumer that it shares the edge with; what the client reads has one per producer.
        Blobs are passed on unopened.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flowlet.graph.partitioner import consumers_of, producers_of
from flowlet.jm.scheduler import attempt_id
from flowlet.rpc.control_messages import (
    EdgeMessage,
    InputChannelDescriptor,
    InputGateDescriptor,
    JobGraphMessage,
    ResultPartitionDescriptor,
    TaskDeploymentDescriptor,
    VertexMessage,
)
from netstack.ids import partition_id


@dataclass(frozen=True, slots=True)
class TaskManagerLocation:
    """Where a TaskManager is."""

    tm_id: str
    host: str
    data_port: int
    pid: int

    def __str__(self) -> str:
        return f"TaskManager {self.tm_id} ({self.host}:{self.data_port}, pid {self.pid})"


class DeploymentPlan:
    """Makes the descriptors of one job's tasks; ``locations`` has every attempt.

    Threading: none; nothing in it changes.
    """

    def __init__(self, job: JobGraphMessage, locations: Mapping[bytes, TaskManagerLocation]) -> None:
        self._job = job
        self._locations = locations
        self._vertices = {vertex.id: vertex for vertex in job.vertices}

    def __repr__(self) -> str:
        return f"<DeploymentPlan of {self._job.job_id}, {len(self._locations)} tasks>"

    def describe_task(self, vertex_id: str, subtask: int) -> TaskDeploymentDescriptor:
        """All that the TaskManager of a subtask needs."""
        vertex = self._vertices[vertex_id]
        return TaskDeploymentDescriptor(
            job_id=self._job.job_id,
            job_name=self._job.name,
            vertex_id=vertex.id,
            task_name=vertex.name,
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt=attempt_id(self._job.job_id, vertex.id, subtask),
            chain=vertex.chain,
            gates=[self._gate(edge, subtask) for edge in self._job.edges if edge.target == vertex.id],
            partitions=[self._partition(edge, subtask) for edge in self._job.edges if edge.source == vertex.id],
        )

    def external_channels(self, edge: EdgeMessage) -> list[InputChannelDescriptor]:
        """What the client reads to collect an edge: one channel per producer."""
        assert edge.target is None, "a task reads the others"
        return [self._channel(edge, producer, 0) for producer in range(self._vertices[edge.source].parallelism)]

    def _gate(self, edge: EdgeMessage, subtask: int) -> InputGateDescriptor:
        num_producers = self._vertices[edge.source].parallelism
        if edge.is_pointwise:
            num_consumers = _target(edge, self._vertices).parallelism
            channels = [
                self._channel(edge, producer, subtask - consumers_of(producer, num_producers, num_consumers).start)
                for producer in producers_of(subtask, num_producers, num_consumers)
            ]
            return InputGateDescriptor(edge.id, channels, edge.input_id)
        producers = range(num_producers)
        return InputGateDescriptor(edge.id, [self._channel(edge, producer, subtask) for producer in producers], edge.input_id)

    def _channel(self, edge: EdgeMessage, producer: int, subpartition: int) -> InputChannelDescriptor:
        attempt = attempt_id(self._job.job_id, edge.source, producer)
        location = self._locations[attempt]
        return InputChannelDescriptor(
            partition=partition_id(bytes.fromhex(edge.id), producer),
            producer=attempt,
            subpartition=subpartition,
            tm_id=location.tm_id,
            host=location.host,
            port=location.data_port,
        )

    def _partition(self, edge: EdgeMessage, subtask: int) -> ResultPartitionDescriptor:
        return ResultPartitionDescriptor(
            edge_id=edge.id,
            partition=partition_id(bytes.fromhex(edge.id), subtask),
            num_subpartitions=self._num_subpartitions(edge, subtask),
            source_operator=edge.source_operator,
            partitioner=edge.partitioner,
            buffer_timeout_ms=edge.buffer_timeout_ms,
            tag=edge.tag,
        )

    def _num_subpartitions(self, edge: EdgeMessage, producer: int) -> int:
        if edge.target is None:
            return 1
        num_consumers = _target(edge, self._vertices).parallelism
        if not edge.is_pointwise:
            return num_consumers
        return len(consumers_of(producer, self._vertices[edge.source].parallelism, num_consumers))


def _target(edge: EdgeMessage, vertices: Mapping[str, VertexMessage]) -> VertexMessage:
    assert edge.target is not None, "a task reads it"
    return vertices[edge.target]
