"""Storages of checkpoints as users name them.

Side:   pure.
Rules:  an environment keeps storages as options; an object here only names the options to set.
Source: PyFlink ``pyflink.datastream.checkpoint_storage``; defaults from Flink ``CheckpointingOptions``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from flowlet.common.checks import check_number
from flowlet.common.configuration import Configuration, parsed_option
from flowlet.common.flinks_options import IGNORED, warn_of_setter
from flowlet.common.not_yet import explain_missing_names
from flowlet.common.written_values import parse_bytes
from flowlet.errors import ConfigError

__all__ = ["CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"]

THRESHOLD: Final = "execution.checkpointing.data-inline-threshold"
BUFFER: Final = "execution.checkpointing.write-buffer-size"
_DEFAULT_THRESHOLD: Final = 20 * 1024
_DEFAULT_BUFFER: Final = 4096


class CheckpointStorage(ABC):
    """A place where checkpoints are kept."""

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """The options that choose this storage; not in PyFlink.

        Raises:
            ConfigError: this storage cannot be had here.
        """


class JobManagerCheckpointStorage(CheckpointStorage):
    """Keeps checkpoints in the memory of the JobManager: cannot be used here, but holds its settings.

    Args:
        checkpoint_path: where the manifests would be.
        max_state_size: of one task, in bytes.
    """

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        self._path = _checked_path(checkpoint_path)
        self._max_state_size = _checked_size(max_state_size, "max_state_size", self.DEFAULT_MAX_STATE_SIZE)

    def get_checkpoint_path(self) -> str | None:
        """The directory in which the manifests would be."""
        return self._path

    def get_max_state_size(self) -> int:
        """The limit of one task's state in bytes."""
        return self._max_state_size

    def get_savepoint_path(self) -> str | None:
        """Return None: savepoints have a directory of their own, ``set_default_savepoint_directory``."""
        return None

    def options(self) -> Mapping[str, str]:
        """Raise ConfigError: checkpoints are files."""
        raise ConfigError(
            "checkpoints are not kept in the memory of the JobManager, whose end would lose them: use "
            "FileSystemCheckpointStorage('/a/directory'), or no storage at all on a cluster of this program's own"
        )

    def __str__(self) -> str:
        return (
            f"JobManagerCheckpointStorage (checkpoints: {self._path or 'null'}, maxStateSize: {self._max_state_size})"
        )


class FileSystemCheckpointStorage(CheckpointStorage):
    """Keeps checkpoints as files.

    Args:
        checkpoint_path: a directory, or the URL of one.
        file_state_size_threshold: smaller state would stand in the manifest itself; kept, and without an effect, which
            a warning says.
        write_buffer_size: likewise.

    Raises:
        ConfigError: an argument is wrong.
    """

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self,
        checkpoint_path: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
    ) -> None:
        path = _checked_path(checkpoint_path)
        if path is None:
            raise ConfigError("FileSystemCheckpointStorage() needs the path or URL of a directory")
        self._path = path
        self._threshold = _checked_size(file_state_size_threshold, "file_state_size_threshold", _DEFAULT_THRESHOLD)
        if self._threshold > self.MAX_FILE_STATE_THRESHOLD:
            raise ConfigError(
                f"file_state_size_threshold is {self._threshold}, the limit is {self.MAX_FILE_STATE_THRESHOLD}"
            )
        self._buffer = _checked_size(
            None if write_buffer_size == -1 else write_buffer_size, "write_buffer_size", _DEFAULT_BUFFER
        )
        if self._threshold != _DEFAULT_THRESHOLD or self._buffer != _DEFAULT_BUFFER:
            warn_of_setter(
                "file_state_size_threshold or write_buffer_size of FileSystemCheckpointStorage()", IGNORED[BUFFER]
            )

    @staticmethod
    def of_options(checkpoint_path: str, options: Configuration) -> "FileSystemCheckpointStorage":
        """The storage that options describe, without warnings; not in PyFlink.

        Raises ConfigError: one is not of its type.
        """
        storage = FileSystemCheckpointStorage(checkpoint_path)
        storage._threshold = _size_of(options, THRESHOLD, _DEFAULT_THRESHOLD)
        storage._buffer = _size_of(options, BUFFER, _DEFAULT_BUFFER)
        return storage

    def get_checkpoint_path(self) -> str:
        """The directory."""
        return self._path

    def get_savepoint_path(self) -> str | None:
        """Return None: savepoints have a directory of their own, ``set_default_savepoint_directory``."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """The size below which state would stand in the manifest itself, in bytes; without an effect."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        """The size of the buffer in front of each file, in bytes; without an effect."""
        return max(self._buffer, self._threshold)

    def options(self) -> Mapping[str, str]:
        """The options that choose this storage; not in PyFlink."""
        found = {"execution.checkpointing.storage": "filesystem", "execution.checkpointing.dir": self._path}
        if self._threshold != _DEFAULT_THRESHOLD:
            found[THRESHOLD] = f"{self._threshold} bytes"
        if self._buffer != _DEFAULT_BUFFER:
            found[BUFFER] = str(self._buffer)
        return found

    def __str__(self) -> str:
        return f"FileSystemCheckpointStorage (checkpoints: {self._path}, fileStateThreshold: {self._threshold})"


def _size_of(options: Configuration, name: str, default: int) -> int:
    return parsed_option(name, options.get_string(name, str(default)), parse_bytes, "a size such as '20 kb'")


def _checked_path(path: Any) -> str | None:
    if path is not None and (not isinstance(path, str) or not path):
        raise ConfigError(f"the path of checkpoints is a text that is not empty, got {path!r}")
    return None if path is None else str(path)


def _checked_size(size: Any, name: str, default: int) -> int:
    if size is None:
        return default
    check_number(size, 0, f"{name} must be a number of bytes, 0 or more", ConfigError)
    return int(size)


explain_missing_names(__name__)
