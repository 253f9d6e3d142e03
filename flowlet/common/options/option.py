"""``Option``: the name, type, default and reader of one option.

Side:   pure.
Units:  durations in milliseconds.
Rules:  a parser takes the text of an option and raises ValueError if it is not of the type.
Source: Flink ``ConfigOption``.
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from flowlet.common.configuration import Configuration
from flowlet.common.units.duration_text import duration_nanos
from flowlet.errors import ConfigError
from netstack.late import dataclass

T = TypeVar("T")

_NANOS_PER_MS: Final = 1_000_000
_TEXTS_OF_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option that something reads.

    Args:
        name: as in Flink if Flink has it.
        parse: makes the value of the text; ValueError: it is not of the type.
        allowed: what a value must be, for the error.
        default: the value where the option is not set; None: its reader decides.
        reader: what reads it, for people.
        other_names: older names for the same, which count if ``name`` is not set.
    """

    name: str
    parse: Callable[[str], T]
    allowed: str
    default: T | None
    reader: str
    other_names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, the one that counts first."""
        return (self.name, *self.other_names)

    def find(self, options: Configuration) -> T | None:
        """The value that is set; None if none is.  Raises ConfigError: the value is not of the type."""
        for name in self.names:
            if options.contains_key(name):
                return self.checked(name, options.get_string(name, ""))
        return None

    def get(self, options: Configuration) -> T:
        """The value that is set, else the default.  Raises ConfigError: the value is not of the type."""
        found = self.find(options)
        if found is not None:
            return found
        assert self.default is not None, f"{self.name} has no default"
        return self.default

    def is_set(self, options: Configuration) -> str | None:
        """The name under which it is set; None if it is not."""
        return next((name for name in self.names if options.contains_key(name)), None)

    def set(self, options: Configuration, value: object) -> None:
        """Set the option.  Raises ConfigError: the value is not of the type."""
        text = _TEXT_OF[value] if isinstance(value, bool) else str(value)
        self.checked(self.name, text)
        for name in self.other_names:
            options.remove_config(name)
        options.set_string(self.name, text)

    def checked(self, name: str, text: str) -> T:
        """The value of a text that stands under one of the names.  Raises ConfigError: it is not of the type."""
        try:
            return self.parse(text.strip())
        except ValueError:
            raise ConfigError(f"option {name!r} is {text!r}, which is not {self.allowed}") from None


_TEXT_OF: Final = {value: text for text, value in _TEXTS_OF_BOOLEANS.items()}


def text(name: str, reader: str, *other_names: str, allowed: str = "a text that is not empty") -> Option[str]:
    """An option that is any text."""
    return Option(name, _parse_text, allowed, None, reader, other_names)


def boolean(name: str, reader: str, *other_names: str, default: bool | None = None) -> Option[bool]:
    """An option that is true or false."""
    return Option(name, _parse_boolean, "true or false", default, reader, other_names)


def whole_number(name: str, reader: str, *other_names: str, lowest: int, default: int | None = None) -> Option[int]:
    """An option that is an integer of at least ``lowest``."""
    return Option(name, _at_least(int, lowest), f"a whole number of {lowest} or more", default, reader, other_names)


def number(name: str, reader: str, *, lowest: float, highest: float, default: float) -> Option[float]:
    """An option that is a number."""

    def parse(text: str) -> float:
        value = float(text)
        if not lowest <= value <= highest:
            raise ValueError(text)
        return value

    return Option(name, parse, f"a number from {lowest:g} to {highest:g}", default, reader)


def duration(
    name: str, reader: str, *other_names: str, lowest_ms: int = 0, default_ms: int | None = None
) -> Option[int]:
    """An option that is a length of time in milliseconds."""
    least = f" of {lowest_ms} ms or more" if lowest_ms else ""
    allowed = f"a duration such as '10 s' or '1 min'{least}"
    return Option(name, _at_least(duration_ms, lowest_ms), allowed, default_ms, reader, other_names)


def choice(name: str, reader: str, choices: Mapping[str, T], *other_names: str, default: T | None = None) -> Option[T]:
    """An option that is one of several words, in any case."""

    def parse(text: str) -> T:
        try:
            return choices[text.lower()]
        except KeyError:
            raise ValueError(text) from None

    return Option(name, parse, f"one of {', '.join(choices)}", default, reader, other_names)


def duration_ms(text: str) -> int:
    """The milliseconds of a duration such as ``10 s``, rounded down.  Raises ValueError: it is none."""
    return duration_nanos(text) // _NANOS_PER_MS


def _at_least(parse: Callable[[str], int], lowest: int) -> Callable[[str], int]:
    def checked(text: str) -> int:
        value = parse(text)
        if value < lowest:
            raise ValueError(text)
        return value

    return checked


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _parse_boolean(text: str) -> bool:
    try:
        return _TEXTS_OF_BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError(text) from None
