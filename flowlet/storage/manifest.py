"""``CheckpointManifest``: the parts of a complete checkpoint; and ``SignedFile``, the envelope of its file.

Side:       pure.
Invariants: the content is decoded only after its MAC was checked.  The MAC covers the place that a file has, if its
            kind has places, so that it is good there only.
Format:     magic number (4 bytes), version (u16), id of the key (8), size of the content (u64), HMAC-SHA256 of all that
            with the place and the content (32); then the content: MessagePack.
"""

import hmac
import struct
from typing import Final, TypeVar

import msgspec

from flowlet.errors import StorageError
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from netstack.late import dataclass


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
    uids: dict[str, str] = {}  # by id, of operators that have one


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


class StoredSource(msgspec.Struct, frozen=True):
    """The state of one source's enumerator; a large one has a file of its own."""

    vertex_id: str
    state: StateHandle


class StoredManifest(msgspec.Struct, frozen=True):
    """The content of the file: the manifest without the states of sources, and these states."""

    manifest: CheckpointManifest
    sources: list[StoredSource]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SignedFile:
    """The envelope of a file that a key signs.

    Args:
        kind: of the file, for people.
        magic: the four bytes that it begins with.
        labels: of the key that is derived from a secret, and of the key's id.
        is_none: what a file with another magic number is.
        its_secret: what to do where another cluster wrote it.
        advice: what to do where it was changed.
    """

    kind: str
    magic: bytes
    labels: tuple[bytes, bytes]
    is_none: str
    its_secret: str
    advice: str

    def key(self, secret: bytes) -> bytes:
        """Derive the key that a cluster signs such files with from its secret."""
        return hmac.digest(secret, self.labels[0], "sha256")

    def encode(self, entry: object, key: bytes, place: bytes = b"") -> bytes:
        """Encode a file that is good in this place only."""
        content = msgspec.msgpack.encode(entry)
        start = _START.pack(self.magic, _VERSION, self._key_id(key), len(content))
        return b"".join((start, _mac(key, start, place, content), content))

    def decode(self, data: bytes, decoder: msgspec.msgpack.Decoder[T], key: bytes, path: str, place: bytes = b"") -> T:
        """Verify and decode the bytes that ``encode`` made; return the value that it was given.

        Raises:
            StorageError: the bytes are cut off, changed, of another place, or were written with another key; the
                message names ``path``.
        """
        name = f"{self.kind} {path}"
        if not self.magic.startswith(data[: len(self.magic)]):
            raise StorageError(f"{name} is {self.is_none}: it was changed after it was written; {self.advice}")
        if len(data) < HEADER_BYTES:
            raise StorageError(f"{name} is cut off after {len(data)} bytes; {self.advice}")
        start, mac, content = data[: _START.size], data[_START.size : HEADER_BYTES], data[HEADER_BYTES:]
        _, version, key_id, size = _START.unpack(start)
        if version != _VERSION:
            raise StorageError(
                f"{name} has version {version}, this flowlet reads {_VERSION}: use the flowlet that wrote it"
            )
        if not hmac.compare_digest(key_id, self._key_id(key)):
            raise StorageError(
                f"{name} is of a cluster with another secret: start the JobManager with {self.its_secret}"
            )
        if len(content) < size:
            raise StorageError(f"{name} is cut off: it has {len(data)} of {HEADER_BYTES + size} bytes; {self.advice}")
        if not hmac.compare_digest(mac, _mac(key, start, place, content)):
            raise StorageError(f"{name} was changed after it was written: its MAC is wrong; {self.advice}")
        try:
            # Only now: the decoder sees nothing that this cluster has not written.
            return decoder.decode(content)
        except msgspec.DecodeError as error:
            raise StorageError(f"{name} is of another flowlet ({error}): use the flowlet that wrote it") from error

    def _key_id(self, key: bytes) -> bytes:
        return hmac.digest(key, self.labels[1], "sha256")[:8]


def _mac(key: bytes, start: bytes, place: bytes, content: bytes) -> bytes:
    mac = hmac.new(key, start, "sha256")
    mac.update(place)
    mac.update(content)
    return mac.digest()


MAX_MANIFEST_BYTES: Final = 1 << 30
"""10,000 subtasks with 20 KiB each need a fifth of it."""
_VERSION: Final = 1
_START: Final = struct.Struct(">4sH8sQ")
HEADER_BYTES: Final = _START.size + 32
MANIFEST_FILE: Final = SignedFile(
    "checkpoint file",
    b"FLCM",
    (b"flowlet manifests of checkpoints 1", b"flowlet id of the key of manifests 1"),
    "no manifest of flowlet",
    "the secret file of that cluster, or restore a checkpoint of this one",
    "put the original back, or restore another checkpoint",
)
manifest_decoder: Final = msgspec.msgpack.Decoder(StoredManifest)
manifest_key: Final = MANIFEST_FILE.key
