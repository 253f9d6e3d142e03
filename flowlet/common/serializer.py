"""``TypeSerializer``: how values of one type become bytes.

Side:   pure.
Source: PyFlink ``pyflink.common.serializer``.
Absent: a place to register one: records and states are serialized by their declared types.
"""

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

__all__ = ["TypeSerializer"]

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Writes values of one type into a stream of bytes, and reads them back."""

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO) -> None:
        """Append a value to the stream."""

    @abstractmethod
    def deserialize(self, stream: BytesIO) -> T:
        """Read the next value of the stream."""

    def __repr__(self) -> str:
        return type(self).__name__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))
