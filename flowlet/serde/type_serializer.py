"""``TypeSerializer``: writes, reads and copies values of one declared type; and how errors show records.

The fields of rows by name or by position.

Side:       pure.
Invariants: ``deserialize`` reads exactly what ``serialize`` wrote.  A copy shares nothing mutable with its original.  A
            value that does not fit is refused with the path to it, before a reader could see any of its bytes.  To show
            a record never raises.
Source:     Flink ``TypeSerializer``.  The bytes are those of Flink's serializer of the same type, so it can read single
            records.
Absent:     serializer snapshots and state migration.
"""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowlet.common.types import Row, RowFieldsError, are_positions, field_names_of, fields_by_name
from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput

__all__ = ["are_positions", "fields_in_order"]


def fields_in_order(value: Any, names: list[str]) -> Sequence[Any]:
    """The fields of a row in the order of these names, as ``fields_by_name``: a ``Row`` of ours or of Spark's has names
    of its own.

    Where the names are but positions (f0, f1, ...), those of Spark do not count.

    Raises:
        ValueMismatchError: it lacks one, or has another one; names it.
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

    ``path``: of the value in its record, such as ``address.lines[2]``; empty for the record itself.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"field {path!r}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def within(self, step: str) -> "ValueMismatchError":
        """The same error, seen from the value around this one; ``step`` is a field name or ``[index]``."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return ValueMismatchError(self.reason, f"{step}{separator}{self.path}")


class TypeSerializer(ABC):
    """The serializer of one type.  Threading: any; it has no state.  ``repr`` names it in error messages."""

    __slots__ = ()

    @property
    def is_immutable(self) -> bool:
        """Whether values need no copy."""
        return False

    @property
    def min_size_bytes(self) -> int:
        """The size of the smallest value; a count that cannot fit into the bytes is refused before anything is
        allocated.
        """
        return 1

    @abstractmethod
    def serialize(self, value: Any, output: DataOutput) -> None:
        """Append the value's bytes.

        Raises:
            ValueMismatchError: the value is not of the type; names the field and the value.  Bytes of earlier fields
                stay appended.
        """

    @abstractmethod
    def deserialize(self, source: DataInput) -> Any:
        """Read the next value; a new object unless it is immutable.  Raises SerdeError: the bytes are corrupt."""

    def copy(self, value: Any) -> Any:
        """A copy that may change independently of the original; None stays None.

        Raises:
            ValueMismatchError: the value is not of the type.
        """
        return value if self.is_immutable or value is None else self._copy(value)

    def copy_all(self, values: list[Any]) -> list[Any]:
        """A new list with a ``copy`` of each value."""
        return values[:] if self.is_immutable else [self.copy(value) for value in values]

    def to_bytes(self, value: Any) -> bytes:
        """The bytes of one value, as for state."""
        output = DataOutput()
        self.serialize(value, output)
        return bytes(output.buffer)

    def from_bytes(self, data: bytes | memoryview) -> Any:
        """The value in ``data``.

        Raises SerdeError: the bytes are corrupt, or some are left; names this serializer and the offset.
        """
        source = DataInput(data)
        value = self.read(source)
        if source.remaining:
            raise SerdeError(f"broken serialization: {self!r} left {source.remaining} of {len(data)} bytes")
        return value

    def read(self, source: DataInput) -> Any:
        """As ``deserialize``, but every error names this serializer and the position in ``source``."""
        try:
            return self.deserialize(source)
        except Exception as error:  # constructors may raise anything for corrupt bytes
            reason = str(error) if isinstance(error, SerdeError) else f"{type(error).__name__}: {error}"
            raise SerdeError(f"broken serialization: {self!r} at byte {source.position}: {reason}") from error

    def _copy(self, value: Any) -> Any:
        """Copy a mutable value: through its bytes, unless a subclass has a faster way."""
        return self.from_bytes(self.to_bytes(value))

    def __repr__(self) -> str:
        return type(self).__name__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


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
