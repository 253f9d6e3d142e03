"""The parts of an expression, before it has names and a place.

Side:       pure.
Invariants: a part is built anew each time: syntax trees are changed by those who use them.
"""

import ast
import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

_INT64: Final = range(-(2**63), 2**63)
Locate = Callable[[dis.Positions | None], int]  # gives a part of the expression the number that stands for its columns


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the expression."""

    build: Callable[..., ast.expr]  # from the parts below it
    parts: tuple["Node", ...] = ()
    positions: dis.Positions | None = None
    argument: int | None = None  # the argument that it is
    is_pure: bool = False  # an argument or a constant: has no effect, costs nothing
    is_literal: bool = False  # Python warns about some uses of literals and displays; they are left to a call

    def tree(self, arguments: Sequence[str], locate: Locate) -> ast.expr:
        """As a syntax tree of its own."""
        if self.argument is not None:
            tree: ast.expr = ast.Name(arguments[self.argument], ast.Load())
        else:
            tree = self.build(*(part.tree(arguments, locate) for part in self.parts))
        number = locate(self.positions)
        for node in ast.walk(tree):
            if isinstance(node, ast.expr) and not hasattr(node, "col_offset"):
                node.col_offset = node.end_col_offset = number
        return tree


def unbuildable(*_: ast.expr) -> ast.expr:
    """In the place of what builds an operation, for what is none."""
    raise AssertionError("a name is no operation")


def is_literal(value: Any) -> bool:
    """Whether source text makes the same value."""
    kind = type(value)
    return value is None or kind in (bool, str, bytes) or (kind is int and value in _INT64) or (kind is float and value == value)


def warns_as_operand(node: Node) -> bool:
    """Whether Python might warn about ``is`` with it."""
    is_singleton = isinstance(node.build, partial) and any(node.build.args[0] is value for value in (None, True, False))
    return node.is_literal and not is_singleton


def pieces_of(tree: ast.expr) -> list[ast.expr]:
    """Of an f-string."""
    return tree.values if isinstance(tree, ast.JoinedStr) else [tree]
