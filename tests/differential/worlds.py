"""State that the functions of one run share, and the records that they work on.

Side:       any.  The tasks of a job that runs in this process call the functions, and so does the interpreter:
            functions of one run write into its ``World`` alone, so that both can be compared, and a task that ends late
            disturbs nobody.
Invariants: every helper takes records of any type; what it does depends on the record alone.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from flowlet.datastream import OutputTag

# The side outputs of programs, by name.
TAGS: Final = {name: OutputTag(name) for name in ("left", "right")}
# Timestamps are multiples of this; what a function adds to make its timers unique stays below.
TICK_MS: Final = 10_000
_MAX_ITEMS: Final = 100  # of a record that changes


@dataclass
class Point:
    """A record that can change."""

    n: int
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Label:
    """A record that cannot change."""

    name: str
    n: int


@dataclass(frozen=True)
class Box:
    """A record that cannot change, around something that can."""

    inside: Any


class Boom(Exception):
    """An error of functions that shall fail."""


class World:
    """All that the functions of one run share: a log of (step, text), and cells in place of a module's global
    variables.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, str]] = []  # Any thread appends.
        self.cells: dict[str, Any] = {}  # One cell is used by the steps of one task.


_WORLDS: dict[int, World] = {}
_numbers = itertools.count()


def new_world() -> int:
    number = next(_numbers)
    _WORLDS[number] = World()
    return number


def forget_world(number: int) -> World:
    """Take a world out; functions that still run find an empty one, which nobody reads."""
    return _WORLDS.pop(number)


def world(number: int) -> World:
    found = _WORLDS.get(number)
    return World() if found is None else found


# ---------------------------------------------------------------- records of any type


def touch(record: Any) -> None:
    """Change a record, or the first thing in it that can change."""
    match record:
        case list():
            _lengthen(record, "+")
        case dict():
            record["touched"] = record.get("touched", 0) + 1
        case Point():
            record.n += 1
            _lengthen(record.items, "+")
        case Box():
            touch(record.inside)
        case tuple():
            for part in record:
                if isinstance(part, list | dict | Point | Box):
                    touch(part)
                    break
        case _:
            pass


def _lengthen(items: list[Any], more: Any) -> None:
    """Append to a list; a long list gets another last element: a record that grew with each of thousands of touches
    would be compared for minutes.
    """
    if len(items) < _MAX_ITEMS:
        items.append(more)
    else:
        items[-1] = (more, items[-1] != (more, True))


def absorb(so_far: Any, record: Any) -> Any:
    """Put something of a record into what was gathered so far, in place where that is possible."""
    match so_far:
        case list():
            _lengthen(so_far, size(record))
        case dict():
            so_far["sum"] = so_far.get("sum", 0) + size(record)
        case Point():
            _lengthen(so_far.items, size(record))
        case Box():
            touch(so_far)
        case _:
            return [so_far, size(record)]
    return so_far


def size(record: Any) -> int:
    """Return a small number that depends on all of a record."""
    return sum(map(ord, repr(record))) % 7


class Logged:
    """The base of all functions: its state and its log.

    Args:
        world_number: of the run.
        step: the number of the step in its program.
        arguments: of the step, for ``prepare``.
    """

    result: Callable[..., Any]
    """What a class of functions of one kind does at a call, which the base of its kind counts and writes down."""

    def __init__(self, world_number: int, step: int, *arguments: Any) -> None:
        self.world_number = world_number
        self.step = step
        self.calls = 0
        # What a function may keep between its calls.
        self.last: Any = None
        self.found: list[Any] = []
        self.entries: dict[Any, Any] = {}
        self.prepare(*arguments)

    def prepare(self, *arguments: Any, **more: Any) -> None:
        """Take the arguments of the step; each class that has some says which ones."""

    def see(self, *what: Any) -> None:
        world(self.world_number).log.append((self.step, " ".join(map(repr, what))))

    @property
    def cells(self) -> dict[str, Any]:
        """The variables that the functions of one task share."""
        return world(self.world_number).cells


class WithCell(Logged):
    """A function that uses one of the variables that its task shares."""

    def prepare(self, cell: str) -> None:
        self.cell = cell


class Failing(Logged):
    def prepare(self, at: int) -> None:
        self.at = at

    def fail_in(self, name: str, record: Any = None) -> None:
        """Change the record and raise, if this is the call."""
        if self.calls == self.at:
            touch(record)
            raise Boom(f"{name}, call {self.calls}")
