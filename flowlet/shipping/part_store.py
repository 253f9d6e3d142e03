"""``PartStore``: parts of shipped files in a directory, each under the name of its digest.

Side:       shared.  Blocking; a file appears whole or not at all.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowlet.errors import StorageError
from flowlet.rpc.shipped_files import PART_BYTES

_NAME: Final = re.compile(r"[0-9a-f]{64}")


class PartLostError(StorageError):
    """A part is gone, or is not what it was: it must be shipped again."""


class PartStore:
    """Threading: any thread; for one digest one call at a time.  Life cycle: ``sizes`` first, once.

    Args:
        find_directory: where they are kept; called by ``sizes``, because it may have to make it.
    """

    def __init__(self, find_directory: Callable[[], Path]) -> None:
        self._find_directory = find_directory
        self._directory = Path()  # Written by ``sizes``, before any other call.

    def __repr__(self) -> str:
        return f"<PartStore {self._directory}>"

    def sizes(self) -> dict[bytes, int]:
        """The parts that are there, the one first that was written first.  Raises StorageError."""
        self._directory = self._find_directory()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = []
            for entry in os.scandir(self._directory):
                if _NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, bytes.fromhex(entry.name), status.st_size))
                else:  # a write that was cut off
                    with suppress(OSError):
                        os.unlink(entry.path)
        except OSError as error:
            raise self._failure("read", error) from error
        return {digest: size for _, digest, size in sorted(found)}

    def put(self, digest: bytes, content: bytes) -> None:
        """Keep a part.  Raises StorageError: it cannot be written."""
        temporary = self._directory / f"{digest.hex()}.{secrets.token_hex(4)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path(digest))
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise self._failure("written", error) from error

    def read(self, digest: bytes) -> bytes:
        """A part.

        Raises:
            PartLostError: it is gone, or is not what it was.
            StorageError: it cannot be read.
        """
        try:
            with self._path(digest).open("rb") as file:
                content = file.read(PART_BYTES + 1)
        except FileNotFoundError as error:
            raise PartLostError(str(self._failure("read", error))) from error
        except OSError as error:
            raise self._failure("read", error) from error
        if hashlib.sha256(content).digest() != digest:
            raise PartLostError(
                f"part {digest.hex()} of a shipped file in {self._directory} has changed; submit the job again"
            )
        return content

    def remove(self, digest: bytes) -> None:
        """Forget a part; one that cannot be removed stays."""
        with suppress(OSError):
            self._path(digest).unlink()

    def _path(self, digest: bytes) -> Path:
        return self._directory / digest.hex()

    def _failure(self, what: str, error: OSError) -> StorageError:
        return StorageError(
            f"a part of a shipped file in {self._directory} cannot be {what}: {error.strerror or error}"
        )
