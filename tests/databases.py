"""SQLite and PostgreSQL for one test: equal statements for both, and an oracle that knows nothing of the engine."""

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from tests.postgres_server import PostgresServer


class Database(Protocol):
    @property
    def url(self) -> str:
        """The URL for ``with_url``."""

    def execute(self, sql: str) -> list[Any]:
        """Run a statement on a connection of its own; its rows, if it has any."""


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "test.db"

    @property
    def url(self) -> str:
        return f"sqlite://{self.path}?timeout=10"

    def execute(self, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()


class EmptyPostgres:
    """The database of a server, without the tables of the tests before."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        self._server = server
        server.execute("DROP SCHEMA public CASCADE")
        server.execute("CREATE SCHEMA public")

    def execute(self, sql: str) -> list[Any]:
        return self._server.execute(sql)


def checksums(rows: Iterable[tuple[int, str]]) -> tuple[int, int, int]:
    """Return count, sum and xor of the hashes of rows: equal only if no row is lost or repeated (but for a chance of
    2**-32).
    """
    count = total = mixed = 0
    for number, text in rows:
        count, total, mixed = count + 1, total + number, mixed ^ crc32(f"{number} {text}".encode())
    return count, total, mixed
