"""How tests wait for another thread, process or connection.

Units:  seconds.
Absent: fixed times.  Nobody may assume how long a machine that is busy with something else takes.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from flowlet.common.job_client import JobClient

PATIENCE_S: Final = 100.0  # a right program never uses it up, however slow the machine is; what hangs ends then
_NUM_QUICK_TURNS: Final = 50  # of a wait that looks again and again; whoever waits for longer leaves the processor
_PAUSE_S: Final = 0.001
# For periods of the program that must not come to the rescue of a wake-up that was lost.
LONG_S: Final = 10 * PATIENCE_S


def spin_until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for a fact that another thread or process makes true; the others may run in between."""
    deadline = time.monotonic() + PATIENCE_S
    num_turns = 0
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came true"
        num_turns += 1
        time.sleep(0 if num_turns < _NUM_QUICK_TURNS else _PAUSE_S)


def all_run(job: JobClient) -> bool:
    """Whether the JobManager knows that all subtasks run, or have finished: before that it takes no savepoint."""
    subtasks = [each for vertex in job.metrics()["vertices"] for each in vertex["subtasks"]]
    return all(each["state"] in ("RUNNING", "FINISHED") for each in subtasks)


def spin_tightly_until(condition: Callable[[], object]) -> None:
    """Spin as ``spin_until`` does, for races: the caller goes on within a moment, and gives the interpreter away only
    when it is taken.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the other thread never got there"


class Stopwatch:
    """How long something took, less the time in which the machine did other things: what a promise of time is measured
    with.

    Who waits for an event or for a time is not forgiven.  A thread that should wake every few milliseconds is late
    while everything stands still; and the kernel knows how long threads that could run waited for a processor.

    Threading: one thread.
    Life cycle: a context manager; ``seconds`` is right at its end.

    Args:
        pids: the processes that take part, besides this one.
    """

    _TICK_S: Final = 0.02

    def __init__(self, *pids: int) -> None:
        self._pids = pids or (os.getpid(),)
        self._is_over = threading.Event()
        self._stalled_s = 0.0
        self._thread = threading.Thread(target=self._watch, name="stopwatch")

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def has_stalled(self) -> bool:
        """Whether the machine stood still for so long that deadlines of the program itself may have passed in vain."""
        return self._stalled_s > 1.0

    @property
    def seconds(self) -> float:
        """Return the seconds for which the machine ran."""
        return self._end_s - self._start_s - self._stalled_s

    def _watch(self) -> None:
        last_s, waited_s, is_over = self._start_s, dict.fromkeys(self._pids, 0.0), False
        before_s = {pid: _waited_for_processor_s(pid) for pid in self._pids}
        while not is_over:
            is_over = self._is_over.wait(self._TICK_S)
            self._end_s = time.monotonic()
            self._stalled_s += max(0.0, self._end_s - last_s - 2 * self._TICK_S)
            last_s = self._end_s
            # Threads and processes that have ended are forgotten by the kernel, not by us.
            for pid, before in before_s.items():
                waited_s[pid] = max(waited_s[pid], _waited_for_processor_s(pid) - before)
        self._stalled_s += sum(waited_s.values())


def _waited_for_processor_s(pid: int) -> float:
    """Return the seconds for which all threads of a process together waited for a processor."""
    total_ns = 0
    with contextlib.suppress(FileNotFoundError):  # the process ended while they were listed
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread ended just now
                total_ns += int(file.read_text().split()[1])
    return total_ns / 1e9
