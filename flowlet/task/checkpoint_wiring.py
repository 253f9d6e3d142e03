"""Connects the parts of a task's checkpoints: gates, barrier handler, coordinator, operators, outputs.

``MailboxTimers``: timers whose calls are mails, so that they run on the task thread.

``TaskOutputs``: sends events of checkpoints to the outputs of a task.

Side:       task.
Source:     Flink ``BarrierAlignmentUtil.createRegisterTimerCallback``.  Flink ``RecordWriterOutput.broadcastEvent``,
            ``OperatorChain.broadcastEvent``, ``alignedBarrierTimeout``, ``abortCheckpoint``.  Flink ``StreamTask``
            (constructor), ``InputProcessorUtil.createCheckpointBarrierHandler``, ``createCheckpointedInputGatePair``.
Invariants: records emitted before an event precede it in the partitions, because pending chunks are flushed first.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpoint_barrier_handler import BarrierMachine, CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpoint_barrier_tracker import CheckpointBarrierTracker
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.operator_snapshots import OperatorSnapshots
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.errors import MailboxClosedError
from flowlet.graph.partitioner import Broadcast, Partitioner
from flowlet.mailbox.mailbox_processor import MailboxExecutor, MailboxProcessor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, MailOptions
from flowlet.task.task_environment import Checkpointing, TaskEnvironment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.gate.single_input_gate import SingleInputGate
from netstack.late import dataclass
from netstack.loop.loop_timers import Cancellable, Timers
from netstack.partition.channel_state import InputChannelInfo
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, Event
from netstack.wire.messages import DataType


@dataclass(frozen=True, slots=True)
class MailboxTimers:
    """Implements ``Timers``.

    Threading: ``call_later`` and ``cancel`` on the task thread; after the cancel the call is not made, even if its mail
               is queued.
    """

    timers: Timers
    executor: MailboxExecutor
    description: str

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> "MailedCall":
        """Make ``call`` once, on the task thread."""
        mailed = MailedCall(call, self.executor, self.description)
        mailed.timer = self.timers.call_later(delay_s, mailed.post)
        return mailed


@dataclass(slots=True)
class MailedCall:
    """One call of ``MailboxTimers``."""

    call: Callable[[], None] | None  # None: cancelled
    executor: MailboxExecutor
    description: str
    timer: Cancellable | None = None

    def post(self) -> None:
        """Put the mail; on the timers' thread."""
        with contextlib.suppress(MailboxClosedError):  # the task has ended
            self.executor.execute(self._run, self.description, options=MailOptions.URGENT)

    def _run(self) -> None:
        if self.call is not None:
            self.call()

    def cancel(self) -> None:
        """Do not make the call, unless it was made."""
        self.call = None
        if self.timer is not None:
            self.timer.cancel()


