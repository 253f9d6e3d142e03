"""In-band events: Flink's bytes, both ways.

The golden bytes and data types were written by ``EventSerializer`` of Flink 2.3.0.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.wire.events import (
    NO_ALIGNED_TIMEOUT,
    Alignment,
    AnnouncedEvent,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfInputChannelState,
    EndOfOutputChannelState,
    EndOfPartition,
    EndOfSegment,
    EndOfSuperstep,
    Event,
    EventAnnouncement,
    OtherEvent,
    RecoveryMetadata,
    SavepointFormat,
    SnapshotType,
    StopMode,
    SubtaskConnectionDescriptor,
    WatermarkEvent,
    deserialize_event,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import DataType

LOCATION = b"\x01\x02\x03"
TERMINATION = "org.apache.flink.runtime.iterative.event.TerminationEvent"


def barrier(checkpoint_id: int, timestamp_ms: int, *options: object, **named: object) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, timestamp_ms, CheckpointOptions(*options, **named))  # type: ignore[arg-type] # one table


def savepoint(kind: SnapshotType, form: SavepointFormat, location: bytes | None) -> CheckpointOptions:
    return CheckpointOptions(kind, form, location)


GOLDEN: list[tuple[Event, str, DataType]] = [
    (EndOfPartition(), "00000000", DataType.END_OF_PARTITION),
    (EndOfSuperstep(), "00000002", DataType.EVENT_BUFFER),
    (CancelCheckpointMarker(42), "00000004 000000000000002a", DataType.EVENT_BUFFER),
    (EndOfOutputChannelState(), "00000005", DataType.RECOVERY_COMPLETION),
    (EndOfInputChannelState(), "0000000c", DataType.EVENT_BUFFER),
    (SubtaskConnectionDescriptor(1, -2), "00000007 00000001 fffffffe", DataType.EVENT_BUFFER),
    (EndOfData(StopMode.DRAIN), "00000008 00", DataType.END_OF_DATA),
    (EndOfData(StopMode.NO_DRAIN), "00000008 01", DataType.END_OF_DATA),
    (EndOfSegment(), "00000009", DataType.EVENT_BUFFER),
    (RecoveryMetadata(7), "0000000a 00000007", DataType.EVENT_BUFFER),
    (
        WatermarkEvent("id", 1000, is_aligned=True),
        "0000000b 0002 6964 01 00000000 00000000000003e8",
        DataType.ALIGNED_WATERMARK_EVENT,
    ),
    (
        WatermarkEvent("wasser\0é€😀", -1, is_aligned=False),
        "0000000b 0013 776173736572 c080 c3a9 e282ac eda0bd edb880 00 00000000 ffffffffffffffff",
        DataType.UNALIGNED_WATERMARK_EVENT,
    ),
    (
        WatermarkEvent("b", value=True, is_aligned=False),
        "0000000b 0001 62 00 00000001 01",
        DataType.UNALIGNED_WATERMARK_EVENT,
    ),
    (OtherEvent(TERMINATION, b""), "00000003 0039" + TERMINATION.encode().hex(), DataType.EVENT_BUFFER),
    (
        OtherEvent("org.apache.flink.runtime.iterative.event.AllWorkersDoneEvent", b"\0\0\0\0"),
        (
            "00000003 003c 6f72672e6170616368652e666c696e6b2e72756e74696d652e6974657261746976652e6576656e742e"
            "416c6c576f726b657273446f6e654576656e74 00000000"
        ),
        DataType.EVENT_BUFFER,
    ),
    (
        CheckpointBarrier(1, 2),
        "00000001 0000000000000001 0000000000000002 00 ffffffff 01 7fffffffffffffff",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        EventAnnouncement(5, CheckpointBarrier(1, 2)),
        "00000006 00000005 00000001 0000000000000001 0000000000000002 00 ffffffff 01 7fffffffffffffff",
        DataType.EVENT_BUFFER,
    ),
    (EventAnnouncement(-1, EndOfPartition()), "00000006 ffffffff 00000000", DataType.EVENT_BUFFER),
    (
        barrier(1, 2, SnapshotType.FULL_CHECKPOINT, aligned_timeout_ms=100),
        "00000001 0000000000000001 0000000000000002 04 ffffffff 01 0000000000000064",
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        barrier(1, 2, aligned_timeout_ms=0),
        "00000001 0000000000000001 0000000000000002 00 ffffffff 01 0000000000000000",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        barrier(3, 4, location=LOCATION, alignment=Alignment.UNALIGNED),
        "00000001 0000000000000003 0000000000000004 00 00000003 010203 02 7fffffffffffffff",
        DataType.EVENT_BUFFER,
    ),
    (
        barrier(3, 4, location=LOCATION, alignment=Alignment.AT_LEAST_ONCE),
        "00000001 0000000000000003 0000000000000004 00 00000003 010203 00 7fffffffffffffff",
        DataType.EVENT_BUFFER,
    ),
    (
        barrier(3, 4, location=LOCATION, alignment=Alignment.FORCED_ALIGNED),
        "00000001 0000000000000003 0000000000000004 00 00000003 010203 03 7fffffffffffffff",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        barrier(3, 4, location=LOCATION, alignment=Alignment.FORCED_ALIGNED, aligned_timeout_ms=9),
        "00000001 0000000000000003 0000000000000004 00 00000003 010203 03 0000000000000009",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        CheckpointBarrier(-1, -2, savepoint(SnapshotType.SAVEPOINT, SavepointFormat.CANONICAL, LOCATION)),
        "00000001 ffffffffffffffff fffffffffffffffe 01 00 00000003 010203 01 7fffffffffffffff",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        CheckpointBarrier(1, 2, savepoint(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.NATIVE, None)),
        "00000001 0000000000000001 0000000000000002 02 01 ffffffff 01 7fffffffffffffff",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
    (
        CheckpointBarrier(1, 2, savepoint(SnapshotType.SAVEPOINT_TERMINATE, SavepointFormat.NATIVE, None)),
        "00000001 0000000000000001 0000000000000002 03 01 ffffffff 01 7fffffffffffffff",
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ),
]
BARRIER = "00000001 0000000000000001 0000000000000002"


@pytest.mark.parametrize(("event", "golden", "data_type"), GOLDEN)
def test_events_have_the_bytes_of_flink(event: Event, golden: str, data_type: DataType) -> None:
    """Events are written with Flink's bytes and read back equal, and so is the type of the buffer."""
    assert serialize_event(event) == bytes.fromhex(golden)
    assert deserialize_event(memoryview(bytes.fromhex(golden))) == event
    assert event_data_type(event) is data_type
    assert event_data_type(event, has_priority=True) is DataType.PRIORITIZED_EVENT_BUFFER


