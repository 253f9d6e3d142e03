"""The options ``python.*`` and ``pipeline.cached-files``: what a program ships with its job.

Side:   pure.
Rules:  several paths are parted by commas, an archive and its folder by ``#``, as in PyFlink.  So neither can be part
        of a path.
Source: PyFlink ``PythonOptions``, ``PythonDependencyUtils``; Flink ``DistributedCache.parseCachedFilesFromString``.
"""

from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.options.option import Option, boolean, text
from flowlet.common.settings.dependency_settings import ArchivePath, CachedPath, DependencySettings
from flowlet.errors import ConfigError

_READER: Final = "StreamExecutionEnvironment"
_BETWEEN_FILES: Final = ","
_BEFORE_TARGET: Final = "#"
_BETWEEN_CACHED: Final = ";"

PYTHON_FILES: Final = text("python.files", _READER, allowed="paths of files or folders, parted by commas")
REQUIREMENTS: Final = text(
    "python.requirements", _READER, allowed="the path of a requirements file, and perhaps # and a folder of packages"
)
ARCHIVES: Final = text(
    "python.archives", _READER, allowed="paths of archives, each perhaps with # and a folder, parted by commas"
)
EXECUTABLE: Final = text("python.executable", _READER, allowed="the path of a Python interpreter")


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


CACHED_FILES: Final[Option[tuple[CachedPath, ...]]] = Option(
    "pipeline.cached-files", _cached, "of the form name:NAME,path:PATH,executable:false;name:...", None, _READER
)
SHIPS_MODULES: Final = boolean("flowlet.ship-modules", _READER, default=True)
FOR_PYTHON: Final[tuple[Option[Any], ...]] = (
    PYTHON_FILES,
    REQUIREMENTS,
    ARCHIVES,
    EXECUTABLE,
    CACHED_FILES,
    SHIPS_MODULES,
)


def dependency_settings(options: Configuration) -> DependencySettings:
    """What the options say.  Raises ConfigError: one of them is not of its form."""
    requirements, _, packages = (REQUIREMENTS.find(options) or "").partition(_BEFORE_TARGET)
    return DependencySettings(
        python_files=tuple(_items(PYTHON_FILES.find(options) or "")),
        requirements=requirements or None,
        packages=packages or None,
        archives=tuple(map(_archive, _items(ARCHIVES.find(options) or ""))),
        cached=CACHED_FILES.find(options) or (),
        executable=EXECUTABLE.find(options),
        ships_modules=SHIPS_MODULES.get(options),
    )


def add_python_file(options: Configuration, path: str) -> None:
    """Add a file or folder at the beginning of the import path, as PyFlink does."""
    before = options.get_string(PYTHON_FILES.name, "")
    item = _checked("add_python_file", path, _BETWEEN_FILES)
    PYTHON_FILES.set(options, f"{item}{_BETWEEN_FILES}{before}" if before else item)


def set_requirements(options: Configuration, path: str, packages: str | None) -> None:
    """Set the requirements file, and the folder of packages if it is not None."""
    texts = [_checked("set_python_requirements", each, _BEFORE_TARGET) for each in (path, packages) if each is not None]
    REQUIREMENTS.set(options, _BEFORE_TARGET.join(texts))


def add_archive(options: Configuration, path: str, target: str | None) -> None:
    """Add an archive; ``target`` None: its folder is called as it is."""
    marks = _BETWEEN_FILES + _BEFORE_TARGET
    texts = [_checked("add_python_archive", each, marks) for each in (path, target) if each is not None]
    _append(options, ARCHIVES, _BEFORE_TARGET.join(texts), _BETWEEN_FILES)


def set_executable(options: Configuration, path: str) -> None:
    """Set the interpreter of TaskManagers that the program starts."""
    EXECUTABLE.set(options, _checked("set_python_executable", path, ""))


def add_cached_file(options: Configuration, path: str, name: str, *, is_executable: bool) -> None:
    """Add a file or folder that functions find by ``name``."""
    marks = _BETWEEN_CACHED + _BETWEEN_FILES
    path, name = (_checked("register_cached_file", each, marks) for each in (path, name))
    if any(each.name == name for each in CACHED_FILES.find(options) or ()):
        raise ConfigError(f"register_cached_file() got the name {name!r} twice")
    _append(options, CACHED_FILES, f"name:{name},path:{path},executable:{str(is_executable).lower()}", _BETWEEN_CACHED)


def _append(options: Configuration, option: Option[Any], item: str, mark: str) -> None:
    before = options.get_string(option.name, "")
    option.set(options, f"{before}{mark}{item}" if before else item)


def _items(found: str) -> list[str]:
    return [each.strip() for each in found.split(_BETWEEN_FILES) if each.strip()]


def _archive(found: str) -> ArchivePath:
    path, _, target = found.partition(_BEFORE_TARGET)
    return ArchivePath(path, target or path.rstrip("/").rpartition("/")[2])


def _checked(method: str, given: object, marks: str) -> str:
    """The argument.

    Raises ConfigError: it is no text, is empty, or has a character that parts it from others in the option.
    """
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{method}() needs a path as a text that is not empty, got {given!r}")
    for mark in marks:
        if mark in given:
            raise ConfigError(f"{method}() got {given!r}: a path or name with {mark!r} cannot be shipped; rename it")
    return given
