"""Imports a program's code in a TaskManager: its modules, as sources and in folders, and what its main module defines.

A user's ``open()`` may read a pickle, a trained model say, that names ``__main__.Model``.  The main module of a
TaskManager is ours, so it is asked for a name that it lacks: it then gives that of the job whose task asks.

Side:       shared.  The task's thread; parts come over the loop, one at a time.
Rules:      one process has one module of a name, and one working directory: a job that needs others than a running one
            is refused, and so is one whose file would hide a module that is loaded from elsewhere.  Packages that pip
            installed never hide a loaded module: pip got those as constraints.  The main module gives one object for
            each name and job, however often it is asked.  A task's thread gets the objects of its own job; other
            threads (of users, of coroutines) get those of the job that came last.
Invariants: a module without dots, with all that is below it, is of one version while a task that needs it runs.  It is
            unloaded only when a later job brings another version.  The import path and the working directory are as
            they were once no task needs them.
Units:      seconds.
Source:     the place of Flink's ``BlobLibraryCacheManager`` and its class loaders.  PyFlink sets ``PYTHONPATH`` and the
            working directory of a worker, which belongs to one job.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Final

import msgspec

from flowlet.errors import FlowletError
from flowlet.messages.control_messages import TaskDeploymentDescriptor
from flowlet.messages.program_bundle import ModuleSource, unpack_modules
from flowlet.serde.deploy_blobs import OPENING, DeploymentError, load_object
from flowlet.serde.pickles.class_pickle import classes_stay
from flowlet.serde.pickles.former_classes import find_in
from flowlet.shipping.job_file_cache import JobFileCache, JobPaths

_MAIN: Final = "__main__"
_MAX_OPENED: Final = 256
_UNOPENED: Final = object()


class MainObjects:
    """The definitions of jobs' main modules, as pickles, opened when they are asked for."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._newest: Mapping[str, bytes] = {}  # Any thread; replaced, never changed.
        self._opened: dict[bytes, Any] = {}  # Any thread; single operations.

    def use(self, objects: Mapping[str, bytes]) -> None:
        """Give these objects to the calling task thread from now on."""
        self._of_thread.objects = objects
        if objects:
            self._newest = objects
            sys.modules[_MAIN].__getattr__ = self._find  # type: ignore[method-assign]  # PEP 562

    def class_of(self, module: str, qualname: str) -> type | None:
        """Return the class of this name in the program of the calling thread's job, or in a module; None: there is
        none.
        """
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
                "job; define it in a module of its own and import it"
            )
        found = self._opened.get(pickled, _UNOPENED)
        if found is not _UNOPENED:
            return found
        with classes_stay():  # a class that the task has already stays
            opened = load_object(pickled, f"{name} of the main module")
        if len(self._opened) >= _MAX_OPENED:
            self._opened.clear()
        return self._opened.setdefault(pickled, opened)  # another thread may have been first


MAIN_OBJECTS: Final = MainObjects()
"""Those of this process: there is one main module."""


Modules = Mapping[str, ModuleSource]


_ADVICE: Final = "run the job on TaskManagers of its own"
_MAX_RACES: Final = 10


