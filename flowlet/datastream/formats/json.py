"""``JsonRowDeserializationSchema`` and ``JsonRowSerializationSchema``: messages of JSON as values of a declared type, and back.

Side:   pure.  They are pickled with the job, and called on the thread of one task.
Rules:  an object is a ``Row`` by the names of its fields, whatever their order; an array a list, tuple or array.  Dates and times are
        texts in ISO 8601, bytes are in base64.  A field that is missing is None.  Plain values become what Java makes of them: integers
        wrap around, a number is a text of its digits.
Source: PyFlink ``pyflink.datastream.formats.json``; Flink ``JsonRowDeserializationSchema``, ``JsonRowSerializationSchema``.
Absent: types by JSON schema.
"""

import base64
import binascii
import datetime
import decimal
from collections.abc import Callable
from typing import Any, Final, NoReturn, Self

import msgspec

from flowlet.common.conversion import to_declared_element
from flowlet.common.serialization import DeserializationSchema, SerializationSchema
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from flowlet.common.types import Row
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.datastream.user_functions.argument_checks import check_type_information
from flowlet.errors import JobGraphError

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_FLOATS: Final = msgspec.json.Decoder()
_DECIMALS: Final = msgspec.json.Decoder(float_hook=decimal.Decimal)
_ARRAYS: Final = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo, PrimitiveArrayTypeInfo)
_DATES: Final[dict[type[TypeInformation], Callable[[str], Any]]] = {
    DateTypeInfo: datetime.date.fromisoformat,
    TimeTypeInfo: lambda text: datetime.time.fromisoformat(text).replace(tzinfo=None),
    TimestampTypeInfo: lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=None),
}


class JsonRowDeserializationSchema(DeserializationSchema):
    """Messages of JSON as values of a type; made by ``builder``.

    A message that is no JSON, or does not fit, fails the job, unless parse errors are ignored: then a part of it that does not fit is None,
    and a message that does not fit at all is left out.  Both are counted.
    """

    def __init__(self, type_info: TypeInformation, *, fails_on_missing_field: bool = False, ignores_parse_errors: bool = False) -> None:
        self._type_info = type_info
        self._is_exact = BasicType.BIG_DEC.value in repr(type_info)  # then numbers are read as decimals
        self._fails_on_missing_field = fails_on_missing_field
        self._ignores_parse_errors = ignores_parse_errors

    @staticmethod
    def builder() -> "JsonRowDeserializationSchema.Builder":
        """A builder of a schema."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Any:
        """The value; None for a message without one.  ValueError: it does not fit."""
        if message is None:
            return None
        try:
            found = (_DECIMALS if self._is_exact else _FLOATS).decode(message)
            return self._exact(found, self._type_info)
        except (ValueError, TypeError, ArithmeticError) as error:
            if self._ignores_parse_errors:
                self.num_unparsable_records += 1
                return None
            raise ValueError(f"a message of JSON does not fit {self._type_info}: {error}; it is {bytes(message[:200])!r}") from error

    def get_produced_type(self) -> TypeInformation:
        """The type that was given."""
        return self._type_info

    def _read(self, value: Any, wanted: TypeInformation) -> Any:
        try:
            return self._exact(value, wanted)
        except (ValueError, TypeError, ArithmeticError):
            if not self._ignores_parse_errors:
                raise
            self.num_unparsable_fields += 1
            return None

    def _exact(self, value: Any, wanted: TypeInformation) -> Any:
        if value is None:
            return None
        if isinstance(wanted, RowTypeInfo):
            return self._row(value, wanted)
        if isinstance(wanted, PrimitiveArrayTypeInfo) and isinstance(value, str):
            return _from_base64(value)
        if isinstance(wanted, _ARRAYS):
            return [self._read(each, wanted.elem_type) for each in _list(value)]
        if isinstance(wanted, TupleTypeInfo):
            return self._tuple(value, wanted)
        if isinstance(wanted, MapTypeInfo):
            return {key: self._read(each, wanted.value_type_info) for key, each in _object(value).items()}
        parse = _DATES.get(type(wanted))
        if parse is not None:
            return parse(value)
        return value if isinstance(wanted, PickledBytesTypeInfo) else _plain(value, wanted)

    def _row(self, value: Any, wanted: RowTypeInfo) -> Row:
        fields, names = _object(value), wanted.get_field_names()
        if self._fails_on_missing_field and (missing := [name for name in names if name not in fields]):
            raise ValueError(f"the field {missing[0]!r} is missing")
        row = Row(*(self._read(fields.get(name), kind) for name, kind in zip(names, wanted.get_field_types(), strict=True)))
        row.set_field_names(names)
        return row

    def _tuple(self, value: Any, wanted: TupleTypeInfo) -> tuple[Any, ...]:
        kinds = wanted.get_field_types()
        if len(_list(value)) != len(kinds):
            raise ValueError(f"an array of {len(kinds)} is expected, got {value!r}")
        return tuple(self._read(each, kind) for each, kind in zip(value, kinds, strict=True))

    class Builder:
        """Builds a ``JsonRowDeserializationSchema``."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._fails_on_missing_field = False
            self._ignores_parse_errors = False

        def type_info(self, type_info: TypeInformation) -> Self:
            """The type of the values, mostly ``Types.ROW_NAMED``.  Raises JobGraphError: it is no type."""
            check_type_information(type_info, "type_info")
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> NoReturn:
            """Always raises JobGraphError: a JSON schema cannot be read."""
            raise JobGraphError("json_schema(): JSON schemas are not read; give the type with type_info()")

        def fail_on_missing_field(self) -> Self:
            """A field that is missing is an error; by default it is None."""
            self._fails_on_missing_field = True
            return self

        def ignore_parse_errors(self) -> Self:
            """Let parts that do not fit be None, and leave out messages that are no JSON; by default they fail the job."""
            self._ignores_parse_errors = True
            return self

        def build(self) -> "JsonRowDeserializationSchema":
            """The schema.  Raises JobGraphError: it has no type, or both rules for what does not fit."""
            if self._type_info is None:
                raise JobGraphError("JsonRowDeserializationSchema needs the type of its values: type_info()")
            if self._fails_on_missing_field and self._ignores_parse_errors:
                raise JobGraphError("JsonRowDeserializationSchema can fail_on_missing_field() or ignore_parse_errors(), not both")
            return JsonRowDeserializationSchema(
                self._type_info,
                fails_on_missing_field=self._fails_on_missing_field,
                ignores_parse_errors=self._ignores_parse_errors,
            )


