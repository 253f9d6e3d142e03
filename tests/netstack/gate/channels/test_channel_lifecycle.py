"""``Lifecycle``: every pair of states, and what channels of each kind do with them."""

from collections.abc import Iterator
from itertools import product

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.gate.channels.input_channel import InputChannel, Lifecycle
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.partition.result_partition_manager import ResultPartitionManager
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


def test_a_channel_only_moves_on() -> None:
    """Each state leads only to later ones, and the last one to none."""
    order = [CREATED, REQUESTED, RELEASED]

    steps = {(before, after) for before, after in product(order, order) if after > before}

    assert steps == {(CREATED, REQUESTED), (CREATED, RELEASED), (REQUESTED, RELEASED)}


def test_a_channel_is_requested_and_released(channel: InputChannel) -> None:
    """A second request or release changes nothing."""
    seen = [channel.lifecycle]

    for step in (channel.request_subpartition, channel.request_subpartition, channel.release, channel.release):
        step()
        seen.append(channel.lifecycle)

    assert seen == [CREATED, REQUESTED, REQUESTED, RELEASED, RELEASED]


def test_a_released_channel_is_not_requested(channel: InputChannel) -> None:
    """A released channel stays released, finds no buffer, and takes no orders."""
    channel.release()

    channel.request_subpartition()
    channel.retrigger_subpartition_request()

    assert (channel.lifecycle, channel.is_released, channel.next_buffer()) == (RELEASED, True, None)
    with pytest.raises(ResourceClosedError, match=r"channel 0 of reduce \(1/2\) was released"):
        channel.announce_buffer_size(1)


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
