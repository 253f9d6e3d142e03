"""Asks the kernel to run this process's threads soon after they wake up.

Side:       shared.  On the main thread of ``python -m flowlet.tm``, before any other thread starts: threads inherit it.
Source:     ``sched_setattr(2)``: since Linux 6.12 an ordinary thread may set the length of its time slices; when it
            wakes, it takes the core from a thread with longer ones.  ``timerslack_ns`` in ``proc(5)``: by how much a
            wait may be prolonged (50 us by default), also the wait for the interpreter's lock.  Both need no
            privileges; an older kernel ignores them.
"""

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

from netstack.log_lines import LogLines

_log = LogLines(__name__)

SLICE_NS: Final = 100_000  # the kernel's minimum
_SLACK_NS: Final = 1  # the minimum: 0 would mean the default
_SLACK_FILE: Final = Path("/proc/self/timerslack_ns")  # of the main thread
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # sched_setattr
# size, policy, flags, nice, priority, runtime, deadline, period (``struct sched_attr``, its first version).
_SCHED_ATTR: Final = struct.Struct("IIQiIQQQ")


def ask_for_quick_wakeups() -> list[str]:
    """Set short time slices and exact timers for this thread and those that it starts; return what
    the kernel refused.
    """
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
