"""``FrameDecoder``: its messages do not depend on how the bytes are cut, memory is bounded, and only documented errors
are raised.
"""

import contextlib
import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import RemoteProtocolError
from netstack.ids import InputChannelID, input_channel_id
from netstack.wire.frame_decoder import Decoded
from netstack.wire.message_bytes import (
    ALL_MESSAGE_IDS,
    CLIENT_MESSAGE_IDS,
    FRAME_BYTES,
    GATE_MESSAGE_IDS,
    HANDSHAKE_MESSAGE_IDS,
    HEARTBEAT_ID,
    MAX_FRAME_BYTES,
    OFFERING_MESSAGE_IDS,
    SERVER_MESSAGE_IDS,
    encode,
)
from netstack.wire.messages import (
    AddCredit,
    BufferResponse,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    Hello,
    Message,
    Ready,
    TaskEventRequest,
)
from tests.netstack.wire.samples import (
    ALL_MESSAGES,
    DATA_MESSAGES,
    PARTITION,
    RECEIVER,
    FedDecoder,
    HeapAllocator,
    HeapBuffer,
    content,
    frame_of,
    response,
)

MAX_DATA_FRAME_BYTES = 1024
HEADER = struct.Struct(">IIB16siiiiBBi")
MAGIC = 0xBADC0FFE


def make_decoder(*, staging_bytes: int = 4096, max_data_frame_bytes: int = MAX_DATA_FRAME_BYTES) -> FedDecoder:
    return FedDecoder(
        HeapAllocator(), max_data_frame_bytes=max_data_frame_bytes, max_frame_bytes=2048, staging_bytes=staging_bytes
    )


def feed_in_parts(decoder: FedDecoder, parts: Sequence[bytes]) -> list[Decoded]:
    messages = []
    for part in parts:
        messages += decoder.feed(part)
        decoder.check_invariants()
    return messages


def data_header(
    *,
    length: int | None = None,
    num_partial: int = 0,
    subpartition: int = 0,
    backlog: int = 0,
    data_type: int = 1,
    is_compressed: int = 0,
    size: int = 0,
    tail: bytes = b"",
) -> bytes:
    whole = 47 + len(tail) if length is None else length
    return (
        HEADER.pack(whole, MAGIC, 0, RECEIVER, subpartition, num_partial, 0, backlog, data_type, is_compressed, size)
        + tail
    )


@pytest.mark.parametrize("message", ALL_MESSAGES)
def test_a_message_arrives_byte_by_byte(message: Message) -> None:
    """A message is complete with its last byte, not before."""
    decoder, frame = make_decoder(), frame_of(message)

    early = feed_in_parts(decoder, [frame[at : at + 1] for at in range(len(frame) - 1)])

    assert early == []
    assert decoder.is_mid_frame
    assert decoder.feed(frame[-1:]) == [message]


@pytest.mark.parametrize("message", ALL_MESSAGES)
def test_a_message_may_be_cut_anywhere(message: Message) -> None:
    """Two reads of any lengths, with a third one that holds another message, give both messages."""
    frame = frame_of(message)
    for cut in range(1, len(frame)):
        decoder = make_decoder(staging_bytes=64)

        assert feed_in_parts(decoder, [frame[:cut], frame[cut:], frame_of(CloseRequest())]) == [message, CloseRequest()]


FIXED_SIZES = {2: 97, 4: 25, 5: 9, 6: 29, 7: 25, 8: 25, 9: 29, 10: 29, 11: 33, 65: 41, 66: 11}


@pytest.mark.parametrize("message_id", FIXED_SIZES)
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_frame_of_fixed_size_with_a_byte_more_or_less_is_refused_at_its_header(
    message_id: int, difference: int
) -> None:
    """The frame is refused at its header, without waiting for its body."""
    length = FIXED_SIZES[message_id] + difference

    with pytest.raises(RemoteProtocolError, match=f"message id {message_id} has {length} bytes"):
        make_decoder().feed(struct.pack(">IIB", length, MAGIC, message_id))


class ChoosyAllocator(HeapAllocator):
    """Has no room for one receiver: its channel was released, or removed."""

    def __init__(self, refused: InputChannelID) -> None:
        super().__init__()
        self.refused = refused

    def allocate(  # type: ignore[override] # this one may have no room
        self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool
    ) -> HeapBuffer | None:
        if receiver == self.refused:
            return None
        return super().allocate(receiver, size_bytes, data_type, is_compressed=is_compressed)


