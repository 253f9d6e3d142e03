"""Functions that are made from text, in which calls of users' functions are replaced by what these compute.

Side:       pure.
Invariants: a traceback shows what it would show if the user's function had been called: its file, its line, its name.
Units:      columns from ``_FIRST_PLACE`` on are not columns of the text but places: which call, and where in the user's source.
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

_FIRST_PLACE: Final = 100_000  # no line of text is that long
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
    positions: Positions | None  # in the source of the function, if it is inlined


@dataclass(slots=True)
class _Places:
    """What the columns of a module mean; and, where Python keeps no columns (``PYTHONNODEBUGRANGES``), its lines."""

    by_column: list[_Place]
    by_line: dict[int, _Place]  # the whole call: of one line there is no more to know
    otherwise: _Place | None = None

    def of(self, entry: types.TracebackType) -> _Place | None:
        """Where a frame of this module stands; None if at no call."""
        # Two bytes per instruction.
        *_, column, _ = next(itertools.islice(entry.tb_frame.f_code.co_positions(), entry.tb_lasti // 2, None))
        if column is None:
            return self.by_line.get(entry.tb_lineno)
        return self.by_column[column - _FIRST_PLACE] if column >= _FIRST_PLACE else None


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

    def define(self, text: str, *, blamed: str | None = None) -> Callable[..., Any]:
        """The function.

        Args:
            text: of one ``def`` statement; indented as a whole or not; no line has two calls.
            blamed: the call (as ``call`` gave it) that is said to have failed when the text around the calls raises.
        """
        text = textwrap.dedent(text).strip()
        module = ast.parse(text)
        assert isinstance(module.body[0], ast.FunctionDef), "the text is one def statement"
        places = _Places([], {})
        namespace = {"__name__": __name__, _PLACES: places, **self._values}
        filler = _Filler({call.name: call for call in self._calls}, namespace, places)
        filled = filler.visit(module)
        places.otherwise = next((_Place(call, None) for call in self._calls if call.name == blamed), None)
        namespace["__loader__"] = _Source(f"# {self._title}\n{_with_calls(text, filler.written)}\n")
        path = str(_FOLDER / f"<generated {next(_numbers)}>.py")
        # Line 1 of the file is the title.
        exec(compile(ast.increment_lineno(filled), path, "exec", dont_inherit=True), namespace)  # noqa: S102 - of what is called anyway
        function: Callable[..., Any] = namespace[module.body[0].name]
        return function


class _Filler(ast.NodeTransformer):
    """Puts expressions and calls in the place of their stand-ins."""

    def __init__(self, calls: Mapping[str, _Call], namespace: dict[str, Any], places: _Places) -> None:
        self._calls = calls
        self._namespace = namespace
        self._places = places
        self.written: dict[str, str] = {}  # by stand-in

    def visit_Name(self, node: ast.Name) -> ast.expr:
        call = self._calls.get(node.id)
        if call is None:
            return node
        filled = self._called(call) if call.expression is None else self._inlined(call, call.expression)
        # The whole is numbered last.  Line 1 of the file is the title.
        self._places.by_line[node.lineno + 1] = self._places.by_column[-1]
        for each in ast.walk(filled):
            if isinstance(each, ast.expr):
                each.lineno = each.end_lineno = node.lineno
        self.written[call.name] = _readable(filled, call)
        return filled

    def _inlined(self, call: _Call, expression: Expression) -> ast.expr:
        constants = [f"{call.name}constant{index}" for index in range(len(expression.constants))]
        self._namespace.update(zip(constants, expression.constants, strict=True))
        return expression.tree(call.arguments, constants, lambda positions: self._number(_Place(call, positions)))

    def _called(self, call: _Call) -> ast.expr:
        name = call.name + (_identifier(call.function) or "function")  # read by people who debug
        self._namespace[name] = call.function
        number = self._number(_Place(call, None))
        tree = ast.Call(ast.Name(name, ast.Load()), [ast.Name(argument, ast.Load()) for argument in call.arguments], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                node.col_offset = node.end_col_offset = number
        return tree

    def _number(self, place: _Place) -> int:
        self._places.by_column.append(place)
        return _FIRST_PLACE + len(self._places.by_column) - 1


def _readable(tree: ast.expr, call: _Call) -> str:
    """What a debugger shows: a call where Python has no text for the tree (a backslash inside of an f-string)."""
    try:
        return ast.unparse(tree).replace("\n", "\\n")
    except ValueError:
        return f"{_identifier(call.function) or 'function'}({', '.join(call.arguments)})"


def _identifier(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if type(name) is str and name.isidentifier() else ""


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
    otherwise: FailedCall | None = None
    entries: list[types.TracebackType] = []
    for entry in _entries(error.__traceback__):
        places: _Places | None = entry.tb_frame.f_globals.get(_PLACES)
        place = None if places is None else places.of(entry)
        if places is not None and places.otherwise is not None:
            otherwise = _failed(places.otherwise, entry)
        if place is None:
            entries.append(entry)
            continue
        # Without an instruction, tracebacks show the line and no columns.
        entries.append(types.TracebackType(None, entry.tb_frame, -1, entry.tb_lineno))
        if place.call.expression is not None:
            entries.append(_users_entry(place, place.call.expression))
        failed = failed or _failed(place, entry)
    if failed is not None:
        error.__traceback__ = _linked(entries)
    return failed or otherwise


def _failed(place: _Place, entry: types.TracebackType) -> FailedCall:
    variables = entry.tb_frame.f_locals
    return FailedCall(place.call.label, tuple(variables.get(name) for name in place.call.arguments))


def _entries(entry: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while entry is not None:
        following = entry.tb_next
        yield entry
        entry = following


def _linked(entries: Sequence[types.TracebackType]) -> types.TracebackType:
    for entry, following in itertools.pairwise(entries):
        entry.tb_next = following
    return entries[0]


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
