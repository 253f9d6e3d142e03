"""Rows are in the database exactly once: each interleaving of commits, deaths and restarts is forced, with the operator
that jobs run.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from flowlet.common.typeinfo import Types
from flowlet.connectors.database.sink import MARKER_TABLE
from flowlet.datastream.connectors.base import CommitRequest, Outcome, SinkWriterContext
from flowlet.datastream.connectors.jdbc import (
    JdbcConnectionOptions,
    JdbcExactlyOnceSink,
    JdbcExecutionOptions,
    JdbcSink,
)
from flowlet.errors import FlowletError
from flowlet.sinks.commit_runner import RETRY_PAUSE_MS
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.attack.tcp_proxy import Direction, TcpProxy
from tests.databases import Database, EmptyPostgres, checksums
from tests.flowlet.sinks.dealt_out import dealt_out
from tests.postgres_server import PostgresServer

on_postgresql = pytest.mark.parametrize("server", [pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
ROW = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
INSERT = "INSERT INTO t (id, name) VALUES (?, ?)"  # without a key: a row that comes twice is there twice


def sink(url: str, batch_size: int = 3) -> JdbcExactlyOnceSink:
    connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
    return JdbcSink.exactly_once_sink(
        INSERT, ROW, connection, JdbcExecutionOptions.builder().with_batch_size(batch_size).build()
    )


def rows(first: int, end: int) -> list[tuple[int, str]]:
    return [(number, f"name {number}") for number in range(first, end)]


def opened(
    url: str, snapshot: OperatorSnapshot | None = None, *, subtask: int = 0, parallelism: int = 1, attempt: int = 0
) -> OneInputOperatorHarness:
    restored = None if snapshot is None else 1
    place = SubtaskPlace(subtask=subtask, parallelism=parallelism, attempt=attempt, restored_checkpoint_id=restored)
    harness = OneInputOperatorHarness(SinkOperator(sink(url)), place=place)
    harness.initialize_state(snapshot)
    try:
        harness.open()
    except BaseException:
        harness.close()
        raise
    return harness


def found(database: Database) -> tuple[int, int, int]:
    return checksums(database.execute("SELECT id, name FROM t"))


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    return database


def test_rows_are_there_when_their_checkpoint_is_complete_and_not_before(table: Database) -> None:
    with opened(table.url) as harness:
        harness.process_chunk(rows(0, 10))
        harness.snapshot(1)
        assert found(table)[0] == 0

        harness.process_chunk(rows(10, 15))
        harness.notify_checkpoint_complete(1)

        assert found(table) == checksums(rows(0, 10))


def test_a_kill_between_prepare_and_commit_loses_nothing(table: Database) -> None:
    harness = opened(table.url)
    harness.process_chunk(rows(0, 10))
    snapshot = harness.snapshot(1)
    harness.process_chunk(rows(10, 15))  # of no checkpoint: the source gives them again
    harness.close()

    with opened(table.url, snapshot, attempt=1) as restored:
        restored.process_chunk(rows(10, 15))
        restored.snapshot(2)
        restored.notify_checkpoint_complete(2)

    assert found(table) == checksums(rows(0, 15))


@pytest.mark.parametrize("is_committed", [False, True])
def test_restarts_and_other_jobs_from_one_checkpoint_write_its_rows_once(table: Database, is_committed: bool) -> None:
    """The commit may have happened before the kill, but nobody was notified."""
    harness = opened(table.url)
    harness.process_chunk(rows(0, 10))
    snapshot = harness.snapshot(1)
    if is_committed:
        harness.notify_checkpoint_complete(1)
    harness.close()

    for _ in range(2):
        opened(table.url, snapshot, attempt=int(is_committed)).close()

    assert found(table) == checksums(rows(0, 10))


def test_two_kills_in_a_row_change_nothing(table: Database) -> None:
    harness = opened(table.url)
    harness.process_chunk(rows(0, 10))
    first = harness.snapshot(1)
    harness.close()  # before the commit
    harness = opened(table.url, first, attempt=1)
    harness.process_chunk(rows(10, 20))
    second = harness.snapshot(2)
    harness.close()  # after that of 1, before that of 2
    harness = opened(table.url, second, attempt=2)
    harness.close()  # after both

    opened(table.url, second, attempt=3).close()

    assert found(table) == checksums(rows(0, 20))


def test_a_dead_process_that_lives_on_commits_what_is_committed_already(table: Database) -> None:
    """A TaskManager that lost its JobManager hears of the checkpoint after its successor has committed."""
    zombie = opened(table.url)
    zombie.process_chunk(rows(0, 10))
    zombie.snapshot(1)
    zombie.notify_checkpoint_complete(1)  # from now on it believes that it knows the marker
    zombie.process_chunk(rows(10, 20))
    snapshot = zombie.snapshot(2)
    opened(table.url, snapshot, attempt=1).close()

    zombie.notify_checkpoint_complete(2)
    zombie.close()

    assert found(table) == checksums(rows(0, 20))


def test_a_transaction_whose_marker_is_there_changes_nothing(table: Database) -> None:
    """Two processes that ask for the marker at one time and then both commit write each batch once."""
    context: Any = None
    one, other = (sink(table.url).create_target(context) for _ in range(2))

    for number in range(2):
        for target in (one, other):
            target.commit("w", number, rows(number, number + 1))
    assert (one.committed("w"), found(table)) == (1, checksums(rows(0, 2)))
    with pytest.raises(
        FlowletError, match="the marker of writer w in flowlet_commits is 1, and number 5 is to be committed"
    ):
        one.commit("w", 5, rows(5, 6))
    one.close()
    other.close()

    assert found(table) == checksums(rows(0, 2))


@pytest.mark.parametrize("parallelism", [1, 3, 5])
@pytest.mark.parametrize("committed", [0, 1, 2])
def test_another_parallelism_loses_and_repeats_nothing(table: Database, parallelism: int, committed: int) -> None:
    """Two subtasks have two checkpoints each, of which ``committed`` were committed; waiting rows are dealt out."""
    snapshots = []
    for subtask in range(2):
        harness = opened(table.url, subtask=subtask, parallelism=2)
        harness.process_chunk(rows(1000 * subtask, 1000 * subtask + 7))
        harness.snapshot(1)
        harness.process_chunk(rows(1000 * subtask + 100, 1000 * subtask + 107))
        snapshots.append(harness.snapshot(2))
        for checkpoint in range(committed):
            harness.notify_checkpoint_complete(checkpoint + 1)
        harness.close()

    shares = dealt_out(snapshots, parallelism, SinkOperator(sink(table.url)))
    commit_until_nothing_waits(table.url, shares)
    for subtask, share in enumerate(shares):
        with opened(table.url, share, subtask=subtask, parallelism=parallelism) as harness:
            harness.process_chunk(rows(5000 + subtask, 5001 + subtask))
            harness.snapshot(3)
            harness.notify_checkpoint_complete(3)

    firsts = [1000 * subtask + 100 * checkpoint for subtask in (0, 1) for checkpoint in (0, 1)]
    expected = [row for first in firsts for row in rows(first, first + 7)]
    assert found(table) == checksums(expected + rows(5000, 5000 + parallelism))


def commit_until_nothing_waits(url: str, shares: Sequence[OperatorSnapshot]) -> None:
    """Start the subtasks one after the other, and all of them again if one waited in vain for the commit of another
    one.
    """
    failed: list[str] = []
    for attempt in range(4):
        failed.clear()
        for subtask, share in enumerate(shares):
            try:
                opened(url, share, subtask=subtask, parallelism=len(shares), attempt=attempt).close()
            except FlowletError as error:
                failed.append(str(error))
        if not failed:
            return
        assert all("does another subtask fail to commit?" in each for each in failed), failed
    raise AssertionError(f"still waiting: {failed}")


@on_postgresql
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_that_is_cut_during_commit_commits_once(
    postgres: EmptyPostgres, server: PostgresServer, moment: str
) -> None:
    """The server has committed and its answer is lost, or COMMIT never reached it: the outcome is
    unknown to the sink.
    """
    postgres.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    with TcpProxy(server.port) as proxy:
        cut = CutAtCommit(proxy, moment)
        url = postgres.url.replace(str(server.port), str(proxy.port))
        with opened(url) as harness:
            harness.process_chunk(rows(0, 10))
            harness.snapshot(1)
            proxy.change = cut
            harness.notify_checkpoint_complete(1)
            harness.process_chunk(rows(10, 12))
            harness.snapshot(2)
            harness.advance_processing_time(RETRY_PAUSE_MS + 1)
            harness.notify_checkpoint_complete(2)
            proxy.close()  # the harness counts sockets

    assert cut.num_cuts == 1
    assert found(postgres) == checksums(rows(0, 12))


class CutAtCommit:
    """Cuts the first connection that commits a transaction with rows."""

    def __init__(self, proxy: TcpProxy, moment: str) -> None:
        self._proxy = proxy
        self._moment = moment
        self._has_rows = self._is_committing = False
        self.num_cuts = 0

    def __call__(self, direction: Direction, data: bytes) -> bytes:
        if self.num_cuts:
            return data
        self._has_rows |= b"INSERT INTO t" in data
        self._is_committing |= direction == "to server" and self._has_rows and b"COMMIT" in data
        if not self._is_committing or (self._moment == "after" and direction == "to server"):
            return data
        self.num_cuts += 1
        self._proxy.cut()
        return b""


def test_a_table_that_is_missing_fails_the_job_before_the_first_record(database: Database) -> None:
    with pytest.raises(FlowletError, match="create it first"):
        opened(database.url)


def test_old_markers_are_removed_and_new_ones_stay(table: Database) -> None:
    with opened(table.url) as harness:
        harness.process_chunk(rows(0, 1))
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)
        table.execute(f"INSERT INTO {MARKER_TABLE} VALUES ('old', 3, 1000)")

    with opened(table.url) as harness:
        harness.process_chunk(rows(1, 2))
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)

    assert [number for _, number, _ in table.execute(f"SELECT * FROM {MARKER_TABLE}")] == [0, 0]


@on_postgresql
def test_a_user_who_may_not_create_tables_needs_the_one_for_markers(postgres: EmptyPostgres) -> None:
    """The error has the statement that an administrator runs; with the table there, all is well."""
    for sql in [
        "CREATE TABLE t (id BIGINT, name TEXT)",
        "DROP ROLE IF EXISTS writer",
        "CREATE ROLE writer LOGIN",
        "GRANT INSERT ON t TO writer",
        "GRANT USAGE ON SCHEMA public TO writer",
    ]:
        postgres.execute(sql)
    url = postgres.url.replace("flowlet@", "writer@")
    with pytest.raises(FlowletError, match="permission denied") as raised:
        opened(url)
    create = str(raised.value).partition("needs this table: ")[2]

    postgres.execute(create)
    postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {MARKER_TABLE} TO writer")
    with opened(url) as harness:
        harness.process_chunk(rows(0, 1))
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)

    assert found(postgres) == checksums(rows(0, 1))
    postgres.execute("DROP OWNED BY writer")
    postgres.execute("DROP ROLE writer")


def test_a_writer_that_shares_its_rows_with_other_subtasks_commits_in_order(table: Database) -> None:
    """The committer of the later transaction begins first, and waits."""
    context: Any = None
    both = sink(table.url)
    writer: Any = both.create_writer(context)
    committables: list[Any] = []
    for first in (0, 10):
        writer.write_all(rows(first, first + 5), SinkWriterContext())
        committables += writer.prepare_commit()
    requests = [CommitRequest(each) for each in committables]
    committers = [both.create_committer(context) for _ in range(2)]

    committers[1].commit([requests[1]])
    assert (requests[1].outcome, found(table)[0]) == (Outcome.RETRY, 0)
    committers[0].commit([requests[0]])
    committers[1].commit([requests[1]])
    for each in committers:
        each.close()

    assert found(table) == checksums(rows(0, 5) + rows(10, 15))
