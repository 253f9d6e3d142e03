"""Shows records in error messages.

Side:       pure.
Invariants: to show a record never raises.
"""

import reprlib
from collections.abc import Iterator
from typing import Any

MAX_PREVIEW_CHARACTERS = 200


def last_of(values: list[Any], position: Iterator[Any]) -> Any:
    """The record that a list iterator over ``values`` returned last; it returned at least one."""
    return values[len(values) - position.__length_hint__() - 1]  # type: ignore[attr-defined]  # list iterators have it


class _PreviewRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = 10
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
