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


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """Return all nodes of ``tree_of(text)`` but the contexts of names, in no order; the list is kept, too."""
    found: list[ast.AST] = [tree_of(text)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each node that can hold a statement, ``tree`` included: most nodes are expressions, which cannot."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
