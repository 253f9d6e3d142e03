"""The bundle of a program: its files, as lists of parts, and the blobs of its functions.

A file travels in parts of ``PART_BYTES``, a folder as a zip archive, and the program's modules as one file of sources.
A blob of functions may be divided: a large object that several blobs hold is a piece that travels once.

Side:   pure.
Rules:  a part or piece is named by the SHA-256 of its content, and its receiver checks it.  Equal modules make equal
        bytes, so that they travel to a cluster once.  A blob without large pieces travels as it is.
Format: a divided blob is 0, then a MessagePack array: the bytes between the pieces (one entry more than there are
        pieces), and the names of the pieces.  Pickles, which all blobs are, begin with 0x80.
Units:  bytes.
Source: the place of Flink's ``PermanentBlobKey`` and ``DistributedCache.DistributedCacheEntry``.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from flowlet.errors import JobGraphError

_DIVIDED: Final = b"\0"


class _Divided(msgspec.Struct, frozen=True, array_like=True):
    between: list[bytes]
    names: list[bytes]


_encoder: Final = msgspec.msgpack.Encoder()
_pieces_decoder: Final = msgspec.msgpack.Decoder(_Divided)


def divide(parts: Iterable[tuple[bytes, bool]], pieces: dict[bytes, bytes]) -> bytes:
    """Make the blob that consists of ``parts``; parts marked with True are put into ``pieces``, by their names."""
    between: list[list[bytes]] = [[]]
    names = []
    for part, is_piece in parts:
        if is_piece:
            name = hashlib.sha256(part).digest()
            pieces.setdefault(name, part)
            names.append(name)
            between.append([])
        else:
            between[-1].append(part)
    joined = [b"".join(each) for each in between]
    return _DIVIDED + _encoder.encode(_Divided(joined, names)) if names else joined[0]


def piece_names(blob: bytes) -> list[bytes]:
    """List the names of the pieces that a blob lacks.  Raises ``msgspec.DecodeError``: this is no divided blob."""
    return _pieces_decoder.decode(memoryview(blob)[1:]).names if blob.startswith(_DIVIDED) else []


def join(blob: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    """Put the blob together again.

    Raises:
        KeyError: a piece is missing.
        msgspec.DecodeError: this is no divided blob.
    """
    if not blob.startswith(_DIVIDED):
        return blob
    divided = _pieces_decoder.decode(memoryview(blob)[1:])
    parts = divided.between[:1]
    for name, between in zip(divided.names, divided.between[1:], strict=True):
        parts += [pieces[name], between]
    return b"".join(parts)


def pieces_of(blobs: Iterable[bytes], pieces: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the entries of ``pieces`` that the ``blobs`` refer to and do not contain."""
    return {name: pieces[name] for blob in blobs for name in piece_names(blob)} if pieces else {}


MODULES_FILE: Final = "modules"  # the name of that file


class ModuleSource(msgspec.Struct, frozen=True):
    """A module of the user's program; ``path`` is where it lies on the client's machine, for tracebacks."""

    path: str
    source: bytes
    is_package: bool = False


_decoder: Final = msgspec.msgpack.Decoder(dict[str, ModuleSource])


def pack_modules(modules: Mapping[str, ModuleSource]) -> bytes:
    """Write the file of modules by their full names."""
    return _encoder.encode({name: modules[name] for name in sorted(modules)})


def unpack_modules(content: bytes) -> dict[str, ModuleSource]:
    """Read the modules by their full names.  Raises ``msgspec.DecodeError``: this is no such file."""
    return _decoder.decode(content)


PART_BYTES: Final = 1024 * 1024  # hashing one holds up an event loop for about a millisecond
DIGEST_BYTES: Final = 32
MAX_JOB_FILE_BYTES: Final = 2 * 1024**3  # of all files of one job
MAX_FILES_PER_JOB: Final = 1_000
_MAX_NAME_CHARS: Final = 255
# One step below a folder; what a shell, an archive or the import system might understand in another way is left out.
_NAME: Final = re.compile(r"(?!\.{1,2}$)[^/\\\0\n]+")
_TARGET: Final = re.compile(r"(?!\.{1,2}(?:/|$))[^/\\\0\n]+(?:/(?!\.{1,2}(?:/|$))[^/\\\0\n]+)*")


class ShippedFile(msgspec.Struct, frozen=True):
    """One file, or one folder as an archive."""

    name: str  # the last part of its path on the client's machine
    num_bytes: int
    parts: list[bytes]  # digests; all but the last have ``PART_BYTES``
    is_folder: bool = False


