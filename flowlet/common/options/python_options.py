"""The options ``python.*`` and ``pipeline.cached-files``: what a program ships with its job.

Side:   pure.
Rules:  several paths are parted by commas, an archive and its folder by ``#``, as in PyFlink.  So neither can be part
        of a path.
Source: PyFlink ``PythonOptions``, ``PythonDependencyUtils``; Flink ``DistributedCache.parseCachedFilesFromString``.
"""

from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.option import Option, boolean, parse_text, row_of, text
from flowlet.errors import ConfigError
from netstack.late import dataclass

_BETWEEN_FILES: Final = ","
_BEFORE_TARGET: Final = "#"
_BETWEEN_CACHED: Final = ";"
_REQUIREMENTS: Final = "python.requirements"


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


def _paths(found: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in parse_text(found).split(_BETWEEN_FILES) if each.strip())


def _archives(found: str) -> tuple[ArchivePath, ...]:
    parts = [each.partition(_BEFORE_TARGET) for each in _paths(found)]
    return tuple(ArchivePath(path, target or path.rstrip("/").rpartition("/")[2]) for path, _, target in parts)


def _cached(found: str) -> tuple[CachedPath, ...]:
    entries = (each for each in found.split(_BETWEEN_CACHED) if each.strip())
    return tuple(map(_cached_path, entries))


def _cached_path(entry: str) -> CachedPath:
    fields: dict[str, str] = {}
    for field in entry.split(_BETWEEN_FILES):
        name, colon, value = field.strip().partition(":")
        if not colon or name in fields:
            raise ValueError(entry)
        fields[name] = value
    executable = fields.pop("executable", "false").lower()
    if set(fields) != {"name", "path"} or not all(fields.values()) or executable not in ("true", "false"):
        raise ValueError(entry)
    return CachedPath(fields["name"], fields["path"], executable == "true")


@dataclass(frozen=True, slots=True)
class DependencySettings:
    """The files that TaskManagers get besides the functions, as paths on the client's machine.

    Args:
        python_files: `add_python_file()`: modules that every task can import ([shipping](shipping.md)).
        requirements: `set_python_requirements()`: what pip installs for the job.
        packages: a folder of what pip installs; None: pip asks its index.
        archives: `add_python_archive()`: unpacked into the working directory of tasks.
        cached: `register_cached_file()`: files that functions find by name.
        executable: `set_python_executable()`: of TaskManagers that the program starts.
        ships_modules: whether modules that lie beside the program travel with the job.
    """

    python_files: tuple[str, ...] = Option("python.files", _paths, "paths of files or folders, parted by commas").field(
        default=()
    )
    requirements: str | None = Option(
        _REQUIREMENTS,
        lambda found: parse_text(found).partition(_BEFORE_TARGET)[0] or None,
        "the path of a requirements file, and perhaps # and a folder of packages",
    ).field()
    packages: str | None = Option(  # the field above reads this option, too
        _REQUIREMENTS, lambda found: found.partition(_BEFORE_TARGET)[2] or None, ""
    ).field()
    archives: tuple[ArchivePath, ...] = Option(
        "python.archives", _archives, "paths of archives, each perhaps with # and a folder, parted by commas"
    ).field(default=())
    cached: tuple[CachedPath, ...] = Option(
        "pipeline.cached-files", _cached, "of the form name:NAME,path:PATH,executable:false;name:..."
    ).field(default=())
    executable: str | None = text("python.executable", allowed="the path of a Python interpreter").field()
    ships_modules: bool = boolean("flowlet.ship-modules", default=True).field()

    @property
    def needs_own_process(self) -> str | None:
        """The first setting that the process of the user's program cannot fulfil; None: it fulfils all."""
        wanted = {
            "set_python_executable()": self.executable is not None,
            "add_python_archive(), which sets the working directory,": bool(self.archives),
            "set_python_requirements(), which installs packages,": self.requirements is not None,
        }
        return next((name for name, is_wanted in wanted.items() if is_wanted), None)


def add_python_file(options: Configuration, path: str) -> None:
    """Add a file or folder at the beginning of the import path, as PyFlink does."""
    row = row_of(DependencySettings, "python_files")
    before = options.get_string(row.name, "")
    item = _checked("add_python_file", path, _BETWEEN_FILES)
    row.set(options, f"{item}{_BETWEEN_FILES}{before}" if before else item)


def set_requirements(options: Configuration, path: str, packages: str | None) -> None:
    """Set the requirements file, and the folder of packages if it is not None."""
    texts = [_checked("set_python_requirements", each, _BEFORE_TARGET) for each in (path, packages) if each is not None]
    row_of(DependencySettings, "requirements").set(options, _BEFORE_TARGET.join(texts))


def add_archive(options: Configuration, path: str, target: str | None) -> None:
    """Add an archive; ``target`` None: its folder has the archive's name."""
    marks = _BETWEEN_FILES + _BEFORE_TARGET
    texts = [_checked("add_python_archive", each, marks) for each in (path, target) if each is not None]
    _append(options, row_of(DependencySettings, "archives"), _BEFORE_TARGET.join(texts), _BETWEEN_FILES)


def set_executable(options: Configuration, path: str) -> None:
    """Set the interpreter of TaskManagers that the program starts."""
    row_of(DependencySettings, "executable").set(options, _checked("set_python_executable", path, ""))


def add_cached_file(options: Configuration, path: str, name: str, *, is_executable: bool) -> None:
    """Add a file or folder that functions find by ``name``."""
    marks = _BETWEEN_CACHED + _BETWEEN_FILES
    path, name = (_checked("register_cached_file", each, marks) for each in (path, name))
    row = row_of(DependencySettings, "cached")
    if any(each.name == name for each in row.find(options) or ()):
        raise ConfigError(f"register_cached_file() got the name {name!r} twice")
    _append(options, row, f"name:{name},path:{path},executable:{str(is_executable).lower()}", _BETWEEN_CACHED)


def _append(options: Configuration, option: Option[Any], item: str, mark: str) -> None:
    before = options.get_string(option.name, "")
    option.set(options, f"{before}{mark}{item}" if before else item)


def _checked(method: str, given: object, marks: str) -> str:
    """Return the argument, if it is good.

    Raises ConfigError: it is no text, is empty, or has a character that parts it from others in the option.
    """
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{method}() needs a path as a text that is not empty, got {given!r}")
    for mark in marks:
        if mark in given:
            raise ConfigError(f"{method}() got {given!r}: a path or name with {mark!r} cannot be shipped; rename it")
    return given
