"""In-band events: Flink's bytes, both ways."""

import pytest

from netstack.errors import RemoteProtocolError
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode, deserialize_event, event_data_type, serialize_event
from netstack.wire.messages import DataType

GOLDEN = [
    (EndOfPartition(), "00000000", DataType.END_OF_PARTITION),
    (EndOfData(StopMode.DRAIN), "0000000800", DataType.END_OF_DATA),
    (EndOfData(StopMode.NO_DRAIN), "0000000801", DataType.END_OF_DATA),
]


@pytest.mark.parametrize(("event", "golden", "data_type"), GOLDEN)
def test_events_have_the_bytes_of_flink(event: Event, golden: str, data_type: DataType) -> None:
    """What is written is what Flink writes, what is read is what was written."""
    assert serialize_event(event).hex() == golden
    assert deserialize_event(memoryview(bytes.fromhex(golden))) == event
    assert event_data_type(event) is data_type


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "of 0 bytes has no type"),
        ("000000", "of 3 bytes has no type"),
        ("0000000d", "unknown event type 13"),
        ("ffffffff", "unknown event type -1"),
        ("0000000000", "EndOfPartition has 5 bytes, expected 4"),
        ("00000008", "EndOfData has 4 bytes, expected 5"),
        ("000000080000", "EndOfData has 6 bytes, expected 5"),
        ("0000000802", "unknown StopMode 2"),
    ],
)
def test_anything_else_is_the_peers_fault(body: str, complaint: str) -> None:
    """Unknown types and wrong lengths are refused with their value."""
    with pytest.raises(RemoteProtocolError, match=complaint):
        deserialize_event(memoryview(bytes.fromhex(body)))
