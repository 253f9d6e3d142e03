"""Makes a runnable task from its deployment descriptor: partitions, gates, operators.

The chain of a subtask whose operators had finished when the checkpoint that it is restored from was taken.

Side:       shared.
Rules:      the operators have emitted all that they ever will, so none of them runs again.  Substitutes with their
            names, ids and edges only pass on watermarks and ends: the subtask emits the last watermark and the end of
            data, takes part in checkpoints as finished, and ends.  A sink still commits what that checkpoint holds.
Source:     Flink ``FinishedOperatorChain``, ``FinishedOnRestoreMainOperatorOutput``, ``FinishedOnRestoreInput``, which
            skip the operators.  Flink ``TaskExecutor.submitTask``, ``NettyShuffleEnvironment.createInputGates``.
Invariants: either everything is created, or nothing is left: on an error the partitions created so far are failed, and
            all is closed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import MultipleInputStreamOperator, StreamOperator
from flowlet.errors import StateRestoreError
from flowlet.messages import control_messages as messages
from flowlet.messages.job_messages import InputChannelDescriptor, ResultPartitionDescriptor
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader, SourceReaderBase
from flowlet.records import Chunk
from flowlet.serde.deploy_blobs import load_chain, load_partitioner
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.task.operator_services import operator_id_of
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing, OutputEdge, TaskEnvironment
from netstack.environment import ChannelSpec, NetworkEnvironment
from netstack.gate.offered_input_gate import OfferedInputGate
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID, ExecutionAttemptID, IntermediateResultPartitionID, ResultPartitionID
from netstack.late import is_instance_of_late
from netstack.loop.eventloop import LoopTimer
from netstack.partition.buffer_writing_result_partition import ResultPartitionType

if TYPE_CHECKING:
    from flowlet.connectors.gates.reader import RemoteGateSource
    from flowlet.tm.task_executor import TaskExecutor


def finished_chain(chain: Sequence[ChainedOperator]) -> list[ChainedOperator]:
    """Make the substitutes of operators that had finished.  Takes over ``chain``, whose operators must not be used any
    more.
    """
    return [replace(item, operator=_substitute(item.operator), key_selector=None) for item in chain]


def _substitute(operator: StreamOperator) -> StreamOperator:
    if isinstance(operator, SourceOperator):
        # Itself, with its event time, so that the other sources of its alignment group do not wait for it.
        # Its reader has no records; the old one would read all of its splits again.
        operator.source = _FinishedSource()
        operator.latency_tracking_interval_ms = 0
        return operator
    if operator.runs_after_finish:
        return operator.restored_after_finish()
    num_inputs = len(operator.inputs())
    substitute = _FinishedMultipleInputOperator(num_inputs) if num_inputs > 1 else _FinishedOperator()
    substitute.name = operator.name
    substitute.operator_id = operator.operator_id
    return substitute


class _FinishedOperator(StreamOperator):
    """The substitute of an operator that had finished."""

    def process_chunk(self, chunk: Chunk) -> None:
        """Refuse: no record may come.

        Raises StateRestoreError: a producer ran again, although this subtask had read all of it.
        """
        raise _unexpected(self.name, chunk)


class _FinishedMultipleInputOperator(MultipleInputStreamOperator):
    """The substitute of an operator with several inputs that had finished."""

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs = num_inputs

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """Refuse: no record may come.  Raises StateRestoreError: as above."""
        raise _unexpected(self.name, chunk)


def _unexpected(name: str, chunk: Chunk) -> StateRestoreError:
    return StateRestoreError(
        f"operator {name!r} had finished when its checkpoint was taken, but a producer has sent it {len(chunk)} more "
        "records: was the producer restored from another checkpoint?"
    )


class _FinishedSource(Source):
    """The substitute of a source that had come to its end."""

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """Make a reader that has no records."""
        return _FinishedReader()


class _FinishedReader(SourceReaderBase):
    progress = 1.0
    never_waits = True

    def poll_chunk(self) -> Chunk | None:
        return None


_NEVER: Final = -1
# Gets the operators by their ids in hex; see ``TaskCheckpointing.open``.
OpenCheckpointing = Callable[[Mapping[str, StreamOperator]], Checkpointing | None]


def create_task_from_descriptor(
    descriptor: messages.TaskDeploymentDescriptor,
    executor: "TaskExecutor",
    open_checkpointing: OpenCheckpointing,
    send: Callable[[messages.FromTask], None] = lambda _: None,
    cached_files: Mapping[str, str] | None = None,
) -> StreamTask:
    """Open the blobs, create the partitions and gates, and assemble the task; it is not started.

    ``open_checkpointing`` makes what a job with checkpoints needs, and reads the state to restore.  ``send`` sends a
    message to the JobManager; it is called on the task thread.  ``cached_files``: the paths here of files that
    functions find by name.

    Raises:
        DeploymentError: the operators or a partitioner could not be loaded.
        StateRestoreError, StorageError: see ``TaskCheckpointing.open``.
        InsufficientNetworkBuffersError: the network memory is too small for the task.
    """
    network = executor.network
    loop = executor.loop
    chain = load_chain(descriptor.chain, descriptor.task_name, descriptor.code)
    # Before the gates: the remote gate of a source that had finished is not opened again.
    if descriptor.restored is not None and descriptor.restored.is_finished:
        chain = finished_chain(chain)
    outputs: list[OutputEdge] = []
    gates: list[SingleInputGate] = []
    offered_gate: OfferedInputGate | None = None
    try:
        for partition in descriptor.partitions:
            outputs.append(_create_output(descriptor, partition, network))  # noqa: PERF401 - after an error the list must have all so far
        for gate in descriptor.gates:
            specs = [channel_spec(channel, executor.tm_id) for channel in gate.channels]
            gates.append(network.create_input_gate(owner_name(descriptor), specs))
        offered_gate = _create_offered_gate(descriptor, chain, network, send)
        settings = descriptor.settings
        limit = settings.max_record_bytes
        environment = TaskEnvironment(
            job_id=descriptor.job_id,
            job_name=descriptor.job_name,
            vertex_id=descriptor.vertex_id,
            task_name=descriptor.task_name,
            subtask=descriptor.subtask,
            parallelism=descriptor.parallelism,
            max_parallelism=descriptor.max_parallelism,
            attempt=descriptor.attempt,
            gates=gates,
            outputs=outputs,
            schedule_timer=partial(LoopTimer, loop),
            limits=DEFAULT_ELEMENT_LIMITS if limit is None else ElementLimits(limit),
            state=settings.state,
            batch=settings.batch,
            gate_inputs=[gate.input_id for gate in descriptor.gates],
            job_parameters=dict(settings.parameters),
            cached_files=cached_files or {},
            offered_gate=offered_gate,
            send=send,
            is_loop_thread=loop.is_current_thread if executor.runs_light_tasks else None,
        )
        # After the partitions: their consumers look for them meanwhile, and reading a large state takes long.
        operators = [item.operator for item in chain]
        by_id = {operator_id_of(each, descriptor.vertex_id, index).hex(): each for index, each in enumerate(operators)}
        environment.checkpointing = open_checkpointing(by_id)
        return create_stream_task(environment, chain)
    except BaseException as error:
        # Also after an interrupt: partitions that stay open would let their consumers wait for ever.
        _discard([*gates, *([] if offered_gate is None else [offered_gate])], outputs, error)
        raise


def _create_output(
    descriptor: messages.TaskDeploymentDescriptor,
    output: ResultPartitionDescriptor,
    network: NetworkEnvironment,
) -> OutputEdge:
    partitioner = load_partitioner(output.partitioner, descriptor.task_name, descriptor.code)
    partition_id = _id_of(descriptor, output)
    # Bounded: one slow consumer must not take all network memory.
    kind = ResultPartitionType.BLOCKING if output.is_blocking else ResultPartitionType.PIPELINED_BOUNDED
    partition = network.create_result_partition(owner_name(descriptor), partition_id, output.num_subpartitions, kind)
    timeout_ms = _NEVER if output.is_blocking else output.buffer_timeout_ms  # nobody reads it before it is complete
    return OutputEdge(output.source_operator, partition, partitioner, timeout_ms, output.tag)


def results_of(descriptor: messages.TaskDeploymentDescriptor) -> list[ResultPartitionID]:
    """List the partitions that a task will have."""
    return [_id_of(descriptor, each) for each in descriptor.partitions]


def blocking_results(descriptor: messages.TaskDeploymentDescriptor) -> list[ResultPartitionID]:
    """List the partitions of a task that stay when it has finished."""
    return [_id_of(descriptor, each) for each in descriptor.partitions if each.is_blocking]


def _id_of(descriptor: messages.TaskDeploymentDescriptor, output: ResultPartitionDescriptor) -> ResultPartitionID:
    return ResultPartitionID(IntermediateResultPartitionID(output.partition), ExecutionAttemptID(descriptor.attempt))


def _create_offered_gate(
    descriptor: messages.TaskDeploymentDescriptor,
    chain: list[ChainedOperator],
    network: NetworkEnvironment,
    send: Callable[[messages.FromTask], None],
) -> OfferedInputGate | None:
    """Make the remote gate of a task that begins with one, or return None."""
    head = chain[0].operator
    source = head.source if isinstance(head, SourceOperator) else None
    if not is_instance_of_late(source, "flowlet.connectors.gates.reader", "RemoteGateSource"):
        return None
    source = cast("RemoteGateSource", source)
    job_id, shape = bytes.fromhex(descriptor.job_id), source.shape(descriptor.parallelism)
    gate = network.create_offered_gate(owner_name(descriptor), job_id, descriptor.subtask, shape)
    settings = descriptor.settings
    from flowlet.connectors.gates.reader import RemoteGateReader  # loaded with the source

    source.open_gate = partial(
        RemoteGateReader,
        gate,
        lambda counts, completed: send(messages.GateReported(descriptor.attempt, counts, completed)),
        lambda after: send(messages.MarkRequested(descriptor.attempt, after)),
        retries=settings.gates.retries,
        takes_checkpoints=settings.takes_checkpoints,
        waits_for_checkpoints=settings.acknowledges_checkpointed,
    )
    return gate


def channel_spec(channel: InputChannelDescriptor, tm_id: str | None) -> ChannelSpec:
    """Translate a channel's descriptor for TaskManager ``tm_id``, whose own partitions need no connection; None: for a
    client, which has no partitions.
    """
    partition_id = ResultPartitionID(
        IntermediateResultPartitionID(channel.partition), ExecutionAttemptID(channel.producer)
    )
    connection = None if channel.tm_id == tm_id else ConnectionID(channel.host, channel.port)
    return ChannelSpec(partition_id, channel.subpartition, connection)


def owner_name(descriptor: messages.TaskDeploymentDescriptor) -> str:
    """Write the subtask's name for people: ``name (2/4)``, counted from one."""
    return f"{descriptor.task_name} ({descriptor.subtask + 1}/{descriptor.parallelism})"


def _discard(gates: list[SingleInputGate], outputs: list[OutputEdge], error: BaseException) -> None:
    for gate in gates:
        gate.close()
    for output in outputs:
        output.partition.fail(
            error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        )
        output.partition.close()
