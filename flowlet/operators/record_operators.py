"""Operators that call a function for each record: map, filter and flat_map.

Hot path.  Per record one call of the user's function (bench: programs).

``filter``.

Hot path.  Per record one call of the user's function (bench: programs).

``flat_map``.

Hot path.  Per record one call of the user's function, and a loop over what it gave (bench: wordcount, programs).

Side:   task.
Source: Flink ``StreamMap``.  Records keep their timestamps.  Flink ``StreamFilter``.  Flink ``StreamFlatMap``.  Results
        get the timestamp of their record.
"""

from itertools import islice
from typing import Any, Final

from flowlet.chain.chunking_output import MAX_WAITING
from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.preview import preview
from flowlet.operators.keyed_operator import StatefulRecordOperator
from flowlet.operators.user_function import RecordOperator


class MapOperator(StatefulRecordOperator):
    """One record for each.

    Args:
        function: a callable, or an object with ``map(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Map") -> None:
        super().__init__(name, key_selector)
        self.function = self._add(function, "map")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Replace the record."""
        self._write_key(code, record, key)
        result = code.variable("v")
        code.line(
            f"{result} = {code.bind(self.function.call, 'map')}({record})", Blame(self.name, self.ctx.subtask, record)
        )
        self.out.write(code, result, timestamp, count=code.counts.get(id(self)))


class FilterOperator(StatefulRecordOperator):
    """Only the records for which the function is true.

    Args:
        function: a callable, or an object with ``filter(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Filter") -> None:
        super().__init__(name, key_selector)
        self.function = self._add(function, "filter")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with the record, or leave it."""
        self._write_key(code, record, key)
        with code.block(
            f"if {code.bind(self.function.call, 'filter')}({record}):", Blame(self.name, self.ctx.subtask, record)
        ):
            self.out.write(code, record, timestamp)


class FlatMapOperator(StatefulRecordOperator):
    """Any number of records for each.

    An iterator is not read further before its last result went through the chain, so it may give more than fits into
    memory.

    Args:
        function: a callable, or an object with ``flat_map(value)``; returns an iterable or is a generator function.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Flat Map") -> None:
        super().__init__(name, key_selector)
        self.function = self._add(function, "flat_map")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with each result."""
        self._write_key(code, record, key)
        call = f"{code.bind(self.function.call, 'flat_map')}({record})"
        write_results(self, code, call, record, lambda result: self.out.write(code, result, timestamp))


_END: Final = object()


def write_results(operator: RecordOperator, code: LoopCode, call: str, record: str, write: Any) -> None:
    """The statements that take each result of a flat_map function through the chain.

    A list is read in one loop.  Anything else is read in runs of ``MAX_WAITING``, after each of which what waits is
    passed on, for it may never end.
    """
    results, rest, piece, result = (code.variable(prefix) for prefix in ("results", "rest", "piece", "v"))
    end_of_piece, cut = code.bind(_END, "END"), code.bind(islice, "islice")
    blame = Blame(operator.name, operator.ctx.subtask, record, results, advice)
    code.line(f"{results} = {call}", Blame(operator.name, operator.ctx.subtask, record))
    with code.block(f"if type({results}) is list:"):
        code.line(f"{piece}, {rest} = {results}, None")
    with code.block("else:"):
        code.line(f"{rest} = iter({results})", blame)
        code.line(f"{piece} = {cut}({rest}, {MAX_WAITING})")

    def end() -> None:
        operator.out.write_limit(code)
        with code.block(f"if {rest} is None or {result} is {end_of_piece}:"):
            code.line("break")
        code.line(f"{result} = {end_of_piece}")

    code.line(f"{result} = {end_of_piece}")
    operator.out.write_each(
        code, result, piece, (f"{rest} is not None", f"{cut}({rest}, {MAX_WAITING})"), blame, lambda: write(result), end
    )
    code.line(f"{results} = {rest} = None")


def advice(result: Any) -> TypeError:
    """What to tell the user about a result that cannot be iterated over."""
    what = "None" if result is None else f"{preview(result)} of type {type(result).__name__}"
    return TypeError(
        f"a flat_map function yields its results or returns a list of them ([] for none, [x] for one); got {what}"
    )
