"""The log lines of every process: structlog, and the standard library's loggers in the same format.

Side:       shared.  Any thread may log; the main thread of a process calls ``configure_logging`` once.
Invariants: one line per event, on standard error.  A line from a task thread carries ``job``, ``task`` and ``subtask``, whichever logger
            wrote it.  Standard output is left to the user's own prints.
"""

import contextlib
import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import Processor

from flowlet.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("auto", "console", "json")
# The only loggers changed in a program that embeds a cluster.
_OUR_LOGGERS: Final = ("flowlet", "netstack", "aiohttp")


def configure_logging(level: str = "info", log_format: str = "auto", stream: TextIO | None = None) -> None:
    """Write every log line of this process to ``stream`` (None: standard error); for processes of flowlet alone.

    ``log_format`` ``auto`` means ``console`` on a terminal and ``json`` elsewhere.  A second call replaces the first.

    Raises:
        ConfigError: ``level`` or ``log_format`` is not one of ``LEVELS`` or ``FORMATS``.
    """
    _configure(level, log_format, stream, ("",))


def configure_embedded_logging(level: str = "warning", log_format: str = "console") -> None:
    """As ``configure_logging``, for a user's program with an embedded cluster: changes only flowlet's loggers.

    Does nothing if the program configured structlog itself.

    Raises:
        ConfigError: as ``configure_logging``.
    """
    if not structlog.is_configured():
        _configure(level, log_format, None, _OUR_LOGGERS)


def bind_task(job: str, task: str, subtask: int) -> None:
    """Put job, task and subtask on every later line of the calling thread; a task thread calls it when it starts."""
    structlog.contextvars.bind_contextvars(job=job, task=task, subtask=subtask)


def _configure(level: str, log_format: str, stream: TextIO | None, logger_names: tuple[str, ...]) -> None:
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} does not exist; choose one of {', '.join(LEVELS)}")
    if log_format not in FORMATS:
        raise ConfigError(f"log format {log_format!r} does not exist; choose one of {', '.join(FORMATS)}")
    number = logging.getLevelNamesMapping()[level.upper()]
    output = sys.stderr if stream is None else stream
    is_terminal = output is not None and output.isatty()  # it is None in a process that was started without one
    shared = _shared_processors()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _StandardErrorHandler() if stream is None else logging.StreamHandler(stream)
    as_console = log_format == "console" or (log_format == "auto" and is_terminal)
    renderers = _console_renderers(colors=is_terminal) if as_console else _json_renderers()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=renderers))
    for name in logger_names:
        _replace_handlers(logging.getLogger(name), handler, number)


def _shared_processors() -> list[Processor]:
    """The processors of structlog's own lines and of the standard library's."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _console_renderers(*, colors: bool) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]


def _json_renderers() -> list[Processor]:
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=repr),
    ]


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to the present ``sys.stderr``, which a test runner or notebook may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # a plain attribute in the base class
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """A line that cannot be written is lost; the base class would raise what a closed stream raises, into whoever logs."""
        with contextlib.suppress(ValueError):
            super().handleError(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; without a standard error there is nowhere to write it to."""
        if sys.stderr is not None:
            super().emit(record)


def _replace_handlers(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    if logger.name != "root":
        logger.propagate = False
