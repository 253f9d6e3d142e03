"""``TypeSerializer``: one value as bytes, back, and copied; what a declared type means for them.

Side:       pure.
Invariants: ``deserialize`` reads exactly what ``serialize`` wrote; a copy shares nothing mutable with its original; a value that does not
            fit is refused before any of its bytes could be read by another, with the path to it.
Source:     Flink ``TypeSerializer``.  Bytes are those of Flink's serializer of the same type, so that single records (tags 0 and 1) can be
            read by it.
Absent:     snapshots of serializers and the migration of state between them.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

from flowlet.errors import SerdeError
from flowlet.serde.types.data_view import DataInput, DataOutput

_PREVIEW_CHARACTERS: Final = 80


class ValueMismatchError(SerdeError):
    """A value is not of the declared type.

    ``path``: where it is in its record, such as ``address.lines[2]``; empty for the record itself.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"field {path!r}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    def within(self, step: str) -> "ValueMismatchError":
        """The same, seen from the value that holds this one: ``step`` is a field's name or ``[index]``."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return ValueMismatchError(self.reason, f"{step}{separator}{self.path}")


class TypeSerializer(ABC):
    """Knows one type.

    Threading: any; it has no state.  ``repr`` is its name in error messages.
    """

    __slots__ = ()

    @property
    def is_immutable(self) -> bool:
        """Whether a copy is the value itself."""
        return False

    @property
    def min_size_bytes(self) -> int:
        """What the smallest value takes; forged counts are refused by it before anything is made."""
        return 1

    @abstractmethod
    def serialize(self, value: Any, output: DataOutput) -> None:
        """Append the value's bytes.

        Raises:
            ValueMismatchError: it is not of the type; names the field and the value.  What was appended for other fields stays.
        """

    @abstractmethod
    def deserialize(self, source: DataInput) -> Any:
        """The next value, a new object unless it is immutable.

        Raises:
            SerdeError: these are not the bytes of one.
        """

    def copy(self, value: Any) -> Any:
        """A value that may change without the original changing; None stays None.

        Raises:
            ValueMismatchError: it is not of the type.
        """
        return value if self.is_immutable or value is None else self._copy(value)

    def copy_all(self, values: list[Any]) -> list[Any]:
        """``copy`` for each; the list is new as well."""
        return values[:] if self.is_immutable else [self.copy(value) for value in values]

    def to_bytes(self, value: Any) -> bytes:
        """The value alone, as for state."""
        output = DataOutput()
        self.serialize(value, output)
        return bytes(output.buffer)

    def from_bytes(self, data: bytes | memoryview) -> Any:
        """The value whose bytes are exactly these.

        Raises:
            SerdeError: they are not, or not all of them were read; names this serializer and the offset.
        """
        source = DataInput(data)
        value = self.read(source)
        if source.remaining:
            raise SerdeError(f"broken serialization: {self!r} left {source.remaining} of {len(data)} bytes")
        return value

    def read(self, source: DataInput) -> Any:
        """``deserialize``, with every error naming this serializer and where in ``source`` it stopped."""
        try:
            return self.deserialize(source)
        except Exception as error:  # foreign bytes: whatever a constructor says to them
            reason = str(error) if isinstance(error, SerdeError) else f"{type(error).__name__}: {error}"
            raise SerdeError(f"broken serialization: {self!r} at byte {source.position}: {reason}") from error

    def _copy(self, value: Any) -> Any:
        """A copy of what can change: by its bytes, unless a serializer knows a shorter way."""
        return self.from_bytes(self.to_bytes(value))

    def __repr__(self) -> str:
        return type(self).__name__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def mismatch(value: Any, expected: str) -> ValueMismatchError:
    """``value`` is not ``expected``: the error to raise."""
    return ValueMismatchError(f"{preview(value)} is of type {type(value).__name__}, not {expected}")


def preview(value: Any) -> str:
    """The value for a message: short, and never an error of its own."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ must not hide what went wrong
        text = f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[: _PREVIEW_CHARACTERS - 3]}..."
