"""Map functions that only put fields together: ``lambda word: (word, 1)``, ``lambda pair: (pair[1], pair[0])``.

Hot path: of records in columns no record is made (``bench fusing``).

Side:   pure.
Source: ``inlining``: recognised is what the function computes, not how it is written.
Rules:  known are tuples of the record, if it is a scalar, its fields, if it is a tuple, and literals.
"""

import ast
from dataclasses import dataclass
from typing import Any

from flowlet.columns import Column, Columns, ConstantColumn, Shape
from flowlet.fusing.inlining import inline_expression


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Projection:
    """What each field of the result is: a field of the record, the record (None), or a literal."""

    fields: tuple[int | _Literal | None, ...]

    def try_apply(self, columns: Columns) -> Columns | None:
        """The results, in columns; None if the records are not such that they have these fields."""
        made = [self._field(columns, field) for field in self.fields]
        known = [column for column in made if column is not None]
        return Columns(len(columns), tuple(known), Shape.TUPLE) if len(known) == len(made) else None

    def _field(self, columns: Columns, field: int | _Literal | None) -> Column | None:
        if isinstance(field, _Literal):
            return ConstantColumn(field.value, len(columns))
        if field is None:
            return columns.fields[0] if columns.shape is Shape.SCALAR else None
        return columns.fields[field] if columns.shape is Shape.TUPLE and field < len(columns.fields) else None


def projection_of(function: Any) -> Projection | None:
    """What the function does with a record; None if it is more than that, or nobody can tell."""
    expression = inline_expression(function)
    if expression is None:
        return None
    constants = [f"constant{index}" for index in range(len(expression.constants))]
    tree = expression.tree(("record",), constants, lambda _positions: 0)
    if not isinstance(tree, ast.Tuple) or not tree.elts:
        return None
    fields: list[int | _Literal | None] = []
    for element in tree.elts:
        match element:
            case ast.Name(id="record"):
                fields.append(None)
            case ast.Subscript(value=ast.Name(id="record"), slice=ast.Constant(value=int() as position)) if (
                type(position) is int and position >= 0
            ):
                fields.append(position)
            case ast.Constant(value=value):
                fields.append(_Literal(value))
            case _:
                return None
    return Projection(tuple(fields))
