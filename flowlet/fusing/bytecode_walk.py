"""From the instructions of a function to the syntax tree of the expression that it is.

Side:       pure.
Invariants: whatever has an effect (any operator: users define them) is taken from the stack in the order in which it was put there, exactly
            once; only arguments and constants, which have none, may be used twice, dropped or moved.
Source:     the compiler of CPython 3.11 (``compile.c``: conditional expressions, ``and`` and ``or``, chained comparisons), the module
            ``dis``.  Instructions that are not known here end the walk: another version of Python inlines less, never something else.
"""

import ast
import dis
import keyword
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flowlet.fusing.bytecode import instructions_of
from flowlet.fusing.expression_node import Node, is_literal, pieces_of, unbuildable, warns_as_operand

# A conditional expression copies what comes after it into both of its branches; more than this is not worth it.  Not measured.
_MAX_INSTRUCTIONS: Final = 128
_MAX_NODES: Final = 256


class UnknownError(Exception):
    """The function is more than an expression, or nobody can tell."""


class Walk:
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

    def result(self) -> Node:
        """What the function returns."""
        return self._run(0, [])

    def _run(self, index: int, stack: list[Node]) -> Node:
        """From an instruction to the end of the function: what it returns."""
        while index < len(self._instructions):
            name = self._instructions[index].opname
            if name == "RETURN_VALUE":
                return self._returned(stack)
            following = self._try_advance(index, stack)
            if following is not None:
                index = following
            elif name in _CONDITIONS:
                return self._branch(index, stack, _CONDITIONS[name])
            elif name in _KEEPING_CONDITIONS:
                return self._keeping_branch(index, stack, _KEEPING_CONDITIONS[name])
            else:
                break
        raise UnknownError

    def _part(self, index: int, stop: int, end: int | None = None) -> Node:
        """From an instruction to another one, which all ways reach (or all reach ``end``): the one value that they leave."""
        stack: list[Node] = []
        while index < stop:
            following = self._try_advance(index, stack)
            if following is None:
                raise UnknownError
            index = following
        _require(index in (stop, end) and len(stack) == 1)
        return stack[0]

    def _try_advance(self, index: int, stack: list[Node]) -> int | None:
        """Carry out what begins with an instruction; where it goes on, or None, and nothing is done, where only ``_run`` knows."""
        instruction = self._instructions[index]
        name = instruction.opname
        if name == "RETURN_VALUE":
            return None
        if name == "JUMP_FORWARD":
            return self._target(instruction)
        structured = self._structured(name)
        before = stack.copy()
        try:
            if structured is not None:
                return structured(index, stack)
        except UnknownError:
            stack[:] = before
        step = _STEPS.get(name)
        if step is None:
            if structured is None:
                raise UnknownError
            return None
        step(self, instruction, stack)
        return index + 1

    def _structured(self, name: str) -> Callable[[int, list[Node]], int] | None:
        """What carries out several instructions that belong together, if they do."""
        if name in _CONDITIONS:
            return partial(self._conditional, condition=_CONDITIONS[name])
        if name in _KEEPING_CONDITIONS:
            return partial(self._truth, operation=_KEEPING_CONDITIONS[name])
        return self._chain if name == "SWAP" else None

    def _conditional(self, index: int, stack: list[Node], condition: Callable[[Node], tuple[Node, bool]]) -> int:
        """``a if test else b`` where both ways meet again: test, jump to b, a, jump to the end, b."""
        instruction = self._instructions[index]
        test, jumps_if = condition(_pop(stack))
        target = self._target(instruction)
        end_of_first = self._instructions[target - 1]
        _require(end_of_first.opname == "JUMP_FORWARD")
        end = self._target(end_of_first)
        ahead, aside = self._part(index + 1, target - 1, end), self._part(target, end)
        then, otherwise = (aside, ahead) if jumps_if else (ahead, aside)
        stack.append(self._node(ast.IfExp, test, then, otherwise, at=instruction))
        return end

    def _truth(self, index: int, stack: list[Node], operation: type[ast.boolop]) -> int:
        """``a and b``: a, jump to the end and keep it, or drop it, b."""
        instruction = self._instructions[index]
        first, end = _pop(stack), self._target(instruction)
        stack.append(self._truth_node(operation, first, self._part(index + 1, end), instruction))
        return end

    def _chain(self, index: int, stack: list[Node]) -> int:
        """``a < b < c``: a, b, keep b below, compare, jump to a clean-up, c, compare, jump over the clean-up."""
        operands = _pop_many(stack, 2)
        operations = []
        clean_up = None
        while self._instructions[index].opname == "SWAP":
            swap, copy, compare, jump = self._several(index, 4)
            _require((swap.arg, copy.opname, copy.arg, jump.opname) == (2, "COPY", 2, "JUMP_IF_FALSE_OR_POP"))
            operations.append(_comparison(compare))
            _require(clean_up in (None, self._target(jump)))
            clean_up = self._target(jump)
            index = self._end_of_operand(index + 4, clean_up, operands)
        last, jump, *clean_up_steps, following = self._several(index, 5)
        operations.append(_comparison(last))
        assert clean_up is not None, "a chain has two comparisons"
        _require(clean_up == index + 2 and [each.opname for each in clean_up_steps] == ["SWAP", "POP_TOP"])
        end = clean_up + 2
        returns = jump.opname == following.opname == "RETURN_VALUE"
        _require(returns or (jump.opname == "JUMP_FORWARD" and self._target(jump) == end))
        _require(not (any(isinstance(each, ast.Is | ast.IsNot) for each in operations) and any(map(warns_as_operand, operands))))
        stack.append(self._node(lambda first, *others: ast.Compare(first, operations, list(others)), *operands, at=last))
        return end

    def _end_of_operand(self, index: int, stop: int, operands: list[Node]) -> int:
        """Where the next comparison of a chain begins; the operand before it is added."""
        stack: list[Node] = []
        while index < stop:
            if len(stack) == 1 and self._instructions[index].opname in ("SWAP", *_COMPARISONS):
                operands += stack
                return index
            following = self._try_advance(index, stack)
            if following is None:
                break
            index = following
        raise UnknownError

    def _several(self, index: int, count: int) -> list[dis.Instruction]:
        found = self._instructions[index : index + count]
        _require(len(found) == count)
        return found

    def _target(self, instruction: dis.Instruction) -> int:
        # A target that does nothing is not in the list: the next one that does something has not been met, but nobody jumps there.
        index = self._at.get(instruction.argval)
        if index is None or index <= self._at[instruction.offset]:
            raise UnknownError
        return index

    def _returned(self, stack: list[Node]) -> Node:
        result = _pop(stack)
        _require(_are_pure(stack))
        return result

    def _branch(self, index: int, stack: list[Node], condition: Callable[[Node], tuple[Node, bool]]) -> Node:
        """``a if test else b``, each with all that comes after it: what is on the stack would be evaluated after the test."""
        instruction = self._instructions[index]
        test, jumps_if = condition(_pop(stack))
        _require(_are_pure(stack))
        ahead, aside = self._run(index + 1, stack.copy()), self._run(self._target(instruction), stack.copy())
        then, otherwise = (aside, ahead) if jumps_if else (ahead, aside)
        return self._node(ast.IfExp, test, then, otherwise, at=instruction)

    def _keeping_branch(self, index: int, stack: list[Node], operation: type[ast.boolop]) -> Node:
        """``a and b``, where ``a`` is what the function returns if it is false."""
        instruction = self._instructions[index]
        first = _pop(stack)
        _require(_are_pure(stack))
        kept = Node(unbuildable, is_pure=True)
        _require(self._run(self._target(instruction), [*stack, kept]) is kept)
        return self._truth_node(operation, first, self._run(index + 1, stack.copy()), instruction)

    def _truth_node(self, operation: type[ast.boolop], first: Node, rest: Node, at: dis.Instruction) -> Node:
        return self._node(lambda *values: ast.BoolOp(operation(), list(values)), first, rest, at=at)

    def _node(self, build: Callable[..., ast.expr], *parts: Node, at: dis.Instruction, is_literal: bool = False) -> Node:
        self._num_nodes += 1
        _require(self._num_nodes <= _MAX_NODES)
        # The compiler folds an operation of literals.
        return Node(build, parts, at.positions, is_literal=is_literal or all(part.is_literal for part in parts))

    # -- instructions

    def _load_fast(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        argument = self._arguments.get(instruction.argval)
        _require(argument is not None)
        stack.append(Node(unbuildable, (), instruction.positions, argument, is_pure=True))

    def _load_const(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        value = instruction.argval
        if is_literal(value):
            stack.append(Node(partial(ast.Constant, value), (), instruction.positions, is_pure=True, is_literal=True))
            return
        self.named_constants.append(value)
        argument = self._num_names + len(self.named_constants) - 1
        stack.append(Node(unbuildable, (), instruction.positions, argument, is_pure=True))

    def _load_attr(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        name = instruction.argval
        # A name that Python would read differently in source text.
        _require(name.isidentifier() and name.isascii() and not keyword.iskeyword(name))
        self.keeps_unchanging = False  # methods, for instance
        stack.append(self._node(lambda value: ast.Attribute(value, name, ast.Load()), _pop(stack), at=instruction))

    def _subscript(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        base, index = _pop_many(stack, 2)
        _require(not base.is_literal)
        stack.append(self._node(lambda value, at: ast.Subscript(value, at, ast.Load()), base, index, at=instruction))

    def _build_slice(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        _, following = self._several(self._at[instruction.offset], 2)
        _require(following.opname == "BINARY_SUBSCR")  # a slice is written nowhere else
        stack.append(self._node(ast.Slice, *_pop_many(stack, _count(instruction)), at=instruction))

    def _binary(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        operation = _BINARY.get(instruction.argrepr)
        if operation is None:
            raise UnknownError
        left, right = _pop_many(stack, 2)
        stack.append(self._node(lambda a, b: ast.BinOp(a, operation(), b), left, right, at=instruction))

    def _unary(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        operation = _UNARY[instruction.opname]
        stack.append(self._node(lambda value: ast.UnaryOp(operation(), value), _pop(stack), at=instruction))

    def _compare(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        operation = _comparison(instruction)
        left, right = _pop_many(stack, 2)
        if instruction.opname == "IS_OP":
            _require(not (warns_as_operand(left) or warns_as_operand(right)))
        stack.append(self._node(lambda a, b: ast.Compare(a, [operation], [b]), left, right, at=instruction))

    def _build_tuple(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        self._display(lambda *fields: ast.Tuple(list(fields), ast.Load()), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_list(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        self.keeps_unchanging = False
        self._display(lambda *items: ast.List(list(items), ast.Load()), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_set(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        self.keeps_unchanging = False
        self._display(lambda *items: ast.Set(list(items)), _pop_many(stack, _count(instruction)), instruction, stack)

    def _build_map(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        self.keeps_unchanging = False
        parts = _pop_many(stack, 2 * _count(instruction))
        self._display(lambda *parts: ast.Dict(list(parts[::2]), list(parts[1::2])), parts, instruction, stack)

    def _build_const_key_map(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        self.keeps_unchanging = False
        # The instruction before loads the keys, which are no literal, but nobody else needs their name.
        position = _pop(stack).argument
        _require(position == self._num_names + len(self.named_constants) - 1)
        keys: Any = self.named_constants.pop() if self.named_constants else None
        _require(type(keys) is tuple and all(map(is_literal, keys)) and len(keys) == _count(instruction))
        values = _pop_many(stack, _count(instruction))
        self._display(lambda *values: ast.Dict([ast.Constant(key) for key in keys], list(values)), values, instruction, stack)

    def _display(self, build: Callable[..., ast.expr], parts: Sequence[Node], at: dis.Instruction, stack: list[Node]) -> None:
        stack.append(self._node(build, *parts, at=at, is_literal=True))

    def _format(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        assert instruction.arg is not None
        conversion = _CONVERSIONS[instruction.arg & 3]
        parts = _pop_many(stack, 2 if instruction.arg & 4 else 1)

        def build(value: ast.expr, spec: ast.expr | None = None) -> ast.expr:
            return ast.JoinedStr([ast.FormattedValue(value, conversion, None if spec is None else ast.JoinedStr(pieces_of(spec)))])

        self._display(build, parts, instruction, stack)

    def _build_string(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        parts = _pop_many(stack, _count(instruction))
        self._display(lambda *parts: ast.JoinedStr([piece for part in parts for piece in pieces_of(part)]), parts, instruction, stack)

    def _swap(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        depth = _count(instruction)
        _require(len(stack) >= depth and _are_pure(stack[-depth:]))
        stack[-1], stack[-depth] = stack[-depth], stack[-1]

    def _copy(self, instruction: dis.Instruction, stack: list[Node]) -> None:
        _require(len(stack) >= _count(instruction))
        copied = stack[-_count(instruction)]
        _require(copied.is_pure)
        stack.append(replace(copied))

    def _pop_top(self, _: dis.Instruction, stack: list[Node]) -> None:
        # Only what lies above it could have an effect before it.
        _require(_pop(stack).is_pure)


def _require(holds: bool) -> None:  # noqa: FBT001 - a predicate
    if not holds:
        raise UnknownError


def _are_pure(stack: Sequence[Node]) -> bool:
    return all(node.is_pure for node in stack)


def _pop(stack: list[Node]) -> Node:
    return _pop_many(stack, 1)[0]


def _pop_many(stack: list[Node], count: int) -> list[Node]:
    _require(len(stack) >= count)
    popped = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return popped


def _count(instruction: dis.Instruction) -> int:
    assert instruction.arg is not None
    return instruction.arg


def _comparison(instruction: dis.Instruction) -> ast.cmpop:
    name = instruction.opname
    operation = _COMPARE.get(instruction.argval) if name == "COMPARE_OP" else _MEMBERSHIP.get((name, instruction.arg))
    if operation is None:
        raise UnknownError
    return operation()


def _is_none(node: Node) -> Node:
    return Node(lambda value: ast.Compare(value, [ast.Is()], [ast.Constant(None)]), (node,), node.positions)


def _jumps_if_none(node: Node, *, jumps_if: bool) -> tuple[Node, bool]:
    _require(not warns_as_operand(node))
    return _is_none(node), jumps_if


_CONDITIONS: Final[Mapping[str, Callable[[Node], tuple[Node, bool]]]] = {
    "POP_JUMP_FORWARD_IF_FALSE": lambda node: (node, False),
    "POP_JUMP_FORWARD_IF_TRUE": lambda node: (node, True),
    "POP_JUMP_FORWARD_IF_NONE": partial(_jumps_if_none, jumps_if=True),
    "POP_JUMP_FORWARD_IF_NOT_NONE": partial(_jumps_if_none, jumps_if=False),
}
_KEEPING_CONDITIONS: Final[Mapping[str, type[ast.boolop]]] = {"JUMP_IF_FALSE_OR_POP": ast.And, "JUMP_IF_TRUE_OR_POP": ast.Or}
_STEPS: Final[Mapping[str, Callable[[Walk, dis.Instruction, list[Node]], None]]] = {
    "LOAD_FAST": Walk._load_fast,
    "LOAD_CONST": Walk._load_const,
    "LOAD_ATTR": Walk._load_attr,
    "BINARY_SUBSCR": Walk._subscript,
    "BUILD_SLICE": Walk._build_slice,
    "BINARY_OP": Walk._binary,
    "UNARY_NEGATIVE": Walk._unary,
    "UNARY_POSITIVE": Walk._unary,
    "UNARY_INVERT": Walk._unary,
    "UNARY_NOT": Walk._unary,
    "COMPARE_OP": Walk._compare,
    "IS_OP": Walk._compare,
    "CONTAINS_OP": Walk._compare,
    "BUILD_TUPLE": Walk._build_tuple,
    "BUILD_LIST": Walk._build_list,
    "BUILD_SET": Walk._build_set,
    "BUILD_MAP": Walk._build_map,
    "BUILD_CONST_KEY_MAP": Walk._build_const_key_map,
    "FORMAT_VALUE": Walk._format,
    "BUILD_STRING": Walk._build_string,
    "SWAP": Walk._swap,
    "COPY": Walk._copy,
    "POP_TOP": Walk._pop_top,
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
_COMPARISONS: Final = ("COMPARE_OP", "IS_OP", "CONTAINS_OP")
_MEMBERSHIP: Final[Mapping[tuple[str, int | None], type[ast.cmpop]]] = {
    ("IS_OP", 0): ast.Is,
    ("IS_OP", 1): ast.IsNot,
    ("CONTAINS_OP", 0): ast.In,
    ("CONTAINS_OP", 1): ast.NotIn,
}
_CONVERSIONS: Final = (-1, ord("s"), ord("r"), ord("a"))
