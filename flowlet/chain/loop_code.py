"""The text of a generated loop, and whose fault an error in it is.

A chain runs as one loop of calls: each operator writes the statements that process one record.  What is generated is only the plumbing;
users' functions are called as they are, and nothing here looks into them.

Side:       task.
Invariants: a line calls at most one user's function, so the number of the line that failed says which.
Source:     ``linecache`` asks the module's loader for the text (PEP 302, ``get_source``): tracebacks and debuggers show it.
"""

import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flowlet.chain.preview import preview
from flowlet.errors import UserFunctionError

_BLAMES: Final = "__flowlet_blames__"
_FOLDER: Final = Path(__file__).parent  # tracebacks for users leave out what lies here
# CPython compiles at most 20 nested loops and 100 levels of indentation; a chain that needs more goes on in a function of its own.
MAX_BLOCKS: Final = 12
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Blame:
    """Whose fault an error in a line is.

    ``operator_name`` and ``subtask``: as the error names them.  ``record``: the variable that holds the record.  ``results``: the variable
    that holds what the function returned, where the line iterates over it.  ``advice``: the error for a result that cannot be iterated.
    """

    operator_name: str
    subtask: int
    record: str
    results: str | None = None
    advice: Callable[[Any], Exception] | None = None


class LoopCode:
    """A function in the making.

    Args:
        title: for people who see the text in a debugger.
        drain: passes on what waits in all ends of the loop.
    """

    def __init__(self, title: str, drain: Callable[[], None]) -> None:
        self._title = title
        self.drain = drain
        self._body: list[str] = []
        self._ends: list[str] = []
        self._starts: list[str] = []
        self._blames: dict[int, Blame] = {}  # by index in the body
        self._indentation = 2
        self._values: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # by id of the value
        self._num_variables = 0
        self._shared: set[str] = set()
        self.num_blocks = 0
        self.counts: dict[int, str] = {}  # by id of an operator: how many records it is given, as an expression

    def variable(self, prefix: str) -> str:
        """A local variable that is not used yet."""
        self._num_variables += 1
        return f"{prefix}{self._num_variables}"

    def bind(self, value: Any, prefix: str) -> str:
        """What to write where this very object is meant."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}_{len(self._values)}"
            self._values[name] = value
        return name

    @contextmanager
    def sharing(self, variable: str, *, is_shared: bool = True) -> Iterator[None]:
        """Statements written inside are not the last ones that read the variable: its object must not be handed over there, but a copy."""
        is_new = is_shared and variable not in self._shared
        if is_new:
            self._shared.add(variable)
        yield
        if is_new:
            self._shared.discard(variable)

    def is_shared(self, variable: str) -> bool:
        """Whether the variable is read again behind what is written now."""
        return variable in self._shared

    def line(self, text: str, blame: Blame | None = None) -> None:
        """One statement."""
        if blame is not None:
            self._blames[len(self._body)] = blame
        self._body.append("    " * self._indentation + text)

    @contextmanager
    def block(self, head: str, blame: Blame | None = None) -> Iterator[None]:
        """A statement with others in it."""
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
        """A statement before the loop."""
        self._starts.append("    " + text)

    def at_end(self, text: str) -> None:
        """A statement after the loop, also when it fails."""
        self._ends.append("        " + text)

    def define(self, parameters: str) -> Callable[..., Any]:
        """The function."""
        ends = self._ends or ["        pass"]
        # As defaults, bound values are local variables: 1 ns less for each look at one, of which there are dozens per record.
        bound = [f"{name}={name}" for name in ("type", "len", *self._values)]
        head = [f"# {self._title!a}", f"def run({', '.join([parameters, *bound] if parameters else bound)}):", *self._starts, "    try:"]
        lines = [*head, *(self._body or ["        pass"]), "    finally:", *ends]
        # Line numbers count from 1.
        blames = {index + len(head) + 1: blame for index, blame in self._blames.items()}
        text = "\n".join(lines) + "\n"
        namespace = {"__name__": __name__, "__loader__": _Source(text), _BLAMES: blames, **self._values}
        path = str(_FOLDER / f"<generated {next(_numbers)}>.py")
        exec(compile(text, path, "exec", dont_inherit=True), namespace)  # noqa: S102 - plumbing of ours around the user's calls
        function: Callable[..., Any] = namespace["run"]
        return function


@dataclass(frozen=True, slots=True)
class _Source:
    """The loader of one module, whose text is here."""

    text: str

    def get_source(self, _: str) -> str:
        return self.text


def failure_of(error: Exception) -> Exception:
    """What to raise for an error in a generated loop, and raise it ``from`` its ``__cause__``: the error itself if no user is to blame."""
    if isinstance(error, UserFunctionError):
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
    failure = UserFunctionError(blame.operator_name, blame.subtask, preview(variables.get(blame.record)))
    failure.__cause__ = error
    if entry.tb_next is None and type(error) is TypeError and blame.results is not None and blame.advice is not None:
        results = variables.get(blame.results)
        if not hasattr(type(results), "__iter__"):
            failure.__cause__ = blame.advice(results)
    return failure