class ShippedCode(importlib.abc.MetaPathFinder):
    """The modules that jobs have brought, as sources and in folders, and their working directory.

    It is the finder of the sources, which come before the folders.

    Threading: any thread.  Both locks are leaves: nothing is imported while one is held.
    """

    def __init__(self) -> None:
        self.owns_process = False
        """Whether the working directory may be changed; set before the first job."""
        self._lock = threading.Lock()
        # By name without dots: the folder, or the sources of the module and of modules in it.  Guarded by _lock.
        self._origins: dict[str, Path | Modules] = {}
        # Names of jobs, one per task that runs, by folder, or by the name of a module of sources.  Guarded by _lock.
        self._users: dict[Path | str, list[str]] = {}
        self._working: Path | None = None  # Guarded by _lock.
        self._outside = ""  # the working directory while no job has one.  Guarded by _lock.
        self._reading = threading.Lock()
        self._last_read: tuple[Path, Modules] | None = None  # Guarded by _reading.

    def __repr__(self) -> str:
        return f"<ShippedCode {sorted(self._origins)}>"

    def read(self, file: Path) -> Modules:
        """Read the modules in a file that came with a job.  The tasks of a job share them: the last file is read once.

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
        return _top(name) in self._origins

    @contextmanager
    def in_use(self, paths: JobPaths, modules: Modules, job_name: str) -> Iterator[None]:
        """Let ``modules`` and those in the folders of ``paths`` be imported, and files be found from the working
        directory, and keep them as they are, while the block runs.

        Raises:
            DeploymentError: a task of another job needs another version of a module, or another working directory; or a
                file would hide a module that is loaded here.  Then nothing has changed.
        """
        packages = [] if paths.packages is None else [paths.packages]
        folders = {folder: _names_in(folder) for folder in (*paths.import_path, *packages)}
        sources: dict[str, dict[str, ModuleSource]] = {}
        for name, module in modules.items():
            sources.setdefault(_top(name), {})[name] = module
        wanted: dict[str, Path | Modules] = {
            name: folder for folder, names in reversed(folders.items()) for name in names
        }
        wanted |= sources
        used: list[Path | str] = [*folders, *sources]
        if paths.working_directory is not None:
            used.append(paths.working_directory)
        if not used:
            yield
            return
        with self._lock:
            self._check(paths, wanted)
            self._unload_others(wanted, sources)
            self._take(paths, wanted, list(folders))
            for each in used:
                self._users.setdefault(each, []).append(job_name)
        try:
            if folders:
                _invalidate_caches()
            yield
        finally:
            with self._lock:
                self._give_back(used, job_name)

    def _check(self, paths: JobPaths, wanted: Mapping[str, Path | Modules]) -> None:
        for top, place in wanted.items():
            before = self._origins.get(top)
            users = self._users.get(before if isinstance(before, Path) else top)
            if users and before != place:
                raise DeploymentError(
                    f"the job's module {top!r} differs from that of job {users[0]!r}, which runs in the same "
                    f"TaskManager: cancel it or wait for its end, rename the module, or {_ADVICE}"
                )
            # A name that came as sources is unloaded in any case.
            if isinstance(place, Path) and place != paths.packages and (before is None or isinstance(before, Path)):
                self._check_hidden(top, place)
        working = paths.working_directory
        if working is None:
            return
        if not self.owns_process:
            raise DeploymentError(
                "archives set the working directory, which belongs to the program here: unset FLOWLET_LOCAL"
            )
        users = [] if self._working is None else self._users.get(self._working, [])
        if users and working != self._working:
            raise DeploymentError(
                f"job {users[0]!r}, which runs in the same TaskManager, has archives of its own: cancel it or wait for "
                f"its end, or {_ADVICE}"
            )

    def _check_hidden(self, top: str, folder: Path) -> None:
        """Refuse a file of the user's that has the name of a module which is loaded from elsewhere with another
        content.
        """
        roots = {str(each) for each in self._origins.values() if isinstance(each, Path)}
        for name, module in _loaded({top}):
            file = getattr(module, "__file__", None)
            if file is None or _source_of(module) is not None or any(file.startswith(f"{root}/") for root in roots):
                continue
            if not _is_same(Path(file), folder, name):
                raise DeploymentError(
                    f"the job ships a module {top!r}, and this TaskManager has loaded another one of that name from "
                    f"{file}: rename it"
                )

    def _unload_others(self, wanted: Mapping[str, Path | Modules], sources: Mapping[str, Modules]) -> None:
        """Unload modules that came from elsewhere.

        If one module of the sources is new, all are imported anew, except those in use: they hold references to each
        other.
        """
        for top in wanted.keys() - sources.keys():
            before = self._origins.get(top)
            if before is None or before == wanted[top]:
                continue
            for name, module in _loaded({top}):
                file = getattr(module, "__file__", f"{before}/") or ""
                if not isinstance(before, Path) or file.startswith(f"{before}/"):
                    sys.modules.pop(name, None)
        loaded = _loaded({top for top in sources if not self._users.get(top)})
        if not all(_is_version(module, sources[_top(name)].get(name)) for name, module in loaded):
            for name, _ in loaded:
                sys.modules.pop(name, None)  # code that holds an old module keeps it

    def _take(self, paths: JobPaths, wanted: Mapping[str, Path | Modules], folders: Sequence[Path]) -> None:
        if paths.working_directory is not None:  # first: it may be gone, and then nothing has changed
            if self._working is None:
                self._outside = os.getcwd()
            os.chdir(paths.working_directory)
            self._working = paths.working_directory
        self._origins |= wanted
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for position, folder in enumerate(folders):
            if folder not in self._users:
                sys.path.insert(position, str(folder))

    def _give_back(self, used: Iterable[Path | str], job_name: str) -> None:
        for each in used:
            users = self._users[each]
            users.remove(job_name)
            if users:
                continue
            del self._users[each]
            if isinstance(each, Path) and str(each) in sys.path:
                sys.path.remove(str(each))
            if each == self._working:
                self._working = None
                os.chdir(self._outside)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that a job has brought as a source."""
        place = self._origins.get(_top(name))  # without the lock: one look-up is atomic
        module = None if place is None or isinstance(place, Path) else place.get(name)
        if module is None:
            return None
        spec = importlib.util.spec_from_loader(
            name, _SourceInMemory(module), origin=module.path, is_package=module.is_package
        )
        assert spec is not None, "a loader was given"
        spec.has_location = True  # so that the module has a __file__
        return spec


