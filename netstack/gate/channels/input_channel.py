"""One input of a gate: what local and remote channels have in common, and what they need of others; and the part of a
channel's queue that belongs to an unaligned checkpoint, on its way to the writer.

They need a gate, which they call outside every lock; a remote one a connection, ``PartitionRequestClient``; and for a
partition that was not found yet a ``PartitionStateChecker`` and a ``RequestBackoff``.

Side:       shared.
Hot path:   ``PrioritizedDeque``, per buffer; its two deques are used themselves.
Invariants: the first error of a channel wins, and surfaces at every poll after it, before any data.  Elements with
            priority come first, both kinds in the order of their arrival.  Buffers are persisted exactly while a
            checkpoint was started whose barrier has not arrived on this channel.  While it is, every data buffer that
            arrives is noted; a checkpoint whose barrier came before its start gets the queued data before the barrier.
            Buffers reach the writer in the order of their arrival, from one thread at a time, outside the lock: a
            thread that finds another one at it leaves its buffers there, and that thread takes them along.
Lock order: the channel's lock, which ``InFlightRecorder`` shares with it, is a leaf; ``_locked`` methods are called
            under it, the writer outside it.
Units:      waits in milliseconds, sizes in bytes, times in nanoseconds.
Source:     Flink ``InputChannel``: its ``subpartitionView`` or ``partitionRequestClient`` is set once, ``isReleased``
            once.  ``RemoteInputChannel.increaseBackoff``, for producers that keep a request for a while before they say
            that they do not know the partition (1.18 and later), and ``shouldBeSpilled``.
            ``PartitionRequestClient``, ``PartitionProducerStateProvider``, ``PrioritizedDeque``.
            ``ChannelStatePersister``; ``RemoteInputChannel.checkpointStarted``, ``getInflightBuffersUnsafe``.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, field
from enum import Enum, IntEnum, auto
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import (
    CheckpointSubsumedError,
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
    ResourceClosedError,
)
from netstack.ids import ResultPartitionID
from netstack.late import dataclass
from netstack.log_lines import shown_state
from netstack.partition.channel_state import NO_CHANNEL_STATE, ChannelStateWriter, InputChannelInfo
from netstack.partition.result_subpartition import BufferAndBacklog
from netstack.wire.events import CheckpointBarrier, Event, deserialize_event
from netstack.wire.messages import ChannelOrder, DataType, is_before
from netstack.wire.offer_messages import RefusalCode, SubpartitionOffer

if TYPE_CHECKING:
    from netstack.gate.channels.remote_input_channel import RemoteInputChannel
    from netstack.gate.single_input_gate import SingleInputGate

_BARRIER_TYPE: Final = b"\0\0\0\1"  # an event's first bytes, if it is a checkpoint barrier


def barrier_of(buffer: NetworkBuffer) -> CheckpointBarrier | None:
    """Decode the checkpoint barrier in an event buffer; None for other events, which are left to the gate."""
    view = buffer.view
    if bytes(view[:4]) != _BARRIER_TYPE:
        return None
    event = deserialize_event(view)
    assert isinstance(event, CheckpointBarrier), "that is what its type says"
    return event


class _Status(Enum):
    COMPLETED = auto()
    BARRIER_PENDING = auto()
    BARRIER_RECEIVED = auto()


SequenceBuffer: TypeAlias = tuple[NetworkBuffer, int]
"""A received buffer with its number."""


class InFlightRecorder:
    """The part of one channel in checkpoints.

    Ownership: holds a reference of each buffer that is to be persisted, and gives it to the writer.

    Attributes:
        is_pending: whether data that arrives now belongs to checkpoint ``last_seen_barrier``.
    """

    __slots__ = (
        "_info", "_is_handing_over", "_lock", "_status", "_to_persist", "_writer", "is_pending", "last_barrier",
        "last_seen_barrier",
    )  # fmt: skip

    def __init__(self, lock: threading.Lock, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        self._lock = lock
        self._writer = writer
        self._info = info
        # Guarded by _lock.
        self._status = _Status.COMPLETED
        self.is_pending = False
        self.last_seen_barrier = -1
        self._to_persist: deque[tuple[int, list[NetworkBuffer]]] = deque()
        self._is_handing_over = False
        # Id and sequence number, until its checkpoint has been stopped.
        self.last_barrier: tuple[int, int] | None = None

    def __repr__(self) -> str:
        status = f"{self._status.name.lower()}, last barrier {self.last_seen_barrier}"
        return f"<InFlightRecorder {status}, {len(self._to_persist)} to persist>"

    @property
    def has_barrier_received(self) -> bool:
        """Whether the barrier of a checkpoint that is not stopped has arrived."""
        return self._status is _Status.BARRIER_RECEIVED

    def set_writer(self, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        """Hand over to ``writer`` from now on, as data of ``info``; before the request."""
        self._writer = writer
        self._info = info

    def start_locked(self, checkpoint_id: int, queued: Iterable[SequenceBuffer]) -> None:
        """Start a checkpoint of the task: note the data in ``queued`` before its barrier, or all if it has none yet.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier is here already.
        """
        if self.last_barrier is not None:
            last_id = self.last_barrier[0]
            if checkpoint_id < last_id:
                raise CheckpointSubsumedError(
                    f"the barrier of checkpoint {checkpoint_id} is not known any more, checkpoint {last_id} came"
                )
            if checkpoint_id > last_id:
                self.last_barrier = None  # an obsolete one, which the task did not look at
        # Data before the newer barrier includes data behind this one's: it belongs to no older checkpoint.
        if self.has_barrier_received and self.last_seen_barrier > checkpoint_id:
            raise CheckpointSubsumedError(
                f"the barrier of checkpoint {self.last_seen_barrier} arrived before checkpoint {checkpoint_id} was "
                "started"
            )
        if self.last_seen_barrier < checkpoint_id:
            # Also if an older barrier arrived that the task did not look at: only the newer one counts now.
            self._go_to(_Status.BARRIER_PENDING, checkpoint_id)
        buffers = self.in_flight_locked(queued)
        if buffers:
            self._to_persist.append((checkpoint_id, buffers))

    def stop_locked(self, checkpoint_id: int) -> None:
        """End a checkpoint that is complete or aborted; a later one that was started goes on."""
        if checkpoint_id >= self.last_seen_barrier:
            self._go_to(_Status.COMPLETED, checkpoint_id)
        if self.last_barrier is not None and self.last_barrier[0] == checkpoint_id:
            self.last_barrier = None

    def note_buffer_locked(self, buffer: NetworkBuffer) -> None:
        """Note a data buffer that arrived while ``is_pending``."""
        self._to_persist.append((self.last_seen_barrier, [buffer.retain()]))

    def note_barrier_locked(self, checkpoint_id: int, sequence_number: int) -> None:
        """Note a barrier that arrived: a task that starts its checkpoint later asks which data was before it."""
        is_latest = self.last_barrier is None or checkpoint_id > self.last_barrier[0]
        if self.on_barrier(checkpoint_id) and is_latest:
            self.last_barrier = (checkpoint_id, sequence_number)

    def on_barrier(self, checkpoint_id: int) -> bool:
        """Note a barrier that arrived; returns whether it counts: it is new, or the one that was waited for."""
        # A checkpoint that has ended takes no barrier any more; one that goes on waits for this very id.
        if checkpoint_id < self.last_seen_barrier + (self._status is _Status.COMPLETED):
            return False
        self._go_to(_Status.BARRIER_RECEIVED, checkpoint_id)
        return True

    def _go_to(self, status: _Status, checkpoint_id: int) -> None:
        self._status = status
        self.is_pending = status is _Status.BARRIER_PENDING
        self.last_seen_barrier = checkpoint_id

    def is_last_barrier_locked(self, sequence_number: int) -> bool:
        """Whether ``sequence_number`` is that of the last barrier, and its checkpoint goes on."""
        last = self.last_barrier
        return last is not None and last[1] == sequence_number and self.has_barrier_received

    def in_flight_locked(self, queued: Iterable[SequenceBuffer]) -> list[NetworkBuffer]:
        """Return the data in ``queued`` before the last barrier, or all; the caller gets a reference of each."""
        buffers = []
        for buffer, sequence_number in queued:
            if not buffer.is_buffer:
                continue
            # What is behind the barrier comes again from the producer after a restore: it would be there twice.
            if self.last_barrier is not None and not is_before(sequence_number, self.last_barrier[1]):
                break
            buffers.append(buffer.retain())
        return buffers

    def drop_locked(self) -> list[NetworkBuffer]:
        """Forget the buffers that were noted and return them to the caller, who recycles them."""
        buffers = [buffer for _, noted in self._to_persist for buffer in noted]
        self._to_persist.clear()
        return buffers

    def hand_over_polled(self, buffers: Sequence[NetworkBuffer]) -> None:
        """Give the writer what a local channel polled while ``is_pending``; polling thread, no lock held."""
        self._writer.add_input_data(self.last_seen_barrier, self._info, buffers)

    def hand_over(self) -> None:
        """Give the writer the noted buffers; outside the lock, any thread."""
        while True:
            with self._lock:
                # The other thread takes ours along: with two writing at once the later data could get there first.
                if self._is_handing_over or not self._to_persist:
                    return
                self._is_handing_over = True
                checkpoint_id, buffers = self._to_persist.popleft()
            try:
                self._writer.add_input_data(checkpoint_id, self._info, buffers)
            finally:
                with self._lock:
                    self._is_handing_over = False

    def check_invariants_locked(self) -> None:
        """Assert the invariants of this module; the caller holds the lock."""
        assert not self._to_persist or self._is_handing_over, "something to persist lies around"


T = TypeVar("T")


class PrioritizedDeque(Generic[T]):
    """A queue of two parts: first ``priority``, then ``rest``."""

    __slots__ = ("priority", "rest")

    def __init__(self) -> None:
        self.priority: deque[T] = deque()
        self.rest: deque[T] = deque()

    def __repr__(self) -> str:
        return f"<PrioritizedDeque {len(self.priority)} with priority, {len(self.rest)} without>"

    def __len__(self) -> int:
        return len(self.priority) + len(self.rest)

    def __iter__(self) -> Iterator[T]:
        return chain(self.priority, self.rest)

    def clear(self) -> None:
        """Forget all elements."""
        self.priority.clear()
        self.rest.clear()


class ProducerState(Enum):
    """The state of the producer of a partition that was not found, as far as it is known."""

    READY = auto()
    """Scheduled, running or finished: the partition will be there, or was moved."""
    FAILED = auto()
    """Failed or cancelled: the consumer will be cancelled, too."""
    UNKNOWN = auto()


class PartitionStateChecker(Protocol):
    """Finds out whether a producer is alive: asks the JobManager."""

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        """Call ``on_result`` once, on any thread, now or later; must not block."""


@dataclass(slots=True)
class RequestBackoff:
    """How often a request for a partition that was not found is repeated.

    Each time the producer has waited ``listener_timeout_ms``, so the next request goes out at once; these waits add up,
    until they reach twice ``max_ms``.  0 means that there is no further request.
    """

    max_ms: int = 0
    listener_timeout_ms: int = 0
    waited_ms: int = 0

    def next(self) -> bool:
        """Count a vain wait of the producer; returns whether there shall be another request."""
        self.waited_ms += self.listener_timeout_ms
        return self.waited_ms < 2 * self.max_ms


class PartitionRequestClient(Protocol):
    """The connection to one producing TaskManager.

    Threading: any thread; calls of one thread keep their order.  Failures arrive at the channel through ``on_error``.
    """

    def request_subpartition(self, channel: "RemoteInputChannel") -> None:
        """Ask the peer for the channel's subpartition, with the channel's initial credit."""

    def order(self, channel: "RemoteInputChannel", message: ChannelOrder | None) -> None:
        """Send ``message`` to the producer, after all earlier orders; None: announce the channel's credit."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """Tell the producer that the channel wants no more."""


