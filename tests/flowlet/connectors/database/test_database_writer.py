"""Rows are written in batches before each checkpoint; a lost connection is made again; errors advise and show no
password.
"""

import contextlib
import datetime
import decimal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.common import Instant, Row
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.connectors.database.database_driver import without_password
from flowlet.connectors.database.sink import DatabaseWriter, driver_of, pause_unless_cancelled, row_values_of, writer_of
from flowlet.datastream.connectors.base import SinkWriterContext, WriterInitContext
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from flowlet.errors import FlowletError, JobGraphError, TaskCancelled
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from tests.attack.tcp_proxy import TcpProxy
from tests.databases import Database, EmptyPostgres, SqliteFile
from tests.pandas_values import NA, NAT
from tests.postgres_server import PostgresServer

on_postgresql = pytest.mark.parametrize("server", [pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
on_sqlite = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
CONTEXT = SinkWriterContext()
ROW = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
INSERT = "INSERT INTO t (id, name) VALUES (?, ?)"
UPSERT = f"{INSERT} ON CONFLICT (id) DO UPDATE SET name = excluded.name"


def sink(url: str, sql: str = INSERT, row: Any = ROW, **options: int) -> JdbcSink:
    builder = JdbcExecutionOptions.builder()
    for name, value in options.items():
        getattr(builder, f"with_{name}")(value)
    return JdbcSink.sink(
        sql, row, JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build(), builder.build()
    )


def no_pause(seconds: float) -> None:
    raise AssertionError("there is nothing to try again")


def writer(
    to: JdbcSink, pause: Callable[[float], None] = no_pause
) -> contextlib.AbstractContextManager[DatabaseWriter]:
    """A writer that is closed behind the block; ``pause`` is called before each further attempt."""
    statement = to.statement
    return contextlib.closing(
        DatabaseWriter(driver_of(statement), row_values_of(statement), statement.execution, None, pause)
    )


def write(kept: DatabaseWriter, *records: Any) -> None:
    """Write records, and wait until the database has them."""
    kept.write_all(records, CONTEXT)
    kept.flush(end_of_input=False)


def count(database: Database) -> int:
    return int(database.execute("SELECT count(*) FROM t")[0][0])


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    return database


def test_full_batches_are_written_at_once_and_the_rest_before_a_checkpoint(table: Database) -> None:
    with OneInputOperatorHarness(SinkOperator(sink(table.url, batch_size=3))) as harness:
        harness.open()
        harness.process_chunk([(number, "a") for number in range(7)])
        assert count(table) == 6

        harness.snapshot(1)

        assert count(table) == 7


def test_rows_that_wait_are_written_when_the_interval_has_passed(table: Database) -> None:
    with OneInputOperatorHarness(SinkOperator(sink(table.url, batch_size=3, batch_interval_ms=50))) as harness:
        harness.open()
        harness.process_chunk([(0, "a"), (1, "b")])
        harness.advance_processing_time(49)
        assert count(table) == 0

        harness.advance_processing_time(2)
        assert count(table) == 2

        harness.process_chunk([(2, "c")])
        harness.advance_processing_time(51)
        assert count(table) == 3


def test_an_upsert_writes_rows_that_come_again_once(table: Database) -> None:
    for name in ("old", "new"):
        with OneInputOperatorHarness(SinkOperator(sink(table.url, UPSERT))) as harness:
            harness.open()
            harness.process_chunk([(1, name), (2, name)])
            harness.end_input()
            harness.finish()

    assert table.execute("SELECT * FROM t ORDER BY id") == [(1, "new"), (2, "new")]


def test_rows_tuples_and_names_in_another_order(table: Database) -> None:
    context = WriterInitContext(OperatorContext("sink", 0, 1, 1, "sink"))
    with contextlib.closing(writer_of(sink(table.url).statement, context)) as kept:
        kept.write(Row(1, "a"), CONTEXT)
        kept.write_all([(2, "b"), Row(name="c", id=3), [4, None]], CONTEXT)
        kept.flush(end_of_input=True)

    assert table.execute("SELECT * FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c"), (4, None)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ((1,), r"the record \(1,\) is a row of 1 fields, declared are 2: id, name"),
        ("ab", "the record 'ab' is no row of the fields id, name"),
        ((1, {"a": 2}), r"field 'name' of the record \(1, {'a': 2}\) cannot be written: "),
        ((7, "twice"), r"refused the row \(7, 'twice'\): .*after a restart rows come again: use an upsert"),
    ],
)
def test_a_record_that_cannot_be_written_is_named(table: Database, record: Any, reason: str) -> None:
    table.execute("INSERT INTO t VALUES (7, 'there')")
    with writer(sink(table.url)) as kept, pytest.raises(FlowletError, match=reason):
        write(kept, *[(number, "fine") for number in range(5)], record, (6, "fine"))

    assert count(table) == 1


