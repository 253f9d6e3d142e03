"""Makes the stream task for a chain.

Side:   task.
Source: Flink ``JobVertex.getInvokableClass``, which chooses a subclass of ``StreamTask``.  Not in ``stream_task``,
        which the subclasses import.
"""

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge, TaskEnvironment

__all__ = ["OutputEdge", "StreamTask", "TaskEnvironment", "create_stream_task"]


def create_stream_task(environment: TaskEnvironment, chain: list[ChainedOperator]) -> StreamTask:
    """A ``SourceStreamTask`` if the head is a source, else a task that reads the environment's gates."""
    head = chain[0].operator
    if isinstance(head, SourceOperator):
        return SourceStreamTask(environment, chain)
    # Here, as a task that begins with a source needs none of what reads from the network.
    from flowlet.task.one_input_stream_task import GateFedStreamTask

    return GateFedStreamTask(environment, chain)
