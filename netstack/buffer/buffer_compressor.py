"""Data buffers made smaller for the wire or the disk, and back.

Side:       shared.  Both classes keep no state, so any thread may use one object.
Hot path:   per buffer, if a job asks for compression; not measured.
Invariants: a buffer is replaced only by a strictly smaller one; events never are; what is restored fits one segment, whatever it claims.
Units:      sizes in bytes.
Source:     Flink ``BufferCompressor``, ``BufferDecompressor``, ``Lz4BlockCompressor``: two little-endian int32, the length of the block and
            of the original, then the raw LZ4 block.
Absent:     LZO and ZSTD.  Nothing is written back into the original's segment, which others may read (broadcast): the result is memory of
            its own, bounded by whoever queues it, and the segment goes home at once.
"""

import struct
from typing import Final

import lz4.block

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ConfigError, RemoteProtocolError

CODECS: Final = ("lz4",)
_HEADER: Final = struct.Struct("<ii")


def _check_codec(codec: str) -> None:
    if codec not in CODECS:
        raise ConfigError(f"unknown compression {codec!r}, known are {', '.join(CODECS)}")


class BufferCompressor:
    """Compresses data buffers.

    Raises:
        ConfigError: the codec is unknown.
    """

    __slots__ = ("codec",)

    def __init__(self, codec: str = "lz4") -> None:
        _check_codec(codec)
        self.codec = codec

    def compress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """``buffer`` itself, or a smaller one in its place: takes the caller's reference over, and returns one that he recycles."""
        size = buffer.size
        if size <= _HEADER.size or not buffer.is_buffer or buffer.is_compressed:
            return buffer
        block = lz4.block.compress(buffer.view, store_size=False)
        if _HEADER.size + len(block) >= size:
            return buffer
        smaller = NetworkBuffer.unpooled(_HEADER.pack(len(block), size) + block, buffer.data_type, is_compressed=True)
        buffer.recycle()
        return smaller


class BufferDecompressor:
    """Restores what a ``BufferCompressor`` or Flink compressed.

    Raises:
        ConfigError: the codec is unknown.
    """

    __slots__ = ("codec", "max_bytes")

    def __init__(self, max_bytes: int, codec: str = "lz4") -> None:
        """``max_bytes``: the size of a segment; nothing bigger is restored."""
        _check_codec(codec)
        self.codec = codec
        self.max_bytes = max_bytes

    def decompress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """The original in place of a compressed ``buffer``, anything else as it is; one reference in, one out.

        Raises:
            RemoteProtocolError: the bytes are no such block, or too big; the buffer is recycled all the same.
        """
        if not buffer.is_compressed:
            return buffer
        try:
            return NetworkBuffer.unpooled(self._restore(buffer.view), buffer.data_type)
        finally:
            buffer.recycle()

    def _restore(self, data: memoryview) -> bytes:
        if len(data) < _HEADER.size:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes has no header")
        block_size, size = _HEADER.unpack_from(data)
        if block_size != len(data) - _HEADER.size or not 0 < size <= self.max_bytes:
            raise RemoteProtocolError(
                f"a compressed buffer of {len(data)} bytes claims {block_size} compressed, {size} original ones (at most {self.max_bytes})"
            )
        try:
            restored: bytes = lz4.block.decompress(data[_HEADER.size :], uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes is broken: {error}") from error
        if len(restored) != size:
            raise RemoteProtocolError(f"a compressed buffer claims an original of {size} bytes, but holds {len(restored)}")
        return restored
