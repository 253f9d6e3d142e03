"""The texts by which errors show records and name the values in them; the fields of rows by name or by position.

Side:       pure.
Invariants: showing a record never raises.
"""

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowlet.common.types import Row, RowFieldsError, are_positions, field_names_of, fields_by_name
from flowlet.errors import SerdeError


def fields_in_order(value: Any, names: list[str]) -> Sequence[Any]:
    """The fields of a row in the order of these names, as ``fields_by_name``; a ``Row``, flowlet's or Spark's, has
    field names of its own.

    Where the wanted names are only positions (f0, f1, ...), the names in Spark's rows do not count.

    Raises:
        ValueMismatchError: the row lacks a field, or has another one; the message names it.
    """
    try:
        if isinstance(value, Row):
            return fields_by_name(field_names_of(value), list(value), names)
        return fields_by_name(None if are_positions(names) else getattr(value, "__fields__", None), value, names)
    except RowFieldsError as error:
        raise ValueMismatchError(f"{preview(value)} is {error}") from None


MAX_PREVIEW_CHARACTERS: Final = 200


class ValueMismatchError(SerdeError):
    """A value is not of the declared type.

    ``path``: the value's place in its record, such as ``address.lines[2]``; empty for the record itself.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"field {path!r}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def within(self, step: str) -> "ValueMismatchError":
        """This error, seen from the value around this one; ``step`` is a field name or ``[index]``."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return ValueMismatchError(self.reason, f"{step}{separator}{self.path}")


def mismatch(value: Any, expected: str) -> ValueMismatchError:
    """The error to raise if ``value`` is not ``expected``."""
    return ValueMismatchError(f"{preview(value)} is of type {_type_name(value)}, not {expected}")


class _PreviewRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = (
            self.maxarray
        ) = 10
        self.maxstring = self.maxother = 120
        self.maxlong = 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    def repr_instance(self, value: Any, level: int) -> str:
        text = str.__str__(repr(value))
        return text if len(text) <= self.maxother else text[: self.maxother - 3] + "..."


_preview_repr = _PreviewRepr()


def preview(record: object) -> str:
    """The ``repr`` of a record: one line, at most 200 characters, encodable in UTF-8.  Never raises."""
    try:
        text = _preview_repr.repr(record)
        text = text.encode("utf-8", "backslashreplace").decode().replace("\r", "\\r").replace("\n", "\\n")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's __repr__, which may call sys.exit, must not hide the failure
        text = f"<a {_type_name(record)} whose repr raised {_type_name(error)}>"
    return text if len(text) <= MAX_PREVIEW_CHARACTERS else text[: MAX_PREVIEW_CHARACTERS - 3] + "..."


def _type_name(value: object) -> str:
    # Neither ``value.__class__`` nor an attribute of the metaclass: users can make both raise.
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name.encode("utf-8", "backslashreplace").decode()


def last_of(values: list[Any], position: Iterator[Any]) -> Any:
    """The record that a list iterator over ``values`` returned last; it returned at least one."""
    return values[len(values) - position.__length_hint__() - 1]  # type: ignore[attr-defined]  # list iterators have it
