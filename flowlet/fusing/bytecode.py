"""The instructions of functions that are one expression.

Side:   pure.
Source: the module ``dis``; CPython 3.11 to 3.13.  Bytecode that is not known here is never guessed at: whoever asks gets None.
"""

import dis
import inspect
import types
from typing import Any

_CALLING_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# They do nothing: RESUME is where tracing starts, CACHE room for the interpreter.
_NO_OPERATIONS = frozenset({"RESUME", "NOP", "CACHE"})


def plain_code(function: Any) -> types.CodeType | None:
    """The code of a function that takes nothing but positional arguments, needs no variables but them, and catches nothing; or None."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    if code.co_flags & _CALLING_FLAGS or code.co_kwonlyargcount or code.co_freevars or code.co_cellvars:
        return None
    # What is in a ``try`` has the instructions that it would have outside; only the table tells them apart.
    return None if code.co_exceptiontable else code


def instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    """What the code does, without what does nothing."""
    return [instruction for instruction in dis.get_instructions(code) if instruction.opname not in _NO_OPERATIONS]
