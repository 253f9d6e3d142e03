"""Ends a test that hangs, and shows where every thread was.

Side: any.
"""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tests.waiting import PATIENCE_S


@contextmanager
def watchdog(timeout_s: float = PATIENCE_S) -> Iterator[None]:
    """Main thread only: after ``timeout_s`` seconds dump all stacks and raise, also out of a wait for a lock."""

    def bark(signum: int, frame: FrameType | None) -> NoReturn:
        faulthandler.dump_traceback(2, all_threads=True)  # the file descriptor: pytest exchanges sys.stderr
        raise TimeoutError(f"the test hangs: no end after {timeout_s} s; the stacks of all threads are on stderr")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def tiny_switch_interval() -> Iterator[None]:
    """Threads change places as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
