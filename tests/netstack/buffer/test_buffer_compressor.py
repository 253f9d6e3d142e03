"""``BufferCompressor`` and ``BufferDecompressor``: smaller or untouched, and never trusting the peer."""

import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, MemorySegment, NetworkBuffer
from netstack.errors import RemoteProtocolError
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import Home

SEGMENT = 4096
LONGS = b"".join(struct.pack("<q", number) for number in range(SEGMENT // 8))


def make_buffer(content: bytes, data_type: DataType = DataType.DATA_BUFFER) -> tuple[NetworkBuffer, Home]:
    recycler = Home()
    return NetworkBuffer(MemorySegment(memoryview(bytearray(content))), recycler, len(content), data_type), recycler


def compressed(content: bytes) -> NetworkBuffer:
    """Return a compressed buffer as it arrives from the wire."""
    return NetworkBuffer.unpooled(content, DataType.DATA_BUFFER, is_compressed=True)


def test_a_buffer_comes_back_as_it_was() -> None:
    """BufferCompressionTest: compress and decompress; smaller in between, each segment home after its turn."""
    buffer, recycler = make_buffer(LONGS)

    smaller = BufferCompressor().compress(buffer)
    after_compression = (smaller.is_compressed, smaller.size < SEGMENT, smaller.data_type, recycler.count)
    restored = BufferDecompressor(SEGMENT).decompress(smaller)

    assert after_compression == (True, True, DataType.DATA_BUFFER, 1)
    assert (bytes(restored.view), restored.is_compressed, restored.is_buffer) == (LONGS, False, True)
    restored.recycle()


def test_a_slice_is_compressed_without_its_neighbours() -> None:
    """BufferCompressionTest: a read-only slice; the other holder of the segment still sees the original bytes."""
    buffer, recycler = make_buffer(LONGS)
    part = buffer.slice(1024, 2048)

    smaller = BufferCompressor().compress(part)
    restored = BufferDecompressor(SEGMENT).decompress(smaller)

    assert (bytes(restored.view), bytes(buffer.view), recycler.count) == (LONGS[1024:3072], LONGS, 0)
    buffer.recycle()
    assert recycler.count == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x", id="one byte"),
        pytest.param(b"x" * 8, id="no longer than the header"),
        pytest.param(random.Random(7).randbytes(1000), id="random"),
    ],
)
def test_what_does_not_shrink_stays_as_it_is(content: bytes) -> None:
    """BufferCompressionTest: a buffer that would grow by compression is returned itself."""
    buffer, recycler = make_buffer(content)

    result = BufferCompressor().compress(buffer)

    assert (result is buffer, result.is_compressed, recycler.count) == (True, False, 0)
    buffer.recycle()


def test_equal_size_is_not_smaller() -> None:
    """The header counts: only a strictly smaller buffer replaces the original."""
    sizes = []
    for length in range(9, 60):
        buffer, _ = make_buffer(b"a" * length)
        result = BufferCompressor().compress(buffer)
        sizes.append((length, result.size if result.is_compressed else None))
        result.recycle()

    assert all(size is None or size < length for length, size in sizes)
    assert any(size == length - 1 for length, size in sizes), "and one byte less is enough"


def test_events_and_compressed_buffers_are_left_alone() -> None:
    """Compress event, compress compressed buffer, decompress event, decompress uncompressed buffer."""
    event, _ = make_buffer(b"\0" * 200, DataType.EVENT_BUFFER)
    done = compressed(b"\0" * 200)
    plain, _ = make_buffer(LONGS)

    assert BufferCompressor().compress(event) is event
    assert BufferCompressor().compress(done) is done
    assert BufferDecompressor(SEGMENT).decompress(event) is event
    assert BufferDecompressor(SEGMENT).decompress(plain) is plain


def test_the_format_is_flinks() -> None:
    """The format is two little-endian lengths, then the raw block; here 100 equal bytes, written out."""
    buffer, _ = make_buffer(b"a" * 100)
    block = bytes.fromhex("1f6101004b506161616161")

    smaller = BufferCompressor().compress(buffer)

    assert bytes(smaller.view) == struct.pack("<ii", len(block), 100) + block


GOLDEN_WORDS = (
    "ff067461736b6d616e61676572206372656469742030201500001f311500011f341500011f391500012f31361600012f3235"
    "1600011f332c00021f345800021f368300021f38ae00021d336d00506974203234"
)
WORDS = b" ".join(b"taskmanager credit %d" % (number * number % 97) for number in range(12))


