"""``map`` and ``flat_map`` of two streams, and the sorting of one stream under names.

Hot path.  As ``transform``.

Side:   task.
Source: Flink ``CoStreamMap``, ``CoStreamFlatMap``; ``DirectedOutput`` with its ``OutputSelector``: here an operator that emits each record
        once into every selection that asks for one of its names.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.record_loop import RecordLoop
from flowlet.chain.stream_operator import OperatorContext, Output
from flowlet.graph.transformation import selection_tag
from flowlet.operators.keyed_operator import KeyedInput, is_state_used, write_current_key
from flowlet.operators.multiple_input_operator import TwoInputStreamOperator
from flowlet.operators.user_function import RecordOperator, UserFunctionOperator
from flowlet.records import Chunk


class _CoOperator(UserFunctionOperator, TwoInputStreamOperator):
    """Calls one method for the records of each input.

    Args:
        function: an object with both methods.
        methods: their names.
        key_selectors: of the two keyed streams that it reads, for keyed state; None for streams without keys.
        name: for people.
    """

    def __init__(self, function: Any, methods: tuple[str, str], key_selectors: tuple[Any, Any] | None, name: str) -> None:
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
        self._process_input(0, chunk)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Take each record of the second input through the chain."""
        self._process_input(1, chunk)

    def _process_input(self, index: int, chunk: Chunk) -> None:
        keys = None if self._used_keys is None else self._used_keys[index].keys_of(chunk)
        self._loops[index].run(chunk.records(), chunk.timestamps, len(chunk), keys)

    def _loop_of(self, name: str) -> RecordLoop:
        method = self._function.method(name)
        assert method is not None, "checked when it was made"

        def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
            if key is not None:
                write_current_key(code, self.ctx, key)
            self._write_call(code, method, record, timestamp)

        return RecordLoop(f"{self.name}, {name}", write, self.out.loop_ends)

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

    def __init__(self, function: Any, key_selectors: tuple[Any, Any] | None = None, *, name: str = "Co-Flat Map") -> None:
        super().__init__(function, ("flat_map1", "flat_map2"), key_selectors, name)

    def _write_call(self, code: LoopCode, method: Any, record: str, timestamp: str | None) -> None:
        results, result = code.variable("results"), code.variable("v")
        blame = Blame(self.name, self.ctx.subtask, record)
        code.line(f"{results} = {code.bind(method, 'flat_map')}({record}) or ()", blame)
        with code.block(f"for {result} in {results}:", blame):
            self.out.write(code, result, timestamp)
            self.out.write_limit(code)
        code.line(f"{results} = {result} = None")


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
