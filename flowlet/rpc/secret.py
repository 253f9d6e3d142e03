"""The file with the secret that all processes of one user's cluster share.

Side:       shared.  Blocking file I/O: only called at the start, before a loop runs.
Invariants: the file is never readable by others, not even while it is created; it appears with its whole content or not
            at all; the secret is never part of a message, a log line or an argument.
Format:     64 hex digits (32 random bytes) and a newline.
"""

import os
import secrets
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowlet.errors import ConfigError
from flowlet.rpc.auth import SECRET_BYTES
from flowlet.rpc.early_signals import STOP_SIGNALS

_ENVIRONMENT_VARIABLE: Final = "FLOWLET_SECRET_FILE"
_MAX_FILE_BYTES: Final = 256


def default_secret_file() -> Path:
    """Return ``$FLOWLET_SECRET_FILE``, or ``~/.flowlet/secret``."""
    named = os.environ.get(_ENVIRONMENT_VARIABLE)
    return Path(named) if named else Path.home() / ".flowlet" / "secret"


def load_or_create_secret(path: Path | None = None) -> bytes:
    """Read the secret (32 bytes), or create it if there is no file; processes that start together agree on one.

    Raises:
        ConfigError: the file cannot be read or created, other users can access it, or it holds no secret.
    """
    path = default_secret_file() if path is None else path
    try:
        # A link counts as a file, wherever it leads: ``_load`` refuses it.
        if not os.path.lexists(path):
            _create(path)
        # Read back in any case: another process may have been first.
        return _load(path)
    except OSError as error:
        raise ConfigError(f"secret file {path}: {error.strerror or error}") from error


def load_secret(path: Path | None = None) -> bytes:
    """Read the 32 bytes of the secret, for a program that looks for a cluster: if the file is missing, its name is
    misspelled or no cluster runs.

    Raises:
        ConfigError: the file is not there, cannot be read, is not this user's alone, or holds something else.
    """
    path = default_secret_file() if path is None else path
    try:
        return _load(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"secret file {path} does not exist; a JobManager makes it when it starts: start one, or name the file of "
            f"the one that runs (${_ENVIRONMENT_VARIABLE} does, too)"
        ) from error
    except OSError as error:
        raise ConfigError(f"secret file {path}: {error.strerror or error}") from error


def secret_for(host: str, port: int, path: Path | None) -> bytes:
    """Read the secret like ``load_secret``, for a program that asks the JobManager at ``host`` and ``port``; the error
    names it.
    """
    try:
        return load_secret(path)
    except ConfigError as error:
        raise ConfigError(f"JobManager {host}:{port} cannot be asked: {error}") from error


def _create(path: Path) -> None:
    # A signal that ends the process at once (``early_signals``) would leave the temporary file, with the secret in it.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside the file: a link works within one file system only.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(secrets.token_bytes(SECRET_BYTES).hex() + "\n")
                file.flush()
                # Before the link: a name must not lead to an empty file after a loss of power.
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces a file: the first process wins, and the others read its file.
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _load(path: Path) -> bytes:
    # Without O_NONBLOCK, a named pipe at this path would block the start for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Of the open file: the path may name another one by now.
        _check_owner(path, os.fstat(fd))
        text = os.read(fd, _MAX_FILE_BYTES)
    finally:
        os.close(fd)
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"secret file {path} does not hold {2 * SECRET_BYTES} hex digits; remove it, and the JobManager makes a "
            "new one when it starts"
        )
    return secret


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"secret file {path} is not a regular file")
    # Another user could have put it there, and would know the secret.
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"secret file {path} belongs to user {status.st_uid}, not to this process's user {os.geteuid()}"
        )
    if status.st_mode & 0o077:
        raise ConfigError(
            f"secret file {path} is open to other users (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}"
        )
