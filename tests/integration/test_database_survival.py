"""A TaskManager is killed by ``kill -9`` around the commits of its database sink; rows are in the
table exactly once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from flowlet.errors import JobExecutionError
from tests.databases import Database, EmptyPostgres, SqliteFile, checksums
from tests.integration.jobs import stays_at
from tests.integration.killing_sink import (
    ROW,
    KillOnce,
    deaths,
    environment,
    expected_rows,
    numbers_into,
    recovery_from,
    sink,
)
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    if request.param == "sqlite":
        yield None
    else:
        with PostgresServer() as running:
            yield running


@pytest.fixture
def database(server: PostgresServer | None, tmp_path: Path) -> Database:
    found = SqliteFile(tmp_path) if server is None else EmptyPostgres(server)
    found.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    return found


def found(database: Database) -> tuple[int, int, int]:
    return checksums(database.execute("SELECT id, name FROM t"))


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(["before"], marks=pytest.mark.long, id="before the commit"),
        pytest.param(["after"], marks=pytest.mark.long, id="after the commit"),
        pytest.param(["before", "after"], id="twice in a row"),
    ],
)
def test_kills_around_the_commit_lose_nothing_and_repeat_nothing(
    database: Database, moments: list[str], tmp_path: Path
) -> None:
    """Kills between prepare and commit, and between commit and notify, lose and repeat nothing: the process is gone
    before anybody hears of the commit.
    """
    env = environment(tmp_path)
    numbers_into(env, sink(database.url, tmp_path, moments))

    env.execute("survivor")

    assert deaths(tmp_path) == moments
    assert found(database) == checksums(expected_rows())


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_another_parallelism_after_a_kill_loses_nothing_and_repeats_nothing(
    database: Database, moment: str, tmp_path: Path
) -> None:
    """A job that fails for good around a commit is followed by a wider one, which goes on from its checkpoint."""
    env = environment(tmp_path, attempts=0)
    numbers_into(env, sink(database.url, tmp_path, [moment]))
    with pytest.raises(JobExecutionError) as failed:
        env.execute("first")
    assert deaths(tmp_path) == [moment]

    env = environment(tmp_path, parallelism=3)
    env.configure(recovery_from(stays_at(failed.value)))
    numbers_into(env, sink(database.url, tmp_path))
    env.execute("second")

    assert found(database) == checksums(expected_rows())


@pytest.mark.long
def test_an_upsert_has_the_same_table_after_a_kill(database: Database, tmp_path: Path) -> None:
    """Rows that come again after a kill change nothing: an upsert is at least once, and writes each row where it
    was.
    """
    database.execute("CREATE UNIQUE INDEX t_id ON t (id)")
    connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(database.url).build()
    upsert = "INSERT INTO t (id, name) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name"
    options = JdbcExecutionOptions.builder().with_batch_size(300).with_batch_interval_ms(20).build()
    env = environment(tmp_path)
    numbers_into(env, KillOnce(JdbcSink.sink(upsert, ROW, connection, options).statement, tmp_path))

    env.execute("upserts")

    assert deaths(tmp_path) == ["flushed"]
    assert found(database) == checksums(expected_rows())
