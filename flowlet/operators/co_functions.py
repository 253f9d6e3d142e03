"""``map`` and ``flat_map`` of two streams, functions of a stream and a broadcast stream, and the sorting of one stream
under names.

Hot path.  As ``process_operator``.

Side:   task.
Source: Flink ``CoStreamMap``, ``CoStreamFlatMap``; ``CoBroadcastWithNonKeyedOperator``,
        ``CoBroadcastWithKeyedOperator``; ``DirectedOutput`` with its ``OutputSelector``: here an operator that emits
        each record once into every selection that asks for one of its names.
Rules:  in BATCH mode the broadcast stream is read first (``StreamOperator.inputs_read_last``), unless exchanges are
        pipelined.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.datastream.state import MapStateDescriptor, StateDescriptor
from flowlet.datastream.timerservice import TimerService
from flowlet.errors import FlowletError
from flowlet.graph.transformation import selection_tag
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.process_operator import ProcessContext, ProcessFunctionOperator
from flowlet.operators.user_function import RecordOperator, TwoInputRecordOperator, is_state_used, write_current_key
from flowlet.records import Chunk
from flowlet.state.state_backends import OperatorBroadcastState, ReadOnlyOperatorBroadcastState, keyed_kind
from flowlet.timers.keyed_timer_service import NO_KEY


class _CoOperator(TwoInputRecordOperator):
    """Calls one method for the records of each input.

    Args:
        function: an object with both methods.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people; None: ``title``.
    """

    methods: ClassVar[tuple[str, str]]
    title: ClassVar[str]

    def __init__(self, function: Any, key_selectors: tuple[Any, Any] | None = None, *, name: str | None = None) -> None:
        super().__init__(key_selectors, self.title if name is None else name)
        self._function = self._add(function, *self.methods)

    def open(self) -> None:
        """Open the function; from now on it is known whether it uses keyed state."""
        super().open()
        if self.state_refusal is None and not is_state_used(self.ctx):
            # A selector is a call per record, and without keyed state no one asks for the key.
            self._key_inputs = [None, None]
        self._loops = [self._loop_of(name, self._write) for name in self.methods]

    def _write(self, method: Any, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        if key is not None:
            write_current_key(code, self.ctx, key)
        self._write_call(code, method, record, timestamp)

    @abstractmethod
    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        """Write the statements that call the method with the record and pass its results on."""


class CoMapOperator(_CoOperator):
    """One record for each record of either input; none where the method returns None, as in PyFlink.

    Args:
        function: an object with ``map1(value)`` and ``map2(value)``.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people.
    """

    methods = ("map1", "map2")
    title = "Co-Map"

    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        result = code.variable("v")
        code.line(f"{result} = {code.bind(method, 'map')}({record})", Blame(self.name, self.ctx.subtask, record))
        with code.block(f"if {result} is not None:"):
            self.output.write(code, result, timestamp)


class CoFlatMapOperator(_CoOperator):
    """Any number of records for each record of either input.

    Args:
        function: an object with ``flat_map1(value)`` and ``flat_map2(value)``, which return an iterable or None.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people.
    """

    methods = ("flat_map1", "flat_map2")
    title = "Co-Flat Map"

    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        results, result = code.variable("results"), code.variable("v")
        blame = Blame(self.name, self.ctx.subtask, record)
        code.line(f"{results} = {code.bind(method, 'flat_map')}({record}) or ()", blame)

        def write() -> None:
            self.output.write(code, result, timestamp)
            self.output.write_limit(code)

        self.output.write_items(code, result, results, blame, write)


class _StatesContext(ProcessContext):
    """A context with broadcast states; those of records of the other stream, and of its timers, cannot be changed."""

    __slots__ = ("_operator", "_states")

    def __init__(
        self, timers: TimerService, operator: "BroadcastProcessOperator", states: dict[str, OperatorBroadcastState]
    ) -> None:
        super().__init__(timers, operator)
        self._operator = operator
        self._states = states

    def current_processing_time(self) -> int:
        """The time of the task's clock, in milliseconds since 1970."""
        return self._operator.ctx.processing_time_service.current_time_ms()

    def current_watermark(self) -> int:
        """The event time that both streams have reached."""
        return self._operator.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> OperatorBroadcastState:
        """The broadcast state with the descriptor's name.  Raises FlowletError: ``broadcast()`` did not get it."""
        self._check()
        found = self._states.get(state_descriptor.name)
        if found is None:
            known = ", ".join(map(repr, self._states))
            raise FlowletError(
                f"there is no broadcast state {state_descriptor.name!r}: broadcast() got the descriptors of {known}"
            )
        return found


