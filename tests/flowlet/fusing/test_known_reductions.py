import operator
from typing import Any

import pytest

from flowlet.datastream.aggregations import KnownReduction
from flowlet.fusing.known_reductions import known_reduction


def add(first: Any, second: Any) -> Any:
    """Has a name and words."""
    return first + second


KNOWN = {
    "numbers": (lambda a, b: a + b, KnownReduction("sum", None)),
    "a function": (add, KnownReduction("sum", None)),
    "the operator": (operator.add, KnownReduction("sum", None)),
    "pairs": (lambda a, b: (a[0], a[1] + b[1]), KnownReduction("sum", 1, 2)),
    "the first of three": (lambda x, y: (x[0] + y[0], x[1], x[2]), KnownReduction("sum", 0, 3)),
    "one field": (lambda x, y: (x[0] + y[0],), KnownReduction("sum", 0, 1)),
    "the first of equal ones": (lambda a, b: a if a[2] >= b[2] else b, KnownReduction("max_by", 2)),
    "the smallest": (lambda a, b: a if a[0] <= b[0] else b, KnownReduction("min_by", 0)),
    "another way round": (lambda a, b: b if b[1] > a[1] else a, KnownReduction("max_by", 1)),
    "and the smallest": (lambda a, b: b if b[1] < a[1] else a, KnownReduction("min_by", 1)),
    "of numbers": (lambda a, b: a if a >= b else b, KnownReduction("max_by", None)),
}
UNKNOWN = {
    "subtraction": lambda a, b: a - b,
    "the other order": lambda a, b: (a[0], b[1] + a[1]),
    "another field": lambda a, b: (a[0], a[1] + b[0]),
    "moved": lambda a, b: (a[1] + b[1], a[0]),
    "the second one's key": lambda a, b: (b[0], a[1] + b[1]),
    "two sums": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "no sum": lambda a, b: (a[0], a[1]),
    "a constant": lambda a, b: (a[0], a[1] + 1),
    "a list": lambda a, b: [a[0], a[1] + b[1]],
    "the last of equal ones": lambda a, b: a if a[1] > b[1] else b,
    "the last of equal ones, another way round": lambda a, b: b if b[1] >= a[1] else a,
    "the smaller key": lambda a, b: a if a[0] >= b[1] else b,
    "equality": lambda a, b: a if a[1] == b[1] else b,
    "from the end": lambda a, b: (a[0], a[-1] + b[-1]),
    "a truth as position": lambda a, b: (a[0], a[True] + b[True]),
    "a call": lambda a, b: max(a, b),
    "three arguments": lambda a, b, c: a + b,
    "a default": lambda a, b, c=1: (a[0], a[1] + b[1] + c),
    "no function": "a + b",
}


@pytest.mark.parametrize(("function", "expected"), KNOWN.values(), ids=KNOWN)
def test_functions_that_do_what_is_built_in_are_known(function: Any, expected: KnownReduction) -> None:
    assert known_reduction(function) == expected


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
def test_anything_else_is_not(function: Any) -> None:
    """Even where it would do for most records."""
    assert known_reduction(function) is None
