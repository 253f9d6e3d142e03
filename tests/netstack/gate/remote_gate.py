"""A gate of remote channels, without a network."""

from collections import Counter
from collections.abc import Callable

from netstack.buffer.network_buffer import BufferCompressor, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    Event,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, data, event, remote_channel
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.rigs import Ending

SEGMENT = 64
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


class RemoteGate(Ending):
    """A gate whose first channels are remote, and whose others read partitions of this process."""

    def __init__(
        self, num_remote: int = 2, num_local: int = 0, *, gate: SingleInputGate | None = None, num_segments: int = 4
    ) -> None:
        super().__init__()
        self.network = NetworkBufferPool(128, SEGMENT)
        self.client = RecordingClient()
        self.manager = ResultPartitionManager()
        self.gate = SingleInputGate("reduce (1/2)") if gate is None else gate
        self.partitions: list[ResultPartition] = []
        self.numbers: Counter[int] = Counter()
        for index in range(num_remote):
            self.gate.add_channel(self.remote(index, num_segments=num_segments))
        for index in range(num_remote, num_remote + num_local):
            partition = self.partition(index)
            self.manager.register(partition)
            self.partitions.append(partition)
            self.gate.add_channel(LocalInputChannel(self.gate, index, partition.partition_id, 0, self.manager))

    def partition(self, number: int) -> ResultPartition:
        pool = self.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=8)
        return ResultPartition(partition_id_of(number), 1, pool, "producer")

    def remote(self, index: int, num_segments: int = 4) -> RemoteInputChannel:
        return remote_channel(
            self.gate, self.client, self.network, index=index, num_segments=num_segments, is_requested=False
        )

    def channel(self, index: int) -> RemoteInputChannel:
        channel = self.gate.channels[index]
        assert isinstance(channel, RemoteInputChannel)
        return channel

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

    def receive_compressed(self, index: int, content: bytes) -> None:
        buffer = self.channel(index).allocate(len(content), DataType.DATA_BUFFER, is_compressed=True)
        assert buffer is not None
        buffer.view[:] = content
        self._receive(
            index,
            lambda channel, number: BufferResponse(
                channel.channel_id, 0, number, 0, DataType.DATA_BUFFER, True, (), buffer
            ),
        )

    def _receive(self, index: int, response: Callable[[RemoteInputChannel, int], BufferResponse]) -> None:
        channel = self.channel(index)
        channel.on_response(response(channel, self.numbers[index]))
        self.numbers[index] += 1

    def poll(self) -> BufferOrEvent:
        found = self.gate.poll_next()
        assert found is not None, f"nothing in {self.gate!r}"
        if found.buffer is not None:
            found.buffer.recycle()
        self.gate.check_invariants()
        return found

    def give_back(self) -> None:
        self.gate.check_invariants()
        self.gate.close()
        self.gate.check_invariants()
        for partition in self.partitions:
            partition.close()
        self.network.check_invariants()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"


def requested_gate(num_remote: int = 2, num_local: int = 0) -> RemoteGate:
    it = RemoteGate(num_remote, num_local)
    it.gate.request_partitions()
    return it


def compressed(content: bytes) -> bytes:
    """Return the bytes of ``content`` as a compressed buffer has them."""
    smaller = BufferCompressor().compress(NetworkBuffer.unpooled(content, DataType.DATA_BUFFER))
    assert smaller.is_compressed
    return bytes(smaller.view)


def kinds(found: list[BufferOrEvent]) -> list[tuple[int, bool, bool, bool]]:
    """Return, of each item, the channel, whether it is an event, and whether more, and more with priority, follow."""
    return [(one.channel_index, one.event is not None, one.more_available, one.more_priority_events) for one in found]
