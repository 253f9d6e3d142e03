"""Syntax trees of the sources, each made once in a process: a dozen tests look at all of them.

Threading: one thread.
"""

import ast
import gc
from collections.abc import Iterator
from functools import cache


def parse(text: str) -> ast.Module:
    was_enabled = gc.isenabled()
    gc.disable()  # a third of the time otherwise: the nodes stay
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()


@cache
def tree_of(text: str) -> ast.Module:
    """Return the tree of a source of the product, which is kept: nobody may change it."""
    return parse(text)


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each node that can hold a statement, ``tree`` included: most nodes are expressions, which cannot."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