WATERMARK = "0000000b 0002 6964 01 00000000 00000000000003e8"
LONG_WATERMARK = "0000000b 0096" + "69" * 150 + "01 00000000 00000000000003e8"
FILLED: list[tuple[Event, str, int, int]] = [
    (CheckpointBarrier(1, 2), "00000001 0000000000000001 0000000000000002 00 ffffffff 01 7fffffffffffffff", 34, 38),
    (
        barrier(1, 2, location=LOCATION, alignment=Alignment.UNALIGNED),
        "00000001 0000000000000001 0000000000000002 00 00000003 010203 02 7fffffffffffffff",
        37,
        41,
    ),
    (
        CheckpointBarrier(1, 2, savepoint(SnapshotType.SAVEPOINT, SavepointFormat.CANONICAL, LOCATION)),
        "00000001 0000000000000001 0000000000000002 01 00 00000003 010203 01 7fffffffffffffff",
        38,
        41,
    ),
    (
        EventAnnouncement(5, CheckpointBarrier(1, 2)),
        "00000006 00000005 00000001 0000000000000001 0000000000000002 00 ffffffff 01 7fffffffffffffff",
        42,
        46,
    ),
    (WatermarkEvent("id", 1000, is_aligned=True), WATERMARK, 21, 128),
    (WatermarkEvent("id", value=True, is_aligned=True), "0000000b 0002 6964 01 00000001 01", 14, 128),
    (WatermarkEvent("i" * 150, 1000, is_aligned=True), LONG_WATERMARK, 169, 280),
    (EventAnnouncement(5, WatermarkEvent("id", 1000, is_aligned=True)), "00000006 00000005" + WATERMARK, 29, 136),
]


@pytest.mark.parametrize(("event", "golden", "num_bytes", "num_filled_bytes"), FILLED)
def test_flink_fills_some_events_with_zeros(event: Event, golden: str, num_bytes: int, num_filled_bytes: int) -> None:
    """Flink 2.3 sends the whole array that it wrote to; anything but these zeros is refused."""
    body = bytes.fromhex(golden)
    filled = body + bytes(num_filled_bytes - num_bytes)

    assert (len(body), serialize_event(event)) == (num_bytes, body)
    assert deserialize_event(memoryview(filled)) == event
    for odd in (filled[:-1] + b"\x01", *([body + b"\0"] if num_bytes < 127 else [])):
        with pytest.raises(RemoteProtocolError):
            deserialize_event(memoryview(odd))


