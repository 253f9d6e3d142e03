"""Puts the parts of a task's checkpoints together: gates, barrier handler, coordinator, operators, outputs.

Side:       task.
Source:     Flink ``StreamTask`` (constructor), ``InputProcessorUtil.createCheckpointBarrierHandler``, ``createCheckpointedInputGatePair``.
"""

from collections.abc import Callable, Sequence

from flowlet.checkpoint.barrier_aligner import BarrierAligner
from flowlet.checkpoint.barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.barrier_orders import BarrierMachine
from flowlet.checkpoint.barrier_tracker import BarrierTracker
from flowlet.checkpoint.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.mailbox_timers import MailboxTimers
from flowlet.checkpoint.operator_snapshots import OperatorSnapshots
from flowlet.checkpoint.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from flowlet.checkpoint.task_checkpoints import TaskCheckpoints
from flowlet.checkpoint.task_outputs import CheckpointedOutput, TaskOutputs
from flowlet.operators.chain import OperatorChain
from flowlet.task.mailbox import MAX_PRIORITY, MIN_PRIORITY
from flowlet.task.mailbox_processor import MailboxProcessor
from flowlet.task.task_environment import Checkpointing, TaskEnvironment
from netstack.gate.input_gate import SingleInputGate


def operator_snapshots(chain: OperatorChain, is_closed: Callable[[], bool]) -> OperatorSnapshots:
    """The chain as checkpoints see it; operators by their ids in hex."""
    pairs = [(ctx.operator_id.hex(), operator) for ctx, operator in zip(chain.contexts, chain.operators, strict=True)]
    return OperatorSnapshots(pairs, is_closed)


def task_checkpoints(
    environment: TaskEnvironment,
    config: Checkpointing,
    snapshots: OperatorSnapshots,
    processor: MailboxProcessor,
    flush_pending: Callable[[], None],
    is_running: Callable[[], bool],
) -> TaskCheckpoints:
    """The checkpoints of a task, without gates so far."""
    name = environment.task_name_with_subtask
    outputs = TaskOutputs(
        # A pointwise edge cannot give its data in flight to another parallelism.
        [CheckpointedOutput(edge.partition, supports_unaligned=not edge.partitioner.is_pointwise) for edge in environment.outputs],
        flush_pending,
    )
    for edge in environment.outputs:
        edge.partition.set_channel_state_writer(config.channel_state)
    main = processor.executor(MIN_PRIORITY)
    coordinator = SubtaskCheckpointCoordinator(
        name,
        snapshots,
        outputs,
        config.channel_state,
        config.responder,
        config.execute_async,
        MailboxTimers(config.timers, main, "an aligned checkpoint timed out"),
        is_running=is_running,
    )
    return TaskCheckpoints(name, coordinator, config.responder, main, processor.executor(MAX_PRIORITY), is_running)


def checkpointed_gates(
    gates: Sequence[SingleInputGate], config: Checkpointing, checkpoints: TaskCheckpoints, processor: MailboxProcessor
) -> dict[SingleInputGate, CheckpointedInputGate]:
    """Each gate with its barriers looked after; one handler for all."""
    main = processor.executor(MIN_PRIORITY)
    num_channels = sum(gate.num_channels for gate in gates)
    machine: BarrierMachine = BarrierTracker(num_channels) if config.mode is None else BarrierAligner(num_channels, config.mode)
    handler = CheckpointBarrierHandler(machine, gates, checkpoints, MailboxTimers(config.timers, main, "an alignment timed out"))
    checkpoints.attach(gates, handler)
    return {
        gate: CheckpointedInputGate(gate, handler, [(index, channel) for channel in range(gate.num_channels)], main)
        for index, gate in enumerate(gates)
    }
