"""``FrameSeal``, and ``FrameDecoder`` on a sealed connection: equal messages for every cut, and none that is not the
peer's.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netstack.errors import RemoteProtocolError
from netstack.wire.frame_decoder import SEAL_BYTES, Decoded, FrameSeal
from netstack.wire.message_bytes import ALL_MESSAGE_IDS, BUFFER_RESPONSE_ID, FRAME_HEADER_BYTES, encode
from netstack.wire.messages import AddCredit, BufferResponse, BufferRun, CloseRequest, Message
from tests.netstack.wire.samples import ALL_MESSAGES, RECEIVER, FedDecoder, HeapAllocator, frame_of
from tests.netstack.wire.test_frame_decoder_runs import RunAllocator, feed, frame, singles

KEY = bytes(range(32))
NO_SEAL = "does not bear the peer's seal: it was corrupted, repeated, dropped, reordered or injected on the way"


def sealed(frames: list[bytes], key: bytes = KEY) -> list[bytes]:
    """Return each frame with its seal."""
    seal = FrameSeal(key, "tests")
    return [each + seal.sign(*parts(each)) for each in frames]


def parts(frame: bytes) -> tuple[bytes, bytes]:
    """Return the arguments of ``sign``: a frame of data is split before its payload."""
    if frame[FRAME_HEADER_BYTES - 1] != BUFFER_RESPONSE_ID:
        return frame, b""
    end = len(frame) - int.from_bytes(frame[43:47], "big")
    return frame[:end], frame[end:]


def decoder_of(
    allocator: HeapAllocator | None, *, staging_bytes: int = 4096, direct_read_bytes: int = 1 << 17
) -> FedDecoder:
    decoder = FedDecoder(
        allocator,
        max_data_frame_bytes=1024,
        max_frame_bytes=2048,
        staging_bytes=staging_bytes,
        direct_read_bytes=direct_read_bytes,
    )
    decoder.accept(ALL_MESSAGE_IDS, FrameSeal(KEY, "10.0.0.7:6121"))
    return decoder


MIXED = [
    frame_of(AddCredit(RECEIVER, 1)),
    *[frame(number) for number in range(5)],
    frame(5, b""),
    frame(6, b"abcde", partial_sizes=(2, 0, 3)),
    *[frame(number, b"x" * 300) for number in range(7, 12)],
    frame_of(CloseRequest()),
]


def test_a_seal_covers_head_payload_number_and_key() -> None:
    seal = FrameSeal(KEY, "tests").sign(b"head", b"payload")

    assert len(seal) == SEAL_BYTES
    assert FrameSeal(KEY, "tests").sign(b"head", memoryview(b"payload")) == seal
    second = FrameSeal(KEY, "tests")
    second.sign(b"head", b"payload")
    others = [
        second.sign(b"head", b"payload"),
        FrameSeal(KEY[::-1], "tests").sign(b"head", b"payload"),
        FrameSeal(KEY, "tests").sign(b"headp", b"ayload"),
        FrameSeal(KEY, "tests").sign(b"headpayload"),
        FrameSeal(KEY, "tests").sign(b"head", b"payloae"),
    ]
    assert len({seal, *others}) == 6


def test_a_wrong_seal_names_the_peer_and_the_frame() -> None:
    seal = FrameSeal(KEY, "10.0.0.7:6121")

    with pytest.raises(RemoteProtocolError, match=rf"frame 1 from 10\.0\.0\.7:6121 {NO_SEAL}"):
        seal.check(b"head", b"payload", bytes(SEAL_BYTES))
    assert KEY.hex() not in repr(seal)


@pytest.mark.parametrize("message", ALL_MESSAGES)
def test_a_sealed_message_may_be_cut_anywhere(message: Message) -> None:
    """A sealed message is complete with the last byte of its seal, not before."""
    first, second = sealed([frame_of(message), frame_of(CloseRequest())])
    for cut in range(1, len(first), 1 + len(first) // 150):
        decoder = decoder_of(HeapAllocator(), staging_bytes=64)

        assert feed(decoder, first[:cut]) == []
        assert decoder.is_mid_frame
        assert feed(decoder, first[cut:]) == [message]
        assert not decoder.is_mid_frame
        assert feed(decoder, second) == [CloseRequest()]


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, sum(map(len, sealed(MIXED))) - 1), max_size=8),
    st.integers(1, 6),
    st.integers(0, 20),
    st.sampled_from([64, 700, 4096]),
)
def test_sealed_runs_are_the_same_for_every_cut(
    cuts: list[int], max_per_run: int, num_left: int, staging_bytes: int
) -> None:
    """However many buffers there are, even if the socket reads into them itself."""
    plain = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, max_frame_bytes=2048)
    decoder = decoder_of(RunAllocator(max_per_run, num_left), staging_bytes=staging_bytes, direct_read_bytes=50)

    found = feed(decoder, b"".join(sealed(MIXED)), cuts)

    assert singles(found) == singles(feed(plain, b"".join(MIXED)))


@pytest.mark.parametrize("position", range(9))
def test_a_run_with_one_changed_frame_is_not_delivered(position: int) -> None:
    """The buffers of the run are recycled at once."""
    frames = sealed([frame(number) for number in range(9)])
    frames[position] = frames[position].replace(b"payload", b"PAYLOAD")
    allocator = RunAllocator()

    with pytest.raises(RemoteProtocolError, match=f"frame {position + 1} from 10.0.0.7:6121 {NO_SEAL}"):
        decoder_of(allocator).feed(b"".join(frames))

    assert [each.num_recycled for each in allocator.allocated] == [1] * 9


def test_runs_stay_runs() -> None:
    (run,) = feed(decoder_of(RunAllocator()), b"".join(sealed([frame(number) for number in range(9)])))

    assert isinstance(run, BufferRun)
    assert len(run.buffers) == 9


@settings(max_examples=25)
@given(st.lists(st.integers(1, sum(map(len, sealed(MIXED))) - 1), max_size=6))
def test_payloads_without_a_buffer_are_checked_and_skipped(cuts: list[int]) -> None:
    found = feed(decoder_of(None), b"".join(sealed(MIXED)), cuts)

    assert [each.sequence_number for each in found if isinstance(each, BufferResponse)] == list(range(12))
    assert [each.buffer for each in found if isinstance(each, BufferResponse)] == [None] * 12
    broken = bytearray(b"".join(sealed(MIXED)))
    broken[-60] ^= 1  # of the last payload
    decoder = decoder_of(None)
    feed_until_failure(decoder, bytes(broken), cuts)
    assert NO_SEAL in str(decoder.failure)


def feed_until_failure(decoder: FedDecoder, stream: bytes, cuts: list[int]) -> list[Decoded]:
    found: list[Decoded] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        try:
            found += decoder.feed(stream[start:end])
        except RemoteProtocolError:
            break
    return found


def check_refused(stream: bytes, num_good: int, cuts: list[int]) -> None:
    """Assert that at most ``num_good`` frames are delivered, and that ``close`` recycles all other buffers."""
    allocator = RunAllocator()
    decoder = decoder_of(allocator)

    found = singles(feed_until_failure(decoder, stream, cuts))

    assert found == singles(feed(FedDecoder(RunAllocator(), max_data_frame_bytes=1024), b"".join(MIXED)))[: len(found)]
    assert len(found) <= num_good
    num_delivered = sum(type(each) is tuple for each in found)
    decoder.close()
    assert sum(each.num_recycled for each in allocator.allocated) == len(allocator.allocated) - num_delivered
    assert decoder.failure is not None or decoder.num_buffered_bytes == 0


@settings(max_examples=25)
@given(st.data())
def test_a_changed_stream_ends_before_its_first_changed_frame(data: st.DataObject) -> None:
    """A flipped bit, and frames that are dropped, repeated, swapped, signed by another key or not signed."""
    frames = sealed(MIXED)
    at = data.draw(st.integers(0, len(frames) - 2))
    num_good = at
    match data.draw(st.sampled_from(["flip", "drop", "repeat", "swap", "foreign", "unsealed"])):
        case "flip":
            bit = data.draw(st.integers(0, 8 * len(frames[at]) - 1))
            changed = bytearray(frames[at])
            changed[bit // 8] ^= 1 << bit % 8
            frames[at] = bytes(changed)
        case "drop":
            del frames[at]
        case "repeat":
            frames.insert(at, frames[at])
            num_good += 1
        case "swap":
            frames[at], frames[at + 1] = frames[at + 1], frames[at]
        case "foreign":
            frames.insert(at, sealed([MIXED[at]], KEY[::-1])[0])
        case _:
            frames.insert(at, MIXED[at])
    stream = b"".join(frames)

    check_refused(stream, num_good, data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=4)))


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    """A flipped bit is found at once, or, in a length, with the frames after it."""
    first, *others = sealed([frame(0), *[frame(number) for number in range(1, 40)]])
    for bit in range(8 * len(first)):
        changed = bytearray(first)
        changed[bit // 8] ^= 1 << bit % 8
        decoder = decoder_of(RunAllocator())

        assert feed_until_failure(decoder, bytes(changed) + b"".join(others), []) == []
        assert decoder.failure is not None


def test_a_stranger_has_little_memory_and_one_message_at_a_time() -> None:
    """The answer to a message decides how the bytes behind it are read."""
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, staging_bytes=1 << 20)
    decoder.accept(ALL_MESSAGE_IDS, is_known=False)

    assert len(decoder.get_buffer()) == 512
    assert decoder.feed(encode(AddCredit(RECEIVER, 1)) + sealed([encode(CloseRequest())])[0]) == [
        AddCredit(RECEIVER, 1)
    ]
    decoder.accept(ALL_MESSAGE_IDS, FrameSeal(KEY, "tests"))
    assert decoder.buffer_updated(0) == [CloseRequest()]
    assert len(decoder.get_buffer()) == 1 << 20


def test_a_closed_decoder_has_no_memory() -> None:
    decoder = decoder_of(HeapAllocator())
    feed(decoder, sealed(MIXED)[1][:60])

    decoder.close()
    decoder.close()

    decoder.check_invariants()
    assert not decoder.is_mid_frame
