"""The part of the user's program that TaskManagers need besides the pickled operators.

Side:       shared.
Rules:      modules are shipped as source if they lie beside the main program (in its folder, or below) and the program
            has imported them; packages are shipped whole, because their functions may import more.  Installed modules
            are not shipped, nor are those that have the name of a module of Python.  Classes and functions of the main
            module, and objects of its classes that pickle themselves by their names, are shipped by value, each for
            itself, so that pickles that name them can be read.  One that cannot be pickled, or is large, is left out:
            most programs never need it, and the TaskManager explains when one does.  Nothing is asked of other objects
            of the program: their answers may raise, or import what is not there.
Units:      bytes.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NewType

from flowlet.client.program.user_frames import Owner, owner_of
from flowlet.errors import JobSubmissionError
from flowlet.rpc.shipped_files import ModuleSource
from flowlet.serde.pickles.class_pickle import MULTIPROCESSING_MAIN, is_run_as_program, module_name_of
from flowlet.serde.pickles.program_pickle import ProgramPickler
from netstack.late import dataclass

MAX_MODULE_BYTES: Final = 32 * 1024 * 1024  # of all modules; a TaskManager keeps them in memory
MAX_MAIN_OBJECT_BYTES: Final = 64 * 1024  # of one class or function of the main module, with what it refers to
_MAIN: Final = "__main__"
_KINDS: Final = (FunctionType, type(lru_cache(len)), NewType)
_CACHED_FILES: Final = 4096  # so that a program that submits often reads its files once


class NeededCode(Enum):
    """What the TaskManagers of a cluster lack."""

    NOTHING = "they run in the program's process"
    MAIN = "they find the program's modules, but are other processes with another main module"
    ALL = "they were started elsewhere"


@dataclass(frozen=True, slots=True)
class ProgramCode:
    """``modules``: by their full names.

    ``main_objects``: classes and functions of the main module, pickled, by name.
    """

    modules: Mapping[str, ModuleSource] = field(default_factory=dict)
    main_objects: Mapping[str, bytes] = field(default_factory=dict)


def program_code(needed: NeededCode, *, ships_modules: bool = True) -> ProgramCode:
    """The code of the running program that such TaskManagers lack; without ``ships_modules`` only what its main module
    defines.

    Raises:
        JobSubmissionError: the modules beside the program are too large.
    """
    main = sys.modules.get(_MAIN)
    if needed is NeededCode.NOTHING or main is None:
        return ProgramCode()
    return ProgramCode(modules_beside(main) if needed is NeededCode.ALL and ships_modules else {}, main_objects(main))


def modules_beside(main: ModuleType) -> dict[str, ModuleSource]:
    """The sources of the imported modules in the folder of the main program, by their full names.

    Raises:
        JobSubmissionError: they are too large; the message names the largest.
    """
    folder = _folder_of(main)
    if folder is None:
        return {}
    ours = {_MAIN, MULTIPROCESSING_MAIN, "flowlet", "netstack"}
    tops = {name.partition(".")[0] for name in list(sys.modules)} - set(sys.stdlib_module_names) - ours
    files = {name: file for top in sorted(tops) for name, file in _files_of(top, folder)}
    found = {name: _source_of(file, file.stat().st_mtime_ns) for name, file in files.items()}
    for name in list(found):
        while (name := name.rpartition(".")[0]) and name not in found:
            found[name] = ModuleSource("", b"", is_package=True)  # a folder without __init__.py
    size = sum(len(module.source) for module in found.values())
    if size > MAX_MODULE_BYTES:
        largest = max(found, key=lambda name: len(found[name].source))
        raise JobSubmissionError(
            f"the modules of the program in {folder} have {size} bytes, the limit is {MAX_MODULE_BYTES} (the largest "
            f"is {largest} with "
            f"{len(found[largest].source)}): install them where the TaskManagers run, and keep them out of the "
            "program's folder"
        )
    return found


def main_objects(main: ModuleType) -> dict[str, bytes]:
    """The definitions of the main module, each pickled, by name: classes, functions, and objects that pickle themselves
    by name.
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
    """An object like ``MISSING`` of a class of the program whose ``__reduce__`` gives a name; None: another object."""
    kind: Any = type(thing)
    if module_name_of(kind) not in (_MAIN, main.__name__) or kind.__reduce__ is object.__reduce__:
        return None
    try:
        return _NamedObject(thing) if thing.__reduce__() == name else None
    except Exception:  # noqa: BLE001 - an object that cannot be pickled; no pickle names it
        return None


def _folder_of(main: ModuleType) -> Path | None:
    """Where imports of the main program start: its folder, or, with ``python -m package.module``, the folder of the
    package.
    """
    attributes = _attributes_of(main)
    file = attributes.get("__file__")
    if file is None:
        return Path.cwd()  # a notebook or a shell
    spec = attributes.get("__spec__")
    depth = 0 if spec is None or not spec.name else spec.name.count(".")
    path = Path(file).resolve()
    is_users = owner_of(str(path)) is Owner.USER and depth < len(path.parents)
    return path.parents[depth] if is_users else None


def _files_of(top: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The names and files of a module without dots, and of all modules below it if it is a package."""
    if is_run_as_program(top):
        return  # its functions and classes go by value
    attributes = _attributes_of(sys.modules.get(top))
    for root in [Path(each) for each in attributes.get("__path__", ())]:
        for file in sorted(root.rglob("*.py")) if _is_beside(root, folder) else ():
            parts = file.relative_to(root).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                yield ".".join((top, *(parts[:-1] if parts[-1] == "__init__" else parts))), file
    file_name = attributes.get("__file__")
    if (
        isinstance(file_name, str)
        and file_name.endswith(".py")
        and "__path__" not in attributes
        and _is_beside(Path(file_name), folder)
    ):
        yield top, Path(file_name)


def _attributes_of(module: object) -> dict[str, Any]:
    """The attributes that are set in a module.  A lazy one is not asked: it would import itself, or raise."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return attributes


@lru_cache(_CACHED_FILES)
def _source_of(file: Path, _mtime_ns: int) -> ModuleSource:
    return ModuleSource(str(file), file.read_bytes(), file.name == "__init__.py")


def _is_beside(path: Path, folder: Path) -> bool:
    resolved = path.resolve()
    return (
        resolved.is_relative_to(folder)
        and owner_of(f"{resolved}/") is Owner.USER
        and "site-packages" not in resolved.parts
    )


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
