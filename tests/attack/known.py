"""Attacks that the product does not withstand yet: they run, and their failures are expected.

A line goes when its fault is mended; a test that passes although it stands here is shown as XPASS.

Side:   pure.
"""

import re
from typing import Final

# Pattern of the test's name -> the error.
KNOWN: Final[dict[str, str]] = {}


def known_fault(nodeid: str) -> str | None:
    return next((reason for pattern, reason in KNOWN.items() if re.search(pattern, nodeid)), None)
