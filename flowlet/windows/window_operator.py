"""``WindowOperator``: puts the records of each key into windows, and evaluates these when their triggers say so.

Per record, in the order of the stream: the assigner, the state of each window, the trigger.  ``aligned_windows`` does
less where only the watermark can evaluate a window.

Side:       task.
Invariants: the state of a window is kept until its end and the allowed lateness are over.  A record whose windows are
            all over goes to the side output of late records, or is dropped and counted.  A result has the timestamp of
            the record or timer that evaluated its window.
Source:     Flink ``WindowOperator``, ``EvictingWindowOperator``; PyFlink ``WindowOperator``, whose timestamps of
            results these are.
"""

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from flowlet.chain.loop_code import LoopCode, RecordLoop
from flowlet.chain.record_shape import apart
from flowlet.columns.column import are_unchanging, is_unchanging
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.datastream.states.runtime_context import RuntimeContext
from flowlet.datastream.window.triggers import CountTrigger, PurgingTrigger, Trigger, TriggerResult
from flowlet.datastream.window.window_assigners import (
    NO_TIMESTAMP,
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    check_has_timestamp,
)
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.datastream.window.windows import MAX_WINDOW_TIMESTAMP
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.keys.exact_keys import PLAIN_TYPES, exact_key
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.process_operator import SingleResults
from flowlet.operators.user_function import KeyedInput, UserFunction, UserFunctionOperator, write_current_key
from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus
from flowlet.serde.type_serializer import preview
from flowlet.timers.keyed_timer_service import Timer
from flowlet.windows.aligned_windows import AlignedWindowing
from flowlet.windows.window_states import (
    MergingWindowSet,
    PerWindowStates,
    SeparateWindows,
    WindowContents,
    WindowContext,
    WindowStates,
    clears,
    window_call_of,
)

_NO_STATE: Final = (
    "the function that combines the records of a window cannot use keyed state; use a ProcessWindowFunction behind it"
)
_TIMERS: Final = "window-timers"  # Flink's name
_MERGING_SET: Final = "merging-window-set"  # Flink's name
_SEPARATE: Final = SeparateWindows()


