"""The end of a client's pipeline over an embedded channel, with gates of one channel each."""

from collections.abc import Callable
from typing import Any

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig, SecurityConfig
from netstack.gate.channels.input_channel import PartitionStateChecker, ProducerState
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import ResultPartitionID
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.wire.messages import ChannelOrder, DataType
from tests.netstack.handlers.server_side import partition_id_of, receiver_of
from tests.netstack.rigs import Ending
from tests.netstack.wire.samples import header_of_buffer

SEGMENT = 1024
CONFIG = NetstackConfig(segment_size_bytes=SEGMENT, network_memory_bytes=64 * SEGMENT, security=SecurityConfig.none())
EXCLUSIVE = 2


class ScriptedStateChecker:
    """Answers at once, with the given states."""

    def __init__(self, *answers: ProducerState) -> None:
        self.answers = list(answers)
        self.asked: list[ResultPartitionID] = []

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        self.asked.append(partition_id)
        on_result(self.answers.pop(0))


class Client(Ending):
    """The handler at the end of an embedded pipeline, with gates that hold one channel each.

    ``loop``: orders of the channels take the hop to it, as in production, and are carried out by ``run_pending``; None:
        at once.
    """

    def __init__(self, loop: EmbeddedEventLoop | None = None) -> None:
        super().__init__()
        self.loop = loop
        self.pool = NetworkBufferPool(CONFIG.num_segments, SEGMENT)
        self.handler = CreditBasedPartitionRequestClientHandler()
        self.connection = EmbeddedChannel(MessageDecoder(CONFIG, self.handler), self.handler, config=CONFIG)
        self.gates: list[SingleInputGate] = []
        self.is_deaf = False

    # The channels' PartitionRequestClient.

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        self.handler.request_subpartition(channel)

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        if self.loop is None or message is not None:
            self.handler.order(channel, message)
        else:
            self.loop.execute_threadsafe(self.handler.order, channel, None)

    def cancel(self, channel: RemoteInputChannel) -> None:
        if not self.is_deaf:
            self.handler.cancel(channel)

    def open_gate(
        self,
        number: int = 1,
        *,
        num_floating: int = 0,
        num_exclusive: int = EXCLUSIVE,
        state_checker: PartitionStateChecker | None = None,
        **options: Any,
    ) -> SingleInputGate:
        """Return a gate with one channel, which was requested."""
        gate, _ = self.open_channels(
            number, num_floating=num_floating, num_exclusive=num_exclusive, state_checker=state_checker, **options
        )
        return gate

    def open_channels(
        self,
        *numbers: int,
        num_floating: int = 0,
        num_exclusive: int = EXCLUSIVE,
        state_checker: PartitionStateChecker | None = None,
        **options: Any,
    ) -> tuple[SingleInputGate, list[RemoteInputChannel]]:
        """Return a gate with a channel for each number, with the ``options`` of channels; they were requested."""
        gate = SingleInputGate(f"consumer {numbers[0]}", state_checker=state_checker)
        channels = []
        for index, number in enumerate(numbers):
            channel = RemoteInputChannel(gate, index, partition_id_of(number), 0, receiver_of(number), self, **options)
            channel.assign_exclusive_segments(self.pool, num_exclusive)
            gate.add_channel(channel)
            channels.append(channel)
        if num_floating:
            pool = self.pool.create_buffer_pool(owner=gate.owner, num_required=num_floating, max_buffers=num_floating)
            gate.set_buffer_pool(pool)
        gate.request_partitions()
        self.gates.append(gate)
        return gate, channels

    def block(self) -> None:
        """Fill the socket: nothing is written until ``unblock``."""
        self.connection.transport_write(OutboundFrame((bytes(2 * SEGMENT + 1),), None))
        assert not self.connection.is_writable

    def unblock(self) -> None:
        """Let the kernel take what filled the socket."""
        self.connection.flush_outbound()
        assert isinstance(self.connection.read_outbound(), bytes)

    def sent(self) -> list[object]:
        """Return the messages that were written and flushed since the last call."""
        found = []
        while (message := self.connection.read_outbound()) is not None:
            found.append(message)
        return found

    def give_back(self) -> None:
        for gate in self.gates:
            gate.close()
        self.connection.close()
        assert self.pool.num_available == self.pool.num_total, "every segment is back"
        self.pool.destroy()


def response(
    number: int = 1,
    sequence_number: int = 0,
    payload: bytes = b"data",
    data_type: DataType = DataType.DATA_BUFFER,
    *,
    backlog: int = 0,
    is_compressed: bool = False,
) -> bytes:
    """Return the frame of a ``BufferResponse``."""
    header = header_of_buffer(receiver_of(number), 0, sequence_number, backlog, data_type, is_compressed, len(payload))
    return header + payload


def run_of(number: int, count: int, first: int = 0, payload: bytes = b"data") -> bytes:
    """Return frames of data buffers under consecutive numbers."""
    return b"".join(response(number, first + position, payload) for position in range(count))


def take(gate: SingleInputGate) -> bytes:
    found = gate.poll_next()
    assert found is not None
    assert found.buffer is not None
    content = bytes(found.buffer.view)
    found.buffer.recycle()
    return content
