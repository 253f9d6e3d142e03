"""Keeps its own books of the messages of two handlers, and compares them with theirs.

Invariants: I2 granted == used + outstanding, and both sides agree but for what is under way; I3 no data buffer without
            credit; I8 nothing behind the end of a partition.
Units:      credit in buffers.
"""

from dataclasses import dataclass, field

from netstack.buffer.network_buffer import FREEING_RECYCLER, NetworkBuffer
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.ids import InputChannelID
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import OutboundBuffer, OutboundRun
from netstack.wire.message_bytes import BUFFER_RESPONSE_HEADER
from netstack.wire.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    BufferRun,
    CancelPartitionRequest,
    DataType,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
)


@dataclass(slots=True)
class Flow:
    """The ledger's counts for one receiver on one connection."""

    # Of the client's messages, when written and when read.
    num_granted_written: int = 0
    num_granted_read: int = 0
    has_no_exclusive: bool = False
    is_blocked: bool = False  # the receiver got a blocking event and did not resume
    num_resumes: int = 0  # on their way
    is_cancelled: bool = False
    # Of the server's messages, when written and when read.
    num_data_written: int = 0
    num_data_read: int = 0
    num_written: int = 0
    num_read: int = 0
    num_unended: int = 1  # subpartitions whose end was not written
    has_failed: bool = False


@dataclass(slots=True)
class Ledger:
    channels: dict[InputChannelID, RemoteInputChannel] = field(default_factory=dict)
    flows: dict[InputChannelID, Flow] = field(default_factory=dict)
    num_answer_bytes: int = 0  # at most; of the server's messages that do not wait for the socket
    # The first one; raised by ``check``, because a pipeline catches what its handlers raise.
    violation: str | None = None

    def flow(self, receiver: InputChannelID) -> Flow:
        """The flow of ``receiver``, a new one if need be."""
        flow = self.flows.get(receiver)
        if flow is None:
            flow = self.flows[receiver] = Flow()
        return flow

    def require(self, is_kept: bool, text: str) -> None:
        """Remember ``text`` unless the rule is kept."""
        if not is_kept and self.violation is None:
            self.violation = text

    def note_direct(self, frame: bytes) -> None:
        """Note one data buffer that goes past the loop, whole or with its rest behind it."""
        _, _, _, receiver, _, _, sequence_number, _, data_type, _, _ = BUFFER_RESPONSE_HEADER.unpack_from(frame)
        flow = self.flow(InputChannelID(receiver))
        self.require(data_type == DataType.DATA_BUFFER, f"{receiver.hex()}: data type {data_type} went past the loop")
        self.require(
            sequence_number == flow.num_written, f"number {sequence_number} is sent as number {flow.num_written}"
        )
        self.require(
            flow.num_data_written < flow.num_granted_read,
            f"{receiver.hex()}: a buffer without credit went past the loop",
        )
        flow.num_written += 1
        flow.num_data_written += 1

    def check(self, queue: PartitionRequestQueue) -> None:
        """Check I2 for every flow that nobody has ended yet."""
        assert self.violation is None, self.violation
        for receiver, flow in self.flows.items():
            channel = self.channels.get(receiver)
            if channel is None or flow.is_cancelled or flow.has_failed or channel.is_released:
                continue
            if flow.has_no_exclusive and (flow.is_blocked or flow.num_resumes):
                continue  # the receiver forgot all credit, the sender does so when it reads of the resumption
            granted = channel.buffer_manager.num_granted
            assert granted == flow.num_granted_written, (
                f"{channel!r} granted {granted}, {flow.num_granted_written} were written"
            )
            spent = granted - channel.buffer_manager.num_credits_available
            assert 0 <= spent - flow.num_data_read <= 1, (
                f"{channel!r} spent {spent}, {flow.num_data_read} buffers were read"
            )
            reader = queue.reader(receiver)
            if reader is None or reader.is_released:
                continue
            credit = reader.credit
            assert credit.granted == flow.num_granted_read, (
                f"{reader!r} has {credit.granted}, {flow.num_granted_read} were read"
            )
            assert credit.spent == flow.num_data_written, (
                f"{reader!r} spent {credit.spent}, {flow.num_data_written} were written"
            )
            assert flow.num_granted_read <= flow.num_granted_written, "credit out of nothing"
            assert flow.num_data_read <= flow.num_data_written, "data out of nothing"