GONE = input_channel_id(-1, -2)
GONE_MESSAGES: list[Message] = [
    message._replace(receiver=GONE) for message in DATA_MESSAGES if isinstance(message, BufferResponse)
]


def without_buffer(message: Message) -> Message:
    assert isinstance(message, BufferResponse)
    return message._replace(buffer=None)


@pytest.mark.parametrize("length", range(9))
def test_a_frame_that_is_too_short_for_a_header_is_refused_when_its_length_is_here(length: int) -> None:
    """The decoder does not wait for the rest of a header that will not come."""
    decoder = make_decoder()
    good = frame_of(ALL_MESSAGES[0])

    assert len(decoder.feed(good + struct.pack(">I", length)[:3])) == 1
    with pytest.raises(RemoteProtocolError, match=f"a frame of {length} bytes, the least is 9"):
        decoder.feed(struct.pack(">I", length)[3:])


@pytest.mark.parametrize("size", [978, 5000])
def test_an_event_may_be_larger_than_a_buffer(size: int) -> None:
    """A savepoint barrier with a long path, say; its limit is another one."""
    event, data = response(bytes(size), data_type=DataType.PRIORITIZED_EVENT_BUFFER), response(bytes(size))
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, max_event_bytes=5000, staging_bytes=64)

    assert [
        content(message)
        for message in feed_in_parts(decoder, [frame_of(event)[at : at + 50] for at in range(0, size + 47, 50)])
    ] == [bytes(size)]
    with pytest.raises(RemoteProtocolError, match=f"a payload of {size} bytes, expected at most 977"):
        decoder.feed(frame_of(data))

    larger = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, max_event_bytes=size - 1)
    with pytest.raises(
        RemoteProtocolError, match=f"a payload of {size} bytes, expected at most {max(size - 1, 977)}|expected 47 to"
    ):
        larger.feed(frame_of(event))