def _top(name: str) -> str:
    return name.partition(".")[0]


def _loaded(tops: Collection[str]) -> list[tuple[str, ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if _top(name) in tops]


def _source_of(module: ModuleType) -> ModuleSource | None:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader.module if isinstance(loader, _SourceInMemory) else None


def _is_version(module: ModuleType, wanted: ModuleSource | None) -> bool:
    """Whether an imported module, shipped or found here, may stay; ``wanted`` None: the job brings
    none of this name.
    """
    source = _source_of(module)
    if source is not None:
        return source == wanted
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
        """Whether the module has modules below it."""
        return self.module.is_package

    def get_source(self, fullname: str) -> str:
        """Return the module's text."""
        return importlib.util.decode_source(self.module.source)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the module's text under the name of the file on the client's machine."""
        return self.source_to_code(self.module.source, self.module.path)


SHIPPED_CODE: Final = ShippedCode()
"""That of this process: there is one table of modules, and one import path."""


@contextmanager
def files_of_task(
    descriptor: TaskDeploymentDescriptor,
    cache: JobFileCache,
    fetch: Callable[[bytes], bytes],
    is_cancelled: Callable[[], bool],
) -> Iterator[JobPaths]:
    """Have the job's files here, its modules on the import path, and its archives in the working directory, while the
    block runs; ``fetch`` gets the content of a part from the JobManager.

    Raises:
        DeploymentError: one could not be fetched, unpacked or installed, or does not go with what another job has here.
    """
    shipped = descriptor.code.files
    if not shipped:
        yield JobPaths()
        return

    def check_cancelled() -> None:
        if is_cancelled():
            raise DeploymentError("the task was cancelled while the job's files were made ready")

    with ExitStack() as stack:
        try:
            paths = stack.enter_context(cache.in_use(shipped, descriptor.job_id, fetch, check_cancelled))
            modules = SHIPPED_CODE.read(paths.modules) if paths.modules is not None else {}
        except DeploymentError:
            raise
        except (FlowletError, OSError) as error:
            raise DeploymentError(f"the files of job {descriptor.job_name!r} are not ready: {error}") from error
        stack.enter_context(SHIPPED_CODE.in_use(paths, modules, descriptor.job_name))
        yield paths


def _invalidate_caches() -> None:
    """Call ``importlib.invalidate_caches`` again while it raises KeyError: in CPython two threads that call it at once
    may both remove one entry.
    """
    for _ in range(_MAX_RACES):
        with suppress(KeyError):
            importlib.invalidate_caches()
            return
    importlib.invalidate_caches()


def _names_in(folder: Path) -> set[str]:
    """Return the modules without dots that a folder has."""
    names = set()
    for entry in os.scandir(folder):
        if entry.is_dir():
            names.add(entry.name)
        elif entry.name.endswith((".py", ".so")):
            names.add(entry.name.partition(".")[0])
    return {name for name in names if name.isidentifier()}


def _is_same(file: Path, folder: Path, name: str) -> bool:
    """Whether a loaded module's file has the content that the folder has for this name."""
    stem = folder.joinpath(*name.split("."))
    wanted = stem / "__init__.py" if file.name == "__init__.py" else stem.with_suffix(".py")
    try:
        return wanted.read_bytes() == file.read_bytes()
    except OSError:
        return False
