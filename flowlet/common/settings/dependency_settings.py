"""``DependencySettings``: the files that a program ships with its job, as paths on the client's machine.

Side: pure.
"""

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class ArchivePath:
    """An archive, and the folder of the job's working directory into which it is unpacked."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class CachedPath:
    """A file or folder that functions find by its name."""

    name: str
    path: str
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class DependencySettings:
    """What TaskManagers get besides the functions.

    ``packages``: a folder of what pip installs; None: pip asks its index.  ``executable``: the Python of TaskManagers
        that the program
    starts.  ``ships_modules``: whether modules beside the program travel, too.
    """

    python_files: tuple[str, ...] = ()
    requirements: str | None = None
    packages: str | None = None
    archives: tuple[ArchivePath, ...] = ()
    cached: tuple[CachedPath, ...] = ()
    executable: str | None = None
    ships_modules: bool = True

    @property
    def needs_own_process(self) -> str | None:
        """What cannot be had in the process of the user's program, None: nothing."""
        wanted = {
            "set_python_executable()": self.executable is not None,
            "add_python_archive(), which sets the working directory,": bool(self.archives),
            "set_python_requirements(), which installs packages,": self.requirements is not None,
        }
        return next((name for name, is_wanted in wanted.items() if is_wanted), None)
