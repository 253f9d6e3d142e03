"""The output of ``execute()`` on a terminal while a job runs: where to look at it, and a line of figures that is
rewritten in place.

Side:       shared.  A thread of its own asks the JobManager and writes; the thread that waits for the job begins and
            ends it.
Rules:      ``FLOWLET_PROGRESS``: ``auto`` (also unset) shows it if standard error is a terminal, ``on`` always, ``off``
            never.  Where it is no terminal, ``on`` gives a whole line every ten seconds.  Standard output is never
            touched.  Whatever goes wrong here ends the line and nothing else.
Invariants: the line has the last row of the terminal to itself, and all other output scrolls above it (DECSTBM, the
            scroll region of a VT100): the output of functions, log lines and child processes is never mixed with it.
            To replace ``sys.stdout``, as ``rich.live`` does, would not catch child processes, nor
            loggers that have the stream already.  While another program has the terminal (a pager reads keys one by
            one, the job is in the background) nothing is written.
Absent:     a program that is killed (SIGKILL, SIGTERM) leaves the scroll region; ``reset`` of the shell takes it away.
"""

import concurrent.futures
import contextlib
import os
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowlet.client.remote import JobDocument, JobManagerApi
from flowlet.common.job_client import ProgressMode
from flowlet.errors import FlowletError
from netstack.log_lines import LogLines

if TYPE_CHECKING:
    from flowlet.client.running_job import RunningJob

_log = LogLines(__name__)

INTERVAL_S: Final = 1.0
_PLAIN_INTERVAL_S: Final = 10.0  # of whole lines, where there is no terminal
_JOIN_TIMEOUT_S: Final = 2.0  # a terminal that was stopped by Ctrl-S takes nothing
_MIN_ROWS: Final = 4
_MAX_NAME_CHARS: Final = 32
_NO_SCREENS: Final = frozenset({"", "dumb"})  # values of TERM


def is_wanted(mode: ProgressMode) -> bool:
    """Whether there is a place to show progress on."""
    if sys.stderr is None or mode is ProgressMode.OFF:
        return False
    return mode is ProgressMode.ON or _terminal_of_stderr() is not None


@contextlib.contextmanager
def shown(job: "RunningJob") -> Iterator[None]:
    """Show the job while the block runs; first write where to look at it, unless that was written (``announce``)."""
    progress = None
    try:
        if not job.is_announced:
            announce(job)
        progress = _Progress(job)
    except Exception as error:  # noqa: BLE001 - the job goes on without
        _log.debug("the progress of a job cannot be shown", job=job.job_id, error=repr(error))
    try:
        yield
    finally:
        if progress is not None:
            progress.close()


def announce(job: "RunningJob") -> None:
    """Write where to look at a job."""
    _write_line(f"job {job.name!r} {job.job_id}: {job.client.where_to_look(job.job_id)}")


class Answer(NamedTuple):
    """The JobManager's answers about a job."""

    at_s: float  # on the monotonic clock
    job: JobDocument
    checkpoints: JobDocument | None  # None: the job takes none


def describe(name: str, now: Answer, before: Answer | None) -> str:
    """Write the line of a job: how long it runs, and its activity."""
    parts = [f"{_short(name)} {now.job['state']} {_duration(max(0, now.job['duration']))}"]
    if before is not None and now.at_s > before.at_s:
        rate = max(0, _num_emitted(now.job) - _num_emitted(before.job)) / (now.at_s - before.at_s)
        parts.append(f"{rate:,.0f} records/s")
    busiest = max(now.job["vertices"], key=_busy_share, default=None)
    if busiest is not None and _busy_share(busiest) > 0:
        parts.append(f"busiest {_short(busiest['name'])} {_busy_share(busiest):.0%}")
    if now.checkpoints is not None:
        parts.append(_counted(now.checkpoints["counts"]["completed"], "checkpoint"))
    if now.job["numRestarts"]:
        parts.append(_counted(now.job["numRestarts"], "restart"))
    return " | ".join(parts)


def _num_emitted(job: JobDocument) -> int:
    """Count the records that its sources have emitted; a source may be chained to all its readers: its task then emits
    nothing.
    """
    sources = {node["id"] for node in job["plan"]["nodes"] if not node["inputs"]}
    of_sources = [
        each["metrics"] for vertex in job["vertices"] if vertex["id"] in sources for each in vertex["subtasks"]
    ]
    return sum((each["operators"] or [each])[0]["num_records_out"] for each in of_sources)


