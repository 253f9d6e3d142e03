"""Tests for ``flowlet.serde.pickles.program_pickle``."""

import threading
from typing import Any

from flowlet.serde.pickles.program_pickle import describe_unpicklable


class Number(int):
    """Counts how often one of them is pickled."""

    num_pickled = 0

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        Number.num_pickled += 1
        return int, (int(self),)


def test_plain_parts_are_not_pickled_one_by_one() -> None:
    """Parts are pickled with the whole: a program's list of many numbers would take a pickler for each."""
    error = TypeError("cannot pickle '_thread.lock' object")

    described = describe_unpicklable([*map(Number, range(5)), threading.Lock()], error, "things")

    assert described.startswith("`things[5]` (_thread.lock): TypeError")
    assert Number.num_pickled == 5