@given(st.lists(st.sampled_from([*ALL_MESSAGES, *GONE_MESSAGES]), max_size=12), st.data())
def test_hist_10742_neither_the_cuts_nor_what_is_skipped_matter(messages: list[Message], data: st.DataObject) -> None:
    """NettyMessageClientDecoderDelegateTest: any cut of data, empty buffers, released and removed channels and other
    messages.

    Messages and their bytes are equal to those of one read; there is one buffer per message, and none is left over.
    """
    stream = b"".join(map(frame_of, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    parts = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    allocator = ChoosyAllocator(GONE)
    decoder = FedDecoder(
        allocator,
        max_data_frame_bytes=1024,
        staging_bytes=data.draw(st.integers(9, 300)),
        direct_read_bytes=data.draw(st.integers(1, 300)),
    )

    received = feed_in_parts(decoder, parts)

    decoder.close()
    assert received == [without_buffer(message) if message in GONE_MESSAGES else message for message in messages]
    buffers = [
        message.buffer for message in received if isinstance(message, BufferResponse) and message.buffer is not None
    ]
    assert [id(buffer) for buffer in buffers] == [id(buffer) for buffer in allocator.allocated]
    assert all(buffer.num_recycled == 0 for buffer in allocator.allocated)


@pytest.mark.parametrize("message", DATA_MESSAGES)
def test_hist_10742_a_buffer_cut_in_three_is_the_same_buffer(message: Message) -> None:
    """Every pair of cuts, in header, partial sizes and payload; also if the rest is read in place."""
    frame = frame_of(message)[:80]
    tail = frame_of(message)[80:]
    for first in range(1, len(frame)):
        for second in range(first, len(frame)):
            decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, staging_bytes=64, direct_read_bytes=1)

            assert feed_in_parts(decoder, [frame[:first], frame[first:second], frame[second:] + tail]) == [message]


def test_hist_1761_an_empty_buffer_is_a_message_like_any_other() -> None:
    """A length of zero takes a buffer, whose owner gives the credit back; the next frame is not lost."""
    allocator = HeapAllocator()
    decoder = FedDecoder(allocator, max_data_frame_bytes=1024)

    messages = decoder.feed(
        frame_of(response(b"")) * 2
        + frame_of(response(b"x"))
        + frame_of(response(b"", data_type=DataType.EVENT_BUFFER))
    )

    assert [content(message) for message in messages] == [b"", b"", b"x", b""]
    assert len(allocator.allocated) == 4


def test_hist_10356_every_frame_consumes_the_length_that_it_declares() -> None:
    """A body can neither borrow nor leave bytes."""
    for message in ALL_MESSAGES:
        decoder = make_decoder()
        frame = frame_of(message)

        assert decoder.feed(frame + b"\0\0\0\x09") == [message]
        assert decoder.num_buffered_bytes == 4


@given(st.lists(st.sampled_from([*ALL_MESSAGES, *GONE_MESSAGES]), min_size=1, max_size=6), st.data())
def test_hist_10742_no_buffer_is_lost_when_a_stream_breaks(messages: list[Message], data: st.DataObject) -> None:
    """Every buffer is in a message or was given back, once, after one byte was wrong and the connection ended."""
    stream = bytearray(b"".join(map(frame_of, messages)))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    allocator = ChoosyAllocator(GONE)
    decoder = FedDecoder(
        allocator, max_data_frame_bytes=1024, max_frame_bytes=2048, staging_bytes=64, direct_read_bytes=1
    )
    received: list[Decoded] = []
    with contextlib.suppress(RemoteProtocolError):
        for at in range(0, len(stream), 7):
            received += decoder.feed(bytes(stream[at : at + 7]))

    decoder.close()

    delivered = {id(message.buffer) for message in received if isinstance(message, BufferResponse)}
    for buffer in allocator.allocated:
        assert buffer.num_recycled == (0 if id(buffer) in delivered else 1)


def test_hist_8768_a_frame_is_copied_once_however_it_comes() -> None:
    """Split reads are put together in place: a payload in 1-byte reads takes no more staging memory than in one."""
    decoder = make_decoder(staging_bytes=64)
    frame = frame_of(response(bytes(range(200)) * 4))

    messages = feed_in_parts(decoder, [frame[at : at + 1] for at in range(len(frame))])

    assert [content(message) for message in messages] == [bytes(range(200)) * 4]
    assert len(decoder.get_buffer()) == 64


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_garbage_raises_only_documented_errors(parts: list[bytes]) -> None:
    """Whatever a peer sends, only ``RemoteProtocolError`` is raised."""
    decoder = make_decoder()
    with contextlib.suppress(RemoteProtocolError):
        feed_in_parts(decoder, parts)


@given(st.lists(st.sampled_from(ALL_MESSAGES), min_size=1, max_size=4), st.data())
def test_corrupted_streams_raise_only_documented_errors(messages: list[Message], data: st.DataObject) -> None:
    """One flipped byte leads to other messages, an error or a longer wait, with bounded memory."""
    stream = bytearray(b"".join(map(frame_of, messages)))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    decoder = make_decoder(staging_bytes=64)

    with contextlib.suppress(RemoteProtocolError):
        decoder.feed(bytes(stream))
    assert len(decoder.get_buffer()) <= 2048


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (struct.pack(">IIB", 9, 0xBADC0FFF, 5), "received the magic number BADC0FFF, expected BADC0FFE"),
        (struct.pack(">IIB", 47, 0, 0), "received the magic number 00000000"),
        (b"\x16\x04zzzzzzz", r"expected BADC0FFE$"),  # no guess at a foreign protocol
        (struct.pack(">IIB", 9, MAGIC, 12), "unknown message id 12"),
        (struct.pack(">IIB", 9, MAGIC, 63), "unknown message id 63"),
        (struct.pack(">IIB", 9, MAGIC, 255), "unknown message id 255"),
        (struct.pack(">IIB", 8, MAGIC, 5), "message id 5 has 8 bytes"),
        (struct.pack(">IIB", 0, MAGIC, 0), "message id 0 has 0 bytes, expected 47 to 17408"),
        (struct.pack(">IIB", 46, MAGIC, 0), "message id 0 has 46 bytes"),
        (struct.pack(">IIB", 17409, MAGIC, 0), "message id 0 has 17409 bytes, expected 47 to 17408"),
        (struct.pack(">IIB", 2**31 - 1, MAGIC, 0), "has 2147483647 bytes"),
        (struct.pack(">IIB", 2**31 - 1, MAGIC, 1), "has 2147483647 bytes"),
        (data_header(size=978, length=1025), "a payload of 978 bytes, expected at most 977"),
        (data_header(num_partial=1, size=978, length=1029), "a payload of 978 bytes, expected at most 977"),
        (struct.pack(">IIB", 0xFFFFFFFF, MAGIC, 0), "has 4294967295 bytes"),
        (struct.pack(">IIB", 2049, MAGIC, 3), "message id 3 has 2049 bytes, expected 89 to 2048"),
        (struct.pack(">IIB", 88, MAGIC, 3), "message id 3 has 88 bytes"),
        (struct.pack(">IIB", 11, MAGIC, 1), "message id 1 has 11 bytes, expected 12 to 2048"),
        (data_header(size=1), "announces 1 bytes and 0 partial sizes, 0 bytes follow"),
        (data_header(size=-1), "announces -1 bytes"),
        (data_header(size=0, tail=b"x"), "announces 0 bytes and 0 partial sizes, 1 bytes follow"),
        (data_header(num_partial=-1, size=5, tail=b"x"), "5 bytes and -1 partial sizes"),
        (data_header(num_partial=1, size=4, tail=b"\0\0\0\4"), "announces 4 bytes and 1 partial sizes, 4 bytes follow"),
        (data_header(num_partial=2, size=-1, tail=b"\0" * 7), "announces -1 bytes and 2 partial"),
        (data_header(num_partial=1, size=1, tail=b"\0\0\0\2x"), "do not add up"),
        (data_header(num_partial=2, size=1, tail=struct.pack(">ii", -1, 2) + b"x"), "do not add up"),
        (data_header(data_type=0), "data type 0"),
        (data_header(data_type=14), "data type 14"),
        (data_header(is_compressed=2), "compression flag 2"),
        (data_header(backlog=-1), "backlog -1"),
        (data_header(subpartition=-1), "subpartition -1"),
        (struct.pack(">IIBi16s", 29, MAGIC, 6, 0, RECEIVER), "AddCredit.credit is 0"),
    ],
)
def test_broken_frames_are_refused_as_early_as_they_are_known(stream: bytes, complaint: str) -> None:
    """The error has the wrong value; a wrong length is refused before its body arrives."""
    decoder = make_decoder()

    with pytest.raises(RemoteProtocolError, match=complaint):
        decoder.feed(stream)


