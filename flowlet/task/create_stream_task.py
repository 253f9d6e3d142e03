"""Makes the task for a chain.

Side:   task.
Source: Flink ``StreamTask`` and the choice of its subclass by ``JobVertex.getInvokableClass``.  The class itself is in
        ``stream_task``, because its subclasses import it.
"""

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.task.one_input_stream_task import MultipleInputStreamTask, OneInputStreamTask
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge, TaskEnvironment

__all__ = ["OutputEdge", "StreamTask", "TaskEnvironment", "create_stream_task"]


def create_stream_task(environment: TaskEnvironment, chain: list[ChainedOperator]) -> StreamTask:
    """A source task when the chain begins with a source, else one that reads the gates of the environment."""
    head = chain[0].operator
    if isinstance(head, SourceOperator):
        return SourceStreamTask(environment, chain)
    if len(head.inputs()) > 1:
        return MultipleInputStreamTask(environment, chain)
    return OneInputStreamTask(environment, chain)
