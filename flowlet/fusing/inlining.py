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
import dis
import keyword
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from flowlet.fusing.bytecode import instructions_of, plain_code
from flowlet.fusing.unchanging import is_unchanging

# A conditional expression copies what comes after it into both of its branches; more than this is not worth it.  Not measured.
_MAX_INSTRUCTIONS: Final = 128
_MAX_NODES: Final = 256
_INT64: Final = range(-(2**63), 2**63)

Locate = Callable[[dis.Positions | None], int]  # gives a part of the expression the number that stands for its columns


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the expression."""

    build: Callable[..., ast.expr]  # from the parts below it
    parts: tuple["_Node", ...] = ()
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
    _root: _Node

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
        walk = _Walk(code, arguments, num_names=num_arguments + len(constants))
        root = walk.result()
    except _UnknownError:
        return None
    constants += tuple(walk.named_constants)
    keeps = walk.keeps_unchanging and all(map(is_unchanging, constants))
    return Expression(code, num_arguments, keeps, constants, root)


class _UnknownError(Exception):
    """The function is more than an expression, or nobody can tell."""


class _Walk:
    """Carries out a function's instructions on a stack of syntax trees."""

    def __init__(self, code: types.CodeType, arguments: Sequence[int], num_names: int) -> None:
        self._arguments = dict(zip(code.co_varnames, arguments, strict=False))  # what comes after the parameters are other variables
        self._instructions = instructions_of(code)
        _require(len(self._instructions) <= _MAX_INSTRUCTIONS)
        self._at = {instruction.offset: index for index, instruction in enumerate(self._instructions)}
        self._num_names = num_names
        self._num_nodes = 0
        self.named_constants: list[Any] = []
        self.keeps_unchanging = True

    def result(self) -> _Node:
        """What the function returns."""
        return self._run(0, [])

    def _run(self, index: int, stack: list[_Node]) -> _Node:
        while index < len(self._instructions):
            instruction = self._instructions[index]
            name = instruction.opname
            if name == "RETURN_VALUE":
                return self._returned(stack)
            if name == "JUMP_FORWARD":
                index = self._target(instruction)
                continue
            if name in _CONDITIONS:
                return self._branch(index, stack, _CONDITIONS[name])
            if name in _KEEPING_CONDITIONS:
                return self._keeping_branch(index, stack, _KEEPING_CONDITIONS[name])
            self._step(instruction, stack)
            index += 1
        raise _UnknownError

    def _target(self, instruction: dis.Instruction) -> int:
        # A target that does nothing is not in the list: the next one that does something has not been met, but nobody jumps there.
        index = self._at.get(instruction.argval)
        if index is None or instruction.argval <= instruction.offset:
            raise _UnknownError
        return index

    def _returned(self, stack: list[_Node]) -> _Node:
        result = _pop(stack)
        _require(_are_pure(stack))
        return result

    def _branch(self, index: int, stack: list[_Node], condition: Callable[[_Node], tuple[_Node, bool]]) -> _Node:
        """``a if test else b``, each with all that comes after it: what is on the stack would be evaluated after the test."""
        instruction = self._instructions[index]
        test, jumps_if = condition(_pop(stack))
        _require(_are_pure(stack))
        ahead, aside = self._run(index + 1, stack.copy()), self._run(self._target(instruction), stack.copy())
        then, otherwise = (aside, ahead) if jumps_if else (ahead, aside)
        return self._node(ast.IfExp, test, then, otherwise, at=instruction)

    def _keeping_branch(self, index: int, stack: list[_Node], operation: type[ast.boolop]) -> _Node:
        """``a and b``, where ``a`` is what the function returns if it is false."""
        instruction = self._instructions[index]
        first = _pop(stack)
        _require(_are_pure(stack))
        kept = _Node(_unbuildable, is_pure=True)
        _require(self._run(self._target(instruction), [*stack, kept]) is kept)
        rest = self._run(index + 1, stack.copy())
        return self._node(lambda *values: ast.BoolOp(operation(), list(values)), first, rest, at=instruction)

    def _step(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        step = _STEPS.get(instruction.opname)
        if step is None:
            raise _UnknownError
        step(self, instruction, stack)

    def _node(self, build: Callable[..., ast.expr], *parts: _Node, at: dis.Instruction, is_literal: bool = False) -> _Node:
        self._num_nodes += 1
        _require(self._num_nodes <= _MAX_NODES)
        return _Node(build, parts, at.positions, is_literal=is_literal)

    # -- instructions

    def _load_fast(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        argument = self._arguments.get(instruction.argval)
        _require(argument is not None)
        stack.append(_Node(_unbuildable, (), instruction.positions, argument, is_pure=True))

    def _load_const(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        value = instruction.argval
        if _is_literal(value):
            stack.append(_Node(partial(ast.Constant, value), (), instruction.positions, is_pure=True, is_literal=True))
            return
        self.named_constants.append(value)
        argument = self._num_names + len(self.named_constants) - 1
        stack.append(_Node(_unbuildable, (), instruction.positions, argument, is_pure=True))

    def _load_attr(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        name = instruction.argval
        # A name that Python would read differently in source text.
        _require(name.isidentifier() and name.isascii() and not keyword.iskeyword(name))
        self.keeps_unchanging = False  # methods, for instance
        stack.append(self._node(lambda value: ast.Attribute(value, name, ast.Load()), _pop(stack), at=instruction))

    def _subscript(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        base, index = _pop_many(stack, 2)
        _require(not base.is_literal)
        stack.append(self._node(lambda value, at: ast.Subscript(value, at, ast.Load()), base, index, at=instruction))

    def _build_slice(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        following = self._instructions[self._at[instruction.offset] + 1]
        _require(following.opname == "BINARY_SUBSCR")  # a slice is written nowhere else
        stack.append(self._node(ast.Slice, *_pop_many(stack, _count(instruction)), at=instruction))

    def _binary(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        operation = _BINARY.get(instruction.argrepr)
        if operation is None:
            raise _UnknownError
        left, right = _pop_many(stack, 2)
        stack.append(self._node(lambda a, b: ast.BinOp(a, operation(), b), left, right, at=instruction))

    def _unary(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        operation = _UNARY[instruction.opname]
        stack.append(self._node(lambda value: ast.UnaryOp(operation(), value), _pop(stack), at=instruction))

    def _compare(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        if instruction.opname == "COMPARE_OP":
            operation = _COMPARE.get(instruction.argval)
        else:
            operation = _MEMBERSHIP[instruction.opname, instruction.arg]
        if operation is None:
            raise _UnknownError
        left, right = _pop_many(stack, 2)
        if instruction.opname == "IS_OP":
            _require(not (_warns_as_operand(left) or _warns_as_operand(right)))
        stack.append(self._node(lambda a, b: ast.Compare(a, [operation()], [b]), left, right, at=instruction))

    def _build_tuple(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        self._display(lambda *fields: ast.Tuple(list(fields), ast.Load()), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_list(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        self.keeps_unchanging = False
        self._display(lambda *items: ast.List(list(items), ast.Load()), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_set(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        self.keeps_unchanging = False
        self._display(lambda *items: ast.Set(list(items)), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_map(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        self.keeps_unchanging = False
        parts = _pop_many(stack, 2 * _count(instruction))
        self._display(lambda *parts: ast.Dict(list(parts[::2]), list(parts[1::2])), parts, instruction, stack)

    def _build_const_key_map(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        self.keeps_unchanging = False
        # The instruction before loads the keys.
        keys = self._instructions[self._at[instruction.offset] - 1].argval
        _require(type(keys) is tuple and all(map(_is_literal, keys)))
        stack.pop()
        _require(self.named_constants.pop() is keys)
        values = _pop_many(stack, _count(instruction))
        self._display(lambda *values: ast.Dict([ast.Constant(key) for key in keys], list(values)), values, instruction, stack)

    def _display(self, build: Callable[..., ast.expr], parts: Sequence[_Node], at: dis.Instruction, stack: list[_Node]) -> None:
        stack.append(self._node(build, *parts, at=at, is_literal=True))

    def _format(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        assert instruction.arg is not None
        conversion = _CONVERSIONS[instruction.arg & 3]
        parts = _pop_many(stack, 2 if instruction.arg & 4 else 1)

        def build(value: ast.expr, spec: ast.expr | None = None) -> ast.expr:
            return ast.JoinedStr([ast.FormattedValue(value, conversion, None if spec is None else ast.JoinedStr(_pieces(spec)))])

        self._display(build, parts, instruction, stack)

    def _build_string(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        parts = _pop_many(stack, _count(instruction))
        self._display(lambda *parts: ast.JoinedStr([piece for part in parts for piece in _pieces(part)]), parts, instruction, stack)

    def _swap(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        depth = _count(instruction)
        _require(_are_pure(stack[-depth:]))
        stack[-1], stack[-depth] = stack[-depth], stack[-1]

    def _copy(self, instruction: dis.Instruction, stack: list[_Node]) -> None:
        copied = stack[-_count(instruction)]
        _require(copied.is_pure)
        stack.append(replace(copied))

    def _pop_top(self, _: dis.Instruction, stack: list[_Node]) -> None:
        # Only what lies above it could have an effect before it.
        _require(_pop(stack).is_pure)


def _require(holds: bool) -> None:  # noqa: FBT001 - a predicate
    if not holds:
        raise _UnknownError


def _are_pure(stack: Sequence[_Node]) -> bool:
    return all(node.is_pure for node in stack)


def _pop(stack: list[_Node]) -> _Node:
    return _pop_many(stack, 1)[0]


def _pop_many(stack: list[_Node], count: int) -> list[_Node]:
    _require(len(stack) >= count)
    popped = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return popped


def _count(instruction: dis.Instruction) -> int:
    assert instruction.arg is not None
    return instruction.arg


def _unbuildable(*_: ast.expr) -> ast.expr:
    raise AssertionError("a name is no operation")


def _is_literal(value: Any) -> bool:
    """Whether source text makes the same value."""
    kind = type(value)
    return value is None or kind in (bool, str, bytes) or (kind is int and value in _INT64) or (kind is float and value == value)


def _warns_as_operand(node: _Node) -> bool:
    """Whether Python would warn about ``is`` with it."""
    return isinstance(node.build, partial) and not any(node.build.args[0] is value for value in (None, True, False))


def _pieces(tree: ast.expr) -> list[ast.expr]:
    """Of an f-string."""
    return tree.values if isinstance(tree, ast.JoinedStr) else [tree]


def _is_none(node: _Node) -> _Node:
    return _Node(lambda value: ast.Compare(value, [ast.Is()], [ast.Constant(None)]), (node,), node.positions)


def _jumps_if_none(node: _Node, *, jumps_if: bool) -> tuple[_Node, bool]:
    _require(not _warns_as_operand(node))
    return _is_none(node), jumps_if


_CONDITIONS: Final[Mapping[str, Callable[[_Node], tuple[_Node, bool]]]] = {
    "POP_JUMP_FORWARD_IF_FALSE": lambda node: (node, False),
    "POP_JUMP_FORWARD_IF_TRUE": lambda node: (node, True),
    "POP_JUMP_FORWARD_IF_NONE": partial(_jumps_if_none, jumps_if=True),
    "POP_JUMP_FORWARD_IF_NOT_NONE": partial(_jumps_if_none, jumps_if=False),
}
_KEEPING_CONDITIONS: Final[Mapping[str, type[ast.boolop]]] = {"JUMP_IF_FALSE_OR_POP": ast.And, "JUMP_IF_TRUE_OR_POP": ast.Or}
_STEPS: Final[Mapping[str, Callable[[_Walk, dis.Instruction, list[_Node]], None]]] = {
    "LOAD_FAST": _Walk._load_fast,
    "LOAD_CONST": _Walk._load_const,
    "LOAD_ATTR": _Walk._load_attr,
    "BINARY_SUBSCR": _Walk._subscript,
    "BUILD_SLICE": _Walk._build_slice,
    "BINARY_OP": _Walk._binary,
    "UNARY_NEGATIVE": _Walk._unary,
    "UNARY_POSITIVE": _Walk._unary,
    "UNARY_INVERT": _Walk._unary,
    "UNARY_NOT": _Walk._unary,
    "COMPARE_OP": _Walk._compare,
    "IS_OP": _Walk._compare,
    "CONTAINS_OP": _Walk._compare,
    "BUILD_TUPLE": _Walk._build_tuple,
    "BUILD_LIST": _Walk._build_list,
    "BUILD_SET": _Walk._build_set,
    "BUILD_MAP": _Walk._build_map,
    "BUILD_CONST_KEY_MAP": _Walk._build_const_key_map,
    "FORMAT_VALUE": _Walk._format,
    "BUILD_STRING": _Walk._build_string,
    "SWAP": _Walk._swap,
    "COPY": _Walk._copy,
    "POP_TOP": _Walk._pop_top,
}
_ARITHMETIC = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow, "@": ast.MatMult}
_BITWISE = {"&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor, "<<": ast.LShift, ">>": ast.RShift}
_BINARY: Final[Mapping[str, type[ast.operator]]] = _ARITHMETIC | _BITWISE
_UNARY: Final[Mapping[str, type[ast.unaryop]]] = {
    "UNARY_NEGATIVE": ast.USub,
    "UNARY_POSITIVE": ast.UAdd,
    "UNARY_INVERT": ast.Invert,
    "UNARY_NOT": ast.Not,
}
_COMPARE: Final[Mapping[str, type[ast.cmpop]]] = {"<": ast.Lt, "<=": ast.LtE, "==": ast.Eq, "!=": ast.NotEq, ">": ast.Gt, ">=": ast.GtE}
_MEMBERSHIP: Final[Mapping[tuple[str, int | None], type[ast.cmpop]]] = {
    ("IS_OP", 0): ast.Is,
    ("IS_OP", 1): ast.IsNot,
    ("CONTAINS_OP", 0): ast.In,
    ("CONTAINS_OP", 1): ast.NotIn,
}
_CONVERSIONS: Final = (-1, ord("s"), ord("r"), ord("a"))
