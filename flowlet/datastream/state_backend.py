"""State back ends as users name them.

Side:   pure.
Rules:  an environment keeps back ends as options; an object here only names the options to set.  Settings that only
        tune RocksDB are kept, and a warning says that they have no effect; a factory of options, which could change
        anything, is refused.
Source: PyFlink ``pyflink.datastream.state_backend``.
Absent: ``CustomStateBackend``, which is a Java class.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Final

from flowlet.common.checks import check_kind, check_number, is_name
from flowlet.common.configuration import Configuration
from flowlet.common.flinks_options import IGNORED, warn_of_setter
from flowlet.common.job_settings import StateSettings
from flowlet.common.not_yet import explain_missing_names
from flowlet.common.option import row_of
from flowlet.errors import ConfigError, JobGraphError

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "PredefinedOptions", "StateBackend"]

PREDEFINED_OPTIONS: Final = "state.backend.rocksdb.predefined-options"
TRANSFER_THREADS: Final = "state.backend.rocksdb.checkpoint.transfer.thread.num"
_DEFAULT_TRANSFER_THREADS: Final = 4  # Flink's
_INCREMENTAL: Final = row_of(StateSettings, "is_incremental").name
_DIRECTORIES: Final = row_of(StateSettings, "directories")


class PredefinedOptions(Enum):
    """Settings of RocksDB for kinds of disks; without an effect here."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class StateBackend(ABC):
    """A place where keyed state is kept while a job runs."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that choose this back end; not in PyFlink."""


class HashMapStateBackend(StateBackend):
    """Keeps state as Python objects on the heap; the default."""

    def __str__(self) -> str:
        return "HashMapStateBackend"

    def options(self) -> dict[str, str]:
        """The option that chooses this back end; not in PyFlink."""
        return {"state.backend.type": "hashmap"}


class EmbeddedRocksDBStateBackend(StateBackend):
    """Keeps state in RocksDB on the local disks of the TaskManagers; needs the extra ``rocksdb``.

    Args:
        enable_incremental_checkpointing: whether a checkpoint keeps only the changes since the last complete one; left
            out, the option ``execution.checkpointing.incremental`` decides.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:  # noqa: FBT001  # PyFlink's signature
        if enable_incremental_checkpointing not in (True, False, None):
            raise JobGraphError(
                f"EmbeddedRocksDBStateBackend() needs True, False or None, got {enable_incremental_checkpointing!r}"
            )
        self._options = Configuration.from_dict({"state.backend.type": "rocksdb"})
        if enable_incremental_checkpointing is not None:
            self._options.set_boolean(_INCREMENTAL, enable_incremental_checkpointing)

    def __str__(self) -> str:
        return "EmbeddedRocksDBStateBackend"

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether checkpoints are incremental, as far as this object says."""
        return self._options.get_boolean(_INCREMENTAL, default_value=False)

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the directories of the databases on each TaskManager, absolute paths; without paths, its folder of
        temporary files is used.

        The operators of a TaskManager use them one after the other.

        Raises:
            JobGraphError: a path is not absolute.
        """
        if not all(is_name(path) and path.startswith("/") and not set(path) & {",", ":"} for path in paths):
            raise JobGraphError(
                f"set_db_storage_paths() needs absolute paths without , and :, got {', '.join(map(repr, paths))}"
            )
        self._options.remove_config(_DIRECTORIES.name)
        if paths:
            _DIRECTORIES.set(self._options, ",".join(paths))

    def get_db_storage_paths(self) -> list[str]:
        """The directories that were set; if none, each TaskManager uses its folder of temporary files."""
        return list(_DIRECTORIES.find(self._options) or ())

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Keep the setting, and warn that it has no effect.  Raises JobGraphError: it is no ``PredefinedOptions``."""
        check_kind(options, PredefinedOptions, "set_predefined_options() needs PredefinedOptions")
        self._options.set_string(PREDEFINED_OPTIONS, options.name)
        if options is not PredefinedOptions.DEFAULT:
            warn_of_setter("set_predefined_options()", IGNORED[PREDEFINED_OPTIONS])

    def get_predefined_options(self) -> PredefinedOptions:
        """The predefined options that were set; without an effect."""
        return PredefinedOptions[self._options.get_string(PREDEFINED_OPTIONS, "DEFAULT")]

    def set_options(self, options_factory_class_name: str) -> None:
        """Raise JobGraphError: a factory of options is a Java class."""
        raise JobGraphError(
            f"set_options({options_factory_class_name!r}) names a Java class, which does not exist here; leave it out, "
            "RocksDB runs with its own settings"
        )

    def get_options(self) -> str | None:
        """Return None: there is no factory of options."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Keep the setting, and warn that it has no effect.  Raises JobGraphError: it is no number of 1 or more."""
        check_number(number_of_transfering_threads, 1, "set_number_of_transfer_threads() needs a number of 1 or more")
        self._options.set_integer(TRANSFER_THREADS, number_of_transfering_threads)
        warn_of_setter("set_number_of_transfer_threads()", IGNORED[TRANSFER_THREADS])

    def get_number_of_transfer_threads(self) -> int:
        """The number that was set, else Flink's default; without an effect."""
        return self._options.get_integer(TRANSFER_THREADS, 0) or _DEFAULT_TRANSFER_THREADS

    def options(self) -> dict[str, str]:
        """The options that choose this back end, with its settings; not in PyFlink."""
        return self._options.to_dict()

    def take_options(self, options: Configuration) -> None:
        """Take over the options of RocksDB, without warnings; not in PyFlink.

        Raises ConfigError: one is not of its type.
        """
        if _DIRECTORIES.find(options):
            self._options.set_string(_DIRECTORIES.name, options.get_string(_DIRECTORIES.name, ""))
        name = options.get_string(PREDEFINED_OPTIONS, "").strip().upper()
        if name:
            if name not in PredefinedOptions.__members__:
                raise ConfigError(
                    f"option {PREDEFINED_OPTIONS!r} is {name!r}, which is not one of "
                    f"{', '.join(PredefinedOptions.__members__)}"
                )
            self._options.set_string(PREDEFINED_OPTIONS, name)
        if options.contains_key(TRANSFER_THREADS):
            number = options.get_integer(TRANSFER_THREADS, _DEFAULT_TRANSFER_THREADS)
            self._options.set_integer(TRANSFER_THREADS, number)


explain_missing_names(__name__)
