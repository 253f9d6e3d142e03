"""The log lines of every process: of structlog and of the standard library's loggers, in one format; and the walk over
the exceptions that a traceback shows.

Side:       shared.  Any thread may log; the main thread of a process calls ``configure_logging`` once.
Invariants: one line per event, on standard error.  A line from a task thread carries ``job``, ``task`` and ``subtask``,
            whichever logger wrote it.  Standard output is left to the user's own prints.
Rules:      structlog is imported for the first line that it renders, and by ``configure_logging``: a program whose
            tasks log no line does not import it.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, Final, TextIO

from flowlet.errors import ConfigError
from netstack.log_lines import is_configured

if TYPE_CHECKING:
    from structlog.typing import Processor

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("auto", "console", "json")
# The only loggers that get a handler in a program that embeds a cluster.
_OUR_LOGGERS: Final = ("flowlet", "netstack")
# structlog puts the values of context variables with such names into its lines, even if it did not make the variable.
_JOB: Final[ContextVar[Any]] = ContextVar("structlog_job")
_TASK: Final[ContextVar[Any]] = ContextVar("structlog_task")
_SUBTASK: Final[ContextVar[Any]] = ContextVar("structlog_subtask")


def configure_logging(level: str = "info", log_format: str = "auto", stream: TextIO | None = None) -> None:
    """Write every log line of this process to ``stream`` (None: standard error); for processes of flowlet alone.

    ``log_format`` ``auto`` means ``console`` on a terminal and ``json`` elsewhere.  A second call replaces the first.

    Raises:
        ConfigError: ``level`` or ``log_format`` is not one of ``LEVELS`` or ``FORMATS``.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} does not exist; choose one of {', '.join(LEVELS)}")
    if log_format not in FORMATS:
        raise ConfigError(f"log format {log_format!r} does not exist; choose one of {', '.join(FORMATS)}")
    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_shared_processors(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _StandardErrorHandler() if stream is None else logging.StreamHandler(stream)
    logging.root.handlers[:] = [_formatted(handler, log_format, stream)]
    logging.root.setLevel(number)


def configure_embedded_logging() -> None:
    """Write the warnings of flowlet to standard error in a user's program, in our format, while the program has no
    handler for them.

    Changes no level, no logger of other libraries and not structlog: once the program sets handlers, lines go to these.
    """
    structlog = sys.modules.get("structlog")
    if structlog is not None and is_configured(structlog):
        return  # our lines go there
    for name in _OUR_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, _StandInHandler) for each in logger.handlers):
            logger.addHandler(_StandInHandler())


def program_loggers() -> dict[str, tuple[int, int | None, bool]]:
    """The loggers that this program has set up, by name: level, the least level of the handlers (None: there are none),
    propagation.
    """
    found = {}
    named = [each for each in list(logging.root.manager.loggerDict.values()) if isinstance(each, logging.Logger)]
    for logger in [logging.root, *named]:
        levels = [each.level for each in logger.handlers if not isinstance(each, logging.NullHandler | _StandInHandler)]
        name = "" if logger is logging.root else logger.name
        if levels or logger.level != logging.NOTSET or not logger.propagate:
            found[name] = logger.level, min(levels, default=None), logger.propagate
    return found


def configure_program_logging(loggers: Mapping[str, tuple[int, int | None, bool]], disabled: int) -> None:
    """Write to standard error the lines that the program would write that has started this process; ``loggers``: its
    ``program_loggers``.

    structlog is left alone, as in the program.
    """
    for name, (level, least_level, propagates) in loggers.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate = propagates
        if least_level is not None:
            logger.addHandler(_formatted(_StandardErrorHandler()))
            logger.handlers[-1].setLevel(least_level)
    last_resort = _formatted(_StandardErrorHandler())
    last_resort.setLevel(logging.WARNING)
    # Not as a handler of the root: with one, logging.basicConfig() in a user's function would have no effect.
    logging.lastResort = last_resort
    logging.disable(disabled)


def bind_task(job: str, task: str, subtask: int) -> None:
    """Put job, task and subtask on every later line of the calling thread; a task thread calls it when it starts."""
    structlog: Any = sys.modules.get("structlog")
    if hasattr(structlog, "contextvars"):
        structlog.contextvars.bind_contextvars(job=job, task=task, subtask=subtask)
        return
    _JOB.set(job)
    _TASK.set(task)
    _SUBTASK.set(subtask)


def all_shown(shown: TracebackException) -> Iterator[TracebackException]:
    """An exception and the exceptions that led to it, as a traceback shows them, each once."""
    todo = [shown]
    seen = set[int]()
    while todo:
        each = todo.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += filter(None, (each.__cause__, each.__context__, *(each.exceptions or ())))


def _formatted(handler: logging.Handler, log_format: str = "console", stream: TextIO | None = None) -> logging.Handler:
    stream = sys.stderr if stream is None else stream
    # Whether a person reads it; None: the process was started with a closed descriptor.
    is_terminal = stream is not None and not stream.closed and stream.isatty()
    as_console = log_format == "console" or (log_format == "auto" and is_terminal)
    handler.setFormatter(_LateFormatter(as_console, colors=is_terminal))
    return handler


class _LateFormatter(logging.Formatter):
    """The formatter of structlog, made for the first line."""

    def __init__(self, as_console: bool, *, colors: bool) -> None:  # noqa: FBT001 - private
        super().__init__()
        self._as_console = as_console
        self._colors = colors
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if self._formatter is None:
            import structlog

            renderers = _renderers(as_console=self._as_console, colors=self._colors)
            self._formatter = structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=_shared_processors(), processors=renderers
            )
        return self._formatter.format(record)


def _shared_processors() -> "list[Processor]":
    """The processors of structlog's own lines and of the standard library's."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _renderers(*, as_console: bool, colors: bool) -> "list[Processor]":
    import structlog

    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if as_console:
        console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        return [without_meta, console]
    return [without_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to the present ``sys.stderr``, which a test runner or notebook may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # a plain attribute in the base class
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class's name
        """Drop a line that cannot be written; the base class would raise the error of a closed stream in the code that
        logs.
        """
        with contextlib.suppress(ValueError):
            super().handleError(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; without a standard error it is dropped."""
        if sys.stderr is not None:
            super().emit(record)


class _StandInHandler(_StandardErrorHandler):
    """Writes warnings that no other handler gets, in our format, as Python's ``logging.lastResort`` does in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        _formatted(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the program has no handler for the line, by now."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(not isinstance(each, _StandInHandler) for each in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return bool(super().filter(record))
