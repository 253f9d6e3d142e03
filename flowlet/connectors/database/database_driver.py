"""``DatabaseDriver``: what is different from one database to the other.

Side:   task.  Used by one thread.
Source: PEP 249; Flink ``JdbcDialect``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Final

from flowlet.datastream.connectors.placeholders import Statement, Style
from netstack.late import dataclass

MARKER_TABLE: Final = "flowlet_commits"


class Trouble(Enum):
    """What an error of a driver means."""

    PASSES = auto()  # the same transaction may succeed later
    CONNECTION = auto()  # as above, on another connection
    STAYS = auto()


@dataclass(frozen=True, slots=True)
class MarkerStatements:
    """The statements for markers, in the driver's style.

    Attributes:
        create: the table, if it is missing.
        find: fields: the name of the table; no row: it is missing.
        select: the number of a writer.
        insert: fields: writer, time in ms since 1970; the number is 0.  Changes no row if the writer has a marker.
        update: fields: number, time, writer, the number before.
        forget: fields: time.
    """

    create: str
    find: str
    select: str
    insert: str
    update: str
    forget: str


def marker_statements(style: Style, find: str) -> MarkerStatements:
    """Those of a database that knows ``ON CONFLICT``."""
    table = MARKER_TABLE
    texts = {
        "create": f"CREATE TABLE IF NOT EXISTS {table} "
        "(writer VARCHAR(64) PRIMARY KEY, number BIGINT NOT NULL, committed_ms BIGINT NOT NULL)",
        "find": find,
        "select": f"SELECT number FROM {table} WHERE writer = ?",  # noqa: S608  # no text of users
        "insert": f"INSERT INTO {table} (writer, number, committed_ms) VALUES (?, 0, ?) "  # noqa: S608
        "ON CONFLICT (writer) DO NOTHING",
        "update": f"UPDATE {table} SET number = ?, committed_ms = ? WHERE writer = ? AND number = ?",  # noqa: S608
        "forget": f"DELETE FROM {table} WHERE committed_ms < ?",  # noqa: S608
    }
    return MarkerStatements(**{name: Statement(tuple(text.split("?"))).written(style) for name, text in texts.items()})


class DatabaseDriver(ABC):
    """Opens connections to one database, and knows its ways.

    Attributes:
        style: how placeholders are written.
        plain: types of values that the driver takes as they are.
        max_int: the largest integer; None: there is none.
        holds_nan: whether a float that is no number stays one.
        markers: see there.
    """

    style: ClassVar[Style]
    plain: ClassVar[frozenset[type]]
    max_int: ClassVar[int | None] = None
    holds_nan: ClassVar[bool] = True
    markers: ClassVar[MarkerStatements]
    errors: tuple[type[Exception], ...]  # raised by the driver on purpose

    @abstractmethod
    def connect(self) -> Any:
        """A connection of PEP 249 that begins no transaction by itself.

        Raises:
            DatabaseError: the driver is not installed, or the database will never take us.
            Exception: one of ``errors``.
        """

    @abstractmethod
    def trouble(self, error: BaseException) -> Trouble:
        """What an error means."""

    @abstractmethod
    def check(self, connection: Any, statement: Statement) -> None:
        """Let the database look at a statement without running it.  Raises one of ``errors``: it will never run."""

    @abstractmethod
    def converted(self, value: Any) -> Any:
        """A value as one that the driver takes.  Raises TypeError or ValueError: there is none."""

    def begin(self) -> str:
        """The statement that begins a transaction."""
        return "BEGIN"

    def executemany(self, cursor: Any, sql: str, rows: list[Any]) -> None:
        """Run a statement for each row."""
        cursor.executemany(sql, rows)

    def hint(self, error: BaseException) -> str:
        """What to do about an error, as the end of a sentence; empty: its text says all."""
        return ""


HINTS: Final[Mapping[str, str]] = {
    "table": "create it first: the sink creates no tables but its own",
    "duplicate": "after a restart rows come again: use an upsert (INSERT ... ON CONFLICT ... DO UPDATE), or "
    "exactly_once_sink()",
}
