"""Frames of every message: golden bytes, lengths, and refusals on both sides."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import (
    ExecutionAttemptID,
    InputChannelID,
    IntermediateResultPartitionID,
    ResultPartitionID,
    input_channel_id,
)
from netstack.wire.message_bytes import FRAME_BYTES, MAX_FRAME_BYTES, decode_body, encode
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    CancelPartitionRequest,
    CloseRequest,
    ErrorCode,
    ErrorResponse,
    Heartbeat,
    Hello,
    Message,
    NewBufferSize,
    PartitionRequest,
    Proof,
    Ready,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
)
from netstack.wire.offer_messages import GateHello, GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer
from tests.netstack.wire.samples import CONTROL_MESSAGES, PARTITION, RECEIVER, response
from tests.netstack.wire.throwables import FRAMES_THAT_FLINK_READS, THROWABLES_OF_FLINK

IDS = "0000000000000001 0000000000000002"
PARTITION_HEX = "44" * 16 + "00000007" + "47" * 16 + "56" * 16 + "00000003 00000004"
GOLDEN: list[tuple[Message, str]] = [
    (CloseRequest(), "00000009 BADC0FFE 05"),
    (AddCredit(RECEIVER, 3), f"0000001D BADC0FFE 06 00000003 {IDS}"),
    (CancelPartitionRequest(RECEIVER), f"00000019 BADC0FFE 04 {IDS}"),
    (ResumeConsumption(RECEIVER), f"00000019 BADC0FFE 07 {IDS}"),
    (AckAllUserRecordsProcessed(RECEIVER), f"00000019 BADC0FFE 08 {IDS}"),
    (BacklogAnnouncement(RECEIVER, 9), f"0000001D BADC0FFE 09 00000009 {IDS}"),
    (NewBufferSize(RECEIVER, 256), f"0000001D BADC0FFE 0A 00000100 {IDS}"),
    (
        PartitionRequest(PARTITION, 1, 2, RECEIVER, 8),
        f"00000061 BADC0FFE 02 {PARTITION_HEX} 00000001 00000002 {IDS} 00000008",
    ),
    (
        PartitionRequest(PARTITION, 0, 0, RECEIVER, 0),
        f"00000061 BADC0FFE 02 {PARTITION_HEX} 00000000 00000000 {IDS} 00000000",
    ),
    (SegmentId(RECEIVER, 4, 5), f"00000021 BADC0FFE 0B 00000004 00000005 {IDS}"),
    (Hello(1, 2, 3, b"N" * 32), f"0000002E BADC0FFE 40 0001 0002 03 {'4E' * 32}"),
    (Hello(1, 2, 3, b"N" * 32, "[::1]:1"), f"00000035 BADC0FFE 40 0001 0002 03 {'4E' * 32} {b'[::1]:1'.hex()}"),
    (Proof(b"M" * 32), f"00000029 BADC0FFE 41 {'4D' * 32}"),
    (Ready(7), "0000000B BADC0FFE 42 0007"),
    (Heartbeat(2000), "0000000D BADC0FFE 46 000007D0"),
    (
        GateHello(1, 2, b"N" * 32, GateIdentity(b"J" * 16, "clicks", 9)),
        f"0000004C BADC0FFE 43 0001 0002 {'4E' * 32} {'4A' * 16} 0000000000000009 {b'clicks'.hex()} 00",
    ),
    (
        GateHello(1, 2, b"N" * 32, GateIdentity(b"J" * 16, "clicks", 9), "[::1]:1"),
        (
            f"00000053 BADC0FFE 43 0001 0002 {'4E' * 32} {'4A' * 16} 0000000000000009 {b'clicks'.hex()} 00 "
            f"{b'[::1]:1'.hex()}"
        ),
    ),
    (
        SubpartitionOffer(b"O" * 16, PARTITION, 1, 2, 7, "job", 2**32, 5, 6, b"T" * 16, 9),
        f"0000008C BADC0FFE 44 {'4F' * 16} {PARTITION_HEX} 00000001 00000002 00000007 {2**32:016X} 00000005 00000006 "
        f"{'54' * 16} {9:016X} " + b"job".hex(),
    ),
    (OfferRefused(b"O" * 16, 1, RefusalCode.WRONG_TYPE, "no"), f"00000020 BADC0FFE 45 {'4F' * 16} 00000001 03 6E6F"),
    (TaskEventRequest(b"ev", PARTITION, RECEIVER), f"0000005B BADC0FFE 03 00000002 6576 {PARTITION_HEX} {IDS}"),
    *FRAMES_THAT_FLINK_READS,
]
JAVA = bytes.fromhex("aced0005") + b"some serialized throwable xp"


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_frames_have_the_bytes_of_flink(message: Message, golden: str) -> None:
    """Length (of the whole frame), magic, id and body, as in Flink's ``NettyMessage``."""
    frame = bytes.fromhex(golden)

    assert encode(message) == frame
    assert decode_body(frame[8], memoryview(frame)[9:]) == message


