"""The options of the database sink, with PyFlink's names; errors are raised while the program is built."""

import pickle
from typing import Any

import pytest

from flowlet.common.typeinfo import Types
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from flowlet.errors import JobGraphError

ROW = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
INSERT = "INSERT INTO t VALUES (?, ?)"


def options(url: str = "postgresql://flink:s3cret@h/db") -> JdbcConnectionOptions:
    return JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()


def numbers_of(options: JdbcExecutionOptions) -> tuple[int, int, int]:
    return options.get_batch_interval_ms(), options.get_batch_size(), options.get_max_retries()


def test_options_as_pyflink_builds_them() -> None:
    connection = (
        JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
        .with_url("jdbc:postgresql://h/db")
        .with_driver_name("org.postgresql.Driver")
        .with_user_name("flink")
        .with_password("s3cret")
        .build()
    )
    execution = (
        JdbcExecutionOptions.builder().with_batch_interval_ms(1000).with_batch_size(200).with_max_retries(5).build()
    )

    assert (connection.get_db_url(), connection.get_driver_name()) == ("postgresql://h/db", "psycopg")
    assert (connection.get_user_name(), connection.get_password()) == ("flink", "s3cret")
    assert numbers_of(execution) == (1000, 200, 5)
    assert numbers_of(JdbcExecutionOptions.defaults()) == (0, 5000, 3), "as in Flink"


def test_user_and_password_of_the_url_and_those_that_replace_them() -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("postgresql://a:b@h/db")

    assert (options().get_user_name(), options().get_password()) == ("flink", "s3cret")
    assert builder.with_user_name("c").with_password("d").build().get_password() == "d"


def test_no_repr_shows_the_password() -> None:
    for each in (JdbcSink.sink(INSERT, ROW, options()), JdbcSink.exactly_once_sink(INSERT, ROW, options())):
        assert "s3cret" not in f"{each!r} {each.statement!r} {each.statement.connection.database!r}"


def test_a_sink_is_pickled_with_its_password() -> None:
    sink = pickle.loads(pickle.dumps(JdbcSink.exactly_once_sink(INSERT, ROW, options())))

    assert sink.statement.connection.get_password() == "s3cret"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("", ROW, options()), "needs a statement of SQL"),
        ((INSERT, ROW, "url"), "needs a JdbcConnectionOptions, got an object of type str"),
        ((INSERT, ROW, options(), 5), "needs a JdbcExecutionOptions, got 5"),
        ((INSERT, Types.LONG(), options()), "needs the type of its rows"),
        (
            (INSERT, Types.TUPLE([Types.LONG()]), options()),
            r"has 2 placeholders \(\?\), the type has 1 fields: \['f0'\]",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, reason: str) -> None:
    for make in (JdbcSink.sink, JdbcSink.exactly_once_sink):
        with pytest.raises(JobGraphError, match=reason):
            make(*arguments)


def test_options_that_would_do_nothing_are_refused() -> None:
    for execution in (
        JdbcExecutionOptions.builder().with_batch_interval_ms(5).build(),
        JdbcExecutionOptions.builder().with_max_retries(11).build(),
    ):
        with pytest.raises(JobGraphError, match="no batch interval, and at most 10 retries"):
            JdbcSink.exactly_once_sink(INSERT, ROW, options(), execution)


def test_wrong_options_are_refused() -> None:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
    with pytest.raises(JobGraphError, match="needs with_url"):
        builder.build()
    with pytest.raises(JobGraphError, match="needs a text"):
        builder.with_url(5)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(JobGraphError, match=r"is written with sqlite3, got 'com.mysql.Driver'; leave it out"):
        builder.with_url("sqlite:///f.db").with_driver_name("com.mysql.Driver").build()
    with pytest.raises(JobGraphError, match=r"with_batch_size\(\) needs a whole number of 1 or more, got 0"):
        JdbcExecutionOptions.builder().with_batch_size(0)
