"""``PartRules``: one walk over values of declared types that have parts: rows, tuples, arrays and maps.

Each way of converting values (to a declared type, from and to JSON, from Spark, elements of ``from_collection``) says
what becomes of a value without parts, and how it takes the others apart; a value that does not fit is named with its
place.

Side:   pure.
Rules:  of elements of ``from_collection`` the shape changes: a tuple, list or dict becomes the declared ``Row``, a list
        the declared tuple.  Plain values become what Java makes of them.  None is allowed everywhere.
Source: what PyFlink's ``from_collection(..., type_info)`` does to elements on their way through the JVM.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, Final

from flowlet.common.typeinfo import (
    COMPOSITE_TYPES,
    BasicType,
    BasicTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row, RowFieldsError, fields_of_record, restored_row
from flowlet.common.values.field_values import VALUE_FORMS, Convert, FieldForm
from flowlet.common.values.time_values import TIME_FORMS
from flowlet.errors import JobGraphError

_INSERT: Final = Row().get_row_kind()
FORMS: Final = VALUE_FORMS | TIME_FORMS


def field_form(type_info: TypeInformation) -> FieldForm | None:
    """Return the form of a plain type, or of the basic type that it is: a number, text, boolean, date, time, point in
    time, or bytes; None: it has parts, or is unknown.
    """
    try:
        found = FORMS.get(type_info)
    except TypeError:  # a user's type without a hash
        found = None
    if found is None and isinstance(type_info, BasicTypeInfo):
        is_instant = type_info.basic_type is BasicType.INSTANT
        found = FORMS[Types.INSTANT() if is_instant else BasicTypeInfo(type_info.basic_type)]
    return found


def known_form(type_info: TypeInformation) -> FieldForm:
    """Return the form of a type that is known to be plain."""
    form = field_form(type_info)
    assert form is not None, "the caller has checked the type"
    return form


def integer_limits(type_info: TypeInformation) -> tuple[float, float] | None:
    """Return the lowest and the highest integer of the type; None: it is no type of integers with limits."""
    form = field_form(type_info)
    return None if form is None or form.exact is not int else form.limits


def is_bytes(type_info: TypeInformation) -> bool:
    """Whether values of the type are ``bytes``: a list, or an array of primitives, of BYTE."""
    form = field_form(type_info)
    return form is not None and form.exact is bytes


def or_none(convert: Convert) -> Convert:
    """Return a function that converts values, of which None stays None."""
    return lambda value: None if value is None else convert(value)


class PartRules(ABC):
    """One way of converting values.  Threading: any; it never changes.

    Attributes:
        errors: what its functions raise for a value that does not fit.
        keys_may_be_none: whether None may be a key of a map.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    keys_may_be_none: ClassVar[bool] = False

    @abstractmethod
    def plain(self, type_info: TypeInformation) -> Convert | None:
        """Return the function for values without parts; None: all of them stay unchanged."""

    @abstractmethod
    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        """Return the fields of a tuple or row, in order; it may have more, which are left out."""

    @abstractmethod
    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        """Return the elements of an array."""

    @abstractmethod
    def entries(self, type_info: MapTypeInfo, value: Any) -> Iterable[tuple[Any, Any]]:
        """Return the keys and values of a map."""

    def has_parts(self, type_info: TypeInformation) -> bool:
        """Whether values are converted by their parts."""
        return isinstance(type_info, COMPOSITE_TYPES) and not is_bytes(type_info)

    def takes_none(self, type_info: TypeInformation) -> bool:
        """Whether None may be a field or an element of a value of the type."""
        return True

    def part(self, type_info: TypeInformation) -> Convert | None:
        """Return the function for a part, which is not None."""
        return self.converter(type_info)

    def key(self, type_info: MapTypeInfo) -> Convert | None:
        """Return the function for keys of a map."""
        convert = self.part(type_info.key_type_info)
        return or_none(convert) if convert is not None and self.keys_may_be_none else convert

    def made(self, type_info: TupleTypeInfo | RowTypeInfo, fields: list[Any], value: Any) -> Any:
        """Make a tuple or row of its converted fields."""
        if isinstance(type_info, TupleTypeInfo):
            return tuple(fields)
        kind = value.get_row_kind() if isinstance(value, Row) else _INSERT
        return restored_row(type_info.get_field_names(), fields, kind)

    def place(self, name: object, type_info: TypeInformation) -> str:
        """Write the place of a field, for messages."""
        return f"field {name!r}"

    def inside(self, error: Exception, place: str) -> Exception:
        """Return ``error`` with its place, as seen from the value around it."""
        return self.errors[0](f"{place}: {error}")

    def converter(self, type_info: TypeInformation) -> Convert | None:
        """Return the function for values that are not None; None: all of them stay unchanged.

        Raises:
            JobGraphError: there is none for the type; names the field.
        """
        if not self.has_parts(type_info):
            return self.plain(type_info)
        if isinstance(type_info, TupleTypeInfo | RowTypeInfo):
            return self.fields_converter(type_info)
        return self._map_converter(type_info) if isinstance(type_info, MapTypeInfo) else self._list_converter(type_info)

    def fields_converter(self, type_info: TupleTypeInfo | RowTypeInfo) -> Convert:
        """Return the ``converter`` for tuples and rows."""
        types = type_info.get_field_types()
        names = type_info.get_field_names() if isinstance(type_info, RowTypeInfo) else range(len(types))
        places = [self.place(name, each) for name, each in zip(names, types, strict=True)]
        takes_none = self.takes_none(type_info)
        parts = []
        for place, each in zip(places, types, strict=True):
            try:
                parts.append(self.part(each))
            except JobGraphError as error:
                raise JobGraphError(f"{place}: {error}") from None

        def convert(value: Any) -> Any:
            fields = self._all(parts, self.fields(type_info, value), places.__getitem__, takes_none=takes_none)
            return self.made(type_info, fields, value)

        return convert

    def _list_converter(self, type_info: Any) -> Convert:
        part = self.part(type_info.elem_type)
        if part is None:
            return partial(self.elements, type_info)
        takes_none = self.takes_none(type_info)

        def convert(value: Any) -> list[Any]:
            return self._all(repeat(part), self.elements(type_info, value), "element {}".format, takes_none=takes_none)

        return convert

    def _map_converter(self, type_info: MapTypeInfo) -> Convert:
        to_key = self.key(type_info)
        to_value = self.part(type_info.value_type_info)

        def convert(value: Any) -> dict[Any, Any]:
            entries = list(self.entries(type_info, value))
            keys = self._all(repeat(to_key), [key for key, _ in entries], lambda _: "a key", takes_none=False)
            values = self._all(
                repeat(to_value),
                [each for _, each in entries],
                lambda index: f"the value of {entries[index][0]!r}",
                takes_none=True,
            )
            return dict(zip(keys, values, strict=True))

        return convert

    def _all(
        self, parts: Iterable[Convert | None], values: Iterable[Any], place: Callable[[int], str], *, takes_none: bool
    ) -> list[Any]:
        converted: list[Any] = []
        for convert, value in zip(parts, values, strict=False):
            try:
                converted.append(value if convert is None or (value is None and takes_none) else convert(value))
            except self.errors as error:
                raise self.inside(error, place(len(converted))) from None
        return converted


