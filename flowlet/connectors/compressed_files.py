"""Reads compressed files as if they were not.

Side:       task.
Rules:      several compressed streams in one file are read one after the other (``cat a.gz b.gz``).  What is damaged or cut short is an
            error that names the file; zstd and xz find damage only where the file has checksums, which their command-line tools write.
            zstd is Python's own from 3.14 on; before, it is pyarrow's, which is imported for the first such file.
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
    """What reads up to so many bytes of the content, and none at its end.

    Raises (the function that is returned):
        FlowletError: the file is not what its name says, is damaged or cut short; names it.
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
                raise  # of the disk
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
    import pyarrow as pa  # takes longer than all other imports, and few files need it

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
