"""The name of the wait that a thread stands in.

Side:       pure.
Source:     the comment at every wait without a deadline, on its line or above it: "waits for NAME; ended by WHAT".  So
            the name stands where the wait is, costs nothing, and ``tests/test_waits.py`` finds a wait without one.
Absent:     names where the sources are not installed.
"""

import linecache
import re
from types import FrameType
from typing import Final

_NAME: Final = re.compile(r"# (waits for .*; ended by .*)")


def named_wait(frame: FrameType | None) -> str | None:
    """The text "waits for NAME; ended by WHAT" of the innermost named wait on the stack of ``frame``; None: it stands
    in none.
    """
    while frame is not None:
        for line in (frame.f_lineno, frame.f_lineno - 1):
            found = _NAME.search(linecache.getline(frame.f_code.co_filename, line))
            if found is not None:
                return found[1]
        frame = frame.f_back
    return None
