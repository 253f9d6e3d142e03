"""What triggers, assigners, evictors and window functions are given.

Side:       task.
Invariants: states that a context gives belong to the current key and, but for global ones, to its window.
Source:     Flink ``WindowOperator.Context``, ``WindowContext``, ``PerWindowStateStore``, ``MergingWindowStateStore``;
            PyFlink's of the same names.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from flowlet.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from flowlet.datastream.user_functions.function import KeyedStateStore
from flowlet.datastream.user_functions.window_functions import ProcessAllWindowFunction, ProcessWindowFunction
from flowlet.datastream.window.evictors import Evictor
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import WindowAssigner
from flowlet.errors import FlowletError
from flowlet.operators.user_function import RuntimeContext
from flowlet.timers.time_api import InternalTimerService
from flowlet.windows.window_states import WindowStates


class AssignerContext(WindowAssigner.WindowAssignerContext):
    """The clock, and the states of the current key."""

    def __init__(self, timers: InternalTimerService, runtime: RuntimeContext) -> None:
        self._timers = timers
        self._runtime = runtime

    def get_current_processing_time(self) -> int:
        """What the clock shows."""
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> Any:
        """The subtask, and the states of the key of the record."""
        return self._runtime


class EvictorContext(Evictor.EvictorContext):
    """The clock."""

    def __init__(self, timers: InternalTimerService, runtime: RuntimeContext) -> None:
        self._timers = timers
        self._runtime = runtime

    def get_current_processing_time(self) -> int:
        """What the clock shows."""
        return self._timers.current_processing_time()

    def get_metric_group(self) -> Any:
        """The metrics of the operator."""
        return _metrics_of(self._runtime)

    def get_current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._timers.current_watermark()


class TriggerContext(Trigger.OnMergeContext):
    """The clock, the timers and the states of ``window`` and the current key."""

    def __init__(self, states: WindowStates, timers: InternalTimerService, runtime: RuntimeContext) -> None:
        self._states = states
        self._timers = timers
        self._runtime = runtime
        self.window: Any = None
        self.merged: Sequence[Any] = ()  # the windows that became ``window``, while that is told

    def get_current_processing_time(self) -> int:
        """What the clock shows."""
        return self._timers.current_processing_time()

    def get_metric_group(self) -> Any:
        """The metrics of the operator."""
        return _metrics_of(self._runtime)

    def get_current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._timers.current_watermark()

    def register_processing_time_timer(self, time: int) -> None:
        """For the window and the current key."""
        self._timers.register_processing_time_timer(self.window, time)

    def register_event_time_timer(self, time: int) -> None:
        """For the window and the current key."""
        self._timers.register_event_time_timer(self.window, time)

    def delete_processing_time_timer(self, time: int) -> None:
        """Of the window and the current key."""
        self._timers.delete_processing_time_timer(self.window, time)

    def delete_event_time_timer(self, time: int) -> None:
        """Of the window and the current key."""
        self._timers.delete_event_time_timer(self.window, time)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
        """Of the window and the current key."""
        self._states.enter(self.window)
        state: State = self._states.state(state_descriptor)
        return state

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Put the states of the former windows together, as that of the new one."""
        if self.merged:
            self._states.merge(state_descriptor, self.window, self.merged)


class _PerWindowStates(KeyedStateStore):
    """The states of one key and one window."""

    def __init__(self, states: WindowStates) -> None:
        self._states = states

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """A value per key and window."""
        state: ValueState[Any] = self._states.state(state_descriptor)
        return state

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list per key and window."""
        state: ListState[Any] = self._states.state(state_descriptor)
        return state

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """A map per key and window."""
        state: MapState[Any, Any] = self._states.state(state_descriptor)
        return state

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Values per key and window, combined by a function of two."""
        state: ReducingState[Any] = self._states.state(state_descriptor)
        return state

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Values per key and window, combined by an ``AggregateFunction``."""
        state: AggregatingState[Any, Any] = self._states.state(state_descriptor)
        return state


class _NoPerWindowStates(KeyedStateStore):
    """Windows that may become one have no states of their own."""

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Refused."""
        self._refuse()

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Refused."""
        self._refuse()

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Refused."""
        self._refuse()

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Refused."""
        self._refuse()

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise FlowletError("windows that merge, such as sessions, have no state per window; use global_state()")


class FunctionContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """The window that a window function evaluates."""

    def __init__(
        self, states: WindowStates, timers: InternalTimerService, runtime: RuntimeContext, *, merges: bool
    ) -> None:
        self._states = states
        self._timers = timers
        self._runtime = runtime
        self._per_window: KeyedStateStore = _NoPerWindowStates() if merges else _PerWindowStates(states)
        self.current_window: Any = None

    def window(self) -> Any:
        """The window."""
        return self.current_window

    def current_processing_time(self) -> int:
        """What the clock shows."""
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._timers.current_watermark()

    def window_state(self) -> KeyedStateStore:
        """Makes states of this key and window."""
        self._states.enter(self.current_window)
        return self._per_window

    def global_state(self) -> KeyedStateStore:
        """Makes states of this key."""
        return self._runtime


def _metrics_of(runtime: RuntimeContext) -> Any:
    """The metrics of a function, by either of PyFlink's names."""
    return runtime.get_metrics_group()
