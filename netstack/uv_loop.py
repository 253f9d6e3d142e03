"""uvloop's event loop, whose ``close`` ends whatever ``warnings`` are set to.

uvloop warns of each handle that is still open when its loop is closed, from within a callback of libuv.  Where warnings are errors (a
program under test, a user's function that called ``warnings.simplefilter("error")``), the callback ends before it has closed the handle.
Then ``close`` waits for an active handle for ever, or fails with EBUSY because of an inactive one.

Side:       loop.  Imports uvloop, so it is imported late.
"""

import re
import warnings
from typing import Final

import uvloop

_WARNING: Final = "unclosed resource"  # how uvloop's text begins


class UvLoop(uvloop.Loop):
    """A loop of uvloop."""

    def close(self) -> None:
        """Close the loop and all that is open on it."""
        # A warning from C belongs to the innermost Python frame, which is this one: the filter concerns nobody else.  It is set each time,
        # because filters set later come first; ``catch_warnings`` would change the filters of other threads.
        warnings.filterwarnings("ignore", _WARNING, ResourceWarning, re.escape(__name__))
        super().close()