class WindowOperator(UserFunctionOperator):
    """Windows of a keyed stream.

    Args:
        spec: of the windows.
        key_selector: a callable, or an object with ``get_key(value)``.
        is_batch: timers fire at the end of each key (``RuntimeExecutionMode.BATCH``).
        name: for people.
    """

    state_refusal: str | None = None
    takes_chunks = True

    def __init__(self, spec: WindowSpec, key_selector: Any, *, is_batch: bool = False, name: str = "Window") -> None:
        super().__init__(name)
        self._spec = spec
        self.takes_keyed_records = spec.is_aligned
        self._is_batch = is_batch
        self._keys = KeyedInput(self, key_selector)
        self._combining: UserFunction | None = None
        if spec.combine is not None:
            self._combining = self._add(spec.combine, "add" if spec.aggregates else "reduce")
        if spec.function is not None:
            self._add(spec.function, "process" if hasattr(spec.function, "process") else "apply")

    def open(self) -> None:
        """Make states and contexts, then open the functions."""
        spec, ctx = self._spec, self.ctx
        self._results = SingleResults(self, gathers=True)
        self._assigner, self._trigger = spec.assigner, _purging_if_full(spec)
        self._is_event_time = spec.assigner.is_event_time()
        self._timers = ctx.timer_service(_TIMERS, self, is_batch=self._is_batch)
        timers = self._timers
        self._register_timer, self._delete_timer = (
            (timers.register_event_time_timer, timers.delete_event_time_timer)
            if self._is_event_time
            else (timers.register_processing_time_timer, timers.delete_processing_time_timer)
        )
        # The time at which the state of a window is dropped.
        self._cleanup_time = spec.cleanup_time if self._is_event_time else operator.methodcaller("max_timestamp")
        self._states = WindowStates(ctx)
        self._contents = WindowContents(spec, self._states)
        self._merging_state = None
        if spec.merges:
            self._merging_state = ctx.keyed_state_backend.state(
                ValueStateDescriptor(_MERGING_SET), ValueStateDescriptor
            )
        per_window = PerWindowStates(self._states, merges=spec.merges)
        self._context = WindowContext(self._states, self._timers, RuntimeContext(ctx, None), per_window)
        self._call = window_call_of(spec, self._context)
        self._clears = clears(spec)
        self._aligned = AlignedWindowing(spec, self._contents, timers, ctx) if spec.is_aligned else None
        self._loop = RecordLoop(self.name, self._write_in_chunk, self.output.loop_ends, ctx.attention)
        super().open()
        self._clean = ctx.keyed_state_backend.clean if ctx.keyed_state_backend.cleans_at_records else None

    def _refusal_of(self, function: UserFunction) -> str | None:
        return _NO_STATE if function is self._combining else None

    # -- records

    def process_chunk(self, chunk: Chunk) -> None:
        """Put each record into its windows."""
        self._process(chunk, self.ctx.attention)

    def process_some(self, chunk: Chunk) -> int:
        """Put records into their windows until a mail waits; returns how many."""
        return self._process(chunk, self.ctx.interrupts)

    def _process(self, chunk: Chunk, interrupts: Interrupts) -> int:
        if not len(chunk):
            return 0
        keys, exact = self._keys.keys_and_exact(chunk)
        try:
            if self._aligned is None or not chunk.has_timestamps:
                return self._process_each(chunk.values, chunk.timestamps, keys, interrupts)
            num_done = None
            if exact is keys and self._clean is None:
                num_done = self._aligned.try_add(chunk, keys, interrupts)
            if num_done is None:
                pairs = zip(keys, exact, strict=True)
                num_done = self._loop.run(chunk.records(), chunk.timestamps, len(keys), pairs, interrupts)
            return num_done
        finally:
            self._results.flush()

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that put the record into its windows, behind a ``key_by`` in its chain."""
        key = self._keys.write_key(code, record, key)
        if self._aligned is None or timestamp is None:
            code.line(self._process_text(code, record, timestamp, key))
            return
        exact = code.variable("exact")
        is_plain = f"type({key}) in {code.bind(PLAIN_TYPES, 'PLAIN')}"
        code.line(f"{exact} = {key} if {is_plain} else {code.bind(exact_key, 'exact_key')}({key})")
        self._write_aligned(code, record, timestamp, key, exact)

    def _write_in_chunk(self, code: LoopCode, record: str, timestamp: str | None, pair: str | None) -> None:
        """Write the statements for one record of a chunk; its key is a pair of the user's key and the exact key."""
        assert timestamp is not None, "chunks without timestamps have no aligned windows"
        key = code.variable("key")
        exact = code.variable("exact")
        code.line(f"{key}, {exact} = {pair}")
        self._write_aligned(code, record, timestamp, key, exact)

    def _write_aligned(self, code: LoopCode, record: str, timestamp: str, key: str, exact: str) -> None:
        assert self._aligned is not None, "the caller checked that"
        if self._clean is not None:
            write_current_key(code, self.ctx, key)
        process = self._process_text(code, record, timestamp, key)
        self._aligned.write_record(code, record, timestamp, key, exact, process)

    def _process_text(self, code: LoopCode, record: str, timestamp: str | None, key: str) -> str:
        return f"{code.bind(self._process_one, 'process_one')}({record}, {timestamp}, {key})"

    def _process_one(self, value: Any, timestamp: int | None, key: Any) -> None:
        """Process a single record; its results leave before the next record."""
        try:
            self._process_each([value], None if timestamp is None else [timestamp], [key], self.ctx.attention)
        finally:
            self._results.flush()

    def _process_each(
        self, values: Sequence[Any], timestamps: Sequence[int] | None, keys: Sequence[Any], interrupts: Interrupts
    ) -> int:
        context, clean = self.ctx.key_context, self._clean
        stamps: Iterable[int | None] = repeat(None) if timestamps is None else timestamps
        records = iter(values)
        for value, timestamp, key in zip(records, stamps, keys, strict=False):
            context.current_key = key
            if clean is not None:
                clean()
            self._process_record(value, timestamp)
            if interrupts and (num_left := interrupts.leave(records, self._results.drain)) is not None:
                return len(values) - num_left
        return len(values)

    def _process_record(self, value: Any, timestamp: int | None) -> None:
        is_late = True
        windows = self._window_set()
        assigned = self._assigned(value, timestamp)
        is_shared = len(assigned) > 1 and not is_unchanging(value)
        for new in assigned:
            window = self._joined(windows, new, value)
            if self._is_over(window):
                windows.retire(window)
                continue
            is_late = False
            if self._aligned is not None:
                self._aligned.write(self.ctx.key_context.current_key, window)
            self._add_to(window, windows.state_window(window), apart(value) if is_shared else value, timestamp)
        self._keep(windows)
        if is_late:
            self._drop_late(value, timestamp)

    def _joined(self, windows: MergingWindowSet | SeparateWindows, new: Any, value: Any) -> Any:
        """The window that a new window became a part of, or the new window itself."""
        try:
            return windows.add(new, self._on_merge)
        except FlowletError:
            raise
        except Exception as error:
            raise self._record_failure(value) from error

    def _assigned(self, value: Any, timestamp: int | None) -> Collection[Any]:
        """The windows of a record; if there are several, each needs its own copy of a record that can change."""
        try:
            stamp = NO_TIMESTAMP if timestamp is None else timestamp
            if self._is_event_time:
                check_has_timestamp(stamp)
            found: Iterable[Any] = self._assigner.assign_windows(value, stamp, self._context)
            return found if isinstance(found, Collection) else list(found)
        except Exception as error:
            raise self._record_failure(value) from error

    def _add_to(self, window: Any, state_window: Any, value: Any, timestamp: int | None) -> None:
        try:
            self._states.enter(state_window)
            self._contents.add(value, timestamp)
            self._context.current_window = window
            stamp = NO_TIMESTAMP if timestamp is None else timestamp
            result = self._trigger.on_element(value, stamp, window, self._context)
        except Exception as error:
            raise self._record_failure(value) from error
        # An empty window that was to be evaluated gets no timer for its cleanup.
        if result is TriggerResult.CONTINUE or self._obey(result, window, state_window, timestamp):
            self._register_cleanup(window)

    def _obey(
        self, result: TriggerResult, window: Any, state_window: Any, timestamp: int | None, *, is_end: bool = False
    ) -> bool:
        """Evaluate and purge a window as a trigger said; False: it was to be evaluated, and is empty.

        ``is_end``: the window ends, so its contents are not kept.
        """
        is_kept = not (is_end or result.is_purge())
        has_contents = not result.is_fire() or self._evaluate(window, state_window, timestamp, is_kept=is_kept)
        if result.is_purge():
            self._states.enter(state_window)
            self._contents.clear()
        return has_contents

    def _drop_late(self, value: Any, timestamp: int | None) -> None:
        """Drop a record that went into no window, or emit it as late; it is late if its timestamp is.

        One that is within the lateness comes here only if its assigner had no window for it, as between windows whose
        slide is longer than their size: a window is over after all of its records are late.
        """
        stamp = NO_TIMESTAMP if timestamp is None else timestamp
        if not self._is_event_time or stamp + self._spec.allowed_lateness_ms > self._timers.current_watermark():
            self.ctx.counters.num_unassigned_records_dropped += 1
            return
        if self._spec.late_tag_id is None:
            self.ctx.counters.num_late_records_dropped += 1
        else:
            self.output.emit_side(self._spec.late_tag_id, value, timestamp)

    # -- evaluation

    def _evaluate(self, window: Any, state_window: Any, timestamp: int | None, *, is_kept: bool) -> bool:
        """Call the window function and emit its results; False: the window is empty.

        ``is_kept``: the window keeps its contents, so the function, or the consumers of the contents if there is no
            function, get copies of the values that can change.
        """
        self._states.enter(state_window)
        contents = self._called(window, self._contents.get)
        if contents is None:
            return False
        self._context.current_window = window
        if self._spec.evictor is not None:
            self._evaluate_evicting(window, state_window, contents, timestamp)
        else:
            self._emit_each(window, self._copied(window, contents) if is_kept else contents, timestamp)
        return True

    def _copied(self, window: Any, values: list[Any]) -> list[Any]:
        """The values, as copies where they can change."""
        return values if are_unchanging(values) else self._called(window, lambda: list(map(apart, values)))

    def _evaluate_evicting(self, window: Any, state_window: Any, elements: list[Any], timestamp: int | None) -> None:
        evictor, context, size = self._spec.evictor, self._context, len(elements)
        assert evictor is not None, "the caller checked that"
        self._called(window, lambda: evictor.evict_before(elements, size, window, context))
        # Copies: the elements stay in the state, and functions must not change them.
        own = self._copied(window, [each.value for each in elements])
        values = self._called(window, lambda: self._combined(own))
        if values is not None:
            self._emit_each(window, values, timestamp)
        self._called(window, lambda: evictor.evict_after(elements, size, window, context))
        self._states.enter(state_window)
        self._contents.replace(elements)

    def _combined(self, values: list[Any]) -> list[Any] | None:
        """The records that were kept, or the result of combining them; None: there is no record to combine."""
        spec = self._spec
        if spec.combine is None:
            return values
        if spec.aggregates:
            accumulator = spec.combine.create_accumulator()
            for value in values:
                accumulator = spec.combine.add(value, accumulator)
            return [spec.combine.get_result(accumulator)]
        return [functools.reduce(getattr(spec.combine, "reduce", spec.combine), values)] if values else None

    def _emit_each(self, window: Any, contents: list[Any], timestamp: int | None) -> None:
        key = self.ctx.key_context.current_key
        results = self._called(window, lambda: self._call(key, window, contents))
        if results is None:
            return
        iterator = self._called(window, lambda: iter(results))
        self._results.emit_each(iterator, timestamp, functools.partial(self._window_failure, window))

    # -- timers

    def on_event_time(self, timer: Timer) -> None:
        """The watermark reached a timer."""
        self.ctx.attention.check()
        if self._aligned is not None and not self._spec.allowed_lateness_ms:
            self._on_end(timer)
        else:
            self._on_timer(timer, self._trigger.on_event_time, is_event_time=True)

    def _on_end(self, timer: Timer) -> None:
        """End an aligned window without lateness: emit its results, and forget its contents."""
        assert self._aligned is not None, "the caller checked that"
        window, aligned = timer.namespace, self._aligned
        if timer.timestamp != window.max_timestamp():
            return  # Restored from a program with another trigger or lateness.
        contents = self._called(window, lambda: aligned.take(timer.key, window))
        self._context.current_window = window
        if contents is not None:
            self._emit_each(window, contents, timer.timestamp)
        self._clear_function(window)

    def on_processing_time(self, timer: Timer) -> None:
        """The clock reached a timer."""
        try:
            self._on_timer(timer, self._trigger.on_processing_time, is_event_time=False)
        finally:
            self._results.drain()

    def _on_timer(self, timer: Timer, ask: Callable[[int, Any, Any], TriggerResult], *, is_event_time: bool) -> None:
        window = timer.namespace
        windows = self._window_set()
        state_window = windows.state_window(window)
        if state_window is None:
            return  # A timer that the trigger did not delete when the window ended.
        if self._aligned is not None:
            self._aligned.write(timer.key, window)
        self._context.current_window = window
        result = self._called(window, lambda: ask(timer.timestamp, window, self._context))
        is_end = is_event_time is self._is_event_time and timer.timestamp == self._cleanup_time(window)
        if result is not TriggerResult.CONTINUE:
            self._obey(result, window, state_window, timer.timestamp, is_end=is_end)
        if is_end:
            self._end(window, state_window)
            windows.retire(window)
            self._keep(windows)

    def process_watermark(self, watermark: Watermark) -> None:
        """Fire the timers up to the watermark, then pass it on."""
        assert self.ctx.timers is not None, "open() got a timer service"
        if self._aligned is not None:
            self._aligned.watermark = watermark.timestamp
        self.ctx.timers.pass_watermark(watermark, self._results)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on."""
        assert self.ctx.timers is not None, "open() got a timer service"
        self.ctx.timers.pass_status(status, self._results)

    def process_mark(self, mark: CompletionMark) -> None:
        """Pass a completion mark on behind the results."""
        self._results.drain()
        super().process_mark(mark)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit the results of timers whose watermark is not passed on yet."""
        self._results.drain()

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Write the cells of windows to the state, and let the functions save their data in their states."""
        if self._aligned is not None:
            self._aligned.write_all()
        super().snapshot_functions(checkpoint_id, timestamp_ms)

    def finish(self) -> None:
        """Emit the results that wait."""
        self._results.drain()

    # -- the life of windows

    def _is_over(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self._timers.current_watermark()

    def _register_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time != MAX_WINDOW_TIMESTAMP:  # else it never ends
            self._register_timer(window, time)

    def _end(self, window: Any, state_window: Any) -> None:
        """Forget the contents and the states of a window."""
        self._states.enter(state_window)
        self._contents.clear()
        self._context.current_window = window
        self._called(window, lambda: self._trigger.clear(window, self._context))
        self._clear_function(window)

    def _clear_function(self, window: Any) -> None:
        if self._clears:
            self._context.current_window = window
            self._called(window, lambda: self._spec.function.clear(self._context))

    # -- windows that become one

    def _window_set(self) -> MergingWindowSet | SeparateWindows:
        if self._merging_state is None:
            return _SEPARATE
        return MergingWindowSet(self._spec.assigner, dict(self._merging_state.value() or ()))  # type: ignore[arg-type]  # checked by merges

    def _keep(self, windows: MergingWindowSet | SeparateWindows) -> None:
        if isinstance(windows, MergingWindowSet) and windows.is_changed:
            assert self._merging_state is not None, "these windows merge"
            self._merging_state.update(tuple(windows.mapping.items()) or None)

    def _on_merge(self, result: Any, merged: list[Any], state_window: Any, merged_states: list[Any]) -> None:
        self._check_merge(result)
        context = self._context
        context.current_window, context.merged = result, merged
        self._called(result, lambda: self._trigger.on_merge(result, context))
        context.merged = ()
        for former in merged:
            context.current_window = former
            self._called(former, lambda former=former: self._trigger.clear(former, context))  # type: ignore[misc]  # the loop's variable
            self._delete_timer(former, self._cleanup_time(former))
        self._contents.merge(state_window, merged_states)

    def _check_merge(self, result: Any) -> None:
        now = self._timers.current_watermark() if self._is_event_time else self._timers.current_processing_time()
        if self._cleanup_time(result) <= now:
            clock = "watermark" if self._is_event_time else "present time"
            raise FlowletError(f"windows became {result!r}, which ends before the {clock} {now}; they must not shrink")

    def check_invariants(self) -> None:
        """Assert the invariants of the cells, which are outside of the state."""
        if self._aligned is not None:
            self._aligned.check_invariants()

    # -- errors

    def _called(self, window: Any, call: Callable[[], Any]) -> Any:
        """Call the user's code and return its result; an error names the operator, the key and the window."""
        try:
            return call()
        except Exception as error:
            raise self._window_failure(window, error) from error

    def _record_failure(self, value: Any) -> UserFunctionError:
        return UserFunctionError(self.name, self.ctx.subtask, preview(value))

    def _window_failure(self, window: Any, error: Exception) -> UserFunctionError:
        error.add_note(f"raised for {window!r} of the key {preview(self.ctx.key_context.current_key)}")
        return UserFunctionError(self.name, self.ctx.subtask, None)


def _purging_if_full(spec: WindowSpec) -> Trigger[Any, Any]:
    """The trigger of the windows.  A full window of a number of records gets no more, so its records are purged when it
    is evaluated.

    Flink keeps them for ever, for such a window has no end.
    """
    assigner, trigger = spec.assigner, spec.trigger
    counts = (
        type(assigner) in (CountTumblingWindowAssigner, CountSlidingWindowAssigner) and type(trigger) is CountTrigger
    )
    if counts and trigger._window_size == assigner._window_size:  # type: ignore[attr-defined]  # their types were checked
        return PurgingTrigger(trigger)
    return trigger
