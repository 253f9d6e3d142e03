"""``Configuration``: options by name.

Side:   pure.
Rules:  each value has a text, as in a configuration file, which is Flink's; a value that was set as a number, bool or
        bytes is kept beside it for ``add_all_to_dict``.  A getter parses the text, and names the option if it cannot.
Source: PyFlink ``pyflink.common.configuration``.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from flowlet.common.checks import is_name
from flowlet.common.written_values import number_text
from flowlet.errors import ConfigError

if TYPE_CHECKING:
    from flowlet.common.config_options import ConfigOption

__all__ = ["Configuration"]

T = TypeVar("T")
_Names = set[str]  # a name of its own, because the class below has a method ``set``


class Configuration:
    """A mutable set of options; one thread.

    Raises: every getter raises ``ConfigError`` if the option's value is not of its type.
    """

    __slots__ = ("_options", "_values")

    def __init__(self, other: "Configuration | None" = None) -> None:
        given: object = other
        if isinstance(given, Mapping):
            raise ConfigError("Configuration() copies another one; Configuration.from_dict() takes a dict of options")
        self._options: dict[str, str] = {} if other is None else dict(other._options)
        self._values: dict[str, object] = {} if other is None else dict(other._values)  # those that are no texts

    @classmethod
    def from_dict(cls, map: Mapping[str, str]) -> "Configuration":  # noqa: A002  # PyFlink's name
        """Make a configuration with the options of a dict."""
        configuration = cls()
        for key, value in map.items():
            configuration.set_string(key, value)
        return configuration

    @staticmethod
    def parse_list_value(value: str | None) -> list[str]:
        """Parse the items of a list option: ``["a", "b"]`` or ``a;b``; none of None.

        Raises ConfigError: it is half a list.
        """
        text = (value or "").strip()
        if not text.startswith("["):
            return [item.strip() for item in text.split(";") if item.strip()]
        try:
            items = json.loads(text)
        except json.JSONDecodeError:
            items = [
                item.strip().strip("'\"")
                for item in text.removeprefix("[").removesuffix("]").split(",")
                if item.strip()
            ]
        if not text.endswith("]") or not isinstance(items, list):
            raise ConfigError(f"not a list: {value!r}; write it as ['a', 'b'] or a;b")
        return [item if isinstance(item, str) else json.dumps(item) for item in items]

    def get(self, option: "ConfigOption[T]", override_default: T | None = None) -> T | None:
        """Return the value of a typed option; where it is not set, ``override_default``, else its own default.

        Not in PyFlink, but in Flink.
        """
        text = self._options.get(option.key)
        if text is not None:
            return option.parse(text)
        return option.default if override_default is None else override_default

    def set(self, option: "ConfigOption[T]", value: T) -> "Configuration":
        """Set a typed option.  Not in PyFlink, but in Flink.  Raises ConfigError: the value is not of its type."""
        return self._keep(option.key, option.write(value), value)

    def contains(self, option: "ConfigOption[Any]") -> bool:
        """Whether a typed option is set.  Not in PyFlink, but in Flink."""
        return option.key in self._options

    def get_string(self, key: str, default_value: str) -> str:
        """Return the option as text."""
        return self._options.get(key, default_value)

    def set_string(self, key: str, value: str) -> "Configuration":
        """Set an option to a text."""
        if not is_name(key) or not isinstance(value, str):
            raise ConfigError(
                f"an option is a text, and so is its name, got {key!r}: {value!r}; use set_boolean(), set_integer() or "
                "set_float() for other values"
            )
        self._options[key] = value
        self._values.pop(key, None)
        return self

    def get_integer(self, key: str, default_value: int) -> int:
        """Return the option as a whole number."""
        return self._parsed(key, default_value, int, "a whole number")

    def set_integer(self, key: str, value: int) -> "Configuration":
        """Set an option to a whole number."""
        return self._keep(key, str(int(value)), int(value))

    def get_boolean(self, key: str, default_value: bool) -> bool:  # noqa: FBT001  # PyFlink's signature
        """Return the option as a boolean."""
        return self._parsed(key, default_value, parse_boolean, "true or false")

    def set_boolean(self, key: str, value: bool) -> "Configuration":  # noqa: FBT001  # PyFlink's signature
        """Set an option to a boolean."""
        return self._keep(key, "true" if value else "false", bool(value))

    def get_float(self, key: str, default_value: float) -> float:
        """Return the option as a number."""
        return self._parsed(key, float(default_value), float, "a number")

    def set_float(self, key: str, value: float) -> "Configuration":
        """Set an option to a number."""
        return self._keep(key, number_text(float(value)), float(value))

    def get_bytearray(self, key: str, default_value: bytearray) -> bytearray:
        """Return the option as bytes, from base64."""
        return self._parsed(key, bytearray(default_value), _parse_bytes, "base64")

    def set_bytearray(self, key: str, value: bytearray) -> "Configuration":
        """Set an option to bytes, stored as base64."""
        return self._keep(key, base64.b64encode(value).decode("ascii"), bytearray(value))

    def key_set(self) -> _Names:
        """Return the names of all options that are set."""
        return set(self._options)

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Copy all options into a dict; each has the type that it was set with."""
        target_dict.update(self._options | self._values)

    def add_all(self, other: "Configuration", prefix: str | None = None) -> "Configuration":
        """Copy all options of another configuration, with a prefix before their names if given."""
        for key, text in other._options.items():
            self._keep((prefix or "") + key, text, other._values.get(key, text))
        return self

    def contains_key(self, key: str) -> bool:
        """Whether the option is set."""
        return key in self._options

    def to_dict(self) -> dict[str, str]:
        """Return all options, as Flink's text: ``true``, ``1.0E10``, ``10 s``."""
        return dict(self._options)

    def remove_config(self, key: str) -> bool:
        """Unset the option; False if it was not set."""
        self._values.pop(key, None)
        return self._options.pop(key, None) is not None

    def _keep(self, key: str, text: str, value: object) -> "Configuration":
        self.set_string(key, text)
        if not isinstance(value, str):
            self._values[key] = value
        return self

    def _parsed(self, key: str, default_value: T, parse: Callable[[str], T], allowed: str) -> T:
        text = self._options.get(key)
        return default_value if text is None else parsed_option(key, text, parse, allowed)

    def __hash__(self) -> int:
        return hash(frozenset(self._options.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._options == other._options

    def __str__(self) -> str:
        return str(self._options)


def parsed_option(name: str, text: str, parse: Callable[[str], T], allowed: str) -> T:
    """Parse the value of an option's text.

    Args:
        name: the option's, for the error.
        text: what it is set to.
        parse: makes the value; ValueError: the text is not of the type.
        allowed: what the text must be, for the error.

    Raises:
        ConfigError: it is not.
    """
    try:
        return parse(text.strip())
    except ValueError:
        raise ConfigError(f"option {name!r} is {text!r}, which is not {allowed}") from None


def parse_boolean(text: str) -> bool:
    """Parse ``true`` or ``false``, in any case.  Raises ValueError: it is neither."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_bytes(text: str) -> bytearray:
    return bytearray(base64.b64decode(text, validate=True))
