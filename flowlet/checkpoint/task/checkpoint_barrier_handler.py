"""``CheckpointBarrierHandler``: carries out the orders of a task's barrier machine; all its gates share it.

Side:       task.
Invariants: orders are carried out in order, before the next event; a checkpoint that an input refuses is not triggered.
Units:      timestamps in milliseconds of the wall clock, durations in nanoseconds of a monotonic one.
Source:     Flink ``CheckpointBarrierHandler`` (alignment metrics, notifications),
            ``SingleCheckpointBarrierHandler.ControllerImpl``.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias, assert_never

from flowlet.checkpoint.task import barrier_orders as barriers
from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.checkpoint_barrier_tracker import CheckpointBarrierTracker
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.snapshots import AlignmentMetrics
from netstack.errors import CheckpointSubsumedError, LocalProtocolError
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable, ScheduleTimer

if TYPE_CHECKING:
    from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
    from netstack.gate.single_input_gate import SingleInputGate

_NS_PER_MS = 1_000_000
BarrierMachine: TypeAlias = SingleCheckpointBarrierHandler | CheckpointBarrierTracker


@dataclass(slots=True, eq=False)
class CheckpointBarrierHandler:
    """The barriers of all gates of a task; ``machine`` decides what to do.

    Threading: the task thread, except the two durations.
    Life cycle: ``handle`` until ``close``; events after that are ignored.

    Args:
        inputs: by gate index.
        listener: the task.
        call_later: makes its calls on the task thread (``MailedCall``).
        wall_ms: the clock of the barriers' timestamps.
    """

    machine: BarrierMachine
    inputs: "Sequence[SingleInputGate]"
    listener: "TaskCheckpoints"
    call_later: ScheduleTimer
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // _NS_PER_MS
    _timer: Cancellable | None = field(init=False, default=None)
    _metrics: AlignmentMetrics = field(init=False, default_factory=AlignmentMetrics)
    _metrics_of: int = field(init=False, default=-1)  # the checkpoint that _metrics are of
    _aligning_since_ns: int | None = field(init=False, default=None)
    _is_closed: bool = field(init=False, default=False)

    def __repr__(self) -> str:
        return f"<CheckpointBarrierHandler {'closed' if self._is_closed else 'open'}, {self.machine!r}>"

    @property
    def is_aligning(self) -> bool:
        """Whether alignment is measured; then callers report processed data with ``add_processed_bytes``."""
        return self._aligning_since_ns is not None

    @property
    def alignment_duration_ns(self) -> int:
        """The duration of the current alignment, else of the last one; any thread."""
        since_ns = self._aligning_since_ns
        if since_ns is not None:
            return self.clock_ns() - since_ns
        return self._metrics.duration_ns

    @property
    def start_delay_ms(self) -> int:
        """The age of the last checkpoint when its first barrier arrived; any thread."""
        return self._metrics.start_delay_ms

    def add_processed_bytes(self, num_bytes: int) -> None:
        """Count data that was taken from a gate during alignment."""
        if self._aligning_since_ns is not None:
            self._metrics.bytes_processed += num_bytes

    def handle(self, event: barriers.BarrierEvent) -> None:
        """Apply one event and carry out the orders.

        Raises:
            Exception: from the listener or an input, except an input's refusal of a checkpoint.
        """
        if self._is_closed:
            return
        refused = self._carry_out_all(self.machine.handle(event, self.wall_ms()))
        # Behind the orders: the machine must hear of it in a state in which all of them were carried out.
        if refused is not None:
            self._carry_out_all(self.machine.handle(refused, self.wall_ms()))

    def close(self) -> None:
        """Cancel the timer and ignore later events."""
        # Before the timer: its mail may be queued already.
        self._is_closed = True
        self._stop_timer()

    def _carry_out_all(self, orders: Sequence[barriers.BarrierOrder]) -> barriers.CheckpointRefused | None:
        refused: barriers.CheckpointRefused | None = None
        for order in orders:
            # A checkpoint that an input refused must not be triggered by a later order of this event.
            if refused is not None and isinstance(order, barriers.TriggerCheckpointOnBarrier | barriers.CompleteInputs):
                continue
            try:
                self._carry_out(order)
            except (CheckpointSubsumedError, LocalProtocolError) as error:
                if not isinstance(order, barriers.StartInputs | barriers.PrioritizeBarrier):
                    raise
                # A newer barrier is already in the channel: this checkpoint cannot be taken, but the task can go on.
                of = order.barrier if isinstance(order, barriers.StartInputs) else order
                why = CheckpointFailureReason.SUBSUMED
                refused = refused or barriers.CheckpointRefused(of.checkpoint_id, why, str(error))
            except CheckpointError as error:
                # Any other one comes from the snapshot itself, and ends the task.
                if not isinstance(order, barriers.InitInputs):
                    raise
                refused = refused or barriers.CheckpointRefused(error.checkpoint_id, error.reason, error.details)
        return refused

    def _carry_out(self, order: barriers.BarrierOrder) -> None:
        match order:
            case barriers.ResumeChannels(channels=channels):
                for gate, channel in channels:
                    self.inputs[gate].resume_consumption(channel)
            case barriers.PrioritizeBarrier(channel=(gate, channel), sequence_number=number):
                self.inputs[gate].convert_to_priority_event(channel, number)
            case barriers.InitInputs(barrier):
                self.listener.init_inputs(barrier.checkpoint_id, barrier.options)
            case barriers.StartInputs(barrier):
                # All gates before the snapshot: what is queued in each of them now belongs to it.
                for each in self.inputs:
                    each.checkpoint_started(barrier)
            case barriers.StopInputs(checkpoint_id):
                for each in self.inputs:
                    each.checkpoint_stopped(checkpoint_id)
            case barriers.TriggerCheckpointOnBarrier(barrier, is_last):
                if is_last:
                    self._end_alignment(barrier.checkpoint_id)  # first: the snapshot reports it
                metrics = self._metrics if barrier.checkpoint_id == self._metrics_of else AlignmentMetrics()
                self.listener.trigger_checkpoint_on_barrier(barrier, metrics)
            case barriers.AbortCheckpoint(checkpoint_id, reason, details):
                self._stop_timer()
                # Otherwise the metrics belong to a snapshot that will still report them.
                if self._aligning_since_ns is not None:
                    self._metrics.bytes_processed = 0
                self._aligning_since_ns = None
                error = CheckpointError(checkpoint_id, reason, details)
                self.listener.abort_checkpoint_on_barrier(checkpoint_id, error)
            case barriers.CompleteInputs(checkpoint_id):
                self._stop_timer()
                # Before the listener: it reads the duration.
                self._end_alignment(checkpoint_id)
                self.listener.complete_inputs(checkpoint_id)
            case barriers.BeginAlignment(checkpoint_id, timestamp_ms):
                self._metrics = AlignmentMetrics(max(0, self.wall_ms() - timestamp_ms))
                self._metrics_of = checkpoint_id
                self._aligning_since_ns = self.clock_ns()
            case barriers.StartTimer(checkpoint_id, delay_ms):
                self._start_timer(checkpoint_id, delay_ms)
            case _:
                assert_never(order)

    def _end_alignment(self, checkpoint_id: int) -> None:
        if checkpoint_id == self._metrics_of:
            self._metrics.duration_ns = self.alignment_duration_ns
            self._aligning_since_ns = None

    def _start_timer(self, checkpoint_id: int, delay_ms: int) -> None:
        # One timer: that of an older checkpoint would fire for nothing.
        self._stop_timer()

        def fire() -> None:
            self._timer = None
            self.handle(barriers.AlignmentTimedOut(checkpoint_id))

        self._timer = self.call_later(delay_ms / 1000, fire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
