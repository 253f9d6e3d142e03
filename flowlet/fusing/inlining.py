"""What a function of one expression computes, as an expression that can stand in place of a call of it.

Side:       pure.
Invariants: an expression evaluates what the function evaluates, in the same order, each part as often, and fails as it does.  Whatever
            has an effect (any operator: users define them) is taken from the stack in the order in which it was put there, exactly once;
            only arguments and constants, which have none, may be used twice, dropped or moved.
Source:     the module ``dis``; CPython 3.11.  Instructions that are not known here make the answer None, so that another version of Python
            inlines less, never something else.
Absent:     calls, loops, assignments, globals and free names: such functions are called.
"""

import ast
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowlet.fusing.bytecode import plain_code
from flowlet.fusing.bytecode_walk import UnknownError, Walk
from flowlet.fusing.expression_node import Locate, Node
from flowlet.fusing.unchanging import is_unchanging


@dataclass(frozen=True, slots=True)
class Expression:
    """What a call of a function computes.

    ``code`` is the function's.  ``keeps_unchanging``: given arguments that cannot change (``unchanging``), it makes a value that cannot
    change either, whatever they are.
    """

    code: types.CodeType
    num_arguments: int
    keeps_unchanging: bool
    constants: tuple[Any, ...]  # those that are no literals: values of names
    _root: Node

    def tree(self, arguments: Sequence[str], constants: Sequence[str], locate: Locate) -> ast.expr:
        """The expression of these names, as a new syntax tree.

        Args:
            arguments: names of variables, never other expressions: an argument may be used twice, or not at all.
            constants: names under which the code that holds the tree finds ``constants``.
            locate: gives each part its column, from its place in the user's source; line numbers are left to the caller.
        """
        assert len(arguments) == self.num_arguments, f"{self.num_arguments} arguments, got {len(arguments)}"
        assert all(map(str.isidentifier, [*arguments, *constants])), "only names can be used twice"
        return self._root.tree([*arguments, *constants], locate)


def inline_expression(function: Any, num_arguments: int = 1) -> Expression | None:
    """What ``function(argument, ...)`` computes, if it is one expression of its arguments; None if that is not sure.

    Args:
        function: anything; recognised are functions, and methods bound to an object.
        num_arguments: how many a caller gives; defaults stand in for further ones.
    """
    if isinstance(function, types.MethodType):
        method = function.__func__
        return _inline(method, (function.__self__,), num_arguments) if isinstance(method, types.FunctionType) else None
    return _inline(function, (), num_arguments)


def _inline(function: Any, bound: tuple[Any, ...], num_arguments: int) -> Expression | None:
    code = plain_code(function)
    if code is None:
        return None
    defaults = function.__defaults__ or ()
    num_defaults = code.co_argcount - len(bound) - num_arguments
    if not 0 <= num_defaults <= len(defaults):
        return None
    constants = bound + defaults[len(defaults) - num_defaults :]
    # The variables are in the order of the parameters: the object of a method, the arguments, the defaults.
    arguments = [*range(num_arguments, num_arguments + len(bound)), *range(num_arguments)]
    arguments += range(num_arguments + len(bound), num_arguments + len(constants))
    try:
        walk = Walk(code, arguments, num_names=num_arguments + len(constants))
        root = walk.result()
    except UnknownError:
        return None
    constants += tuple(walk.named_constants)
    keeps = walk.keeps_unchanging and all(map(is_unchanging, constants))
    return Expression(code, num_arguments, keeps, constants, root)
