"""``JobFileCache``: the files of jobs on a TaskManager, fetched once, checked, unpacked and installed.

Side:       shared.  Blocking; the threads of tasks.
Invariants: a file is used only when the SHA-256 of each of its parts was checked.  A folder appears whole or not at
            all.  A file that a task uses is not removed.  Files that several jobs may use are read-only; files of a
            working directory are the job's own.
Rules:      a folder is made once of equal files, whichever jobs bring them; a working directory belongs to one job, and
            goes with its last task here.  While one task makes a folder, other tasks that need it wait.
            pip installs requirements into a folder of their own.  Packages that this process has loaded keep their
            version: pip gets them as constraints, because one process has one version of a module.  If the job brought
            packages, pip asks no index.
Source:     Flink ``FileCache``, ``BlobLibraryCacheManager``; PyFlink ``ProcessPythonEnvironmentManager`` and
            ``pyflink_worker_pip_install_requirements``, which makes a prefix for each worker.
"""

import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import msgspec

from flowlet.errors import FlowletError
from flowlet.messages.program_bundle import PART_BYTES, ShippedFile, ShippedFiles
from flowlet.shipping.archives import unpack
from flowlet.storage.state_files import WorkingDirectory
from netstack.late import dataclass

if TYPE_CHECKING:
    from importlib import metadata


_MAX_INSTALL_S: Final = 900.0
_LOOK_INTERVAL_S: Final = 0.25  # how late a cancelled task ends pip
_KILL_TIMEOUT_S: Final = 5.0
_LAST_LINES: Final = 12
_MAX_LINE_CHARS: Final = 300


class RequirementsError(FlowletError):
    """pip could not install the job's requirements; the message has pip's last words."""


