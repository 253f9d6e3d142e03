"""Generates the loop that runs a chain, and tells which user function an error in it belongs to.

Each operator writes the statements that process one record.  Generated text only connects users' functions: it calls
them as they are.

Side:       task.
Invariants: a line calls at most one user function, so the number of a failing line identifies the function.
Source:     ``linecache`` asks the module's loader for the text (PEP 302, ``get_source``): so tracebacks and debuggers
            show it.
"""

import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.serde.type_serializer import preview
from netstack.late import dataclass

_BLAMES: Final = "__flowlet_blames__"
# Generated files seem to lie here, because users' tracebacks leave out this folder.
_FOLDER: Final = Path(__file__).parent
# CPython compiles at most 20 nested loops and 100 levels of indentation.  Where a chain needs more, a function of its
# own continues it.
MAX_BLOCKS: Final = 12
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Blame:
    """The user function that a line calls.

    ``operator_name``, ``subtask``: named in the error.  ``record``: the variable that holds the record.  ``results``:
        the variable that
    holds the function's result, if the line iterates over it.  ``advice``: makes the error for a result that is not
    iterable.  ``cause``: makes the error to show of a record and the error that was raised.
    """

    operator_name: str
    subtask: int
    record: str
    results: str | None = None
    advice: Callable[[Any], Exception] | None = None
    cause: Callable[[Any, BaseException], BaseException] | None = None


class LoopCode:
    """A function that is being generated.

    ``title`` names it in debuggers.  ``drain`` passes on all records that wait in the loop's ends.
    """

    def __init__(self, title: str, drain: Callable[[], None]) -> None:
        self._title = title
        self.drain = drain
        self._body: list[str] = []
        self._ends: list[str] = []
        self._starts: list[str] = []
        self._blames: dict[int, Blame] = {}  # index in the body -> whose fault an error there is
        self._indentation = 2
        self._values: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # id of a bound value -> its name in the text
        self._num_variables = 0
        self._shared: set[str] = set()
        self.num_blocks = 0
        self.counts: dict[int, str] = {}  # id of an operator -> the expression for the number of records that it gets

    def variable(self, prefix: str) -> str:
        """A new name for a local variable."""
        self._num_variables += 1
        return f"{prefix}{self._num_variables}"

    def bind(self, value: Any, prefix: str) -> str:
        """A name for this very object in the text."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}_{len(self._values)}"
            self._values[name] = value
        return name

    @contextmanager
    def sharing(self, variable: str, *, is_shared: bool = True) -> Iterator[None]:
        """Say that the variable is read again behind the statements written inside: these must not hand its object on,
        only a copy.
        """
        is_new = is_shared and variable not in self._shared
        if is_new:
            self._shared.add(variable)
        yield
        if is_new:
            self._shared.discard(variable)

    def is_shared(self, variable: str) -> bool:
        """Whether a later statement reads the variable again."""
        return variable in self._shared

    def line(self, text: str, blame: Blame | None = None) -> None:
        """Append a statement."""
        if blame is not None:
            self._blames[len(self._body)] = blame
        self._body.append("    " * self._indentation + text)

    @contextmanager
    def block(self, head: str, blame: Blame | None = None) -> Iterator[None]:
        """Append a compound statement; what is written inside becomes its body."""
        self.line(head, blame)
        self._indentation += 1
        self.num_blocks += 1
        size = len(self._body)
        yield
        if len(self._body) == size:
            self.line("pass")
        self._indentation -= 1
        self.num_blocks -= 1

    def at_start(self, text: str) -> None:
        """Append a statement that runs before the loop."""
        self._starts.append("    " + text)

    def at_end(self, text: str) -> None:
        """Append a statement that runs after the loop, even if the loop raises."""
        self._ends.append("        " + text)

    def define(self, parameters: str, result: str | None = None, on_error: str | None = None) -> Callable[..., Any]:
        """Compile the function; ``result``: the expression that it returns; ``on_error``: a statement that runs if the
        loop raises.
        """
        ends = self._ends or ["        pass"]
        # Bound values become default arguments, hence local variables: each access costs 1 ns less, and there are
        # dozens per record.
        bound = [f"{name}={name}" for name in ("type", "len", *self._values)]
        head = [
            f"# {self._title!a}",
            f"def run({', '.join([parameters, *bound] if parameters else bound)}):",
            *self._starts,
            "    try:",
        ]
        handler = [] if on_error is None else ["    except BaseException:", f"        {on_error}", "        raise"]
        lines = [*head, *(self._body or ["        pass"]), *handler, "    finally:", *ends]
        if result is not None:
            lines.append(f"    return {result}")
        # Line numbers count from 1.
        blames = {index + len(head) + 1: blame for index, blame in self._blames.items()}
        text = "\n".join(lines) + "\n"
        namespace = {"__name__": __name__, "__loader__": _Source(text), _BLAMES: blames, **self._values}
        exec(_compiled(text), namespace)  # noqa: S102 - plumbing of ours around the user's calls
        function: Callable[..., Any] = namespace["run"]
        return function


@lru_cache(maxsize=256)
def _compiled(text: str) -> types.CodeType:
    """Subtasks of one task have the same loops: each is compiled once in a process, 0.8 ms."""
    return compile(text, str(_FOLDER / f"<generated {next(_numbers)}>.py"), "exec", dont_inherit=True)


@dataclass(frozen=True, slots=True)
class _Source:
    """The loader of one generated module."""

    text: str

    def get_source(self, _: str) -> str:
        return self.text


def operator_in(frame: types.FrameType | None) -> str | None:
    """The operator whose function a thread is in, by its innermost generated loop; None if it is in none."""
    while frame is not None:
        blame = frame.f_globals.get(_BLAMES, {}).get(frame.f_lineno)
        if blame is not None:
            name: str = blame.operator_name
            return name
        frame = frame.f_back
    return None


def failure_of(error: BaseException) -> BaseException:
    """The error to raise ``from`` its ``__cause__`` for an error in a generated loop; the error itself if no user
    function raised it.
    """
    if isinstance(error, UserFunctionError | TaskCancelled):
        return error
    found: tuple[Blame, types.TracebackType] | None = None
    entry = error.__traceback__
    while entry is not None:
        blames: dict[int, Blame] | None = entry.tb_frame.f_globals.get(_BLAMES)
        if blames is not None and entry.tb_lineno in blames:
            found = blames[entry.tb_lineno], entry
        entry = entry.tb_next
    if found is None:
        return error
    blame, entry = found
    variables = entry.tb_frame.f_locals
    record = variables.get(blame.record)
    failure = UserFunctionError(blame.operator_name, blame.subtask, preview(record))
    failure.__cause__ = error if blame.cause is None else blame.cause(record, error)
    if entry.tb_next is None and type(error) is TypeError and blame.results is not None and blame.advice is not None:
        results = variables.get(blame.results)
        if not hasattr(type(results), "__iter__"):
            failure.__cause__ = blame.advice(results)
    return failure
