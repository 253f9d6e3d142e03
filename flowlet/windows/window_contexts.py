"""What triggers, assigners, evictors and window functions are given.

How the user's window function is called: with or without key, context and results.

``WindowResults``: where the results of windows go.

Hot path, per result: a look at its type, and two appends where only chunks leave the chain behind the operator; else
one run of the loop behind it.

Side:       task.
Invariants: states that a context gives belong to the current key and, but for global ones, to its window.  results
            leave before the watermark, the barrier or the mark that follows them.  A chained function gets a result
            before the next one is made.
Source:     Flink ``WindowOperator.Context``, ``WindowContext``, ``PerWindowStateStore``, ``MergingWindowStateStore``;
            PyFlink's of the same names.  PyFlink ``InternalIterableWindowFunction``,
            ``InternalSingleValueProcessWindowFunction`` and their like.  Flink ``TimestampedCollector``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from flowlet.chain.operator_output import OperatorOutput
from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.datastream.state import State, StateDescriptor
from flowlet.datastream.user_functions.function import KeyedStateStore
from flowlet.datastream.user_functions.process_functions import ProcessAllWindowFunction, ProcessWindowFunction
from flowlet.datastream.window.evictors import Evictor
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import WindowAssigner
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import FlowletError
from flowlet.operators.user_function import KeyedStates, RuntimeContext
from flowlet.records import Chunk, Watermark, WatermarkStatus
from flowlet.timers.keyed_timer_service import KeyedTimerService
from flowlet.windows.window_states import WindowStates


class _WindowClock:
    """What all contexts tell but the window: the time, the metrics and the subtask."""

    def __init__(self, timers: KeyedTimerService, runtime: RuntimeContext) -> None:
        self._timers = timers
        self._runtime = runtime

    def get_current_processing_time(self) -> int:
        """What the clock shows."""
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._timers.current_watermark()

    def get_metric_group(self) -> Any:
        """The metrics of the operator."""
        return self._runtime.get_metrics_group()

    def get_runtime_context(self) -> Any:
        """The subtask, and the states of the key of the record."""
        return self._runtime


class AssignerContext(_WindowClock, WindowAssigner.WindowAssignerContext):
    """The clock, and the states of the current key."""


class EvictorContext(_WindowClock, Evictor.EvictorContext):
    """The clock."""


class TriggerContext(_WindowClock, Trigger.OnMergeContext):
    """The clock, the timers and the states of ``window`` and the current key."""

    def __init__(self, states: WindowStates, timers: KeyedTimerService, runtime: RuntimeContext) -> None:
        super().__init__(timers, runtime)
        self._states = states
        self.window: Any = None
        self.merged: Sequence[Any] = ()  # the windows that became ``window``, while that is told

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


class _PerWindowStates(KeyedStates):
    """The states of one key and one window; none if windows merge: one would take its states along into another one."""

    def __init__(self, states: WindowStates, *, merges: bool) -> None:
        self._states = states
        self._merges = merges

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        if self._merges:
            raise FlowletError("windows that merge, such as sessions, have no state per window; use global_state()")
        return self._states.state(descriptor)


class FunctionContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """The window that a window function evaluates."""

    def __init__(
        self, states: WindowStates, timers: KeyedTimerService, runtime: RuntimeContext, *, merges: bool
    ) -> None:
        self._states = states
        self._timers = timers
        self._runtime = runtime
        self._per_window = _PerWindowStates(states, merges=merges)
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


# Gets the key and the records, or what they were combined to.
WindowCall = Callable[[Any, Any, list[Any]], Iterable[Any] | None]


def has_context(spec: WindowSpec) -> bool:
    """Whether the function is called by ``process``, with a context."""
    return hasattr(spec.function, "process")


def window_call_of(spec: WindowSpec, context: FunctionContext) -> WindowCall:
    """What to call with the key, the window and what it holds; ``context``: of the window, set by the caller."""
    function = spec.function
    if function is None:
        return lambda _key, _window, elements: elements
    if has_context(spec):
        process = function.process
        if spec.is_keyed:
            return lambda key, _window, elements: process(key, context, elements)
        return lambda _key, _window, elements: process(context, elements)
    apply = function.apply
    if spec.is_keyed:
        return lambda key, window, elements: apply(key, window, elements)
    return lambda _key, window, elements: apply(window, elements)


def clears(spec: WindowSpec) -> bool:
    """Whether the function wants to know when a window ends."""
    if not has_context(spec):
        return False
    own = getattr(type(spec.function), "clear", None)
    return own not in (None, ProcessWindowFunction.clear, ProcessAllWindowFunction.clear)


_MAX_WAITING: Final = 1_000  # as many as a chunk holds


class WindowResults:
    """Gathers results, or passes them on at once; also the way of watermarks, which results must not miss."""

    __slots__ = ("_is_gathered", "_out", "_timestamps", "_values")

    def __init__(self, out: OperatorOutput) -> None:
        self._out = out
        self._is_gathered = out.is_gathered
        self._values: list[Any] = []
        self._timestamps: list[int] | None = []

    def __repr__(self) -> str:
        return f"<WindowResults: {len(self._values)} wait>"

    def emit(self, value: Any, timestamp: int | None) -> None:
        """Emit one result to the main output."""
        if not self._is_gathered or (type(value) not in UNCHANGING and not is_unchanging(value)):
            # A result that can change must be copied now, and a chained function called.
            self.flush()
            self._out.collect_each((value,), None if timestamp is None else (timestamp,), 1)
            return
        if timestamp is None:
            if self._timestamps:
                self.flush()
            self._timestamps = None
        else:
            if self._timestamps is None:
                self.flush()
                self._timestamps = []
            self._timestamps.append(timestamp)
        self._values.append(value)
        if len(self._values) >= _MAX_WAITING:
            self.flush()

    def emit_side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        """Emit one result to a side output."""
        self._out.emit_side(tag_id, value, timestamp)

    def flush(self) -> None:
        """Pass on what waits."""
        values, timestamps = self._values, self._timestamps
        self._values, self._timestamps = [], []
        if values:
            self._out.collect(Chunk(values, timestamps))

    def drain(self) -> None:
        """Pass on what waits, here and in the outputs behind."""
        self.flush()
        self._out.drain()

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark on behind the results."""
        self.flush()
        self._out.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on behind the results."""
        self.flush()
        self._out.emit_watermark_status(status)
