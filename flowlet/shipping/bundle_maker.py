"""Makes the bundle of a program: finds the code that TaskManagers lack, and packs the files that travel with it.

Side:       shared.  Blocking; the user's thread.
Rules:      modules are shipped as source if they lie beside the main program (in its folder, or below) and the program
            has imported them; packages are shipped whole, because their functions may import more.  Installed modules
            are not shipped, nor are those that have the name of a module of Python.  Classes and functions of the main
            module, and objects of its classes that pickle themselves by their names, are shipped by value, each for
            itself, so that pickles that name them can be read.  One that cannot be pickled, or is large, is left out:
            most programs never need it, and the TaskManager explains when one does.  Other objects of the program are
            not touched: their methods may raise, or import a module that is missing.
Invariants: equal contents have equal digests, whenever and wherever they are packed: archives of folders have their
            entries sorted, and no times.  So content that a cluster has got once does not travel again.
Units:      bytes.
"""

import hashlib
import io
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NewType

import msgspec

from flowlet.common.options.python_options import DependencySettings
from flowlet.common.paths import local_path
from flowlet.errors import JobSubmissionError
from flowlet.messages.program_bundle import (
    ADVICE,
    FLOWLET_VERSION,
    MAX_JOB_FILE_BYTES,
    MODULES_FILE,
    PART_BYTES,
    PYTHON_VERSION,
    CachedFile,
    ModuleSource,
    ProgramBundle,
    ShippedArchive,
    ShippedFile,
    ShippedFiles,
    is_target,
    pack_modules,
)
from flowlet.serde.pickles.class_pickle import MULTIPROCESSING_MAIN, is_run_as_program, module_name_of
from flowlet.serde.pickles.program_pickle import ProgramPickler
from flowlet.shipping.archives import MAX_UNPACKED_BYTES
from netstack.late import dataclass

MAX_MODULE_BYTES: Final = 32 * 1024 * 1024  # of all modules; a TaskManager keeps them in memory
MAX_MAIN_OBJECT_BYTES: Final = 64 * 1024  # of one class or function of the main module, with what it refers to
_MAIN: Final = "__main__"
_KINDS: Final = (FunctionType, type(lru_cache(len)), NewType)
_CACHED_FILES: Final = 4096  # so that a program that submits often reads its files once


class NeededCode(Enum):
    """The part of a program that the TaskManagers of a cluster lack."""

    NOTHING = "they run in the program's process"
    MAIN = "they find the program's modules, but are other processes with another main module"
    ALL = "they were started elsewhere"


ProgramCode = tuple[Mapping[str, ModuleSource], Mapping[str, bytes]]
"""Modules by their full names; classes and functions of the main module, pickled, by name."""
IsUsersFile = Callable[[str], bool]
"""Whether a file, or a folder with a slash at its end, is neither ours nor that of an installed package."""


def program_code(needed: NeededCode, is_users_file: IsUsersFile, *, ships_modules: bool = True) -> ProgramCode:
    """Return the code of the running program that such TaskManagers lack; without ``ships_modules`` only the
    definitions of its main module.

    Raises:
        JobSubmissionError: the modules beside the program are too large.
    """
    main = sys.modules.get(_MAIN)
    if needed is NeededCode.NOTHING or main is None:
        return {}, {}
    ships_all = needed is NeededCode.ALL and ships_modules
    return modules_beside(main, is_users_file) if ships_all else {}, main_objects(main)


def modules_beside(main: ModuleType, is_users_file: IsUsersFile) -> dict[str, ModuleSource]:
    """Read the sources of the imported modules in the folder of the main program, by their full names.

    Raises:
        JobSubmissionError: they are too large; the message names the largest.
    """
    folder = _folder_of(main, is_users_file)
    if folder is None:
        return {}
    ours = {_MAIN, MULTIPROCESSING_MAIN, "flowlet", "netstack"}
    tops = {name.partition(".")[0] for name in list(sys.modules)} - set(sys.stdlib_module_names) - ours
    is_beside = partial(_is_beside, folder, is_users_file)
    files = {name: file for top in sorted(tops) for name, file in _source_files_of(top, is_beside)}
    found = {name: _source_of(file, file.stat().st_mtime_ns) for name, file in files.items()}
    for name in list(found):
        while (name := name.rpartition(".")[0]) and name not in found:
            found[name] = ModuleSource("", b"", is_package=True)  # a folder without __init__.py
    size = sum(len(module.source) for module in found.values())
    if size > MAX_MODULE_BYTES:
        largest = max(found, key=lambda name: len(found[name].source))
        raise JobSubmissionError(
            f"the modules of the program in {folder} have {size} bytes, the limit is {MAX_MODULE_BYTES} (the largest "
            f"is {largest} with {len(found[largest].source)}): install them where the TaskManagers run, and keep them "
            "out of the program's folder"
        )
    return found


