"""``Lifecycle``: every pair of states, and what channels of each kind do with them."""

from collections.abc import Iterator

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectionLostError, LocalProtocolError, ResourceClosedError
from netstack.gate.channels.input_channel import InputChannel, Lifecycle
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import CheckpointBarrier, OtherEvent
from tests.netstack.gate.doubles import RecordingClient, RecordingGate, remote_channel
from tests.netstack.partition.doubles import partition_id_of

CREATED, REQUESTED, RELEASED = Lifecycle


@pytest.fixture(params=["local", "remote"])
def channel(request: pytest.FixtureRequest) -> Iterator[InputChannel]:
    """A channel that can be requested, and was not yet."""
    network = NetworkBufferPool(2, 64)
    gate = RecordingGate()
    if request.param == "local":
        made: InputChannel = LocalInputChannel(gate, 0, partition_id_of(), 0, ResultPartitionManager())
    else:
        made = remote_channel(gate, RecordingClient(), network, is_requested=False)
    yield made
    made.release()
    network.destroy()


def test_a_channel_is_requested_and_released(channel: InputChannel) -> None:
    """A second request or release changes nothing, nor does another request behind the release."""
    seen = [channel.lifecycle]

    for step in (
        channel.request_subpartition,
        channel.request_subpartition,
        channel.release,
        channel.release,
        channel.retrigger_subpartition_request,
    ):
        step()
        seen.append(channel.lifecycle)

    assert seen == [CREATED, REQUESTED, REQUESTED, RELEASED, RELEASED, RELEASED]
    assert channel.next_buffer() is None


def test_a_released_channel_is_not_requested(channel: InputChannel) -> None:
    """A released channel stays released, finds no buffer, and takes no orders (testUnblockReleasedChannel,
    testReleasedChannelAnnounceBufferSize of LocalInputChannelTest and RemoteInputChannelTest).
    """
    channel.release()

    channel.request_subpartition()
    channel.retrigger_subpartition_request()

    assert (channel.lifecycle, channel.is_released, channel.next_buffer()) == (RELEASED, True, None)
    for order in (
        channel.resume_consumption,
        lambda: channel.announce_buffer_size(1),
        lambda: channel.send_task_event(OtherEvent("x", b"")),
    ):
        with pytest.raises(ResourceClosedError, match=r"channel 0 of reduce \(1/2\) was released"):
            order()


def test_a_channel_is_not_polled_or_retriggered_before_the_request(channel: InputChannel) -> None:
    """A poll or a retrigger before the request is an error of the gate, and changes nothing."""
    with pytest.raises(LocalProtocolError, match="channel 0 is polled before it was requested"):
        channel.next_buffer()
    with pytest.raises(LocalProtocolError, match="channel 0 is requested once more before it was requested"):
        channel.retrigger_subpartition_request()

    assert channel.lifecycle is CREATED


def test_an_unknown_channel_is_never_requested() -> None:
    """An unknown channel requests no partition; the channel that replaces it does."""
    channel = UnknownInputChannel(RecordingGate(), 0, partition_id_of(), 0)
    seen = []

    for step in (channel.request_subpartition, channel.release, channel.request_subpartition):
        step()
        seen.append(channel.lifecycle)

    assert seen == [CREATED, RELEASED, RELEASED]


# ---------------------------------------------------------------- a place that is held


def test_it_cannot_be_read() -> None:
    """An unknown channel can neither be read, resumed nor acknowledged: it has given no data."""
    channel = UnknownInputChannel(RecordingGate(), 3, partition_id_of(), 0)

    for call in (channel.next_buffer, channel.resume_consumption, channel.acknowledge_all_records_processed):
        with pytest.raises(LocalProtocolError, match=r"channel 3 is .* before its producer is known"):
            call()
    with pytest.raises(LocalProtocolError, match="announces no barriers"):
        channel.convert_to_priority_event(1)


def test_hist_24738_what_it_is_told_is_harmless() -> None:
    """An unknown channel ignores requests, events, buffer sizes and checkpoints in every state."""
    channel = UnknownInputChannel(RecordingGate(), 3, partition_id_of(), 0)

    channel.request_subpartition()
    channel.retrigger_subpartition_request()
    channel.send_task_event(OtherEvent("x", b""))
    channel.announce_buffer_size(512)
    channel.checkpoint_started(CheckpointBarrier(1, 2))
    channel.checkpoint_stopped(1)

    assert channel.num_queued_buffers == 0
    assert (channel.statistics().kind, channel.statistics().state) == ("unknown", "open")


def test_its_error_and_its_end() -> None:
    """An error surfaces; after the release there is just nothing."""
    channel = UnknownInputChannel(RecordingGate(), 3, partition_id_of(), 0)
    other = UnknownInputChannel(RecordingGate(), 4, partition_id_of(), 0)

    channel.on_error(ConnectionLostError("gone"))
    other.release()

    with pytest.raises(ConnectionLostError, match="gone"):
        channel.next_buffer()
    assert (other.next_buffer(), other.is_released) == (None, True)