@pytest.mark.parametrize("message", CONTROL_MESSAGES)
def test_every_control_frame_has_a_length_that_the_table_allows(message: Message) -> None:
    """``FRAME_BYTES`` and ``encode`` agree."""
    frame = encode(message)

    least, greatest = FRAME_BYTES[frame[8]]
    assert len(frame) == int.from_bytes(frame[:4], "big")
    assert least <= len(frame)
    assert greatest is None or len(frame) <= greatest


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (AddCredit(RECEIVER, 0), "AddCredit.credit is 0, the least is 1"),
        (AddCredit(RECEIVER, -1), "credit is -1, the least"),
        (AddCredit(RECEIVER, 2**31), "cannot be encoded"),
        (PartitionRequest(PARTITION, 0, 0, RECEIVER, -1), "credit is -1, the least"),
        (SegmentId(RECEIVER, -1, 1), "subpartition is -1"),
        (SegmentId(RECEIVER, 0, 0), "segment is 0"),
        (Hello(2, 1, 0, bytes(32)), "versions 2 to 1 are not a range"),
        (Hello(1, 1, 0, bytes(31)), "Hello.nonce has 31 bytes, not 32"),
        (Hello(1, 65536, 0, bytes(32)), "cannot be encoded"),
        (Hello(1, 1, 256, bytes(32)), "cannot be encoded"),
        (Hello(1, 1, 1, bytes(32), "x" * 97), "authority has 0 to 96 bytes, got 97"),
        (Hello(1, 1, 1, bytes(32), "\n:1"), "printable ASCII characters"),
        (Proof(bytes(33)), "Proof.mac has 33 bytes, not 32"),
        (Ready(-1), "cannot be encoded"),
        (Heartbeat(99), "Heartbeat.interval_ms is 99, the least is 100"),
        (PartitionRequest(PARTITION, 2, 1, RECEIVER, 1), "2 to 1 are not a range"),
        (PartitionRequest(PARTITION, -1, 1, RECEIVER, 1), "-1 to 1 are not a range"),
        (BacklogAnnouncement(RECEIVER, 0), "backlog is 0"),
        (NewBufferSize(RECEIVER, 0), "size_bytes is 0"),
        (CancelPartitionRequest(InputChannelID(b"short")), "receiver has 5 bytes, not 16"),
        (AddCredit(InputChannelID(b"x" * 17), 1), "receiver has 17 bytes, not 16"),
        (TaskEventRequest(b"", PARTITION, InputChannelID(b"")), "receiver has 0 bytes, not 16"),
        (
            TaskEventRequest(b"", ResultPartitionID(IntermediateResultPartitionID(b"p"), PARTITION.producer), RECEIVER),
            "partition.partition has 1 bytes, not 20",
        ),
        (
            PartitionRequest(ResultPartitionID(PARTITION.partition, ExecutionAttemptID(b"a")), 0, 0, RECEIVER, 1),
            "partition.producer has 1 bytes, not 40",
        ),
        (response(b""), "BufferResponse is not a message that can be written"),
        (
            TaskEventRequest(bytes(MAX_FRAME_BYTES - 88), PARTITION, RECEIVER),
            "a TaskEventRequest of 1048577 bytes cannot be sent",
        ),
    ],
)
def test_what_breaks_the_protocol_is_not_encoded(message: Message, complaint: str) -> None:
    """The error says which value is wrong."""
    with pytest.raises(LocalProtocolError, match=complaint):
        encode(message)


