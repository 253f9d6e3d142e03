"""A server's pipeline over an embedded channel, with real partitions behind it."""

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.ids import (
    InputChannelID,
    ResultPartitionID,
    execution_attempt_id,
    input_channel_id,
    intermediate_partition_id,
)
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.message_codec import MessageEncoder
from netstack.wire.messages import BufferResponse, ErrorResponse, PartitionRequest
from tests.netstack.rigs import Ending
from tests.netstack.wire.samples import FedDecoder, HeapAllocator

SEGMENT = 1024
CONFIG = NetstackConfig(
    segment_size_bytes=SEGMENT,
    network_memory_bytes=256 * SEGMENT,
    max_write_batch_bytes=16 * SEGMENT,
    max_gather_bytes=1,
)


def partition_id_of(number: int = 0) -> ResultPartitionID:
    return ResultPartitionID(
        intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
    )


def receiver_of(number: int) -> InputChannelID:
    return input_channel_id(number, 0)


def request(number: int = 0, *, subpartition: int = 0, receiver: int = 1, credit: int = 2) -> PartitionRequest:
    return PartitionRequest(partition_id_of(number), subpartition, subpartition, receiver_of(receiver), credit)


class ServerSide(Ending):
    """Encoder, request handler and queue, in the seed's order; the decoder is left out, messages go in as objects."""

    def __init__(self, config: NetstackConfig = CONFIG, channel_type: type[EmbeddedChannel] = EmbeddedChannel) -> None:
        super().__init__()
        segment_size = config.segment_size_bytes
        self.loop = EmbeddedEventLoop()
        self.pool = NetworkBufferPool(config.num_segments, segment_size)
        self.manager = ResultPartitionManager()
        self.queue = PartitionRequestQueue(config, self.loop)
        handler = PartitionRequestServerHandler(config, self.loop, self.manager, self.queue)
        self.channel = channel_type(MessageEncoder(), handler, self.queue, config=config, event_loop=self.loop)
        self._decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=4 * segment_size)

    def partition(self, number: int = 0, num_subpartitions: int = 1) -> ResultPartition:
        pool = self.pool.create_buffer_pool(owner=f"p{number}", num_required=num_subpartitions + 1, max_buffers=64)
        partition = ResultPartition(partition_id_of(number), num_subpartitions, pool, f"p{number}")
        self.manager.register(partition)
        return partition

    def receive(self, message: object) -> None:
        self.channel.write_inbound(message)
        self.loop.run_pending()

    def sent(self) -> list[BufferResponse | ErrorResponse]:
        """Return everything flushed so far; the pretended kernel takes all of it until nothing more comes."""
        found: list[BufferResponse | ErrorResponse] = []
        while True:
            self.loop.run_pending()
            self.channel.flush_outbound()
            data = self.channel.read_all_outbound()
            if not data:
                return found
            for message in self._decoder.feed(data):
                assert isinstance(message, BufferResponse | ErrorResponse)
                found.append(message)

    def only_error(self) -> ErrorResponse:
        """Return the only message that was sent."""
        [error] = self.sent()
        assert isinstance(error, ErrorResponse)
        return error

    def data(self) -> list[tuple[int, int]]:
        """Return receiver number and sequence number of every data buffer that was sent."""
        responses = [each for each in self.sent() if isinstance(each, BufferResponse)]
        return [
            (int.from_bytes(each.receiver[:8], "big"), each.sequence_number)
            for each in responses
            if each.data_type.is_buffer
        ]

    def give_back(self) -> None:
        self.channel.close()
        self.loop.run_pending()
        self.manager.shutdown()
        self.loop.run_pending()
        assert self.pool.num_available == self.pool.num_total, "every segment is back"
        self.pool.destroy()
        self.loop.close()


def fill(partition: ResultPartition, num_buffers: int, subpartition: int = 0) -> None:
    """Write ``num_buffers`` full buffers; the last one is readable, too."""
    for _ in range(num_buffers):
        partition.emit_record(bytes(SEGMENT), subpartition)
    partition.flush(subpartition)
