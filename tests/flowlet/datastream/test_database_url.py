"""URLs of databases: their meaning, and that no message shows a password."""

import pytest

from flowlet.connectors.database.statement import DatabaseKind, parse_database_url
from flowlet.errors import JobGraphError


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///data/file.db", "/data/file.db"),
        ("sqlite:////data/file.db", "/data/file.db"),  # as SQLAlchemy writes it
        ("sqlite:/data/file.db", "/data/file.db"),
        ("jdbc:sqlite:/data/file.db", "/data/file.db"),
        ("sqlite:///a%20b.db", "/a b.db"),
    ],
)
def test_files_of_sqlite(url: str, path: str) -> None:
    found = parse_database_url(url)

    assert (found.kind, found.path, found.busy_timeout_s) == (DatabaseKind.SQLITE, path, 10.0)


def test_the_timeout_of_sqlite() -> None:
    assert parse_database_url("sqlite:///f.db?timeout=2.5").busy_timeout_s == 2.5


@pytest.mark.parametrize(
    ("url", "text", "user", "password"),
    [
        ("postgresql://h/db", "postgresql://h/db", None, None),
        ("postgres://u:p%40ss@h:5433/db", "postgresql://u@h:5433/db", "u", "p@ss"),
        (
            "jdbc:postgresql://h/db?user=u&password=secret&sslmode=require",
            "postgresql://h/db?sslmode=require",
            "u",
            "secret",
        ),
        (
            "postgresql://u:secret@h1:1,h2:2/db?target_session_attrs=any",
            "postgresql://u@h1:1,h2:2/db?target_session_attrs=any",
            "u",
            "secret",
        ),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql", None, None),
        # Libpq knows no + for a space.
        ("postgresql://h/db?options=-c%20a%3Db", "postgresql://h/db?options=-c%20a%3Db", None, None),
        ("postgresql://?dbname=db", "postgresql://?dbname=db", None, None),
        ("postgresql://u:a:b@h/db", "postgresql://u@h/db", "u", "a:b"),
    ],
)
def test_servers_of_postgresql(url: str, text: str, user: str | None, password: str | None) -> None:
    found = parse_database_url(url)

    assert (found.kind, found.text, found.user, found.password) == (DatabaseKind.POSTGRESQL, text, user, password)
    assert password is None or password not in repr(found)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "mysql://root:secret@h/db",
            "'mysql' is no database that can be written; use sqlite:///folder/file.db or postgresql://user@host",
        ),
        ("secret", "'secret' is no database"),
        ("sqlite:file.db", "needs an absolute path"),
        ("sqlite::memory:", "needs an absolute path"),
        ("sqlite:///", "needs an absolute path"),
        ("sqlite:///f.db?mode=ro", r"knows only the option timeout \(in seconds\), got \['mode'\]"),
        ("sqlite:///f.db?timeout=soon", "a number of seconds from 0 to 3600, got 'soon'"),
        ("sqlite:///f.db?timeout=nan", "a number of seconds from 0 to 3600"),
        ("postgresql://u:secret@h", "names no database"),
        ("postgresql://u:secret@[h/db", "no URL of PostgreSQL"),
    ],
)
def test_what_is_no_database(url: str, reason: str) -> None:
    with pytest.raises(JobGraphError, match=reason) as raised:
        parse_database_url(url)

    assert ":secret" not in str(raised.value)
