"""Unpacks archives that came with a job.

Side:       shared.  Blocking.
Invariants: nothing is written outside the folder, and nothing over what is there; no link, device or pipe is made;
            neither the files nor their bytes exceed the limits, whatever the archive says about itself.
Rules:      a file may keep its right to be executed; set-user-id bits, owners and times are dropped.
"""

import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from flowlet.errors import FlowletError
from netstack.late import dataclass

_COPY_BYTES: Final = 1024 * 1024
MAX_UNPACKED_BYTES: Final = 8 * 1024**3
_MAX_FILES: Final = 200_000
_ZIP_FILES: Final = (0, stat.S_IFDIR, stat.S_IFREG)  # 0: the archive says nothing of kinds
_ZIP_KINDS: Final = {stat.S_IFLNK: "a link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe"}
_BROKEN: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
    RuntimeError,  # zipfile: a password is needed
)


class UnpackError(FlowletError):
    """An archive is broken, or wants something forbidden."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    is_executable: bool
    content: IO[bytes] | None  # None: it is a folder


def unpack(
    archive: Path,
    name: str,
    folder: Path,
    check_cancelled: Callable[[], None] = lambda: None,
    *,
    is_read_only: bool = False,
    max_bytes: int = MAX_UNPACKED_BYTES,
    max_files: int = _MAX_FILES,
) -> None:
    """Unpack ``archive``, which its user calls ``name``, into the new folder ``folder``.

    Args:
        archive: the file.
        name: for errors.
        folder: must not be there yet.
        check_cancelled: called before each entry and each mebibyte; what it raises ends this.
        is_read_only: whether nobody may write into the files; their folders take further ones, such as compiled
            modules.
        max_bytes: how much all files together may become.
        max_files: how many entries there may be.

    Raises:
        UnpackError: it is no archive, is broken, wants to be written elsewhere or has links, or becomes too large; says
            which entry.
        OSError: the disk is full, or the folder cannot be written.
    """
    folder.mkdir(mode=0o700)
    num_files, left_bytes = 0, max_bytes
    try:
        for entry in _entries(archive, name):
            check_cancelled()
            num_files += 1
            if num_files > max_files:
                raise UnpackError(f"archive {name!r} has more than {max_files} entries")
            path = folder.joinpath(*_steps(entry.name, name))
            if entry.content is None:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            rights = (0o400 if is_read_only else 0o600) | (0o100 if entry.is_executable else 0)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, rights)
            with os.fdopen(descriptor, "wb") as file, entry.content:
                while content := entry.content.read(_COPY_BYTES):
                    check_cancelled()
                    # Counted as it is written, and before it is: an archive may lie about the sizes of its entries,
                    # and a few kilobytes of it may become more than the disk takes.
                    left_bytes -= len(content)
                    if left_bytes < 0:
                        raise UnpackError(f"archive {name!r} becomes more than {max_bytes} bytes")
                    file.write(content)
    except _BROKEN as error:
        raise UnpackError(f"archive {name!r} cannot be unpacked: {str(error) or type(error).__name__}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UnpackError(
            f"archive {name!r} has two entries for one path: {os.path.relpath(str(error.filename), folder)!r}"
        ) from error


def _entries(archive: Path, name: str) -> Iterator[_Entry]:
    if zipfile.is_zipfile(archive):
        return _zip_entries(archive, name)
    if tarfile.is_tarfile(archive):
        return _tar_entries(archive, name)
    raise UnpackError(f"{name!r} is neither a zip nor a tar archive")


def _zip_entries(archive: Path, name: str) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            mode = info.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if kind not in _ZIP_FILES:
                raise _refusal(name, info.filename, _ZIP_KINDS.get(kind, "something that is no file"))
            content = None if info.is_dir() else opened.open(info)
            yield _Entry(info.filename, bool(mode & 0o100), content)


def _tar_entries(archive: Path, name: str) -> Iterator[_Entry]:
    with tarfile.open(archive) as opened:
        for info in opened:
            if not (info.isreg() or info.isdir()):
                kind = "a link" if info.issym() or info.islnk() else "something that is no file"
                raise _refusal(name, info.name, kind)
            content = opened.extractfile(info) if info.isreg() else None
            yield _Entry(info.name, bool(info.mode & 0o100), content)


def _refusal(archive: str, entry: str, kind: str) -> UnpackError:
    """Make the error for an entry that is neither a file nor a folder."""
    return UnpackError(
        f"archive {archive!r}: {entry!r} is {kind}, which is not unpacked; put the file itself in its place"
    )


def _steps(entry: str, name: str) -> tuple[str, ...]:
    """Return the path of an entry below the folder, one step each."""
    path = PurePosixPath(entry)
    steps = tuple(each for each in path.parts if each != ".")
    if path.is_absolute() or ".." in steps or "\\" in entry or "\0" in entry:
        raise UnpackError(f"archive {name!r}: {entry!r} leads out of the folder")
    return steps
