"""Log lines that go where the program wants them: to structlog if it configured that, else to the standard library's loggers.

Side:       shared.  Any thread.
Rules:      a program that has configured neither sees warnings and errors on standard error.  structlog by itself would print every line on
            standard output, which belongs to the program.
"""

import logging
from typing import Any, Final

import structlog

_render: Final = structlog.processors.KeyValueRenderer()


class LogLines:
    """The logger of one module; each call takes an event and the values that belong to it."""

    __slots__ = ("_name", "_structured")

    def __init__(self, name: str) -> None:
        self._name = name
        self._structured = structlog.get_logger(name)

    def __repr__(self) -> str:
        return f"<LogLines of {self._name}>"

    def debug(self, event: str, **values: Any) -> None:
        """What helps to find a fault."""
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        """What happens as a rule."""
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        """What an operator should look at."""
        self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        """What went wrong."""
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:
        """What went wrong, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if structlog.is_configured():
            self._structured.log(level, event, **values)
            return
        logger = logging.getLogger(self._name)
        if logger.isEnabledFor(level):
            exception = values.pop("exc_info", None)
            logger.log(level, "%s %s" if values else "%s%s", event, _render(None, "", values), exc_info=exception)
