"""Imports a program's code in a TaskManager: its modules, as sources and in folders, and what its main module defines.

A user's ``open()`` may read a pickle, a trained model say, that names ``__main__.Model``.  The main module of a
TaskManager is ours, so it is asked for a name that it lacks: it then gives that of the job whose task asks.

Side:       shared.  The task's thread; parts come over the loop, one at a time.
Rules:      one process has one module of a name, and one working directory: a job that needs others than a running one
            is refused, and so is one whose file would hide a module that is loaded from elsewhere.  Packages that pip
            installed never hide a loaded module: pip got those as constraints.  What is asked for twice of the main
            module is the same object.  A task's thread gets the objects of its own job; other threads (of users, of
            coroutines) get those of the job that came last.
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
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from flowlet.shipping.job_file_cache import Delivery, JobFileCache, JobPaths
from netstack.late import dataclass
from netstack.loop.eventloop import EventLoopThread

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
                "job; define it in a module of its own and import it"
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
                    raise DeploymentError(_module_differs(top, version.jobs[0]))
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
                raise DeploymentError(_module_differs(top, found.jobs[0]))

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


def _module_differs(top: str, job_name: str) -> str:
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


_PART_TIMEOUT_S: Final = 60.0  # of a part of a mebibyte; the request itself ends after 30


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The means of a TaskManager to get a job's files.

    ``fetch``: gets a part from the JobManager; called on the loop thread.
    """

    cache: JobFileCache
    fetch: Callable[[bytes], Coroutine[Any, Any, bytes]]


@contextmanager
def files_of_task(
    descriptor: TaskDeploymentDescriptor,
    files: JobFiles | None,
    loop: EventLoopThread,
    is_cancelled: Callable[[], bool],
) -> Iterator[JobPaths]:
    """Have the job's files here, its modules on the import path, and its archives in the working directory, while the
    block runs.

    Raises:
        DeploymentError: one could not be fetched, unpacked or installed, or does not go with what another job has here.
    """
    shipped = descriptor.code.files
    if not shipped:
        yield JobPaths()
        return
    if files is None:
        raise DeploymentError(f"job {descriptor.job_name!r} ships files, which this TaskManager does not take")
    fetch = files.fetch

    def check_cancelled() -> None:
        if is_cancelled():
            raise DeploymentError("the task was cancelled while the job's files were made ready")

    def fetch_part(digest: bytes) -> bytes:
        return loop.submit(fetch(digest)).result(_PART_TIMEOUT_S)

    with ExitStack() as stack:
        try:
            paths = stack.enter_context(
                files.cache.in_use(shipped, descriptor.job_id, Delivery(fetch_part, check_cancelled))
            )
            modules = SHIPPED_MODULES.read(paths.modules) if paths.modules is not None else {}
        except DeploymentError:
            raise
        except (FlowletError, OSError) as error:
            raise DeploymentError(f"the files of job {descriptor.job_name!r} are not ready: {error}") from error
        SHIPPED_FOLDERS.check_sources(modules, descriptor.job_name)
        stack.enter_context(SHIPPED_MODULES.in_use(modules, descriptor.job_name))
        stack.enter_context(SHIPPED_FOLDERS.in_use(paths, descriptor.job_name, modules))
        yield paths


_ADVICE: Final = "cancel it or wait for its end, or run the job on TaskManagers of its own"


