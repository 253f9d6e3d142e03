"""State back ends as users name them.

Side:   pure.
Rules:  an environment keeps them as options; an object here only says what to set.
Source: PyFlink ``pyflink.datastream.state_backend``.
Absent: options of RocksDB itself, ``CustomStateBackend``.
"""

from abc import ABC, abstractmethod

from flowlet.errors import JobGraphError

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "StateBackend"]


class StateBackend(ABC):
    """Where keyed state is kept while a job runs."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that say the same; not in PyFlink."""


class HashMapStateBackend(StateBackend):
    """Keeps state as Python objects on the heap; the default."""

    def __str__(self) -> str:
        return "HashMapStateBackend"

    def options(self) -> dict[str, str]:
        """The option that says the same; not in PyFlink."""
        return {"state.backend.type": "hashmap"}


class EmbeddedRocksDBStateBackend(StateBackend):
    """Keeps state in RocksDB on the local disks of the TaskManagers; needs the extra ``rocksdb``.

    Args:
        enable_incremental_checkpointing: whether a checkpoint keeps only what has changed since the last complete one; left out, the option
            ``execution.checkpointing.incremental`` says so.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:  # noqa: FBT001  # PyFlink's signature
        if enable_incremental_checkpointing not in (True, False, None):
            raise JobGraphError(f"EmbeddedRocksDBStateBackend() needs True, False or None, got {enable_incremental_checkpointing!r}")
        self._is_incremental = enable_incremental_checkpointing
        self._directory: str | None = None

    def __str__(self) -> str:
        return "EmbeddedRocksDBStateBackend"

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether checkpoints are incremental, as far as this object says."""
        return bool(self._is_incremental)

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the directory of the databases on each TaskManager: an absolute path.

        Raises:
            JobGraphError: it is none, or there are several, which this version cannot use.
        """
        if len(paths) != 1 or not str(paths[0]).startswith("/"):
            raise JobGraphError(f"set_db_storage_paths() needs one absolute path, got {', '.join(map(repr, paths)) or 'nothing'}")
        self._directory = paths[0]

    def get_db_storage_paths(self) -> list[str]:
        """The directory that was set, in a list; none: where each TaskManager has its temporary files."""
        return [] if self._directory is None else [self._directory]

    def options(self) -> dict[str, str]:
        """The options that say the same; not in PyFlink."""
        options = {"state.backend.type": "rocksdb"}
        if self._is_incremental is not None:
            options["execution.checkpointing.incremental"] = str(self._is_incremental).lower()
        if self._directory is not None:
            options["state.backend.rocksdb.localdir"] = self._directory
        return options
