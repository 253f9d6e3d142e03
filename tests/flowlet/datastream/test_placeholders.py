"""Placeholders are found where the database would find them, and nowhere else."""

import pytest

from flowlet.connectors.database.statement import Style, parse_statement
from flowlet.errors import JobGraphError


def parsed(sql: str, *, nested: bool = True) -> tuple[str, int]:
    statement = parse_statement(sql, has_nested_comments=nested)
    return statement.written(Style.FORMAT), statement.num_fields


@pytest.mark.parametrize(
    ("sql", "written", "num_fields"),
    [
        ("INSERT INTO t VALUES (?, ?)", "INSERT INTO t VALUES (%s, %s)", 2),
        ("SELECT 1", "SELECT 1", 0),
        ("?", "%s", 1),
        ("SELECT '?', 'it''s ?', ?", "SELECT '?', 'it''s ?', %s", 1),
        (r"SELECT E'\'?', ?", r"SELECT E'\'?', %s", 1),
        (r"SELECT '\', ?", r"SELECT '\', %s", 1),  # no backslashes in an ordinary text
        ('INSERT INTO "a?""?" VALUES (?)', 'INSERT INTO "a?""?" VALUES (%s)', 1),
        ("INSERT INTO `a?` VALUES (?)", "INSERT INTO `a?` VALUES (%s)", 1),
        ("SELECT 1 -- ?\n, ?", "SELECT 1 -- ?\n, %s", 1),
        ("SELECT 1 -- ?", "SELECT 1 -- ?", 0),
        ("SELECT /* ? /* ? */ ? */ ?", "SELECT /* ? /* ? */ ? */ %s", 1),
        ("SELECT $$ ? $$, $a$ ? $$ ? $a$, ?", "SELECT $$ ? $$, $a$ ? $$ ? $a$, %s", 1),
        ("SELECT a$b$ ? FROM t", "SELECT a$b$ %s FROM t", 1),  # the dollars belong to a name
        ("WHERE doc ?? 'key' AND doc ??| ?", "WHERE doc ? 'key' AND doc ?| %s", 1),
        ("SELECT 10 % 3, 'a%', ?", "SELECT 10 %% 3, 'a%%', %s", 1),
    ],
)
def test_what_is_a_placeholder(sql: str, written: str, num_fields: int) -> None:
    assert parsed(sql) == (written, num_fields)


def test_comments_of_sqlite_end_at_their_first_end() -> None:
    assert parsed("SELECT /* ? /* ? */ ?", nested=False) == ("SELECT /* ? /* ? */ %s", 1)


def test_the_styles_of_all_drivers() -> None:
    statement = parse_statement("INSERT INTO t VALUES (?, '%', ?)", has_nested_comments=False)

    assert statement.written(Style.QMARK) == "INSERT INTO t VALUES (?, '%', ?)"
    assert statement.written(Style.FORMAT) == "INSERT INTO t VALUES (%s, '%%', %s)"
    assert statement.written(Style.DOLLAR) == "INSERT INTO t VALUES ($1, '%', $2)"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT ?1", r"numbered placeholder \?1"),
        ("SELECT /* ?", "a comment has no end"),
        ("SELECT /* /* */ ?", "a comment has no end"),
        ("SELECT $x$ ?", r"the text that \$x\$ opens has no end"),
    ],
)
def test_what_cannot_be_understood_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(JobGraphError, match=reason):
        parsed(sql)
