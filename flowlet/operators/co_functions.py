"""``map`` and ``flat_map`` of two streams, functions of a stream and a broadcast stream, and the sorting of one stream
under names.

Hot path.  As ``transform``.

Side:   task.
Source: Flink ``CoStreamMap``, ``CoStreamFlatMap``; ``CoBroadcastWithNonKeyedOperator``,
        ``CoBroadcastWithKeyedOperator``; ``DirectedOutput`` with its ``OutputSelector``: here an operator that emits
        each record once into every selection that asks for one of its names.
Rules:  in BATCH mode the broadcast stream is read first (``StreamOperator.inputs_read_last``), unless exchanges are
        pipelined.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.record_loop import RecordLoop
from flowlet.chain.stream_operator import OperatorContext, Output
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flowlet.datastream.timerservice import TimerService
from flowlet.errors import FlowletError
from flowlet.graph.transformation import selection_tag
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.keyed_operator import KeyedInput, is_state_used, write_current_key
from flowlet.operators.multiple_input_operator import TwoInputStreamOperator
from flowlet.operators.process_operator import ProcessContext, ProcessFunctionOperator
from flowlet.operators.user_function import RecordOperator, UserFunctionOperator
from flowlet.records import Chunk
from flowlet.state.state_backends import OperatorBroadcastState, ReadOnlyOperatorBroadcastState
from flowlet.timers.time_api import NO_KEY


class _CoOperator(UserFunctionOperator, TwoInputStreamOperator):
    """Calls one method for the records of each input.

    Args:
        function: an object with both methods.
        methods: their names.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people.
    """

    def __init__(
        self, function: Any, methods: tuple[str, str], key_selectors: tuple[Any, Any] | None, name: str
    ) -> None:
        super().__init__(name)
        self._keys = None if key_selectors is None else tuple(KeyedInput(self, selector) for selector in key_selectors)
        self._used_keys: tuple[KeyedInput, ...] | None = None  # set by open, if the function uses keyed state
        if key_selectors is not None:
            self.state_refusal = None
        self._methods = methods
        self._function = self._add(function, *methods)

    def setup(self, ctx: OperatorContext, output: Output) -> None:
        """Tell the operator where it is and where its results go."""
        super().setup(ctx, output)
        self._loops = [self._loop_of(name) for name in self._methods]

    def open(self) -> None:
        """Open the function; from now on it is known whether it uses keyed state."""
        super().open()
        if self._keys is not None and is_state_used(self.ctx):
            self._used_keys = self._keys

    def process_chunk1(self, chunk: Chunk) -> None:
        """Take each record of the first input through the chain."""
        self._process_input(0, chunk, None)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Take each record of the second input through the chain."""
        self._process_input(1, chunk, None)

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """As ``process_input_chunk``, until a mail waits."""
        return self._process_input(input_id - 1, chunk, self.ctx.interrupts)

    def _process_input(self, index: int, chunk: Chunk, interrupts: Interrupts | None) -> int:
        keys = None if self._used_keys is None else self._used_keys[index].keys_of(chunk)
        return self._loops[index].run(chunk.records(), chunk.timestamps, len(chunk), keys, interrupts)

    def _loop_of(self, name: str) -> RecordLoop:
        method = self._function.method(name)
        assert method is not None, "checked when it was made"

        def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
            if key is not None:
                write_current_key(code, self.ctx, key)
            self._write_call(code, method, record, timestamp)

        return RecordLoop(f"{self.name}, {name}", write, self.out.loop_ends, self.ctx.attention)

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

    def __init__(self, function: Any, key_selectors: tuple[Any, Any] | None = None, *, name: str = "Co-Map") -> None:
        super().__init__(function, ("map1", "map2"), key_selectors, name)

    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        result = code.variable("v")
        code.line(f"{result} = {code.bind(method, 'map')}({record})", Blame(self.name, self.ctx.subtask, record))
        with code.block(f"if {result} is not None:"):
            self.out.write(code, result, timestamp)


class CoFlatMapOperator(_CoOperator):
    """Any number of records for each record of either input.

    Args:
        function: an object with ``flat_map1(value)`` and ``flat_map2(value)``, which return an iterable or None.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people.
    """

    def __init__(
        self, function: Any, key_selectors: tuple[Any, Any] | None = None, *, name: str = "Co-Flat Map"
    ) -> None:
        super().__init__(function, ("flat_map1", "flat_map2"), key_selectors, name)

    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        results, result = code.variable("results"), code.variable("v")
        blame = Blame(self.name, self.ctx.subtask, record)
        code.line(f"{results} = {code.bind(method, 'flat_map')}({record}) or ()", blame)

        def write() -> None:
            self.out.write(code, result, timestamp)
            self.out.write_limit(code)

        self.out.write_items(code, result, results, blame, write)


