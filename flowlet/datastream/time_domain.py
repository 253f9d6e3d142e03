"""``TimeDomain``: by which time a timer fired.

Side:   pure.
Source: PyFlink ``pyflink.datastream.time_domain``.
"""

from enum import Enum

__all__ = ["TimeDomain"]


class TimeDomain(Enum):
    """By the clock or by the watermark."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
