"""Modules of the program in a TaskManager: those that were shipped, and the main module, whose objects are made once.

Classes and functions of a job's main program, for pickles in users' hands that name them.

A user's ``open()`` may read a pickle, a trained model say, that names ``__main__.Model``.  The main module of a
TaskManager is ours, so it is asked for a name that it lacks: it then gives that of the job whose task asks.

Side:       shared.
Rules:      what is asked for twice is the same object. a task's thread gets the objects of its own job; other threads
            (of users, of coroutines) get those of the job that came last.  a job that brings another version of a
            module in use is refused: one process has one module of a name.
Invariants: a module without dots, with all that is below it, is of one version while a task that needs it runs.  It is
            unloaded only when a later job brings another version.
Source:     the place of Flink's ``BlobLibraryCacheManager`` and its class loaders.
"""

import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Final

import msgspec

from flowlet.rpc.shipped_files import ModuleSource, unpack_modules
from flowlet.serde.deploy_blobs import OPENING, DeploymentError, load_object
from flowlet.serde.pickles.class_pickle import classes_stay
from flowlet.serde.pickles.former_classes import find_in

_MAIN: Final = "__main__"
_MAX_OPENED: Final = 256
_UNOPENED: Final = object()


class MainObjects:
    """What the main modules of jobs define, as pickles, opened when they are asked for."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._newest: Mapping[str, bytes] = {}  # Any thread; replaced, never changed.
        self._opened: dict[bytes, Any] = {}  # Any thread; single operations.

    def use(self, objects: Mapping[str, bytes]) -> None:
        """From now on these are the objects of the calling task thread."""
        self._of_thread.objects = objects
        if objects:
            self._newest = objects
            sys.modules[_MAIN].__getattr__ = self._find  # type: ignore[method-assign]  # PEP 562

    def class_of(self, module: str, qualname: str) -> type | None:
        """The class of this name in the program of the calling thread's job, or in a module; None: there is none."""
        objects = getattr(self._of_thread, "objects", {})
        if module == _MAIN and objects:
            outer = qualname.partition(".")[0]
            names = [outer] if outer in objects else objects
            return find_in(SimpleNamespace(**{name: self._find(name) for name in names}), qualname)
        try:
            with OPENING:
                return find_in(importlib.import_module(module), qualname)
        except ImportError:
            return None

    def _find(self, name: str) -> Any:
        pickled = (getattr(self._of_thread, "objects", None) or self._newest).get(name)
        if pickled is None:
            raise AttributeError(
                f"the main module of the job's program has no class or function {name!r} that could be sent with the "
                "job; "
                "define it in a module of its own and import it"
            )
        found = self._opened.get(pickled, _UNOPENED)
        if found is not _UNOPENED:
            return found
        with classes_stay():  # of a class that the task has already its own objects are
            opened = load_object(pickled, f"{name} of the main module")
        if len(self._opened) >= _MAX_OPENED:
            self._opened.clear()
        return self._opened.setdefault(pickled, opened)  # another thread may have been first


MAIN_OBJECTS: Final = MainObjects()
"""Those of this process: there is one main module."""


Modules = Mapping[str, ModuleSource]


class _Version:
    """One version of a module and of those below it; guarded by the lock of ``ShippedModules``."""

    def __init__(self, modules: Modules) -> None:
        self.modules = dict(modules)
        self.jobs: list[str] = []  # a name per task that runs


