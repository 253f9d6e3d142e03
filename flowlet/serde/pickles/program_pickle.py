"""Pickles of users' functions and classes by value, which keep the names of the files that they come from.

cloudpickle 3.1.3 writes ``<dynamic-code>`` in the place of a file's name, so that equal functions of different files have equal pickles.
A user's traceback would then name no file and show no line.

Side: pure.
"""

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

_Reduction = tuple[Callable[..., Any], tuple[Any, ...]]
_reduce_code: Callable[[CodeType], _Reduction] = cloudpickle.Pickler.dispatch_table[CodeType]


_STATE = 2  # the place of an object's state in what reduces it


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _reduce_code_with_file(code: CodeType) -> _Reduction:
    make, arguments = _reduce_code(code)
    return _code_of_file, (code.co_filename, make, arguments)


class ProgramPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler, for code objects with their files."""

    dispatch_table = ChainMap({CodeType: _reduce_code_with_file}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, obj: Any) -> Any:
        """cloudpickle's, with the qualified name of a class within another class, which cloudpickle 3.1.3 cuts down to the last part."""
        reduced = super().reducer_override(obj)
        if issubclass(type(obj), type) and type(reduced) is tuple and obj.__qualname__ != obj.__name__:
            state = reduced[2] if len(reduced) > _STATE else None
            if type(state) is tuple and type(state[0]) is dict and "__module__" in state[0]:
                state[0]["__qualname__"] = obj.__qualname__
        return reduced


def dumps(value: object, protocol: int | None = None) -> bytes:
    """The pickle of ``value``.  Raises whatever pickling raises."""
    file = io.BytesIO()
    ProgramPickler(file, protocol).dump(value)
    return file.getvalue()
