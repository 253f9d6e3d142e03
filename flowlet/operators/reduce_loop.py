"""The loop of a reduction by slot, with the user's function called or inlined.

Hot path.  Per record two list accesses, a comparison, the function and an append (``bench wordcount``).

Side:       task.
Invariants: what it does is what the plain loop does; an error's traceback shows the user's line.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from flowlet.fusing.generated import GeneratedFunction, failed_call
from flowlet.fusing.inlined_map import is_same_function
from flowlet.fusing.inlining import inline_expression
from flowlet.fusing.switch import is_fusing, is_traced
from flowlet.fusing.unchanging import UNCHANGING
from flowlet.operators.copying import copy_value

_PAIR: Final = 2


class _Missing:
    """Not None: users may reduce to None."""


MISSING: Final[Any] = _Missing()
_TEXT: Final = """
    def run(slots, records, state, results):
        for slot, record in zip(slots, records):
            so_far = state[slot]
            if so_far is {missing}:
                result = record
            else:
                result = {call}
            state[slot] = result
            results.append(result)
"""


class _Results(Protocol):
    """A list, or what keeps copies in one."""

    def append(self, result: Any, /) -> None:
        """Keep it."""


Loop = Callable[[list[int], Iterator[Any], list[Any], _Results], None]


class ReduceLoop:
    """Brings a state by slot up to date; the loop is made when it is first needed."""

    __slots__ = ("_function", "_inlined", "_keeps_unchanging")

    def __init__(self) -> None:
        self._function: Any = None
        self._inlined: Loop | None = None
        self._keeps_unchanging = False  # of the function

    def keeps_unchanging(self, function: Callable[[Any, Any], Any]) -> bool:
        """Whether what the function makes of records that cannot change cannot change either; False if that is not sure."""
        self._look_at(function)
        return self._keeps_unchanging

    def run(
        self,
        function: Callable[[Any, Any], Any],
        slots: list[int],
        records: Iterator[Any],
        state: list[Any],
        results: list[Any],
        *,
        copies: bool,
    ) -> bool:
        """Reduce each record into the state of its slot; whether it was seen that no result can change.

        Args:
            function: the user's, of the result so far and the next record.
            slots: one per record; ``state`` has that many places, ``MISSING`` where there was no record.
            records: as many.
            state: by slot.
            results: empty; gets the result after each record, so that when the function raises, their number is that of the record.
            copies: give copies of results that can change.
        """
        self._look_at(function)
        copier = Copier(results) if copies else None
        if self._inlined is None or is_traced():
            if copier is None:
                _run(function, slots, records, state, results)
            else:
                _run_and_copy(function, slots, records, state, copier)
            return copier is not None and not copier.has_copied
        try:
            self._inlined(slots, records, state, results if copier is None else copier)
        except Exception as error:
            failed_call(error)
            raise
        return copier is not None and not copier.has_copied

    def _look_at(self, function: Callable[[Any, Any], Any]) -> None:
        if not is_same_function(function, self._function):
            self._function, self._inlined = function, _inlined(function)
            expression = inline_expression(function, 2)
            self._keeps_unchanging = expression is not None and expression.keeps_unchanging


def _run(function: Callable[[Any, Any], Any], slots: list[int], records: Iterator[Any], state: list[Any], results: list[Any]) -> None:
    for slot, record in zip(slots, records):  # noqa: B905 - one slot per record; strict costs in the hot loop
        so_far = state[slot]
        result = record if so_far is MISSING else function(so_far, record)
        state[slot] = result
        results.append(result)  # 5 ns less than a bound method in a variable


def _run_and_copy(
    function: Callable[[Any, Any], Any], slots: list[int], records: Iterator[Any], state: list[Any], copier: "Copier"
) -> None:
    """As ``_run``.  A pair with fields of the same types as those of the last pair that could not change is not looked at any closer."""
    results = copier.results
    first_type = second_type = None
    rows = zip(slots, records)  # noqa: B905 - as above
    for slot, record in rows:
        so_far = state[slot]
        result = record if so_far is MISSING else function(so_far, record)
        state[slot] = result
        if type(result) is tuple:
            try:
                first, second = result  # 10 ns less than a look at the length before
            except ValueError:  # 400 ns more: once
                copier.append(result)
                _run_and_copy_rest(function, rows, state, copier)
                return
            if type(first) is first_type and type(second) is second_type:
                results.append(result)
                continue
            if type(first) in UNCHANGING and type(second) in UNCHANGING:
                first_type, second_type = type(first), type(second)
        copier.append(result)


def _run_and_copy_rest(function: Callable[[Any, Any], Any], rows: Iterator[tuple[int, Any]], state: list[Any], copier: "Copier") -> None:
    """As ``_run_and_copy``, where not all results are pairs."""
    for slot, record in rows:
        so_far = state[slot]
        result = record if so_far is MISSING else function(so_far, record)
        state[slot] = result
        copier.append(result)


class Copier:
    """Results that nobody can change through the state: copies, where they could be changed.

    Args:
        results: the list that they go into.
    """

    __slots__ = ("has_copied", "results")

    def __init__(self, results: list[Any]) -> None:
        self.results = results
        self.has_copied = False  # whether some result can change

    def append(self, result: Any) -> None:
        """Keep what cannot change, and a copy of anything else: 100 ns per pair that cannot change."""
        if type(result) is tuple and len(result) == _PAIR:
            first, second = result
            if type(first) in UNCHANGING and type(second) in UNCHANGING:
                self.results.append(result)
                return
        copied = copy_value(result)
        self.has_copied = self.has_copied or copied is not result
        self.results.append(copied)


def _inlined(function: Any) -> Loop | None:
    if not is_fusing() or inline_expression(function, 2) is None:
        return None
    generated = GeneratedFunction(getattr(function, "__qualname__", "function"))
    call, missing = generated.call(function, "so_far", "record"), generated.value(MISSING)
    return generated.define(_TEXT.format(call=call, missing=missing))
