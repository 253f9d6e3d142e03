"""``TimerService``: clock and timers for process functions.

Side:   pure.
Source: PyFlink ``pyflink.datastream.timerservice``.
"""

from typing import TYPE_CHECKING

from flowlet.errors import FlowletError

if TYPE_CHECKING:
    from flowlet.operators.process_operator import ProcessFunctionOperator
    from flowlet.timers.keyed_timer_service import KeyedTimerService

__all__ = ["TimerService"]


class TimerService:
    """Time, and the timers of the current key; timestamps are milliseconds since the epoch.

    ``service``: None: there are no timers without a key, and methods that are for them raise FlowletError.
    """

    def __init__(self, operator: "ProcessFunctionOperator", service: "KeyedTimerService | None") -> None:
        self._operator = operator
        self._keyed = service

    def current_processing_time(self) -> int:
        """The time of the clock."""
        return self._operator.ctx.processing_time_service.current_time_ms()

    def current_watermark(self) -> int:
        """The watermark that the operator has reached."""
        return self._operator.current_watermark if self._keyed is None else self._keyed.current_watermark()

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the clock passes ``timestamp``; only on keyed streams."""
        self._service.register_processing_time_timer(None, timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the watermark reaches ``timestamp``; only on keyed streams."""
        self._service.register_event_time_timer(None, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one; only on keyed streams."""
        self._service.delete_processing_time_timer(None, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one; only on keyed streams."""
        self._service.delete_event_time_timer(None, timestamp)

    @property
    def _service(self) -> "KeyedTimerService":
        if self._keyed is None:
            raise FlowletError("timers need a keyed stream: call key_by(...) before process(...)")
        return self._keyed
