"""``FrozenList``: a list in the repository of what must not change, and how it is compared and written.

Format: one item per line, sorted: ``KEY`` or ``KEY  VALUE``, with two spaces between; lines that begin with ``#`` are
        comments.
Rules:  a key with another value has changed.  An addition fails, too, until it is accepted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "lists"
COMMAND: Final = "python -m tests.frozen"
_BETWEEN: Final = "  "


@dataclass(frozen=True, slots=True)
class Difference:
    """Items that are gone, have another value (old, new), or are new; by key."""

    gone: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    added: Mapping[str, str]

    @property
    def is_break(self) -> bool:
        return bool(self.gone or self.changed)

    def lines(self) -> list[str]:
        """Return the lines for a reader, one per item."""
        return [
            *(f"  gone:    {_line(key, value)}" for key, value in self.gone.items()),
            *(
                f"  changed: {key}{_BETWEEN}{old}\n      now: {key}{_BETWEEN}{new}"
                for key, (old, new) in self.changed.items()
            ),
            *(f"  added:   {_line(key, value)}" for key, value in self.added.items()),
        ]


@dataclass(frozen=True, slots=True)
class FrozenList:
    """A list of items.

    Args:
        name: of the file, without its suffix.
        title: what the items are.
        gather: finds the items as they are today: ``KEY`` or ``KEY  VALUE``.
        advice: what to do about an item that is gone or has changed, besides putting it back.
    """

    name: str
    title: str
    gather: Callable[[], Iterable[str]]
    advice: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def read(self) -> dict[str, str]:
        """The stored items: values by key."""
        if not self.path.exists():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return items_of(line for line in lines if line and not line.startswith("#"))

    def difference(self, found: Mapping[str, str] | None = None) -> Difference:
        """Return how today's items differ from the stored ones."""
        stored = self.read()
        today = items_of(self.gather()) if found is None else found
        return Difference(
            {key: value for key, value in stored.items() if key not in today},
            {key: (value, today[key]) for key, value in stored.items() if key in today and today[key] != value},
            {key: value for key, value in today.items() if key not in stored},
        )

    def complaint(self, difference: Difference) -> str:
        """Return the differences and what to do about them; empty: there are none."""
        lines = difference.lines()
        if not lines:
            return ""
        where = self.path.relative_to(FOLDER.parent.parent.parent)
        told = [f"{self.title} differ from {where}:", *lines]
        if difference.is_break:
            told += [
                (
                    "What is gone or has changed breaks what was written for the last version: put it "
                    f"back.{self.advice and ' '}{self.advice}"
                ),
                f"A break that is meant: {COMMAND} --write --break {self.name}, and a line in the changelog.",
            ]
        if difference.added:
            told.append(f"What was added is promised from now on.  Accept it: {COMMAND} --write {self.name}")
        return "\n".join(told)

    def check(self) -> None:
        """Raises AssertionError: something is gone, has changed or was added; the message names it, and says what to
        do.
        """
        told = self.complaint(self.difference())
        assert not told, told

    def write(self, *, accepts_breaks: bool) -> Difference:
        """Put today's items into the file; without ``accepts_breaks`` only those that were added.

        Returns what differed.
        """
        today = items_of(self.gather())
        difference = self.difference(today)
        items = today if accepts_breaks else {**self.read(), **difference.added}
        head = f"# {self.title}.  {COMMAND} --write {self.name} adds lines.\n"
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(head + "".join(f"{_line(key, items[key])}\n" for key in sorted(items)), encoding="utf-8")
        return difference


def items_of(lines: Iterable[str]) -> dict[str, str]:
    """Return the values by key.

    Raises ValueError: a key is there twice, with another value, or an item has more than one line.
    """
    items: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(_BETWEEN)
        if "\n" in line or items.setdefault(key, value) != value:
            raise ValueError(f"{line!r} is no single item")
    return items


def _line(key: str, value: str) -> str:
    return f"{key}{_BETWEEN}{value}" if value else key
