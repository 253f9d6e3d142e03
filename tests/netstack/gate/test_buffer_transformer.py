"""``SingleInputGate``: ends of data and compressed buffers, as the task sees them."""

import pytest

from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, NetworkBuffer
from netstack.errors import RemoteProtocolError
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import EndOfDataStatus
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import EndOfData, StopMode
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.remote_gate import SEGMENT, RemoteGate


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((StopMode.DRAIN, StopMode.NO_DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.NO_DRAIN, StopMode.DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.DRAIN, StopMode.DRAIN), EndOfDataStatus.DRAINED),
    ],
)
def test_the_drain_flag(it: RemoteGate, modes: tuple[StopMode, StopMode], expected: EndOfDataStatus) -> None:
    """SingleInputGateTest: testDrainFlagComputation: only all of them together drain."""
    seen = []
    for index, mode in enumerate(modes):
        seen.append(it.gate.end_of_data_status)
        it.receive_event(index, EndOfData(mode))
        it.poll()

    assert (seen, it.gate.end_of_data_status) == ([EndOfDataStatus.NOT_END_OF_DATA] * 2, expected)


def compressed(it: RemoteGate, content: bytes) -> None:
    """Deliver a compressed buffer on channel 0."""
    smaller = BufferCompressor().compress(NetworkBuffer.unpooled(content, DataType.DATA_BUFFER))
    assert smaller.is_compressed
    channel = it.gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    buffer = channel.allocate(smaller.size, DataType.DATA_BUFFER, is_compressed=True)
    assert buffer is not None
    buffer.view[:] = smaller.view
    channel.on_response(BufferResponse(channel.channel_id, 0, 0, 0, DataType.DATA_BUFFER, True, (), buffer))


def test_compressed_buffers_are_restored() -> None:
    """SingleInputGateTest: testGetCompressedBuffer: the task sees the original, the credit is back at once."""
    it = RemoteGate(gate=SingleInputGate("reduce", decompressor=BufferDecompressor(SEGMENT)))
    it.gate.request_partitions()
    compressed(it, b"a" * SEGMENT)

    found = it.gate.poll_next()

    assert found is not None
    assert found.buffer is not None
    assert (bytes(found.buffer.view), found.size, found.buffer.is_compressed) == (b"a" * SEGMENT, SEGMENT, False)
    found.buffer.recycle()
    it.end()


def test_compressed_buffers_without_a_decompressor_are_an_error(it: RemoteGate) -> None:
    """A compressed buffer is an error without a decompressor, and is recycled."""
    compressed(it, b"a" * SEGMENT)

    with pytest.raises(RemoteProtocolError, match="a compressed buffer, but compression is off here"):
        it.gate.poll_next()
