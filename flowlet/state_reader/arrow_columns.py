"""Values of state as Arrow arrays.

Side:   pure.
Rules:  a value has its declared type; one without a declared type has what Arrow finds, and one that Arrow does not
        know is its ``repr``.  A column never mixes the two: if one value of it does not fit, all are texts.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from flowlet.common.types import Row, fields_of_record
from flowlet.state.state_snapshots import TypeForm

_BASIC: Final = {
    "String": pa.string(),
    "Char": pa.string(),
    "Boolean": pa.bool_(),
    "Byte": pa.int8(),
    "Short": pa.int16(),
    "Integer": pa.int32(),
    "Long": pa.int64(),
    "Float": pa.float32(),
    "Double": pa.float64(),
}
_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_LISTS: Final = ("List", "BasicArray", "ObjectArray", "PrimitiveArray")


def arrow_column(values: Sequence[Any], form: TypeForm | None = None) -> pa.Array:
    """The values as an array; ``form``: their declared type."""
    declared = None if form is None else _arrow_type(form)
    if form is not None and declared is not None:
        try:
            return pa.array([_plain(each, form) for each in values], type=declared)
        except _UNFIT:
            # A value has another type than the declared one, which no check refuses when it is stored: Arrow infers
            # one.
            pass
    try:
        return pa.array([_plain(each, None) for each in values])
    except _UNFIT:
        return pa.array(
            [each if each is None or isinstance(each, str) else repr(each) for each in values],
            type=pa.string(),
        )


def _arrow_type(form: TypeForm) -> pa.DataType | None:
    """None: Arrow has no such type."""
    if form.name in _BASIC:
        return _BASIC[form.name]
    parts = [_arrow_type(each) for each in form.parts]
    if not parts or None in parts:
        return None
    if form.name == "Map":
        return pa.map_(*parts)
    if form.name in _LISTS:
        return pa.list_(parts[0])
    return pa.struct(list(zip(_names(form.fields, len(parts)), parts, strict=True)))


def _names(fields: Sequence[str], number: int) -> list[str]:
    return list(fields) or [f"f{index}" for index in range(number)]


def _plain(value: Any, form: TypeForm | None) -> Any:
    """What Arrow can read: rows and tuples by the names of their fields, maps as pairs."""
    parts = () if form is None else form.parts
    match value:
        case Row():
            if form is None:
                return _fields(list(value), _row_names(value), parts)
            return _fields(fields_of_record(value, _names(form.fields, len(parts))), form.fields, parts)
        case tuple():
            return _fields(value, () if form is None else form.fields, parts)
        case list():
            return [_plain(each, parts[0] if parts else None) for each in value]
        case dict():
            of_key, of_value = parts if parts else (None, None)
            return [(_plain(key, of_key), _plain(each, of_value)) for key, each in value.items()]
        case _:
            return value


def _fields(values: Sequence[Any], names: Sequence[str], parts: Sequence[TypeForm]) -> dict[str, Any]:
    forms: Sequence[TypeForm | None] = parts or [None] * len(values)
    found = [_plain(each, form) for each, form in zip(values, forms, strict=True)]
    return dict(zip(_names(names, len(found)), found, strict=True))


def _row_names(row: Row) -> Sequence[str]:
    try:
        return list(row.as_dict())
    except TypeError:  # its fields have no names
        return ()
