"""Doubles that the tests of gates and channels share."""

import threading

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import input_channel_id
from netstack.wire.events import Event, event_data_type, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    BufferResponse,
    ChannelOrder,
    DataType,
    NewBufferSize,
    ResumeConsumption,
    TaskEventRequest,
)
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S


def is_unlocked(channel: RemoteInputChannel) -> bool:
    """Whether another thread can call a method that needs the channel's lock, so that no thread holds it."""
    answered = threading.Event()

    def ask() -> None:
        assert channel.buffer_manager.num_credits_available >= 0
        answered.set()

    thread = threading.Thread(target=ask)
    thread.start()
    return answered.wait(PATIENCE_S)


class RecordingGate(SingleInputGate):
    """Remembers which channels said that they have data."""

    def __init__(self) -> None:
        super().__init__("reduce (1/2)")
        self.notified: list[InputChannel] = []
        self.priority: list[int | None] = []
        self.checked: list[InputChannel] = []

    def enqueue_channel(self, channel: InputChannel) -> None:
        self.notify_channel_non_empty(channel)

    def notify_channel_non_empty(self, channel: InputChannel) -> None:
        self.notified.append(channel)

    def notify_priority_event(self, channel: InputChannel, sequence_number: int) -> None:
        self.priority.append(sequence_number)

    def notify_priority_event_force(self, channel: InputChannel) -> None:
        self.priority.append(None)

    def trigger_partition_state_check(self, channel: InputChannel) -> None:
        self.checked.append(channel)


class RecordingClient:
    """The connection as the channel sees it: remembers the orders."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, int]] = []
        self.sizes: list[int] = []
        self.task_events: list[bytes] = []

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        self.orders.append(("request", channel.index))

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        match message:
            case None:
                self.credit(channel)
            case NewBufferSize(_, size_bytes):
                self.orders.append(("size", channel.index))
                self.sizes.append(size_bytes)
            case ResumeConsumption():
                self.orders.append(("resume", channel.index))
            case TaskEventRequest(event):
                self.orders.append(("task event", channel.index))
                self.task_events.append(event)
            case AckAllUserRecordsProcessed():
                self.orders.append(("acknowledge", channel.index))

    def credit(self, channel: RemoteInputChannel) -> None:
        """Record the order to announce the channel's credit."""
        self.orders.append(("credit", channel.index))

    def cancel(self, channel: RemoteInputChannel) -> None:
        self.orders.append(("cancel", channel.index))


def remote_channel(
    gate: SingleInputGate,
    client: RecordingClient,
    network: NetworkBufferPool,
    *,
    index: int = 0,
    num_segments: int = 2,
    is_requested: bool = True,
) -> RemoteInputChannel:
    channel = RemoteInputChannel(gate, index, partition_id_of(index), 0, input_channel_id(index, 0), client)
    channel.assign_exclusive_segments(network, num_segments)
    if is_requested:
        channel.request_subpartition()
    return channel


def room_of(channel: RemoteInputChannel) -> NetworkBuffer | None:
    """Return a buffer for one data buffer of the sender, whose credit is spent; None without credit."""
    return channel.allocate(channel.max_buffer_bytes, DataType.DATA_BUFFER, is_compressed=False)


def data(
    channel: RemoteInputChannel, sequence_number: int, content: bytes = b"data", backlog: int = 0
) -> BufferResponse:
    """Return a data buffer on its way to ``channel``, which has given room for it."""
    return _response(channel, sequence_number, content, DataType.DATA_BUFFER, backlog)


def event(channel: RemoteInputChannel, sequence_number: int, what: Event) -> BufferResponse:
    """Return an event on its way to ``channel``."""
    return _response(channel, sequence_number, serialize_event(what), event_data_type(what), 0)


def _response(
    channel: RemoteInputChannel, sequence_number: int, content: bytes, data_type: DataType, backlog: int
) -> BufferResponse:
    buffer = channel.allocate(len(content), data_type, is_compressed=False)
    if buffer is not None:
        buffer.view[:] = content
    return BufferResponse(channel.channel_id, 0, sequence_number, backlog, data_type, False, (), buffer)