@on_sqlite
def test_numbers_beyond_64_bits_and_dates_in_sqlite(table: Database) -> None:
    table.execute("DROP TABLE t")
    table.execute("CREATE TABLE t (id BIGINT, name TEXT, at, price)")
    row = Types.ROW([Types.LONG(), Types.SQL_DATE(), Types.SQL_TIMESTAMP(), Types.BIG_DEC()])
    noon = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001

    with writer(sink(table.url, "INSERT INTO t VALUES (?, ?, ?, ?)", row)) as kept:
        write(kept, (1, noon.date(), noon, decimal.Decimal("1.50")), (2, noon.time(), Instant(5, 1_000_000), True))
        with pytest.raises(
            FlowletError, match=r"field 'f0' of the record .* cannot be written: SQLite has integers of 64 bits"
        ):
            kept.write((2**63, None, None, None), CONTEXT)

    assert table.execute("SELECT * FROM t") == [
        (1, "2024-07-01", "2024-07-01 12:00:00", "1.50"),
        (2, "12:00:00", 5001, 1),
    ]


AWARE = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("url", "type_info", "value", "reason"),
    [
        ("sqlite", Types.DOUBLE(), float("nan"), "SQLite has no NaN, it would become NULL"),
        ("sqlite", Types.BIG_DEC(), decimal.Decimal("1234567890123456.5"), "keeps 15 digits of the decimal"),
        ("sqlite", Types.BIG_DEC(), decimal.Decimal("1E+400"), "keeps 15 digits of the decimal"),
        ("sqlite", Types.BIG_DEC(), decimal.Decimal("NaN"), "no number for the decimal NaN"),
        ("sqlite", Types.BIG_INT(), 2**64, "SQLite has integers of 64 bits"),
        ("sqlite", Types.STRING(), NAT, "no column for a NaTType"),
        ("sqlite", Types.STRING(), NA, "no column for a NAType"),
        ("sqlite", Types.INSTANT(), Instant(5, 1), "a fraction of a millisecond, which would be lost"),
        ("sqlite", Types.INT(), 2**31, "2147483648 does not fit into its declared type"),
        ("sqlite", Types.SQL_TIMESTAMP(), AWARE, "has a time zone.*: declare the field as INSTANT"),
        ("postgresql", Types.SQL_TIMESTAMP(), AWARE, "has a time zone.*: declare the field as INSTANT"),
        ("postgresql", Types.SQL_TIME(), AWARE.timetz(), "has a time zone"),
        ("postgresql", Types.SQL_DATE(), AWARE.replace(tzinfo=None), "has a time or a zone, which a date cannot hold"),
        ("postgresql", Types.INSTANT(), AWARE.replace(tzinfo=None), "has no time zone, so that it is no point in time"),
        ("postgresql", Types.INSTANT(), Instant(5, 1), "a fraction of a microsecond, which would be lost"),
        ("postgresql", Types.SQL_TIMESTAMP(), NAT, "no value of PostgreSQL for NaT"),
        ("postgresql", Types.BYTE(), 300, "300 does not fit into its declared type"),
    ],
)
def test_a_value_that_would_come_out_as_another_is_refused(
    url: str, type_info: TypeInformation, value: Any, reason: str
) -> None:
    """The value is refused before a statement runs, so that no server is needed."""
    if url == "postgresql":
        pytest.importorskip("psycopg")
    row = Types.ROW_NAMED(["id", "name"], [Types.LONG(), type_info])
    values = row_values_of(
        sink({"sqlite": "sqlite:////none.db", "postgresql": "postgresql://a@127.0.0.1/none"}[url], row=row).statement
    )

    assert values.of([(1, None)]) == [(1, None)]
    with pytest.raises(FlowletError, match=rf"field 'name' of the record \(1, .* cannot be written: .*{reason}"):
        values.of([(0, None), (1, value)])


