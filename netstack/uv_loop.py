"""uvloop's event loop, whose ``close`` ends whatever ``warnings`` are set to.

uvloop warns of each handle that is still open when its loop is closed, from within a callback of libuv.  Where warnings are errors (a
program under test, a user's function that called ``warnings.simplefilter("error")``), the callback ends before it has closed the handle.
Then ``close`` waits for an active handle for ever, or fails with EBUSY because of an inactive one.

uvloop also ends the process (``uv__close: Assertion `fd > STDERR_FILENO'``) if one of its descriptors is 0, 1 or 2, which happens where
the process was started without standard input, output or error (``>&-``).

Side:       loop.  Imports uvloop, so it is imported late.
"""

import os
import re
import warnings
from typing import Final, Self

import uvloop

_LAST_STANDARD: Final = 2
_WARNING: Final = "unclosed resource"  # how uvloop's text begins


class UvLoop(uvloop.Loop):
    """A loop of uvloop."""

    def __new__(cls) -> Self:
        """A new loop; uvloop opens its first descriptors here, before ``__init__``."""
        open_standard_descriptors()
        loop: Self = super().__new__(cls)
        return loop

    def close(self) -> None:
        """Close the loop and all that is open on it."""
        # A warning from C belongs to the innermost Python frame, which is this one: the filter concerns nobody else.  It is set each time,
        # because filters set later come first; ``catch_warnings`` would change the filters of other threads.
        warnings.filterwarnings("ignore", _WARNING, ResourceWarning, re.escape(__name__))
        super().close()


def open_standard_descriptors() -> None:
    """Let 0, 1 and 2 be taken: one that is closed leads to ``/dev/null`` from now on, and no socket gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:  # the lowest one that is free
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - for children, too
    os.close(descriptor)
