"""``TimerService``: clock and timers for process functions.

Side:   pure.
Source: PyFlink ``pyflink.datastream.timerservice``.
"""

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """Time, and the timers of the current key; timestamps are milliseconds since the epoch."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The time of the clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark that the operator has reached."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the clock passes ``timestamp``; only on keyed streams."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the watermark reaches ``timestamp``; only on keyed streams."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one; only on keyed streams."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one; only on keyed streams."""
