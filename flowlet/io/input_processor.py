"""From the gates of a task to the head of its chain.

Hot path.  Per buffer: one ``feed``, and one poll, or a part of one that yields a run; per element: one ``type`` test and one call.

Side:       task.
Invariants: every channel has a deserializer of its own, so that parts of records never mix; a buffer is recycled before its elements are
            processed, so that its credit is on its way meanwhile, or after them if it is little: then the records are what is waited for;
            nothing is processed of a channel after its end of data.
Runs:       while it pays, a gate is asked for as many buffers as the call may process, unless another gate has data, too.  What the call
            leaves of them, because a mail waits, is processed before anything else is polled, and is data in flight until then.
            An event is polled alone, when everything before it was processed.  Each buffer is recycled by itself: so its credit is back
            as early as it can be, and several at once are no cheaper (0.8 us each, 1.0 us in two halves of a run of 8).
Source:     Flink ``StreamOneInputProcessor``, ``AbstractStreamTaskNetworkInput``, ``StreamTaskNetworkOutput``; several gates (a union) take
            turns as in ``UnionInputGate``, their channels numbered densely in the order of the gates.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, assert_never

from flowlet.errors import SerdeError
from flowlet.io.chunk_content import ChunkContent
from flowlet.io.multiple_input_selection_handler import InputStatus
from flowlet.records import (
    ACTIVE,
    MAX_WATERMARK,
    Chunk,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.watermarks.status_watermark_valve import StatusWatermarkValve
from netstack.availability import AvailabilityFuture
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import RemoteProtocolError
from netstack.gate.buffer_or_event import BufferOrEvent
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

# How large the pieces of an unfinished record are in a checkpoint: a segment.  Not measured.
IN_FLIGHT_PIECE_BYTES = 32 * 1024

# Recycling such a buffer may wake the loop, which then gets the core before the records do (bench: latency).  Not measured otherwise.
_LITTLE_BYTES: Final = 1024

# For one buffer a poll for several costs more than a poll for one, for two as much, for four half, for eight a third (bench: transport).
_LEAST_RUN: Final = 3
# Fewer were found: records that come alone, local channels, and few channels that all have data yield no runs.  Then so many polls must
# find one buffer and say that there is more before several are polled at once again.  Not measured.
_POLLS_AFTER_NO_RUN: Final = 16

# What a checkpointed gate has looked after before it hands it over.
_LOOKED_AFTER = CheckpointBarrier | CancelCheckpointMarker | EventAnnouncement | EndOfOutputChannelState


def _do_nothing() -> None:
    return


class ReadableGate(Protocol):
    """The part of a gate that is read here: a ``SingleInputGate``, or a ``CheckpointedInputGate`` around one."""

    @property
    def num_channels(self) -> int:
        """How many channels it has."""

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something."""

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, or None."""

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """What so many polls would find at most, but an event comes alone."""

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """All data of the channel was processed."""


class ChainHead(Protocol):
    """What receives the elements (an operator chain)."""

    def process_chunk(self, chunk: Chunk) -> None:
        """Records, in stream order."""

    def process_watermark(self, watermark: Watermark) -> None:
        """The input's watermark rose."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """The input became idle or active."""

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """A latency marker came in."""