class JsonRowSerializationSchema(SerializationSchema):
    """Values as messages of JSON; made by ``builder``."""

    def __init__(self, type_info: TypeInformation) -> None:
        self._names = type_info.get_field_names() if isinstance(type_info, RowTypeInfo) else None

    @staticmethod
    def builder() -> "JsonRowSerializationSchema.Builder":
        """A builder of a schema."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes | None:
        """The message; of a row or tuple, an object by the names of the fields.  ValueError: it has not as many fields as the type."""
        if element is None:
            return None
        if self._names is not None and isinstance(element, (Row, tuple, list)):
            element = dict(zip(self._names, element, strict=True))
        return JsonLinesEncoder().encode(element)[:-1]

    class Builder:
        """Builds a ``JsonRowSerializationSchema``."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> Self:
            """The type of the values, whose names the fields get.  Raises JobGraphError: it is no type."""
            check_type_information(type_info, "with_type_info")
            self._type_info = type_info
            return self

        def build(self) -> "JsonRowSerializationSchema":
            """The schema.  Raises JobGraphError: it has no type."""
            if self._type_info is None:
                raise JobGraphError("JsonRowSerializationSchema needs the type of its values: with_type_info()")
            return JsonRowSerializationSchema(self._type_info)


def _plain(value: Any, wanted: TypeInformation) -> Any:
    if isinstance(wanted, BasicTypeInfo) and wanted.basic_type is BasicType.BIG_DEC and isinstance(value, int):
        return decimal.Decimal(value)
    if isinstance(value, decimal.Decimal) and not (isinstance(wanted, BasicTypeInfo) and wanted.basic_type is BasicType.BIG_DEC):
        value = float(value)
    return to_declared_element(value, wanted)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object is expected, got {value!r}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"an array is expected, got {value!r}")
    return value


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes in base64 are expected, got {text!r}") from error
