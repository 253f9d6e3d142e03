"""The base of the contexts of assigners, evictors, triggers and window functions: window, time, subtask.

Side:   pure.
Source: PyFlink ``pyflink.datastream.window``, ``pyflink.datastream.functions``; Flink ``WindowOperator.Context``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.datastream.states.runtime_context import KeyedStateStore, RuntimeContext
    from flowlet.timers.keyed_timer_service import KeyedTimerService
    from flowlet.windows.window_states import WindowStates

__all__ = ["CurrentWindow", "WindowClock"]


@dataclass(repr=False, eq=False)
class CurrentWindow:
    """A window of the current key, with its states and timers; an operator has one object for all its calls.

    ``current_window``: set by the operator before each call.  ``merged``: the windows that became this one, during
    ``Trigger.on_merge``.
    """

    _states: "WindowStates"
    _timers: "KeyedTimerService"
    _runtime: "RuntimeContext"
    _per_window: "KeyedStateStore"
    current_window: Any = None
    merged: Sequence[Any] = ()


class WindowClock(CurrentWindow):
    """The clock, and the states of the current key."""

    def get_current_processing_time(self) -> int:
        """The time of the clock, in milliseconds since the epoch."""
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._timers.current_watermark()

    def get_metric_group(self) -> Any:
        """The metrics of the operator."""
        return self._runtime.get_metrics_group()

    def get_runtime_context(self) -> "RuntimeContext":
        """The subtask, and the states of the key of the record."""
        return self._runtime