class OfferedPartitionClient(PartitionRequestClient, Protocol):
    """The connection over which a producer outside the cluster offers partitions.

    One implementer: ``NetworkOfferedPartitionClient`` imports this module, which therefore cannot import it.
    """

    def refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        """Tell the producer that the gate takes nothing (more) from ``offer``, or nothing yet if ``code`` says so."""

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function on the connection's loop thread, after the earlier calls; never if the loop is closed."""


class Lifecycle(IntEnum):
    """A channel or a gate only moves on, to a greater state.

    An error does not change a channel's, but is what the next poll raises.  That every channel of a gate has ended is
    counted, and is no state: a gate may be released (closed) before and after.
    """

    CREATED = auto()
    """It may be set up, and channels be added; polling it, or an order to a producer, is a mistake."""
    REQUESTED = auto()
    """Its data was asked for, and is polled; channels of a gate with unknown producers are replaced."""
    RELEASED = auto()
    """It, and every channel of a gate, gave everything back and takes in nothing more."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel in a dump; numbers that a local channel does not have are 0."""

    index: int
    kind: str
    partition: str
    state: str
    num_bytes_in: int
    num_buffers_in: int
    num_queued_buffers: int
    last_activity_ns: int
    """When the channel was last found to have data after it had none, on the gate's monotonic clock."""
    queue_size_bytes: int = 0
    num_credits_available: int = 0
    num_credits_granted: int = 0
    sender_backlog: int = 0
    is_blocked: bool = False
    num_required: int = 0  # buffers: the backlog and the initial credit
    is_waiting: bool = False  # in the line of the gate's pool