# ---------------------------------------------------------------- elements of from_collection


def element_converter(type_info: TypeInformation) -> Convert:
    """Return the function that brings an element into the declared shape.

    The function raises TypeError if the element does not fit; the text names the part of it, and the reason.
    """
    convert = _ELEMENTS.converter(type_info)
    assert convert is not None, "every element is looked at"
    return or_none(convert)


class _ElementRules(PartRules):
    errors: ClassVar[tuple[type[Exception], ...]] = (TypeError,)
    keys_may_be_none = True

    def has_parts(self, type_info: TypeInformation) -> bool:
        return isinstance(type_info, COMPOSITE_TYPES) and not isinstance(type_info, PrimitiveArrayTypeInfo)

    def plain(self, type_info: TypeInformation) -> Convert:
        form = field_form(type_info)
        classes: tuple[type, ...] = (object,)
        if form is not None:
            classes = form.classes or (form.exact or object,)
        of_bool = (str,) if int in classes else classes  # a bool is no number
        convert = None if form is None else form.from_element

        def converted(value: Any) -> Any:
            if not isinstance(value, of_bool if isinstance(value, bool) else classes):
                raise _wrong_kind(type_info, value)
            return value if convert is None else convert(value)

        return converted

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        if isinstance(type_info, TupleTypeInfo):
            size = len(type_info.get_field_types())
            if len(_require(type_info, (tuple, list), value)) != size:
                raise TypeError(f"{value!r} has {len(value)} fields, {type_info!r} declares {size}")
            return value  # type: ignore[no-any-return]  # a tuple or a list
        _require(type_info, (Row, tuple, list, dict), value)
        names = type_info.get_field_names()
        missing = [name for name in names if name not in value] if isinstance(value, dict) else []
        if missing:  # looked for first: a ``defaultdict`` would make it up
            raise TypeError(f"{value!r} has no {missing[0]!r}, which {type_info!r} declares")
        try:
            return [value[name] for name in names] if isinstance(value, dict) else fields_of_record(value, names)
        except RowFieldsError as error:
            raise TypeError(f"{value!r} is no {type_info!r}: {error}") from None

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        return _require(type_info, (list, tuple), value)  # type: ignore[no-any-return]  # as above

    def entries(self, type_info: MapTypeInfo, value: Any) -> Iterable[tuple[Any, Any]]:
        return _require(type_info, (dict,), value).items()  # type: ignore[no-any-return]  # as above


_ELEMENTS: Final = _ElementRules()


def _require(type_info: TypeInformation, classes: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, classes):
        raise _wrong_kind(type_info, value)
    return value


def _wrong_kind(type_info: TypeInformation, value: Any) -> TypeError:
    return TypeError(f"{value!r} is of type {type(value).__name__}, not {type_info!r}")
