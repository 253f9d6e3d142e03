"""Record batches as columns of records, and back.

Hot path, per column: numbers are views of Arrow's memory.

Side:       pure.
Invariants: values do not change, except that floats are rounded to a narrower type that was declared; a value that is
            not of its declared type is refused, whatever representation it comes in.
"""

import datetime
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, ArrowColumn, CodedColumn, Column, Columns, ColumnVisitor, ConstantColumn, Shape
from flowlet.common.types import Row, fields_by_name, fields_of_record


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


# For each kind of Arrow type: the type of values that it takes, and subclasses of that type that it refuses.
_VALUE_TYPES: Final[tuple[tuple[Callable[[Any], bool], type, tuple[type, ...]], ...]] = (
    (pa.types.is_integer, numbers.Integral, (bool,)),
    (pa.types.is_floating, numbers.Real, (bool,)),
    (_is_text, str, ()),
    (_is_bytes, bytes, ()),
    (pa.types.is_timestamp, datetime.datetime, ()),
    (pa.types.is_date, datetime.date, (datetime.datetime,)),
    (pa.types.is_time, datetime.time, ()),
    (pa.types.is_duration, datetime.timedelta, ()),
)


def columns_of_batch(batch: Any) -> Columns:
    """The rows of a ``pyarrow.RecordBatch`` as columns; each row is a ``Row`` with names."""
    fields = tuple([column_of_array(batch.column(index)) for index in range(batch.num_columns)])
    return Columns(batch.num_rows, fields, Shape.ROW, tuple(batch.schema.names))


def array_of_column(column: Column, field: Any) -> Any:
    """A column as a ``pyarrow.Array`` of the type of a ``pyarrow.Field``.

    Raises:
        TypeError: a value is not of this type.
    """
    return _Typed(field).visit(column)


def batch_of_records(records: "Columns | list[Any]", schema: Any) -> Any:
    """A ``pyarrow.RecordBatch`` of the schema, made of columns or of single records: rows, tuples, lists or mappings
    with its fields; for a schema of one field also other values.

    Raises:
        TypeError: a record has other fields, or more or fewer, or a value is not of its field's type; names the field.
    """
    if isinstance(records, Columns):
        if len(records.fields) != len(schema):
            raise TypeError(f"records of {len(records.fields)} fields, the schema has {len(schema)}: {schema.names}")
        fields: Sequence[Column] = records.fields
        if records.field_names:
            fields = fields_by_name(records.field_names, fields, tuple(schema.names))
        arrays = [array_of_column(column, field) for column, field in zip(fields, schema, strict=True)]
    else:
        columns = zip(*[_fields(value, schema.names) for value in records], strict=True)
        arrays = [_array(list(column), field) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column_of_array(array: Any) -> Column:
    """The values of a ``pyarrow.Array`` as a column; numbers without nulls are a view of the array's memory."""
    kind = array.type
    if not array.null_count and (pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind != pa.float16())):
        return ArrayColumn(_view_of(array))
    return ArrowColumn(array)