class ShippedFolders:
    """Threading: any thread.  The lock is a leaf: nothing is imported while it is held.

    Args:
        modules: the interpreter's table.
        import_path: ``sys.path``.
        in_memory: the modules that came as sources; they come before those in folders.
    """

    def __init__(self, modules: dict[str, ModuleType], import_path: list[str], in_memory: ShippedModules) -> None:
        self.owns_process = False
        """Whether the working directory may be changed; set before the first job."""
        self._modules = modules
        self._import_path = import_path
        self._in_memory = in_memory
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}  # by name without dots: where it comes from.  Guarded by _lock.
        self._users: dict[Path, list[str]] = {}  # names of jobs, one per task that runs.  Guarded by _lock.
        self._working: Path | None = None  # Guarded by _lock.
        self._outside = ""  # the working directory while no job has one.  Guarded by _lock.

    def __repr__(self) -> str:
        return f"<ShippedFolders {sorted(self._folders)}>"

    def brings(self, name: str) -> bool:
        """Whether a job has brought the module of that name, or one above it."""
        return name.partition(".")[0] in self._folders

    def check_sources(self, names: Collection[str], job_name: str) -> None:
        """Ask before modules that a job brings as sources, ``names``, come in front of those in folders.

        Raises:
            DeploymentError: a task of another job runs with a module of that name from its folder.
        """
        with self._lock:
            for top in sorted({name.partition(".")[0] for name in names} & self._folders.keys()):
                others = [user for user in self._users.get(self._folders[top], ()) if user != job_name]
                if others:
                    raise DeploymentError(_differs(top, others[0]))

    @contextmanager
    def in_use(self, paths: JobPaths, job_name: str, beside: Collection[str] = ()) -> Iterator[None]:
        """Let modules in these folders be imported, and files be found from the working directory, while the block
        runs.

        ``beside``: the names of modules that the job brings as sources.

        Raises:
            DeploymentError: a task of another job needs another version of a module, or another working directory; or a
                file would hide a module that is loaded here.
        """
        # Each once: files of the same content lie in one folder.
        used = list(dict.fromkeys([*paths.import_path, *([] if paths.packages is None else [paths.packages])]))
        if not used and paths.working_directory is None:
            yield
            return
        tops = {name.partition(".")[0] for name in beside}
        provided = {folder: _names_in(folder) - tops for folder in used}
        self._in_memory.forget({name for names in provided.values() for name in names})
        with self._lock:
            self._check(paths, provided)
            self._take(paths, provided, job_name)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            with self._lock:
                self._give_back(
                    [*used, *([] if paths.working_directory is None else [paths.working_directory])], job_name
                )

    def _check(self, paths: JobPaths, provided: Mapping[Path, set[str]]) -> None:
        wanted = _wanted(provided)
        for name, folder in wanted.items():
            before = self._folders.get(name)
            if before is not None and before != folder and self._users.get(before):
                raise DeploymentError(_differs(name, self._users[before][0]))
            if folder != paths.packages:
                self._check_hidden(name, folder)
        working, users = paths.working_directory, self._users.get(self._working) if self._working is not None else None
        if working is not None and not self.owns_process:
            raise DeploymentError(
                "archives set the working directory, which belongs to the program here: unset FLOWLET_LOCAL"
            )
        if working is not None and users and working != self._working:
            raise DeploymentError(
                f"job {users[0]!r}, which runs in the same TaskManager, has archives of its own: {_ADVICE}"
            )

    def _check_hidden(self, name: str, folder: Path) -> None:
        """Refuse a file of the user's that has the name of a module which is loaded from elsewhere with another
        content.
        """
        roots = {str(each) for each in self._folders.values()}
        for each, module in self._loaded(name):
            file = getattr(module, "__file__", None)
            if file is None or any(file.startswith(f"{root}/") for root in roots):
                continue
            if not _is_same(Path(file), folder, each):
                raise DeploymentError(
                    f"the job ships a module {name!r}, and this TaskManager has loaded another one of that name from "
                    f"{file}: rename it"
                )

    def _take(self, paths: JobPaths, provided: Mapping[Path, set[str]], job_name: str) -> None:
        for name, folder in _wanted(provided).items():
            self._unload_other(name, folder)
            self._folders[name] = folder
        for position, folder in enumerate(provided):
            if not self._users.setdefault(folder, []):
                self._import_path.insert(position, str(folder))
            self._users[folder].append(job_name)
        if paths.working_directory is not None:
            self._users.setdefault(paths.working_directory, []).append(job_name)
            if self._working is None:
                self._outside = os.getcwd()
            self._working = paths.working_directory
            os.chdir(self._working)

    def _unload_other(self, name: str, folder: Path) -> None:
        """Forget modules of this name that came from another folder; whoever holds one keeps it."""
        before = self._folders.get(name)
        if before is None or before == folder:
            return
        for each, module in self._loaded(name):
            if (getattr(module, "__file__", None) or "").startswith(f"{before}/") or not hasattr(module, "__file__"):
                self._modules.pop(each, None)

    def _loaded(self, name: str) -> list[tuple[str, ModuleType]]:
        return [(each, module) for each, module in list(self._modules.items()) if each.partition(".")[0] == name]

    def _give_back(self, used: list[Path], job_name: str) -> None:
        for folder in used:
            users = self._users[folder]
            users.remove(job_name)
            if users:
                continue
            del self._users[folder]
            if str(folder) in self._import_path:
                self._import_path.remove(str(folder))
            if folder == self._working:
                self._working = None
                os.chdir(self._outside)


def _wanted(provided: Mapping[Path, set[str]]) -> dict[str, Path]:
    """The folder that each name comes from: the first one counts."""
    return {name: folder for folder, names in reversed(list(provided.items())) for name in names}


def _names_in(folder: Path) -> set[str]:
    """The modules without dots that a folder has."""
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


def is_users_module(name: str) -> bool:
    """Whether a job has brought the module of that name, or one above it, to this process."""
    return SHIPPED_MODULES.brings(name) or SHIPPED_FOLDERS.brings(name)


def _differs(name: str, job_name: str) -> str:
    return (
        f"the job's module {name!r} differs from that of job {job_name!r}, which runs in the same TaskManager: "
        f"{_ADVICE}"
    )


SHIPPED_FOLDERS: Final = ShippedFolders(sys.modules, sys.path, SHIPPED_MODULES)
"""Those of this process: there is one table of modules, and one import path."""
