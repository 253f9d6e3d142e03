"""``ConfigOption`` and ``ConfigOptions``: options with a type and a default, for ``Configuration.get`` and ``set``.

Side:   pure.
Rules:  a value becomes the text that a configuration file would have, and back.
Source: PyFlink ``pyflink.common.config_options``; the types that PyFlink lacks from Flink's ``ConfigOptions``.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.configuration import Configuration, parse_boolean, parsed_option
from flowlet.common.time import Duration
from flowlet.common.written_values import MemorySize, duration_nanos, duration_text, number_text, parse_bytes
from flowlet.errors import ConfigError
from netstack.late import dataclass

__all__ = ["ConfigOption", "ConfigOptions"]

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
_PLAIN: Final = re.compile(r"[^\s,;:'\"#\[\]{}]+( [^\s,;:'\"#\[\]{}]+)*")  # an item that YAML needs no quotes for


@dataclass(frozen=True, slots=True)
class _Kind(Generic[T]):
    """One type of options.

    ``parse`` makes a value of its text, and raises ValueError if it is none; ``write`` makes the text, of a value that
    ``is_value``.
    """

    name: str
    parse: Callable[[str], T]
    write: Callable[[T], str]
    is_value: Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class ConfigOption(Generic[T]):
    """An option; made by ``ConfigOptions.key(...)``.

    Args:
        key: its name.
        kind: its type.
        default: its value where it is not set; None: it has none.
    """

    key: str
    kind: _Kind[T]
    default: T | None = None

    def __repr__(self) -> str:
        return f"ConfigOption({self.key!r}, {self.kind.name}, default {self.default!r})"

    def parse(self, text: str) -> T:
        """Parse a text as a value.  Raises ConfigError: it is not of the type."""
        return parsed_option(self.key, text, self.kind.parse, self.kind.name)

    def write(self, value: T) -> str:
        """Write a value as text.  Raises ConfigError: it is not of the type."""
        if not self.kind.is_value(value):
            raise ConfigError(f"option {self.key!r} must be {self.kind.name}, got {value!r}")
        return self.kind.write(value)


class ConfigOptions:
    """Makes options: ``ConfigOptions.key("retries").int_type().default_value(3)``."""

    @staticmethod
    def key(key: str) -> "ConfigOptions.OptionBuilder":
        """Begin an option of that name.  Raises ConfigError: it is empty."""
        if not is_name(key):
            raise ConfigError(f"the name of an option is a text that is not empty, got {key!r}")
        return ConfigOptions.OptionBuilder(key)

    class OptionBuilder:
        """An option without a type yet."""

        def __init__(self, key: str) -> None:
            self._key = key

        def boolean_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[bool]":
            """Take true or false."""
            return self._typed(_BOOLEAN)

        def int_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[int]":
            """Take a whole number."""
            return self._typed(_WHOLE)

        def long_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[int]":
            """Take a whole number."""
            return self._typed(_WHOLE)

        def float_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[float]":
            """Take a number."""
            return self._typed(_NUMBER)

        def double_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[float]":
            """Take a number."""
            return self._typed(_NUMBER)

        def string_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[str]":
            """Take any text."""
            return self._typed(_TEXT)

        def duration_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[Duration]":
            """Take a length of time such as ``1 min``; a number alone is milliseconds.  Not in PyFlink."""
            return self._typed(_DURATION)

        def memory_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[MemorySize]":
            """Take a size such as ``64 mb``.  Not in PyFlink."""
            return self._typed(_MEMORY)

        def enum_type(self, enum_class: type[E]) -> "ConfigOptions.TypedConfigOptionBuilder[E]":
            """Take a member of an enum, by its name in any case.  Not in PyFlink."""
            return self._typed(_enum(enum_class))

        def map_type(self) -> "ConfigOptions.TypedConfigOptionBuilder[dict[str, str]]":
            """Take texts by name: ``a:1,b:2`` or ``{"a": "1"}``.  Not in PyFlink."""
            return self._typed(_MAP)

        def _typed(self, kind: _Kind[T]) -> "ConfigOptions.TypedConfigOptionBuilder[T]":
            return ConfigOptions.TypedConfigOptionBuilder(self._key, kind)

    class TypedConfigOptionBuilder(Generic[T]):
        """An option with a type, which may still become a list."""

        def __init__(self, key: str, kind: _Kind[T]) -> None:
            self._key = key
            self._kind = kind

        def as_list(self) -> "ConfigOptions.TypedConfigOptionBuilder[list[T]]":
            """Take a list of such values: ``a;b`` or ``[a, b]``.  Not in PyFlink."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, _list_of(self._kind))

        def default_value(self, value: T) -> "ConfigOption[T]":
            """Make the option with a default.  Raises ConfigError: it is not of the type."""
            option = ConfigOption(self._key, self._kind, value)
            option.write(value)
            return option

        def no_default_value(self) -> "ConfigOption[T]":
            """Make the option without a default: None where it is not set."""
            return ConfigOption(self._key, self._kind)


