"""Process functions: per record, with a context.

Hot path.  Per record: the user's call, one or two stores into the context, and what ``collector`` does; chunks go on as a whole.

Side:       task.
Invariants: while a user's method runs, key, timestamp and context are those of its record; outside, the context refuses to answer.
            Results have the timestamp of their record or timer.
Source:     Flink ``ProcessOperator``, ``KeyedProcessOperator``, ``CoProcessOperator``, ``KeyedCoProcessOperator``,
            ``ProcessFunction.Context``, ``OnTimerContext``.
Absent:     keyed state.
"""

from collections.abc import Callable
from itertools import repeat
from typing import Any

from flowlet.datastream.time_domain import TimeDomain
from flowlet.datastream.timerservice import TimerService
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.collector import Collector
from flowlet.operators.key_selection import KeyedInput
from flowlet.operators.multi_input import TwoInputStreamOperator
from flowlet.operators.time_services import NO_KEY, InternalTimer, InternalTimerService
from flowlet.operators.user_function import UserFunction, UserFunctionOperator, last_of, preview
from flowlet.records import MIN_TIMESTAMP, Chunk, Watermark

_TIMERS = "user-timers"  # Flink's name of the timers of process functions


class ProcessContext:
    """What a user's method is given besides its record; one object for all records."""

    __slots__ = ("_domain", "_is_active", "_key_context", "_timers", "record_timestamp")

    def __init__(self, timers: TimerService, operator: UserFunctionOperator) -> None:
        self._timers = timers
        self._key_context = operator.ctx.key_context
        self._is_active = False
        self.record_timestamp: int | None = None
        self._domain = TimeDomain.EVENT_TIME

    def enter(self, timestamp: int | None, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """A timer, or a run of records (whose timestamps are stored one by one), begins."""
        self.record_timestamp = timestamp
        self._domain = domain
        self._is_active = True

    def leave(self) -> None:
        """It ended."""
        self._is_active = False

    def timestamp(self) -> int | None:
        """Of the record or timer."""
        self._check()
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        """Clock and timers."""
        return self._timers

    def get_current_key(self) -> Any:
        """The key of the record or timer."""
        self._check()
        key = self._key_context.current_key
        return None if key is NO_KEY else key

    def time_domain(self) -> TimeDomain:
        """Of the timer."""
        self._check()
        return self._domain

    def _check(self) -> None:
        if not self._is_active:
            raise FlowletError("the context of a process function can only be used while its record is processed")


class KeyedTimers(TimerService):
    """The timers of the current key."""

    def __init__(self, service: InternalTimerService) -> None:
        self._service = service

    def current_processing_time(self) -> int:
        """What the clock shows."""
        return self._service.current_processing_time()

    def current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._service.current_watermark()

    def register_processing_time_timer(self, timestamp: int) -> None:
        """For the current key."""
        self._service.register_processing_time_timer(None, timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """For the current key."""
        self._service.register_event_time_timer(None, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Of the current key."""
        self._service.delete_processing_time_timer(None, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Of the current key."""
        self._service.delete_event_time_timer(None, timestamp)


class UnkeyedTimers(TimerService):
    """Tells the time; there are no timers without a key."""

    def __init__(self, operator: "_ProcessOperator") -> None:
        self._operator = operator

    def current_processing_time(self) -> int:
        """What the clock shows."""
        return self._operator.ctx.processing_time_service.current_time_ms()

    def current_watermark(self) -> int:
        """The event time that the operator has reached."""
        return self._operator.current_watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Refused."""
        self._refuse()

    def register_event_time_timer(self, timestamp: int) -> None:
        """Refused."""
        self._refuse()

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Refused."""
        self._refuse()

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Refused."""
        self._refuse()

    def _refuse(self) -> None:
        raise FlowletError("timers need a keyed stream: call key_by(...) before process(...)")


class _ProcessOperator(UserFunctionOperator):
    """What operators around process functions share."""

    current_watermark = MIN_TIMESTAMP
    _is_keyed: bool
    _function: UserFunction

    def open(self) -> None:
        """Make context and timers, then open the function."""
        timers = KeyedTimers(self.ctx.timer_service(_TIMERS, self)) if self._is_keyed else UnkeyedTimers(self)
        self._context = ProcessContext(timers, self)
        self._collector = Collector(self.output, copies=self.ctx.copies_results)
        super().open()

    def process_watermark(self, watermark: Watermark) -> None:
        """Fire timers, then pass it on."""
        self.current_watermark = watermark.timestamp
        super().process_watermark(watermark)

    def on_event_time(self, timer: InternalTimer) -> None:
        """The watermark reached a timer."""
        self._on_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: InternalTimer) -> None:
        """The clock reached a timer."""
        self._on_timer(timer, TimeDomain.PROCESSING_TIME)

    def _on_timer(self, timer: InternalTimer, domain: TimeDomain) -> None:
        on_timer = self._function.method("on_timer")
        if on_timer is None:
            return
        context = self._context
        context.enter(timer.timestamp, domain)
        try:
            # As in Flink, what a timer of the clock emits has no timestamp.
            self._collector.collect(on_timer(timer.timestamp, context), timer.timestamp if domain is TimeDomain.EVENT_TIME else None)
        except Exception as error:
            error.add_note(f"raised by on_timer() at {timer.timestamp} for the key {preview(timer.key)}")
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error
        finally:
            context.leave()
        self._collector.flush()

    def _process(self, function: Callable[..., Any], chunk: Chunk, keys: list[Any] | None) -> None:
        """Call ``function(record, context)`` for each record."""
        context, collect, key_context = self._context, self._collector.collect, self.ctx.key_context
        values = chunk.values
        records = iter(values)
        timestamps = repeat(None) if chunk.timestamps is None else chunk.timestamps
        context.enter(None)
        try:
            if keys is None:
                for record, context.record_timestamp in zip(records, timestamps):  # noqa: B905 - of the same length, or endless
                    collect(function(record, context), context.record_timestamp)
            else:
                for record, context.record_timestamp, key_context.current_key in zip(records, timestamps, keys):  # noqa: B905 - as above
                    collect(function(record, context), context.record_timestamp)
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, preview(last_of(values, records))) from error
        finally:
            context.leave()
        self._collector.flush()


class ProcessOperator(_ProcessOperator):
    """Runs a ``ProcessFunction``, or a ``KeyedProcessFunction`` when there is a key selector.

    Args:
        function: an object with ``process_element(value, ctx)`` and perhaps ``on_timer(timestamp, ctx)``.
        key_selector: a callable, or an object with ``get_key(value)``; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Process") -> None:
        super().__init__(name)
        self._is_keyed = key_selector is not None
        self._keys = KeyedInput(self, key_selector) if self._is_keyed else None
        self._function = self._add(function, "process_element")

    def set_key_context(self, record: object) -> None:
        """Make the record's key the current one."""
        if self._keys is not None:
            self.ctx.key_context.current_key = self._keys.keys([record])[0]

    def process_chunk(self, chunk: Chunk) -> None:
        """Call the function for each record."""
        self._process(self._function.call, chunk, None if self._keys is None else self._keys.keys_of(chunk))


class CoProcessOperator(_ProcessOperator, TwoInputStreamOperator):
    """Runs a ``CoProcessFunction``, or a ``KeyedCoProcessFunction`` when there are key selectors.

    Args:
        function: an object with ``process_element1(value, ctx)`` and ``process_element2(value, ctx)``.
        key_selectors: one for each input, or None.
        name: for people.
    """

    def __init__(self, function: Any, key_selectors: tuple[Any, Any] | None = None, *, name: str = "Co-Process") -> None:
        super().__init__(name)
        self._is_keyed = key_selectors is not None
        self._keys = None if key_selectors is None else tuple(KeyedInput(self, selector) for selector in key_selectors)
        self._function = self._add(function, "process_element1", "process_element2")

    def process_chunk1(self, chunk: Chunk) -> None:
        """Call the function for each record of the first input."""
        self._process_input(0, "process_element1", chunk)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Call the function for each record of the second input."""
        self._process_input(1, "process_element2", chunk)

    def _process_input(self, index: int, method: str, chunk: Chunk) -> None:
        function = self._function.method(method)
        assert function is not None, "checked when it was made"
        self._process(function, chunk, None if self._keys is None else self._keys[index].keys_of(chunk))
