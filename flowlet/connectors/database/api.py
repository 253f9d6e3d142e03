"""``JdbcSink``: rows into a table of a database, through the DB-API of Python.

Side:   pure.  It describes; tasks connect.
Source: PyFlink ``pyflink.datastream.connectors.jdbc``; ``exactly_once_sink`` is in Flink only, with XA transactions.
Rules:  a password is never part of a message or a repr.
Absent: reading, and drivers of other databases; ``with_driver_name`` is checked against the URL.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Final

from flowlet.common.checks import check_kind, check_name
from flowlet.common.typeinfo import ARRAY_TYPES, PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from flowlet.common.values.conversion import field_form
from flowlet.connectors.database.statement import (
    DatabaseKind,
    DatabaseStatement,
    JdbcConnectionOptions,
    JdbcExecutionOptions,
    parse_statement,
)
from flowlet.datastream.connectors.base import Sink, SinkWriter, WriterInitContext
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget
from flowlet.errors import JobGraphError

_MAX_COMMIT_RETRIES: Final = 10  # of a sink operator
_PARTS_MODULE: Final = "flowlet.connectors.database.sink"


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

        After a restart rows come again; with an upsert (``INSERT ... ON CONFLICT ... DO UPDATE``) the table ends up as
        without it.

        Args:
            sql: has a ``?`` for each field.
            type_info: the fields, in the order of the ``?``.
            jdbc_connection_options: the database, and the user.
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

        Rows wait in the checkpoint, and a row of the table ``flowlet_commits`` in the sink's database says which were
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
                f"{_MAX_COMMIT_RETRIES} retries, got {statement.execution!r}"
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
    check_name(sql, f"{method} needs a statement of SQL as its first argument")
    if not isinstance(connection, JdbcConnectionOptions):
        raise JobGraphError(
            f"{method} needs a JdbcConnectionOptions, got an object of type {type(connection).__name__}"
        )
    check_kind(execution, JdbcExecutionOptions | None, f"{method} needs a JdbcExecutionOptions")
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
    return has_arrays and isinstance(type_info, ARRAY_TYPES) and _has_column(type_info.elem_type, has_arrays=True)
