"""Operators that call a function for each record: process, with a context, map, filter and flat_map.

Hot path.  Per record the user's call; of a process function one or two stores into the context, and per result one look
whether it is a side output's (bench: programs); of flat_map a loop over its results (bench: wordcount, programs).

Side:       task.
Invariants: while a user's method runs, key, timestamp and context are those of its record; outside, the context refuses
            to answer.  Records keep their timestamps; results have the timestamp of their record or timer.  A generator
            is resumed when its last result went through the chain.  Results of timers and windows leave before the
            watermark, the barrier or the mark that follows them; a chained function gets one before the next is made.
Source:     Flink ``ProcessOperator``, ``KeyedProcessOperator``, ``CoProcessOperator``, ``KeyedCoProcessOperator``,
            ``ProcessFunction.Context``, ``OnTimerContext``, ``StreamMap``, ``StreamFilter``, ``StreamFlatMap``,
            ``TimestampedCollector``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from flowlet.chain.chunking_output import MAX_WAITING
from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.time_domain import TimeDomain
from flowlet.datastream.timerservice import TimerService
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.user_function import (
    FunctionOperator,
    RecordOperator,
    TwoInputRecordOperator,
    UserFunction,
    UserFunctionOperator,
    write_current_key,
)
from flowlet.records import MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus
from flowlet.serde.type_serializer import preview
from flowlet.timers.keyed_timer_service import NO_KEY, Timer
from netstack.log_lines import LogLines

_log = LogLines(__name__)
_TIMERS = "user-timers"  # Flink's name of the timers of process functions


class ProcessContext:
    """The context that a user's method gets besides its record; one object for all records."""

    __slots__ = ("_domain", "_is_active", "_key_context", "_timers", "record_timestamp")

    def __init__(self, timers: TimerService, operator: UserFunctionOperator) -> None:
        self._timers = timers
        self._key_context = operator.ctx.key_context
        self._is_active = False
        self.record_timestamp: int | None = None
        self._domain = TimeDomain.EVENT_TIME

    def enter(self, timestamp: int | None, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """Answer from now on, for a timer or a run of records, whose timestamps are stored one by one."""
        self.record_timestamp = timestamp
        self._domain = domain
        self._is_active = True

    def leave(self) -> None:
        """Refuse to answer from now on: the timer or the run of records has ended."""
        self._is_active = False

    @contextmanager
    def firing(self, timestamp: int, domain: TimeDomain) -> Iterator[None]:
        """Answer for a timer that fires, then as before: a record may be in process, whose function emitted the
        watermark.
        """
        before = self._is_active, self.record_timestamp, self._domain
        self.enter(timestamp, domain)
        try:
            yield
        finally:
            self._is_active, self.record_timestamp, self._domain = before

    def timestamp(self) -> int | None:
        """The timestamp of the record or timer; None: it has none."""
        self._check()
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        """Clock and timers."""
        return self._timers

    def get_current_key(self) -> Any:
        """The key of the record or timer."""
        # The test stands here, too: most keyed functions ask at every record, and this spares them a call.
        if not self._is_active:
            self._check()
        key = self._key_context.current_key
        return None if key is NO_KEY else key

    def time_domain(self) -> TimeDomain:
        """The time domain of the timer."""
        self._check()
        return self._domain

    def _check(self) -> None:
        if not self._is_active:
            raise FlowletError("the context of a process function can only be used while its record is processed")


class ProcessFunctionOperator(UserFunctionOperator):
    """An operator around a process function: its context, its timers and their results."""

    current_watermark = MIN_TIMESTAMP
    _is_batch: bool
    _function: UserFunction

    def open(self) -> None:
        """Make context and timers, then open the function."""
        is_keyed = self.state_refusal is None
        service = self.ctx.timer_service(_TIMERS, self, is_batch=self._is_batch) if is_keyed else None
        self._context = self._make_context(TimerService(self, service))
        self._results = SingleResults(self)
        super().open()

    def _make_context(self, timers: TimerService) -> ProcessContext:
        return ProcessContext(timers, self)

    def process_watermark(self, watermark: Watermark) -> None:
        """Fire timers, then pass it on."""
        self.current_watermark = watermark.timestamp
        super().process_watermark(watermark)

    def on_event_time(self, timer: Timer) -> None:
        """The watermark reached a timer."""
        self._on_timer(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> None:
        """The clock reached a timer."""
        self._on_timer(timer, TimeDomain.PROCESSING_TIME)

    def _on_timer(self, timer: Timer, domain: TimeDomain) -> None:
        on_timer = self._function.method("on_timer")
        if on_timer is None:
            return
        self.ctx.attention.check()
        # As in Flink, records that a timer of the clock emits have no timestamp.
        timestamp = timer.timestamp if domain is TimeDomain.EVENT_TIME else None
        try:
            with self._context.firing(timer.timestamp, domain):
                try:
                    results = on_timer(timer.timestamp, self._context)
                    iterator = iter(() if results is None else results)
                except Exception as error:
                    raise self._timer_failure(timer, error) from error
                self._results.emit_each(iterator, timestamp, partial(self._timer_failure, timer))
        finally:
            self.output.drain()

    def _timer_failure(self, timer: Timer, error: Exception) -> UserFunctionError:
        error.add_note(f"raised by on_timer() at {timer.timestamp} for the key {preview(timer.key)}")
        return UserFunctionError(self.name, self.ctx.subtask, None)

    def _write_call(
        self, ctx: ProcessContext, method: Any, code: LoopCode, record: str, timestamp: str | None, key: str | None
    ) -> None:
        """Write the statements that call a method with record and context, and take each result through the chain."""
        context = code.bind(ctx, "context")
        # Once per run of records, not per record: within a run only the timestamp changes.
        code.at_start(f"{context}.enter(None)")
        code.at_end(f"{context}.leave()")
        if timestamp is not None:
            code.line(f"{context}.record_timestamp = {timestamp}")
        if key is not None:
            write_current_key(code, self.ctx, key)
        results = code.variable("results")
        call = f"{code.bind(method, 'process')}({record}, {context})"
        code.line(f"{results} = {call}", Blame(self.name, self.ctx.subtask, record))
        write_results(self, code, results, record, timestamp)


def write_results(
    operator: UserFunctionOperator, code: LoopCode, results: str, record: str, timestamp: str | None
) -> None:
    """Write the statements that take each result of a process function, if there are any, through the chain or to its
    side output.

    Args:
        operator: emits them.
        code: the loop.
        results: the variable with the return value of the function.
        record: the variable with the record that an error is about.
        timestamp: the variable with the timestamp of the results; None: they have none.
    """
    result = code.variable("v")
    blame = Blame(operator.name, operator.ctx.subtask, record, results, _advice)
    with code.block(f"if {results} is not None:"):
        operator.output.write_items(
            code, result, results, blame, lambda: _write_result(operator, code, result, timestamp)
        )


def _write_result(operator: UserFunctionOperator, code: LoopCode, result: str, timestamp: str | None) -> None:
    tag, plain = code.bind(OutputTag, "OutputTag"), code.bind(UNCHANGING, "unchanging")
    is_pair = f"type({result}) is {code.bind(tuple, 'tuple')} and len({result}) == {_PAIR}"
    has_tag = f"type({result}[0]) not in {plain} and isinstance({result}[0], {tag})"
    texts = TextsForTags(operator)
    if texts.ids:
        # Only here, where a side output is read: a test of the type takes the place of another one, and texts are
        # looked up.
        ids, look = code.bind(texts.ids, "ids"), code.bind(texts.look_at, "look_at")
        has_tag = (
            f"(({result}[0] in {ids} and {look}({result})) if type({result}[0]) is {code.bind(str, 'str')} else "
            f"({has_tag}))"
        )
    with code.block(f"if {is_pair} and {has_tag}:"):
        id_, value = code.variable("tag"), code.variable("v")
        code.line(f"{id_}, {value} = {result}[0].tag_id, {result}[1]")
        operator.output.write_side(code, id_, value, timestamp)
    with code.block("else:"):
        operator.output.write(code, result, timestamp)
        operator.output.write_limit(code)


_PAIR = 2
_MAX_GATHERED: Final = 1_000  # as many as a chunk of a source holds


class TextsForTags:
    """Warns, once, of records whose first field is the id of a side output that is read, where its ``OutputTag`` was
    meant.

    Threading: task thread.
    """

    def __init__(self, operator: UserFunctionOperator) -> None:
        self._operator = operator
        self.ids = operator.output.text_ids
        """The ids that are looked for: none after the warning."""

    def look_at(self, result: Any) -> bool:
        """Warn if the result is such a record.  Always returns False: it goes to the main output in any case."""
        if (
            self.ids
            and type(result) is tuple
            and len(result) == _PAIR
            and type(result[0]) is str
            and result[0] in self.ids
        ):
            self.ids.clear()
            _log.warning(
                "a tuple went to the main output whose first field is the id of a side output, as a text: to emit into "
                "the side output, "
                "yield its OutputTag and the value",
                operator=self._operator.name,
                side_output=result[0],
                record=preview(result),
            )
        return False


class SingleResults:
    """Emits the results of timers and windows one by one; also the way of watermarks, which results must not miss.

    ``gathers``: results wait where only chunks leave the chain behind the operator, which is two appends for each; the
        operator drains them.
    """

    __slots__ = ("_attention", "_is_gathered", "_out", "_texts", "_timestamps", "_values")

    def __init__(self, operator: UserFunctionOperator, *, gathers: bool = False) -> None:
        self._out = operator.output
        self._attention = operator.ctx.attention
        self._texts = TextsForTags(operator)
        self._is_gathered = gathers and operator.output.is_gathered
        self._values: list[Any] = []
        self._timestamps: list[int] | None = []

    def __repr__(self) -> str:
        return f"<SingleResults: {len(self._values)} wait>"

    def emit_each(
        self, results: Iterator[Any], timestamp: int | None, failure: Callable[[Exception], Exception]
    ) -> None:
        """Emit results, to the main output or a side output, each before the next one is made.

        If the iterator raises an error, raises the one that ``failure`` makes of it.
        """
        emit, texts, attention = self._emit, self._texts, self._attention
        is_due = False
        while True:
            if is_due or attention:
                attention.attend(self.drain)
            try:
                result = next(results)
            except StopIteration:
                return
            except Exception as error:
                raise failure(error) from error
            is_due = bool(attention)  # the loop behind attends to it before this result
            if type(result) is tuple and len(result) == _PAIR and isinstance(result[0], OutputTag):
                self._out.emit_side(result[0].tag_id, result[1], timestamp)
            else:
                if texts.ids:
                    texts.look_at(result)
                emit(result, timestamp)

    def _emit(self, value: Any, timestamp: int | None) -> None:
        if not self._is_gathered or (type(value) not in UNCHANGING and not is_unchanging(value)):
            # A result that can change must be copied now, and a chained function called.
            if self._values:
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
        if len(self._values) >= _MAX_GATHERED:
            self.flush()

    def flush(self) -> None:
        """Pass on the results that wait here."""
        # New lists, because the chunk keeps these two, and the operators behind may hold it for longer.
        values, timestamps = self._values, self._timestamps
        self._values, self._timestamps = [], []
        if values:
            self._out.collect(Chunk(values, timestamps))

    def drain(self) -> None:
        """Pass on the results that wait here and in the outputs behind."""
        self.flush()
        self._out.drain()

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Pass a watermark or a status on behind the results."""
        self.flush()
        self._out.emit_control(element)


def _advice(results: Any) -> TypeError:
    what = f"{preview(results)} of type {type(results).__name__}"
    return TypeError(
        "a process function yields its results or returns a list of them ([] or None for none, [x] for one); got "
        f"{what}"
    )


class ProcessOperator(ProcessFunctionOperator, RecordOperator):
    """Runs a ``ProcessFunction``, or a ``KeyedProcessFunction`` when there is a key selector.

    Args:
        function: an object with ``process_element(value, ctx)`` and perhaps ``on_timer(timestamp, ctx)``.
        key_selector: a callable, or an object with ``get_key(value)``; None for a stream without keys.
        is_batch: timers fire at the end of the input, key by key (``RuntimeExecutionMode.BATCH``).
        name: for people.
    """

    def __init__(
        self, function: Any, key_selector: Any = None, *, is_batch: bool = False, name: str = "Process"
    ) -> None:
        super().__init__(name, key_selector)
        self._is_batch = is_batch
        self._function = self._add(function, "process_element")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Call the function and take its results through the chain."""
        if self._used_keys is not None:
            key = self._used_keys.write_key(code, record, key)
        self._write_call(self._context, self._function.call, code, record, timestamp, key)


class CoProcessOperator(ProcessFunctionOperator, TwoInputRecordOperator):
    """Runs a ``CoProcessFunction``, or a ``KeyedCoProcessFunction`` when there are key selectors.

    Args:
        function: an object with ``process_element1(value, ctx)`` and ``process_element2(value, ctx)``.
        key_selectors: one for each input, or None.
        is_batch: as for ``ProcessOperator``.
        name: for people.
    """

    def __init__(
        self,
        function: Any,
        key_selectors: tuple[Any, Any] | None = None,
        *,
        is_batch: bool = False,
        name: str = "Co-Process",
    ) -> None:
        super().__init__(key_selectors, name)
        self._is_batch = is_batch
        self._function = self._add(function, "process_element1", "process_element2")

    def open(self) -> None:
        """Make context, timers and the loops, then open the function."""
        super().open()
        write = partial(self._write_call, self._context)
        self._loops = [self._loop_of("process_element1", write), self._loop_of("process_element2", write)]


class MapOperator(FunctionOperator):
    """Emits one record for each record.

    Args:
        function: a callable, or an object with ``map(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    method = "map"
    title = "Map"

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that replace the record by the function's result."""
        self._write_key(code, record, key)
        result = code.variable("v")
        call = f"{code.bind(self.function.call, 'map')}({record})"
        code.line(f"{result} = {call}", Blame(self.name, self.ctx.subtask, record))
        self.output.write(code, result, timestamp, count=code.counts.get(id(self)))


class FilterOperator(FunctionOperator):
    """Passes on the records for which the function returns a true value.

    Args:
        function: a callable, or an object with ``filter(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    method = "filter"
    title = "Filter"

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that pass the record on if the function is true."""
        self._write_key(code, record, key)
        head = f"if {code.bind(self.function.call, 'filter')}({record}):"
        with code.block(head, Blame(self.name, self.ctx.subtask, record)):
            self.output.write(code, record, timestamp)


class FlatMapOperator(FunctionOperator):
    """Any number of records for each.

    An iterator is not read further before its last result went through the chain, so it may give more than fits into
    memory.

    Args:
        function: a callable, or an object with ``flat_map(value)``; returns an iterable or is a generator function.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    method = "flat_map"
    title = "Flat Map"

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that pass each result on."""
        self._write_key(code, record, key)
        call = f"{code.bind(self.function.call, 'flat_map')}({record})"
        _write_flat_map(self, code, call, record, lambda result: self.output.write(code, result, timestamp))


_END: Final = object()


def _write_flat_map(operator: RecordOperator, code: LoopCode, call: str, record: str, write: Any) -> None:
    """Write the statements that take each result of a flat_map function through the chain.

    A list is read in one loop.  Another iterable may never end, so it is read in runs of ``MAX_WAITING``, and the
    waiting results are passed on after each run.
    """
    results, rest, piece, result = (code.variable(prefix) for prefix in ("results", "rest", "piece", "v"))
    end_of_piece, cut = code.bind(_END, "END"), code.bind(islice, "islice")
    blame = Blame(operator.name, operator.ctx.subtask, record, results, _flat_map_advice)
    code.line(f"{results} = {call}", Blame(operator.name, operator.ctx.subtask, record))
    with code.block(f"if type({results}) is list:"):
        code.line(f"{piece}, {rest} = {results}, None")
    with code.block("else:"):
        code.line(f"{rest} = iter({results})", blame)
        code.line(f"{piece} = {cut}({rest}, {MAX_WAITING})")

    def end() -> None:
        operator.output.write_limit(code)
        with code.block(f"if {rest} is None or {result} is {end_of_piece}:"):
            code.line("break")
        code.line(f"{result} = {end_of_piece}")

    code.line(f"{result} = {end_of_piece}")
    operator.output.write_each(
        code, result, piece, (f"{rest} is not None", f"{cut}({rest}, {MAX_WAITING})"), blame, lambda: write(result), end
    )
    code.line(f"{results} = {rest} = None")


def _flat_map_advice(result: Any) -> TypeError:
    """The error for a result that cannot be iterated over."""
    what = "None" if result is None else f"{preview(result)} of type {type(result).__name__}"
    return TypeError(
        f"a flat_map function yields its results or returns a list of them ([] for none, [x] for one); got {what}"
    )
