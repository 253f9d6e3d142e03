"""What the job store keeps of a job, and what a JobManager finds there when it starts.

The bytes of a file of the job store.

Side:       pure.
Source:     Flink ``JobGraphStore``, ``CheckpointIDCounter``, ``JobResultStore``.
Invariants: nothing of the content is decoded before its MAC was checked.  The MAC covers the kind of the file and the
            id of its job, so a file is good in its own place only.
Format:     magic number (4 bytes), version (u16), id of the key (8), size of the content (u64), HMAC-SHA256 (32) of all
            that with kind, job id and content; then the content: MessagePack.
"""

import hmac
import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, TypeVar

import msgspec

from flowlet.errors import StorageError
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.storage.manifest import CheckpointManifest
from netstack.late import dataclass

ID_BLOCK = 100
"""So many ids of checkpoints are reserved at once: a write for each would hold up its trigger."""


class StoredProgress(msgspec.Struct, frozen=True):
    """How far a job is.

    Args:
        attempt: the newest number of a run; it is kept before the run is deployed.
        completed_checkpoint: a complete one; newer ones may exist; -1: none is known.
        ids_below: no checkpoint with this id, or a higher one, was triggered.
        unrestorable: complete ones that no run could begin with, so that an older one was taken.
    """

    attempt: int = 0
    completed_checkpoint: int = -1
    ids_below: int = ID_BLOCK
    unrestorable: list[int] = []


class JobEnd(msgspec.Struct, frozen=True):
    """How a job ended: its status, and its document as JSON."""

    status: str
    document: bytes


class StoredJob(msgspec.Struct, frozen=True):
    """A job that has not ended."""

    job: JobGraphMessage
    progress: StoredProgress


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What lies in the store: jobs, ends by job id, and by job id why an entry cannot be used."""

    jobs: Sequence[StoredJob] = ()
    ends: Mapping[str, JobEnd] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A job that goes on.

    Args:
        job: as it was submitted.
        attempt: the number of its next run, above all earlier ones.
        checkpoints: the complete ones, the oldest first; the next run begins with the last.
        next_checkpoint_id: above all ids that were ever triggered.
        unrestorable: newer complete ones that no run can begin with.
    """

    job: JobGraphMessage
    attempt: int
    checkpoints: Sequence[CheckpointManifest] = ()
    next_checkpoint_id: int = 1
    unrestorable: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a JobManager begins with: jobs, ends by job id, and by job id why a job does not go on."""

    jobs: Sequence[RecoveredJob] = ()
    ends: Mapping[str, JobEnd] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


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