@pytest.mark.parametrize(
    ("frame", "length"),
    [
        (data_header(tail=b"x" * (MAX_DATA_FRAME_BYTES - 47), size=MAX_DATA_FRAME_BYTES - 47), MAX_DATA_FRAME_BYTES),
        (data_header(), 47),
    ],
)
def test_the_limits_themselves_are_allowed(frame: bytes, length: int) -> None:
    """The greatest and the smallest data frame."""
    messages = make_decoder().feed(frame)

    assert len(frame) == length
    assert [type(message) for message in messages] == [BufferResponse]


def test_all_data_types_are_read() -> None:
    """Every ordinal from 1 to the last one."""
    decoder = make_decoder()

    read = [decoder.feed(data_header(data_type=data_type))[0] for data_type in list(DataType)[1:]]

    assert [message.data_type for message in read if isinstance(message, BufferResponse)] == list(DataType)[1:]


def test_after_an_error_everything_is_refused() -> None:
    """A stream that was broken once has no beginning of a frame any more."""
    decoder = make_decoder()
    with pytest.raises(RemoteProtocolError) as first:
        decoder.feed(bytes(9))

    with pytest.raises(RemoteProtocolError) as second:
        decoder.feed(encode(CloseRequest()))

    assert second.value is first.value
    assert "failed" in repr(decoder)
    assert len(decoder.get_buffer()) > 0


def test_good_messages_before_a_broken_frame_are_not_lost() -> None:
    """The error stands in ``failure``, and is raised next."""
    decoder = make_decoder()

    messages = decoder.feed(encode(AddCredit(RECEIVER, 1)) + bytes(9))

    assert messages == [AddCredit(RECEIVER, 1)]
    assert decoder.failure is not None
    with pytest.raises(RemoteProtocolError, match="magic"):
        decoder.buffer_updated(0)


def test_a_payload_lands_in_the_buffer_of_its_receiver() -> None:
    """Allocated when the header is complete, and filled as the bytes come."""
    allocator = HeapAllocator()
    decoder = FedDecoder(allocator, max_data_frame_bytes=1024)
    frame = frame_of(response(b"payload"))

    assert decoder.feed(frame[:50]) == []
    (buffer,) = allocator.allocated
    assert bytes(buffer.view) == b"pay\0\0\0\0"
    (message,) = decoder.feed(frame[50:])

    assert isinstance(message, BufferResponse)
    assert message.buffer is buffer
    assert bytes(buffer.view) == b"payload"