@pytest.mark.parametrize(
    ("message_id", "body", "complaint"),
    [
        (6, struct.pack(">i16s", 0, RECEIVER), "a broken AddCredit: AddCredit.credit is 0"),
        (9, struct.pack(">i16s", 0, RECEIVER), "BacklogAnnouncement.backlog is 0"),
        (11, struct.pack(">ii16s", -1, 1, RECEIVER), "SegmentId.subpartition is -1"),
        (11, struct.pack(">ii16s", 0, 0, RECEIVER), "SegmentId.segment is 0"),
        (64, struct.pack(">HHB32s", 2, 1, 0, b""), "Hello: versions 2 to 1 are not a range"),
        (10, struct.pack(">i16s", 0, RECEIVER), "NewBufferSize.size_bytes is 0"),
        (2, struct.pack(">60sii16si", b"", 0, 0, RECEIVER, -1), "PartitionRequest.credit is -1"),
        (2, struct.pack(">60sii16si", b"", 1, 0, RECEIVER, 1), "subpartitions 1 to 0"),
        (2, struct.pack(">60sii16si", b"", -1, 0, RECEIVER, 1), "subpartitions -1 to 0"),
        (3, struct.pack(">i76s", 1, b""), "80 bytes announces an event of 1 bytes"),
        (3, struct.pack(">i76sx", 0, b""), "81 bytes announces an event of 0 bytes"),
        (3, struct.pack(">i76s", -1, b""), "announces an event of -1 bytes"),
        (1, b"ABCD" + bytes(20), "starts with 41424344"),
        (1, b"FLW", "starts with 464c57, which is not a Java throwable"),
        (1, JAVA, "does not end with a receiver"),
        (1, b"\xac\xed\x00\x05\x09", "does not end with a receiver"),
    ],
)
def test_broken_bodies_are_the_peers_fault(message_id: int, body: bytes, complaint: str) -> None:
    """Values out of range, and fields that do not end where the body ends, are errors of the peer."""
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_body(message_id, memoryview(body))


def test_an_error_code_of_a_later_version_is_unknown_and_keeps_its_text() -> None:
    """A newer peer can still say what went wrong."""
    frame = encode(ErrorResponse(ErrorCode.INTERNAL, "why", RECEIVER)).replace(b"[INTERNAL]", b"[ASTERISK]")

    assert decode_body(1, memoryview(frame)[9:]) == ErrorResponse(
        ErrorCode.UNKNOWN, "java.io.IOException: [ASTERISK] why", RECEIVER
    )


@pytest.mark.parametrize(("throwable", "code", "text"), THROWABLES_OF_FLINK)
@pytest.mark.parametrize("receiver", [None, RECEIVER])
def test_what_flink_says_of_its_errors_is_understood(
    throwable: str, code: ErrorCode, text: str, receiver: InputChannelID | None
) -> None:
    """The class decides what the receiver does, the message is for people; a nested cause may have the class."""
    body = bytes.fromhex(throwable) + (b"\0" if receiver is None else b"\x01" + receiver)

    assert decode_body(1, memoryview(body)) == ErrorResponse(code, text, receiver)


@pytest.mark.parametrize(("throwable", "code", "text"), THROWABLES_OF_FLINK)
def test_a_throwable_that_breaks_off_is_reported_as_far_as_it_goes(throwable: str, code: ErrorCode, text: str) -> None:
    """A throwable that is cut anywhere is read up to the cut, and raises no other error."""
    whole = bytes.fromhex(throwable)
    for num_bytes in range(4, min(len(whole), 1500)):
        message = decode_body(1, memoryview(whole[:num_bytes] + b"\0"))

        assert isinstance(message, ErrorResponse)
        assert message.code in (code, ErrorCode.UNKNOWN)


@pytest.mark.parametrize(
    "text",
    ["", "[INTERNAL] x", "[NONSENSE] x", "x\x01" + "a" * 15, "p\x01" + "0" * 16, "\0", "[INTERNAL " + "0" * 32 + "] y"],
)
@pytest.mark.parametrize("about", [None, RECEIVER])
@pytest.mark.parametrize("receiver", [None, RECEIVER])
def test_no_text_is_taken_for_something_else(
    text: str, receiver: InputChannelID | None, about: InputChannelID | None
) -> None:
    """An error of ours is compared as a whole: its text is taken neither for a mark nor for a receiver."""
    message = ErrorResponse(ErrorCode.PROTOCOL, text, receiver, about)

    assert decode_body(1, memoryview(encode(message))[9:]) == message


