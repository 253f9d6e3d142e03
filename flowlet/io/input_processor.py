"""Leads data from the gates of a task to the head of its chain, or to each input of a head that has several.

Hot path.  Per buffer one ``feed`` and one poll, or a share of a poll that yields a run; per element one ``type`` test
and one call.  Choosing an input costs one look at each input without data.
Side:       task.
Invariants: each channel has its own deserializer, so parts of records never mix.  A buffer is recycled before its
            elements are processed: so its credit travels meanwhile.  A small buffer is recycled after them, because
            then the records are urgent.  No data of a channel is processed after its end of data.  Inputs with data
            take turns, so none starves; each turn is as many buffers as the caller allows.  Each end is reported once.
Runs:       where it pays, a gate is polled for several buffers at once, unless another gate has data, too.  The rest of
            a run when a mail comes is processed before the next poll, and counts as data in flight until then.  An
            event is polled alone, after all data before it was processed.  Buffers are recycled one by one: so each
            credit returns as early as it can, and several at once are no cheaper (0.8 us each, 1.0 us in two halves of
            a run of 8).
Source:     Flink ``StreamOneInputProcessor``, ``AbstractStreamTaskNetworkInput``, ``StreamTaskNetworkOutput``.  The
            gates of a union take turns; channels are numbered across gates, in order.  Flink
            ``StreamMultipleInputProcessor``, and ``StreamTwoInputProcessor`` for two inputs.  Flink
            ``MultipleInputSelectionHandler``, ``InputSelection.fairSelectNextIndex``, which does not check the other
            inputs when the last one to end was stopped without draining; here both kinds of end are treated alike.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from flowlet.chain.record_slices import RecordSlices
from flowlet.chain.stream_operator import Input, InputStatus
from flowlet.errors import SerdeError
from flowlet.io.chunk_content import ChunkContent
from flowlet.records import (
    ACTIVE,
    MAX_WATERMARK,
    Chunk,
    CompletionMark,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve
from netstack.availability import AvailabilityFuture
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import RemoteProtocolError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.late import dataclass
from netstack.wire.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    Event,
    EventAnnouncement,
    StopMode,
)

if TYPE_CHECKING:
    from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
    from netstack.gate.single_input_gate import SingleInputGate

ReadableGate: TypeAlias = "SingleInputGate | CheckpointedInputGate"

# The size of the pieces in which a checkpoint keeps an unfinished record: a segment.  Not measured.
IN_FLIGHT_PIECE_BYTES = 32 * 1024

# A buffer of at most this size is recycled after its records: recycling may wake the loop, which would get the core
# before them (bench: latency).  Not measured otherwise.
_LITTLE_BYTES: Final = 1024

# Compared with single polls, one poll for several costs more if it finds 1 buffer, as much for 2, half for 4, a third
# for 8 (bench: transport).
_LEAST_RUN: Final = 3
# After a poll for several that found too few, the next one waits until this many single polls have found a buffer and
# reported more.  Single records, local channels, and few channels that all have data yield no runs.  Not measured.
_POLLS_AFTER_NO_RUN: Final = 16

# Events that a checkpointed gate has already handled when it hands them over.
_LOOKED_AFTER = CheckpointBarrier | CancelCheckpointMarker | EventAnnouncement | EndOfOutputChannelState


@dataclass(eq=False)
class InputProcessor:
    """Reads all gates of one input, in turns; task thread only, except ``current_watermark``.

    Args:
        gates: at least one, with their channels.
        head: gets the elements.
        name: the task's, for error messages.
        on_end: called once when all data has ended and is drained, after the last watermark.
        on_mark: called with a channel, and the completion mark that arrived on it, or None when its data has ended.
        are_checkpointed: whether the gates handle barriers; if not, a barrier is the producer's error.
        limits: of the elements that arrive.
        takes_late_data: whether producers may send records behind their end of data, such as sinks after their last
            commit.
        slices: holds elements that were read, so that a mail or a barrier need not wait for a whole chunk; by default
            chunks are not cut.
    """

    gates: Sequence[ReadableGate]
    head: Input
    name: str
    on_end: Callable[[], None] = lambda: None
    on_mark: Callable[[int, CompletionMark | None], None] = lambda _channel, _mark: None
    are_checkpointed: bool = False
    slices: RecordSlices[int] = field(default_factory=lambda: RecordSlices(lambda: 0, cuts=False))
    limits: ElementLimits = DEFAULT_ELEMENT_LIMITS
    takes_late_data: bool = False

    def __post_init__(self) -> None:
        """Number the channels."""
        self._first_channel: list[int] = []
        num_channels = 0
        for gate in self.gates:
            self._first_channel.append(num_channels)
            num_channels += gate.num_channels
        self._deserializers: list[ElementDeserializer | None] = [
            ElementDeserializer(name=f"{self.name}, input channel {channel}", limits=self.limits)
            for channel in range(num_channels)
        ]
        self._late_deserializers: dict[int, ElementDeserializer] = {}  # of channels whose data has ended
        self.valve = StatusWatermarkValve(num_channels)
        """The watermarks and statuses of the channels; read only."""
        self._num_channels_with_data = num_channels
        self._next_gate = 0
        self._run: deque[BufferOrEvent] = deque()  # data that was polled but not processed, all of one gate
        self._run_first_channel = 0  # number of the first channel of the gate that was polled last
        self._num_polls_before_run = 1  # single polls that must still find a buffer and report more
        # Futures that will call on_available: a future must not collect one callback per wait.
        self._watched: list[AvailabilityFuture | None] = [None] * len(self.gates)
        self._serializer = StreamElementSerializer(max_element_bytes=self.limits.max_element_bytes)
        self._is_at_end_of_event_time = False
        self.stop_mode = StopMode.DRAIN  # of the ends of data so far: NO_DRAIN if one of them was

    def __repr__(self) -> str:
        return f"<InputProcessor of {self.name}: {self.waiting_for}, {self.valve!r}>"

    @property
    def current_watermark(self) -> int:
        """The input's watermark in milliseconds; any thread."""
        return self.valve.last_output

    @property
    def waiting_for(self) -> str:
        """The input that the task waits for, in words for people."""
        unfinished = [gate for gate in self.gates if not gate.is_finished]
        awaited = "data" if self._num_channels_with_data else "the end of partition"
        return (
            f"{awaited} on {len(unfinished)} of {len(self.gates)} gates ({self._num_channels_with_data} channels "
            "still have data)"
        )

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """Process up to ``max_buffers`` buffers or events; calls ``should_stop`` after each of them.

        With 0 it processes only elements that were read already.

        Raises:
            UserFunctionError: a user function failed.
            SerdeError: an element cannot be deserialized.
            NetstackError: a gate failed (the producer failed, the connection was lost).
        """
        slices = self.slices
        # The last element may have been a watermark whose timers a mail has interrupted: no record may pass them.
        if slices.waiting and (not self.process_pending(should_stop) or should_stop()):
            return InputStatus.MORE_AVAILABLE
        run = self._run
        for num_left in range(max_buffers, 0, -1):
            item = run.popleft() if run else self._poll(num_left)
            if item is None:
                return self._status_without_input()
            channel = self._run_first_channel + item.channel_index
            if item.buffer is not None:
                self._process_buffer(channel, item.buffer)
                if slices.waiting and not self.process_pending(should_stop):
                    break
            elif item.event is not None and self._process_event(channel, item.event):
                return self._end_data()
            if should_stop():
                break
        return InputStatus.MORE_AVAILABLE

    def process_events(self) -> InputStatus:
        """Process the next element only if it is an event, such as a barrier: timers in front of the next record have
        not all fired.

        Raises:
            NetstackError, SerdeError: as ``process_input``.
        """
        if self.slices.waiting or self._run:
            return InputStatus.MORE_AVAILABLE
        item = self._poll(1)
        if item is None:
            status = self._status_without_input()
            return InputStatus.MORE_AVAILABLE if status is InputStatus.NOTHING_AVAILABLE else status
        channel = self._run_first_channel + item.channel_index
        if item.buffer is not None:
            try:
                self.slices.add(channel, self._elements_of(channel, item.buffer))
            finally:
                item.buffer.recycle()
        elif item.event is not None and self._process_event(channel, item.event):
            return self._end_data()
        return InputStatus.MORE_AVAILABLE

    def process_pending(self, should_stop: Callable[[], bool]) -> bool:
        """Process elements that were read and wait, until ``should_stop``; returns whether all are processed.

        Raises as ``process_input``.
        """
        return self.slices.process(self._process_slice, self._process_control, should_stop)

    def _process_slice(self, _channel: int, chunk: Chunk) -> int:
        return self.head.process_some(chunk)

    def process_recovered(
        self, gate_position: int, channel_index: int | None, elements: Sequence[StreamElement]
    ) -> None:
        """Take elements that were in flight in a checkpoint, before the first poll; ``process_pending`` processes them.

        ``channel_index``: the channel that they were in; None: this channel no longer exists, so only the records are
            processed.
        """
        channel = self._first_channel[gate_position] + (channel_index or 0)
        for element in elements:
            # Statuses are left out: a producer begins as active, and sends changes only.
            if isinstance(element, Chunk) or (channel_index is not None and isinstance(element, Watermark)):
                self.slices.add(channel, (element,))

    @property
    def is_available(self) -> bool:
        """Whether ``process_input`` would find data, an event or an end."""
        if self._run or self.slices.waiting:
            return True
        return all(gate.is_finished for gate in self.gates) or any(map(_has_next, self.gates))

    @property
    def has_rest(self) -> bool:
        """Whether elements were read and are not processed."""
        return bool(self.slices.waiting)

    @property
    def next_is_event(self) -> bool:
        """Whether the next ``process_input`` finds an event, and no records before it."""
        if self._run or self.slices.waiting:
            return False
        num_gates = len(self.gates)
        for turn in range(num_gates):
            gate = self.gates[(self._next_gate + turn) % num_gates]
            if _has_next(gate):
                return gate.next_is_event
        return False

    def advance_to_end_of_event_time(self) -> None:
        """Send ``MAX_WATERMARK``, unless it was sent: no more records follow."""
        if self._is_at_end_of_event_time or self.valve.last_output >= MAX_WATERMARK.timestamp:
            return
        self._is_at_end_of_event_time = True
        # Outputs drop the watermarks of an input that is idle.
        if self.valve.is_output_idle:
            self.head.process_control(ACTIVE)
        self.head.process_control(MAX_WATERMARK)

    def close(self) -> None:
        """Release polled buffers, incomplete elements and their files; idempotent.  No data is processed afterwards."""
        polled = [item.buffer for item in self._run if item.buffer is not None]
        self._run.clear()
        self.slices.waiting.clear()
        recycle_all(polled)
        for deserializer in (*self._deserializers, *self._late_deserializers.values()):
            if deserializer is not None:
                deserializer.close()

    def in_flight(self, gate_position: int, channel_index: int) -> Iterator[bytes]:
        """Serialized data that was read from a channel but not processed, in stream order: queued records, the
        beginning of an incomplete one, and the rest of a run.
        """
        channel = self._first_channel[gate_position] + channel_index
        for element in self.slices.of_origin(channel):
            yield from self._pieces_of(element)
        deserializer = self._deserializers[channel] or self._late_deserializers.get(channel)
        if deserializer is not None:
            yield from deserializer.unconsumed(IN_FLIGHT_PIECE_BYTES)
        for item in self._run:
            if item.buffer is not None and self._run_first_channel + item.channel_index == channel:
                view = item.buffer.view
                for start in range(0, len(view), IN_FLIGHT_PIECE_BYTES):
                    yield bytes(view[start : start + IN_FLIGHT_PIECE_BYTES])

    def _pieces_of(self, element: StreamElement) -> Iterator[bytes]:
        """An element that was read already, serialized again, without references to the channel's dictionary."""
        if isinstance(element, Chunk):
            serialized = ChunkContent(element, 1, self.limits.max_element_bytes).to_bytes()
        else:
            serialized = bytes(self._serializer.serialize(element))
        for start in range(0, len(serialized), IN_FLIGHT_PIECE_BYTES):
            yield serialized[start : start + IN_FLIGHT_PIECE_BYTES]

    def has_polled(self, gate_position: int, channel_index: int) -> bool:
        """Whether polled data of a channel is unprocessed: the data behind it must not be looked at yet."""
        channel = self._first_channel[gate_position] + channel_index
        if any(True for _ in self.slices.of_origin(channel)):
            return True
        return any(self._run_first_channel + item.channel_index == channel for item in self._run)

    def watch(self, on_available: Callable[[], None]) -> None:
        """Call ``on_available``, on any thread, when an empty gate gets data; at once if one has data already.

        All calls must pass one callable: a future that has it already does not get it again.
        """
        if self._run or self.slices.waiting:
            on_available()
        for index, gate in enumerate(self.gates):
            if gate.is_finished:
                continue
            future = gate.available_future()
            if future.is_done:
                on_available()
            # A future that is done in between calls back at once.
            elif self._watched[index] is not future:
                self._watched[index] = future
                future.add_done_callback(on_available)

    def _poll(self, max_items: int) -> BufferOrEvent | None:
        """The next item of the next gate that has one; up to ``max_items - 1`` more items become the run."""
        num_gates = len(self.gates)
        for turn in range(num_gates):
            index = (self._next_gate + turn) % num_gates
            gate = self.gates[index]
            if gate.is_finished:
                continue
            is_for_one = self._num_polls_before_run > 0 or max_items < _LEAST_RUN
            item = gate.poll_next() if is_for_one else self._poll_run(gate, max_items)
            if item is None:
                continue
            if is_for_one and item.more_available and self._num_polls_before_run:
                self._num_polls_before_run -= 1
            self._next_gate = (index + 1) % num_gates
            self._run_first_channel = self._first_channel[index]
            return item
        return None

    def _poll_run(self, gate: ReadableGate, max_items: int) -> BufferOrEvent | None:
        """The first item of a gate; further items become the run, unless another gate has data."""
        # Gates that have data take turns: a run of this one would take several turns at once.
        if any(_has_next(other) for other in self.gates if other is not gate):
            return gate.poll_next()
        found = gate.poll_many(max_items)
        if not found:
            return None
        if len(found) < _LEAST_RUN and found[0].event is None:
            self._num_polls_before_run = _POLLS_AFTER_NO_RUN
        self._run.extend(found)
        return self._run.popleft()

    def _status_without_input(self) -> InputStatus:
        if all(gate.is_finished for gate in self.gates):
            return InputStatus.END_OF_INPUT
        return InputStatus.NOTHING_AVAILABLE

    def _end_data(self) -> InputStatus:
        if self.stop_mode is StopMode.NO_DRAIN:
            return InputStatus.STOPPED
        self.advance_to_end_of_event_time()
        self.on_end()
        return InputStatus.END_OF_DATA

    def _process_buffer(self, channel: int, buffer: NetworkBuffer) -> None:
        slices, is_held = self.slices, True
        try:
            elements = self._elements_of(channel, buffer)
            if buffer.size > _LITTLE_BYTES:
                is_held = False
                buffer.recycle()
            if len(elements) == 1 and slices.is_needless_for(element := elements[0]):
                self.head.process_chunk(element)
            else:
                slices.add(channel, elements)
        finally:
            if is_held:
                buffer.recycle()

    def _elements_of(self, channel: int, buffer: NetworkBuffer) -> list[StreamElement]:
        """The elements that the buffer completes."""
        deserializer = self._deserializers[channel] or self._late_deserializers.get(channel)
        if deserializer is None:
            raise RemoteProtocolError(f"{self.name}: data on input channel {channel} after its end of data")
        content = buffer.content
        # A chunk of a task in this process: there are no bytes to read.
        if isinstance(content, ChunkContent):
            return [content.take()]
        return deserializer.feed(buffer.view)

    def _process_control(self, channel: int, element: StreamElement) -> None:
        match element:
            case Watermark():
                self._pass_on(self.valve.input_watermark(channel, element))
            case WatermarkStatus():
                self._pass_on(self.valve.input_status(channel, element))
            case LatencyMarker():
                self.head.process_control(element)
            case CompletionMark():
                self.on_mark(channel, element)
            case RecordAttributes():
                pass  # no operator uses them
            case InternalWatermark():
                raise SerdeError(
                    f"{self.name}: input channel {channel} sent {element}, but it reads only one subpartition"
                )
            case Chunk():
                self.head.process_chunk(element)
            case _:
                assert_never(element)

    def _pass_on(self, outputs: Sequence[Watermark | WatermarkStatus]) -> None:
        for output in outputs:
            self.head.process_control(output)

    def _process_event(self, channel: int, event: Event) -> bool:
        """Process an event; True if it was the last end of data."""
        match event:
            case EndOfData(mode=mode):
                return self._end_channel(channel, mode)
            case EndOfPartition():
                if self._deserializers[channel] is not None:
                    raise RemoteProtocolError(f"{self.name}: input channel {channel} ended without an end of data")
                return False
            case _ if self.are_checkpointed and isinstance(event, _LOOKED_AFTER):
                return False
            case _:
                raise RemoteProtocolError(
                    f"{self.name}: input channel {channel} sent {event}, which tasks do not support"
                )

    def _end_channel(self, channel: int, mode: StopMode) -> bool:
        deserializer = self._deserializers[channel]
        if deserializer is None:
            raise RemoteProtocolError(f"{self.name}: a second end of data on input channel {channel}")
        if deserializer.has_partial:
            raise SerdeError(f"{self.name}: input channel {channel} ended in the middle of an element")
        self._deserializers[channel] = None
        if self.takes_late_data:
            self._late_deserializers[channel] = deserializer
        if mode is StopMode.NO_DRAIN:
            self.stop_mode = StopMode.NO_DRAIN
        self._num_channels_with_data -= 1
        index = max(i for i, first in enumerate(self._first_channel) if first <= channel)
        # At once, not when all channels have ended: the producer waits for it (CheckpointedInputGate).
        self.gates[index].acknowledge_all_records_processed(channel - self._first_channel[index])
        self.on_mark(channel, None)
        return self._num_channels_with_data == 0


