"""The data that the channels of a gate keep for unaligned checkpoints."""

import pytest

from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.channel_state import DecompressedInput, InputChannelInfo
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions
from netstack.wire.messages import DataType
from tests.netstack.gate.doubles import RecordingClient, data, remote_channel
from tests.netstack.gate.state_writer import RecordingStateWriter
from tests.netstack.partition.doubles import partition_id_of

BARRIER = CheckpointBarrier(1, 2, CheckpointOptions(alignment=Alignment.UNALIGNED))


def test_every_channel_keeps_its_data_under_gate_and_index() -> None:
    """Old channels, later ones, and those that replace an unknown channel all keep their data under gate and index."""
    gate, client, network, writer = (
        SingleInputGate("task"),
        RecordingClient(),
        NetworkBufferPool(8, 64),
        RecordingStateWriter(),
    )
    gate.add_channel(UnknownInputChannel(gate, 0, partition_id_of(), 0))
    early = remote_channel(gate, client, network, index=1, is_requested=False)
    late = remote_channel(gate, client, network, index=2, is_requested=False)
    replacing = remote_channel(gate, client, network, index=0, is_requested=False)

    gate.add_channel(early)
    gate.set_channel_state_writer(writer, 5)
    gate.add_channel(late)
    assert gate.update_channel(replacing)
    gate.request_partitions()
    for channel in (replacing, early, late):
        channel.checkpoint_started(BARRIER)
        channel.on_response(data(channel, 0))

    assert writer.persisted == [(1, InputChannelInfo(5, index), [4]) for index in range(3)]
    writer.recycle()
    gate.close()
    assert network.num_available == network.num_total


def test_after_the_request_it_is_too_late() -> None:
    """A writer is refused after the request, since data in flight might not be kept."""
    gate = SingleInputGate("task")
    gate.request_partitions()

    with pytest.raises(LocalProtocolError, match="before the request"):
        gate.set_channel_state_writer(RecordingStateWriter(), 0)


def test_data_in_flight_is_kept_as_it_was_before_its_compression() -> None:
    """A compressed buffer is persisted decompressed; a buffer that was not compressed is persisted as it is."""
    compressor, writer, network = BufferCompressor(), RecordingStateWriter(), NetworkBufferPool(8, 64)
    gate = SingleInputGate("task", decompressor=BufferDecompressor(1000))
    channel = remote_channel(gate, RecordingClient(), network, is_requested=False)
    gate.add_channel(channel)
    gate.set_channel_state_writer(writer, 0)
    gate.request_partitions()
    compressed = compressor.compress(NetworkBuffer.unpooled(b"a" * 500, DataType.DATA_BUFFER))
    assert compressed.is_compressed

    channel.checkpoint_started(BARRIER)
    channel.on_buffer(compressed, 0, 0)
    channel.on_buffer(NetworkBuffer.unpooled(b"b", DataType.DATA_BUFFER), 1, 0)

    assert [bytes(buffer.view) for buffer in writer.kept] == [b"a" * 500, b"b"]
    writer.recycle()
    gate.close()


def test_a_broken_buffer_is_an_error_that_leaks_nothing() -> None:
    """All buffers of the failed call are recycled, and none is written."""
    writer, network = RecordingStateWriter(), NetworkBufferPool(4, 64)
    pool = network.create_buffer_pool(owner="test", num_required=1, max_buffers=4)
    buffers = []
    for is_compressed in (False, True, False):
        segment = pool.request_segment_nowait()
        assert segment is not None
        buffers.append(NetworkBuffer(segment, pool, 3, DataType.DATA_BUFFER, is_compressed=is_compressed))

    with pytest.raises(RemoteProtocolError, match="no header"):
        DecompressedInput(writer, BufferDecompressor(64).decompress).add_input_data(1, InputChannelInfo(0, 0), buffers)

    assert writer.kept == []
    pool.destroy()
    assert network.num_available == 4