_KEYED_KINDS: Final = (
    ValueStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)


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
        """What the clock shows."""
        return self._operator.ctx.processing_time_service.current_time_ms()

    def current_watermark(self) -> int:
        """The event time that both streams have reached."""
        return self._operator.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> OperatorBroadcastState:
        """The broadcast state of that name.  Raises FlowletError: ``broadcast()`` did not get its descriptor."""
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
        kind = next((each for each in _KEYED_KINDS if isinstance(state_descriptor, each)), None)
        if kind is None:
            raise FlowletError(
                f"apply_to_keyed_state() needs the descriptor of a keyed state, got {state_descriptor!r}"
            )
        backend = operator.ctx.keyed_state_backend
        state = backend.state(state_descriptor, kind)
        try:
            for key in backend.keys_of(state_descriptor.name):
                self._key_context.current_key = key
                function(key, state)
        finally:
            self._key_context.current_key = NO_KEY


class BroadcastProcessOperator(ProcessFunctionOperator, TwoInputStreamOperator):
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
        super().__init__(name)
        self._is_batch = is_batch
        self._is_keyed = key_selector is not None
        if self._is_keyed:
            self.state_refusal = None
        self._descriptors = tuple(descriptors)
        self._keys = KeyedInput(self, key_selector) if self._is_keyed else None
        self._function = self._add(function, "process_element", "process_broadcast_element")

    def open(self) -> None:
        """Make states, contexts, timers and the loops, then open the function."""
        super().open()
        name, ends, attention = self.name, self.out.loop_ends, self.ctx.attention
        self._element_loop = RecordLoop(f"{name}, process_element", self._write_element, ends, attention)
        self._broadcast_loop = RecordLoop(f"{name}, process_broadcast_element", self._write_broadcast, ends, attention)

    def _make_context(self, timers: TimerService) -> ProcessContext:
        states = {each.name: self.ctx.operator_state_backend.get_broadcast_state(each) for each in self._descriptors}
        self._broadcast_context = _BroadcastContext(timers, self, states)
        views: dict[str, OperatorBroadcastState] = {
            name: ReadOnlyOperatorBroadcastState(name, state.entries, state.declared) for name, state in states.items()
        }
        return _StatesContext(timers, self, views)

    def process_chunk1(self, chunk: Chunk) -> None:
        """Call the function for each record of the stream that is not broadcast."""
        self._process_input(1, chunk, None)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Call the function for each record of the broadcast stream."""
        self._process_input(2, chunk, None)

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """As ``process_input_chunk``, until a mail waits."""
        return self._process_input(input_id, chunk, self.ctx.interrupts)

    def _process_input(self, input_id: int, chunk: Chunk, interrupts: Interrupts | None) -> int:
        if not len(chunk):
            return 0
        if input_id == 1:
            keys = None if self._keys is None else self._keys.keys_of(chunk)
            return self._element_loop.run(chunk.records(), chunk.timestamps, len(chunk), keys, interrupts)
        self.ctx.key_context.current_key = NO_KEY
        return self._broadcast_loop.run(chunk.records(), chunk.timestamps, len(chunk), None, interrupts)

    def _write_element(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        self._write_call(code, self._function.call, record, timestamp, key)

    def _write_broadcast(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        method = self._function.method("process_broadcast_element")
        self._write_call(code, method, record, timestamp, key, self._broadcast_context)


class SplitOperator(RecordOperator):
    """Sorts records under names; the main output gets all of them.

    Args:
        function: a callable, or an object with ``select(value)``, that returns the names of a record.
        selections: the sets of names that somebody reads; each is the side output ``selection_tag(names)``.
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
                self.out.write_side(code, code.bind(tag_id, "tag"), record, timestamp)
        self.out.write(code, record, timestamp, count=code.counts.get(id(self)))


def _names(selected: Any) -> Iterable[str]:
    if isinstance(selected, str):
        raise TypeError(f"an output selector returns a collection of names, got the text {selected!r}")
    return selected or ()
