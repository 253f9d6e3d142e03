"""``map``, ``flat_map``, ``filter``.

Hot path.  Per record one call of the user's function, and a loop over what a flat_map function gave (bench: wordcount, programs).

Side:   task.
Source: Flink ``StreamMap``, ``StreamFlatMap``, ``StreamFilter``.  Records keep their timestamps; results get that of their record.
"""

from itertools import islice
from typing import Any, Final

from flowlet.operators.emitter import MAX_WAITING
from flowlet.operators.loop_code import Blame, LoopCode
from flowlet.operators.preview import preview
from flowlet.operators.user_function import RecordOperator


class MapOperator(RecordOperator):
    """One record for each.

    Args:
        function: a callable, or an object with ``map(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Map") -> None:
        super().__init__(name)
        self.function = self._add(function, "map")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Replace the record."""
        result = code.variable("v")
        code.line(f"{result} = {code.bind(self.function.call, 'map')}({record})", Blame(self.name, self.ctx.subtask, record))
        self.out.write(code, result, timestamp, count=code.counts.get(id(self)))


class FilterOperator(RecordOperator):
    """Only the records for which the function is true.

    Args:
        function: a callable, or an object with ``filter(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Filter") -> None:
        super().__init__(name)
        self.function = self._add(function, "filter")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with the record, or leave it."""
        with code.block(f"if {code.bind(self.function.call, 'filter')}({record}):", Blame(self.name, self.ctx.subtask, record)):
            self.out.write(code, record, timestamp)


class FlatMapOperator(RecordOperator):
    """Any number of records for each.

    An iterator is not read further before its last result went through the chain, so it may give more than fits into memory.

    Args:
        function: a callable, or an object with ``flat_map(value)``; returns an iterable or is a generator function.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Flat Map") -> None:
        super().__init__(name)
        self.function = self._add(function, "flat_map")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with each result."""
        call = f"{code.bind(self.function.call, 'flat_map')}({record})"
        write_results(self, code, call, record, lambda result: self.out.write(code, result, timestamp))


_END: Final = object()


def write_results(operator: RecordOperator, code: LoopCode, call: str, record: str, write: Any) -> None:
    """The statements that take each result of a flat_map function through the chain.

    A list is read in one loop.  Anything else is read in runs of ``MAX_WAITING``, after each of which what waits is passed on, for it may
    never end.
    """
    results, rest, piece, result = (code.variable(prefix) for prefix in ("results", "rest", "piece", "v"))
    end, cut = code.bind(_END, "END"), code.bind(islice, "islice")
    blame = Blame(operator.name, operator.ctx.subtask, record, results, advice)
    code.line(f"{results} = {call}", Blame(operator.name, operator.ctx.subtask, record))
    with code.block(f"if type({results}) is list:"):
        code.line(f"{piece}, {rest} = {results}, None")
    with code.block("else:"):
        code.line(f"{rest} = iter({results})", blame)
        code.line(f"{piece} = {cut}({rest}, {MAX_WAITING})")
    with code.block("while True:"):
        code.line(f"{result} = {end}")
        with code.block(f"for {result} in {piece}:", blame):
            write(result)
        operator.out.write_limit(code)
        with code.block(f"if {rest} is None or {result} is {end}:"):
            code.line("break")
        code.line(f"{piece} = {cut}({rest}, {MAX_WAITING})")
    # Nothing holds what was emitted any more.
    code.line(f"{results} = {rest} = {piece} = {result} = None")


def advice(result: Any) -> TypeError:
    """What to tell the user about a result that cannot be iterated over."""
    what = "None" if result is None else f"{preview(result)} of type {type(result).__name__}"
    return TypeError(f"a flat_map function yields its results or returns a list of them ([] for none, [x] for one); got {what}")