class ShippedArchive(msgspec.Struct, frozen=True):
    """An archive that is unpacked into the folder ``target`` of the job's working directory."""

    file: ShippedFile
    target: str


class CachedFile(msgspec.Struct, frozen=True):
    """A file or folder that functions find by ``name``."""

    name: str
    file: ShippedFile
    is_executable: bool = False


class ShippedFiles(msgspec.Struct, frozen=True):
    """All files of a job.

    ``modules``: the sources of the program's modules, see ``module_sources``.
    """

    python_files: list[ShippedFile] = []  # in the order of the import path
    requirements: ShippedFile | None = None
    packages: ShippedFile | None = None  # a folder of wheels and source archives; None: pip asks its index
    archives: list[ShippedArchive] = []
    cached: list[CachedFile] = []
    modules: ShippedFile | None = None

    def __bool__(self) -> bool:
        return next(self.files(), None) is not None

    def files(self) -> Iterator[ShippedFile]:
        """Iterate over all files."""
        yield from self.python_files
        yield from (each for each in (self.modules, self.requirements, self.packages) if each is not None)
        yield from (each.file for each in self.archives)
        yield from (each.file for each in self.cached)

    def parts(self) -> dict[bytes, None]:
        """Return the digests of all parts, each once, in order."""
        return dict.fromkeys(digest for file in self.files() for digest in file.parts)

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.num_bytes for file in self.files())


PYTHON_VERSION: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"
FLOWLET_VERSION: Final = "0.1.0"  # that of the distribution, which takes long to ask for


class ProgramBundle(msgspec.Struct, frozen=True):
    """Everything of a program that its TaskManagers lack.

    ``main_objects``: classes and functions of the main module, cloudpickled one by one, by name.
    ``files``: the JobManager has their content; a task fetches it before it opens its operators.
    ``pieces``: large pieces of operators and partitioners, by name; of a task, those of its own.
    ``python``, ``flowlet``: the versions that wrote the pickles; empty: those of a flowlet that did not say so.
    """

    main_objects: dict[str, bytes] = {}
    files: ShippedFiles = ShippedFiles()
    pieces: dict[bytes, bytes] = {}
    python: str = ""
    flowlet: str = ""

    def other_versions(self) -> str:
        """Name, for people, the versions that wrote the bundle and those that run here, if they differ; else empty."""
        if not self.python or (self.python, self.flowlet) == (PYTHON_VERSION, FLOWLET_VERSION):
            return ""
        return (
            f"the program runs Python {self.python} with flowlet {self.flowlet}, this process Python {PYTHON_VERSION} "
            f"with flowlet {FLOWLET_VERSION}"
        )


def check_shipped_files(files: ShippedFiles) -> None:
    """Check the files of a job.

    Raises JobGraphError: a name leads out of its folder, the parts do not fit the sizes, or they are too large or too
    many.
    """
    all_files = list(files.files())
    if len(all_files) > MAX_FILES_PER_JOB:
        raise JobGraphError(
            f"the job ships {len(all_files)} files, the limit is {MAX_FILES_PER_JOB}: put them into an archive"
        )
    for file in all_files:
        _check_name(_NAME, file.name)
        sizes_fit = file.num_bytes >= 0 and len(file.parts) == -(-file.num_bytes // PART_BYTES)
        if not sizes_fit or any(len(digest) != DIGEST_BYTES for digest in file.parts):
            raise JobGraphError(f"file {file.name!r}: {len(file.parts)} parts do not make {file.num_bytes} bytes")
    for archive in files.archives:
        _check_name(_TARGET, archive.target)
    if files.num_bytes > MAX_JOB_FILE_BYTES:
        raise JobGraphError(
            f"the job ships {files.num_bytes} bytes of files, the limit is {MAX_JOB_FILE_BYTES}: {ADVICE}"
        )


ADVICE: Final = "put large data where every TaskManager reads it, on a shared file system or an object store"


def is_target(target: str) -> bool:
    """Whether a relative path stays below the folder that it is relative to."""
    return len(target) <= _MAX_NAME_CHARS and _TARGET.fullmatch(target) is not None


def _check_name(pattern: re.Pattern[str], name: str) -> None:
    if len(name) > _MAX_NAME_CHARS or not pattern.fullmatch(name):
        raise JobGraphError(f"{name[:_MAX_NAME_CHARS]!r} is no name for a shipped file")