def _has_next(gate: ReadableGate) -> bool:
    return not gate.is_finished and gate.available_future().is_done


class MultipleInputProcessor:
    """Reads several inputs in turns; task thread only, except ``current_watermark``.

    ``inputs`` has one processor per input of the head.
    """

    def __init__(self, inputs: Sequence[InputProcessor]) -> None:
        self._inputs = tuple(inputs)
        self._last = len(self._inputs) - 1
        self._unfinished = set(range(len(self._inputs)))  # inputs before END_OF_INPUT
        self._with_data = set(self._unfinished)  # inputs before END_OF_DATA
        self._end = InputStatus.END_OF_DATA  # how the data of all inputs ends

    def __repr__(self) -> str:
        ends = f"data on {sorted(self._with_data)}, not ended {sorted(self._unfinished)}"
        return f"<{type(self).__name__} of {list(self._inputs)!r}, {ends}>"

    @property
    def current_watermark(self) -> int:
        """The lowest watermark of the inputs in milliseconds; any thread."""
        return min(each.current_watermark for each in self._inputs)

    @property
    def waiting_for(self) -> str:
        """The inputs that the task waits for, in words for people."""
        return "; ".join(f"input {index + 1}: {self._inputs[index].waiting_for}" for index in sorted(self._unfinished))

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """Process buffers or events of the input whose turn it is (``InputProcessor.process_input``)."""
        return self._process(lambda each: each.process_input(max_buffers, should_stop), InputStatus.NOTHING_AVAILABLE)

    def process_events(self) -> InputStatus:
        """Process the next element of the input whose turn it is, only if it is an event."""
        return self._process(InputProcessor.process_events, InputStatus.MORE_AVAILABLE)

    def _process(
        self, process: Callable[[InputProcessor], InputStatus], status_without_input: InputStatus
    ) -> InputStatus:
        if not self._unfinished:
            return InputStatus.END_OF_INPUT
        num_inputs = len(self._inputs)
        for turn in range(1, num_inputs + 1):
            index = (self._last + turn) % num_inputs
            if self._is_awaited(index) and self._inputs[index].is_available:
                self._last = index
                return self._after(index, process(self._inputs[index]))
        return status_without_input

    def _after(self, index: int, status: InputStatus) -> InputStatus:
        """The status of all inputs together, after one input returned ``status``."""
        match status:
            case InputStatus.MORE_AVAILABLE:
                return status
            case InputStatus.END_OF_DATA | InputStatus.STOPPED:
                self._with_data.discard(index)
                if status is InputStatus.STOPPED:
                    self._end = status
                return InputStatus.MORE_AVAILABLE if self._with_data else self._end
            case InputStatus.END_OF_INPUT:
                self._unfinished.discard(index)
                if not self._unfinished:
                    return status
            case InputStatus.NOTHING_AVAILABLE:
                pass
        return InputStatus.MORE_AVAILABLE if self.is_available else InputStatus.NOTHING_AVAILABLE

    def _is_awaited(self, index: int) -> bool:
        """Whether the input is to be read now."""
        return index in self._unfinished

    def _awaited(self) -> Iterator[InputProcessor]:
        return (each for index, each in enumerate(self._inputs) if self._is_awaited(index))

    @property
    def is_available(self) -> bool:
        """Whether ``process_input`` would find data, an event or an end."""
        return any(each.is_available for each in self._awaited())

    @property
    def has_rest(self) -> bool:
        """Whether an input that has not ended has elements that were read and are not processed."""
        return any(each.has_rest for each in self._awaited())

    @property
    def next_is_event(self) -> bool:
        """Whether the next ``process_input`` certainly finds an event, whichever input it reads."""
        available = [each for each in self._awaited() if each.is_available]
        return bool(available) and all(each.next_is_event for each in available)

    def advance_to_end_of_event_time(self) -> None:
        """Send ``MAX_WATERMARK`` to every input that has not had it."""
        for each in self._inputs:
            each.advance_to_end_of_event_time()

    def close(self) -> None:
        """Close every input; idempotent."""
        for each in self._inputs:
            each.close()

    def watch(self, on_available: Callable[[], None]) -> None:
        """Have ``on_available`` called, on any thread, when an input that has not ended gets data.

        It is called at once if one has data already.
        """
        for each in self._awaited():
            each.watch(on_available)