def _view_of(array: Any) -> NDArray[Any]:
    """The numbers as a read-only view; ``to_numpy`` would import pandas where that is installed, 0.2 s of CPU."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    memory = array.buffers()[1]
    if memory is None:  # of no values
        return np.empty(0, dtype)
    view: NDArray[Any] = np.frombuffer(memory, dtype, len(array), array.offset * dtype.itemsize)
    view.flags.writeable = False
    return view


class _Typed(ColumnVisitor[Any]):
    """Makes an Arrow array of a declared type from a column.

    Raises:
        TypeError: a value is not of this type.
    """

    __slots__ = ("_field",)

    def __init__(self, field: Any) -> None:
        self._field = field

    def visit_any(self, column: Column) -> Any:
        return _array(column.to_list(), self._field)

    def visit_array(self, column: ArrayColumn) -> Any:
        return self._cast(column)

    def visit_arrow(self, column: ArrowColumn) -> Any:
        return self._cast(column)

    def visit_coded(self, column: CodedColumn) -> Any:
        if len(column.names) > len(column):
            return self.visit_any(column)
        return _array(list(column.names.names), self._field).take(pa.array(column.codes))

    def visit_constant(self, column: ConstantColumn) -> Any:
        return pa.repeat(_array([column.value], self._field)[0], len(column))

    def _cast(self, column: Column) -> Any:
        field, found = self._field, column.arrow_array()
        if pa.types.is_dictionary(found.type) and not pa.types.is_dictionary(field.type):
            found = found.dictionary_decode()
        if found.type != field.type:
            if not _are_alike(found.type, field.type):
                return self.visit_any(column)
            try:
                cast = found.cast(field.type)
            except pa.ArrowException as error:
                raise TypeError(
                    f"field {field.name!r} is declared as {field.type}, got {found.type}: {error}"
                ) from error
            if _is_short_float(field.type) and (value := first_overflow(found, cast)) is not None:
                raise TypeError(f"field {field.name!r} is declared as {field.type}, which {value!r} does not fit into")
            found = cast
        return _with_nulls_as_declared(found, field)


def _are_alike(found: Any, wanted: Any) -> bool:
    """Whether a cast gives the array that the single values would give, or refuses."""
    kinds = pa.types
    if kinds.is_integer(found):
        return bool(kinds.is_integer(wanted) or kinds.is_floating(wanted))
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        return (found.tz is None) is (wanted.tz is None)
    return any(is_kind(found) and is_kind(wanted) for is_kind in (kinds.is_floating, _is_text, _is_bytes))


def _array(values: list[Any], field: Any) -> Any:
    try:
        array = _nested(values, field.type)
        if array is None:
            _check_types(values, field.type)
            array = _uncut(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"field {field.name!r} is declared as {field.type}: {error}") from error
    return _with_nulls_as_declared(array, field)


def _nested(values: list[Any], kind: Any) -> Any:
    """The array of rows, lists or maps, whose parts are made like columns; None: the type is none of these."""
    if not (pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)):
        return None
    is_null = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        names = [each.name for each in kind]
        rows = [[None] * len(names) if value is None else _fields(value, names) for value in values]
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        # Where the row itself is missing there is a null in every field, also where it may have none.
        parts = [_array(list(column), each.with_nullable(True)) for column, each in zip(columns, kind, strict=True)]  # noqa: FBT003
        for part, each in zip(parts, kind, strict=True):
            if not each.nullable and part.null_count > values.count(None):
                raise TypeError(f"field {each.name!r} is declared as {each.type} without nulls, got None")
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)
    allowed = (dict, list) if pa.types.is_map(kind) else (list, tuple, np.ndarray)
    items: list[Any] = []
    offsets = [0]
    for value in values:
        if value is not None and not isinstance(value, allowed):
            raise TypeError(f"got a {type(value).__name__}")
        if value is not None:
            items.extend(value.items() if isinstance(value, dict) else value)
        offsets.append(len(items))
    ends = pa.array(offsets, pa.int32())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(ends, _array(items, kind.value_field), type=kind, mask=is_null)
    keys, found = (
        _array([key for key, _ in items], kind.key_field),
        _array([item for _, item in items], kind.item_field),
    )
    return pa.MapArray.from_arrays(ends, keys, found, type=kind, mask=is_null)


def _uncut(values: list[Any], kind: Any) -> Any:
    """The values as an array, first in a fine unit, then cast: the cast refuses a value that it would have to cut off,
    where ``pa.array`` of a coarse unit cuts silently.
    """
    finest = kind
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        finest = pa.timestamp("us", kind.tz)
    elif pa.types.is_time32(kind):
        finest = pa.time64("us")
    elif pa.types.is_duration(kind) and kind.unit != "ns":
        finest = pa.duration("us")
    array = pa.array(values, finest)
    if _is_short_float(kind) and (value := first_overflow(values, array)) is not None:
        raise TypeError(f"{value!r} does not fit")
    return array if finest == kind else array.cast(kind)


def _is_short_float(kind: Any) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float16(kind))


def first_overflow(values: Any, array: Any) -> Any:
    """The first finite float that is infinite in an array of fewer bits; None: there is none.

    ``values``: a sequence or an Arrow array.
    """
    infinite = np.flatnonzero(np.isinf(array.to_numpy(zero_copy_only=False).astype(np.float32)))
    if not len(infinite):
        return None
    given = values.to_pylist() if isinstance(values, pa.Array) else values
    return next(
        (given[place] for place in infinite.tolist() if given[place] is not None and math.isfinite(given[place])), None
    )


def _with_nulls_as_declared(array: Any, field: Any) -> Any:
    if not field.nullable and array.null_count:
        raise TypeError(f"field {field.name!r} is declared as {field.type} without nulls, got None")
    return array


def _check_types(values: Iterable[Any], kind: Any) -> None:
    """Refuse values that pyarrow would cut off or misread; looks into lists, too."""
    present = [value for value in values if value is not None]
    while pa.types.is_dictionary(kind) or _is_list(kind):
        if _is_list(kind):
            present = [value for value in itertools.chain.from_iterable(present) if value is not None]
        kind = kind.value_type
    allowed, refused = next(((yes, no) for is_kind, yes, no in _VALUE_TYPES if is_kind(kind)), (object, ()))
    for found in set(map(type, present)):
        if not issubclass(found, allowed) or issubclass(found, refused):
            raise TypeError(f"got a {found.__name__}")
    if any(found.__name__ == "NaTType" for found in set(map(type, present))):
        raise TypeError("got pandas.NaT: use None")
    if pa.types.is_time(kind) and any(value.tzinfo is not None for value in present):
        raise TypeError("got a time with a time zone")
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and any(getattr(value, "nanosecond", 0) for value in present):
        raise TypeError("got a timestamp with nanoseconds")
    if pa.types.is_timestamp(kind) and any((value.tzinfo is None) is not (kind.tz is None) for value in present):
        raise TypeError(f"got a datetime with{'' if kind.tz is None else 'out'} a time zone")


def _fields(value: Any, names: list[str]) -> Sequence[Any]:
    if isinstance(value, dict):
        return [value[name] for name in names] if value.keys() == set(names) else _refuse(value, names)
    if isinstance(value, tuple | list | Row):
        return fields_of_record(value, names)
    return [value] if len(names) == 1 else _refuse(value, names)


def _refuse(value: Any, names: list[str]) -> list[Any]:
    raise TypeError(f"a {type(value).__name__} does not have the {len(names)} fields {names}")
