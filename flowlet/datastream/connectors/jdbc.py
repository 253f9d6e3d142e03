"""``JdbcSink``: rows into a table of a database, through the DB-API of Python.

Side:   pure.  It describes; tasks connect.
Source: PyFlink ``pyflink.datastream.connectors.jdbc``; ``exactly_once_sink`` is in Flink only, with XA transactions.
Rules:  a password is never part of a message or a repr.
Absent: reading, and drivers of other databases; ``with_driver_name`` is checked against the URL.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Final

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    ListTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from flowlet.common.values.field_values import field_form
from flowlet.datastream.connectors.base import Sink
from flowlet.datastream.connectors.database_url import DatabaseKind, DatabaseUrl, parse_database_url
from flowlet.datastream.connectors.placeholders import Statement, parse_statement
from flowlet.datastream.connectors.sink_writer import SinkWriter, WriterInitContext
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["JdbcConnectionOptions", "JdbcExactlyOnceSink", "JdbcExecutionOptions", "JdbcSink"]

_MAX_COMMIT_RETRIES: Final = 10  # of a sink operator
_ARRAYS: Final = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo, PrimitiveArrayTypeInfo)
_PARTS_MODULE: Final = "flowlet.connectors.database.database_writer"
_DRIVERS: Final = {
    DatabaseKind.SQLITE: ("sqlite3", "org.sqlite.JDBC"),
    DatabaseKind.POSTGRESQL: ("psycopg", "org.postgresql.Driver"),
}


class JdbcConnectionOptions:
    """Which database, and who writes; made by ``JdbcConnectionOptionsBuilder``."""

    def __init__(self, database: DatabaseUrl, driver_name: str, user_name: str | None, password: str | None) -> None:
        self.database = database
        self._driver_name = driver_name
        self._user_name = user_name
        self._password = password

    def __repr__(self) -> str:
        return f"JdbcConnectionOptions({self.database.text!r})"

    def get_db_url(self) -> str:
        """The URL, without its password."""
        return self.database.text

    def get_driver_name(self) -> str:
        """The name of Python's module."""
        return self._driver_name

    def get_user_name(self) -> str | None:
        """The user; None: neither the URL nor ``with_user_name`` says it."""
        return self._user_name

    def get_password(self) -> str | None:
        """The password; None: neither the URL nor ``with_password`` has one."""
        return self._password

    class JdbcConnectionOptionsBuilder:
        """Builds a ``JdbcConnectionOptions``."""

        def __init__(self) -> None:
            self._url: DatabaseUrl | None = None
            self._driver_name: str | None = None
            self._user_name: str | None = None
            self._password: str | None = None

        def with_url(self, url: str) -> "JdbcConnectionOptions.JdbcConnectionOptionsBuilder":
            """``sqlite:///folder/file.db`` or ``postgresql://user@host:port/database``; also with ``jdbc:`` in front.

            Raises:
                JobGraphError: it is neither.
            """
            if not is_name(url):
                raise JobGraphError("with_url() needs a text")  # which is not shown: it may have a password
            self._url = parse_database_url(url)
            return self

        def with_driver_name(self, driver_name: str) -> "JdbcConnectionOptions.JdbcConnectionOptionsBuilder":
            """The driver; it follows from the URL, so it may be left out."""
            self._driver_name = driver_name
            return self

        def with_user_name(self, user_name: str) -> "JdbcConnectionOptions.JdbcConnectionOptionsBuilder":
            """The user, in place of the URL's."""
            self._user_name = user_name
            return self

        def with_password(self, password: str) -> "JdbcConnectionOptions.JdbcConnectionOptionsBuilder":
            """The password, in place of the URL's; without any the TaskManagers' environment (PGPASSWORD, PGPASSFILE)
            has it.
            """
            self._password = password
            return self

        def build(self) -> "JdbcConnectionOptions":
            """Build the options.  Raises JobGraphError: there is no URL, or the driver is not that of the URL."""
            if self._url is None:
                raise JobGraphError("JdbcConnectionOptions needs with_url(), such as sqlite:///folder/file.db")
            known = _DRIVERS[self._url.kind]
            module = known[0]
            if self._driver_name not in (None, *known):
                raise JobGraphError(
                    f"with_driver_name(): {self._url.text} is written with {module}, got {self._driver_name!r}; leave "
                    "it out"
                )
            user = self._user_name if self._user_name is not None else self._url.user
            password = self._password if self._password is not None else self._url.password
            return JdbcConnectionOptions(self._url, module, user, password)


