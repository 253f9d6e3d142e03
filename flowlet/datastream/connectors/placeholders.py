"""From the ``?`` of JDBC to the placeholders of a driver.

Side:   pure.
Rules:  a ``?`` in a text, a quoted name or a comment is none; ``??`` stands for one question mark (an operator of
        PostgreSQL), as in its JDBC driver.
Source: PEP 249 (paramstyle); lexical structure of SQL in the manuals of PostgreSQL (4.1) and SQLite.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

from flowlet.errors import JobGraphError
from netstack.late import dataclass


class Style(Enum):
    """How a driver writes a placeholder."""

    QMARK = "?"
    FORMAT = "%s"
    DOLLAR = "$n"  # PostgreSQL's own


_COMMENT_OPEN, _COMMENT_CLOSE = "/*", "*/"
# What may hold a question mark that is no placeholder.  A text after E may have backslashes; a block comment is found
# by its beginning.
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
        match style:
            case Style.QMARK:
                return "?".join(self.parts)
            case Style.FORMAT:
                return "%s".join(part.replace("%", "%%") for part in self.parts)
            case Style.DOLLAR:
                return "".join(f"${index}{part}" if index else part for index, part in enumerate(self.parts))


def parse_statement(sql: str, *, has_nested_comments: bool) -> Statement:
    """Find the placeholders of a statement.

    Args:
        sql: one statement.
        has_nested_comments: as in PostgreSQL; not in SQLite.

    Raises:
        JobGraphError: a text, a comment or a numbered placeholder cannot be understood.
    """
    parts, begin = [""], 0
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
    """Begin, end and text of what a question mark may lie in, and of question marks."""
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
    position, depth = start + len(_COMMENT_OPEN), 1
    while depth:
        end = _end_of(sql, _COMMENT_CLOSE, position, "a comment")
        inner = sql.find(_COMMENT_OPEN, position, end) if has_nested_comments else -1
        if inner >= 0:
            position, depth = inner + len(_COMMENT_OPEN), depth + 1
        else:
            position, depth = end, depth - 1
    return position