def test_a_large_rest_is_read_in_place() -> None:
    """The socket writes into the receiver's buffer itself; what follows goes through the staging buffer again."""
    allocator = HeapAllocator()
    decoder = FedDecoder(allocator, max_data_frame_bytes=1024, staging_bytes=64, direct_read_bytes=100)
    frame = frame_of(response(b"x" * 300))
    decoder.feed(frame[:64])

    buffer = decoder.get_buffer()

    assert len(buffer) == len(frame) - 64
    buffer[:] = b"y" * len(buffer)
    (message,) = decoder.buffer_updated(len(buffer))
    assert content(message) == b"x" * 17 + b"y" * 283
    assert decoder.feed(frame_of(CloseRequest())) == [CloseRequest()]


def test_a_decoder_that_is_closed_gives_the_unfinished_buffer_back() -> None:
    """The unfinished buffer is recycled once."""
    allocator = HeapAllocator()
    decoder = FedDecoder(allocator, max_data_frame_bytes=1024)
    decoder.feed(frame_of(response(b"payload"))[:50])

    decoder.close()
    decoder.close()

    assert allocator.allocated[0].num_recycled == 1


def test_without_room_the_payload_is_skipped() -> None:
    """The message arrives without a buffer, and the stream goes on behind it."""
    decoder = FedDecoder(None, max_data_frame_bytes=1024, staging_bytes=64)

    messages = feed_in_parts(decoder, [frame_of(response(b"x" * 300)) + frame_of(CloseRequest())])

    assert messages == [response(b"x")._replace(buffer=None), CloseRequest()]


def test_the_rest_of_a_read_moves_to_the_front() -> None:
    """A read always finds room for the rest of the frame that it continues."""
    decoder = make_decoder(staging_bytes=100)
    frame = frame_of(response(b"x" * 20))
    half = len(frame) // 2
    decoder.feed(frame + frame[:half])

    buffer = decoder.get_buffer()

    assert len(buffer) == 100 - half
    assert decoder.feed(frame[half:]) == [response(b"x" * 20)]
    assert len(decoder.get_buffer()) == 100


def test_the_buffer_grows_only_to_the_frame_that_was_announced() -> None:
    """An announced length within the limit takes that much memory, not more; payloads are not staged."""
    decoder = make_decoder(staging_bytes=64)
    message = ErrorResponse(ErrorCode.INTERNAL, "x" * 500, None)
    frame = frame_of(message)

    decoder.feed(frame[:10])

    assert len(decoder.get_buffer()) == len(frame) - 10
    assert decoder.feed(frame[10:]) == [message]


def test_the_smallest_settings_work() -> None:
    """The staging buffer of nine bytes grows as needed."""
    decoder = make_decoder(staging_bytes=9, max_data_frame_bytes=47)

    assert decoder.feed(data_header() + encode(AddCredit(input_channel_id(0, 0), 1)))[1] == AddCredit(
        input_channel_id(0, 0), 1
    )
    assert "open" in repr(decoder)


@pytest.mark.parametrize("accepted", [HANDSHAKE_MESSAGE_IDS, SERVER_MESSAGE_IDS, CLIENT_MESSAGE_IDS])
@pytest.mark.parametrize("message", ALL_MESSAGES)
def test_only_accepted_messages_are_understood(accepted: frozenset[int], message: Message) -> None:
    """Any other message is refused at its header, without waiting for its body or allocating a buffer."""
    allocator = HeapAllocator()
    decoder = FedDecoder(allocator, max_data_frame_bytes=1024, accepted_ids=accepted)
    frame = frame_of(message)

    if frame[8] in accepted:
        assert decoder.feed(frame) == [message]
        return
    with pytest.raises(
        RemoteProtocolError, match=f"message id {frame[8]} in a frame of {len(frame)} bytes is not understood here"
    ):
        decoder.feed(frame[:9])
    assert allocator.allocated == []


def test_every_message_goes_to_one_side_or_belongs_to_the_handshake() -> None:
    """Gates and offering producers understand one message more each."""
    sets = (HANDSHAKE_MESSAGE_IDS, OFFERING_MESSAGE_IDS, GATE_MESSAGE_IDS, {HEARTBEAT_ID})
    assert set().union(*sets) == ALL_MESSAGE_IDS == set(FRAME_BYTES)
    assert sum(map(len, sets)) == len(ALL_MESSAGE_IDS)
    assert {68} == GATE_MESSAGE_IDS - CLIENT_MESSAGE_IDS
    assert {69} == OFFERING_MESSAGE_IDS - SERVER_MESSAGE_IDS


