"""Each test with a database runs on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import Database, EmptyPostgres, SqliteFile
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    """One server for a module; SQLite needs none.  It is set up before a test counts the processes that there are."""
    if request.param == "sqlite":
        yield None
    else:
        with PostgresServer() as running:
            yield running


@pytest.fixture
def database(server: PostgresServer | None, tmp_path: Path) -> Database:
    """Provide a database without tables."""
    return SqliteFile(tmp_path) if server is None else EmptyPostgres(server)


@pytest.fixture
def postgres(server: PostgresServer | None) -> EmptyPostgres:
    """PostgreSQL without tables; for tests that are ``on_postgresql``."""
    assert server is not None
    return EmptyPostgres(server)
