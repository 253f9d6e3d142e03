"""Whether users' functions are inlined and fused.

Side:   pure.
Rules:  generated loops ask the traceback for the record that failed, which works where comprehensions have frames of their own: in Python
        3.11.  A process in which somebody traces (a debugger, coverage) gets calls, so that breakpoints in users' functions are met.
"""

import os
import sys
from typing import Final

FUSE_VARIABLE: Final = "FLOWLET_FUSE"  # "0": no generated loops, every operator runs on its own
_HAS_FRAMES = (3, 11) <= sys.version_info < (3, 12)


def is_fusing() -> bool:
    """Whether this process may inline and fuse at all; read where a task is built."""
    return _HAS_FRAMES and os.environ.get(FUSE_VARIABLE, "").strip() != "0"


def is_traced() -> bool:
    """Whether somebody follows this thread line by line now; read once per chunk."""
    return sys.gettrace() is not None
