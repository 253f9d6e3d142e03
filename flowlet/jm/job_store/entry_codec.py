"""The bytes of a file of the job store.

Side:       pure.
Invariants: nothing of the content is decoded before its MAC was checked.  The MAC covers the kind of the file and the
            id of its job, so a file is good in its own place only.
Format:     magic number (4 bytes), version (u16), id of the key (8), size of the content (u64), HMAC-SHA256 (32) of all
            that with kind, job id and content; then the content: MessagePack.
"""

import hmac
import struct
from typing import Final, TypeVar

import msgspec

from flowlet.errors import StorageError

T = TypeVar("T")

_MAGIC: Final = b"FLJS"
_VERSION: Final = 1
_START: Final = struct.Struct(">4sH8sQ")
_MAC_BYTES: Final = 32
HEADER_BYTES: Final = _START.size + _MAC_BYTES
_KEY_LABEL: Final = b"flowlet entries of the job store 1"
_KEY_ID_LABEL: Final = b"flowlet id of the key of the job store 1"
_ADVICE: Final = "put the original back, or remove the directory of the job and submit it again"


def job_store_key(secret: bytes) -> bytes:
    """The key of a cluster's job store, derived from its secret."""
    return hmac.digest(secret, _KEY_LABEL, "sha256")


def encode_entry(entry: object, kind: str, job_id: str, key: bytes) -> bytes:
    """The bytes of the file of this kind."""
    content = msgspec.msgpack.encode(entry)
    start = _START.pack(_MAGIC, _VERSION, _key_id(key), len(content))
    return b"".join((start, _mac(key, start, kind, job_id, content), content))


def decode_entry(data: bytes, decoder: msgspec.msgpack.Decoder[T], kind: str, job_id: str, key: bytes, path: str) -> T:
    """What ``encode_entry`` was given.

    Raises:
        StorageError: the bytes are cut off, changed, of another place, or were written with another key; the message
            names ``path``.
    """
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise StorageError(f"job store file {path} is none of flowlet: it was changed after it was written; {_ADVICE}")
    if len(data) < HEADER_BYTES:
        raise StorageError(f"job store file {path} is cut off after {len(data)} bytes; {_ADVICE}")
    start, mac, content = data[: _START.size], data[_START.size : HEADER_BYTES], data[HEADER_BYTES:]
    _, version, key_id, size = _START.unpack(start)
    if version != _VERSION:
        raise StorageError(
            f"job store file {path} has version {version}, this flowlet reads {_VERSION}: use the flowlet that wrote it"
        )
    if not hmac.compare_digest(key_id, _key_id(key)):
        raise StorageError(
            f"job store file {path} is of a cluster with another secret: start the JobManager with that one's secret "
            "file"
        )
    if len(content) < size:
        raise StorageError(
            f"job store file {path} is cut off: it has {len(data)} of {HEADER_BYTES + size} bytes; {_ADVICE}"
        )
    if not hmac.compare_digest(mac, _mac(key, start, kind, job_id, content)):
        raise StorageError(f"job store file {path} was changed after it was written: its MAC is wrong; {_ADVICE}")
    try:
        return decoder.decode(content)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"job store file {path} is of another flowlet ({error}): use the flowlet that wrote it"
        ) from error


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, _KEY_ID_LABEL, "sha256")[:8]


def _mac(key: bytes, start: bytes, kind: str, job_id: str, content: bytes) -> bytes:
    mac = hmac.new(key, start, "sha256")
    mac.update(f"{kind}\n{job_id}\n".encode())
    mac.update(content)
    return mac.digest()
