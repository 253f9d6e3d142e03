"""The settings of a database's sink: a statement, the fields that it takes, the database, and how to write.

Side:   pure.
Rules:  no message and no repr ever shows a password.  A ``?`` in a text, a quoted name or a comment is no placeholder;
        ``??`` stands for one question mark (an operator of PostgreSQL), as in its JDBC driver.
Source: PyFlink ``JdbcConnectionOptions``, ``JdbcExecutionOptions``; RFC 3986; the URIs of libpq; the URLs of the JDBC
        drivers of SQLite and PostgreSQL; PEP 249 (paramstyle); lexical structure of SQL in the manuals of PostgreSQL
        (4.1) and SQLite.
"""

import re
from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from flowlet.common.checks import check_number, is_name
from flowlet.common.typeinfo import TypeInformation
from flowlet.errors import JobGraphError
from netstack.late import dataclass

_KNOWN: Final = "use sqlite:///folder/file.db or postgresql://user@host/database"
DEFAULT_BUSY_TIMEOUT_S: Final = 10.0


class DatabaseKind(Enum):
    """The kinds of databases, each with a driver."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database.

    Attributes:
        kind: decides which driver is used.
        text: the URL without the password, for people, and for libpq.
        path: of the file, for SQLite.
        busy_timeout_s: how long SQLite waits for another writer.
        user, password: from the URL; None: it has none.
    """

    kind: DatabaseKind
    text: str
    path: str = ""
    busy_timeout_s: float = DEFAULT_BUSY_TIMEOUT_S
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def parse_database_url(url: str) -> DatabaseUrl:
    """Take a URL apart.

    Raises JobGraphError: the URL names no database that can be written; the message does not show it.
    """
    text = url.removeprefix("jdbc:")
    scheme = text.partition(":")[0].lower()
    if scheme == "sqlite":
        return _sqlite(text.partition(":")[2])
    if scheme in ("postgresql", "postgres"):
        return _postgresql(text)
    raise JobGraphError(f"with_url(): {scheme[:20] or 'nothing'!r} is no database that can be written; {_KNOWN}")


def _sqlite(rest: str) -> DatabaseUrl:
    path, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    timeout = options.pop("timeout", str(DEFAULT_BUSY_TIMEOUT_S))
    if options:
        raise JobGraphError(f"with_url(): SQLite knows only the option timeout (in seconds), got {sorted(options)}")
    if path.startswith("//"):
        path = path[2:]  # an authority, which is empty
    path = "/" + path.lstrip("/") if path.startswith("/") else path  # SQLAlchemy writes four slashes
    if not path.startswith("/") or path == "/":
        raise JobGraphError(
            f"with_url(): a SQLite file needs an absolute path, because every TaskManager opens it, got {path!r}; use "
            "sqlite:///folder/file.db"
        )
    path = unquote(path)
    try:
        busy_timeout_s = float(timeout)
    except ValueError:
        busy_timeout_s = -1.0
    if not 0 <= busy_timeout_s <= 3600:
        raise JobGraphError(f"with_url(): the timeout of SQLite is a number of seconds from 0 to 3600, got {timeout!r}")
    return DatabaseUrl(DatabaseKind.SQLITE, f"sqlite://{path}", path, busy_timeout_s)


def _postgresql(text: str) -> DatabaseUrl:
    try:
        parts = urlsplit(text)
    except ValueError:
        # Python's message may show the password.
        raise JobGraphError(f"with_url(): this is no URL of PostgreSQL; {_KNOWN}") from None
    if not parts.path.strip("/") and "dbname=" not in parts.query:
        raise JobGraphError("with_url(): the URL names no database; use postgresql://user@host/database")
    login, at, hosts = parts.netloc.rpartition("@")
    name, _, secret = login.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    found = dict(options)
    user = unquote(name) if name else found.get("user")
    password = unquote(secret) if secret else found.get("password")
    query = urlencode(
        [(key, value) for key, value in options if key not in ("user", "password")], safe="/,", quote_via=quote
    )
    netloc = f"{name}{at}{hosts}" if name else hosts
    clean = SplitResult("postgresql", netloc, parts.path, query, "").geturl()
    if not netloc:  # a socket: urlsplit would leave the slashes out
        clean = f"postgresql://{parts.path}{'?' * bool(query)}{query}"
    return DatabaseUrl(DatabaseKind.POSTGRESQL, clean, user=user, password=password)


class Style(Enum):
    """How a driver writes a placeholder."""

    QMARK = "?"
    FORMAT = "%s"
    DOLLAR = "$n"  # PostgreSQL's own