class JdbcExecutionOptions:
    """Size and interval of batches, and retries; made by ``builder``."""

    # Flink's defaults.
    def __init__(self, batch_interval_ms: int = 0, batch_size: int = 5_000, max_retries: int = 3) -> None:
        self._batch_interval_ms = batch_interval_ms
        self._batch_size = batch_size
        self._max_retries = max_retries

    def __repr__(self) -> str:
        return (
            f"JdbcExecutionOptions({self._batch_interval_ms} ms, {self._batch_size} rows, {self._max_retries} retries)"
        )

    def get_batch_interval_ms(self) -> int:
        """The time after which rows are written although their batch is not full; 0: they wait for the batch or the
        checkpoint.
        """
        return self._batch_interval_ms

    def get_batch_size(self) -> int:
        """The number of rows of a batch."""
        return self._batch_size

    def get_max_retries(self) -> int:
        """How often a batch is tried again before the job fails and restarts."""
        return self._max_retries

    @staticmethod
    def defaults() -> "JdbcExecutionOptions":
        """5000 rows, no interval, 3 retries."""
        return JdbcExecutionOptions()

    @staticmethod
    def builder() -> "JdbcExecutionOptions.Builder":
        """A builder that begins with the defaults."""
        return JdbcExecutionOptions.Builder()

    class Builder:
        """Builds a ``JdbcExecutionOptions``."""

        def __init__(self) -> None:
            self._values = {"batch_interval_ms": 0, "batch_size": 5_000, "max_retries": 3}

        def with_batch_size(self, size: int) -> "JdbcExecutionOptions.Builder":
            """The number of rows of a batch, from 1."""
            return self._with("batch_size", size, at_least=1)

        def with_batch_interval_ms(self, interval_ms: int) -> "JdbcExecutionOptions.Builder":
            """The longest time that a row waits for its batch; 0: for ever."""
            return self._with("batch_interval_ms", interval_ms, at_least=0)

        def with_max_retries(self, max_retries: int) -> "JdbcExecutionOptions.Builder":
            """How often a batch is tried again, from 0."""
            return self._with("max_retries", max_retries, at_least=0)

        def build(self) -> "JdbcExecutionOptions":
            """Build the options."""
            return JdbcExecutionOptions(**self._values)

        def _with(self, name: str, value: int, *, at_least: int) -> "JdbcExecutionOptions.Builder":
            if not is_whole_number(value) or value < at_least:
                raise JobGraphError(f"with_{name}() needs a whole number of {at_least} or more, got {value!r}")
            self._values[name] = value
            return self


@dataclass(frozen=True, slots=True)
class DatabaseStatement:
    """What both sinks know: a statement, the fields that it takes, the database, and the options."""

    parsed: Statement
    field_names: tuple[str, ...]
    field_types: tuple[TypeInformation, ...]
    connection: JdbcConnectionOptions
    execution: JdbcExecutionOptions


