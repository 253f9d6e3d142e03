"""``JsonRowDeserializationSchema`` and ``JsonRowSerializationSchema``: messages of JSON as values of a declared type,
and back.

Side:   pure.  They are pickled with the job, and called on the thread of one task.
Rules:  an object is a ``Row``, by the names of its fields in any order, or a map, whose keys it has as texts; an array
        is a list, tuple or array.  Dates and times are texts in ISO 8601, bytes are in base64, a float that is no
        number is "NaN", "Infinity" or "-Infinity".  A field that is missing is None, and a field that is not declared
        is left out.  A number, where a text is declared, is the text of its digits.  Values that do not fit into their
        type are errors, in both directions (``field_values``); written values are read equal, but for the kind of a
        row.
Source: PyFlink ``pyflink.datastream.formats.json``; Flink ``JsonRowDeserializationSchema``,
        ``JsonRowSerializationSchema``.
Absent: types by JSON schema.
"""

import decimal
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, Self

import msgspec

from flowlet.common.checks import check_kind
from flowlet.common.serialization import SerializationSchema, TypedDeserializationSchema
from flowlet.common.typeinfo import (
    BasicType,
    MapTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    holds_any_object,
)
from flowlet.common.types import Row, RowFieldsError, fields_of_record
from flowlet.common.values.conversion import PartRules, field_form, is_bytes
from flowlet.common.values.field_values import Convert, FieldForm, misfit, plain_list
from flowlet.datastream.formats.json_lines import encoded_json
from flowlet.errors import JobGraphError
from flowlet.typed.value_conversion import compiled

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_NEEDS_TYPE: Final = "{}() needs type information such as Types.STRING()"
_FLOATS: Final = msgspec.json.Decoder()
_DECIMALS: Final = msgspec.json.Decoder(float_hook=decimal.Decimal)
# Of values that JSON has, and that are written as they are.
_EXACT: Final = frozenset({str, bool, int, float})


