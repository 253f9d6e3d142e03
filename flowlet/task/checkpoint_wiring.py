"""Connects the parts of a task's checkpoints: gates, barrier handler, coordinator, operators, outputs.

``MailedCall``: a delayed call that is made by a mail, so that it runs on the task thread.

``TaskOutputs``: sends events of checkpoints to the outputs of a task.

Side:       task.
Source:     Flink ``BarrierAlignmentUtil.createRegisterTimerCallback``.  Flink ``RecordWriterOutput.broadcastEvent``,
            ``OperatorChain.broadcastEvent``, ``alignedBarrierTimeout``, ``abortCheckpoint``.  Flink ``StreamTask``
            (constructor), ``InputProcessorUtil.createCheckpointBarrierHandler``, ``createCheckpointedInputGatePair``.
Invariants: records emitted before an event precede it in the partitions, because pending chunks are flushed first.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpoint_barrier_handler import BarrierMachine, CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpoint_barrier_tracker import CheckpointBarrierTracker
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.errors import MailboxClosedError
from flowlet.graph.partitioner import Broadcast, Partitioner
from flowlet.mailbox.mailbox_processor import MailboxExecutor, MailboxProcessor
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, MailOptions
from flowlet.task.task_environment import TaskEnvironment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.gate.single_input_gate import SingleInputGate
from netstack.loop.eventloop import ScheduleTimer
from netstack.partition.channel_state import InputChannelInfo
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, Event
from netstack.wire.messages import DataType


class MailedCall:
    """A call after a delay, made by a mail, so that it runs on the task thread.

    Threading: made and cancelled on the task thread; after the cancel the call is not made, even if its mail is queued.
    """

    def __init__(
        self,
        schedule_timer: ScheduleTimer,
        executor: MailboxExecutor,
        description: str,
        delay_s: float,
        call: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._description = description
        self._call: Callable[[], None] | None = call  # None: cancelled
        self._timer = schedule_timer(delay_s, self._post)

    def _post(self) -> None:
        with contextlib.suppress(MailboxClosedError):  # the task has ended
            self._executor.execute(self._run, self._description, options=MailOptions.URGENT)

    def _run(self) -> None:
        # Cancelled while its mail waited.
        if self._call is not None:
            self._call()

    def cancel(self) -> None:
        """Cancel the call, unless it was made; its mail, if it is queued, does nothing."""
        self._call = None
        self._timer.cancel()


class TaskOutputs:
    """All partitions of one task, if any; ``flush_pending`` writes the pending chunks of the record writers.

    ``outputs``: each partition, and whether its barriers may be unaligned (``supports_unaligned``).
    """

    def __init__(self, outputs: Iterable[tuple[ResultPartition, bool]], flush_pending: Callable[[], None]) -> None:
        self._outputs = tuple(outputs)
        self._flush_pending = flush_pending

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Send ``event`` on every channel of every partition; with priority it overtakes queued data.

        Raises:
            NetstackError: a partition was released or finished.
        """
        # Records that wait in the writers are older: behind the barrier they would belong to the next checkpoint.
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


def supports_unaligned(partitioner: Partitioner) -> bool:
    """Whether the producer may keep data in flight (Flink
    ``StreamingJobGraphGenerator.shouldDisableUnalignedCheckpointing``).

    On a pointwise edge this data cannot be restored with another parallelism; nor on a broadcast edge, where all
    consumers must get equal records.  Edges to the client are pointwise, too: their records are in no task's state, so
    the client must have them when a checkpoint is complete.
    """
    return not partitioner.is_pointwise and not isinstance(partitioner, Broadcast)


def checkpointed_gates(
    environment: TaskEnvironment, checkpoints: TaskCheckpoints, processor: MailboxProcessor
) -> dict[SingleInputGate, CheckpointedInputGate]:
    """Wrap each gate so that it handles barriers, with one handler for all; from now on channels keep data in flight.

    Returns the wrapped gates by gate.
    """
    config = environment.checkpointing
    gates = environment.gates
    assert config is not None, "the task has checkpoints"
    for index, gate in enumerate(gates):
        gate.set_channel_state_writer(config.channel_state, index)
    main = processor.executor(MIN_PRIORITY)
    num_channels = sum(gate.num_channels for gate in gates)
    after_finish = config.are_taken_after_finish
    if config.mode is None:
        machine: BarrierMachine = CheckpointBarrierTracker(num_channels, checkpoints_after_finish=after_finish)
    else:
        machine = SingleCheckpointBarrierHandler(num_channels, config.mode, checkpoints_after_finish=after_finish)
    call_later = partial(MailedCall, environment.schedule_timer, main, "an alignment timed out")
    handler = CheckpointBarrierHandler(machine, gates, checkpoints, call_later)
    checkpoints.attach(gates, handler)
    return {
        gate: CheckpointedInputGate(gate, handler, [(index, channel) for channel in range(gate.num_channels)], main)
        for index, gate in enumerate(gates)
    }


def keep_in_flight(
    writer: InMemoryChannelStateWriter, checkpoint_id: int, channel: InputChannelInfo, pieces: Iterable[bytes]
) -> None:
    """Keep data that left ``channel`` but was not processed; it precedes the data that the channel itself keeps."""
    buffers = [NetworkBuffer.unpooled(piece, DataType.DATA_BUFFER) for piece in pieces]
    if buffers:
        writer.add_input_data(checkpoint_id, channel, buffers)
