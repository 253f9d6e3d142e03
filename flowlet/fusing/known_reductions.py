"""Reduce functions that do what a built-in aggregation does.

Side:   pure.
Source: ``inlining``: recognised is what the function computes, not how it is written.
Rules:  known are ``a + b``; ``(a[0], a[1] + b[1])`` with any one field added, and the others from the first argument; and ``a if a[1] >=
        b[1] else b`` with its like, where of equal records the first stays.
"""

import ast
import operator
from typing import Any, Final

from flowlet.datastream.aggregations import KnownReduction
from flowlet.fusing.inlining import inline_expression

_FIRST, _SECOND = "a", "b"
# Comparison, and the record that it is true for: which extreme stays, of equal ones the first.
_KEEPS_FIRST: Final[dict[type[ast.cmpop], str]] = {ast.GtE: "max_by", ast.LtE: "min_by"}
_TAKES_SECOND: Final[dict[type[ast.cmpop], str]] = {ast.Gt: "max_by", ast.Lt: "min_by"}


def known_reduction(function: Any) -> KnownReduction | None:
    """What the function does, for records of exact tuples or numbers; None if it is something else."""
    if function is operator.add:
        return KnownReduction("sum", None)
    expression = inline_expression(function, 2)
    if expression is None or expression.constants:
        return None
    tree = expression.tree((_FIRST, _SECOND), (), lambda _positions: 0)
    match tree:
        case ast.BinOp(left=ast.Name(id="a"), op=ast.Add(), right=ast.Name(id="b")):
            return KnownReduction("sum", None)
        case ast.Tuple(elts=elements):
            return _sum_of_tuples(elements)
        case ast.IfExp(test=ast.Compare(left=left, ops=[comparison], comparators=[right]), body=ast.Name(id=chosen), orelse=other):
            return _extreme(left, type(comparison), right, (chosen, getattr(other, "id", "")))
        case _:
            return None


def _sum_of_tuples(elements: list[ast.expr]) -> KnownReduction | None:
    added = []
    for position, element in enumerate(elements):
        match element:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if (_field(left), _field(right)) == (
                (_FIRST, position),
                (_SECOND, position),
            ):
                added.append(position)
            case _ if _field(element) != (_FIRST, position):
                return None
    return KnownReduction("sum", added[0], len(elements)) if len(added) == 1 else None


def _extreme(left: ast.expr, comparison: type[ast.cmpop], right: ast.expr, chosen: tuple[str, str]) -> KnownReduction | None:
    table = {(_FIRST, _SECOND): _KEEPS_FIRST, (_SECOND, _FIRST): _TAKES_SECOND}.get(chosen)
    method = None if table is None else table.get(comparison)
    (first, field), (second, other_field) = _field(left), _field(right)
    if method is None or (first, second) != chosen or field != other_field:
        return None
    return KnownReduction(method, field)


def _field(node: ast.expr) -> tuple[str, int | None]:
    """The record and its field; field None: the record itself.  No record: something else."""
    match node:
        case ast.Name(id=record):
            return record, None
        case ast.Subscript(value=ast.Name(id=record), slice=ast.Constant(value=int() as position)) if (
            type(position) is int and position >= 0
        ):
            return record, position
        case _:
            return "", None
