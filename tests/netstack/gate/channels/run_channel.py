"""A remote channel that gets runs, without a network."""

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.buffer_manager import BufferManager
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import input_channel_id
from netstack.partition.channel_state import InputChannelInfo
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, Event
from tests.netstack.gate.doubles import RecordingClient, RecordingGate, event
from tests.netstack.gate.state_writer import RecordingStateWriter
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.rigs import Ending

SEGMENT = 16
MAX = 2**31 - 1
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


def num_own_and_floating(manager: BufferManager) -> tuple[int, int]:
    """Return how many buffers of its own a channel has free, and how many floating ones."""
    return len(manager._exclusive), len(manager._floating)


class Fixture(Ending):
    """A channel of eight exclusive and at most four floating buffers."""

    def __init__(self, num_exclusive: int = 8, *, first: int = 0, gate: SingleInputGate | None = None) -> None:
        super().__init__()
        self.network = NetworkBufferPool(16, SEGMENT)
        self.pool = self.network.create_buffer_pool(owner="gate", num_required=1, max_buffers=4)
        self.gate = RecordingGate() if gate is None else gate
        self.client = RecordingClient()
        self.writer = RecordingStateWriter()
        self.channel = RemoteInputChannel(self.gate, 0, partition_id_of(), 0, input_channel_id(1, 2), self.client)
        self.channel.set_channel_state_writer(self.writer, InputChannelInfo(3, 0))
        self.channel.assign_exclusive_segments(self.network, num_exclusive)
        self.channel.expected_sequence_number = first
        self.channel.buffer_manager.pool = self.pool
        if gate is not None:
            gate.add_channel(self.channel)
            gate.request_partitions()
        else:
            self.channel.request_subpartition()

    @property
    def notified(self) -> int:
        assert isinstance(self.gate, RecordingGate)
        return len(self.gate.notified)

    def buffers(self, num_buffers: int) -> list[NetworkBuffer]:
        found = self.channel.allocate_run(4, num_buffers)
        assert len(found) == num_buffers
        for buffer in found:
            buffer.view[:] = b"data"
        return found

    def receive(self, sequence_number: int, num_buffers: int, backlog: int = 0) -> None:
        self.channel.on_run(self.buffers(num_buffers), sequence_number, backlog)

    def receive_event(self, sequence_number: int, what: Event) -> None:
        self.channel.on_response(event(self.channel, sequence_number, what))

    def numbers(self) -> list[int]:
        return [number for _, number in self.channel.received]

    def take(self, num_buffers: int = 100) -> int:
        """Poll so many data buffers, and recycle them."""
        found, _ = self.channel.next_data(num_buffers)
        recycle_all(found)
        self.channel.check_invariants()
        return len(found)

    def give_back(self) -> None:
        self.channel.check_invariants()
        self.channel.release()
        self.writer.recycle()
        self.channel.check_invariants()
        self.pool.destroy()
        self.network.check_invariants()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"
        self.network.destroy()
