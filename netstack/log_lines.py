"""Log lines that go where the program wants them: to structlog if it configured that, else to the standard library's
loggers; and how states and errors are worded.

Side:       shared.  Any thread.
Rules:      a program that has configured neither sees warnings and errors on standard error.  structlog by itself would
            print every line on standard output, which belongs to the program.  A program that has not imported
            structlog has not configured it, so it is not imported here: that costs as much as numpy where rich is
            installed.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from netstack.errors import NetstackError
from netstack.flow.admission import RateLimit

N = TypeVar("N", bound=NetstackError)
_LIMITED_PER_S: Final = 1.0


class LogLines:
    """The logger of one module; each call takes an event and the values that belong to it.

    ``may_log``: asked before each line, where a peer could fill the disk; None: nothing is left out.
    """

    def __init__(self, name: str, may_log: Callable[[], bool] | None = None) -> None:
        self._name = name
        self._may_log = may_log
        self._structured: Any = None  # structlog's, from the first line on that goes there

    def __repr__(self) -> str:
        return f"<LogLines of {self._name}>"

    def debug(self, event: str, **values: Any) -> None:
        """Log an event that helps to find a fault."""
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event of normal operation."""
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log an event that an operator should look at."""
        self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log a failure."""
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Log a failure with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if self._may_log is not None and not self._may_log():
            return
        structlog: Any = sys.modules.get("structlog")
        if structlog is not None and is_configured(structlog):
            self._structured = self._structured or structlog.get_logger(self._name)
            self._structured.log(level, event, **values)
            return
        logger = logging.getLogger(self._name)
        if logger.isEnabledFor(level):
            exception = values.pop("exc_info", None)
            rendered = " ".join(f"{key}={value!r}" for key, value in values.items())
            logger.log(level, "%s %s" if values else "%s%s", event, rendered, exc_info=exception)


def limited_log(name: str, clock: Callable[[], float]) -> LogLines:
    """Make the logger of lines that a peer can cause: ten at once, then one in a second; ``clock`` in seconds."""
    return LogLines(name, RateLimit(_LIMITED_PER_S, clock).take)


def shown_state(otherwise: str, /, **states: bool) -> str:
    """Return the name of the first of ``states`` that is true, for a ``repr``."""
    return next((name for name, is_true in states.items() if is_true), otherwise)


def caused_by(cause: BaseException | None, error: N) -> N:
    """Return ``error`` with its cause, for errors that are told or stored instead of raised."""
    error.__cause__ = cause
    return error


def as_netstack_error(error: BaseException, kind: type[NetstackError], what: str) -> NetstackError:
    """Return an error of ours unchanged; any other one as the cause of one of ``kind``, whose text names ``what``
    failed and why.
    """
    if isinstance(error, NetstackError):
        return error
    return caused_by(error, kind(f"{what}: {type(error).__name__}: {error}"))


def is_configured(structlog: Any) -> bool:
    """Whether the program has configured structlog; not while another thread still imports it."""
    return bool(getattr(structlog, "is_configured", lambda: False)())