def main_objects(main: ModuleType) -> dict[str, bytes]:
    """Pickle each definition of the main module, by name: classes, functions, and objects that pickle themselves by
    name.
    """
    objects = {}
    for name, thing in list(vars(main).items()):
        shipped = thing if _is_defined_by(main, thing) else _named_object(main, name, thing)
        if shipped is not None and (pickled := _pickled(shipped)) is not None:
            objects[name] = pickled
    return objects


def _is_defined_by(main: ModuleType, thing: Any) -> bool:
    kind = type(thing)  # an object can lie about its __class__
    if not (issubclass(kind, type) or kind in _KINDS):
        return False
    return module_name_of(thing) in (_MAIN, main.__name__)


class _NamedObject:
    """Pickles an object by value, which would pickle itself by its name."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self._thing)
        return kind.__new__, (kind,), self._thing.__getstate__()


def _named_object(main: ModuleType, name: str, thing: Any) -> _NamedObject | None:
    """Find an object like ``MISSING`` of a class of the program whose ``__reduce__`` gives a name; None: another
    object.
    """
    kind: Any = type(thing)
    if module_name_of(kind) not in (_MAIN, main.__name__) or kind.__reduce__ is object.__reduce__:
        return None
    try:
        return _NamedObject(thing) if thing.__reduce__() == name else None
    except Exception:  # noqa: BLE001 - an object that cannot be pickled; no pickle names it
        return None


def _folder_of(main: ModuleType, is_users_file: IsUsersFile) -> Path | None:
    """Return the folder in which imports of the main program start: its own, or, with ``python -m package.module``,
    that of the package.
    """
    attributes = _attributes_of(main)
    file = attributes.get("__file__")
    if file is None:
        return Path.cwd()  # a notebook or a shell
    spec = attributes.get("__spec__")
    depth = 0 if spec is None or not spec.name else spec.name.count(".")
    path = Path(file).resolve()
    return path.parents[depth] if is_users_file(str(path)) and depth < len(path.parents) else None


def _source_files_of(top: str, is_beside: Callable[[Path], bool]) -> Iterator[tuple[str, Path]]:
    """Give the names and files of a module without dots, and of all modules below it if it is a package."""
    if is_run_as_program(top):
        return  # its functions and classes go by value
    attributes = _attributes_of(sys.modules.get(top))
    for root in [Path(each) for each in attributes.get("__path__", ())]:
        for file in sorted(root.rglob("*.py")) if is_beside(root) else ():
            parts = file.relative_to(root).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                yield ".".join((top, *(parts[:-1] if parts[-1] == "__init__" else parts))), file
    file_name = attributes.get("__file__")
    if (
        isinstance(file_name, str)
        and file_name.endswith(".py")
        and "__path__" not in attributes
        and is_beside(Path(file_name))
    ):
        yield top, Path(file_name)


def _attributes_of(module: object) -> dict[str, Any]:
    """Return the attributes that are set in a module, without lazy ones, which would import themselves, or raise."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return attributes


@lru_cache(_CACHED_FILES)
def _source_of(file: Path, _mtime_ns: int) -> ModuleSource:
    return ModuleSource(str(file), file.read_bytes(), file.name == "__init__.py")


def _is_beside(folder: Path, is_users_file: IsUsersFile, path: Path) -> bool:
    resolved = path.resolve()
    return resolved.is_relative_to(folder) and is_users_file(f"{resolved}/") and "site-packages" not in resolved.parts


