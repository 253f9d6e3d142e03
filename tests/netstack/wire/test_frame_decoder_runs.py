"""``FrameDecoder`` with allocators that give several buffers at once: the decoded content depends neither on the cuts
of the stream nor on the number of buffers.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import RemoteProtocolError
from netstack.ids import InputChannelID, input_channel_id
from netstack.wire.frame_decoder import Decoded
from netstack.wire.message_bytes import BUFFER_RESPONSE_HEADER_BYTES, NUMBERS_END, encode
from netstack.wire.messages import AddCredit, BufferResponse, BufferRun, DataType
from tests.netstack.wire.samples import RECEIVER, FedDecoder, HeapAllocator, HeapBuffer, content, frame_of

OTHER = input_channel_id(3, 4)
MAX = 2**31 - 1


class RunAllocator(HeapAllocator):
    """Gives at most ``max_per_run`` buffers at once, and ``num_left`` of them in all; remembers the requests."""

    def __init__(self, max_per_run: int = 1000, num_left: int = 1000) -> None:
        super().__init__()
        self.max_per_run = max_per_run
        self.num_left = num_left
        self.asked: list[tuple[InputChannelID, int, int]] = []

    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> Sequence[HeapBuffer]:
        self.asked.append((receiver, size_bytes, max_buffers))
        num_buffers = min(max_buffers, self.max_per_run, self.num_left)
        self.num_left -= num_buffers
        found = [HeapBuffer(bytearray(size_bytes)) for _ in range(num_buffers)]
        self.allocated += found
        return found


def frame(
    number: int,
    payload: bytes = b"payload",
    *,
    receiver: InputChannelID = RECEIVER,
    backlog: int = 3,
    data_type: DataType = DataType.DATA_BUFFER,
    is_compressed: bool = False,
    partial_sizes: tuple[int, ...] = (),
    subpartition: int = 4,
) -> bytes:
    buffer = HeapBuffer(payload)
    return frame_of(
        BufferResponse(receiver, subpartition, number, backlog, data_type, is_compressed, partial_sizes, buffer)
    )


def decoder_of(allocator: HeapAllocator, *, staging_bytes: int = 4096) -> FedDecoder:
    return FedDecoder(allocator, max_data_frame_bytes=1024, max_frame_bytes=2048, staging_bytes=staging_bytes)


def feed(decoder: FedDecoder, stream: bytes, cuts: Sequence[int] = ()) -> list[Decoded]:
    found: list[Decoded] = []
    for start, end in pairwise([0, *sorted(cuts), len(stream)]):
        found += decoder.feed(stream[start:end])
        decoder.check_invariants()
    return found


def singles(messages: Sequence[Decoded]) -> list[object]:
    """Return the messages as single ones, without backlogs: the backlog of a run is known for its last buffer only."""
    found: list[object] = []
    for message in messages:
        if isinstance(message, BufferRun):
            for position, buffer in enumerate(message.buffers):
                number = message.sequence_number + position
                found.append((*message[:2], number, DataType.DATA_BUFFER, False, (), bytes(buffer.view)))
        elif isinstance(message, BufferResponse):
            receiver, subpartition, number, _, *rest = message[:7]
            found.append((receiver, subpartition, number, *rest, content(message)))
        else:
            found.append(message)
    return found


def run_lengths(messages: Sequence[Decoded]) -> list[int]:
    """Return how many buffers came together; 1 for a single message."""
    return [len(each.buffers) if isinstance(each, BufferRun) else 1 for each in messages]


MIXED = b"".join(
    [
        *(frame(number, bytes([number]) * 9, backlog=8 - number) for number in range(4)),
        frame(4, b"short"),
        frame(5, b"other5", receiver=OTHER),
        frame(6, b"other6", receiver=OTHER),
        encode(AddCredit(RECEIVER, 1)),
        frame(5, b"\0\0\0\0", data_type=DataType.END_OF_DATA),
        frame(6, b"12345", is_compressed=True),
        frame(7, b"12345", is_compressed=True),
        frame(8, b"12345", partial_sizes=(2, 3)),
        frame(9, b""),
        frame(10, b""),
        frame(11, b"last0"),
        frame(12, b"last1"),
    ]
)


def test_equal_frames_in_one_read_are_one_run() -> None:
    """A run has the sequence number of its first frame, the backlog of its last one, and each payload in its buffer."""
    allocator = RunAllocator()
    stream = b"".join(frame(number, bytes([number]) * 9, backlog=20 - 2 * number) for number in range(5, 9))

    [run] = decoder_of(allocator).feed(stream)

    assert isinstance(run, BufferRun)
    assert run[:4] == (RECEIVER, 4, 5, 4)
    assert [bytes(buffer.view) for buffer in run.buffers] == [bytes([number]) * 9 for number in range(5, 9)]
    assert allocator.asked == [(RECEIVER, 9, 4)]


def test_what_differs_ends_a_run() -> None:
    """Length, receiver, type, compression, partial sizes, another message, an empty buffer."""
    messages = decoder_of(RunAllocator()).feed(MIXED)

    assert run_lengths(messages) == [4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 2]
    assert singles(messages) == singles(decoder_of(HeapAllocator()).feed(MIXED))


@pytest.mark.parametrize(
    "allocator", [RunAllocator(0), RunAllocator(1), RunAllocator(2), RunAllocator(), RunAllocator(3, 5)]
)
def test_the_content_is_the_same_for_every_cut_and_every_allocator(allocator: RunAllocator) -> None:
    """With fewer buffers than asked for, or none, the rest comes one by one."""
    expected = singles(decoder_of(HeapAllocator()).feed(MIXED))
    max_per_run, num_left = allocator.max_per_run, allocator.num_left

    for cut in range(len(MIXED) + 1):
        found = feed(decoder_of(RunAllocator(max_per_run, num_left), staging_bytes=512), MIXED, [cut])
        assert singles(found) == expected, cut


@given(cuts=st.lists(st.integers(0, len(MIXED)), max_size=8), max_per_run=st.integers(0, 4), num_left=st.integers(0, 9))
def test_neither_cuts_nor_buffers_matter(cuts: list[int], max_per_run: int, num_left: int) -> None:
    """Any number of cuts, and of buffers that the allocator gives, leads to equal content."""
    found = feed(decoder_of(RunAllocator(max_per_run, num_left), staging_bytes=128), MIXED, cuts)

    assert singles(found) == singles(decoder_of(HeapAllocator()).feed(MIXED))


def test_fewer_buffers_than_frames_take_the_backlog_of_their_last_one() -> None:
    """With two buffers for four frames, the run ends after two."""
    stream = b"".join(frame(number, backlog=9 - number) for number in range(4))

    messages = decoder_of(RunAllocator(2, 2)).feed(stream)

    first = messages[0]
    assert isinstance(first, BufferRun)
    assert (run_lengths(messages), first.backlog) == ([2, 1, 1], 8)
    assert [each.backlog for each in messages[1:] if isinstance(each, BufferResponse)] == [7, 6]


def test_a_sequence_number_that_is_not_the_next_one_begins_a_run_of_its_own() -> None:
    """A jump of the numbers, also at the wrap, begins a new run: the channel decides whether it is an error."""
    stream = b"".join(frame(number) for number in (0, 1, 5, 6, 6, 7, MAX - 1, MAX, -MAX - 1, -MAX))

    messages = decoder_of(RunAllocator()).feed(stream)

    runs = [(each.sequence_number, len(each.buffers)) for each in messages if isinstance(each, BufferRun)]
    assert runs == [(0, 2), (5, 2), (6, 2), (MAX - 1, 2), (-MAX - 1, 2)]


@pytest.mark.parametrize(("broken", "expected"), [(0, []), (1, [1]), (2, [2]), (3, [3])])
def test_a_negative_backlog_breaks_the_stream_where_it_stands(broken: int, expected: list[int]) -> None:
    """Frames before the broken one arrive with their own backlog; no buffer was allocated for the broken one."""
    allocator = RunAllocator()
    decoder = decoder_of(allocator)
    good = [frame(number, backlog=7) for number in range(4)]
    good[broken] = good[broken][: NUMBERS_END - 4] + b"\xff" * 4 + good[broken][NUMBERS_END:]

    if expected:
        messages = decoder.feed(b"".join(good))
        assert (run_lengths(messages), len(allocator.allocated)) == (expected, broken)
        assert isinstance(decoder.failure, RemoteProtocolError)
    else:
        with pytest.raises(RemoteProtocolError, match="backlog -1"):
            decoder.feed(b"".join(good))
        assert allocator.allocated == []


def test_a_negative_subpartition_is_no_run() -> None:
    """A negative subpartition is refused, as in a single frame."""
    stream = bytearray(frame(0) + frame(1))
    for start in (0, len(stream) // 2):
        stream[start + 25 : start + 29] = b"\xff" * 4

    with pytest.raises(RemoteProtocolError, match="subpartition -1"):
        decoder_of(RunAllocator()).feed(bytes(stream))


def test_the_last_frame_of_a_read_may_be_incomplete() -> None:
    """Complete frames are a run, and the rest is received as usual."""
    stream = b"".join(frame(number, bytes([number]) * 50) for number in range(4))
    decoder = decoder_of(RunAllocator())

    first = decoder.feed(stream[:-10])
    second = decoder.feed(stream[-10:])

    assert (run_lengths(first), run_lengths(second)) == ([3], [1])
    assert singles(first + second) == singles(decoder_of(HeapAllocator()).feed(stream))


def test_a_read_full_of_small_buffers_that_nobody_takes_is_looked_at_once() -> None:
    """A thousand frames would cost half a million looks."""
    allocator = RunAllocator(0)
    frames = b"".join(frame(number, b"x") for number in range(500))

    messages = decoder_of(allocator, staging_bytes=len(frames)).feed(frames)

    assert len(messages) == 500
    assert sum(max_buffers for _, _, max_buffers in allocator.asked) <= len(messages), (
        "every frame was part of one question at most"
    )


def test_the_next_read_asks_again() -> None:
    """A refused allocator is asked again at the next read: there may be credit by then."""
    allocator = RunAllocator(1000, 0)
    decoder = decoder_of(allocator)
    decoder.feed(frame(0) + frame(1))
    allocator.num_left = 2

    assert run_lengths(decoder.feed(frame(2) + frame(3))) == [2]


def test_headers_are_compared_to_their_last_byte() -> None:
    """A length that does not match its size is refused, in the middle of what looks like a run, too."""
    stream = bytearray(b"".join(frame(number) for number in range(3)))
    stream[2 * (len(stream) // 3) + BUFFER_RESPONSE_HEADER_BYTES - 1] += 1
    decoder = decoder_of(RunAllocator())

    assert run_lengths(decoder.feed(bytes(stream))) == [2]
    assert isinstance(decoder.failure, RemoteProtocolError)