class ClientTap(ChannelHandler):
    """A tap between the codec and the client's handler."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def use(self, ledger: Ledger) -> None:
        """Write into this ledger from now on."""
        self._ledger = ledger

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        match message:
            case AddCredit(receiver, credit):
                self._ledger.flow(receiver).num_granted_written += credit
            case PartitionRequest():
                flow = self._ledger.flow(message.receiver)
                flow.num_granted_written = message.credit  # also when it asks once more
                flow.has_no_exclusive = message.credit == 0
                flow.has_failed = False
            case ResumeConsumption(receiver):
                flow = self._ledger.flow(receiver)
                flow.num_resumes += 1
                flow.is_blocked = False
                if flow.has_no_exclusive:
                    flow.num_granted_written = flow.num_data_read
            case CancelPartitionRequest(receiver):
                self._ledger.flow(receiver).is_cancelled = True
            case _:
                pass
        ctx.write(message)

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        if type(message) is BufferResponse:
            flow = self._ledger.flow(message.receiver)
            if message.sequence_number != flow.num_read:
                self._ledger.require(False, f"{message} arrived as number {flow.num_read}")
            flow.num_read += 1
            flow.num_data_read += message.data_type.is_buffer
            flow.is_blocked = flow.is_blocked or message.data_type.is_blocking_upstream
        elif type(message) is BufferRun:
            flow = self._ledger.flow(message.receiver)
            if message.sequence_number != flow.num_read:
                self._ledger.require(False, f"{message} arrived as number {flow.num_read}")
            flow.num_read += len(message.buffers)
            flow.num_data_read += len(message.buffers)
        elif isinstance(message, ErrorResponse) and message.receiver is not None:
            self._ledger.flow(message.receiver).has_failed = True
        ctx.fire_channel_read(message)


class ServerTap(ChannelHandler):
    """A tap between the codec and the server's handlers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        match message:
            case AddCredit(receiver, credit):
                self._ledger.flow(receiver).num_granted_read += credit
            case PartitionRequest():
                flow = self._ledger.flow(message.receiver)
                flow.num_granted_read = message.credit
                flow.num_unended = message.last_subpartition - message.first_subpartition + 1
            case ResumeConsumption(receiver):
                flow = self._ledger.flow(receiver)
                flow.num_resumes -= 1
                if flow.has_no_exclusive:
                    flow.num_granted_read = flow.num_data_written
            case _:
                pass
        ctx.fire_channel_read(message)

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, ErrorResponse):
                self._ledger.num_answer_bytes += 1024
            elif isinstance(each, BacklogAnnouncement):
                self._ledger.num_answer_bytes += 64
            elif type(each) is OutboundBuffer:
                self._count(each, self._ledger.flow(each.receiver))
            elif type(each) is OutboundRun:
                for position, segment in enumerate(each.segments):
                    backlog = each.backlog + len(each.segments) - 1 - position
                    buffer = NetworkBuffer(segment, FREEING_RECYCLER, len(segment.view), DataType.DATA_BUFFER)
                    single = OutboundBuffer(
                        each.receiver, each.subpartition, each.sequence_number + position, backlog, buffer
                    )
                    self._count(single, self._ledger.flow(each.receiver))
                    buffer.lease.abandon()
        ctx.write(message)

    def _count(self, message: OutboundBuffer, flow: Flow) -> None:
        require = self._ledger.require
        data_type = message.buffer.data_type
        has_ended = not flow.num_unended
        if has_ended or message.sequence_number != flow.num_written or message.backlog < 0:
            require(not has_ended, f"{message} is sent behind the end of its partition")
            require(message.sequence_number == flow.num_written, f"{message} is sent as number {flow.num_written}")
            require(message.backlog >= 0, f"{message} has a negative backlog")
        flow.num_written += 1
        flow.num_unended -= data_type is DataType.END_OF_PARTITION
        if data_type.is_buffer:
            flow.num_data_written += 1
            if flow.num_data_written > flow.num_granted_read:
                require(
                    False,
                    f"{message} is sent without credit: number {flow.num_data_written} of {flow.num_granted_read}",
                )
