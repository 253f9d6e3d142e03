"""Records as bytes, and back: ``Encoder`` for files, schemas for message systems.

Side:   pure.  They are pickled with the job, and called on the thread of one task.
Source: PyFlink ``pyflink.common.serialization``, where the classes wrap Java objects; Flink ``Encoder``,
        ``SimpleStringEncoder``.  Your own encoder has ``encode``, your own schema ``serialize`` or ``deserialize``,
        which PyFlink lacks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from flowlet.common.checks import check_number, known_charset
from flowlet.common.not_yet import explain_missing_names
from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation, Types
from flowlet.errors import JobGraphError

__all__ = [
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]


class Encoder:
    """Writes records into a file of a row format; your own encoder has ``encode``."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of one record, with its end, such as a line end."""
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """Return the bytes of many records; override it where one call for many is cheaper."""
        return b"".join(map(self.encode, values))

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> "Encoder":
        """Make an encoder of a line per record: its ``str``, or in a file sink, if its stream has a declared type, the
        text that Java gives it.

        Raises:
            JobGraphError: the charset is unknown, or begins every text with a mark of its own.
        """
        known_charset(charset_name, "simple_string_encoder")
        if "".encode(charset_name):
            raise JobGraphError(
                f"simple_string_encoder: {charset_name} begins every text with a byte order mark, which would be "
                "inside files; use UTF-8, or one with a fixed order, such as UTF-16LE"
            )
        return LineEncoder(charset_name)


class LineEncoder(Encoder):
    """A line per record; made by ``Encoder.simple_string_encoder``.

    Args:
        charset: one that begins no text with a mark of its own.
        text: the line of a record; of a ``str`` it is the ``str`` itself.
    """

    def __init__(self, charset: str, text: Callable[[Any], str] = str) -> None:
        self._charset = charset
        self._text = text

    def with_text(self, text: Callable[[Any], str]) -> "LineEncoder":
        """Make an encoder that makes lines by another function."""
        return LineEncoder(self._charset, text)

    def encode(self, value: Any) -> bytes:
        """Return one line."""
        return f"{self._text(value)}\n".encode(self._charset)

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """Return a line for each; nothing for none."""
        lines = values if set(map(type, values)) == {str} else list(map(self._text, values))
        return ("\n".join(lines) + "\n").encode(self._charset) if lines else b""


class SerializationSchema(ABC):
    """Turns a record into bytes; it travels with the job."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes | None:
        """Return the bytes of one record; None is a message without a value."""


class DeserializationSchema(ABC):
    """Turns bytes into a record; it travels with the job.

    A schema that leaves out data that does not fit counts it; a source shows these counts as metrics of its operator.
    ``num_unparsable_records``: messages for which ``deserialize`` returned None because they do not fit.
    ``num_unparsable_fields``: fields that became None.
    """

    num_unparsable_records: int = 0
    num_unparsable_fields: int = 0

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """Return the record; None: there is none in these bytes, which is no error."""

    def get_produced_type(self) -> TypeInformation:
        """Return the type of the records; any, unless overridden."""
        return PickledBytesTypeInfo()


class TypedDeserializationSchema(DeserializationSchema):
    """Texts as values of a declared type.

    A message that does not fit fails the job, unless parse errors are ignored: then a part that does not fit is None.
    A subclass has ``_decode``, which gives the text or its parts, and ``_read``, which makes a value of them.
    """

    _what: ClassVar[str]  # the name of a message, in errors
    _errors: ClassVar[tuple[type[Exception], ...]]  # the errors of a message that does not fit
    _decode: Callable[[bytes], Any]
    _read: Callable[[Any], Any]

    def __init__(self, type_info: TypeInformation, *, ignores_parse_errors: bool) -> None:
        self._type_info = type_info
        self._ignores_parse_errors = ignores_parse_errors

    def deserialize(self, message: bytes) -> Any:
        """Return the value; None for a message without one.  ValueError: it does not fit."""
        if message is None:
            return None
        try:
            found = self._decode(message)
            return None if found is None else self._read(found)
        except self._errors as error:
            if self._ignores_parse_errors:
                self.num_unparsable_records += 1
                return None
            raise ValueError(
                f"{self._what} does not fit {self._type_info}: {error}; it is {bytes(message[:200])!r}"
            ) from error

    def get_produced_type(self) -> TypeInformation:
        """Return the type that was given."""
        return self._type_info

    def _lenient(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return ``read`` itself; if parse errors are ignored, a function that gives None for a part
        that does not fit.
        """
        if not self._ignores_parse_errors:
            return read

        def read_or_none(part: Any) -> Any:
            try:
                return read(part)
            except self._errors:
                self.num_unparsable_fields += 1
                return None

        return read_or_none


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts; bytes outside the charset are replaced when they are read, as in Java.

    Raises:
        JobGraphError: the charset is unknown.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = known_charset(charset, "SimpleStringSchema")

    def serialize(self, element: Any) -> bytes:
        """Encode the text.  TypeError: it is no text."""
        if not isinstance(element, str):
            raise TypeError(
                f"SimpleStringSchema writes texts, got {element!r} of type {type(element).__name__}; make one with "
                "map() before the sink"
            )
        return element.encode(self.charset)

    def deserialize(self, message: bytes) -> str:
        """Decode the text."""
        return message.decode(self.charset, "replace")

    def get_produced_type(self) -> TypeInformation:
        """Return the type of texts."""
        return Types.STRING()


class RowFieldExtractorSchema(SerializationSchema):
    """One field of a row or tuple, which must be bytes: for the key or the value of a message.

    Raises:
        JobGraphError: the position is no whole number of 0 or more.
    """

    def __init__(self, field_index: int) -> None:
        check_number(field_index, 0, "RowFieldExtractorSchema needs the position of a field, 0 or more")
        self._field_index = field_index

    def serialize(self, element: Any) -> bytes | None:
        """Return the field; None if it is None.  TypeError: it is not bytes; IndexError: there is no such field."""
        value = element[self._field_index]
        if value is not None and not isinstance(value, (bytes, bytearray)):
            raise TypeError(f"field {self._field_index} must be bytes, got {value!r} of type {type(value).__name__}")
        return None if value is None else bytes(value)


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes, unchanged."""

    def serialize(self, element: Any) -> bytes:
        """Return the bytes.  TypeError: they are none."""
        if not isinstance(element, bytes | bytearray | memoryview):
            raise TypeError(f"ByteArraySchema writes bytes, got {element!r} of type {type(element).__name__}")
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        """Return the bytes."""
        return message

    def get_produced_type(self) -> TypeInformation:
        """Return the type of bytes."""
        return Types.PICKLED_BYTE_ARRAY()


explain_missing_names(__name__)
