"""Mutants, and modules that are loaded with one text exchanged, in memory: no file is ever changed."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant: one bug, and the test that finds it."""

    id: str
    flink: str
    breaks: str
    module: str
    old: str
    new: str
    killed_by: str


class StaleMutantError(Exception):
    """The text that a mutant exchanges is not in its module (once): the code has changed, the mutant must follow."""


def source_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def patched(module: str, old: str, new: str) -> str:
    """The source of ``module`` with ``old`` exchanged for ``new``.

    Raises:
        StaleMutantError: ``old`` is not there exactly once.
    """
    text = source_of(module).read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise StaleMutantError(f"{module} holds {text.count(old)} times, expected once:\n{old}")
    return text.replace(old, new)


class _PatchedLoader(importlib.abc.Loader):
    def __init__(self, text: str, path: Path) -> None:
        self._text = text
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds one module, with its text exchanged."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module = module
        self._text = patched(module, old, new)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        file = source_of(fullname)
        return importlib.util.spec_from_loader(fullname, _PatchedLoader(self._text, file), origin=str(file))


def install(module: str, old: str, new: str) -> None:
    """Let every later import of ``module`` see the exchanged text; before its first import."""
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, PatchFinder(module, old, new))
