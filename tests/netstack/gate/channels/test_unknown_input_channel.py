"""``UnknownInputChannel``: a place that is held."""

import pytest

from netstack.errors import ConnectionLostError, LocalProtocolError
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.wire.events import CheckpointBarrier, OtherEvent
from tests.netstack.gate.doubles import RecordingGate
from tests.netstack.partition.doubles import partition_id_of


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
