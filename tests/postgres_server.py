"""A PostgreSQL server of the tests' own: made by initdb in a temporary folder, on loopback, gone afterwards."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

_MAX_START_S: Final = 30.0
_MAX_STOP_S: Final = 20.0
_POLL_S: Final = 0.02
_INITDB: Final = (
    "--no-sync",
    "--no-instructions",
    "--auth=trust",
    "--username=flowlet",
    "--encoding=UTF8",
    "--locale=C",
)


def programs() -> Path:
    """The folder of initdb and postgres; a test fails where there is none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which("postgres")
    folders += [Path(found).resolve().parent] if found else []
    for folder in folders:
        if (folder / "initdb").exists():
            return folder
    pytest.fail("there is no PostgreSQL server on this machine: run make postgres")


class PostgresServer:
    """Runs from ``with`` to its end, as user postgres if the tests run as root, which PostgreSQL refuses.

    Args:
        is_durable: whether commits are on the disk; without it the tests are quicker.
    """

    def __init__(self, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._programs = programs()
        self._owner = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="flowlet-postgres-"))
        try:
            if self._owner is not None:
                os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
            self._run("initdb", "--pgdata", str(self._folder / "data"), *_INITDB)
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    @property
    def url(self) -> str:
        """The address of the database that initdb has made."""
        return f"postgresql://flowlet@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, and wait until it answers; a second start uses the port of the first."""
        self.port = self.port or _free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if self._is_durable else "off",
            "full_page_writes": "on" if self._is_durable else "off",
            "shared_buffers": "16MB",
            "max_connections": "40",
            "autovacuum": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", *options],
                stdout=log,
                stderr=log,
                **self._as_owner(),
            )
        self._wait_until_it_answers()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT ends connections and writes everything, SIGQUIT is a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_MAX_STOP_S)

    def connect(self) -> Any:
        """Return a connection that begins no transaction by itself."""
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def execute(self, sql: str) -> list[Any]:
        """Run a statement on a connection of its own; its rows, if it has any."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def require_password(self, user: str) -> None:
        """Make this user need a password from now on; the others need none."""
        rules = self._folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.execute("SELECT pg_reload_conf()")

    def _run(self, program: str, *arguments: str) -> None:
        command: list[str | Path] = [self._programs / program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **self._as_owner())
        assert done.returncode == 0, f"{program} failed: {done.stdout}{done.stderr}"

    def _as_owner(self) -> dict[str, Any]:
        if self._owner is None:
            return {"cwd": self._folder}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": [], "cwd": self._folder}

    def _wait_until_it_answers(self) -> None:
        import psycopg

        assert self._process is not None
        deadline = time.monotonic() + _MAX_START_S
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "server.log").read_text()
                    raise RuntimeError(f"the server ended or does not answer: {log}") from error
                time.sleep(_POLL_S)
            else:
                return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