class ShippedModules(importlib.abc.MetaPathFinder):
    """A finder of modules that jobs have brought.

    Threading: any thread.  Both locks are leaves: nothing is imported while one is held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, _Version] = {}  # by the part of the name before the first dot
        self._reading = threading.Lock()
        self._last_read: tuple[Path, Modules] | None = None  # Guarded by _reading.

    def __repr__(self) -> str:
        return f"<ShippedModules {sorted(self._versions)}>"

    def read(self, file: Path) -> Modules:
        """The modules in a file that came with a job.  The tasks of a job share them: the last file is read once.

        Raises:
            DeploymentError: the file is none of modules.
        """
        with self._reading:
            if self._last_read is None or self._last_read[0] != file:
                try:
                    self._last_read = file, unpack_modules(file.read_bytes())
                except msgspec.DecodeError as error:
                    raise DeploymentError(f"the modules of the job are not readable: {error}") from error
            return self._last_read[1]

    def brings(self, name: str) -> bool:
        """Whether a job has brought the module of that name, or one above it."""
        return name.partition(".")[0] in self._versions

    def forget(self, names: Collection[str]) -> None:
        """Let modules of these names, without dots, come from elsewhere.

        Raises:
            DeploymentError: a task uses one; the message names module and job.
        """
        with self._lock:
            found = {top: self._versions[top] for top in names if top in self._versions}
            for top, version in found.items():
                if version.jobs:
                    raise DeploymentError(_differs(top, version.jobs[0]))
            for top in found:
                del self._versions[top]
                for name in [each for each in list(sys.modules) if each.partition(".")[0] == top]:
                    del sys.modules[name]

    @contextmanager
    def in_use(self, modules: Modules, job_name: str) -> Iterator[None]:
        """Let ``modules`` be imported, and keep them as they are, while the block runs.

        Raises:
            DeploymentError: a task of another job uses another version of one; the message names module and job.
        """
        versions = self._take(modules, job_name) if modules else []
        try:
            yield
        finally:
            with self._lock:
                for version in versions:
                    version.jobs.remove(job_name)

    def _take(self, modules: Modules, job_name: str) -> list[_Version]:
        by_top: dict[str, dict[str, ModuleSource]] = {}
        for name, module in modules.items():
            by_top.setdefault(name.partition(".")[0], {})[name] = module
        with self._lock:
            self._check_versions_in_use(by_top)
            self._replace_versions(by_top)
            versions = [self._versions[top] for top in by_top]
            for version in versions:
                version.jobs.append(job_name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        return versions

    def _check_versions_in_use(self, by_top: Mapping[str, Modules]) -> None:
        for top, wanted in by_top.items():
            found = self._versions.get(top)
            if found is not None and found.jobs and found.modules != wanted:
                raise DeploymentError(_differs(top, found.jobs[0]))

    def _replace_versions(self, by_top: Mapping[str, Modules]) -> None:
        """If one module is new, all are imported anew, but for those in use: they hold references to each other."""
        unused = {
            top: wanted for top, wanted in by_top.items() if top not in self._versions or not self._versions[top].jobs
        }
        loaded = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in unused}
        if not all(_is_version(module, by_top[name.partition(".")[0]].get(name)) for name, module in loaded.items()):
            for name in loaded:
                del sys.modules[name]  # who holds an old module keeps it
        self._versions |= {top: _Version(wanted) for top, wanted in unused.items()}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that a job has brought."""
        version = self._versions.get(name.partition(".")[0])
        module = None if version is None else version.modules.get(name)
        if module is None:
            return None
        spec = importlib.util.spec_from_loader(
            name, _SourceInMemory(module), origin=module.path, is_package=module.is_package
        )
        assert spec is not None, "a loader was given"
        spec.has_location = True  # so that the module has a __file__
        return spec


def _differs(top: str, job_name: str) -> str:
    return (
        f"the job's module {top!r} differs from that of job {job_name!r}, which runs in the same TaskManager: "
        "cancel it or wait for its end, rename the module, or run the job on TaskManagers of its own"
    )


def _is_version(module: ModuleType, wanted: ModuleSource | None) -> bool:
    """Whether an imported module, shipped or found here, may stay; ``wanted`` None: the job brings
    none of this name.
    """
    loader = getattr(module.__spec__, "loader", None)
    if isinstance(loader, _SourceInMemory):
        return loader.module == wanted
    file = getattr(module, "__file__", None)
    if wanted is None or file is None or file == wanted.path:  # the very file: this may be the program's own process
        return True
    try:
        return Path(file).read_bytes() == wanted.source
    except OSError:
        return False


class _SourceInMemory(importlib.abc.InspectLoader):
    """Loads one module; tracebacks get their lines from ``get_source``."""

    def __init__(self, module: ModuleSource) -> None:
        self.module = module

    def is_package(self, fullname: str) -> bool:
        """Whether it has modules below it."""
        return self.module.is_package

    def get_source(self, fullname: str) -> str:
        """Its text."""
        return importlib.util.decode_source(self.module.source)

    def get_code(self, fullname: str) -> CodeType:
        """Its text, compiled under the name of the file on the client's machine."""
        return self.source_to_code(self.module.source, self.module.path)


SHIPPED_MODULES: Final = ShippedModules()
"""Those of this process: there is one table of modules."""