class _Bounded(io.BytesIO):
    """Refuses to grow: a function may refer to a table of gigabytes, which must not be pickled to the end."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_MAIN_OBJECT_BYTES:
            raise BufferError("too large")
        return super().write(data)


def _pickled(thing: object) -> bytes | None:
    file = _Bounded()
    try:
        ProgramPickler(file, 5).dump(thing)
    except Exception:  # noqa: BLE001 - see the module's rules
        return None
    return file.getvalue()


_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can have
_MAX_FOLDER_FILES: Final = 100_000
_COPY_BYTES: Final = 1024 * 1024
ARCHIVE_SUFFIXES: Final = (".zip", ".whl", ".egg", ".jar", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass
class PackedBundle:
    """The bundle of a program, ready to travel.

    ``part`` gives what ``bundle`` only names.

    Threading: one thread at a time.  Life cycle: a context manager; packed folders are temporary files, which end with
               it.
    """

    bundle: ProgramBundle = field(default_factory=ProgramBundle)
    _places: dict[bytes, tuple[Path, int]] = field(default_factory=dict)  # by digest of a part: file and offset
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def part(self, digest: bytes) -> bytes:
        """Read the content of a part.  Raises JobSubmissionError: its file has changed since it was packed."""
        path, offset = self._places[digest]
        try:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(PART_BYTES)
        except OSError as error:
            raise JobSubmissionError(f"{path} cannot be shipped: {error.strerror or error}") from error
        if hashlib.sha256(content).digest() != digest:
            raise JobSubmissionError(f"{path} has changed while it was shipped; start the job again")
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
                self._places.setdefault(digest, (path, num_bytes))
                parts.append(digest)
                num_bytes += len(content)
                if num_bytes > MAX_JOB_FILE_BYTES:
                    raise JobSubmissionError(_too_large(name))
        return ShippedFile(name, num_bytes, parts, is_folder)

    def _new_path(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="flowlet-packed-")
        return Path(self._folder.name) / str(len(os.listdir(self._folder.name)))

    def _zipped(self, folder: Path) -> Path:
        files = list(_files_below(folder))
        if sum(file.stat().st_size for file in files) > MAX_UNPACKED_BYTES:
            raise JobSubmissionError(
                f"folder {folder} has more than {MAX_UNPACKED_BYTES} bytes, which no TaskManager unpacks: {ADVICE}"
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


@contextmanager
def pack(settings: DependencySettings, code: ProgramCode = ({}, {})) -> Iterator[PackedBundle]:
    """Pack the files that a program ships, and its code.

    Raises:
        JobSubmissionError: a file is missing or cannot be read, is no archive, or all together are too large.
    """
    packed = PackedBundle()
    modules, objects = code
    try:
        files = _packed_files(settings, packed._pack)
        if modules:
            path = packed._new_path()
            path.write_bytes(pack_modules(modules))
            files = msgspec.structs.replace(files, modules=packed._hashed(path, MODULES_FILE))
        if files.num_bytes > MAX_JOB_FILE_BYTES:
            raise JobSubmissionError(
                f"the files of the job have {files.num_bytes} bytes, the limit is {MAX_JOB_FILE_BYTES}: {ADVICE}"
            )
        packed.bundle = ProgramBundle(dict(objects), files, python=PYTHON_VERSION, flowlet=FLOWLET_VERSION)
        yield packed
    finally:
        if packed._folder is not None:
            packed._folder.cleanup()


def _packed_files(settings: DependencySettings, pack_file: Callable[[str, str], ShippedFile]) -> ShippedFiles:
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
    """Give all regular files, sorted by their path."""
    found: list[Path] = []
    for current, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__" and not _leads_up(os.path.join(current, each))]
        found += [path for name in names if not name.endswith(".pyc") and (path := Path(current) / name).is_file()]
        if len(found) > _MAX_FOLDER_FILES:
            raise JobSubmissionError(f"folder {folder} has more than {_MAX_FOLDER_FILES} files: ship an archive")
    yield from sorted(found)


def _leads_up(folder: str) -> bool:
    """Whether ``folder`` is a link to a folder that it lies in."""
    target, parent = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.islink(folder) and f"{parent}/".startswith(f"{target}/")