class JdbcSink(Sink):
    """Writes rows at least once; made by ``JdbcSink.sink``."""

    def __init__(self, statement: DatabaseStatement) -> None:
        self.statement = statement

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.statement.connection.get_db_url()}>"

    @staticmethod
    def sink(
        sql: str,
        type_info: RowTypeInfo | TupleTypeInfo,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> "JdbcSink":
        """A sink that runs a statement for each record, in batches, and has written all before each checkpoint.

        After a restart rows come again: with an upsert (``INSERT ... ON CONFLICT ... DO UPDATE``) the table is the same
        then.

        Args:
            sql: has a ``?`` for each field.
            type_info: the fields, in the order of the ``?``.
            jdbc_connection_options: which database.
            jdbc_execution_options: None: the defaults.

        Raises:
            JobGraphError: an argument is wrong.
        """
        return JdbcSink(_checked_statement("sink()", sql, type_info, jdbc_connection_options, jdbc_execution_options))

    @staticmethod
    def exactly_once_sink(
        sql: str,
        type_info: RowTypeInfo | TupleTypeInfo,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> "JdbcExactlyOnceSink":
        """A sink that runs a statement for each record once, when a checkpoint with it is complete; see ``sink`` for
        the arguments.

        Rows wait in the checkpoint, and a row of the table ``flowlet_commits`` in the same database says which were
        written.

        Raises:
            JobGraphError: an argument is wrong.
        """
        statement = _checked_statement(
            "exactly_once_sink()", sql, type_info, jdbc_connection_options, jdbc_execution_options
        )
        if statement.execution.get_max_retries() > _MAX_COMMIT_RETRIES or statement.execution.get_batch_interval_ms():
            raise JobGraphError(
                "exactly_once_sink() writes when a checkpoint is complete: there is no batch interval, and at most "
                f"{_MAX_COMMIT_RETRIES} "
                f"retries, got {statement.execution!r}"
            )
        return JdbcExactlyOnceSink(statement)

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask."""
        writer: SinkWriter[Any] = importlib.import_module(_PARTS_MODULE).writer_of(self.statement, context)
        return writer


class JdbcExactlyOnceSink(WriteAheadSink):
    """Writes rows exactly once; made by ``JdbcSink.exactly_once_sink``."""

    def __init__(self, statement: DatabaseStatement) -> None:
        self.statement = statement
        self.max_retries = statement.execution.get_max_retries()
        self._values: Any = None  # made where the writer runs

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.statement.connection.get_db_url()}>"

    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        """The target of one attempt of a subtask."""
        target: WriteAheadTarget = importlib.import_module(_PARTS_MODULE).target_of(self.statement)
        return target

    def rows_of(self, values: Sequence[Any]) -> Sequence[Any]:
        """Records as tuples of values that the driver takes."""
        if self._values is None:
            self._values = importlib.import_module(_PARTS_MODULE).row_values_of(self.statement)
        rows: Sequence[Any] = self._values.of(values)
        return rows


def _checked_statement(
    method: str,
    sql: str,
    type_info: TypeInformation,
    connection: JdbcConnectionOptions,
    execution: JdbcExecutionOptions | None,
) -> DatabaseStatement:
    if not is_name(sql):
        raise JobGraphError(f"{method} needs a statement of SQL as its first argument, got {sql!r}")
    if not isinstance(connection, JdbcConnectionOptions):
        raise JobGraphError(
            f"{method} needs a JdbcConnectionOptions, got an object of type {type(connection).__name__}"
        )
    if execution is not None and not isinstance(execution, JdbcExecutionOptions):
        raise JobGraphError(f"{method} needs a JdbcExecutionOptions, got {execution!r}")
    match type_info:
        case RowTypeInfo():
            names = type_info.get_field_names()
        case TupleTypeInfo():
            names = [f"f{index}" for index in range(len(type_info.get_field_types()))]
        case _:
            raise JobGraphError(
                f"{method} needs the type of its rows, such as Types.ROW([Types.LONG()]), got {type_info!r}"
            )
    parsed = parse_statement(sql, has_nested_comments=connection.database.kind is DatabaseKind.POSTGRESQL)
    if parsed.num_fields != len(names):
        raise JobGraphError(
            f"{method}: the statement has {parsed.num_fields} placeholders (?), the type has {len(names)} fields: "
            f"{names}"
        )
    types = tuple(type_info.get_field_types())
    for name, each in zip(names, types, strict=True):
        if not _has_column(each, has_arrays=connection.database.kind is DatabaseKind.POSTGRESQL):
            raise JobGraphError(
                f"{method}: {connection.database.text} has no column for the field {name!r} of {each!r}: write it as a "
                "text, or in fields"
            )
    return DatabaseStatement(parsed, tuple(names), types, connection, execution or JdbcExecutionOptions())


def _has_column(type_info: TypeInformation, *, has_arrays: bool) -> bool:
    if isinstance(type_info, PickledBytesTypeInfo) or field_form(type_info) is not None:
        return True
    return has_arrays and isinstance(type_info, _ARRAYS) and _has_column(type_info.elem_type, has_arrays=True)
