"""``OperatorHarness``: drives one operator as a task does, step by step, on the thread of the test.

``operator_of``: the operator that a job would use to run a user's function.  ``RecordingOutput``: keeps the elements
that an operator emits, in order.

Side:       any.
Invariants: nothing happens unless the test says so.  The operator uses the real mailbox and timer services; only the
            clock is manual, and coroutines run on the test's thread.  An emitted chunk has records, has as many
            timestamps as records or none, and is not changed afterwards.
Units:      timestamps in milliseconds.
Source:     Flink ``AbstractStreamOperatorTestHarness``, ``OneInputStreamOperatorTestHarness``,
            ``TwoInputStreamOperatorTestHarness``, ``ProcessFunctionTestHarnesses``; ``MockOutput`` and the output queue
            of ``AbstractStreamOperatorTestHarness``.
Absent:     chains of operators: use a ``MiniCluster`` for whole jobs.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from operator import is_
from typing import Any, Final, Self

from flowlet.async_io.async_calls import AsyncCalls
from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.operator_output import StandaloneOutput
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream import functions
from flowlet.datastream.output_tag import OutputTag
from flowlet.errors import JobGraphError
from flowlet.operators import process_operator
from flowlet.operators.co_functions import CoFlatMapOperator, CoMapOperator
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator
from flowlet.records import Chunk, ControlElement, LatencyMarker, Watermark, WatermarkStatus
from flowlet.serde.deploy_blobs import dump_chain, load_chain
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.testing.harness_environment import HarnessEnvironment, ProcessResources, SubtaskPlace
from flowlet.timers.keyed_timer_service import Timer, TimersByKeyGroup
from netstack.late import dataclass

_ASYNC_TIMEOUT_MS = 10_000
_ASYNC_CAPACITY = 100
_SIZE: Final = struct.Struct(">i")  # of the pickle in a snapshot


def operator_of(function: Any, *key_selectors: Any) -> StreamOperator:
    """The operator for a function object, such as ``operator_of(Alarm(), lambda reading: reading.sensor)``.

    Args:
        function: an object of a class of ``flowlet.datastream``, or an operator, which is returned.
        key_selectors: one for each input of a keyed stream; none for a stream without keys.

    Raises:
        JobGraphError: the function is of another class (a plain callable could be any function), or key selectors are
            missing.
    """
    if isinstance(function, StreamOperator):
        return function
    for kind, make, num_needed in _OPERATORS:
        if not isinstance(function, kind):
            continue
        if num_needed not in (None, len(key_selectors)):
            raise JobGraphError(
                f"a {type(function).__name__} needs {num_needed} key selectors, got {len(key_selectors)}"
            )
        return make(function, *key_selectors)
    raise JobGraphError(
        f"no operator is known for a {type(function).__name__}; pass an operator, such as MapOperator(function)"
    )


def _of_two_inputs(operator: Callable[[Any, tuple[Any, Any] | None], StreamOperator]) -> Callable[..., StreamOperator]:
    def make(function: Any, *key_selectors: Any) -> StreamOperator:
        if not key_selectors:
            return operator(function, None)
        first, second = key_selectors
        return operator(function, (first, second))

    return make


def _async_operator(function: Any, *_key_selectors: Any) -> StreamOperator:
    return AsyncWaitOperator(function, timeout_ms=_ASYNC_TIMEOUT_MS, capacity=_ASYNC_CAPACITY, is_ordered=True)


def _reduce_operator(function: Any, key_selector: Any) -> StreamOperator:
    return KeyedReduceOperator(key_selector, function)


# By the class of a function: the factory of its operator, and how many key selectors that needs; None: any number.
_OPERATORS: Final[tuple[tuple[type[Any], Callable[..., StreamOperator], int | None], ...]] = (
    (functions.MapFunction, process_operator.MapOperator, None),
    (functions.FlatMapFunction, process_operator.FlatMapOperator, None),
    (functions.FilterFunction, process_operator.FilterOperator, None),
    (functions.AsyncFunction, _async_operator, None),
    (functions.ProcessFunction, process_operator.ProcessOperator, None),
    (functions.CoMapFunction, _of_two_inputs(CoMapOperator), None),
    (functions.CoFlatMapFunction, _of_two_inputs(CoFlatMapOperator), None),
    (functions.CoProcessFunction, _of_two_inputs(process_operator.CoProcessOperator), None),
    (functions.KeyedProcessFunction, process_operator.ProcessOperator, 1),
    (functions.ReduceFunction, _reduce_operator, 1),
    (functions.KeyedCoProcessFunction, _of_two_inputs(process_operator.CoProcessOperator), 2),
)


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record and its timestamp, if it has one."""

    value: Any
    timestamp: int | None = None


