"""Decompresses files while they are read.

Side:       task.
Rules:      concatenated streams in one file are read one after the other (``cat a.gz b.gz``).  A damaged or truncated file is an error that
            names it; in zstd and xz files damage is found only if they have checksums, which the command-line tools write by default.
            zstd is Python's own from 3.14 on, before that pyarrow's, which is imported for the first such file.
Source:     Flink ``StandardDeCompressors``.
"""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import BinaryIO, assert_never

from flowlet.errors import FlowletError
from flowlet.splits.file_split import Compression

ReadBytes = Callable[[int], bytes | None]


def decompressing(file: BinaryIO, path: str, compression: Compression) -> ReadBytes:
    """A function that reads up to so many bytes of the decompressed content; empty at its end.

    The function raises ``FlowletError``, which names the file, if the file is damaged, truncated, or not compressed as its name says.
    """
    read_content = _content(file, compression)
    errors: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, *_zstd_errors(compression))

    def read(num_bytes: int) -> bytes | None:
        try:
            return read_content(num_bytes)
        except EOFError as error:
            raise FlowletError(f"cannot read {path}: it ends in the middle of its {compression.value} data") from error
        except OSError as error:
            if error.errno is not None:
                raise  # an error of the disk
            raise _damaged(path, compression, error) from error
        except errors as error:
            raise _damaged(path, compression, error) from error

    return read


def _damaged(path: str, compression: Compression, error: Exception) -> FlowletError:
    return FlowletError(f"cannot read {path}: its {compression.value} data are damaged: {error}; is its name right?")


def _content(file: BinaryIO, compression: Compression) -> ReadBytes:
    match compression:
        case Compression.GZIP:
            return gzip.GzipFile(fileobj=file, mode="rb").read
        case Compression.BZIP2:
            return bz2.BZ2File(file).read
        case Compression.XZ:
            return lzma.LZMAFile(file).read
        case Compression.ZSTANDARD:
            return _zstd_content(file)
        case _:
            assert_never(compression)


def _zstd_content(file: BinaryIO) -> ReadBytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdFile(file).read
    import pyarrow as pa  # here, because its import takes longer than all others, and few files need it

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def read(num_bytes: int) -> bytes:
        content: bytes = stream.read(num_bytes)
        return content

    return read


def _zstd_errors(compression: Compression) -> tuple[type[Exception], ...]:
    if sys.version_info >= (3, 14) and compression is Compression.ZSTANDARD:
        from compression import zstd

        return (zstd.ZstdError,)
    return ()
