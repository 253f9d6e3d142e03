"""``DatabaseUrl``: which database, without its password.

Side:   pure.
Rules:  no message and no repr ever shows a password.
Source: RFC 3986; the URIs of libpq; the URLs of the JDBC drivers of SQLite and PostgreSQL.
"""

from dataclasses import field
from enum import Enum
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from flowlet.errors import JobGraphError
from netstack.late import dataclass

_KNOWN: Final = "use sqlite:///folder/file.db or postgresql://user@host/database"
DEFAULT_BUSY_TIMEOUT_S: Final = 10.0


class DatabaseKind(Enum):
    """Which driver it is for."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database.

    Attributes:
        kind: which driver it is for.
        text: the URL without the password, for people, and for libpq.
        path: of the file, for SQLite.
        busy_timeout_s: how long SQLite waits for another writer.
        user, password: what the URL says.
    """

    kind: DatabaseKind
    text: str
    path: str = ""
    busy_timeout_s: float = DEFAULT_BUSY_TIMEOUT_S
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def parse_database_url(url: str) -> DatabaseUrl:
    """Take a URL apart.

    Raises JobGraphError: it is none of a database that can be written; the message does not show it.
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
