"""``CheckpointManifest``: what a complete checkpoint consists of.

The bytes of a manifest.

Side:       pure.
Invariants: nothing of the content is decoded before its MAC was checked.
Format:     magic number (4 bytes), version (u16), id of the key (8), size of the content (u64), HMAC-SHA256 of all that
            with the content (32); then the content: MessagePack of a ``StoredManifest``.
"""

import hmac
import struct
from typing import Final

import msgspec

from flowlet.errors import StorageError
from flowlet.messages.control_messages import StateHandle


class SubtaskEntry(msgspec.Struct, frozen=True):
    """One subtask's part: the fields of ``CheckpointAcknowledged``."""

    vertex_id: str
    subtask: int
    state: StateHandle | None = None
    is_finished: bool = False
    channels: StateHandle | None = None
    shared: list[StateHandle] = []
    has_union_state: bool = False
    is_by_key: bool = False
    operators: list[str] = []


class SourceEntry(msgspec.Struct, frozen=True):
    """The state of one source's split enumerator."""

    vertex_id: str
    state: bytes


class VertexEntry(msgspec.Struct, frozen=True):
    """One vertex, as another program must have it to go on; ``operators`` by id in hex, with their names."""

    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    operators: dict[str, str]
    uids: dict[str, str] = {}  # by id, of those that have one


class EdgeEntry(msgspec.Struct, frozen=True):
    """One edge between vertices: partition ``output`` of ``source`` is gate ``gate`` of ``target``, whose id is that of
    its first operator.

    ``source_operator``: the id of the operator that emits into it.  ``input_id``: of the reader, from 1.  ``tag``: the
        side output.
    """

    source: str
    output: int
    target: str
    gate: int
    source_operator: str
    input_id: int = 1
    tag: str | None = None
    is_by_key: bool = False


class CheckpointManifest(msgspec.Struct, frozen=True):
    """A complete checkpoint or savepoint; ``parallelisms`` by vertex id."""

    job_id: str
    job_name: str
    checkpoint_id: int
    timestamp_ms: int
    parallelisms: dict[str, int]
    subtasks: list[SubtaskEntry]
    sources: list[SourceEntry] = []
    vertices: list[VertexEntry] = []
    is_savepoint: bool = False
    edges: list[EdgeEntry] = []  # those between vertices, in the order of the job; older manifests have none


MAX_MANIFEST_BYTES: Final = 1 << 30
"""10,000 subtasks with 20 KiB each need a fifth of it."""
_MAGIC: Final = b"FLCM"
_VERSION: Final = 1
_START: Final = struct.Struct(">4sH8sQ")
_MAC_BYTES: Final = 32
_HEADER_BYTES: Final = _START.size + _MAC_BYTES
_KEY_LABEL: Final = b"flowlet manifests of checkpoints 1"
_KEY_ID_LABEL: Final = b"flowlet id of the key of manifests 1"
_ANOTHER: Final = "put the original back, or restore another checkpoint"


class StoredSource(msgspec.Struct, frozen=True):
    """The state of one source's enumerator; a large one has a file of its own."""

    vertex_id: str
    state: StateHandle


class StoredManifest(msgspec.Struct, frozen=True):
    """What is in the file: the manifest without the states of sources, and these."""

    manifest: CheckpointManifest
    sources: list[StoredSource]


def manifest_key(secret: bytes) -> bytes:
    """The key of a cluster's manifests, derived from its secret."""
    return hmac.digest(secret, _KEY_LABEL, "sha256")


_decoder: Final = msgspec.msgpack.Decoder(StoredManifest)


def encode_manifest(stored: StoredManifest, key: bytes) -> bytes:
    """The bytes of the file."""
    content = msgspec.msgpack.encode(stored)
    start = _START.pack(_MAGIC, _VERSION, _key_id(key), len(content))
    return b"".join((start, _mac(key, start, content), content))


def decode_manifest(data: bytes, key: bytes, path: str) -> StoredManifest:
    """What ``encode_manifest`` was given.

    Raises:
        StorageError: the bytes are cut off, changed, or were written with another key; the message names ``path``.
    """
    if not _MAGIC.startswith(data[: len(_MAGIC)]):
        raise StorageError(
            f"checkpoint file {path} is no manifest of flowlet: it was changed after it was written; {_ANOTHER}"
        )
    if len(data) < _HEADER_BYTES:
        raise StorageError(f"checkpoint file {path} is cut off after {len(data)} bytes; {_ANOTHER}")
    start, mac, content = data[: _START.size], data[_START.size : _HEADER_BYTES], data[_HEADER_BYTES:]
    _, version, key_id, size = _START.unpack(start)
    if version != _VERSION:
        raise StorageError(
            f"checkpoint file {path} has version {version}, this flowlet reads {_VERSION}: use the flowlet that wrote "
            "it"
        )
    if not hmac.compare_digest(key_id, _key_id(key)):
        raise StorageError(
            f"checkpoint file {path} is of a cluster with another secret: start the JobManager with the secret file of "
            "that cluster, "
            "or restore a checkpoint of this one"
        )
    if len(content) < size:
        raise StorageError(
            f"checkpoint file {path} is cut off: it has {len(data)} of {_HEADER_BYTES + size} bytes; {_ANOTHER}"
        )
    if not hmac.compare_digest(mac, _mac(key, start, content)):
        raise StorageError(f"checkpoint file {path} was changed after it was written: its MAC is wrong; {_ANOTHER}")
    try:
        return _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"checkpoint file {path} is of another flowlet ({error}): use the flowlet that wrote it"
        ) from error


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, _KEY_ID_LABEL, "sha256")[:8]


def _mac(key: bytes, start: bytes, content: bytes) -> bytes:
    mac = hmac.new(key, start, "sha256")
    mac.update(content)
    return mac.digest()