@on_sqlite
def test_sqlite_keeps_what_it_takes(table: Database) -> None:
    table.execute("DROP TABLE t")
    table.execute("CREATE TABLE t (id BIGINT, name DECIMAL(38, 18))")
    decimals = [decimal.Decimal("123456789012.345"), decimal.Decimal("-0.000000000001")]
    values = [*decimals, float("inf"), 2**63 - 1, -(2**63), -1.5, 0.1]

    with writer(sink(table.url, row=Types.ROW([Types.LONG(), Types.PICKLED_BYTE_ARRAY()]))) as kept:
        write(kept, *[(0, each) for each in values])

    found = [name for _, name in table.execute("SELECT * FROM t")]
    assert [decimal.Decimal(repr(each)) for each in found] == [decimal.Decimal(str(each)) for each in values]


@pytest.mark.parametrize("url", ["sqlite:////none.db", "postgresql://a@127.0.0.1/none"])
def test_a_type_without_a_column_is_refused_when_the_sink_is_built(url: str) -> None:
    row = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.MAP(Types.STRING(), Types.INT())])

    with pytest.raises(JobGraphError, match="has no column for the field 'name' of MapTypeInfo"):
        sink(url, row=row)


@on_postgresql
def test_types_of_postgresql(postgres: EmptyPostgres) -> None:
    postgres.execute(
        "CREATE TABLE t (a NUMERIC, b TIMESTAMP, c TIMESTAMPTZ, d BYTEA, e INT[], f DOUBLE PRECISION, g TEXT)"
    )
    row = Types.ROW([Types.BIG_DEC(), Types.SQL_TIMESTAMP(), Types.INSTANT(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.LIST(Types.INT()),  # noqa: E501
                     Types.DOUBLE(), Types.STRING()])  # fmt: skip
    noon = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001
    record = (decimal.Decimal("1.50"), noon, Instant(5, 1_000_000), b"\0\xff", [1, None], float("inf"), "100 % ?")

    with writer(sink(postgres.url, "INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", row)) as kept:
        write(kept, record)

    ((a, b, c, d, e, f, g),) = postgres.execute("SELECT * FROM t")
    assert (a, b, bytes(d), e, f, g) == (decimal.Decimal("1.50"), noon, b"\0\xff", [1, None], float("inf"), "100 % ?")
    assert c == datetime.datetime(1970, 1, 1, 0, 0, 5, 1000, datetime.UTC)


@on_postgresql
def test_a_value_that_only_the_server_refuses_is_named(postgres: EmptyPostgres) -> None:
    postgres.execute("CREATE TABLE t (id SMALLINT, name VARCHAR(5))")
    with (
        writer(sink(postgres.url)) as kept,
        pytest.raises(FlowletError, match=r"refused the row \(3, 'too long'\): value too long for type"),
    ):
        write(kept, (1, "a"), (2, "b"), (3, "too long"), (4, "c"))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("INSERT INTO missing VALUES (?, ?)", "missing.*; create it first: the sink creates no tables but its own"),
        ("INSERT INTO t (id, nome) VALUES (?, ?)", "nome"),
        ("INSRT INTO t VALUES (?, ?)", "syntax error"),
    ],
)
def test_a_statement_that_can_never_run_fails_before_the_first_record(table: Database, sql: str, reason: str) -> None:
    with pytest.raises(FlowletError, match=reason):
        writer(sink(table.url, sql))


@on_postgresql
def test_a_connection_that_the_server_ends_is_made_again(postgres: EmptyPostgres) -> None:
    postgres.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    pauses: list[float] = []
    with writer(sink(postgres.url), pauses.append) as kept:
        write(kept, (1, "a"))
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flowlet'")
        write(kept, (2, "b"))

    assert (count(postgres), pauses) == (2, [1.0])


