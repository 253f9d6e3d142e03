"""Functions that are made from text, in which calls of users' functions are replaced by what these compute.

Side:       pure.
Invariants: a traceback shows what it would show if the user's function had been called: its file, its line, its name.
Units:      line numbers from ``_FIRST_PLACE`` on are not lines of the text but places: which call, and where in the user's source.
Source:     ``linecache`` asks the module's loader for the text, so that debuggers and tracebacks show it (PEP 302, ``get_source``); the
            entry in the traceback is that of a real frame, which is made for it.
"""

import ast
import contextlib
import itertools
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dis import Positions
from pathlib import Path
from typing import Any, Final

from flowlet.fusing.inlining import Expression, inline_expression

_FIRST_PLACE: Final = 1_000_000
_PLACES: Final = "__flowlet_places__"
_FOLDER: Final = Path(__file__).parent  # tracebacks for users leave out what lies here
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in the text."""

    name: str  # its stand-in in the text
    function: Any
    arguments: tuple[str, ...]
    label: Any
    expression: Expression | None


@dataclass(frozen=True, slots=True)
class _Place:
    """What a line number means."""

    call: _Call
    line: int  # of the text
    positions: Positions | None  # in the source of the function, if it is inlined


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Which call of a generated function failed: what was said about it when it was made, and what it was given."""

    label: Any
    arguments: tuple[Any, ...]


