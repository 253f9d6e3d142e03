"""Triggers that go by the watermark or by the clock.

Side:   pure.
Units:  milliseconds.
Source: PyFlink ``pyflink.datastream.window``.
"""

from typing import Any, ClassVar, Self

from flowlet.common.time import Length, millis_of
from flowlet.datastream.states.state_descriptors import ReducingState, ReducingStateDescriptor
from flowlet.datastream.user_functions.argument_checks import T
from flowlet.datastream.window.triggers import QuietTrigger, Trigger, TriggerResult, reducing_state
from flowlet.datastream.window.windows import TimeWindow

__all__ = ["ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger", "EventTimeTrigger", "ProcessingTimeTrigger"]


class _TimeTrigger(QuietTrigger[T, TimeWindow]):
    """Has timers of the watermark or of the clock; unless a subclass overrides it, they wait for the window's end.

    ``_is_event_time``: whether timers are of the watermark.
    """

    _is_event_time: ClassVar[bool]

    def can_merge(self) -> bool:
        """Return True."""
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Wait for the end of the merged window, if it is not over."""
        now = ctx.get_current_watermark() if self._is_event_time else ctx.get_current_processing_time()
        if window.max_timestamp() > now:
            self._register(ctx, window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer of the window's end."""
        self._delete(ctx, window.max_timestamp())

    def _register(self, ctx: Trigger.TriggerContext, time: int) -> None:
        register = ctx.register_event_time_timer if self._is_event_time else ctx.register_processing_time_timer
        register(time)

    def _delete(self, ctx: Trigger.TriggerContext, time: int) -> None:
        delete = ctx.delete_event_time_timer if self._is_event_time else ctx.delete_processing_time_timer
        delete(time)


class EventTimeTrigger(_TimeTrigger[T]):
    """Evaluates a window when the watermark has passed its end, and at each record that comes later."""

    _is_event_time = True

    @staticmethod
    def create() -> "EventTimeTrigger[Any]":
        """The trigger."""
        return EventTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Wait for the end of the window, if it is not over."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        self._register(ctx, window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Evaluate the window at its end."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE


class ProcessingTimeTrigger(_TimeTrigger[T]):
    """Evaluates a window when the clock has passed its end."""

    _is_event_time = False

    @staticmethod
    def create() -> "ProcessingTimeTrigger[Any]":
        """The trigger."""
        return ProcessingTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Wait for the end of the window."""
        self._register(ctx, window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Evaluate the window."""
        return TriggerResult.FIRE


class _ContinuousTrigger(_TimeTrigger[T]):
    """Keeps the time of the next evaluation of each window: the next multiple of the interval, at most the window's
    end.
    """

    def __init__(self, interval: int | Length) -> None:
        self.interval = millis_of(interval, type(self).__name__, takes_number=True, at_least_ms=1)
        self.state_desc = ReducingStateDescriptor("fire-time", min)

    @classmethod
    def of(cls, interval: Length) -> Self:
        """A trigger for every ``interval``."""
        return cls(millis_of(interval, f"{cls.__name__}.of()"))

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Go on with the earliest time of the former windows."""
        ctx.merge_partitioned_state(self.state_desc)
        state = reducing_state(ctx, self.state_desc)
        time = state.get()
        if time is not None:
            self._register(ctx, time)

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Forget the time and its timer."""
        state = reducing_state(ctx, self.state_desc)
        time = state.get()
        if time is not None:
            self._delete(ctx, time)
            state.clear()

    def register_next_fire_timestamp(
        self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext, fire_timestamp_state: ReducingState[int]
    ) -> None:
        """Let the window be evaluated one interval after ``time``, but not after its end."""
        next_time = min(time + self.interval, window.max_timestamp())
        fire_timestamp_state.add(next_time)
        self._register(ctx, next_time)

    def _begin(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Register the first evaluation, unless one is registered."""
        state = reducing_state(ctx, self.state_desc)
        if state.get() is None:
            self.register_next_fire_timestamp(time - time % self.interval, window, ctx, state)

    def _is_due(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> bool:
        """Whether an evaluation is due at this time; if so, register the next one."""
        state = reducing_state(ctx, self.state_desc)
        if state.get() != time:
            return False
        state.clear()
        self.register_next_fire_timestamp(time, window, ctx, state)
        return True


class ContinuousEventTimeTrigger(_ContinuousTrigger[T]):
    """Evaluates a window again and again, whenever the watermark has passed a multiple of
    ``interval``, and at its end.
    """

    _is_event_time = True

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Wait for the next time, or evaluate a window that is over."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        self._register(ctx, window.max_timestamp())
        self._begin(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Evaluate the window at its times and at its end."""
        is_due = time == window.max_timestamp() or self._is_due(time, window, ctx)
        return TriggerResult.FIRE if is_due else TriggerResult.CONTINUE


class ContinuousProcessingTimeTrigger(_ContinuousTrigger[T]):
    """Evaluates a window again and again, whenever the clock has passed a multiple of ``interval``."""

    _is_event_time = False

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Wait for the next time."""
        self._begin(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Evaluate the window at its times."""
        return TriggerResult.FIRE if self._is_due(time, window, ctx) else TriggerResult.CONTINUE