def test_an_error_with_our_mark_that_we_would_not_write_is_a_foreign_one() -> None:
    """A field more, a byte more: its receiver learns of it, its code is not trusted."""
    body = encode(ErrorResponse(ErrorCode.INTERNAL, "x", RECEIVER))[9:]
    odd = body[:-17] + b"x" + body[-17:]

    assert decode_body(1, memoryview(odd)) == ErrorResponse(
        ErrorCode.UNKNOWN, "java.io.IOException: [INTERNAL] x", RECEIVER
    )


@pytest.mark.parametrize(
    ("body", "receiver"),
    [
        (JAVA + b"\0", None),
        (JAVA + b"\x01" + RECEIVER, RECEIVER),
        # Ends with a zero like a frame without receiver.
        (JAVA + b"\x01" + input_channel_id(1, 0), input_channel_id(1, 0)),
        (JAVA + b"\x01" + bytes(15) + b"x", InputChannelID(bytes(15) + b"x")),
        # One for the whole connection ends with the stream's last byte and a zero.
        (JAVA[:6] + b"\x01" + b"z" * 14 + b"p" + b"\0", None),
        # A flag in the right place and an id that does not end with zero are enough.
        (JAVA + b"?" + b"\x01" + RECEIVER, RECEIVER),
    ],
    ids=["none", "a receiver", "zero at its end", "zeros in it", "a one inside is none", "an unusual last byte"],
)
def test_a_java_throwable_is_skipped_and_its_receiver_found(body: bytes, receiver: InputChannelID | None) -> None:
    """The throwable is not read, but the right channel gets the error."""
    message = decode_body(1, memoryview(body))

    assert isinstance(message, ErrorResponse)
    assert message.code is ErrorCode.UNKNOWN
    assert "Java throwable" in message.message
    assert message.receiver == receiver


def test_long_error_texts_are_cut_between_characters() -> None:
    """A text is cut to valid text, since receivers refuse frames of more than 1 MiB."""
    frame = encode(ErrorResponse(ErrorCode.INTERNAL, "x" + "€" * 100_000, None))

    message = decode_body(1, memoryview(frame)[9:])
    assert isinstance(message, ErrorResponse)
    assert len(frame) <= 64 * 1024
    assert message.message == "x" + "€" * 8191


def test_a_text_that_is_no_unicode_is_readable_enough() -> None:
    """Lone surrogates (from paths) do not stop an error from being sent."""
    frame = encode(ErrorResponse(ErrorCode.INTERNAL, "path \udc80", None))

    assert decode_body(1, memoryview(frame)[9:]) == ErrorResponse(ErrorCode.INTERNAL, "path ?", None)


@given(credit=st.integers(1, 2**31 - 1), lower=st.integers(-(2**63), 2**63 - 1), upper=st.integers(-(2**63), 2**63 - 1))
def test_numbers_and_ids_survive_the_wire(credit: int, lower: int, upper: int) -> None:
    """All 32 and 64 bits arrive."""
    message = AddCredit(input_channel_id(lower, upper), credit)
    frame = encode(message)

    assert decode_body(frame[8], memoryview(frame)[9:]) == message


RECEIVERS = st.none() | st.binary(min_size=16, max_size=16).map(InputChannelID)


@given(st.text(max_size=200), st.sampled_from(ErrorCode), RECEIVERS, RECEIVERS)
def test_errors_survive_the_wire(
    text: str, code: ErrorCode, receiver: InputChannelID | None, about: InputChannelID | None
) -> None:
    """Text, code and both receivers arrive, whatever characters and bytes they hold."""
    message = ErrorResponse(code, text.encode("utf-8", "replace").decode(), receiver, about)

    frame = encode(message)

    assert decode_body(frame[8], memoryview(frame)[9:]) == message


@given(
    st.binary(max_size=200),
    st.sampled_from([bytes.fromhex(throwable) for throwable, _, _ in THROWABLES_OF_FLINK]),
    st.data(),
)
def test_garbage_behind_the_magic_number_of_java_is_harmless(
    garbage: bytes, throwable: bytes, data: st.DataObject
) -> None:
    """Garbage in the place of a throwable gives an error without meaning, or is refused."""
    at = data.draw(st.integers(4, len(throwable)))
    for body in (
        throwable[:4] + garbage,
        throwable[:at] + garbage,
        throwable[:at] + garbage + throwable[at + len(garbage) :],
    ):
        try:
            message = decode_body(1, memoryview(body))
        except RemoteProtocolError:
            continue
        assert isinstance(message, ErrorResponse)
