"""Packs a program's files for their way: each becomes parts, and a folder becomes a zip archive first.

Side:       shared.  Blocking; the user's thread.
Invariants: the same content makes the same digests, whenever and wherever it is packed: archives of folders have their
            entries sorted, and no times.  So what a cluster has got once does not travel again.
Rules:      links in a folder are followed, but not to a folder above; compiled files (``__pycache__``, ``*.pyc``) stay
            behind.
Units:      bytes.
"""

import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from flowlet.common.options.python_options import DependencySettings
from flowlet.common.paths import local_path
from flowlet.errors import JobSubmissionError
from flowlet.rpc.shipped_files import (
    ADVICE,
    MAX_JOB_FILE_BYTES,
    MODULES_FILE,
    PART_BYTES,
    CachedFile,
    ModuleSource,
    ShippedArchive,
    ShippedFile,
    ShippedFiles,
    is_target,
    pack_modules,
)
from flowlet.shipping.unpacking import UnpackLimits
from netstack.late import dataclass

_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can have
_MAX_FOLDER_FILES: Final = 100_000
_COPY_BYTES: Final = 1024 * 1024
ARCHIVE_SUFFIXES: Final = (".zip", ".whl", ".egg", ".jar", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    offset: int


@dataclass
class PackedFiles:
    """The files of a job, ready to travel.

    Threading: one thread at a time.  Life cycle: a context manager; packed folders are temporary files, which end with
               it.
    """

    files: ShippedFiles = field(default_factory=ShippedFiles)
    _places: dict[bytes, _Place] = field(default_factory=dict)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove temporary files; idempotent."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def part(self, digest: bytes) -> bytes:
        """The content of a part.  Raises JobSubmissionError: its file has changed since it was packed."""
        place = self._places[digest]
        try:
            with place.path.open("rb") as file:
                file.seek(place.offset)
                content = file.read(PART_BYTES)
        except OSError as error:
            raise JobSubmissionError(f"{place.path} cannot be shipped: {error.strerror or error}") from error
        if hashlib.sha256(content).digest() != digest:
            raise JobSubmissionError(f"{place.path} has changed while it was shipped; start the job again")
        return content

    def _pack(self, path: str, method: str) -> ShippedFile:
        found = _local(path, method)
        try:
            if found.is_dir():
                return self._hashed(self._zipped(found), found.name, is_folder=True)
            if not found.is_file():
                raise JobSubmissionError(f"{method}: there is no file or folder {path!r}")
            return self._hashed(found, found.name)
        except OSError as error:
            raise JobSubmissionError(f"{method}: {path!r} cannot be read: {error.strerror or error}") from error

    def _hashed(self, path: Path, name: str, *, is_folder: bool = False) -> ShippedFile:
        parts: list[bytes] = []
        num_bytes = 0
        with path.open("rb") as file:
            while content := file.read(PART_BYTES):
                digest = hashlib.sha256(content).digest()
                self._places.setdefault(digest, _Place(path, num_bytes))
                parts.append(digest)
                num_bytes += len(content)
                if num_bytes > MAX_JOB_FILE_BYTES:
                    raise JobSubmissionError(_too_large(name))
        return ShippedFile(name, num_bytes, parts, is_folder)

    def _new_path(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="flowlet-packed-")
        return Path(self._folder.name) / str(len(os.listdir(self._folder.name)))

    def _modules(self, modules: Mapping[str, ModuleSource]) -> ShippedFile:
        path = self._new_path()
        path.write_bytes(pack_modules(modules))
        return self._hashed(path, MODULES_FILE)

    def _zipped(self, folder: Path) -> Path:
        files = list(_files_below(folder))
        most = UnpackLimits().max_bytes
        if sum(file.stat().st_size for file in files) > most:
            raise JobSubmissionError(
                f"folder {folder} has more than {most} bytes, which no TaskManager unpacks: {ADVICE}"
            )
        path = self._new_path()
        with path.open("wb") as packed, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in files:
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
                entry.external_attr = (stat.S_IFREG | mode) << 16
                with file.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                    while content := source.read(_COPY_BYTES):
                        target.write(content)
                        if packed.tell() > MAX_JOB_FILE_BYTES:
                            raise JobSubmissionError(_too_large(folder.name))
        return path


def _local(path: str, method: str) -> Path:
    try:
        return Path(local_path(path))
    except ValueError as error:
        raise JobSubmissionError(f"{method}: {error}") from None


def _too_large(name: str) -> str:
    return f"{name!r} has more than {MAX_JOB_FILE_BYTES} bytes, which is the limit of a job: {ADVICE}"


def pack(settings: DependencySettings, modules: Mapping[str, ModuleSource] | None = None) -> PackedFiles:
    """Pack what a program ships; ``modules``: those beside it, by their full names.

    Raises:
        JobSubmissionError: a file is missing or cannot be read, is no archive, or all together are too large.
    """
    packed = PackedFiles()
    try:
        packed.files = _files_of(settings, packed._pack)
        if modules:
            packed.files = msgspec.structs.replace(packed.files, modules=packed._modules(modules))
        if packed.files.num_bytes > MAX_JOB_FILE_BYTES:
            raise JobSubmissionError(
                f"the files of the job have {packed.files.num_bytes} bytes, the limit is {MAX_JOB_FILE_BYTES}: {ADVICE}"
            )
    except BaseException:
        packed.close()
        raise
    return packed


def _files_of(settings: DependencySettings, pack_file: Callable[[str, str], ShippedFile]) -> ShippedFiles:
    requirements, packages = settings.requirements, settings.packages
    if requirements is not None and not _local(requirements, "set_python_requirements()").is_file():
        raise JobSubmissionError(f"set_python_requirements(): there is no file {requirements!r}")
    if packages is not None and not _local(packages, "set_python_requirements()").is_dir():
        raise JobSubmissionError(
            f"set_python_requirements(): {packages!r} is no folder of packages, as 'pip download -d' makes it"
        )
    for archive in settings.archives:
        _check_archive(archive.path, archive.target)
    return ShippedFiles(
        python_files=[pack_file(each, "add_python_file()") for each in settings.python_files],
        requirements=None if requirements is None else pack_file(requirements, "set_python_requirements()"),
        packages=None if packages is None else pack_file(packages, "set_python_requirements()"),
        archives=[
            ShippedArchive(pack_file(each.path, "add_python_archive()"), each.target) for each in settings.archives
        ],
        cached=[
            CachedFile(each.name, pack_file(each.path, "register_cached_file()"), each.is_executable)
            for each in settings.cached
        ],
    )


def _check_archive(path: str, target: str) -> None:
    if not is_target(target):
        raise JobSubmissionError(f"add_python_archive(): {target!r} is no folder below the working directory")
    if not _local(path, "add_python_archive()").is_dir() and not path.lower().endswith(ARCHIVE_SUFFIXES):
        raise JobSubmissionError(
            f"add_python_archive(): {path!r} is no folder, nor an archive ({', '.join(ARCHIVE_SUFFIXES)})"
        )


def _files_below(folder: Path) -> Iterator[Path]:
    """All regular files, sorted by their path."""
    found: list[Path] = []
    for current, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__" and not _leads_up(os.path.join(current, each))]
        found += [path for name in names if not name.endswith(".pyc") and (path := Path(current) / name).is_file()]
        if len(found) > _MAX_FOLDER_FILES:
            raise JobSubmissionError(f"folder {folder} has more than {_MAX_FOLDER_FILES} files: ship an archive")
    yield from sorted(found)


def _leads_up(folder: str) -> bool:
    """Whether it is a link to a folder that it lies in."""
    target, parent = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.islink(folder) and f"{parent}/".startswith(f"{target}/")
