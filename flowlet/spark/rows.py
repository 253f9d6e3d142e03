"""Converts Spark's rows and Arrow batches to the records of a gate, and single values: nested ones, and those that
Arrow cannot hold unchanged.

Hot path: work per chunk of rows, C calls per column; a Python loop over values only for columns that Arrow cannot hold
    unchanged.

Side:       pure.
Invariants: a value that is not exactly of its column's type is refused with the column's name, never converted; None is
            allowed everywhere.  Rows and batches give the same records.
Source:     ``pyspark.sql.types.Row``, and batches as in ``mapInArrow``; the Python values of ``pyspark.sql.types``
            (``fromInternal``) and of ``pyarrow``'s ``to_pylist``: both forms are accepted.
"""

import datetime
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

from flowlet.columns import Column, Columns, ListColumn
from flowlet.columns.arrow_batches import column_of_array
from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    COMPOSITE_TYPES,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row, are_positions, fields_by_name
from flowlet.common.values.conversion import Convert, PartRules
from flowlet.common.values.field_values import known_form
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order, preview
from flowlet.spark.gate_schema import GateColumn, GateSchema, SchemaMismatchError, spark_type_of, type_info_of
from flowlet.types.gate_forms import exact_array, shaped
from flowlet.types.leaf_forms import arrow_type_of, classes_of_arrow, instants_array

_BINARY: Final = Types.PRIMITIVE_ARRAY(Types.BYTE())
_INSTANT: Final = Types.INSTANT()
# In columns of Spark; a declared type has none of its own.
_ARROW: Final[dict[TypeInformation, Any]] = {_INSTANT: pa.timestamp("us"), Types.BIG_DEC(): pa.decimal128(38, 18)}
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC, as everything here
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_NONE: Final = frozenset({type(None)})
_DATETIME: Final = frozenset({datetime.datetime})
_FIELDS: Final = attrgetter("__fields__")
_STR: Final = frozenset({str})
_TIMES: Final = pa.timestamp("us")
_AS_ARRAYS: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), _TIMES})


class RowConverter:
    """Converts the rows of one partition, chunk by chunk.  Threading: one thread.

    Args:
        schema: the gate's.
        clock_is_utc: whether a ``datetime`` without a zone, as Spark makes them in Python, is in UTC.
    """

    def __init__(self, schema: GateSchema, *, clock_is_utc: bool) -> None:
        self._schema = schema
        self._clock_is_utc = clock_is_utc
        self._rules = _SparkRules(clock_is_utc=clock_is_utc)
        self._fields: list[str] | None = None  # the field names for which _order was computed
        self._order: tuple[int, ...] = ()
        self._num_rows = 0  # of the chunks before

    def convert(self, rows: list[Any]) -> Columns | pa.RecordBatch | list[Any]:
        """Columns, a batch or single records, from at least one row of a DataFrame, or tuple or value of an RDD.

        Raises:
            SchemaMismatchError: a row or a value does not fit; the message says which row of the partition, from 0.
        """
        try:
            converted = self._converted_rows(rows)
        except SchemaMismatchError as error:
            raise self._with_position(error, rows) from error.__cause__
        self._num_rows += len(rows)
        return converted

    def _with_position(self, error: SchemaMismatchError, rows: list[Any]) -> SchemaMismatchError:
        """The error with the position of the row that gives it alone."""
        for index, row in enumerate(rows, start=self._num_rows):
            try:
                self._converted_rows([row])
            except SchemaMismatchError as alone:
                if str(alone) == str(error):
                    return SchemaMismatchError(f"{error} (row {index} of the partition)")
        return error

    def _converted_rows(self, rows: list[Any]) -> Columns | pa.RecordBatch | list[Any]:
        schema = self._schema
        if schema.columns is None:
            return [_free_row(row) for row in rows]
        if schema.is_single and not isinstance(rows[0], st.Row):
            return self._payload([rows])
        columns = schema.columns
        fields = getattr(rows[0], "__fields__", None)
        if fields is None:
            self._order = tuple(range(len(columns)))
            self._fields = None
        elif fields != self._fields:
            self._order = schema.positions(fields)
            self._fields = list(fields)
        transposed = _transposed(rows, fields, len(columns))
        if transposed is None:
            odd = next(row for row in rows if _transposed([row], fields, len(columns)) is None)
            takes = ", ".join(column.name for column in columns)
            raise SchemaMismatchError(
                f"the row {preview(odd)} does not fit gate {schema.gate!r}, which takes the columns {takes}"
            )
        return self._payload([transposed[position] for position in self._order])

    def _payload(self, values: Sequence[Sequence[Any]]) -> Columns | pa.RecordBatch | list[Any]:
        schema = self._schema
        pairs = list(zip(schema.columns or (), values, strict=True))
        if schema.takes_batches:
            arrays = [self._array(column, each) for column, each in pairs]
            return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)
        if schema.arrow_schema is None:
            return records_of(schema, [self._converted(column, each) for column, each in pairs])
        return shaped(tuple([self._column(column, each) for column, each in pairs]), schema.type_info)

    def _column(self, column: GateColumn, values: Sequence[Any]) -> Column:
        """Numbers and times as arrays, others as a list: small Arrow columns cost more than they save."""
        if column.arrow_type in _AS_ARRAYS:
            array = self._array(column, values)
            is_list = array.null_count and column.arrow_type != _TIMES
            return ListColumn(list(values)) if is_list else column_of_array(array)
        kinds = set(map(type, values))
        allowed = classes_of(column.type_info)
        if allowed is None or not kinds - _NONE <= allowed:
            return column_of_array(self._array(column, values))  # _array refuses the value that does not fit
        if bytearray in kinds:
            return ListColumn([None if value is None else bytes(value) for value in values])
        return ListColumn(list(values), str if kinds == _STR else None)

    def _array(self, column: GateColumn, values: Sequence[Any]) -> pa.Array:
        if column.arrow_type == _TIMES and self._clock_is_utc and set(map(type, values)) == _DATETIME:
            instants = instants_array(values)
            if instants is not None:
                return instants
        if isinstance(column.type_info, TimestampTypeInfo):
            to_utc = partial(in_utc, clock_is_utc=self._clock_is_utc)
            values = [to_utc(value) if type(value) is datetime.datetime else value for value in values]
        try:
            return exact_array(values, column.arrow_type)
        except ValueMismatchError as error:
            raise self._refusal(column, error.reason) from error

    def _converted(self, column: GateColumn, values: Sequence[Any]) -> list[Any]:
        convert = self._rules.converter(column.type_info)
        converted = []
        for value in values:
            try:
                converted.append(value if value is None or convert is None else convert(value))
            except (TypeError, ValueError, OverflowError, KeyError, ValueMismatchError):
                reason = f"{preview(value)} of type {type(value).__name__} is no {column.type_info!r}"
                raise self._refusal(column, reason) from None
        return converted

    def _refusal(self, column: GateColumn, reason: str) -> SchemaMismatchError:
        return SchemaMismatchError(f"column {column.name!r}: {reason}, which gate {self._schema.gate!r} takes there")