class TaskOutputs:
    """All partitions of one task, if any; ``flush_pending`` writes the pending chunks of the record writers.

    With each partition goes whether barriers may be unaligned.  They stay aligned on a pointwise edge, whose in-flight
    data cannot be redistributed when parallelism changes.
    """

    def __init__(self, outputs: Iterable[tuple[ResultPartition, bool]], flush_pending: Callable[[], None]) -> None:
        self._outputs = tuple(outputs)
        self._flush_pending = flush_pending

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Send ``event`` on every channel of every partition; with priority it overtakes queued data.

        Raises:
            NetstackError: a partition was released or finished.
        """
        self._flush_pending()
        for partition, supports_unaligned in self._outputs:
            event_here, is_priority_here = event, is_priority
            if isinstance(event, CheckpointBarrier) and not supports_unaligned and event.options.needs_channel_state:
                event_here, is_priority_here = replace(event, options=event.options.with_unaligned_unsupported()), False
            partition.broadcast_event(event_here, is_priority=is_priority_here)

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let queued barriers of the checkpoint overtake the data before them."""
        for partition, _ in self._outputs:
            # Ignored by partitions that got a barrier without a timeout.
            partition.aligned_barrier_timeout(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop keeping data in front of the barriers of the checkpoint."""
        for partition, _ in self._outputs:
            partition.abort_checkpoint(checkpoint_id, cause)


_NS_PER_MS = 1_000_000


def task_checkpoints(
    environment: TaskEnvironment,
    config: Checkpointing,
    snapshots: OperatorSnapshots,
    processor: MailboxProcessor,
    flush_pending: Callable[[], None],
    is_running: Callable[[], bool],
    prepare_inputs: Callable[[InMemoryChannelStateWriter, int], None],
) -> TaskCheckpoints:
    """The checkpoints of a task, still without its gates.

    Args:
        environment: its outputs get the barriers.
        config: the job's settings for checkpoints.
        snapshots: the operators.
        processor: the task's.
        flush_pending: writes the pending records of all record writers.
        is_running: whether operators are open and not closed yet.
        prepare_inputs: see ``TaskCheckpoints``.
    """
    name = environment.task_name_with_subtask
    outputs = TaskOutputs(
        ((edge.partition, _supports_unaligned(edge.partitioner)) for edge in environment.outputs), flush_pending
    )
    for index, edge in enumerate(environment.outputs):
        edge.partition.set_channel_state_writer(config.channel_state, index)
    main = processor.executor(MIN_PRIORITY)
    return TaskCheckpoints(
        name,
        snapshots,
        outputs,
        config.channel_state,
        config.responder,
        config.execute_async,
        MailboxTimers(config.timers, main, "an aligned checkpoint timed out"),
        main,
        processor.executor(MAX_PRIORITY),
        is_running,
        prepare_inputs,
        config.max_concurrent,
    )


def _supports_unaligned(partitioner: Partitioner) -> bool:
    """Whether data in flight may be kept by the producer (Flink
    ``StreamingJobGraphGenerator.shouldDisableUnalignedCheckpointing``).

    On a pointwise edge it cannot be restored with another parallelism; nor on a broadcast one, whose consumers must get
    the same records.  What the client reads is pointwise, too: its records are in no task's state, so the client must
    have them when a checkpoint is complete.
    """
    return not partitioner.is_pointwise and not isinstance(partitioner, Broadcast)


def checkpointed_gates(
    gates: Sequence[SingleInputGate], config: Checkpointing, checkpoints: TaskCheckpoints, processor: MailboxProcessor
) -> dict[SingleInputGate, CheckpointedInputGate]:
    """Wrap each gate so that it handles barriers, with one handler for all; from now on channels
    keep data in flight.
    """
    for index, gate in enumerate(gates):
        gate.set_channel_state_writer(config.channel_state, index)
    main = processor.executor(MIN_PRIORITY)
    num_channels = sum(gate.num_channels for gate in gates)
    machine = _barrier_machine(num_channels, config)
    handler = CheckpointBarrierHandler(
        machine, gates, checkpoints, MailboxTimers(config.timers, main, "an alignment timed out")
    )
    checkpoints.attach(gates, handler)
    return {
        gate: CheckpointedInputGate(gate, handler, [(index, channel) for channel in range(gate.num_channels)], main)
        for index, gate in enumerate(gates)
    }


def _barrier_machine(num_channels: int, config: Checkpointing) -> BarrierMachine:
    after_finish = config.are_taken_after_finish
    if config.mode is None:
        return CheckpointBarrierTracker(num_channels, checkpoints_after_finish=after_finish)
    return SingleCheckpointBarrierHandler(num_channels, config.mode, checkpoints_after_finish=after_finish)


def keep_in_flight(
    writer: InMemoryChannelStateWriter, checkpoint_id: int, channel: InputChannelInfo, pieces: Iterable[bytes]
) -> None:
    """Keep data that left ``channel`` but was not processed; it precedes what the channel itself keeps."""
    buffers = [NetworkBuffer.unpooled(piece, DataType.DATA_BUFFER) for piece in pieces]
    if buffers:
        writer.add_input_data(checkpoint_id, channel, buffers)


def checkpoint_metrics(checkpoints: TaskCheckpoints | None) -> dict[str, int]:
    """The fields of ``TaskMetrics`` about checkpoints; any thread."""
    if checkpoints is None:
        return {}
    statistics = checkpoints.statistics
    return {
        "checkpoint_alignment_ms": checkpoints.alignment_duration_ns // _NS_PER_MS,
        "checkpoint_start_delay_ms": checkpoints.start_delay_ms,
        "num_checkpoints": statistics.num_acknowledged,
        "num_declined_checkpoints": statistics.num_declined,
        "last_checkpoint_id": statistics.last_checkpoint_id,
        "last_checkpoint_sync_ms": statistics.last.sync_ms,
        "last_checkpoint_async_ms": statistics.last.async_ms,
        "last_checkpoint_in_flight_bytes": statistics.last.bytes_persisted_during_alignment,
    }
