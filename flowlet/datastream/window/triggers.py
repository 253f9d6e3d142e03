"""Triggers, which decide when a window is evaluated.

Side:   pure.  An instance is pickled, and called on the thread of one task for the windows of all keys.
Source: PyFlink ``pyflink.datastream.window``.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic

from flowlet.datastream.states.state_descriptors import ReducingState, ReducingStateDescriptor, State, StateDescriptor
from flowlet.datastream.user_functions.argument_checks import T, W
from flowlet.datastream.user_functions.window_clock import WindowClock
from flowlet.datastream.window.windows import CountWindow, GlobalWindow, Window

__all__ = ["CountTrigger", "NeverTrigger", "PurgingTrigger", "Trigger", "TriggerResult"]


class TriggerResult(Enum):
    """A decision about a window: whether it is evaluated, and whether its records are dropped (afterwards)."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether the window is evaluated."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether the records of the window are dropped."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides at each record and at timers what happens to a window of one key.

    One object serves all keys and windows, so a trigger keeps nothing in its attributes: whatever it must remember goes
    into ``ctx.get_partitioned_state``.
    """

    class TriggerContext(WindowClock):
        """The clock, the timers and the states of a window and the current key."""

        def register_processing_time_timer(self, time: int) -> None:
            """Call ``on_processing_time`` for the window and key once the clock shows ``time``."""
            self._timers.register_processing_time_timer(self.current_window, time)

        def register_event_time_timer(self, time: int) -> None:
            """Call ``on_event_time`` for the window and key once the watermark reaches ``time``."""
            self._timers.register_event_time_timer(self.current_window, time)

        def delete_processing_time_timer(self, time: int) -> None:
            """Forget a timer of the window and key."""
            self._timers.delete_processing_time_timer(self.current_window, time)

        def delete_event_time_timer(self, time: int) -> None:
            """Forget a timer of the window and key."""
            self._timers.delete_event_time_timer(self.current_window, time)

        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
            """A state of the window and key."""
            self._states.enter(self.current_window)
            state: State = self._states.state(state_descriptor)
            return state

    class OnMergeContext(TriggerContext):
        """``TriggerContext``, while windows become one."""

        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the states of the former windows into the state of the new one.

            Raises:
                FlowletError: it is a state whose values cannot be put together: a ``ValueState`` or a ``MapState``.
            """
            if self.merged:
                self._states.merge(state_descriptor, self.current_window, self.merged)

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: "Trigger.TriggerContext") -> TriggerResult:
        """Decide after a record was added to the window; a record without a timestamp has -2**63."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: "Trigger.TriggerContext") -> TriggerResult:
        """Decide when a timer of the clock fires."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: "Trigger.TriggerContext") -> TriggerResult:
        """Decide when a timer of the watermark fires."""

    def can_merge(self) -> bool:
        """Whether ``on_merge`` can follow windows that become one, as sessions do."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: "Trigger.OnMergeContext") -> None:
        """Merge the states of windows that became ``window``; then ``clear`` is called for each former window."""

    @abstractmethod
    def clear(self, window: W, ctx: "Trigger.TriggerContext") -> None:
        """Delete the timers and states of a window that ends."""


class QuietTrigger(Trigger[T, W]):
    """A trigger without timers; a subclass overrides the methods of timers that it has."""

    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue: the trigger has no timers."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue: the trigger has no timers."""
        return TriggerResult.CONTINUE


def reducing_state(ctx: Trigger.TriggerContext, descriptor: ReducingStateDescriptor) -> ReducingState[int]:
    """The reducing state of the window that a descriptor describes."""
    state = ctx.get_partitioned_state(descriptor)
    assert isinstance(state, ReducingState), "its descriptor says so"
    return state


def add_counts(first: int, second: int) -> int:
    """The sum of two numbers."""
    return first + second


class CountTrigger(QuietTrigger[T, CountWindow]):
    """Evaluates a window at every ``window_size``-th record."""

    def __init__(self, window_size: int) -> None:
        self._window_size = window_size
        self._count_state_descriptor = ReducingStateDescriptor("count", add_counts)

    @staticmethod
    def of(window_size: int) -> "CountTrigger[Any]":
        """A trigger for every ``window_size``-th record."""
        return CountTrigger(window_size)

    def on_element(self, element: T, timestamp: int, window: CountWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Count the record."""
        count = reducing_state(ctx, self._count_state_descriptor)
        count.add(1)
        if count.get() < self._window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """Return True: the numbers of records are added."""
        return True

    def on_merge(self, window: CountWindow, ctx: Trigger.OnMergeContext) -> None:
        """Add the numbers of records; the next record shows whether that is enough."""
        ctx.merge_partitioned_state(self._count_state_descriptor)

    def clear(self, window: CountWindow, ctx: Trigger.TriggerContext) -> None:
        """Forget the number of records."""
        reducing_state(ctx, self._count_state_descriptor).clear()


class NeverTrigger(QuietTrigger[T, GlobalWindow]):
    """Never evaluates a window; the default of ``GlobalWindows``."""

    def on_element(
        self, element: T, timestamp: int, window: GlobalWindow, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Continue: the window is never evaluated."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: GlobalWindow, ctx: Trigger.OnMergeContext) -> None:
        """Do nothing: the trigger has no state."""

    def clear(self, window: GlobalWindow, ctx: Trigger.TriggerContext) -> None:
        """Do nothing: the trigger has no state."""


class PurgingTrigger(Trigger[T, Window]):
    """Does what another trigger does, and drops the records of a window after each evaluation."""

    def __init__(self, nested_trigger: Trigger[Any, Any]) -> None:
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger[Any, Any]) -> "PurgingTrigger[Any]":
        """A trigger that purges when ``nested_trigger`` fires."""
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: T, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """The decision of the nested trigger, with a purge after each evaluation."""
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """The decision of the nested trigger, with a purge after each evaluation."""
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """The decision of the nested trigger, with a purge after each evaluation."""
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Clear the state of the nested trigger."""
        self.nested_trigger.clear(window, ctx)

    def can_merge(self) -> bool:
        """Whether the nested trigger can merge."""
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Let the nested trigger merge its states."""
        self.nested_trigger.on_merge(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result
