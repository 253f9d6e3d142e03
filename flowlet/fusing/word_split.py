"""flat_map functions that split a line into words: ``line.split()``, ``[(word, 1) for word in line.split()]`` and their like.

Side:   pure.
Source: a function is compared with templates that the same interpreter compiled: equal instructions, equal names and equal nested code do
        the same.  What a line is, is for the caller to see: of an exact ``str`` the methods are known.
Rules:  known are lists, generators and ``yield from`` of words, or of pairs of a word and a literal; the line may be stripped or change its
        case before, and be split at white space or at one ASCII character.
"""

import dis
import inspect
import types
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from flowlet.fusing.bytecode import instructions_of
from flowlet.fusing.expression_node import is_literal

# Applied to all lines at once they give what they give for each, if all is ASCII and white space ends a line.
_CASES: Final = frozenset({"lower", "upper", "casefold"})
_STRIPS: Final = frozenset({"strip", "lstrip", "rstrip"})
_KINDS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SEPARATOR: Final = ","
_OTHER: Final = 1
_FORMS: Final = (
    "def f(line): return line.split({at})",
    "def f(line): yield from line.split({at})",
    "def f(line): return [{made} for word in line.split({at})]",
    "def f(line): return ({made} for word in line.split({at}))",
    "def f(line): yield from [{made} for word in line.split({at})]",
    "def f(line):\n for word in line.split({at}): yield {made}",
    "def f(line):\n words = []\n for word in line.split({at}): words.append({made})\n return words",
)


@dataclass(frozen=True, slots=True)
class WordSplit:
    """What the function does with a line.

    ``separator``: None: white space.  ``cases``: methods that change the case of the line before.  ``other``: what is beside each word
    in a pair, as a tuple of one; empty: there are only words.
    """

    separator: str | None
    cases: tuple[str, ...]
    other: tuple[Any, ...]


def word_split(function: Any) -> WordSplit | None:
    """What the function does, if it splits lines; None if that is not sure."""
    first = 0
    if isinstance(function, types.MethodType):
        function, first = function.__func__, 1
    if not isinstance(function, types.FunctionType):
        return None
    if function.__code__.co_argcount != first + 1 or "split" not in function.__code__.co_names:
        return None  # the templates take some milliseconds
    reading = _Reading.of(function.__code__, first)
    template = _templates().get(reading.shape)
    return None if template is None else _filled(template, reading)


@dataclass(slots=True)
class _Reading:
    """The code of a function without what differs between those of one form."""

    shape: Any = None
    methods: list[str] = field(default_factory=list)  # called on the line before it is split
    constants: list[Any] = field(default_factory=list)  # in the order of the instructions that load them

    @classmethod
    def of(cls, code: types.CodeType, first: int) -> "_Reading":
        """Read it; ``first`` is the number of the variable that is the line."""
        reading = cls()
        reading.shape = reading._shape(code, first)
        return reading

    def _shape(self, code: types.CodeType, first: int) -> Any:
        instructions = instructions_of(code)
        parts: list[Any] = []
        index = 0
        while index < len(instructions):
            parts.append(self._part(instructions, index, first))
            index += 1
            if parts[-1] == ("LOAD_FAST", 0):
                index = self._skip_methods(instructions, index)
        kind = code.co_flags & _KINDS, code.co_argcount - first, code.co_kwonlyargcount, code.co_exceptiontable
        return kind, code.co_freevars, code.co_cellvars, tuple(parts)

    def _part(self, instructions: list[dis.Instruction], index: int, first: int) -> Any:
        instruction = instructions[index]
        name, code = instruction.opname, instruction.opcode
        if name == "LOAD_CONST":
            return name, self._constant(instruction.argval)
        if code in dis.haslocal:
            assert instruction.arg is not None
            return name, instruction.arg - first
        if code in dis.hasjrel or code in dis.hasjabs:
            # By how many instructions, whatever was left out between here and there.
            low, high = sorted((instruction.offset, instruction.argval))
            distance = sum(low <= each.offset < high for each in instructions)
            return name, distance if instruction.argval > instruction.offset else -distance
        return name, instruction.argval if code in dis.hasname else instruction.arg

    def _constant(self, value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return self._shape(value, 0)
        if value is not None:
            self.constants.append(value)
        return value is None

    def _skip_methods(self, instructions: list[dis.Instruction], index: int) -> int:
        """Behind ``.lower()`` and its like."""
        while [each.opname for each in instructions[index : index + 3]] == ["LOAD_METHOD", "PRECALL", "CALL"]:
            method, _, call = instructions[index : index + 3]
            if call.arg or method.argval not in _CASES | _STRIPS:
                break
            self.methods.append(method.argval)
            index += 3
        return index


@lru_cache(maxsize=1)
def _templates() -> dict[Any, list[Any]]:
    """The constants of each form, by its shape."""
    templates: dict[Any, list[Any]] = {}
    for form in _FORMS:
        for made in ("word", f"(word, {_OTHER})"):
            for at in ("", repr(_SEPARATOR)):
                namespace: dict[str, Any] = {}
                exec(form.format(at=at, made=made), namespace)  # noqa: S102 - the texts above
                reading = _Reading.of(namespace["f"].__code__, 0)
                templates[reading.shape] = reading.constants
    return templates


def _filled(template: list[Any], reading: _Reading) -> WordSplit | None:
    """The form with the constants of the function; None where these change what it does."""
    given = dict(zip(template, reading.constants, strict=True))
    separator = given.get(_SEPARATOR)
    other = tuple(given[each] for each in template if each == _OTHER)
    cases = tuple(method for method in reading.methods if method in _CASES)
    if _SEPARATOR in given:
        is_one = type(separator) is str and len(separator) == 1 and separator.isascii() and separator != "\0"
        # A separator of the other case is none any more; and of each line the ends are stripped, not of all together.
        if not is_one or len(cases) < len(reading.methods) or any(getattr(separator, case)() != separator for case in cases):
            return None
    return WordSplit(separator, cases, other) if all(map(is_literal, other)) else None