class _BroadcastContext(_StatesContext):
    """The context of a record of the broadcast stream."""

    __slots__ = ()

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        """Call ``function(key, state)`` for every key of this subtask that has such a state.

        Raises:
            FlowletError: the other stream is not keyed, or see ``RuntimeContext.get_state``.
        """
        self._check()
        operator = self._operator
        if operator.state_refusal is not None:
            raise FlowletError(f"operator {operator.name!r}: {operator.state_refusal}")
        kind = keyed_kind(state_descriptor)
        if kind is None:
            raise FlowletError(
                f"apply_to_keyed_state() needs the descriptor of a keyed state, got {state_descriptor!r}"
            )
        backend = operator.ctx.keyed_state_backend
        state = backend.state(state_descriptor, kind)
        try:
            # A list made before the loop: the function may clear states of keys.
            for key in backend.keys_of(state_descriptor.name):
                self._key_context.current_key = key
                function(key, state)
        finally:
            # Else the last key would stay current: a record of the broadcast stream has none, and must reach no states.
            self._key_context.current_key = NO_KEY


class BroadcastProcessOperator(ProcessFunctionOperator, TwoInputRecordOperator):
    """Runs a ``BroadcastProcessFunction``, or a ``KeyedBroadcastProcessFunction`` when there is a key selector.

    Input 2 is the broadcast stream.

    Args:
        function: an object with ``process_element(value, ctx)``, ``process_broadcast_element(value, ctx)`` and perhaps
            ``on_timer``.
        descriptors: of the broadcast states.
        key_selector: of the stream that is not broadcast; None: it is not keyed.
        is_batch: as for ``ProcessOperator``.
        name: for people.
    """

    _broadcast_context: ProcessContext  # set by open

    def __init__(
        self,
        function: Any,
        descriptors: Sequence[MapStateDescriptor],
        key_selector: Any = None,
        *,
        is_batch: bool = False,
        name: str = "Co-Process-Broadcast",
    ) -> None:
        super().__init__((key_selector, None), name)
        self._is_batch = is_batch
        self._descriptors = tuple(descriptors)
        self._function = self._add(function, "process_element", "process_broadcast_element")

    def open(self) -> None:
        """Make states, contexts, timers and the loops, then open the function."""
        super().open()
        self._loops = [
            self._loop_of("process_element", partial(self._write_call, self._context)),
            self._loop_of("process_broadcast_element", partial(self._write_call, self._broadcast_context)),
        ]

    def _make_context(self, timers: TimerService) -> ProcessContext:
        states = {each.name: self.ctx.operator_state_backend.get_broadcast_state(each) for each in self._descriptors}
        self._broadcast_context = _BroadcastContext(timers, self, states)
        # The views share the entries: what the broadcast side writes is seen by the next record, without a copy.
        views: dict[str, OperatorBroadcastState] = {
            name: ReadOnlyOperatorBroadcastState(name, state.entries, state.declared) for name, state in states.items()
        }
        return _StatesContext(timers, self, views)

    def process_input_chunk(self, input_id: int, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Take records of the input through the chain; see ``TwoInputRecordOperator``."""
        if input_id > 1:  # records of the broadcast stream have no key; the last record of the other input left its own
            self.ctx.key_context.current_key = NO_KEY
        return super().process_input_chunk(input_id, chunk, interrupts)


class SplitOperator(RecordOperator):
    """Sorts records under names; the main output gets all of them.

    Args:
        function: a callable, or an object with ``select(value)``, that returns the names of a record.
        selections: the sets of names that other operators read; each is the side output ``selection_tag(names)``.
        name: for people.
    """

    def __init__(self, function: Any, selections: Sequence[frozenset[str]], *, name: str = "Split") -> None:
        super().__init__(name)
        self._function = self._add(function, "select")
        self._selections = {selection_tag(names): names for names in selections}

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Emit the record into every selection that asks for one of its names, once."""
        names, blame = code.variable("names"), Blame(self.name, self.ctx.subtask, record)
        selected = f"{code.bind(self._function.call, 'select')}({record})"
        code.line(f"{names} = {selected}", blame)
        code.line(f"{names} = {code.bind(_names, 'names_of')}({names})", blame)
        for tag_id, wanted in self._selections.items():
            with code.block(f"if not {code.bind(wanted, 'wanted')}.isdisjoint({names}):", blame):
                self.output.write_side(code, code.bind(tag_id, "tag"), record, timestamp)
        self.output.write(code, record, timestamp, count=code.counts.get(id(self)))


def _names(selected: Any) -> Iterable[str]:
    if isinstance(selected, str):
        raise TypeError(f"an output selector returns a collection of names, got the text {selected!r}")
    return selected or ()