def loaded_versions(
    modules: Mapping[str, ModuleType], installed: "Iterable[metadata.Distribution] | None" = None
) -> dict[str, str]:
    """Return the versions of installed packages of which a module is loaded, by name.

    Args:
        modules: the interpreter's table.
        installed: the packages to look at; None: those where this Python keeps packages.
    """
    if installed is None:
        from importlib import metadata  # here, as few jobs have requirements

        installed = metadata.distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    loaded = {file for module in list(modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}
    found = {}
    for distribution in installed:
        names = {file.parts[0] for file in distribution.files or () if file.suffix in (".py", ".so")}
        tops = {name.partition(".")[0] for name in names} & set(modules)
        folder = str(distribution.locate_file(""))
        if any(_is_from(modules[top], folder, loaded) for top in tops):
            found[distribution.metadata["Name"]] = distribution.version
    return dict(sorted(found.items()))


def _is_from(module: ModuleType, folder: str, loaded: set[str]) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file in loaded and file.startswith(f"{folder.rstrip('/')}/")


def install(
    requirements: Path,
    packages: Path | None,
    folder: Path,
    constraints: Mapping[str, str],
    check_cancelled: Callable[[], None],
) -> None:
    """Install the packages that the file ``requirements`` names into the new folder ``folder``.

    Args:
        requirements: in pip's format.
        packages: a folder with all that is needed; None: from pip's index.
        folder: is made.
        constraints: versions of packages that must not differ.
        check_cancelled: called a few times a second; what it raises ends pip.

    Raises:
        RequirementsError: pip is missing, failed, or took too long.
    """
    listed = folder.with_name(f"{folder.name}.constraints")
    listed.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
    command = [sys.executable, "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--no-cache-dir"]
    command += ["--target", str(folder), "--requirement", str(requirements), "--constraint", str(listed)]
    if packages is not None:
        command += ["--no-index", "--find-links", str(packages)]
    log = folder.with_name(f"{folder.name}.log")
    try:
        with log.open("wb") as output:
            code = _run(command, output.fileno(), check_cancelled)
        if code:
            lines = [each.strip()[:_MAX_LINE_CHARS] for each in log.read_text("utf-8", "replace").splitlines()]
            said = " / ".join(list(filter(None, lines))[-_LAST_LINES:]) or "it said nothing"
            raise RequirementsError(
                f"the job's requirements could not be installed: pip ended with exit code {code}: {said}"
            )
        folder.mkdir(exist_ok=True)  # pip makes none for an empty list
    finally:
        listed.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


def _run(command: list[str], output: int, check_cancelled: Callable[[], None]) -> int:
    # Its own session: a Ctrl-C at the terminal is for the program.
    process = subprocess.Popen(  # noqa: S603 - our own interpreter; the file is the user's
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env={**os.environ, "PIP_NO_COLOR": "1"},
    )
    deadline_s = time.monotonic() + _MAX_INSTALL_S
    try:
        while True:
            check_cancelled()
            try:
                # waits for pip; ended by its end, the deadline, or a cancellation
                return process.wait(_LOOK_INTERVAL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline_s:
                    raise RequirementsError(
                        f"the job's requirements were not installed within {_MAX_INSTALL_S:g} s"
                    ) from None
    finally:
        if process.returncode is None:
            # With what pip has started, such as a compiler: the session is its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILL_TIMEOUT_S)


_ARCHIVES_OF_MODULES: Final = (".zip", ".whl", ".egg")
_MAX_UNUSED_BYTES: Final = 4 * 1024**3
_encoder: Final = msgspec.msgpack.Encoder()


class FileTransferError(FlowletError):
    """A file did not arrive as it was sent."""


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The places of a job's files here.

    ``import_path``: in order.  ``packages``: what pip has installed, or None.  ``working_directory``: None if the job
        ships no archives.
    ``cached``: by name.  ``modules``: a file of sources, see ``module_sources``, or None.
    """

    import_path: tuple[Path, ...] = ()
    packages: Path | None = None
    working_directory: Path | None = None
    cached: Mapping[str, Path] = field(default_factory=dict)
    modules: Path | None = None


@dataclass(slots=True)
class _Folder:
    """A folder or file that was made, or is being made.

    ``name``: of its folder, new each time: otherwise one thread might remove the folder that another one makes again.
    """

    name: str
    making: threading.Lock = field(default_factory=threading.Lock)
    path: Path | None = None  # Written by the thread that holds ``making``; None: not made yet.
    num_bytes: int = 0  # Written with ``path``.
    num_uses: int = 0  # Guarded by the cache's lock.


class JobFileCache:
    """The files of all jobs of this process.

    Threading: any thread.
    Life cycle: the directory is made when the first job brings files; ``close`` removes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # A leaf.
        self.directory = WorkingDirectory(purpose="files", advice="set TMPDIR to another directory")
        self._folders: dict[str, _Folder] = {}  # Guarded by _lock; in the order of their last use.
        self._numbers = itertools.count()  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<JobFileCache {self.directory!r}, {len(self._folders)} folders>"

    def close(self) -> None:
        """Remove everything; idempotent.

        A task that still runs loses its files, and one that still makes them fails.
        """
        with self._lock:
            self._folders.clear()
        self.directory.close()

    @contextmanager
    def in_use(
        self, files: ShippedFiles, job_id: str, fetch: Callable[[bytes], bytes], check_cancelled: Callable[[], None]
    ) -> Iterator[JobPaths]:
        """Have the files of a job here while the block runs.

        ``fetch``: the content of a part, by its digest; blocking.  ``check_cancelled`` raises if the task is not wanted
        any more.

        Raises:
            FlowletError: one could not be fetched, unpacked or installed; and whatever these two raise.
            OSError: the disk is full.
        """
        if not files:
            yield JobPaths()
            return
        used: list[_Folder] = []
        try:
            yield _Preparation(self, job_id, fetch, check_cancelled, used).paths_of(files)
        finally:
            self._release(used)

    def use(self, key: str, used: list[_Folder]) -> _Folder:
        """Return the entry of a folder, which stays until all in ``used`` are released."""
        with self._lock:
            folder = self._folders.pop(key) if key in self._folders else _Folder(f"{key}-{next(self._numbers)}")
            self._folders[key] = folder
            folder.num_uses += 1
            used.append(folder)
        return folder

    def _release(self, used: list[_Folder]) -> None:
        """Remove working directories that are not in use, and the oldest of the rest if there is too much."""
        removed: list[Path] = []
        with self._lock:
            for folder in used:
                folder.num_uses -= 1
            unused = {key: folder for key, folder in self._folders.items() if not folder.num_uses}
            num_bytes = sum(folder.num_bytes for folder in unused.values())
            for key, folder in unused.items():  # without ``path``: its making failed
                if folder.path is None or key.startswith(_WORK) or num_bytes > _MAX_UNUSED_BYTES:
                    del self._folders[key]
                    num_bytes -= folder.num_bytes
                    removed += [] if folder.path is None else [folder.path]
        for path in removed:
            _remove(path)


_WORK: Final = "work"


@dataclass(frozen=True, slots=True)
class _Preparation:
    """Makes the files that one job needs, for one task."""

    cache: JobFileCache
    job_id: str
    fetch: Callable[[bytes], bytes]
    check_cancelled: Callable[[], None]
    used: list[_Folder]

    def paths_of(self, files: ShippedFiles) -> JobPaths:
        """Make everything, in order; returns the paths."""
        return JobPaths(
            import_path=tuple(map(self._python_file, files.python_files)),
            packages=None if files.requirements is None else self._installed(files.requirements, files.packages),
            working_directory=self._working_directory(files) if files.archives else None,
            cached={each.name: self._cached(each.file, is_executable=each.is_executable) for each in files.cached},
            modules=None if files.modules is None else self._fetched(files.modules),
        )

    def _made(self, kind: str, content: object, make: Callable[[Path], None]) -> Path:
        """Make the folder or file of ``content`` by ``make``; it stays until all in ``used`` are released.

        ``make`` gets a path that does not exist.  It is not called if another task has made this folder or file.
        """
        key = f"{kind}-{hashlib.sha256(_encoder.encode(content)).hexdigest()}"
        folder = self.cache.use(key, self.used)
        # waits for the task that makes it; ended by its end, or a cancellation
        while not folder.making.acquire(timeout=_LOOK_INTERVAL_S):
            self.check_cancelled()
        try:
            if folder.path is None:
                path = self.cache.directory.path() / folder.name
                unfinished = path.with_name(f"{folder.name}.unfinished")
                try:
                    make(unfinished)
                except BaseException:
                    _remove(unfinished)
                    raise
                os.rename(unfinished, path)
                folder.num_bytes = _size(path)
                folder.path = path
            return folder.path
        finally:
            folder.making.release()

    def _fetched(self, file: ShippedFile) -> Path:
        """Fetch the file as it was on the client's machine; returns its path."""

        def fetch(path: Path) -> None:
            with path.open("xb") as target:
                for number, digest in enumerate(file.parts):
                    self.check_cancelled()
                    content = self.fetch(digest)
                    left = file.num_bytes - number * PART_BYTES
                    if len(content) != min(left, PART_BYTES) or hashlib.sha256(content).digest() != digest:
                        raise FileTransferError(
                            f"file {file.name!r} of the job did not arrive as it was sent: part {number} differs"
                        )
                    target.write(content)
            path.chmod(0o400)

        return self._made("file", [file.parts, file.num_bytes], fetch)

    def _unpacked(self, file: ShippedFile) -> Path:
        archive = self._fetched(file)

        def make(path: Path) -> None:
            unpack(archive, file.name, path, check_cancelled=self.check_cancelled, is_read_only=True)

        return self._made("folder", [file.parts], make)

    def _python_file(self, file: ShippedFile) -> Path:
        """Make the folder to be put on the import path; returns it."""
        if file.is_folder or file.name.lower().endswith(_ARCHIVES_OF_MODULES):
            return self._unpacked(file)
        return self._in_folder(file, is_executable=False)

    def _in_folder(self, file: ShippedFile, *, is_executable: bool) -> Path:
        fetched = self._fetched(file)

        def copy(path: Path) -> None:
            path.mkdir(mode=0o700)
            shutil.copyfile(fetched, path / file.name)
            os.chmod(path / file.name, 0o500 if is_executable else 0o400)

        return self._made("named", [file.parts, file.name, is_executable], copy)

    def _cached(self, file: ShippedFile, *, is_executable: bool) -> Path:
        return (
            self._unpacked(file) if file.is_folder else self._in_folder(file, is_executable=is_executable) / file.name
        )

    def _working_directory(self, files: ShippedFiles) -> Path:
        archives = [(self._fetched(each.file), each) for each in files.archives]

        def make(path: Path) -> None:
            path.mkdir(mode=0o700)
            for fetched, archive in archives:
                target = path / archive.target
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if target.exists():
                    raise FlowletError(
                        f"two archives of the job have the folder {archive.target!r}: give each another one"
                    )
                unpack(fetched, archive.file.name, target, check_cancelled=self.check_cancelled)

        return self._made(_WORK, [self.job_id, files.archives], make)

    def _installed(self, requirements: ShippedFile, packages: ShippedFile | None) -> Path:
        listed = self._fetched(requirements)
        folder = None if packages is None else self._unpacked(packages)
        constraints = loaded_versions(sys.modules)
        content = [requirements.parts, None if packages is None else packages.parts, constraints, sys.version]
        return self._made(
            "packages", content, lambda path: install(listed, folder, path, constraints, self.check_cancelled)
        )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*"))