@pytest.mark.parametrize(("event", "golden", "data_type"), GOLDEN)
def test_an_event_that_is_cut_or_goes_on_is_refused(event: Event, golden: str, data_type: DataType) -> None:
    """Every byte counts; only what an unknown event wrote has no length of its own."""
    body = bytes.fromhex(golden)
    least = len(body)
    if isinstance(event, OtherEvent):
        least -= len(event.body)
    else:
        with pytest.raises(RemoteProtocolError):
            deserialize_event(memoryview(body + b"\0"))

    for num_bytes in range(least):
        with pytest.raises(RemoteProtocolError):
            deserialize_event(memoryview(body[:num_bytes]))


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
        ("0000000802", "EndOfData with the unknown StopMode 2"),
        (BARRIER, "CheckpointBarrier has 20 bytes, expected at least 21"),
        (BARRIER + "05 ffffffff 01 7fffffffffffffff", "unknown SnapshotType 5"),
        (BARRIER + "01 02 ffffffff 01 7fffffffffffffff", "unknown SavepointFormat 2"),
        (BARRIER + "00 ffffffff 04 7fffffffffffffff", "unknown Alignment 4"),
        (BARRIER + "00 fffffffe 01 7fffffffffffffff", "location of -2 bytes, 9 bytes follow"),
        (BARRIER + "00 00000000 01 7fffffffffffffff", "location of 0 bytes"),
        (BARRIER + "00 7fffffff 01 7fffffffffffffff", "location of 2147483647 bytes, 9 bytes follow"),
        (BARRIER + "00 ffffffff 01 7fffffffffffffff 00", "the rest of CheckpointBarrier has 10 bytes"),
        (BARRIER + "01 00 ffffffff 02 7fffffffffffffff", "CheckpointBarrier 1: a savepoint cannot be unaligned"),
        (BARRIER + "00 ffffffff 02 0000000000000001", "an unaligned checkpoint has no timeout, got 1 ms"),
        ("00000006 00000001 00000006 00000002 00000000", "EventAnnouncement 1 announces an announcement"),
        ("00000006" * 100_000, "announces an announcement"),
        ("00000006 00000001", "an event of 0 bytes has no type"),
        ("0000000b 0001 61 02 00000000 0000000000000001", "WatermarkEvent 'a' with the flag 2"),
        ("0000000b 0001 61 00 00000002 0000000000000001", "WatermarkEvent 'a' of the unknown kind 2"),
        ("0000000b 0001 61 00 00000001 02", "WatermarkEvent 'a' with the condition 2"),
        ("0000000b 0001 61 00 00000000 01", "the value of WatermarkEvent has 1 bytes, expected 8"),
        ("0000000b 0002 61", "a text of 2 bytes is announced, 1 bytes follow"),
        ("00000003 0001 ff", "not modified UTF-8"),
        ("00000003", "a text of 0 bytes is announced, 0 bytes follow"),
    ],
)
def test_anything_else_is_the_peers_fault(body: str, complaint: str) -> None:
    """Unknown types, values and lengths are refused with their value, before memory is taken for them."""
    with pytest.raises(RemoteProtocolError, match=complaint):
        deserialize_event(memoryview(bytes.fromhex(body)))


@pytest.mark.parametrize(
    "event",
    [
        CancelCheckpointMarker(2**63),
        RecoveryMetadata(2**31),
        SubtaskConnectionDescriptor(0, -(2**31) - 1),
        EventAnnouncement(2**31, EndOfPartition()),
        EventAnnouncement(0, CheckpointBarrier(2**63, 0)),
        WatermarkEvent("x", 2**63, is_aligned=True),
        OtherEvent("x" * 65_536, b""),
    ],
)
def test_what_does_not_fit_is_not_encoded(event: Event) -> None:
    """A bug of ours stops before it reaches the wire."""
    with pytest.raises(LocalProtocolError, match="cannot be encoded"):
        serialize_event(event)


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ({"type": SnapshotType.SAVEPOINT}, "a SAVEPOINT with the savepoint format None"),
        ({"savepoint_format": SavepointFormat.NATIVE}, "a CHECKPOINT with the savepoint format"),
        (
            {
                "type": SnapshotType.SAVEPOINT,
                "savepoint_format": SavepointFormat.NATIVE,
                "alignment": Alignment.UNALIGNED,
            },
            "a savepoint cannot be unaligned",
        ),
        ({"alignment": Alignment.UNALIGNED, "aligned_timeout_ms": 5}, "no timeout, got 5 ms"),
        ({"location": b""}, "has no bytes"),
    ],
)
def test_options_that_contradict_each_other_cannot_be_made(named: dict[str, object], complaint: str) -> None:
    """Contradictory options are refused, as in Flink's constructor."""
    with pytest.raises(LocalProtocolError, match=complaint):
        CheckpointOptions(**named)  # type: ignore[arg-type] # one table