BufferAndAvailability: TypeAlias = BufferAndBacklog
"""What a poll of a channel finds; a local channel hands on what its view gave it, without making another tuple."""


@dataclass(eq=False, repr=False)
class InputChannel(ABC):
    """Base class.

    Life cycle: ``Lifecycle``: made -> ``request_subpartition`` -> polled -> ``release`` (at the end of the
    partition, or when the gate closes).  Who polls per buffer compares ``lifecycle``; ``is_released`` is a call.

    Args:
        backoff: what happens when the producer does not know the partition and is asked again; default: nothing is
            asked again.
        last: for a range of subpartitions, the last one; nothing may block them: they are read in turns.
    """

    gate: "SingleInputGate"
    index: int
    partition_id: ResultPartitionID
    subpartition: int
    last: InitVar[int | None] = field(default=None, kw_only=True)
    backoff: RequestBackoff = field(default_factory=RequestBackoff, kw_only=True)
    # A factory: a plain default stays in the class, and Python 3.12 reads a field that hides one more slowly.
    clock_ns: Callable[[], int] = field(default_factory=lambda: time.monotonic_ns, kw_only=True)

    def __post_init__(self, last: int | None) -> None:
        self.last_subpartition = self.subpartition if last is None else last
        self.num_subpartitions = self.last_subpartition - self.subpartition + 1
        self.is_queued = False  # Guarded by the gate's lock.
        self.is_prioritized = False  # Guarded by the gate's lock.
        # The priority event that was told of last; None: the gate knows of one by itself.  Guarded by the gate's lock.
        self.prioritized_by: int | None = None
        self.last_priority_sequence_number: int | None = None  # Guarded by the gate's lock.
        # Written by the task thread.
        self.num_bytes_in = 0
        self.num_buffers_in = 0
        self._num_ends = {DataType.END_OF_DATA: 0, DataType.END_OF_PARTITION: 0}  # of the subpartitions
        self.num_events_in = self.num_event_bytes_in = 0  # Of these events; read anywhere, one event stale is fine.
        # By a blocking event.  The task clears it: until it does, the sender can do nothing but wait for that.
        self.is_blocked = False
        self.last_activity_ns = 0  # Written by the thread that brings data; read anywhere.
        self._lock = threading.Lock()
        # Guarded by _lock for writes; a bare read may be one pass stale.
        self._error: NetstackError | None = None
        self._not_found: PartitionNotFoundError | None = None  # the producer's last answer
        self.lifecycle = Lifecycle.CREATED
        self._in_flight = InFlightRecorder(self._lock, NO_CHANNEL_STATE, InputChannelInfo(0, self.index))
        self._queued: Iterable[SequenceBuffer] = ()  # received, but not polled yet

    def __repr__(self) -> str:
        state = self._describe() if self._error is None else f"failed: {self._error}"
        if self.is_released:
            state = "released"
        return f"<{type(self).__name__} {self.index} of {self.partition_id}/{self.subpartition}: {state}>"

    @property
    def is_released(self) -> bool:
        """Whether ``release`` was called."""
        return self.lifecycle is Lifecycle.RELEASED

    def _enter_locked(self, lifecycle: Lifecycle) -> bool:
        """Go on to ``lifecycle``; False, and nothing changes, if no step leads there from the present state."""
        is_step = lifecycle > self.lifecycle
        if is_step:
            self.lifecycle = lifecycle
        return is_step

    @property
    def num_queued_buffers(self) -> int:
        """How many received buffers wait to be polled."""
        return 0

    def request_subpartition(self) -> None:
        """Ask for the data; task thread, the second call does nothing."""
        with self._lock:
            is_first = self._enter_locked(Lifecycle.REQUESTED)
        if is_first:
            self._request()

    def retrigger_subpartition_request(self) -> None:
        """Ask once more for a partition that was not found; an error when the back-off is over.  Any thread.

        Raises:
            LocalProtocolError: it was never asked for.
        """
        if self.lifecycle is Lifecycle.CREATED:
            raise LocalProtocolError(f"channel {self.index} is requested once more before it was requested")
        if self.is_released:
            return
        if self.backoff.next():
            self._request()
        else:
            self.fail_partition_request()

    @abstractmethod
    def _request(self) -> None:
        """Ask for the data, for the first time or once more."""

    def _check_open(self) -> None:
        if self.is_released:
            raise ResourceClosedError(f"channel {self.index} of {self.gate.owner} was released")

    @abstractmethod
    def next_buffer(self) -> BufferAndAvailability | None:
        """Return the next buffer, which the caller recycles, and its successor's kind; None: no buffer.  Task thread.

        Raises:
            NetstackError: what ``on_error`` got, or that the producer failed.
        """

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll is known to find data: no event, no error.  Task thread."""
        return False

    @property
    def next_is_event(self) -> bool:
        """Whether the next poll is known to find an event or an error.  Task thread."""
        return False

    def next_data(self, max_buffers: int) -> tuple[list[NetworkBuffer], bool]:
        """Return up to ``max_buffers`` data buffers, which the caller recycles, up to the next event; and whether more
        may be left.  Task thread.

        None are found if ``next_buffer`` has to look: there is an event, an error or nothing, or buffers come singly.
        """
        return [], True

    def concerns_all(self, data_type: DataType) -> bool:
        """Count an end that was polled; returns whether an event concerns the whole channel.  Task thread."""
        if data_type not in self._num_ends:
            return True
        self._num_ends[data_type] += 1
        return self._num_ends[data_type] == self.num_subpartitions

    @abstractmethod
    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event was polled.

        Raises:
            ResourceClosedError: the channel was released.
        """

    @abstractmethod
    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""

    @abstractmethod
    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producer.

        Raises:
            ResourceClosedError: the channel was released.
            NetstackError: the producer does not listen (a remote one says so later, as the channel's error).
        """

    @abstractmethod
    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on.

        Raises:
            ResourceClosedError: the channel was released.
        """

    @abstractmethod
    def release(self) -> None:
        """Give everything back and tell the producer; any thread, any number of times."""

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Start an unaligned checkpoint: the data before the barrier belongs to it, both data that is queued here and
        data that still comes.  A producer in this process keeps the data that waits there.  Task thread.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier is here already.
        """
        with self._lock:
            self._in_flight.start_locked(barrier.checkpoint_id, self._queued)
        self._in_flight.hand_over()

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """End a checkpoint that is complete or aborted: no more data belongs to it.  Task thread."""
        with self._lock:
            self._in_flight.stop_locked(checkpoint_id)

    def set_channel_state_writer(self, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        """Hand the data in flight of unaligned checkpoints to ``writer``, as data of ``info``; before the request."""
        self._in_flight.set_writer(writer, info)

    def convert_to_priority_event(self, sequence_number: int) -> None:
        """Let the announced barrier with that number overtake all queued elements.

        Raises:
            LocalProtocolError: it is not queued, or not the last barrier.
        """
        raise LocalProtocolError(f"{self!r} announces no barriers, so none can be converted")

    def fail_partition_request(self) -> None:
        """Give up the partition: the error of the request becomes the channel's error."""
        self.on_error(
            self._not_found or PartitionNotFoundError(f"partition {self.partition_id} was not found at its producer")
        )

    def on_producer_state(self, state: ProducerState) -> None:
        """Act on the answer to a check of the producer's state; any thread."""
        match state:
            case ProducerState.READY:
                self.retrigger_subpartition_request()
            case ProducerState.FAILED:
                self.on_error(
                    ProducerFailedError(f"the producer of partition {self.partition_id} failed or was cancelled")
                )
            case ProducerState.UNKNOWN:
                self.fail_partition_request()

    def on_error(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``; a later one is ignored.  Any thread."""
        self.fail(error)

    def fail(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``, whatever was received already: some of it is lost.  Any thread."""
        with self._lock:
            if self._error is not None or self.is_released:
                return
            self._error = error
        self.gate.notify_channel_non_empty(self)

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """Make one row of a dump; any thread."""

    def _statistics(self, kind: str, **numbers: Any) -> ChannelStatistics:
        """Make the row of this channel, with the ``numbers`` that only its kind has."""
        return ChannelStatistics(
            index=self.index,
            kind=kind,
            partition=f"{self.partition_id}/{self.subpartition}",
            state=shown_state("open", released=self.is_released, failed=self._error is not None),
            num_bytes_in=self.num_bytes_in,
            num_buffers_in=self.num_buffers_in,
            num_queued_buffers=self.num_queued_buffers,
            last_activity_ns=self.last_activity_ns,
            is_blocked=self.is_blocked,
            **numbers,
        )

    def _describe(self) -> str:
        return f"{self.num_queued_buffers} queued"
