"""Whether state that was written with one type can be read with another one.

``row_converter``: converts rows of a snapshot to the form that the program declares now.

Side:   pure.
Rules:  equal types: values stay as they are.  A wider number takes a narrower one (Byte, Short, Integer, Long,
        BigInteger; Float, Double; Byte and Short as Float, and Integer too as Double: nothing is lost).  A tuple or row
        may have more fields at its end, which are None.  This holds inside of tuples, rows, lists and the values of
        maps, too.  All else is refused: a field that is removed, renamed or moved; keys of a map that would become
        others; any step from or to a pickled object.
Source: Flink ``TypeSerializerSnapshot.resolveSchemaCompatibility``, ``TypeSerializerSchemaCompatibility``;
        ``StateTable`` with a serializer that is compatible after migration; ``TtlAwareSerializer`` for entries that
        begin, or cease, to expire.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Final

from flowlet.common.typeinfo import COMPOSITE_TYPES, BasicTypeInfo, RowTypeInfo, TypeInformation, part_types
from flowlet.common.types import Row, field_names_of, fields_of_record
from flowlet.common.values.conversion import FORMS, or_none
from flowlet.common.values.field_values import Convert
from flowlet.errors import StateRestoreError
from flowlet.state.state_snapshots import StateDescription, StateKind, TypeForm


def type_form(type_info: TypeInformation) -> TypeForm:
    """The form of a type in a snapshot: no class of it but ``TypeForm`` is pickled."""
    if isinstance(type_info, BasicTypeInfo):
        return TypeForm(type_info.basic_type.value)
    if not isinstance(type_info, COMPOSITE_TYPES):  # times, Arrow schemas, pickled objects: only as they are
        return TypeForm(repr(type_info))
    names = tuple(type_info.get_field_names()) if isinstance(type_info, RowTypeInfo) else ()
    name = type(type_info).__name__.removesuffix("TypeInfo")
    return TypeForm(name, tuple(map(type_form, part_types(type_info))), names)


_FLOATS: Final = {"Float": float(1 << 24), "Double": float(1 << 53)}  # up to these they hold each integer
# The least and the greatest of the integers, all of which values of the type can be.
_HELD: Final[dict[str, tuple[float, float]]] = {
    **{type_form(each).name: form.limits or (-inf, inf) for each, form in FORMS.items() if form.exact is int},
    **{name: (-most, most) for name, most in _FLOATS.items()},
}


def converter(written: TypeForm, declared: TypeForm) -> Convert | None:
    """A function from values as they were written to values of the declared type; None: they are equal.

    Raises:
        StateRestoreError: the types do not go together; names both, and the difference.
    """
    try:
        return _converter(written, declared)
    except _RefusalError as refusal:
        raise StateRestoreError(f"values of type {written} cannot become {declared}: {refusal}") from None


class _RefusalError(Exception):
    """A type cannot become another one; the text says why."""


def _converter(written: TypeForm, declared: TypeForm) -> Convert | None:
    # The whole type first: state that did not change costs no call per value.
    if written == declared:
        return None
    if written.name == declared.name in _BY_PARTS:
        convert = _BY_PARTS[written.name](written, declared)
    elif written.parts or declared.parts:
        raise _RefusalError(f"{written} was written")
    else:
        convert = _number_converter(written.name, declared.name)
    # A field or a value of a map may be None, whatever its type.
    return None if convert is None else or_none(convert)


def _number_converter(written: str, declared: str) -> Convert | None:
    if (written, declared) in (("Float", "Double"), ("Char", "String")):
        return None
    if written not in _HELD or declared not in _HELD:
        raise _RefusalError(f"{written} was written")
    low, high = _HELD[written]
    lowest, highest = _HELD[declared]
    # A float may have a fraction, or more digits than a Float has: only its own type, or a wider one, takes it.
    if written in _FLOATS or not lowest <= low <= high <= highest:
        raise _RefusalError(f"{declared} does not hold every {written}")
    return _as_float if declared in _FLOATS else None


def _as_float(value: Any) -> Any:
    # A value of another type was stored unchecked: it is refused rather than guessed.
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no int")
    return float(value)


def _fields_converter(written: TypeForm, declared: TypeForm) -> Convert | None:
    num_written = len(written.parts)
    # A field that is gone would be lost without a word.
    if num_written > len(declared.parts):
        raise _RefusalError(f"{num_written} fields were written, {len(declared.parts)} are declared; keep the others")
    names = declared.fields or tuple(map(str, range(len(declared.parts))))
    # By place and name: a field that was moved would take another one's values.
    for before, name in zip(written.fields, names, strict=False):
        if before != name:
            raise _RefusalError(
                f"field {before!r} is {name!r} now; keep the names and their order, and add new fields at the end"
            )
    converters = [
        _inside(f"field {name!r}", *pair) for name, *pair in zip(names, written.parts, declared.parts, strict=False)
    ]
    num_new = len(declared.parts) - num_written
    if not num_new and not any(converters):
        return None
    new_fields = (None,) * num_new
    old_names = list(written.fields) or [f"f{index}" for index in range(num_written)]

    def values(of: Any) -> list[Any]:
        found = [value if convert is None else convert(value) for value, convert in zip(of, converters, strict=True)]
        return [*found, *new_fields]

    def row(of: Any) -> Any:
        converted = Row(*values(fields_of_record(of, old_names)))
        # A new row is an insertion: a retraction must stay one.
        converted.set_row_kind(of.get_row_kind())
        if field_names_of(of) is not None:
            converted.set_field_names(list(names))
        return converted

    return row if declared.name == "Row" else lambda of: tuple(values(of))


def _elements_converter(written: TypeForm, declared: TypeForm) -> Convert | None:
    convert = _inside("its elements", written.parts[0], declared.parts[0])
    return None if convert is None else lambda of: type(of)(map(convert, of))


def _map_converter(written: TypeForm, declared: TypeForm) -> Convert | None:
    # A converted key has another exact key, and two keys might become one.
    if _inside("its keys", written.parts[0], declared.parts[0]) is not None:
        raise _RefusalError(f"its keys: {written.parts[0]} would become other keys")
    convert = _inside("its values", written.parts[1], declared.parts[1])
    return None if convert is None else lambda of: {key: convert(value) for key, value in of.items()}


_BY_PARTS: Final[dict[str, Callable[[TypeForm, TypeForm], Convert | None]]] = {
    **dict.fromkeys(("Tuple", "Row"), _fields_converter),
    **dict.fromkeys(("List", "BasicArray", "ObjectArray"), _elements_converter),
    "Map": _map_converter,
}


def _inside(place: str, written: TypeForm, declared: TypeForm) -> Convert | None:
    try:
        return _converter(written, declared)
    except _RefusalError as refusal:
        raise _RefusalError(f"{place}: {refusal}") from None


# ---------------------------------------------------------------- rows


def row_converter(name: str, written: StateDescription, declared: StateDescription, now_ms: int) -> Convert | None:
    """A function from rows as they were written to rows of the declared form; None: both forms are equal.

    Args:
        name: the state's name.
        written: the description in the snapshot.
        declared: the description in the program.
        now_ms: counts as the last use of entries that begin to expire.

    Raises:
        StateRestoreError: the descriptions do not go together; names the state, both types and what to do.  The
            converter raises it, too, for a value that is not of the type that was declared when it was written.
    """
    convert = _value_converter(name, written, declared)
    if convert is None and written.has_ttl == declared.has_ttl:
        return None

    def entry(stored: Any) -> Any:
        value, used_ms = stored if written.has_ttl else (stored, now_ms)
        if convert is not None:
            try:
                value = convert(value)
            except Exception as error:
                raise StateRestoreError(
                    f"state {name!r} has a value that is not of the type {written.type_name} with which it was "
                    "written, so that it cannot "
                    f"become {declared.type_name} ({type(error).__name__}: {error}); declare the type as it was written"
                ) from error
        # The time of the last use stays: a wider type is no use of an entry.
        return (value, used_ms) if declared.has_ttl else value

    match declared.kind:
        case StateKind.LIST:
            return lambda row: tuple(map(entry, row))
        case StateKind.MAP:
            return lambda row: tuple((key, entry(stored)) for key, stored in row)
        case _:
            return entry


def _value_converter(name: str, written: StateDescription, declared: StateDescription) -> Convert | None:
    # By text first: snapshots from before ``TypeForm`` have no more.
    if written.kind is declared.kind and written.type_name == declared.type_name:
        return None
    reason = ""
    if written.kind is declared.kind and written.type_form is not None and declared.type_form is not None:
        try:
            return _element_converter(declared.kind, written.type_form, declared.type_form)
        except StateRestoreError as error:
            reason = f" ({error})"
    raise StateRestoreError(
        f"state {name!r} was written as {written}, and is declared as {declared} now{reason}; "
        "declare it as it was written, or use another name"
    )


def _element_converter(kind: StateKind, written: TypeForm, declared: TypeForm) -> Convert | None:
    """The converter of the parts of a row: of the value, of an element, or of the value of an entry of a map."""
    match kind:
        case StateKind.LIST:
            return converter(written.parts[0], declared.parts[0])
        case StateKind.MAP:
            converter(written, declared)  # looks at the keys
            return converter(written.parts[1], declared.parts[1])
        case _:
            return converter(written, declared)