@pytest.mark.parametrize(
    ("alignment", "timeout_ms", "properties"),
    [
        (Alignment.AT_LEAST_ONCE, NO_ALIGNED_TIMEOUT, set()),
        (Alignment.ALIGNED, NO_ALIGNED_TIMEOUT, {"needs_alignment"}),
        (Alignment.ALIGNED, 0, {"needs_alignment"}),
        (Alignment.ALIGNED, 1, {"needs_alignment", "is_timeoutable", "needs_channel_state"}),
        (Alignment.UNALIGNED, NO_ALIGNED_TIMEOUT, {"is_unaligned", "needs_channel_state"}),
        (Alignment.FORCED_ALIGNED, NO_ALIGNED_TIMEOUT, {"needs_alignment"}),
        (Alignment.FORCED_ALIGNED, 9, {"needs_alignment"}),
    ],
)
def test_what_follows_from_the_alignment(alignment: Alignment, timeout_ms: int, properties: set[str]) -> None:
    """``CheckpointOptions`` of Flink: the alignment decides which barriers wait, overtake, or may become unaligned."""
    options = CheckpointOptions(alignment=alignment, aligned_timeout_ms=timeout_ms)

    names = ("needs_alignment", "is_unaligned", "is_timeoutable", "needs_channel_state")
    assert {name for name in names if getattr(options, name)} == properties


def test_a_barrier_that_took_too_long_becomes_unaligned() -> None:
    """The unaligned barrier has no timeout; everything else stays."""
    aligned = barrier(1, 2, SnapshotType.FULL_CHECKPOINT, location=LOCATION, aligned_timeout_ms=100)

    unaligned = aligned.as_unaligned()

    assert unaligned == barrier(1, 2, SnapshotType.FULL_CHECKPOINT, location=LOCATION, alignment=Alignment.UNALIGNED)
    assert unaligned.as_unaligned() is unaligned


@pytest.mark.parametrize(
    "options",
    [
        CheckpointOptions(alignment=Alignment.UNALIGNED),
        CheckpointOptions(aligned_timeout_ms=9),
        CheckpointOptions(location=LOCATION),
        CheckpointOptions(alignment=Alignment.AT_LEAST_ONCE),
    ],
)
def test_a_channel_that_cannot_keep_its_buffers_forces_alignment_and_gives_it_back(options: CheckpointOptions) -> None:
    """All other options stay as they are."""
    forced = options.with_unaligned_unsupported()

    assert not forced.needs_channel_state
    assert (forced.alignment is Alignment.FORCED_ALIGNED) == options.needs_channel_state
    assert forced.aligned_timeout_ms == options.aligned_timeout_ms
    assert forced.with_unaligned_supported() == options


@st.composite
def events(draw: st.DrawFn) -> AnnouncedEvent:
    longs, ints = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
    kind = draw(st.sampled_from(SnapshotType))
    form = draw(st.sampled_from(SavepointFormat)) if kind.is_savepoint else None
    alignment = draw(
        st.sampled_from([each for each in Alignment if not kind.is_savepoint or each is not Alignment.UNALIGNED])
    )
    timeout_ms = NO_ALIGNED_TIMEOUT if alignment is Alignment.UNALIGNED else draw(longs)
    options = CheckpointOptions(kind, form, draw(st.none() | st.binary(min_size=1, max_size=50)), alignment, timeout_ms)
    kinds: st.SearchStrategy[AnnouncedEvent] = st.one_of(
        st.just(CheckpointBarrier(draw(longs), draw(longs), options)),
        st.builds(CancelCheckpointMarker, longs),
        st.builds(SubtaskConnectionDescriptor, ints, ints),
        st.builds(RecoveryMetadata, ints),
        st.builds(WatermarkEvent, st.text(max_size=20), longs | st.booleans(), st.booleans()),
        st.builds(OtherEvent, st.text(max_size=20), st.binary(max_size=20)),
        st.builds(EndOfData, st.sampled_from(StopMode)),
    )
    return draw(kinds)


@given(events(), st.integers(-(2**31), 2**31 - 1))
def test_events_survive_the_wire(event: AnnouncedEvent, sequence_number: int) -> None:
    """All fields of an event arrive, also in an announcement."""
    announcement = EventAnnouncement(sequence_number, event)

    assert deserialize_event(memoryview(serialize_event(event))) == event
    assert deserialize_event(memoryview(serialize_event(announcement))) == announcement


@given(st.integers(0, 13), st.binary(max_size=150))
def test_garbage_is_refused_or_is_an_event_with_exactly_these_bytes(kind: int, rest: bytes) -> None:
    """Garbage raises only ``RemoteProtocolError``, and no bytes can be read in two ways."""
    body = kind.to_bytes(4, "big") + rest
    try:
        event = deserialize_event(memoryview(body))
    except RemoteProtocolError:
        return
    written = serialize_event(event)
    assert body.startswith(written)
    assert not any(body[len(written) :])
    assert len(written) == len(body) or isinstance(event, CheckpointBarrier | WatermarkEvent | EventAnnouncement)
