"""Folders of modules that came with a job, on the import path of this process while the job has tasks here, and its
working directory.

Gives a task the files that its job ships, before its operators are opened.

Side:       shared.  The task's thread; parts come over the loop, one at a time.
Units:      seconds.
Invariants: a module without dots comes from one folder while a task that needs it runs.  It is unloaded only when a
            later job brings another version.  The path is as it was once no task needs the folder.
Rules:      one process has one module of a name, and one working directory: a job that needs others than a running one
            is refused, and so is one whose file would hide a module that is loaded from elsewhere.  Packages that pip
            installed never hide a loaded module: pip got those as constraints.
Source:     PyFlink sets ``PYTHONPATH`` and the working directory of a worker, which belongs to one job.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from flowlet.errors import FlowletError
from flowlet.messages.control_messages import TaskDeploymentDescriptor
from flowlet.serde.deploy_blobs import DeploymentError
from flowlet.shipping.job_file_cache import Delivery, JobFileCache, JobPaths
from flowlet.tm.shipped_modules import SHIPPED_MODULES, ShippedModules
from netstack.late import dataclass
from netstack.loop.eventloop import EventLoopThread

_PART_TIMEOUT_S: Final = 60.0  # of a part of a mebibyte; the request itself ends after 30


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a TaskManager has for it.

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
        """Who holds an old module keeps it."""
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
    """Where each name comes from: the first folder counts."""
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
