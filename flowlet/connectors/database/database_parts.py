"""From the options of a database sink to the objects that its task runs; loaded by name.

Side: task.
"""

from functools import partial
from typing import assert_never

from flowlet.connectors.database.database_driver import DatabaseDriver
from flowlet.connectors.database.database_session import DatabaseSession
from flowlet.connectors.database.database_target import DatabaseTarget
from flowlet.connectors.database.database_writer import DatabaseWriter, pause_unless_cancelled
from flowlet.connectors.database.postgres_driver import PostgresDriver
from flowlet.connectors.database.row_values import RowValues
from flowlet.connectors.database.sqlite_driver import SqliteDriver
from flowlet.datastream.connectors.database_url import DatabaseKind
from flowlet.datastream.connectors.jdbc import DatabaseStatement
from flowlet.datastream.connectors.sink_writer import WriterInitContext


def driver_of(statement: DatabaseStatement) -> DatabaseDriver:
    """The driver.  Raises DatabaseError: it is not installed."""
    connection = statement.connection
    match connection.database.kind:
        case DatabaseKind.SQLITE:
            return SqliteDriver(connection.database)
        case DatabaseKind.POSTGRESQL:
            return PostgresDriver(connection.database, connection.get_user_name(), connection.get_password())
        case _ as unknown:
            assert_never(unknown)


def row_values_of(statement: DatabaseStatement) -> RowValues:
    """What makes rows of records.  Raises DatabaseError: the driver is not installed."""
    driver = driver_of(statement)
    return RowValues(
        statement.field_names,
        driver.plain,
        driver.converted,
        driver.max_int,
        types=statement.field_types,
        holds_nan=driver.holds_nan,
    )


def writer_of(statement: DatabaseStatement, context: WriterInitContext) -> DatabaseWriter:
    """The writer of one subtask.

    Raises DatabaseError: the database will never run the statement, or cannot be reached.
    """
    driver = driver_of(statement)
    clock = context.get_processing_time_service() if statement.execution.get_batch_interval_ms() > 0 else None
    pause = partial(pause_unless_cancelled, context.check_cancelled)
    return DatabaseWriter(_session(driver, statement), row_values_of(statement), statement.execution, clock, pause)


def target_of(statement: DatabaseStatement) -> DatabaseTarget:
    """The target of one attempt of a subtask.  Raises DatabaseError: the database will never run the statement."""
    driver = driver_of(statement)
    target = DatabaseTarget(_session(driver, statement), driver, statement.execution.get_batch_size())
    try:
        target.prepare()
    except BaseException:
        target.close()
        raise
    return target


def _session(driver: DatabaseDriver, statement: DatabaseStatement) -> DatabaseSession:
    connection = statement.connection
    return DatabaseSession(driver, statement.parsed, connection.get_db_url(), connection.get_password())
