"""Stand-ins for the parts with which a subtask's checkpoints talk."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from flowlet.checkpoint.task.barrier_orders import ChannelFinished, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.snapshots import AlignmentMetrics, OperatorSnapshotFuture, OperatorState
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, TaskMailbox
from flowlet.task.checkpoint_wiring import TaskOutputs
from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceClosedError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.partition.channel_state import InputChannelInfo
from netstack.wire.events import CancelCheckpointMarker, CheckpointBarrier, CheckpointOptions, EndOfPartition, Event
from netstack.wire.messages import DataType
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.in_memory_store import RecordingResponder
from tests.netstack.gate.manual_timers import ManualTimers


class Clock:
    """Wall and monotonic time, moved together."""

    def __init__(self) -> None:
        self.ms = 1_000

    def wall_ms(self) -> int:
        return self.ms

    def now_ns(self) -> int:
        return self.ms * 1_000_000


class RecordingListener:
    """The task, as its barriers see it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.alignments: dict[int, AlignmentMetrics] = {}
        self.errors: list[CheckpointError] = []
        self.init_error: CheckpointError | None = None

    def init_inputs(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        self.calls.append(("init", checkpoint_id))
        if self.init_error is not None:
            raise self.init_error

    def complete_inputs(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def trigger_checkpoint_on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> None:
        self.calls.append(("unaligned" if barrier.options.is_unaligned else "trigger", barrier.checkpoint_id))
        self.alignments[barrier.checkpoint_id] = alignment

    def abort_checkpoint_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        self.calls.append(("abort", checkpoint_id))
        self.errors.append(error)


class RecordingInput:
    """One gate, as a checkpoint sees it."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.error: Exception | None = None

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        self._note("start", barrier.checkpoint_id)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        self.calls.append(("stop", checkpoint_id))

    def convert_to_priority_event(self, channel_index: int, sequence_number: int) -> None:
        self._note("prioritize", channel_index, sequence_number)

    def resume_consumption(self, channel_index: int) -> None:
        self.calls.append(("resume", channel_index))

    def _note(self, *call: object) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(call)


class ScriptedGate(RecordingInput):
    """A gate that yields the items that it is given; priority events first."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.acknowledged: list[int] = []
        self.is_closed = False
        self._ended: set[int] = set()
        self._priority: deque[tuple[int, Event]] = deque()
        self._rest: deque[tuple[int, Event | NetworkBuffer]] = deque()
        self._availability = AvailabilityHelper()
        self._priority_availability = AvailabilityHelper()

    def add(self, channel: int, item: Event | bytes) -> None:
        what = NetworkBuffer.unpooled(item, DataType.DATA_BUFFER) if isinstance(item, bytes) else item
        self._rest.append((channel, what))
        self._complete(self._availability)

    def add_priority(self, channel: int, event: Event) -> None:
        self._priority.append((channel, event))
        self._complete(self._availability)
        self._complete(self._priority_availability)

    def pretend_priority(self) -> None:
        """A notification that comes too late: the event was polled."""
        self._complete(self._priority_availability)

    @property
    def is_finished(self) -> bool:
        return len(self._ended) == self.num_channels

    @property
    def unfinished_channels(self) -> list[int]:
        return [each for each in range(self.num_channels) if each not in self._ended]

    def available_future(self) -> AvailabilityFuture:
        return self._availability.future

    def priority_event_available_future(self) -> AvailabilityFuture:
        return self._priority_availability.future

    def poll_next(self) -> BufferOrEvent | None:
        if self.is_closed:
            raise ResourceClosedError("closed")
        if not (self._priority or self._rest):
            return None
        channel, item = self._priority.popleft() if self._priority else self._rest.popleft()
        if not self._priority:
            self._priority_availability.reset_unavailable()
        if not (self._priority or self._rest):
            self._availability.reset_unavailable()
        if isinstance(item, EndOfPartition):
            self._ended.add(channel)
        more = bool(self._priority or self._rest)
        if isinstance(item, NetworkBuffer):
            return BufferOrEvent(channel, item, None, more, bool(self._priority), item.size)
        return BufferOrEvent(channel, None, item, more, bool(self._priority), 4)

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """Data up to the next event, whichever channels it is of."""
        found: list[BufferOrEvent] = []
        while self._rest and isinstance(self._rest[0][1], NetworkBuffer) and len(found) < max_items:
            item = self.poll_next()
            assert item is not None, "there was something"
            found.append(item)
        if found:
            return found
        single = self.poll_next()
        return [] if single is None else [single]

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        self.acknowledged.append(channel_index)

    def close(self) -> None:
        self.is_closed = True
        for _, item in self._rest:
            if isinstance(item, NetworkBuffer):
                item.recycle()
        self._rest.clear()
        self._complete(self._availability)
        self._complete(self._priority_availability)

    @staticmethod
    def _complete(helper: AvailabilityHelper) -> None:
        pending = helper.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()


class RecordingChain:
    """Operators whose state is the one that the test puts into ``state``."""

    def __init__(self, log: list[tuple[object, ...]]) -> None:
        self.log = log
        self.is_closed: Callable[[], bool] = lambda: False
        self.state = {"op": OperatorState("state")}
        self.sync_error: Exception | None = None
        self.async_error: BaseException | None = None
        self.on_finish: Callable[[], OperatorState] | None = None
        self.discarded: list[str] = []

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.log.append(("prepare", checkpoint_id))

    def snapshot_state(self, barrier: CheckpointBarrier) -> Mapping[str, OperatorSnapshotFuture]:
        self.log.append(("snapshot", barrier.checkpoint_id))
        if self.sync_error is not None:
            raise self.sync_error
        return {name: self._part(name, state) for name, state in self.state.items()}

    def _part(self, name: str, state: OperatorState) -> OperatorSnapshotFuture:
        def finish() -> OperatorState:
            if self.async_error is not None:
                raise self.async_error
            return state if self.on_finish is None else self.on_finish()

        return OperatorSnapshotFuture(finish, lambda: self.discarded.append(name))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.log.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.log.append(("aborted", checkpoint_id))


class RecordingOutputs(TaskOutputs):
    """Partitions that only note."""

    def __init__(self, log: list[tuple[object, ...]]) -> None:
        self.log = log

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        self.log.append(("broadcast", event, is_priority))

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        self.log.append(("timeout", checkpoint_id))

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        self.log.append(("abort output", checkpoint_id))


class Mailbox:
    """A mailbox on the test's thread."""

    def __init__(self) -> None:
        self.mailbox = TaskMailbox("test")
        self.mailbox.bind_to_current_thread()
        self.executor = MailboxExecutor(self.mailbox)

    def run(self) -> int:
        """Run the mails that are there; how many there were."""
        count = 0
        while self.executor.try_yield():
            count += 1
        return count


class CheckpointedTask:
    """The checkpoints of a task that only notes what is asked of it: of a source, or of one with two gates of
    ``num_channels`` channels each; the pool runs when the test says so.
    """

    def __init__(self, num_channels: int = 0, *, max_concurrent: int = 1, outputs: TaskOutputs | None = None) -> None:
        self.log: list[tuple[object, ...]] = []
        self.chain = RecordingChain(self.log)
        self.writer = InMemoryChannelStateWriter()
        self.responder = RecordingResponder()
        self.timers = ManualTimers()
        self.clock = Clock()
        self.mailbox = Mailbox()
        self.pool: list[Callable[[], None]] = []
        self.is_running = True
        self.leftover = b""  # in the deserializers, when an unaligned checkpoint begins
        self.checkpoints = TaskCheckpoints(
            "task",
            cast(Any, self.chain),
            outputs or RecordingOutputs(self.log),
            self.writer,
            self.responder,
            self.pool.append,
            self.timers.call_later,
            self.mailbox.executor,
            MailboxExecutor(self.mailbox.mailbox, MAX_PRIORITY),
            is_running=lambda: self.is_running,
            prepare_inputs=self._prepare_inputs,
            max_concurrent=max_concurrent,
            clock_ns=self.clock.now_ns,
            wall_ms=self.clock.wall_ms,
        )
        self.gates = [ScriptedGate(num_channels) for _ in range(2)] if num_channels else []
        if num_channels:
            machine = SingleCheckpointBarrierHandler(2 * num_channels)
            gates = cast(Any, self.gates)
            self.handler = CheckpointBarrierHandler(machine, gates, self.checkpoints, self.timers.call_later)
            self.checkpoints.attach(gates, self.handler)

    def _prepare_inputs(self, writer: InMemoryChannelStateWriter, checkpoint_id: int) -> None:
        if self.leftover:
            leftover = NetworkBuffer.unpooled(self.leftover, DataType.DATA_BUFFER)
            writer.add_input_data(checkpoint_id, InputChannelInfo(0, 0), [leftover])

    def take(self, barrier: CheckpointBarrier) -> None:
        """The barrier has come on all channels, which took 2 ms and 3 bytes."""
        self.checkpoints.init_inputs(barrier.checkpoint_id, barrier.options)
        self.checkpoints.checkpoint_state(barrier, AlignmentMetrics(1, 2_000_000, 3))

    def trigger(self, checkpoint_id: int, options: CheckpointOptions = CheckpointOptions()) -> bool:  # noqa: B008  # frozen
        """The JobManager triggers a checkpoint; whether it was begun."""
        future = self.checkpoints.trigger_checkpoint_async(CheckpointBarrier(checkpoint_id, 990, options))
        self.mailbox.run()
        return future.result(0)

    def play(self, *steps: str) -> "CheckpointedTask":
        """Each step is what happens and, behind an arrow, what its operators, outputs and coordinator hear then.

        ``aligned 1``, ``unaligned 1``, ``timeoutable 1``: the barrier has come on all channels; ``inputs 1``: the data
        in flight is complete; ``abort 1`` and ``complete 1``: notifications; ``give-up 1``: the inputs do; ``pool``: it
        runs; ``timer``: it rings.
        """
        for step in steps:
            what, _, expected = step.partition("->")
            before = [len(each) for each in self._heard()]
            self._happen(*what.split())
            heard = [each[num:] for each, num in zip(self._heard(), before, strict=True)]
            assert "; ".join(words for each in heard for words in each) == expected.strip(), step
        return self

    def _happen(self, what: str, number: str = "0") -> None:
        checkpoint_id = int(number)
        match what:
            case "pool":
                self.run_pool()
            case "timer":
                self.timers.ring()
            case "inputs":
                self.checkpoints.complete_inputs(checkpoint_id)
            case "abort":
                self.checkpoints.notify_checkpoint_aborted(checkpoint_id)
            case "complete":
                self.checkpoints.notify_checkpoint_complete(checkpoint_id)
            case "give-up":
                error = CheckpointError(checkpoint_id, CheckpointFailureReason.CANCELLATION_BARRIER)
                self.checkpoints.abort_checkpoint_on_barrier(checkpoint_id, error)
            case "close":
                self.checkpoints.close()
            case _:
                make = {"aligned": aligned, "unaligned": unaligned, "timeoutable": timeoutable}[what]
                self.take(make(checkpoint_id))

    def _heard(self) -> list[list[str]]:
        """Return all that was heard so far: in the log, as acknowledgements, as declines, and what was discarded."""
        return [
            [_in_words(*call) for call in self.log],
            [f"acknowledge {each}" for each in self.responder.acknowledged_ids],
            [f"decline {checkpoint_id} {reason.name}" for checkpoint_id, reason in self.reasons],
            [f"discard {name}" for name in self.chain.discarded],
        ]

    def end(self, gate: int, channel: int) -> None:
        self.gates[gate].add(channel, EndOfPartition())
        self.gates[gate].poll_next()
        self.handler.handle(ChannelFinished((gate, channel)))

    def run_pool(self) -> None:
        while self.pool:
            self.pool.pop(0)()

    @property
    def reasons(self) -> list[tuple[int, CheckpointFailureReason]]:
        return [(error.checkpoint_id, error.reason) for error in self.responder.declined]


def _in_words(what: object, of: object, is_priority: object = False) -> str:
    match of:
        case CheckpointBarrier():
            return f"{'overtaking ' * bool(is_priority)}barrier {of.checkpoint_id}"
        case CancelCheckpointMarker():
            return f"cancellation {of.checkpoint_id}"
        case _:
            return f"{what} {of}"
