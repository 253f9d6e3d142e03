"""The loop of a reduction by slot, with the user's function called or inlined.

Hot path.  Per record two list accesses, a comparison, the function and an append (``bench wordcount``).

Side:       task.
Invariants: what it does is what the plain loop does; an error's traceback shows the user's line.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from flowlet.fusing.generated import GeneratedFunction, failed_call
from flowlet.fusing.inlined_map import is_same_function
from flowlet.fusing.inlining import inline_expression
from flowlet.fusing.switch import is_fusing, is_traced


class _Missing:
    """Not None: users may reduce to None."""


MISSING: Final[Any] = _Missing()
_TEXT: Final = """
    def run(slots, records, state, append):
        for slot, record in zip(slots, records):
            so_far = state[slot]
            if so_far is {missing}:
                result = record
            else:
                result = {call}
            state[slot] = result
            append(result)
"""

Loop = Callable[[list[int], Iterator[Any], list[Any], Callable[[Any], None]], None]


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
        self, function: Callable[[Any, Any], Any], slots: list[int], records: Iterator[Any], state: list[Any], append: Callable[[Any], None]
    ) -> None:
        """Reduce each record into the state of its slot.

        Args:
            function: the user's, of the result so far and the next record.
            slots: one per record; ``state`` has that many places, ``MISSING`` where there was no record.
            records: stands behind the record that failed, when the function raises.
            state: by slot.
            append: takes each result.
        """
        self._look_at(function)
        if self._inlined is None or is_traced():
            _run(function, slots, records, state, append)
            return
        try:
            self._inlined(slots, records, state, append)
        except Exception as error:
            failed_call(error)
            raise

    def _look_at(self, function: Callable[[Any, Any], Any]) -> None:
        if not is_same_function(function, self._function):
            self._function, self._inlined = function, _inlined(function)
            expression = inline_expression(function, 2)
            self._keeps_unchanging = expression is not None and expression.keeps_unchanging


def _run(
    function: Callable[[Any, Any], Any], slots: list[int], records: Iterator[Any], state: list[Any], append: Callable[[Any], None]
) -> None:
    for slot, record in zip(slots, records):  # noqa: B905 - one slot per record; strict costs in the hot loop
        so_far = state[slot]
        result = record if so_far is MISSING else function(so_far, record)
        state[slot] = result
        append(result)


def _inlined(function: Any) -> Loop | None:
    if not is_fusing() or inline_expression(function, 2) is None:
        return None
    generated = GeneratedFunction(getattr(function, "__qualname__", "function"))
    call, missing = generated.call(function, "so_far", "record"), generated.value(MISSING)
    return generated.define(_TEXT.format(call=call, missing=missing))