class InputProcessor:
    """Reads all gates of one input, fairly.

    Threading: task thread only, except ``current_watermark``.

    Args:
        gates: at least one, each with its channels already added.
        head: gets the elements.
        name: of the task, for error messages.
        on_end: called once, when all data has ended and is to be drained, with the last watermark passed on before.
        are_checkpointed: whether the gates look after barriers themselves; if not, a barrier is an error of the producer.
        by_record: hand over one record at a time, each with one call of ``process_input``, for an operator that selects its inputs.
    """

    def __init__(
        self,
        gates: Sequence[ReadableGate],
        head: ChainHead,
        name: str,
        *,
        on_end: Callable[[], None] = _do_nothing,
        are_checkpointed: bool = False,
        by_record: bool = False,
    ) -> None:
        self._gates = tuple(gates)
        self._head = head
        self._name = name
        self._first_channel: list[int] = []
        num_channels = 0
        for gate in self._gates:
            self._first_channel.append(num_channels)
            num_channels += gate.num_channels
        self._deserializers: list[ElementDeserializer | None] = [
            ElementDeserializer(name=f"{name}, input channel {channel}") for channel in range(num_channels)
        ]
        self._valve = StatusWatermarkValve(num_channels)
        self._num_channels_with_data = num_channels
        self._next_gate = 0
        self._run: deque[BufferOrEvent] = deque()  # data that was polled and is not processed, all of one gate
        self._run_first_channel = 0  # of the gate that was polled last
        self._num_polls_before_run = 1  # that find one buffer and say that there is more
        # The futures that already call on_available: a future must not collect one callback per wait.
        self._watched: list[AvailabilityFuture | None] = [None] * len(self._gates)
        self._on_end = on_end
        self._are_checkpointed = are_checkpointed
        self._queued: deque[tuple[int, StreamElement]] | None = deque() if by_record else None
        self._serializer = StreamElementSerializer()
        self._is_at_end_of_event_time = False
        self.stop_mode = StopMode.DRAIN  # what the ends of data seen so far ask for

    def __repr__(self) -> str:
        return f"<InputProcessor of {self._name}: {self.waiting_for}, {self._valve!r}>"

    @property
    def valve(self) -> StatusWatermarkValve:
        """What the channels together have reached; look only."""
        return self._valve

    @property
    def current_watermark(self) -> int:
        """The input's watermark, milliseconds; any thread."""
        return self._valve.last_output

    @property
    def waiting_for(self) -> str:
        """What a wait for input waits for, in words."""
        unfinished = [gate for gate in self._gates if not gate.is_finished]
        awaited = "data" if self._num_channels_with_data else "the end of partition"
        return f"{awaited} on {len(unfinished)} of {len(self._gates)} gates ({self._num_channels_with_data} channels still have data)"

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """Process up to ``max_buffers`` buffers or events; ``should_stop`` is asked after each of them.

        Raises:
            Whatever a gate reports (the producer failed, the connection was lost), SerdeError, UserFunctionError.
        """
        if self._queued is not None:
            return self._process_next(self._queued)
        run = self._run
        for num_left in range(max_buffers, 0, -1):
            item = run.popleft() if run else self._poll(num_left)
            if item is None:
                return self._status_without_input()
            channel = self._run_first_channel + item.channel_index
            if item.buffer is not None:
                self._process_buffer(channel, item.buffer)
            elif item.event is not None and self._process_event(channel, item.event):
                return self._end_data()
            if should_stop():
                break
        return InputStatus.MORE_AVAILABLE

    @property
    def is_available(self) -> bool:
        """Whether a call would find something, an end among others."""
        if self._queued or self._run:
            return True
        return all(gate.is_finished for gate in self._gates) or any(map(_has_next, self._gates))

    def advance_to_end_of_event_time(self) -> None:
        """No record comes any more: give the chain the last watermark, unless it had it."""
        if self._is_at_end_of_event_time or self._valve.last_output >= MAX_WATERMARK.timestamp:
            return
        self._is_at_end_of_event_time = True
        if self._valve.is_output_idle:
            self._head.process_watermark_status(ACTIVE)
        self._head.process_watermark(MAX_WATERMARK)

    def close(self) -> None:
        """Give back what was polled, forget the elements that are not complete, and their files; idempotent.

        Nothing is processed afterwards.
        """
        polled = [item.buffer for item in self._run if item.buffer is not None]
        self._run.clear()
        recycle_all(polled)
        for deserializer in self._deserializers:
            if deserializer is not None:
                deserializer.close()

    def in_flight(self, gate_position: int, channel_index: int) -> Iterator[bytes]:
        """What was read from a channel and not processed, in stream order.

        That is records that wait, the beginning of the next one, and the rest of a run.
        """
        channel = self._first_channel[gate_position] + channel_index
        for queued_channel, element in self._queued or ():
            if queued_channel == channel:
                yield bytes(self._serializer.serialize(element))
        deserializer = self._deserializers[channel]
        if deserializer is not None:
            yield from deserializer.unconsumed(IN_FLIGHT_PIECE_BYTES)
        for item in self._run:
            if item.buffer is not None and self._run_first_channel + item.channel_index == channel:
                view = item.buffer.view
                for start in range(0, len(view), IN_FLIGHT_PIECE_BYTES):
                    yield bytes(view[start : start + IN_FLIGHT_PIECE_BYTES])

    def has_polled(self, gate_position: int, channel_index: int) -> bool:
        """Whether data of a channel was polled that is not processed: what comes behind it must not be looked at before it."""
        channel = self._first_channel[gate_position] + channel_index
        return any(self._run_first_channel + item.channel_index == channel for item in self._run)

    def watch(self, on_available: Callable[[], None]) -> None:
        """Have ``on_available`` called, on any thread, whenever a gate that is empty now gets data; at once if one already has.

        Call it with the same callable each time: a future that is being watched already is not watched again.
        """
        if self._run:
            on_available()
        for index, gate in enumerate(self._gates):
            if gate.is_finished:
                continue
            future = gate.available_future()
            if future.is_done:
                on_available()
            elif self._watched[index] is not future:
                self._watched[index] = future
                future.add_done_callback(on_available)

    def _poll(self, max_items: int) -> BufferOrEvent | None:
        """The next item of the next gate that has one; up to ``max_items`` of it, of which the others become the run."""
        num_gates = len(self._gates)
        for turn in range(num_gates):
            index = (self._next_gate + turn) % num_gates
            gate = self._gates[index]
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
        """The first item that a gate has; if no other gate has any, the others become the run."""
        if any(_has_next(other) for other in self._gates if other is not gate):
            return gate.poll_next()
        found = gate.poll_many(max_items)
        if not found:
            return None
        if len(found) < _LEAST_RUN and found[0].event is None:
            self._num_polls_before_run = _POLLS_AFTER_NO_RUN
        self._run.extend(found)
        return self._run.popleft()

    def _status_without_input(self) -> InputStatus:
        if all(gate.is_finished for gate in self._gates):
            return InputStatus.END_OF_INPUT
        return InputStatus.NOTHING_AVAILABLE

    def _process_next(self, queued: deque[tuple[int, StreamElement]]) -> InputStatus:
        """Hand over one record, or one other element; reads on when there is none."""
        while not queued:
            item = self._poll(1)
            if item is None:
                return self._status_without_input()
            channel = self._run_first_channel + item.channel_index
            if item.event is not None:
                return self._end_data() if self._process_event(channel, item.event) else InputStatus.MORE_AVAILABLE
            assert item.buffer is not None, "a buffer or an event"
            for element in self._elements_of(channel, item.buffer):
                parts = _single_records(element) if isinstance(element, Chunk) else (element,)
                queued.extend((channel, part) for part in parts)
        channel, element = queued.popleft()
        self._process_control(channel, element)
        return InputStatus.MORE_AVAILABLE

    def _end_data(self) -> InputStatus:
        if self.stop_mode is StopMode.NO_DRAIN:
            return InputStatus.STOPPED
        self.advance_to_end_of_event_time()
        self._on_end()
        return InputStatus.END_OF_DATA

    def _process_buffer(self, channel: int, buffer: NetworkBuffer) -> None:
        if buffer.size > _LITTLE_BYTES:
            self._process_elements(channel, self._elements_of(channel, buffer))
            return
        try:
            self._process_elements(channel, self._feed(channel, buffer))
        finally:
            buffer.recycle()

    def _process_elements(self, channel: int, elements: list[StreamElement]) -> None:
        process_chunk = self._head.process_chunk
        for element in elements:
            if type(element) is Chunk:
                process_chunk(element)
            else:
                self._process_control(channel, element)

    def _elements_of(self, channel: int, buffer: NetworkBuffer) -> list[StreamElement]:
        """What the buffer completes; it is recycled."""
        try:
            return self._feed(channel, buffer)
        finally:
            buffer.recycle()

    def _feed(self, channel: int, buffer: NetworkBuffer) -> list[StreamElement]:
        deserializer = self._deserializers[channel]
        if deserializer is None:
            raise RemoteProtocolError(f"{self._name}: data on input channel {channel} after its end of data")
        content = buffer.content
        if isinstance(content, ChunkContent):
            return [content.take()]
        return deserializer.feed(buffer.view)

    def _process_control(self, channel: int, element: StreamElement) -> None:
        match element:
            case Watermark():
                self._pass_on(self._valve.input_watermark(channel, element))
            case WatermarkStatus():
                self._pass_on(self._valve.input_status(channel, element))
            case LatencyMarker():
                self._head.process_latency_marker(element)
            case RecordAttributes():
                pass  # no operator takes them
            case InternalWatermark():
                raise SerdeError(f"{self._name}: input channel {channel} sent {element}, but it reads only one subpartition")
            case Chunk():
                self._head.process_chunk(element)
            case _:
                assert_never(element)

    def _pass_on(self, outputs: Sequence[Watermark | WatermarkStatus]) -> None:
        for output in outputs:
            if isinstance(output, Watermark):
                self._head.process_watermark(output)
            else:
                self._head.process_watermark_status(output)

    def _process_event(self, channel: int, event: Event) -> bool:
        """Whether it was the last end of data."""
        match event:
            case EndOfData(mode=mode):
                return self._end_channel(channel, mode)
            case EndOfPartition():
                if self._deserializers[channel] is not None:
                    raise RemoteProtocolError(f"{self._name}: input channel {channel} ended without an end of data")
                return False
            case _ if self._are_checkpointed and isinstance(event, _LOOKED_AFTER):
                return False
            case _:
                raise RemoteProtocolError(f"{self._name}: input channel {channel} sent {event}, which tasks do not know yet")

    def _end_channel(self, channel: int, mode: StopMode) -> bool:
        deserializer = self._deserializers[channel]
        if deserializer is None:
            raise RemoteProtocolError(f"{self._name}: a second end of data on input channel {channel}")
        if deserializer.has_partial:
            raise SerdeError(f"{self._name}: input channel {channel} ended in the middle of an element")
        self._deserializers[channel] = None
        if mode is StopMode.NO_DRAIN:
            self.stop_mode = StopMode.NO_DRAIN
        self._num_channels_with_data -= 1
        index = max(i for i, first in enumerate(self._first_channel) if first <= channel)
        # At once, not when all channels are through: the producer waits for it (CheckpointedInputGate).
        self._gates[index].acknowledge_all_records_processed(channel - self._first_channel[index])
        return self._num_channels_with_data == 0


def _has_next(gate: ReadableGate) -> bool:
    return not gate.is_finished and gate.available_future().is_done


def _single_records(chunk: Chunk) -> list[Chunk]:
    if chunk.timestamps is None:
        return [Chunk([value]) for value in chunk.values]
    return [Chunk([value], [timestamp]) for value, timestamp in zip(chunk.values, chunk.timestamps, strict=True)]