class JsonRowDeserializationSchema(TypedDeserializationSchema):
    """Reads messages of JSON as values of a type; made by ``builder``.

    A message that is no JSON, or does not fit, fails the job, unless parse errors are ignored: then a part of it that
    does not fit is None, and a message that does not fit at all is left out.  Both are counted.

    Raises:
        JobGraphError: JSON has no form for the type.
    """

    _what = "a message of JSON"
    _errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError, ArithmeticError)

    def __init__(
        self, type_info: TypeInformation, *, fails_on_missing_field: bool = False, ignores_parse_errors: bool = False
    ) -> None:
        super().__init__(type_info, ignores_parse_errors=ignores_parse_errors)
        self._fails_on_missing_field = fails_on_missing_field
        is_exact = BasicType.BIG_DEC.value in repr(type_info)  # then numbers are read as decimals
        self._decode = (_DECIMALS if is_exact else _FLOATS).decode
        self._read = _Reading(self._lenient, needs_all=fails_on_missing_field).converter(type_info)

    def __reduce__(self) -> Any:
        return _restored_reader, (self._type_info, self._fails_on_missing_field, self._ignores_parse_errors)

    @staticmethod
    def builder() -> "JsonRowDeserializationSchema.Builder":
        """A builder of a schema."""
        return JsonRowDeserializationSchema.Builder()

    class Builder:
        """Builds a ``JsonRowDeserializationSchema``."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._fails_on_missing_field = False
            self._ignores_parse_errors = False

        def type_info(self, type_info: TypeInformation) -> Self:
            """Set the type of the values, mostly ``Types.ROW_NAMED``.  Raises JobGraphError: it is no type."""
            check_kind(type_info, TypeInformation, _NEEDS_TYPE.format("type_info"))
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> NoReturn:
            """Raise JobGraphError, always: a JSON schema cannot be read."""
            raise JobGraphError("json_schema(): JSON schemas are not read; give the type with type_info()")

        def fail_on_missing_field(self) -> Self:
            """Make a missing field an error; by default it is None."""
            self._fails_on_missing_field = True
            return self

        def ignore_parse_errors(self) -> Self:
            """Let parts that do not fit be None, and leave out messages that are no JSON; by
            default they fail the job.
            """
            self._ignores_parse_errors = True
            return self

        def build(self) -> "JsonRowDeserializationSchema":
            """The schema.  Raises JobGraphError: it has no type, or both rules for errors were chosen."""
            if self._type_info is None:
                raise JobGraphError("JsonRowDeserializationSchema needs the type of its values: type_info()")
            if self._fails_on_missing_field and self._ignores_parse_errors:
                raise JobGraphError(
                    "JsonRowDeserializationSchema can fail_on_missing_field() or ignore_parse_errors(), not both"
                )
            return JsonRowDeserializationSchema(
                self._type_info,
                fails_on_missing_field=self._fails_on_missing_field,
                ignores_parse_errors=self._ignores_parse_errors,
            )


def _restored_reader(type_info: TypeInformation, *flags: bool) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema(type_info, fails_on_missing_field=flags[0], ignores_parse_errors=flags[1])


class JsonRowSerializationSchema(SerializationSchema):
    """Writes values as messages of JSON; made by ``builder``.  Raises JobGraphError: JSON has no form for the type."""

    def __init__(self, type_info: TypeInformation) -> None:
        self._type_info = type_info
        self._written = _Writing().converter(type_info) or _itself
        self._quick = _quick_row(type_info) if isinstance(type_info, RowTypeInfo) else None
        self._is_checked = not holds_any_object(type_info)

    def __reduce__(self) -> Any:
        return JsonRowSerializationSchema, (self._type_info,)

    @staticmethod
    def builder() -> "JsonRowSerializationSchema.Builder":
        """A builder of a schema."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes | None:
        """The message; a row is an object by the names of the fields.

        Raises ValueError: the value is not of the type; names field and value.
        """
        if element is None:
            return None
        try:
            found = None if self._quick is None else self._quick(element)
            return encoded_json(self._written(element) if found is None else found, is_checked=self._is_checked)
        except (ValueError, RowFieldsError) as error:
            raise ValueError(f"{element!r} is no {self._type_info!r}: {error}") from error

    class Builder:
        """Builds a ``JsonRowSerializationSchema``."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> Self:
            """Set the type of the values, whose names the fields get.  Raises JobGraphError: it is no type."""
            check_kind(type_info, TypeInformation, _NEEDS_TYPE.format("with_type_info"))
            self._type_info = type_info
            return self

        def build(self) -> "JsonRowSerializationSchema":
            """The schema.  Raises JobGraphError: it has no type."""
            if self._type_info is None:
                raise JobGraphError("JsonRowSerializationSchema needs the type of its values: with_type_info()")
            return JsonRowSerializationSchema(self._type_info)


# ---------------------------------------------------------------- from JSON


class _Rules(PartRules):
    """The rules that reading and writing share.

    Raises:
        JobGraphError: JSON has no form for the type.
    """

    def plain(self, type_info: TypeInformation) -> Convert:
        if isinstance(type_info, PickledBytesTypeInfo):
            return _itself
        form = field_form(type_info)
        if form is None:
            raise JobGraphError(
                f"JSON has no form for {type_info!r}: use plain values, dates, times, arrays, maps, tuples and rows"
            )
        return self.leaf(type_info, form)

    @abstractmethod
    def leaf(self, type_info: TypeInformation, form: FieldForm) -> Convert:
        """``plain``, of a type of this form."""

    def entries(self, type_info: MapTypeInfo, value: Any) -> Iterable[tuple[Any, Any]]:
        return _object(value).items()


def _object(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object is expected, got {value!r}")
    return value


class _Reading(_Rules):
    """Makes values of the types from parsed JSON.

    ``lenient``: wraps the functions of parts.  ``needs_all``: whether a field that is missing is an error.
    """

    def __init__(self, lenient: Callable[[Convert], Convert], *, needs_all: bool) -> None:
        self._lenient = lenient
        self._needs_all = needs_all

    def part(self, type_info: TypeInformation) -> Convert:
        return self._lenient(self.converter(type_info))

    def key(self, type_info: MapTypeInfo) -> Convert:
        return _key_form(type_info).parsed

    def converter(self, type_info: TypeInformation) -> Convert:
        convert = super().converter(type_info)
        assert convert is not None, "every value is looked at"
        return partial(_with_all_keys, convert) if isinstance(type_info, MapTypeInfo) else convert

    def leaf(self, type_info: TypeInformation, form: FieldForm) -> Convert:
        if form.from_json is not None:
            return form.from_json
        return form.checked if form.is_json else partial(_read_by_text, form.parsed, type_info)

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        if isinstance(type_info, TupleTypeInfo):
            size = len(type_info.get_field_types())
            if type(value) is not list or len(value) != size:
                raise ValueError(f"an array of {size} is expected, got {value!r}")
            return value
        names = type_info.get_field_names()
        entries = _object(value)
        if self._needs_all and (missing := [name for name in names if name not in entries]):
            raise ValueError(f"the field {missing[0]!r} is missing")
        return list(map(entries.get, names))

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        if type(value) is not list:
            raise ValueError(f"an array is expected, got {value!r}")
        if isinstance(type_info, PrimitiveArrayTypeInfo) and None in value:
            raise ValueError(f"null in an array of primitives: {value!r}")
        return value


def _with_all_keys(convert: Convert, value: Any) -> Any:
    found = convert(value)
    if len(found) != len(value):
        raise ValueError(f"an object has two keys of the same value: {value!r}")
    return found


def _read_by_text(parsed: Convert, wanted: TypeInformation, value: Any) -> Any:
    if type(value) is not str:
        raise misfit(value, f"text of a {wanted!r}")
    return parsed(value)


# ---------------------------------------------------------------- to JSON


class _Writing(_Rules):
    """Makes objects, arrays, texts and numbers of JSON from values of the types."""

    errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, RowFieldsError)

    def key(self, type_info: MapTypeInfo) -> Convert:
        form = _key_form(type_info)
        return lambda key: form.text(form.checked(key))

    def leaf(self, type_info: TypeInformation, form: FieldForm) -> Convert:
        if form.to_json is not None:
            return form.to_json
        return form.checked if form.is_json else lambda value: form.text(form.checked(value))

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        if isinstance(type_info, TupleTypeInfo):
            size = len(type_info.get_field_types())
            if not isinstance(value, tuple | list) or len(value) != size:
                raise misfit(value, f"tuple of {size} fields")
            return value
        names = type_info.get_field_names()
        if not isinstance(value, dict):
            return fields_of_record(value, names)
        strange = [each for each in value if each not in names]
        if strange:
            raise ValueError(
                f"a dict with {strange[0]!r}, which is not declared: declared are {', '.join(map(repr, names))}"
            )
        return list(map(value.get, names))

    def made(self, type_info: TupleTypeInfo | RowTypeInfo, fields: list[Any], value: Any) -> Any:
        if isinstance(type_info, TupleTypeInfo):
            return fields
        found = dict(zip(type_info.get_field_names(), fields, strict=True))
        # A dict may lack fields, as a message may.
        return {name: found[name] for name in found if name in value} if isinstance(value, dict) else found

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        return plain_list(value, allows_none=not isinstance(type_info, PrimitiveArrayTypeInfo))


def _quick_row(type_info: RowTypeInfo) -> Convert | None:
    """A generated function that makes the object of a record whose fields are of their exact types, and None of other
    records.

    It takes half the time of ``_Writing``.  None: the type has other fields than numbers, texts and booleans.
    """
    types, names = type_info.get_field_types(), type_info.get_field_names()
    fields = [f"f{index}" for index in range(len(types))]
    tests = [_exact_test(each, field) for each, field in zip(types, fields, strict=True)]
    if None in tests or not tests:
        return None
    conditions = [f"({test} or {field} is None)" for test, field in zip(tests, fields, strict=True)]
    return compiled(
        {"Row": Row, "NAMES": names, "tuple": tuple},
        [
            "kind = type(v)",
            "if kind is tuple: values = v",
            "elif kind is Row and (v._fields is None or v._fields == NAMES): values = v._values",
            "else: return None",
            f"if len(values) != {len(fields)}: return None",
            f"{', '.join(fields)}, = values",
            f"if {' and '.join(conditions)}:",
            f"    return {{{', '.join(f'{name!r}: {field}' for name, field in zip(names, fields, strict=True))}}}",
        ],
    )


def _exact_test(type_info: TypeInformation, field: str) -> str | None:
    """Write the test whether a variable is of the exact type, and needs no conversion; None: there is none."""
    form = field_form(type_info)
    if form is None or form.exact is None or form.exact not in _EXACT:
        return None
    test = f"type({field}) is {form.exact.__name__}"
    return test if form.limits is None else f"({test} and {form.limits[0]!r} <= {field} <= {form.limits[1]!r})"


# ---------------------------------------------------------------- both


def _itself(value: Any) -> Any:
    return value


def _key_form(type_info: MapTypeInfo) -> FieldForm:
    form = None if is_bytes(type_info.key_type_info) else field_form(type_info.key_type_info)
    if form is None:
        raise JobGraphError(f"JSON has no form for {type_info!r}: keys are texts, numbers, booleans, dates or times")
    return form