def _duration_text(value: Duration | timedelta) -> str:
    """Write a length of time as Flink does: in the largest unit that holds it in whole numbers."""
    nanos = value.nanos if isinstance(value, Duration) else round(value.total_seconds() * 1_000_000) * 1_000
    return duration_text(nanos)


def parse_map(text: str) -> dict[str, str]:
    """Parse texts by name: ``a:1,b:2`` or ``{"a": "1"}``.  Raises ValueError: it is neither."""
    if text.startswith("{"):
        found = json.loads(text)  # its error is a ValueError
        return {str(name): each if isinstance(each, str) else json.dumps(each) for name, each in found.items()}
    pairs = (each.partition(":") for each in text.split(",") if each.strip())
    found = {}
    for name, colon, value in pairs:
        if not colon:
            raise ValueError(text)
        found[name.strip()] = value.strip()
    return found


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)


def _enum(enum_class: type[E]) -> _Kind[E]:
    members = {member.name.lower().replace("-", "_"): member for member in enum_class}

    def parse(text: str) -> E:
        try:
            return members[text.lower().replace("-", "_")]
        except KeyError:
            raise ValueError(text) from None

    names = ", ".join(member.name for member in enum_class)
    return _Kind(f"one of {names}", parse, lambda value: value.name, lambda value: isinstance(value, enum_class))


def _list_of(kind: _Kind[T]) -> _Kind[list[T]]:
    def parse(text: str) -> list[T]:
        try:
            items = Configuration.parse_list_value(text)
        except ConfigError as error:
            raise ValueError(text) from error
        return [kind.parse(item) for item in items]

    def write(values: list[T]) -> str:
        texts = [kind.write(value) for value in values]
        return f"[{', '.join(texts)}]" if all(map(_PLAIN.fullmatch, texts)) else json.dumps(texts, ensure_ascii=False)

    def is_value(value: object) -> bool:
        return isinstance(value, list | tuple) and all(map(kind.is_value, value))

    return _Kind(f"a list, of which each item is {kind.name}", parse, write, is_value)


_BOOLEAN: Final = _Kind(
    "true or false", parse_boolean, lambda value: str(value).lower(), lambda value: isinstance(value, bool)
)
_WHOLE: Final = _Kind("a whole number", int, str, is_whole_number)
_NUMBER: Final[_Kind[float]] = _Kind(
    "a number",
    float,
    lambda value: number_text(float(value)),
    lambda value: is_whole_number(value) or isinstance(value, float),
)
_TEXT: Final[_Kind[str]] = _Kind("a text", str, str, lambda value: isinstance(value, str))
_DURATION: Final[_Kind[Any]] = _Kind(
    "a duration such as '10 s' or '1 min'",
    lambda text: Duration(duration_nanos(text)),
    _duration_text,
    lambda value: isinstance(value, Duration | timedelta),
)
_MEMORY: Final = _Kind(
    "a size such as '64 mb'",
    lambda text: MemorySize(parse_bytes(text)),
    str,
    lambda value: isinstance(value, MemorySize),
)
_MAP: Final = _Kind("of the form name:value,name:value", parse_map, lambda value: json.dumps(dict(value)), _is_map)