class BatchConverter:
    """Converts the Arrow batches of a DataFrame with these columns.  Threading: one thread.

    Raises:
        SchemaMismatchError: the columns do not fit.
    """

    def __init__(self, schema: GateSchema, columns: st.StructType) -> None:
        self._order = schema.check_spark(columns)
        if schema.columns is None:  # the gate takes any columns: take those of the DataFrame
            schema = GateSchema.of(schema.gate, type_info_of(columns))
            self._arrow_schema = None
        else:
            self._arrow_schema = schema.arrow_schema
        self._schema = schema

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch | list[Any]:
        """Convert one of Spark's batches."""
        if self._arrow_schema is None:
            return self._records(batch)
        arrays = [batch.column(position) for position in self._order]
        fitting = [self._fitting(array, field) for array, field in zip(arrays, self._arrow_schema, strict=True)]
        return pa.RecordBatch.from_arrays(fitting, schema=self._arrow_schema)

    def _fitting(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """The array in the gate's Arrow type; the values stay the same."""
        if array.type == field.type:
            return array
        try:
            return _in_order(array, field.type).cast(field.type)
        except pa.ArrowException as error:
            text = (
                f"column {field.name!r}: {array.type} is no {field.type}, which gate {self._schema.gate!r} takes there"
            )
            raise SchemaMismatchError(f"{text}: {error}") from error

    def _records(self, batch: pa.RecordBatch) -> list[Any]:
        columns = self._schema.columns or ()
        values = []
        for position, column in zip(self._order, columns, strict=True):
            convert = _ARROWS.converter(column.type_info)
            found = batch.column(position).to_pylist()
            values.append([value if value is None or convert is None else convert(value) for value in found])
        return records_of(self._schema, values)


def _in_order(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same rows with their fields in the order of the wanted type, also those of rows in lists and in rows."""
    if pa.types.is_list(array.type) and pa.types.is_list(wanted):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(offsets, _in_order(array.flatten(), wanted.value_type), mask=array.is_null())
    if (
        not (pa.types.is_struct(array.type) and pa.types.is_struct(wanted))
        or array.type.num_fields != wanted.num_fields
    ):
        return array
    names = [each.name for each in wanted]
    fields = array.flatten()
    positions = range(len(names)) if are_positions(names) else [array.type.get_field_index(name) for name in names]
    if min(positions, default=0) < 0:
        return array  # the cast says what is wrong
    parts = [_in_order(fields[position], each.type) for position, each in zip(positions, wanted, strict=True)]
    return pa.StructArray.from_arrays(parts, names=names, mask=array.is_null())


def records_of(schema: GateSchema, columns: Sequence[list[Any]]) -> list[Any]:
    """Records in the shape of the gate's type: rows, tuples or single values."""
    return shaped(list(map(ListColumn, columns)), schema.type_info).to_list() if columns else []


def _free_row(row: Any) -> Any:
    """A record for a gate without a declared type: Spark's rows become ours, other values stay."""
    if not isinstance(row, st.Row):
        return row
    values = [_free_row(value) for value in row]
    names = getattr(row, "__fields__", None)
    return Row(*values) if names is None else Row(*names)(*values)


def _transposed(rows: list[Any], fields: list[str] | None, width: int) -> list[tuple[Any, ...]] | None:
    """The columns of the rows; None unless all are tuples of this width with these field names
    (None: without names).
    """
    kinds = set(map(type, rows))
    if not all(issubclass(kind, tuple | list) for kind in kinds) or not _have_fields(rows, fields, kinds):
        return None
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:  # a row is shorter
        return None
    return columns if len(columns) == width else None


def _have_fields(rows: list[Any], fields: list[str] | None, kinds: set[type]) -> bool:
    if fields is None:
        return not any(issubclass(kind, st.Row) for kind in kinds) or not any(
            hasattr(row, "__fields__") for row in rows
        )
    try:
        return list(map(_FIELDS, rows)).count(fields) == len(rows)  # fast, because the rows usually share one list
    except AttributeError:
        return False


# ---------------------------------------------------------------- single values


def classes_of(type_info: TypeInformation) -> frozenset[type] | None:
    """The exact classes of Spark's values for a type without parts; None: any."""
    if spark_type_of(type_info) is None:
        return None
    arrow_type = _ARROW.get(type_info) or arrow_type_of(type_info)
    return None if arrow_type is None else classes_of_arrow(arrow_type)


def in_utc(value: datetime.datetime, *, clock_is_utc: bool) -> datetime.datetime:
    """The point in time in UTC, without a zone; a value without a zone is in the local time of this process."""
    if value.tzinfo is None and clock_is_utc:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


class _SparkRules(PartRules):
    """Checks and converts values that Arrow cannot hold unchanged.

    ``clock_is_utc``: as ``in_utc``.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (TypeError,)

    def __init__(self, *, clock_is_utc: bool) -> None:
        self._to_utc = partial(in_utc, clock_is_utc=clock_is_utc)

    def plain(self, type_info: TypeInformation) -> Convert | None:
        if isinstance(type_info, PickledBytesTypeInfo):
            return None
        allowed = classes_of(type_info)
        convert = known_form(type_info).checked
        if type_info == _INSTANT or isinstance(type_info, TimestampTypeInfo):
            convert = self._instant if type_info == _INSTANT else self._to_utc

        def checked(value: Any) -> Any:
            if allowed is None or type(value) not in allowed:
                raise TypeError(f"{value!r} is a {type(value).__name__}")
            return convert(value)

        return checked

    def _instant(self, value: datetime.datetime) -> Instant:
        micros = (self._to_utc(value) - _EPOCH) // _MICROSECOND
        seconds, rest = divmod(micros, 1_000_000)
        return Instant(seconds, rest * 1000)

    def has_parts(self, type_info: TypeInformation) -> bool:
        return isinstance(type_info, COMPOSITE_TYPES) and type_info != _BINARY

    def key(self, type_info: MapTypeInfo) -> Convert | None:
        convert = super().key(type_info)
        if convert is None:
            return None
        return lambda value: value if value is None else convert(value)

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        assert isinstance(type_info, RowTypeInfo), "Spark has no tuples"
        names = type_info.get_field_names()
        if not isinstance(value, dict):
            return fields_in_order(value, names)
        # From Arrow.
        values = list(value.values())
        if are_positions(names) and len(values) == len(names):
            return values
        return fields_by_name(list(value), values, names)

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is no list")
        return value

    def entries(self, type_info: MapTypeInfo, value: Any) -> Iterable[tuple[Any, Any]]:
        # From Arrow: a list of pairs.
        return value.items() if isinstance(value, dict) else value


_ARROWS: Final = _SparkRules(clock_is_utc=False)  # datetimes of Arrow have a zone