OutputElement = StreamRecord | ControlElement


class RecordingOutput:
    """The ``Output`` of an operator under test.  Threading: the thread of the test."""

    def __init__(self) -> None:
        self.is_open = True  # if False, emitting is an error
        # With the tag of a side output; None: main output, control element.
        self._emitted: list[tuple[str | None, OutputElement]] = []
        self._chunks: list[tuple[Chunk, list[Any], list[int] | None]] = []

    def __repr__(self) -> str:
        return f"<RecordingOutput of {len(self._emitted)} elements>"

    # -- what the operator calls

    def collect(self, chunk: Chunk) -> None:
        """Keep records of the main output."""
        self.collect_side(None, chunk)

    def collect_side(self, tag_id: str | None, chunk: Chunk) -> None:
        """Keep records of a side output, or of the main output (None)."""
        assert len(chunk), "an empty chunk was emitted, which costs a call and does nothing"
        self._chunks.append((chunk, list(chunk.values), None if chunk.timestamps is None else list(chunk.timestamps)))
        for element in records_of(chunk):
            self._add(tag_id, element)

    def emit_control(self, element: ControlElement) -> None:
        """Keep a control element, which goes to all outputs."""
        self._add(None, element)

    def _add(self, tag_id: str | None, element: OutputElement) -> None:
        assert self.is_open, f"{element} was emitted after the operator was closed"
        self._emitted.append((tag_id, element))

    # -- what the test asks

    @property
    def elements(self) -> list[OutputElement]:
        """The main output: single records and control elements."""
        return self.elements_of(None)

    def elements_of(self, tag_id: str | None) -> list[OutputElement]:
        """One output as its readers see it: its records, and the control elements, which go to all outputs."""
        return [element for tag, element in self._emitted if tag == tag_id or not isinstance(element, StreamRecord)]

    def records_of(self, tag_id: str | None) -> list[StreamRecord]:
        """The records of a side output, or of the main output (None)."""
        return [element for tag, element in self._emitted if tag == tag_id and isinstance(element, StreamRecord)]

    @property
    def tag_ids(self) -> list[str]:
        """The tags of the side outputs with records, in the order of their first records."""
        return list(dict.fromkeys(tag for tag, _ in self._emitted if tag is not None))

    def clear(self) -> None:
        """Drop everything emitted so far."""
        self.check_invariants()
        self._emitted = []
        self._chunks = []

    def check_invariants(self) -> None:
        """Raise AssertionError if a chunk was changed after it was emitted."""
        for chunk, values, timestamps in self._chunks:
            is_same = (
                len(values) == len(chunk.values)
                and all(map(is_, values, chunk.values))
                and timestamps == chunk.timestamps
            )
            assert is_same, f"a chunk was changed after it was emitted: {values!r} became {chunk.values!r}"


def records_of(chunk: Chunk) -> Iterator[StreamRecord]:
    """The single records of a chunk."""
    if chunk.timestamps is None:
        return map(StreamRecord, chunk.values)
    return map(StreamRecord, chunk.values, chunk.timestamps)


class HarnessState(IntEnum):
    """The steps of the operator's life, in order."""

    CREATED = 0
    SET_UP = 1
    INITIALIZED = 2
    OPEN = 3
    FINISHED = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """An operator's state, keyed state, operator state and timers as bytes, as in a checkpoint."""

    payload: bytes


