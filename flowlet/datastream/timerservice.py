"""``TimerService``: clock and timers for process functions.

Side:   pure.
Source: PyFlink ``pyflink.datastream.timerservice``.
"""

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """Time and timers of the current key; all timestamps in milliseconds since the epoch."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """What the clock shows."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The event time that the operator has reached."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when the clock passes ``timestamp``; only on keyed streams."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``timestamp``; only on keyed streams."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Call off a timer of the current key, if there is one; only on keyed streams."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Call off a timer of the current key, if there is one; only on keyed streams."""
