"""A gate of remote channels, without a network."""

from collections.abc import Callable

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    Event,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import BufferResponse
from tests.netstack.gate.doubles import RecordingClient, data, event, remote_channel

SEGMENT = 64
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


class RemoteGate:
    """A gate of remote channels."""

    def __init__(self, num_remote: int = 2, gate: SingleInputGate | None = None, num_segments: int = 4) -> None:
        self.network = NetworkBufferPool(64, SEGMENT)
        self.client = RecordingClient()
        self.gate = SingleInputGate("reduce (1/2)") if gate is None else gate
        self.numbers: dict[int, int] = {}
        for index in range(num_remote):
            self.gate.add_channel(self.remote(index, num_segments=num_segments))

    def remote(self, index: int, num_segments: int = 4) -> RemoteInputChannel:
        return remote_channel(
            self.gate, self.client, self.network, index=index, num_segments=num_segments, is_requested=False
        )

    def receive(self, index: int, content: bytes = b"data", backlog: int = 0) -> None:
        self._receive(index, lambda channel, number: data(channel, number, content, backlog))

    def receive_event(self, index: int, what: Event) -> None:
        self._receive(index, lambda channel, number: event(channel, number, what))

    def receive_priority(self, index: int, what: Event = UNALIGNED) -> None:
        buffer = NetworkBuffer.unpooled(serialize_event(what), event_data_type(what, has_priority=True))
        self._receive(
            index,
            lambda channel, number: BufferResponse(
                channel.channel_id, 0, number, 0, buffer.data_type, False, (), buffer
            ),
        )

    def _receive(self, index: int, response: Callable[[RemoteInputChannel, int], BufferResponse]) -> None:
        channel = self.gate.channels[index]
        assert isinstance(channel, RemoteInputChannel)
        number = self.numbers.get(index, 0)
        channel.on_response(response(channel, number))
        self.numbers[index] = number + 1

    def poll(self) -> BufferOrEvent:
        found = self.gate.poll_next()
        assert found is not None, f"nothing in {self.gate!r}"
        if found.buffer is not None:
            found.buffer.recycle()
        self.gate.check_invariants()
        return found

    def end(self) -> None:
        self.gate.check_invariants()
        self.gate.close()
        self.gate.check_invariants()
        self.network.check_invariants()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"


def kinds(found: list[BufferOrEvent]) -> list[tuple[int, bool, bool, bool]]:
    """Return, of each item, the channel, whether it is an event, and whether more, and more with priority, follow."""
    return [(one.channel_index, one.event is not None, one.more_available, one.more_priority_events) for one in found]