class GeneratedFunction:
    """Text of a function in the making.

    Use: ``call`` for each call of a user's function gives what to write there; ``define`` with the whole text gives the function.
    Around calls of it: ``except Exception as error: failed_call(error)``.

    Args:
        title: for people who see the text in a debugger.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._calls: list[_Call] = []
        self._values: dict[str, Any] = {}

    def call(self, function: Any, *arguments: str, label: Any = None) -> str:
        """What to write where ``function(*arguments)`` is meant: inlined if that is the same, else a call.

        Args:
            function: the user's.
            arguments: names of variables.
            label: comes back from ``failed_call``.
        """
        call = _Call(f"_call{len(self._calls)}_", function, arguments, label, inline_expression(function, len(arguments)))
        self._calls.append(call)
        return call.name

    def value(self, value: Any) -> str:
        """What to write where this very object is meant."""
        name = f"_value{len(self._values)}_"
        self._values[name] = value
        return name

    def define(self, text: str) -> Callable[..., Any]:
        """The function.

        Args:
            text: of one ``def`` statement; indented as a whole or not.
        """
        text = textwrap.dedent(text).strip()
        module = ast.parse(text)
        assert isinstance(module.body[0], ast.FunctionDef), "the text is one def statement"
        places: list[_Place] = []
        namespace = {"__name__": __name__, _PLACES: places, **self._values}
        filler = _Filler({call.name: call for call in self._calls}, namespace, places)
        filled = filler.visit(module)
        namespace["__loader__"] = _Source(f"# {self._title}\n{_with_calls(text, filler.written)}\n")
        path = str(_FOLDER / f"<generated {next(_numbers)}>.py")
        exec(compile(ast.increment_lineno(filled), path, "exec", dont_inherit=True), namespace)  # noqa: S102 - of what is called anyway
        function: Callable[..., Any] = namespace[module.body[0].name]
        return function


class _Filler(ast.NodeTransformer):
    """Puts expressions and calls in the place of their stand-ins."""

    def __init__(self, calls: Mapping[str, _Call], namespace: dict[str, Any], places: list[_Place]) -> None:
        self._calls = calls
        self._namespace = namespace
        self._places = places
        self.written: dict[str, str] = {}  # by stand-in

    def visit_Name(self, node: ast.Name) -> ast.expr:
        call = self._calls.get(node.id)
        if call is None:
            return node
        # Line 1 of the file is the title.
        filled = self._called(call, node.lineno + 1) if call.expression is None else self._inlined(call, call.expression, node.lineno + 1)
        self.written[call.name] = ast.unparse(filled).replace("\n", "\\n")
        return filled

    def _inlined(self, call: _Call, expression: Expression, line: int) -> ast.expr:
        constants = [f"{call.name}constant{index}" for index in range(len(expression.constants))]
        self._namespace.update(zip(constants, expression.constants, strict=True))
        return expression.tree(call.arguments, constants, lambda positions: self._number(_Place(call, line, positions)))

    def _called(self, call: _Call, line: int) -> ast.expr:
        name = f"{call.name}function"
        self._namespace[name] = call.function
        number = self._number(_Place(call, line, None))
        tree = ast.Call(ast.Name(name, ast.Load()), [ast.Name(argument, ast.Load()) for argument in call.arguments], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                node.lineno = node.end_lineno = number
                node.col_offset = node.end_col_offset = 0
        return tree

    def _number(self, place: _Place) -> int:
        self._places.append(place)
        return _FIRST_PLACE + len(self._places) - 2  # increment_lineno adds one to every line


@dataclass(frozen=True, slots=True)
class _Source:
    """The loader of one module, whose text is here."""

    text: str

    def get_source(self, _: str) -> str:
        return self.text


def _with_calls(text: str, written: Mapping[str, str]) -> str:
    return re.sub(r"\b_call\d+_\b", lambda match: written.get(match[0], match[0]), text)


def failed_call(error: BaseException) -> FailedCall | None:
    """Which call of a generated function raised; None if it was none of them.  The error's traceback shows the user's line from now on."""
    failed: FailedCall | None = None
    entries: list[types.TracebackType] = []
    for entry in _entries(error.__traceback__):
        place = _place_of(entry)
        if place is None:
            entries.append(entry)
            continue
        # Without an instruction, tracebacks show the line that is given here.
        entries.append(types.TracebackType(None, entry.tb_frame, -1, place.line))
        if place.call.expression is not None:
            entries.append(_users_entry(place, place.call.expression))
        if failed is None:
            variables = entry.tb_frame.f_locals
            failed = FailedCall(place.call.label, tuple(variables[name] for name in place.call.arguments))
    if failed is not None:
        error.__traceback__ = _linked(entries)
    return failed


def _entries(entry: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while entry is not None:
        following = entry.tb_next
        yield entry
        entry = following


def _linked(entries: Sequence[types.TracebackType]) -> types.TracebackType:
    for entry, following in itertools.pairwise(entries):
        entry.tb_next = following
    return entries[0]


def _place_of(entry: types.TracebackType) -> _Place | None:
    places: list[_Place] | None = entry.tb_frame.f_globals.get(_PLACES)
    if places is None or entry.tb_lineno < _FIRST_PLACE:
        return None
    return places[entry.tb_lineno - _FIRST_PLACE]


class _HereError(Exception):
    """Raised to get a frame."""


def _users_entry(place: _Place, expression: Expression) -> types.TracebackType:
    """The entry that a call of the user's function would have left in the traceback."""
    code, positions = expression.code, place.positions or Positions()
    line = positions.lineno or code.co_firstlineno
    column = positions.col_offset or 0
    end_line, end_column = positions.end_lineno or line, positions.end_col_offset or column
    where = {"lineno": line, "end_lineno": end_line, "col_offset": column, "end_col_offset": end_column}
    statement = ast.Raise(ast.Name("here", ast.Load(), **where), None, **where)
    module = compile(ast.Module([statement], []), code.co_filename, "exec", dont_inherit=True)
    # Where linecache finds the source of modules that are in no file.
    of_module = {name: place.call.function.__globals__.get(name) for name in ("__name__", "__loader__")}
    here = _HereError()
    with contextlib.suppress(_HereError):
        exec(module.replace(co_name=code.co_name, co_qualname=code.co_qualname), {"here": here, **of_module})  # noqa: S102 - one raise
    *_, entry = _entries(here.__traceback__)
    return entry