class OperatorHarness:
    """The common part of the harnesses; inputs are counted from 1.

    Threading: the thread that created it.
    Life cycle: ``setup`` -> ``initialize_state`` -> ``open`` -> any number of ``process_*`` -> ``end_input`` ->
        ``finish`` -> ``close``.  Each of the first three steps includes the ones before it.  ``with`` opens and closes
        the operator.

    Args:
        operator: an operator, or a function object of ``flowlet.datastream``.
        key_selectors: one for each input of a function on a keyed stream.
        place: the subtask as which it runs.
        now_ms: the start of the manual clock.
        is_shipped: whether the operator is pickled and unpickled first, as on its way to a TaskManager; then
            ``harness.operator`` runs, and not the test's own object.
        checks_leaks: whether ``close`` fails if threads or descriptors are left that did not exist before ``setup``.

    Raises:
        JobGraphError: there is no operator for the function.
        JobSubmissionError: it cannot be pickled; names the reason.
    """

    def __init__(
        self,
        operator: Any,
        *key_selectors: Any,
        place: SubtaskPlace | None = None,
        now_ms: int = 0,
        is_shipped: bool = True,
        checks_leaks: bool = True,
    ) -> None:
        made = operator_of(operator, *key_selectors)
        self.operator: StreamOperator = _ship(made) if is_shipped else made
        self.place = SubtaskPlace() if place is None else place
        self.environment = HarnessEnvironment(self.operator.name, self.place, now_ms)
        self.recorded = RecordingOutput()
        self.state = HarnessState.CREATED
        self._before: ProcessResources | None = None
        self._checks_leaks = checks_leaks

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.operator!r}, {self.state.name}, {self.environment!r}, {self.recorded!r}>"
        )

    def __enter__(self) -> Self:
        """Open the operator, unless the test did."""
        try:
            self.open()
        except BaseException:
            self._close_after_failure()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the operator; if the test failed, an error of the close becomes a note of the test's error."""
        if error is None:
            self.close()
            return
        for late in self._close_after_failure():
            error.add_note(f"while the harness was closed after it: {late}")

    # -- life

    def setup(self) -> None:
        """Give the operator its context and output."""
        if self.state < HarnessState.SET_UP:
            self._before = ProcessResources.now() if self._checks_leaks else None
            if isinstance(self.operator, AsyncWaitOperator) and self.operator.create_calls is AsyncCalls:
                self.operator.create_calls = self.environment.create_calls
            ctx = self.environment.ctx
            self.operator.setup(ctx, StandaloneOutput(self.operator.name, self.recorded, ctx.counters))
            self.state = HarnessState.SET_UP

    def initialize_state(self, snapshot: OperatorSnapshot | None = None) -> None:
        """Restore the ``snapshot`` of another harness; None: the operator starts for the first time."""
        if self.state >= HarnessState.INITIALIZED:
            raise RuntimeError(f"initialize_state() must be called once, before open(): {self!r}")
        self.setup()
        state = None
        if snapshot is not None:
            state, timers, keyed, by_subtask = loads_value(snapshot.payload[_SIZE.size :])
            self.environment.timers.restore(timers)
            if keyed is not None:
                self.environment.keyed_state.restore(keyed)
            if by_subtask is not None:
                self.environment.operator_state.restore(by_subtask)
        self.operator.initialize_state(state)
        self.state = HarnessState.INITIALIZED

    def open(self) -> None:
        """Open the operator; idempotent."""
        if self.state < HarnessState.INITIALIZED:
            self.initialize_state()
        if self.state < HarnessState.OPEN:
            self.state = HarnessState.OPEN  # before the call: if open() fails, close() must release what it took
            self.operator.open()

    def end_input(self, input_id: int = 1) -> None:
        """End input ``input_id``; mails run first, as in a task."""
        self._check_open()
        self.environment.run_mails()
        self.operator.end_input(input_id)

    def finish(self) -> None:
        """Stop timers, run the last mails and let the operator emit its last records.

        Call ``end_input`` for all inputs before.
        """
        self._check_open()
        self.environment.quiesce()
        self.operator.finish()
        self.state = HarnessState.FINISHED

    def close(self) -> None:
        """Close the operator and check that it leaves nothing behind; idempotent.

        It may be called without ``finish``, as when a job is cancelled.

        Raises:
            AssertionError: threads, descriptors or (after ``finish``) mails are left, or a chunk was changed after it
                was emitted.
        """
        if self.state is HarnessState.CLOSED:
            return
        was = self.state
        self.state = HarnessState.CLOSED
        mails = self.environment.mails.pending if was is HarnessState.FINISHED else []
        try:
            if was >= HarnessState.OPEN:
                self.operator.close()
        finally:
            self.recorded.is_open = False
            self.environment.close()
        self.recorded.check_invariants()
        left = [] if self._before is None else self._before.left_behind()
        left += [f"the mail {mail!r}" for mail in mails]
        assert not left, f"{self.operator!r} left behind: {', '.join(left)}"

    def _close_after_failure(self) -> list[str]:
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - becomes a note of the error that the caller has already
            return [f"{type(error).__name__}: {error}"]
        return []

    def _check_open(self) -> None:
        if self.state is not HarnessState.OPEN:
            raise RuntimeError(f"the operator is not open: {self!r}")

    # -- input

    def process_input_chunk(
        self, input_id: int, values: Iterable[Any], timestamps: Iterable[int] | None = None
    ) -> None:
        """Process records of one input, in one chunk.

        Raises:
            UserFunctionError: the user's function failed; names operator and record.
        """
        self._check_open()
        chunk = Chunk(list(values), None if timestamps is None else list(timestamps))
        self.operator.inputs()[input_id - 1].process_chunk(chunk)
        self._wait_for_room()

    def process_input_watermark(self, input_id: int, timestamp: int) -> None:
        """Process a watermark of one input."""
        self._check_open()
        self.operator.inputs()[input_id - 1].process_control(Watermark(timestamp))
        self._wait_for_room()

    def process_input_watermark_status(self, input_id: int, status: WatermarkStatus) -> None:
        """Process an idle or active status of one input."""
        self._check_open()
        self.operator.inputs()[input_id - 1].process_control(status)
        self._wait_for_room()

    def process_input_latency_marker(self, input_id: int, marker: LatencyMarker) -> None:
        """Process a latency marker of one input."""
        self._check_open()
        self.operator.inputs()[input_id - 1].process_control(marker)

    def _wait_for_room(self) -> None:
        """Run mails, and let time pass, until the operator has room: a task processes no input before."""
        while not self.operator.available_future().is_done:
            self.environment.executor.yield_()

    # -- time and mails

    @property
    def processing_time(self) -> int:
        """The time of the manual clock."""
        return self.environment.clock.current_time_ms()

    def set_processing_time(self, now_ms: int) -> None:
        """Move the manual clock; timers that are due then fire as mails, at this time."""
        self.environment.set_time(now_ms)

    def advance_processing_time(self, duration_ms: int) -> None:
        """Move the manual clock forwards."""
        self.set_processing_time(self.processing_time + duration_ms)

    @property
    def pending_mails(self) -> list[str]:
        """The pending mails as text."""
        return self.environment.mails.pending

    def run_mails(self) -> int:
        """Run due timers, coroutines and mails until nothing is left to do; return how many mails ran."""
        return self.environment.run_mails()

    @property
    def event_time_timers(self) -> list[Timer]:
        """The event-time timers of all keys, in the order of time."""
        return self._timers_where("event_time")

    @property
    def processing_time_timers(self) -> list[Timer]:
        """The processing-time timers of all keys, in the order of time; without timers that have no key."""
        return self._timers_where("processing_time")

    def _timers_where(self, domain: str) -> list[Timer]:
        groups = self.environment.timers.snapshot().values()
        timers = [
            timer for services in groups for of_service in services.values() for timer in getattr(of_service, domain)
        ]
        return sorted(timers, key=lambda timer: timer.timestamp)

    @property
    def num_event_time_timers(self) -> int:
        """The number of event-time timers."""
        return len(self.event_time_timers)

    @property
    def num_processing_time_timers(self) -> int:
        """The number of processing-time timers that have a key."""
        return len(self.processing_time_timers)

    # -- output

    @property
    def output(self) -> list[OutputElement]:
        """The elements of the main output, in order: ``StreamRecord``, ``Watermark``, ``WatermarkStatus``,
        ``LatencyMarker``.
        """
        return self.recorded.elements

    @property
    def records(self) -> list[StreamRecord]:
        """The records of the main output."""
        return self.recorded.records_of(None)

    @property
    def values(self) -> list[Any]:
        """The values of the main output's records."""
        return [record.value for record in self.records]

    @property
    def watermarks(self) -> list[int]:
        """The timestamps of the emitted watermarks."""
        return [element.timestamp for element in self.output if isinstance(element, Watermark)]

    def side_output(self, tag: OutputTag | str) -> list[StreamRecord]:
        """The records of a side output."""
        return self.recorded.records_of(tag.tag_id if isinstance(tag, OutputTag) else tag)

    def take_output(self) -> list[OutputElement]:
        """Return ``output``, and clear all outputs."""
        elements = self.output
        self.recorded.clear()
        return elements

    # -- checkpoints

    def snapshot(self, checkpoint_id: int = 1) -> OperatorSnapshot:
        """State, keyed state, operator state and timers, for ``initialize_state`` of another harness."""
        self._check_open()
        self.operator.prepare_snapshot_pre_barrier(checkpoint_id)
        self.operator.snapshot_functions(checkpoint_id, self.processing_time)
        state = self.operator.snapshot_state(checkpoint_id)
        timers: TimersByKeyGroup = self.environment.timers.snapshot()
        keyed = self.environment.keyed_state.snapshot()
        by_subtask = self.environment.operator_state.snapshot()
        parts = (
            state() if callable(state) else state,
            timers,
            None if keyed is None else keyed(),
            None if by_subtask is None else by_subtask(),
        )
        data = dumps_value(parts)
        return OperatorSnapshot(_SIZE.pack(len(data)) + data)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the operator that a checkpoint is complete."""
        self.operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the operator that a checkpoint has failed."""
        self.operator.notify_checkpoint_aborted(checkpoint_id)


def _ship(operator: StreamOperator) -> StreamOperator:
    (chained,) = load_chain(dump_chain([ChainedOperator(operator)], operator.name), operator.name)
    return chained.operator