def test_more_messages_can_be_accepted_from_the_next_read_on() -> None:
    """Bytes of the read that had the last message are judged by the old rule."""
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, accepted_ids=HANDSHAKE_MESSAGE_IDS)
    impatient = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, accepted_ids=HANDSHAKE_MESSAGE_IDS)

    assert decoder.feed(encode(Ready(1))) == [Ready(1)]
    decoder.accept(CLIENT_MESSAGE_IDS)
    assert decoder.feed(frame_of(response(b"x"))) == [response(b"x")]
    with pytest.raises(RemoteProtocolError, match="message id 66"):
        decoder.feed(encode(Ready(1)))

    assert impatient.feed(encode(Ready(1)) + frame_of(response(b"x"))) == [Ready(1)]
    assert "message id 0 in a frame of 48 bytes is not understood" in str(impatient.failure)


def test_a_message_that_is_on_its_way_when_the_rules_change_is_judged_by_the_new_ones() -> None:
    """The header of such a message is looked at again when more bytes come."""
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024)
    decoder.feed(encode(Hello(1, 1, 0, bytes(32)))[:20])

    decoder.accept(SERVER_MESSAGE_IDS)

    with pytest.raises(RemoteProtocolError, match="message id 64"):
        decoder.feed(encode(Hello(1, 1, 0, bytes(32)))[20:])


@pytest.mark.parametrize(
    ("start", "guess"),
    [
        (b"GET / HTTP/1.1\r\n", "the peer seems to speak HTTP"),
        (b"POST /jobs HTTP/1.1\r\n", "the peer seems to speak HTTP"),
        (b"PRI * HTTP/2.0\r\n", "the peer seems to speak HTTP"),
        (bytes.fromhex("16030100f8010000f40303"), "the peer seems to speak TLS"),
        (bytes.fromhex("150303000202280000"), "the peer seems to speak TLS"),
        (b"SSH-2.0-OpenSSH_9.2", "the peer seems to speak SSH"),
    ],
)
def test_a_foreign_protocol_is_named(start: bytes, guess: str) -> None:
    """The error tells a reader of the log that the wrong port was configured, not that a stream is corrupted."""
    decoder = make_decoder()

    with pytest.raises(RemoteProtocolError, match=guess):
        decoder.feed(start)
    with pytest.raises(RemoteProtocolError, match=guess):
        decoder.feed(b"more")


def test_tiny_reads_cost_linear_work() -> None:
    """Each byte of a frame is moved at most once."""
    decoder = FedDecoder(None, max_data_frame_bytes=1024, staging_bytes=64)
    frame = frame_of(TaskEventRequest(b"x" * 200_000, PARTITION, RECEIVER))
    decoder.feed(frame[:64])
    first = decoder.get_buffer()

    messages = feed_in_parts(decoder, [frame[at : at + 100] for at in range(64, len(frame) - 100, 100)])

    rest = decoder.get_buffer()
    assert messages == []
    assert (len(first), rest.obj is first.obj) == (len(frame) - 64, True)


def test_the_longest_frame_that_is_encoded_is_understood() -> None:
    """The longest event of one task does not end the connection that it shares with others."""
    event = TaskEventRequest(bytes(MAX_FRAME_BYTES - 89), PARTITION, RECEIVER)

    assert FedDecoder(max_data_frame_bytes=1024).feed(encode(event)) == [event]


def test_an_error_has_a_tighter_limit_that_every_error_of_ours_keeps() -> None:
    """No receiver has to hold a megabyte for a text; the longest text of the widest characters still gets through."""
    decoder = FedDecoder(max_data_frame_bytes=1024)
    longest = ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "\U0001f600" * 8192, RECEIVER, RECEIVER)
    assert decoder.feed(encode(longest)) == [longest]

    with pytest.raises(RemoteProtocolError, match="message id 1 has 131073 bytes, expected 12 to 131072"):
        decoder.feed(struct.pack(">IIB", 128 * 1024 + 1, MAGIC, 1))


def test_a_broken_frame_does_not_keep_the_read_buffer_after_the_close() -> None:
    """The error's traceback held it: 1 MiB per hostile connection."""
    decoder = make_decoder()
    memory = decoder.get_buffer().obj
    assert isinstance(memory, bytearray)
    with suppress(RemoteProtocolError):
        decoder.feed(b"GET / HTTP/1.1\r\n\r\n")
    error = decoder.failure

    decoder.close()

    assert error is not None
    memory.append(0)  # BufferError: there is a view of it
