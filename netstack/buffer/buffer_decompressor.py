"""Data buffers as they were before they were compressed.

Side:       shared.  It keeps no state, so any thread may use one object.
Hot path:   per buffer, if its writer compressed it: 0.05 ms for 32 KiB of words or numbers (timeit), half of it for the
            check of the size.
Invariants: what is restored fits one segment, whatever it claims.
Units:      sizes in bytes.
Source:     Flink ``BufferDecompressor``; the format is that of ``netstack.buffer.buffer_compressor``.
"""

from netstack.buffer.buffer_compressor import HEADER, check_codec, raw_lz4
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import RemoteProtocolError


class BufferDecompressor:
    """Restores what a ``BufferCompressor`` or Flink compressed.

    Raises:
        ConfigError: the codec is unknown.
    """

    __slots__ = ("codec", "max_bytes")

    def __init__(self, max_bytes: int, codec: str = "lz4") -> None:
        """``max_bytes``: the size of a segment; nothing bigger is restored."""
        check_codec(codec)
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
        if len(data) < HEADER.size:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes has no header")
        block_size, size = HEADER.unpack_from(data)
        if block_size != len(data) - HEADER.size or not 0 < size <= self.max_bytes:
            raise RemoteProtocolError(
                f"a compressed buffer of {len(data)} bytes claims {block_size} compressed, {size} original ones (at "
                f"most {self.max_bytes})"
            )
        block = data[HEADER.size :]
        try:
            restored: bytes = raw_lz4().decompress(block, decompressed_size=size, asbytes=True)
        except OSError as error:
            raise RemoteProtocolError(f"a compressed buffer of {len(data)} bytes is broken: {error}") from error
        if _fits(block, size - 1):
            raise RemoteProtocolError(f"a compressed buffer claims an original of {size} bytes, but holds fewer")
        return restored


def _fits(block: memoryview, size: int) -> bool:
    """Whether the original of ``block`` has at most ``size`` bytes.

    Arrow says of a block only whether it fits, not how long its original is, and leaves the rest of the memory as it
    found it: without this question a peer that claims too much would make records of whatever this process had there
    before.
    """
    try:
        raw_lz4().decompress(block, decompressed_size=size)
    except OSError:
        return False
    return True