@pytest.mark.parametrize(
    ("original", "block"),
    [
        pytest.param(b"a" * 100, "1f6101004b506161616161", id="one byte a hundred times"),
        pytest.param(WORDS, GOLDEN_WORDS, id="words"),
        pytest.param(b"flowlet", "70666c6f776c6574", id="literals alone"),
    ],
)
def test_blocks_of_the_reference_library_are_read(original: bytes, block: str) -> None:
    """Flink's writers use LZ4's own library; version 1.9.4 of it made these blocks."""
    raw = bytes.fromhex(block)

    restored = BufferDecompressor(SEGMENT).decompress(compressed(struct.pack("<ii", len(raw), len(original)) + raw))

    assert bytes(restored.view) == original


@pytest.mark.parametrize("surplus", [1, 5, 200, SEGMENT - 100])
def test_a_claim_that_is_too_large_shows_no_memory_of_this_process(surplus: int) -> None:
    """The rest of the buffer would show former contents, such as another job's records."""
    raw = bytes.fromhex("1f6101004b506161616161")
    claim = struct.pack("<ii", len(raw), 100 + surplus)

    with pytest.raises(RemoteProtocolError, match=f"claims an original of {100 + surplus} bytes, but holds fewer"):
        BufferDecompressor(SEGMENT).decompress(compressed(claim + raw))


@pytest.mark.slow
def test_a_network_without_compression_loads_no_arrow() -> None:
    """The import of pyarrow takes longer than that of all of netstack: only the first compressed buffer pays for it."""
    program = """
import sys
import netstack
from netstack.buffer.network_buffer import BufferCompressor
from netstack.buffer.network_buffer import BufferDecompressor
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.wire.messages import DataType
BufferDecompressor(4096).decompress(BufferCompressor().compress(NetworkBuffer.unpooled(b"x", DataType.DATA_BUFFER)))
assert "pyarrow" not in sys.modules
BufferCompressor().compress(NetworkBuffer.unpooled(b"x" * 100, DataType.DATA_BUFFER))
assert "pyarrow" in sys.modules
"""

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"", "has no header", id="empty"),
        pytest.param(b"\0" * 7, "has no header", id="short header"),
        pytest.param(struct.pack("<ii", 5, 100) + b"1234", "claims 5 compressed, 100 original", id="truncated"),
        pytest.param(struct.pack("<ii", 3, 100) + b"1234", "claims 3 compressed", id="trailing bytes"),
        pytest.param(
            struct.pack("<ii", 4, SEGMENT + 1) + b"1234", r"original ones \(at most 4096\)", id="larger than a segment"
        ),
        pytest.param(struct.pack("<ii", 4, 2**31 - 1) + b"1234", "2147483647 original", id="a bomb"),
        pytest.param(struct.pack("<ii", 4, 0) + b"1234", "0 original", id="nothing"),
        pytest.param(struct.pack("<ii", 4, -1) + b"1234", "-1 original", id="negative"),
        pytest.param(struct.pack("<ii", -4, 10) + b"1234", "-4 compressed", id="negative block"),
        pytest.param(struct.pack("<ii", 4, 10) + b"\xff\xff\xff\xff", "is broken", id="no lz4"),
        pytest.param(
            struct.pack("<ii", 11, 101) + bytes.fromhex("1f6101004b506161616161"),
            "claims an original of 101 bytes, but holds fewer",
            id="short",
        ),
        pytest.param(struct.pack("<ii", 11, 99) + bytes.fromhex("1f6101004b506161616161"), "is broken", id="long"),
    ],
)
def test_what_the_peer_claims_is_checked_before_memory_is_allocated(content: bytes, text: str) -> None:
    """Every false claim about the length is refused, and the buffer recycled."""
    recycler = Home()
    segment = MemorySegment(memoryview(bytearray(content or b"x")))
    buffer = NetworkBuffer(segment, recycler, len(content), DataType.DATA_BUFFER, is_compressed=True)

    with pytest.raises(RemoteProtocolError, match=text):
        BufferDecompressor(SEGMENT).decompress(buffer)

    assert recycler.count == 1


@given(content=st.one_of(st.binary(max_size=600), st.lists(st.sampled_from([b"abc", b"0", b"\0" * 40])).map(b"".join)))
def test_every_content_survives(content: bytes) -> None:
    """Any content survives, compressed or not, with one reference in and one out, and never larger."""
    buffer, recycler = make_buffer(content)

    result = BufferCompressor().compress(buffer)
    size = result.size
    restored = BufferDecompressor(max(1, len(content))).decompress(result)

    assert (bytes(restored.view), size <= len(content)) == (content, True)
    restored.recycle()
    assert recycler.count == 1


@given(content=st.binary(max_size=80))
def test_rubbish_raises_only_the_documented_error(content: bytes) -> None:
    """Rubbish raises only the documented error, even with a header that fits."""
    for data in (content, struct.pack("<ii", len(content), 64) + content):
        try:
            BufferDecompressor(SEGMENT).decompress(compressed(data)).recycle()
        except RemoteProtocolError:
            continue
