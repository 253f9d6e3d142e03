"""What goes wrong with a database, in sentences that say what to do.

Side:   pure.
Rules:  no message shows a password.
"""

from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError
from flowlet.errors import FlowletError


class DatabaseError(FlowletError):
    """The database refused something, and will refuse it again."""


class DatabaseUnavailableError(CommitLaterError):
    """The database cannot be reached, is busy, or ended the connection; whether the last transaction happened may be
    unknown.
    """


class RefusedRowError(DatabaseError):
    """A row cannot be written; the message shows it."""


def without_password(text: str, password: str | None) -> str:
    """A text of a driver, on one line, in which the password is hidden."""
    line = " ".join(text.split())
    return line.replace(password, "***") if password else line