_COMMENT_OPEN = "/*"
_COMMENT_CLOSE = "*/"
# Pieces that may hold a question mark that is no placeholder.  A text after E may have backslashes; a block comment is
# found by its beginning.
_PIECE: Final = re.compile(
    r"""
      (?P<escaped> \b[eE]'(?:[^'\\]|\\.|'')*' )
    | (?P<text> '(?:[^']|'')*' )
    | (?P<name> "(?:[^"]|"")*" | `(?:[^`]|``)*` )
    | (?P<line> --[^\n]* )
    | (?P<block> /\* )
    | (?P<dollar> (?<![\w$])\$(?P<tag>[A-Za-z_]\w*|)\$ )
    | (?P<mark> \?\?|\?\d+|\? )
    | (?P<percent> % )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement whose placeholders are known.

    ``parts`` has the text between the placeholders: one more than these.
    """

    parts: tuple[str, ...]

    @property
    def num_fields(self) -> int:
        """The number of placeholders."""
        return len(self.parts) - 1

    def written(self, style: Style) -> str:
        """The statement in a driver's style."""
        if style is Style.DOLLAR:
            return "".join(f"${index}{part}" if index else part for index, part in enumerate(self.parts))
        is_escaped = style is Style.FORMAT
        mark: str = style.value
        return mark.join(part.replace("%", "%%") if is_escaped else part for part in self.parts)


def parse_statement(sql: str, *, has_nested_comments: bool) -> Statement:
    """Find the placeholders of a statement.

    Args:
        sql: one statement.
        has_nested_comments: as in PostgreSQL; not in SQLite.

    Raises:
        JobGraphError: a text, a comment or a numbered placeholder cannot be understood.
    """
    parts = [""]
    begin = 0
    for start, end, piece in _pieces(sql, has_nested_comments=has_nested_comments):
        parts[-1] += sql[begin:start]
        begin = end
        if piece == "?":
            parts.append("")
        elif piece == "??":
            parts[-1] += "?"
        elif piece.startswith("?"):
            raise JobGraphError(
                f"the statement has the numbered placeholder {piece}; write ? for each field, in the order of the "
                "fields"
            )
        else:
            parts[-1] += piece
    parts[-1] += sql[begin:]
    return Statement(tuple(parts))


def _pieces(sql: str, *, has_nested_comments: bool) -> Iterator[tuple[int, int, str]]:
    """Begin, end and text of question marks, and of the pieces in which they are no placeholders."""
    position = 0
    while (found := _PIECE.search(sql, position)) is not None:
        end = found.end()
        if found.lastgroup == "block":
            end = _end_of_comment(sql, found.start(), has_nested_comments=has_nested_comments)
        elif found["dollar"] is not None:
            end = _end_of(sql, found["dollar"], end, f"the text that {found['dollar']} opens")
        yield found.start(), end, sql[found.start() : end]
        position = end


def _end_of(sql: str, mark: str, position: int, what: str) -> int:
    end = sql.find(mark, position)
    if end < 0:
        raise JobGraphError(f"{what} has no end in the statement {sql!r}")
    return end + len(mark)


def _end_of_comment(sql: str, start: int, *, has_nested_comments: bool) -> int:
    position = start + len(_COMMENT_OPEN)
    depth = 1
    while depth:
        end = _end_of(sql, _COMMENT_CLOSE, position, "a comment")
        inner = sql.find(_COMMENT_OPEN, position, end) if has_nested_comments else -1
        if inner >= 0:
            position = inner + len(_COMMENT_OPEN)
            depth += 1
        else:
            position = end
            depth -= 1
    return position


_DRIVERS: Final = {
    DatabaseKind.SQLITE: ("sqlite3", "org.sqlite.JDBC"),
    DatabaseKind.POSTGRESQL: ("psycopg", "org.postgresql.Driver"),
}


class JdbcConnectionOptions:
    """The database and the user who writes; made by ``JdbcConnectionOptionsBuilder``."""

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

        def with_url(self, url: str) -> Self:
            """Set the URL: ``sqlite:///folder/file.db`` or ``postgresql://user@host:port/database``.

            It may begin with ``jdbc:``.

            Raises:
                JobGraphError: it is neither.
            """
            if not is_name(url):
                raise JobGraphError("with_url() needs a text")  # which is not shown: it may have a password
            self._url = parse_database_url(url)
            return self

        def with_driver_name(self, driver_name: str) -> Self:
            """Set the driver, which may be left out: it follows from the URL."""
            self._driver_name = driver_name
            return self

        def with_user_name(self, user_name: str) -> Self:
            """Set the user, in place of the URL's."""
            self._user_name = user_name
            return self

        def with_password(self, password: str) -> Self:
            """Set the password, in place of the URL's.

            Without any password the environment of the TaskManagers (PGPASSWORD, PGPASSFILE) has it.
            """
            self._password = password
            return self

        def build(self) -> "JdbcConnectionOptions":
            """Build the options.  Raises JobGraphError: there is no URL, or the driver is for another kind of URL."""
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
        """The defaults: 5000 rows, no interval, 3 retries."""
        return JdbcExecutionOptions()

    @staticmethod
    def builder() -> "JdbcExecutionOptions.Builder":
        """A builder that begins with the defaults."""
        return JdbcExecutionOptions.Builder()

    class Builder:
        """Builds a ``JdbcExecutionOptions``."""

        def __init__(self) -> None:
            self._values = {"batch_interval_ms": 0, "batch_size": 5_000, "max_retries": 3}

        def with_batch_size(self, size: int) -> Self:
            """Set the number of rows of a batch, from 1."""
            return self._with("batch_size", size, at_least=1)

        def with_batch_interval_ms(self, interval_ms: int) -> Self:
            """Set the longest time that a row waits for its batch; 0: for ever."""
            return self._with("batch_interval_ms", interval_ms, at_least=0)

        def with_max_retries(self, max_retries: int) -> Self:
            """Set how often a batch is tried again, from 0."""
            return self._with("max_retries", max_retries, at_least=0)

        def build(self) -> "JdbcExecutionOptions":
            """Build the options."""
            return JdbcExecutionOptions(**self._values)

        def _with(self, name: str, value: int, *, at_least: int) -> Self:
            check_number(value, at_least, f"with_{name}() needs a whole number of {at_least} or more")
            self._values[name] = value
            return self


@dataclass(frozen=True, slots=True)
class DatabaseStatement:
    """The settings of both sinks: a statement, the fields that it takes, the database, and the options."""

    parsed: Statement
    field_names: tuple[str, ...]
    field_types: tuple[TypeInformation, ...]
    connection: JdbcConnectionOptions
    execution: JdbcExecutionOptions
