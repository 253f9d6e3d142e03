"""Stand-ins for the parts with which a subtask's checkpoints talk."""

import threading
from collections import deque
from collections.abc import Callable, Mapping

from flowlet.checkpoint.task.barrier_orders import CheckpointError
from flowlet.checkpoint.task.operator_snapshots import CheckpointStatistics
from flowlet.checkpoint.task.snapshots import (
    AlignmentMetrics,
    OperatorSnapshotFuture,
    OperatorState,
    SubtaskState,
)
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import TaskMailbox
from flowlet.messages.control_messages import CheckpointDurations
from flowlet.task.checkpoint_wiring import TaskOutputs
from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceClosedError
from netstack.gate.gate_channels import BufferOrEvent, EndOfDataStatus
from netstack.wire.events import CheckpointBarrier, CheckpointOptions, EndOfPartition, Event
from netstack.wire.messages import DataType
from tests.netstack.gate.manual_timers import Due


class ManualTimers:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Due:
        entry = (delay_s * 1000, call)
        self.armed.append(entry)
        return Due(self.armed, entry)

    def fire(self) -> None:
        self.armed.pop(0)[1]()


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

    next_is_data = False
    next_is_event = False

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.acknowledged: list[int] = []
        self.sent: list[Event] = []
        self.is_closed = False
        self.is_requested = False
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

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        return EndOfDataStatus.NOT_END_OF_DATA

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
        found = self.poll_data(max_items)
        if not found:
            single = self.poll_next()
            return [] if single is None else [single]
        return found

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        found: list[BufferOrEvent] = []
        while (
            len(found) < max_buffers
            and not self._priority
            and self._rest
            and isinstance(self._rest[0][1], NetworkBuffer)
        ):
            item = self.poll_next()
            assert item is not None, "there was something"
            found.append(item)
        return found

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        while (item := self.poll_next()) is None and not self.is_finished:
            is_available = threading.Event()
            self.available_future().add_done_callback(is_available.set)
            if not is_available.wait(timeout_s):
                raise TimeoutError
        return item

    def request_partitions(self) -> None:
        self.is_requested = True

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        self.acknowledged.append(channel_index)

    def send_task_event(self, event: Event) -> None:
        self.sent.append(event)

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


class RecordingResponder:
    """The coordinator of the job."""

    statistics = CheckpointStatistics()

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, CheckpointDurations, SubtaskState]] = []
        self.declined: list[CheckpointError] = []

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointDurations, state: SubtaskState) -> None:
        self.acknowledged.append((checkpoint_id, metrics, state))

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        assert error.checkpoint_id == checkpoint_id
        self.declined.append(error)

    @property
    def acknowledged_ids(self) -> list[int]:
        return [checkpoint_id for checkpoint_id, _, _ in self.acknowledged]


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
