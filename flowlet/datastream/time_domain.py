"""``TimeDomain``: the time by which a timer fired.

Side:   pure.
Source: PyFlink ``pyflink.datastream.time_domain``.
"""

from enum import Enum

__all__ = ["TimeDomain"]


class TimeDomain(Enum):
    """Event time (the watermark) or processing time (the clock)."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
