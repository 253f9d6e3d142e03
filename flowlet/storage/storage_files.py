"""``StorageFiles``: what the storage of checkpoints needs of a file system.

Side:   pure.
Source: Flink ``FileSystem``, as far as checkpoints need it.
"""

from typing import Protocol, TypeAlias

Folder: TypeAlias = tuple[str, ...]
"""The names of a folder and of those above it, below the root; each was checked."""


class StorageFiles(Protocol):
    """Files in folders.

    Threading: any thread, any number of processes.  Every method raises StorageError, which names the file.
    """

    def write(self, folder: Folder, name: str, content: bytes) -> None:
        """Keep a file; when this returns, the whole file survives a loss of power, and before that there is nothing
        under its name.
        """

    def settle(self, folder: Folder) -> None:
        """When this returns, the folder, and those above it, survive a loss of power, whoever made them."""

    def read(self, folder: Folder, name: str, max_bytes: int) -> bytes:
        """The whole file.  Raises StorageError: there is none, or it has more than ``max_bytes`` bytes."""

    def size(self, folder: Folder, name: str) -> int | None:
        """The size of a file in bytes; None: there is no file."""

    def names(self, folder: Folder) -> list[str]:
        """The names in a folder; none: the folder does not exist."""

    def remove(self, folder: Folder, name: str) -> None:
        """Remove a file for good, if there is one."""

    def remove_folder(self, folder: Folder) -> None:
        """Remove a folder with its files, if there is one, and the folder above if nothing else is in it."""

    def location(self, folder: Folder, name: str = "") -> str:
        """Where it lies, for people."""
