"""``Option``: the row of one option: its names, type, bounds and default.

Side:   pure.
Units:  durations in milliseconds.
Rules:  a parser takes the text of an option and raises ValueError if it is not of the type.  A row whose value travels
        with a job is the field of a settings class, ``timeout_ms: int = duration(...).field()``; any other row is a
        constant of ``client_options``, or stands beside the settings class.  Docstrings say what an option decides.
Source: Flink ``ConfigOption``.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar, cast

from flowlet.common.configuration import Configuration, parse_boolean, parsed_option
from flowlet.common.written_values import duration_nanos
from netstack.late import dataclass

T = TypeVar("T")
S = TypeVar("S")
N = TypeVar("N", int, float)

_NANOS_PER_MS: Final = 1_000_000
_ROW: Final = "option"  # in the metadata of a field


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option that a part of flowlet reads.

    Args:
        name: as in Flink if Flink has it.
        parse: makes the value of the text; ValueError: it is not of the type.
        allowed: what a value must be, for the error and for people.
        default: the value where the option is not set; None: its reader decides.
        other_names: older names of the option, which count if ``name`` is not set.
        least: the least number; the settings that a job brings are held to it, too.
        shown: the default for people, if it is not the text of ``default``.
        is_fixed: there is one value, the default.
    """

    name: str
    parse: Callable[[str], T]
    allowed: str
    default: T | None = None
    other_names: tuple[str, ...] = ()
    least: float | None = None
    shown: str | None = None
    is_fixed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the option, the one that counts first."""
        return (self.name, *self.other_names)

    def find(self, options: Configuration) -> T | None:
        """Return the value that is set; None if none is.  Raises ConfigError: the value is not of the type."""
        name = self.is_set(options)
        return None if name is None else self.checked(name, options.get_string(name, ""))

    def get(self, options: Configuration) -> T:
        """Return the value that is set, else the default.  Raises ConfigError: the value is not of the type."""
        found = self.find(options)
        if found is not None:
            return found
        assert self.default is not None, f"{self.name} has no default"
        return self.default

    def is_set(self, options: Configuration) -> str | None:
        """Return the name under which the option is set; None if it is not."""
        return next((name for name in self.names if options.contains_key(name)), None)

    def set(self, options: Configuration, value: object) -> None:
        """Set the option.  Raises ConfigError: the value is not of the type."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.checked(self.name, text)
        for name in self.other_names:
            options.remove_config(name)
        options.set_string(self.name, text)

    def checked(self, name: str, text: str) -> T:
        """Parse a text that stands under one of the names.  Raises ConfigError: it is not of the type."""
        return parsed_option(name, text, self.parse, self.allowed)

    def field(self, *, default: Any = None) -> T:
        """Make the field of a settings class that holds the value.

        Args:
            default: the field's own, if the option has none.
        """
        value = self.default if default is None else default
        return cast("T", dataclasses.field(default=value, metadata={_ROW: self}))


def text(name: str, *other_names: str, allowed: str = "a text that is not empty") -> Option[str]:
    """Make an option that is any text."""
    return Option(name, parse_text, allowed, None, other_names)


def boolean(name: str, *other_names: str, default: bool | None = None) -> Option[bool]:
    """Make an option that is true or false."""
    return Option(name, parse_boolean, "true or false", default, other_names)


def whole_number(name: str, *other_names: str, least: int, default: int | None = None) -> Option[int]:
    """Make an option that is an integer of at least ``least``."""
    allowed = f"a whole number of {least} or more"
    return Option(name, at_least(int, least), allowed, default, other_names, least=least)


def number(name: str, *, least: float, most: float, default: float) -> Option[float]:
    """Make an option that is a number."""
    return Option(name, at_least(float, least, most), f"a number from {least:g} to {most:g}", default)


def duration(name: str, *other_names: str, least: int = 0, default: int | None = None) -> Option[int]:
    """Make an option that is a length of time in milliseconds."""
    allowed = "a duration such as '10 s' or '1 min'" + (f" of {least} ms or more" if least else "")
    return Option(name, at_least(duration_ms, least), allowed, default, other_names, least=least)


def choice(name: str, choices: Mapping[str, T], *other_names: str, default: str | None = None) -> Option[T]:
    """Make an option that is one of several words, in any case.

    ``default``: the word as people see it, which need not be one of ``choices``: then the field has its own default.
    """

    def parse(text: str) -> T:
        try:
            return choices[text.lower()]
        except KeyError:
            raise ValueError(text) from None

    value = None if default is None else choices.get(default.lower())
    return Option(name, parse, f"one of {', '.join(choices)}", value, other_names, shown=default)


def fixed(name: str, accepted: str, *other_names: str, missing: str) -> Option[str]:
    """Make an option with one value, for a behaviour that does not change; ``missing``: what another
    value would need.
    """
    found = choice(name, {accepted.lower(): accepted}, *other_names, default=accepted)
    allowed = f"possible here: {missing}; use {accepted!r} or leave it out"
    return dataclasses.replace(found, allowed=allowed, is_fixed=True)


def duration_ms(text: str) -> int:
    """Parse a duration such as ``10 s`` as milliseconds, rounded down.  Raises ValueError: it is none."""
    return duration_nanos(text) // _NANOS_PER_MS


def parse_text(text: str) -> str:
    """Return the text itself.  Raises ValueError: it is empty."""
    if not text:
        raise ValueError(text)
    return text


def at_least(parse: Callable[[str], N], least: float, most: float = math.inf) -> Callable[[str], N]:
    """Make a parser of numbers that raises ValueError below ``least``, and above ``most``."""

    def checked(text: str) -> N:
        value = parse(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return checked


def rows_by_field(settings: Any) -> Mapping[str, Option[Any]]:
    """Return the rows of a settings class."""
    return {each.name: each.metadata[_ROW] for each in dataclasses.fields(settings) if _ROW in each.metadata}


def row_of(settings: Any, field: str) -> Option[Any]:
    """Return the row of a field of a settings class."""
    return rows_by_field(settings)[field]


def settings_of(settings: type[S], options: Configuration, **given: object) -> S:
    """Make settings with the values that are set, and the defaults of the class.

    Args:
        settings: a class with rows as fields.
        options: where values are set.
        given: values of fields that have no row, or whatever their rows say.

    Raises:
        ConfigError: an option is not of its type.
    """
    rows = {field: row for field, row in rows_by_field(settings).items() if field not in given}
    found = {field: row.find(options) for field, row in rows.items()}
    return settings(**given | {field: value for field, value in found.items() if value is not None})


def view_of(settings: type[S], options: Configuration) -> S:
    """Make settings whose fields are read from the options each time, one by one; reading one raises ConfigError if its
    value is not of its type.
    """
    return cast("S", _View(settings, options))


class _View:
    __slots__ = ("_options", "_settings")

    def __init__(self, settings: Any, options: Configuration) -> None:
        self._settings = settings
        self._options = options

    def __getattr__(self, field: str) -> Any:
        found = row_of(self._settings, field).find(self._options)
        return self._settings.__dataclass_fields__[field].default if found is None else found
