"""Records as bytes, and back: what connectors to message systems need.

Side:   pure.
Source: PyFlink ``pyflink.common.serialization``.  There the classes wrap Java objects; here your own class has ``serialize`` or
        ``deserialize``.
"""

import codecs
from abc import ABC, abstractmethod
from typing import Any

from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation, Types
from flowlet.errors import JobGraphError

__all__ = ["ByteArraySchema", "DeserializationSchema", "SerializationSchema", "SimpleStringSchema"]


class SerializationSchema(ABC):
    """Turns a record into bytes; it travels with the job."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes | None:
        """The bytes of one record; None is a message without a value."""


class DeserializationSchema(ABC):
    """Turns bytes into a record; it travels with the job."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The record; None: there is none in these bytes, which is no error."""

    def get_produced_type(self) -> TypeInformation:
        """The type of the records; any, unless overridden."""
        return PickledBytesTypeInfo()


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts; bytes outside the charset are replaced when they are read, as in Java.

    Raises:
        JobGraphError: the charset is unknown.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            self.charset = codecs.lookup(charset).name
        except (LookupError, TypeError) as error:
            raise JobGraphError(
                f"SimpleStringSchema: the charset {charset!r} is unknown; use one that Python knows, such as UTF-8"
            ) from error

    def serialize(self, element: Any) -> bytes:
        """The text as bytes.  TypeError: it is no text."""
        if not isinstance(element, str):
            raise TypeError(f"SimpleStringSchema writes texts, got {element!r} of type {type(element).__name__}")
        return element.encode(self.charset)

    def deserialize(self, message: bytes) -> str:
        """The text."""
        return message.decode(self.charset, "replace")

    def get_produced_type(self) -> TypeInformation:
        """Texts."""
        return Types.STRING()


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes, as they are."""

    def serialize(self, element: Any) -> bytes:
        """The bytes.  TypeError: they are none."""
        if not isinstance(element, bytes | bytearray | memoryview):
            raise TypeError(f"ByteArraySchema writes bytes, got {element!r} of type {type(element).__name__}")
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        """The bytes."""
        return message

    def get_produced_type(self) -> TypeInformation:
        """Bytes."""
        return Types.PICKLED_BYTE_ARRAY()
