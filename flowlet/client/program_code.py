"""The part of the user's program that TaskManagers need besides the pickled operators.

Side:       shared.
Rules:      modules are shipped as source if they lie beside the main program (in its folder, or below) and the program has imported them;
            packages are shipped whole, because their functions may import more.  Installed modules are not shipped, nor are those that
            have the name of a module of Python.
            Classes and functions of the main module are shipped by value, each for itself, so that pickles that name them can be read.
            One that cannot be pickled, or is large, is left out: most programs never need it, and the TaskManager explains when one does.
Units:      bytes.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from flowlet.client.program.user_frames import Owner, owner_of
from flowlet.errors import JobSubmissionError
from flowlet.rpc.module_sources import ModuleSource
from flowlet.serde.pickles.program_pickle import ProgramPickler

MAX_MODULE_BYTES: Final = 32 * 1024 * 1024  # of all modules; a TaskManager keeps them in memory
MAX_MAIN_OBJECT_BYTES: Final = 64 * 1024  # of one class or function of the main module, with what it refers to
_MAIN: Final = "__main__"
_CACHED_FILES: Final = 4096  # so that a program that submits often reads its files once


class NeededCode(Enum):
    """What the TaskManagers of a cluster lack."""

    NOTHING = "they run in the program's process"
    MAIN = "they find the program's modules, but are other processes with another main module"
    ALL = "they were started elsewhere"


@dataclass(frozen=True, slots=True)
class ProgramCode:
    """``modules``: by their full names.  ``main_objects``: classes and functions of the main module, pickled, by name."""

    modules: Mapping[str, ModuleSource] = field(default_factory=dict)
    main_objects: Mapping[str, bytes] = field(default_factory=dict)


def program_code(needed: NeededCode, *, ships_modules: bool = True) -> ProgramCode:
    """The code of the running program that such TaskManagers lack; without ``ships_modules`` only what its main module defines.

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
    tops = {name.partition(".")[0] for name in list(sys.modules)} - set(sys.stdlib_module_names) - {_MAIN, "flowlet", "netstack"}
    files = {name: file for top in sorted(tops) for name, file in _files_of(top, folder)}
    found = {name: _source_of(file, file.stat().st_mtime_ns) for name, file in files.items()}
    for name in list(found):
        while (name := name.rpartition(".")[0]) and name not in found:
            found[name] = ModuleSource("", b"", is_package=True)  # a folder without __init__.py
    size = sum(len(module.source) for module in found.values())
    if size > MAX_MODULE_BYTES:
        largest = max(found, key=lambda name: len(found[name].source))
        raise JobSubmissionError(
            f"the modules of the program in {folder} have {size} bytes, the limit is {MAX_MODULE_BYTES} (the largest is {largest} with "
            f"{len(found[largest].source)}): install them where the TaskManagers run, and keep them out of the program's folder"
        )
    return found


def main_objects(main: ModuleType) -> dict[str, bytes]:
    """The classes and functions that the main module defines, pickled one by one, by name."""
    objects = {}
    for name, thing in list(vars(main).items()):
        if isinstance(thing, type | FunctionType) and thing.__module__ == _MAIN and (pickled := _pickled(thing)) is not None:
            objects[name] = pickled
    return objects


def _folder_of(main: ModuleType) -> Path | None:
    """Where imports of the main program start: its folder, or, with ``python -m package.module``, the folder of the package."""
    file = getattr(main, "__file__", None)
    if file is None:
        return Path.cwd()  # a notebook or a shell
    spec = getattr(main, "__spec__", None)
    depth = 0 if spec is None or not spec.name else spec.name.count(".")
    path = Path(file).resolve()
    is_users = owner_of(str(path)) is Owner.USER and depth < len(path.parents)
    return path.parents[depth] if is_users else None


def _files_of(top: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The names and files of a module without dots, and of all modules below it if it is a package."""
    module = sys.modules.get(top)
    for root in [Path(each) for each in getattr(module, "__path__", ())]:
        for file in sorted(root.rglob("*.py")) if _is_beside(root, folder) else ():
            parts = file.relative_to(root).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                yield ".".join((top, *(parts[:-1] if parts[-1] == "__init__" else parts))), file
    file_name = getattr(module, "__file__", None)
    if file_name is not None and file_name.endswith(".py") and not hasattr(module, "__path__") and _is_beside(Path(file_name), folder):
        yield top, Path(file_name)


@lru_cache(_CACHED_FILES)
def _source_of(file: Path, _mtime_ns: int) -> ModuleSource:
    return ModuleSource(str(file), file.read_bytes(), file.name == "__init__.py")


def _is_beside(path: Path, folder: Path) -> bool:
    resolved = path.resolve()
    return resolved.is_relative_to(folder) and owner_of(f"{resolved}/") is Owner.USER and "site-packages" not in resolved.parts


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
