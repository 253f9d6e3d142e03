"""TaskManagers as child processes of a user's program.

Side:       shared.
Invariants: a child lives in a session of its own, so that the terminal's Ctrl-C reaches the client first.  The kernel
            ends it with its parent, whatever it does, and what it leaves behind is ended with it.  All that it prints
            appears on this program's standard output in whole lines; what it tells this program goes through a pipe of
            its own.
Units:      seconds.
"""

import codecs
import errno
import os
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Final

from flowlet.client.program.interrupts import Latch
from flowlet.errors import FlowletError
from flowlet.tm.process.process_model import ENDING, EXIT_WORK_S
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.forks import ClosedInChildren

_log = LogLines(__name__)

# Between SIGTERM and SIGKILL; a child promises 1.8 s, and on a busy machine it may not get the processor.
STOP_GRACE_S: Final = 5.0
_KILL_TIMEOUT_S: Final = 5.0  # for the kernel
_PRINT_TIMEOUT_S: Final = 5.0  # for the last words of all children
_LOOK_INTERVAL_S: Final = 0.25  # a child may have ended while another process has the other end of its pipe
_READ_BYTES: Final = 64 * 1024
_MAX_READS_PER_PASS: Final = 64  # of one pipe, before the other ones are looked at
_MAX_LINE_CHARS: Final = 1024 * 1024  # a longer line is passed on in pieces
_UNKNOWN_CODE: Final = -signal.SIGKILL  # if the server is gone, its children were killed or will be


@dataclass(frozen=True, slots=True)
class TaskManagerOptions:
    """The command line of one child."""

    jobmanager: str  # host:port
    secret_file: Path
    program_file: Path  # with the ProgramStart of this program
    num_slots: int
    pin_cpu: int | None = None

    def arguments(self, parent_pid: int) -> list[str]:
        """Return the options of ``python -m flowlet.tm``."""
        return [
            *("--jobmanager", self.jobmanager, "--slots", str(self.num_slots)),
            *("--secret-file", str(self.secret_file), "--parent-pid", str(parent_pid)),
            *([] if self.pin_cpu is None else ["--pin-cpu", str(self.pin_cpu)]),
        ]