def _busy_share(vertex: Mapping[str, Any]) -> float:
    """Return the share of the last minute in which the vertex's tasks computed."""
    subtasks = vertex["subtasks"]
    total: float = sum(each["metrics"]["busy_ms_per_second"] for each in subtasks)
    return total / (1000 * max(1, len(subtasks)))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 3]}..."


def _duration(duration_ms: int) -> str:
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _Progress:
    """The line of one job.  Life cycle: ``close`` it."""

    def __init__(self, job: "RunningJob") -> None:
        self._job = job
        fd = _terminal_of_stderr()
        self._row = None if fd is None else LastRow(fd)
        self._lock = threading.Lock()
        self._asked: concurrent.futures.Future[Answer] | None = None  # Guarded by _lock.
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flowlet-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the line away."""
        with self._lock:
            self._is_closing.set()
            asked = self._asked
        if asked is not None:
            asked.cancel()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._show_until_closed()
        except Exception as error:  # noqa: BLE001 - the job goes on without
            _log.debug("the progress of a job is not shown any more", job=self._job.job_id, error=repr(error))
        finally:
            if self._row is not None:
                self._row.clear()

    def _show_until_closed(self) -> None:
        before = None
        interval_s = _PLAIN_INTERVAL_S if self._row is None else INTERVAL_S
        wait_s = interval_s if self._row is None else 0.0
        while not self._is_closing.wait(wait_s):
            wait_s = interval_s
            try:
                now = self._ask()
            # The JobManager is gone, which wait() says, or this ends.
            except (FlowletError, concurrent.futures.CancelledError):
                continue
            line = describe(self._job.name, now, before)
            before = now
            if self._row is None:
                _write_line(line)
            else:
                self._row.show(line)

    def _ask(self) -> Answer:
        asked = self._job.client.begin(self._answer)
        with self._lock:
            self._asked = asked
            is_closing = self._is_closing.is_set()
        if is_closing:
            asked.cancel()
        return asked.result()  # waits for the JobManager; ended by the timeout of the request, or close()

    async def _answer(self, api: JobManagerApi) -> Answer:
        document = await api.job(self._job.job_id)
        checkpoints = await api.checkpoints(self._job.job_id) if self._job.takes_checkpoints else None
        return Answer(time.monotonic(), document, checkpoints)


class LastRow:
    """The last row of a terminal, which other output does not reach.  Threading: one thread at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size: os.terminal_size | None = None  # when the row was set apart; None: it is not

    def __repr__(self) -> str:
        return f"<LastRow of {self._fd}{'' if self._size is None else ', in use'}>"

    def show(self, text: str) -> None:
        """Write a line, cut to the width, instead of the last one."""
        from rich.cells import set_cell_size  # with a terminal only

        size = os.get_terminal_size(self._fd)
        if not self._is_ours() or size.lines < _MIN_ROWS:
            self.clear()
            return
        begin = ""
        if size != self._size:
            self.clear()
            # Index and cursor up: if the cursor is in the last row, what is written there moves up.  Setting the region
            # moves the cursor.
            begin = f"\x1bD\x1b7\x1b[1;{size.lines - 1}r\x1b8\x1b[A"
            self._size = size
        line = "".join(each if each.isprintable() else " " for each in text)
        shown = set_cell_size(line, size.columns - 1).rstrip()
        self._write(f"{begin}\x1b7\x1b[{size.lines};1H\x1b[2K{shown}\x1b8")

    def clear(self) -> None:
        """Give the row back, empty."""
        if self._size is not None:
            row, self._size = self._size.lines, None
            self._write(f"\x1b7\x1b[{row};1H\x1b[2K\x1b[r\x1b8")

    def _is_ours(self) -> bool:
        """Whether this program is in the foreground, and no other one reads the terminal key by key."""
        if not termios.tcgetattr(self._fd)[3] & termios.ICANON:
            return False
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # it is not the terminal that controls this process
            return True

    def _write(self, text: str) -> None:
        # In one call, between which and others' the kernel does not switch.
        os.write(self._fd, text.encode(errors="replace"))


def _terminal_of_stderr() -> int | None:
    """Return the descriptor of standard error if it is a terminal with a screen."""
    try:
        fd = sys.stderr.fileno()
        return fd if os.isatty(fd) and os.environ.get("TERM", "") not in _NO_SCREENS else None
    except (AttributeError, OSError, ValueError):  # there is none, it is closed, or it is an object of the program's
        return None


def _write_line(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
