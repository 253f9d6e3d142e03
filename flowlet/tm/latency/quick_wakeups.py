"""What this process asks of the kernel so that its threads run soon after they wake up.

Side:       shared.  On the main thread of ``python -m flowlet.tm``, before any other thread starts: threads inherit it.
Source:     ``sched_setattr(2)``: since Linux 6.12 a thread of an ordinary class may say how long its time slices are, and one with short
            ones takes the core from one with longer ones when it wakes.  ``timerslack_ns`` in ``proc(5)``: how much later than asked for
            a wait may end (50 us), the wait for the interpreter's lock among them.
            Both need no privileges; where the kernel does not know them, nothing changes.
"""

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

SLICE_NS: Final = 100_000  # the least that the kernel takes
_SLACK_NS: Final = 1  # the least that is one: 0 means the default
_SLACK_FILE: Final = Path("/proc/self/timerslack_ns")  # of the main thread
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # sched_setattr
# size, policy, flags, nice, priority, runtime, deadline, period (``struct sched_attr``, its first version).
_SCHED_ATTR: Final = struct.Struct("IIQiIQQQ")


def ask_for_quick_wakeups() -> list[str]:
    """Short time slices and exact timers, for this thread and those that it starts; returns what could not be had."""
    missing = []
    for name, ask in (("short time slices", _shorten_slices), ("exact timers", _sharpen_timers)):
        try:
            ask()
        except OSError as error:
            missing.append(f"{name}: {error}")
    if missing:
        _log.info("the kernel does not offer everything that keeps latencies low", missing=missing)
    return missing


def _sharpen_timers() -> None:
    _SLACK_FILE.write_text(f"{_SLACK_NS}", encoding="ascii")


def _shorten_slices() -> None:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"sched_setattr has no known number on {platform.machine()}")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), 0, attributes, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