class _Pipe:
    """The output of one child so far.  Owned by the forwarder's thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""

    def feed(self, data: bytes) -> str:
        """Take bytes (none: the end); returns the text to print now."""
        text = self._partial + self._decoder.decode(data, final=not data)
        end = len(text) if not data or len(text) > _MAX_LINE_CHARS else text.rfind("\n") + 1
        text, self._partial = text[:end], text[end:]
        return text


class OutputForwarder:
    """Prints the output of the children on this program's standard output.

    Threading: one thread of its own, which calls ``on_failure``, once, when something cannot be printed; the methods on
               any other.
    Life cycle: ``close`` after the children ended.
    """

    def __init__(self, on_failure: Callable[[], None] = lambda: None) -> None:
        self._on_failure = on_failure
        # Why standard output takes nothing more.  Written once by the forwarder's thread, read anywhere.
        self.failure: Exception | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._orders: list[tuple[Callable[[], object], Latch]] = []  # Guarded by _lock.
        self._is_closing = False  # Guarded by _lock.
        self._thread = threading.Thread(target=self._run, name="flowlet-stdout", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<OutputForwarder {'on' if self._thread.is_alive() else 'closed'}>"

    def add(self, fd: int) -> _Pipe:
        """Read from ``fd`` from now on; it stays the caller's, who closes it after ``remove`` or ``close``."""
        os.set_blocking(fd, False)
        pipe = _Pipe(fd)
        self._order(partial(self._selector.register, fd, selectors.EVENT_READ, pipe))
        return pipe

    def remove(self, pipe: _Pipe, timeout_s: float = 1.0) -> bool:
        """Print the rest of the pipe, and read no more; False if that is not done in time: the pipe is read until
        ``close``.
        """
        removed = self._order(lambda: self._remove(pipe))
        return removed is not None and removed.wait(timeout_s)

    def has_ended(self) -> bool:
        """Whether it was closed, and reads no pipe any more."""
        return not self._thread.is_alive()

    def drain(self, timeout_s: float = 1.0) -> None:
        """Wait until everything that the children have written by now is printed."""
        drained = self._order(self._forward_all)
        if drained is not None:
            drained.wait(timeout_s)

    def _order(self, do: Callable[[], object], *, is_last: bool = False) -> Latch | None:
        """Let the forwarder's thread call ``do``; returns the latch that opens then; None: the forwarder is closed."""
        done = Latch()
        with self._lock:
            if self._is_closing:
                return None
            self._is_closing = is_last
            self._orders.append((do, done))
        os.eventfd_write(self._wake_fd, 1)
        return done

    def close(self) -> None:
        """Print the rest of all pipes, then end the thread; the thread is left behind if nobody reads its output."""
        if self._order(self._remove_all, is_last=True) is None:
            return
        self._thread.join(_PRINT_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning(
                "what the TaskManagers printed is not taken by the reader of standard output",
                timeout_s=_PRINT_TIMEOUT_S,
            )
            return
        self._selector.close()
        os.close(self._wake_fd)

    # ---------------------------------------------------------------- the forwarder's thread

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            # waits for what TaskManagers print; ended by close(), which wakes it
            for key, _ in self._selector.select():
                if key.data is None:
                    os.eventfd_read(self._wake_fd)  # before the orders are taken: a later one wakes the next pass
                else:
                    self._forward(key.data)
            with self._lock:
                orders = self._orders
                self._orders = []
                is_closing = self._is_closing
            for do, done in orders:
                do()
                done.open()

    def _forward_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._forward(key.data)

    def _remove_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._remove(key.data)

    def _remove(self, pipe: _Pipe) -> None:
        if pipe.fd not in self._selector.get_map():
            return  # it ended
        self._forward(pipe)
        if pipe.fd in self._selector.get_map():  # another process still has its other end
            self._selector.unregister(pipe.fd)
            self._print(pipe.feed(b""))

    def _forward(self, pipe: _Pipe) -> None:
        for _ in range(_MAX_READS_PER_PASS):
            try:
                data = os.read(pipe.fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._print(pipe.feed(data))
            if not data:
                self._selector.unregister(pipe.fd)
                return

    def _print(self, text: str) -> None:
        if not text or self.failure is not None:
            return
        try:
            if sys.stdout is None:  # the program was started without one
                raise OSError(errno.EBADF, "it is closed")
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            # The disk is full, the reader left, as in ``program | head``, or the program closed its output.  Reading
            # goes on, because a full pipe would stop the children's tasks, which could then not end.
            self.failure = error
            self._on_failure()


@dataclass(eq=False, repr=False)
class TaskManagerProcess:
    """One child that was forked, and the descriptors that stand for it, which it owns.

    Threading: one thread at a time.
    """

    pid: int
    end_fd: int  # can be read once the process has ended
    exit_fd: int  # the exit code, as a line
    stdout_fd: int
    status_fd: int  # the lines that the child writes for the program
    life_fd: int  # the kernel ends the child when this end of a pipe is gone
    forwarder: OutputForwarder  # prints the child's output
    _exit_code: int | None = field(init=False, default=None)
    _told: bytes = field(init=False, default=b"")
    _may_tell_more: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self._in_children = ClosedInChildren(self.life_fd, None)  # a forked child of the program is not the program
        os.set_blocking(self.status_fd, False)
        self._pipe = self.forwarder.add(self.stdout_fd)

    def __repr__(self) -> str:
        return f"<TaskManagerProcess {self.pid} {'running' if self._exit_code is None else self._exit_code}>"

    def end(self) -> str | None:
        """Describe how the process ended, in words; None while it runs."""
        if not self._has_ended(0):
            return None
        code = self._exit_code
        assert code is not None, "it has ended"
        if code >= 0:
            how = f"with exit code {code}"
        else:
            try:
                how = f"by {signal.Signals(-code).name}"
            except ValueError:  # a real-time signal
                how = f"by signal {-code}"
        return f"TaskManager process {self.pid} ended {how}; its standard error may say more"

    def wait_ready(self, deadline: float) -> str:
        """Wait for the line that the process writes once it is registered; ``deadline`` on the monotonic clock.

        Raises:
            FlowletError: it ended before, or was not ready in time.
        """
        while (ready_line := self._next_told()) is None or ready_line == ENDING:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise FlowletError(f"TaskManager process {self.pid} was not ready in time")
            if self._has_ended(0 if self._may_tell_more else min(left_s, _LOOK_INTERVAL_S)):
                how = f"with exit code {self._exit_code}"
                raise FlowletError(f"TaskManager process {self.pid} ended {how} before it was ready")
            if self._may_tell_more:
                is_readable(self.status_fd, min(left_s, _LOOK_INTERVAL_S))
        return ready_line

    def _next_told(self) -> str | None:
        """Return the next line that the process has written; None: there is none yet."""
        while b"\n" not in self._told:
            try:
                data = os.read(self.status_fd, _READ_BYTES)
            except BlockingIOError:
                return None
            if not data:
                self._may_tell_more = False
                return None
            self._told += data
        line, _, self._told = self._told.partition(b"\n")
        return line.decode("utf-8", "replace")

    def terminate(self) -> None:
        """Ask the process to stop."""
        if not self._has_ended(0):
            self._send(signal.SIGTERM)

    def wait_or_kill(self, deadline: float) -> None:
        """Wait for the end of the process; kill it at the deadline (monotonic clock), or later if its functions have
        left work for its end.
        """
        if self._has_ended(deadline - time.monotonic()):
            return
        if ENDING in iter(self._next_told, None) and self._has_ended(EXIT_WORK_S):
            return
        _log.warning("a TaskManager did not stop and was killed", pid=self.pid)
        self._send(signal.SIGKILL)  # the server kills what it leaves behind
        if not self._has_ended(_KILL_TIMEOUT_S):
            _log.warning("a TaskManager that was killed is still there", pid=self.pid, timeout_s=_KILL_TIMEOUT_S)

    def _has_ended(self, timeout_s: float) -> bool:
        """Whether the process has ended within the time.

        The server, which waits for each child that has ended, tells its exit code; a server that is gone tells nothing.
        """
        if self._exit_code is not None:
            return True
        if not is_readable(self.end_fd, timeout_s):
            return False
        text = b""
        while not text.endswith(b"\n") and (more := os.read(self.exit_fd, 64)):
            text += more
        self._exit_code = int(text) if text else _UNKNOWN_CODE
        os.close(self.exit_fd)
        os.close(self.end_fd)
        return True

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.end_fd, number)

    def close_output(self) -> None:
        """Give the pipes back, once; called after the forwarder was closed."""
        self._in_children.release()
        for descriptor in (self.stdout_fd, self.life_fd, self.status_fd):
            os.close(descriptor)

    def remove_output(self) -> bool:
        """Pass on the last output and give the pipes back; False: the forwarder still has one, so call ``close_output``
        after its end.
        """
        if not self.forwarder.remove(self._pipe):
            return False
        self.close_output()
        return True


Launch = Callable[[TaskManagerOptions], TaskManagerProcess]


def inherits_standard_error() -> bool:
    """Whether a child has this program's standard error; else the program was started without one."""
    try:
        return os.get_inheritable(2)
    except OSError:
        return False


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether a descriptor can be read within the time."""
    return bool(readable([descriptor], timeout_s))


def readable(descriptors: Iterable[int], timeout_s: float | None) -> list[int]:
    """List the descriptors that can be read, as soon as there is one, or after the time; None: wait for ever."""
    looker = select.poll()
    for each in descriptors:
        looker.register(each, select.POLLIN)
    return [each for each, _ in looker.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)]