@on_postgresql
def test_a_server_that_stays_away_fails_after_the_retries(postgres: EmptyPostgres, server: PostgresServer) -> None:
    postgres.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    pauses: list[float] = []
    with TcpProxy(server.port) as proxy:
        url = postgres.url.replace(str(server.port), str(proxy.port))
        connected = writer(sink(url, max_retries=2), pauses.append)

    with connected as kept, pytest.raises(FlowletError, match=r"database postgresql://flowlet@.*; tried 3 times"):
        write(kept, (1, "a"))

    assert pauses == [1.0, 2.0]


@on_sqlite
def test_a_locked_file_is_tried_again(table: SqliteFile) -> None:
    other = sqlite3.connect(table.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        other.execute("ROLLBACK")

    with writer(sink(f"sqlite://{table.path}?timeout=0"), pause) as kept, contextlib.closing(other):
        write(kept, (1, "a"))

    assert (count(table), pauses) == (1, [1.0])


@on_sqlite
def test_a_file_that_cannot_be_opened(tmp_path: Path, server: None) -> None:
    with pytest.raises(
        FlowletError, match="unable to open database file; does the folder exist on the machine of this TaskManager"
    ):
        writer(sink(f"sqlite://{tmp_path}/missing/file.db"))


@on_postgresql
def test_a_commit_is_on_the_disk_of_the_server_even_if_the_user_has_asked_for_less(postgres: EmptyPostgres) -> None:
    """A crash of the server must not take rows whose checkpoint is complete."""
    url = f"{postgres.url}?options=-c%20synchronous_commit%3Doff"

    with contextlib.closing(driver_of(sink(url).statement).connect()) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.fixture
def guarded(postgres: EmptyPostgres, server: PostgresServer) -> str:
    """Return the URL of a user who needs the password s3cret and may write the table t."""
    postgres.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    postgres.execute("DROP ROLE IF EXISTS guarded")
    postgres.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 's3cret'")
    server.require_password("guarded")
    return postgres.url.replace("flowlet@", "guarded@")


@on_postgresql
@pytest.mark.parametrize("place", ["url", "option", "environment"])
def test_a_password_is_taken_from_the_url_the_options_or_the_environment(
    postgres: EmptyPostgres, guarded: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
    builder.with_url(guarded.replace("guarded@", "guarded:s3cret@") if place == "url" else guarded)
    if place == "option":
        builder.with_password("s3cret")
    if place == "environment":
        monkeypatch.setenv("PGPASSWORD", "s3cret")
    with writer(JdbcSink.sink(INSERT, ROW, builder.build())) as kept:
        write(kept, (1, "a"))

    assert count(postgres) == 1


@on_postgresql
def test_a_wrong_password_is_final_and_is_never_shown(guarded: str) -> None:
    wrong = sink(guarded.replace("guarded@", "guarded:wr0ng@"))

    with pytest.raises(FlowletError, match='password authentication failed for user "guarded"') as raised:
        writer(wrong)

    assert "wr0ng" not in f"{raised.value!r} {raised.value} {raised.value.__cause__} {wrong!r} {wrong.statement!r}"


def test_without_its_driver_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(FlowletError, match=r"install flowlet\[postgres\] for every TaskManager"):
        driver_of(sink("postgresql://h/db").statement)


def test_a_cancelled_task_does_not_wait_for_the_next_attempt() -> None:
    """The wait is asked ten times a second whether anybody wants the attempt."""
    slept: list[float] = []

    def check_cancelled() -> None:
        if len(slept) == 3:
            raise TaskCancelled("the task was cancelled")

    with pytest.raises(TaskCancelled):
        pause_unless_cancelled(check_cancelled, 5.0, slept.append)

    assert slept == [0.1] * 3


def test_a_password_is_hidden() -> None:
    assert without_password("FATAL:\n  password s3cret\tfailed", "s3cret") == "FATAL: password *** failed"
    assert without_password("nothing to hide", None) == "nothing to hide"
