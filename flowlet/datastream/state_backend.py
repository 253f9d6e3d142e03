"""State back ends as users name them.

Side:   pure.
Rules:  an environment keeps them as options; an object here only says what to set.
Source: PyFlink ``pyflink.datastream.state_backend``.
Rules:  what cannot be set is an error, unless it is set to what it is anyway.
Absent: ``CustomStateBackend``, which is a Java class.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.errors import JobGraphError

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "PredefinedOptions", "StateBackend"]

_TRANSFER_THREADS = 4  # Flink's state.backend.rocksdb.checkpoint.transfer.thread.num


class PredefinedOptions(Enum):
    """Settings of RocksDB for kinds of disks; only ``DEFAULT`` can be used here."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


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
        """Set the directory of the databases on each TaskManager, an absolute path; nothing: where it has its temporary files.

        Raises:
            JobGraphError: it is none, or there are several, which this version cannot use.
        """
        if len(paths) > 1 or not all(str(path).startswith("/") for path in paths):
            raise JobGraphError(f"set_db_storage_paths() needs one absolute path, got {', '.join(map(repr, paths))}")
        self._directory = paths[0] if paths else None

    def get_db_storage_paths(self) -> list[str]:
        """The directory that was set, in a list; none: where each TaskManager has its temporary files."""
        return [] if self._directory is None else [self._directory]

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Accept ``PredefinedOptions.DEFAULT``.  Raises JobGraphError: they are others, which cannot be used here."""
        if options is not PredefinedOptions.DEFAULT:
            raise JobGraphError(f"set_predefined_options() can only be PredefinedOptions.DEFAULT here, got {options!r}; leave it out")

    def get_predefined_options(self) -> PredefinedOptions:
        """``DEFAULT``."""
        return PredefinedOptions.DEFAULT

    def set_options(self, options_factory_class_name: str) -> None:
        """Raises JobGraphError: a factory of options is a Java class."""
        raise JobGraphError(f"set_options({options_factory_class_name!r}) names a Java class, which does not exist here; leave it out")

    def get_options(self) -> str | None:
        """None: there is no factory of options."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Accept the default.  Raises JobGraphError: it is another number, which cannot be set here."""
        if number_of_transfering_threads != _TRANSFER_THREADS:
            raise JobGraphError(
                f"set_number_of_transfer_threads() can only be {_TRANSFER_THREADS} here, got {number_of_transfering_threads!r}: the "
                "threads that write checkpoints follow from the tasks; leave it out"
            )

    def get_number_of_transfer_threads(self) -> int:
        """Flink's default."""
        return _TRANSFER_THREADS

    def options(self) -> dict[str, str]:
        """The options that say the same; not in PyFlink."""
        options = {"state.backend.type": "rocksdb"}
        if self._is_incremental is not None:
            options["execution.checkpointing.incremental"] = str(self._is_incremental).lower()
        if self._directory is not None:
            options["state.backend.rocksdb.localdir"] = self._directory
        return options


if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
