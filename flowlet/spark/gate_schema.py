"""``GateSchema``: the columns that Spark must deliver to a gate.  ``RowConverter`` and ``BatchConverter``: convert
Spark's rows and Arrow batches to a gate's records.  Values that are nested, or that Arrow cannot hold unchanged, are
converted one by one.

Hot path: work per chunk of rows, C calls per column; a Python loop over values only for columns that Arrow cannot hold
    unchanged.

Side:       pure.
Invariants: types are compared, never widened, and a value that is not exactly of its column's type is refused, never
            converted, so that values arrive unchanged; an error names the column that does not fit.  None is allowed
            everywhere.  Rows and batches of equal values give equal records.
Rules:      a row type with names takes columns by name, in any order, and so do the rows in it, at every level; a
            tuple, or a row type without names, by position; any other type takes a single column.  A gate of
            ``PICKLED_BYTE_ARRAY`` takes rows of any columns.  An Arrow schema takes its fields by name; the gate's
            records are then batches of them.
Units:      a Spark ``timestamp`` is a point in time: a ``datetime`` in UTC without a zone (``SQL_TIMESTAMP``) or an
            ``Instant``.  A ``timestamp_ntz`` keeps its fields (``LOCAL_DATE_TIME``).
Source:     ``pyspark.sql.types.Row``, and batches as in ``mapInArrow``; the Python values of ``pyspark.sql.types``
            (``fromInternal``) and of ``pyarrow``'s ``to_pylist``: both forms are accepted.
Absent:     intervals, variants, and Python's big integers, which Spark does not have.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from flowlet.columns import Column, Columns, ListColumn
from flowlet.columns.arrow_batches import column_of_array
from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    COMPOSITE_TYPES,
    ArrowTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    named_fields,
)
from flowlet.common.types import Row, are_positions, fields_by_name
from flowlet.common.values.conversion import FORMS, PartRules, known_form
from flowlet.common.values.field_values import Convert
from flowlet.errors import FlowletError
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order, preview
from flowlet.types.declared_records import column_order
from flowlet.types.gate_forms import exact_array, shaped
from flowlet.types.leaf_forms import arrow_type_of, classes_of_arrow, instants_array
from netstack.late import dataclass

# A column of the Spark type fits a gate of the type in front of it; ``type_info_of`` chooses the first one.  Spark has
# no times of a day and no numbers without a sign, and its points in time are those of Arrow without a zone, in UTC.
_SPARK: Final[Mapping[TypeInformation, st.DataType]] = {
    **{
        each: from_arrow_type(pa.type_for_alias(form.arrow), prefer_timestamp_ntz=True)
        for each, form in FORMS.items()
        if form.arrow is not None and not form.arrow.startswith(("time64", "uint"))
    },
    Types.SQL_TIMESTAMP(): st.TimestampType(),
    Types.INSTANT(): st.TimestampType(),
    Types.BIG_DEC(): st.DecimalType(38, 18),
}


class SchemaMismatchError(FlowletError):
    """A DataFrame's columns do not fit the gate; the message names the gate, the column and both types."""


@dataclass(frozen=True, slots=True)
class GateColumn:
    """One field of a gate's records; ``arrow_type`` None: its values are converted one by one."""

    name: str
    type_info: TypeInformation
    arrow_type: pa.DataType | None


@dataclass(frozen=True, slots=True)
class GateSchema:
    """The columns that a gate takes.  ``columns`` None: any columns."""

    gate: str
    type_info: TypeInformation
    columns: tuple[GateColumn, ...] | None
    # Of batches that are sent as they are; None: values are converted one by one.
    arrow_schema: pa.Schema | None = field(repr=False)

    @classmethod
    def of(cls, gate: str, type_info: TypeInformation) -> "GateSchema":
        """The columns of a gate's type.  Raises SchemaMismatchError: Spark has no columns of this type."""
        match type_info:
            case PickledBytesTypeInfo():
                return cls(gate, type_info, None, None)
            case ArrowTypeInfo():
                columns = tuple([_arrow_column(gate, each) for each in type_info.schema])
                return cls(gate, type_info, columns, type_info.schema)
            case RowTypeInfo() | TupleTypeInfo():
                pairs = named_fields(type_info)
            case _:
                pairs = [("value", type_info)]
        columns = tuple(_column(gate, name, each) for name, each in pairs)
        fields = [(column.name, column.arrow_type) for column in columns]
        is_converted = any(arrow is None for _, arrow in fields)
        return cls(gate, type_info, columns, None if is_converted else pa.schema(fields))

    @property
    def is_single(self) -> bool:
        """Whether a record is the value of the only column."""
        return not isinstance(self.type_info, RowTypeInfo | TupleTypeInfo | PickledBytesTypeInfo | ArrowTypeInfo)

    def check_spark(self, schema: st.StructType) -> tuple[int, ...]:
        """The position in ``schema`` of each of the gate's columns.

        Raises:
            SchemaMismatchError: a column is missing, superfluous, or of another type.
        """
        order = self.positions(schema.fieldNames())
        for position, column in zip(order, self.columns or (), strict=self.columns is not None):
            found = schema[position]
            wanted = spark_type_of(column.type_info)
            if wanted is not None and not _is_same(found.dataType, wanted):
                cast = wanted.simpleString()
                raise SchemaMismatchError(
                    f"column {found.name!r} is {found.dataType.simpleString()}, gate {self.gate!r} takes {cast}: cast "
                    f"it, for example col({found.name!r}).cast({cast!r})"
                )
        return order

    def positions(self, names: Sequence[str]) -> tuple[int, ...]:
        """The position in rows with these fields of each of the gate's columns.

        Raises:
            SchemaMismatchError: a column is missing, superfluous, or occurs twice.
        """
        try:
            return column_order(names, self.type_info, f"gate {self.gate!r}")
        except ValueMismatchError as error:
            raise SchemaMismatchError(str(error)) from None


def spark_type_of(type_info: TypeInformation) -> st.DataType | None:
    """The Spark type for values of ``type_info``; None: any.  Raises SchemaMismatchError: Spark has none."""
    if isinstance(type_info, PickledBytesTypeInfo):
        return None
    leaf = _SPARK.get(type_info)
    if leaf is not None:
        return leaf
    match type_info:
        case _ if isinstance(type_info, ARRAY_TYPES):
            return st.ArrayType(_inner(type_info.elem_type))
        case MapTypeInfo():
            return st.MapType(_inner(type_info.key_type_info), _inner(type_info.value_type_info))
        case RowTypeInfo():
            return st.StructType([st.StructField(name, _inner(each)) for name, each in named_fields(type_info)])
        case _:
            raise SchemaMismatchError(f"Spark has no type for {type_info!r}")


def type_info_of(data_type: st.DataType) -> TypeInformation:
    """The type of a gate that takes a DataFrame: ``env.from_remote_gate("clicks", type_info=type_info_of(df.schema))``.

    Raises:
        SchemaMismatchError: no gate takes a column of this type.
    """
    match data_type:
        case st.StructType():
            return Types.ROW_NAMED(data_type.fieldNames(), [_type_info_of_field(each) for each in data_type.fields])
        case st.ArrayType():
            return Types.LIST(type_info_of(data_type.elementType))
        case st.MapType():
            return Types.MAP(type_info_of(data_type.keyType), type_info_of(data_type.valueType))
        case _:
            found = next((flink for flink, spark in _SPARK.items() if _is_same(data_type, spark)), None)
            if found is None:
                raise SchemaMismatchError(f"no gate takes values of Spark's type {data_type.simpleString()}")
            return found


def _type_info_of_field(column: st.StructField) -> TypeInformation:
    try:
        return type_info_of(column.dataType)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"column {column.name!r}: {error}") from None


def _inner(type_info: TypeInformation) -> st.DataType:
    found = spark_type_of(type_info)
    if found is None:
        raise SchemaMismatchError(f"Spark has no type for {type_info!r} inside of another one")
    return found


def _column(gate: str, name: str, type_info: TypeInformation) -> GateColumn:
    try:
        spark_type_of(type_info)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"column {name!r} of gate {gate!r}: {error}; declare the gate with a type that Spark has"
        ) from None
    return GateColumn(name, type_info, arrow_type_of(type_info) if type_info in _SPARK else None)


def _arrow_column(gate: str, field: pa.Field) -> GateColumn:
    """The column for a field of an Arrow schema; raises if Spark has no column of exactly these values."""
    arrow = field.type
    try:
        if pa.types.is_dictionary(arrow) or (pa.types.is_timestamp(arrow) and arrow.unit != "us"):
            # Spark has one, but only with a conversion of the values.
            raise SchemaMismatchError(f"Spark has no type for {arrow}")
        type_info = type_info_of(from_arrow_type(arrow, prefer_timestamp_ntz=True))
    except (SchemaMismatchError, PySparkTypeError) as error:
        text = f"column {field.name!r} of gate {gate!r} is {arrow}: {error}"
        raise SchemaMismatchError(f"{text}; declare the schema that Spark's batches have") from None
    return GateColumn(field.name, type_info, arrow)


def _is_same(found: st.DataType, wanted: st.DataType) -> bool:
    """Whether the types are equal, except for nullability, the collation of texts and the precision of decimals."""
    match found, wanted:
        case (st.StringType(), st.StringType()) | (st.DecimalType(), st.DecimalType()):
            return True
        case st.ArrayType(), st.ArrayType():
            return _is_same(found.elementType, wanted.elementType)
        case st.MapType(), st.MapType():
            return _is_same(found.keyType, wanted.keyType) and _is_same(found.valueType, wanted.valueType)
        case st.StructType(), st.StructType():
            return _are_same_fields(found, wanted)
        case _:
            return found == wanted


def _are_same_fields(found: st.StructType, wanted: st.StructType) -> bool:
    """Whether rows have equal fields: by name, in any order, or by position where the gate's fields have no names."""
    names = wanted.fieldNames()
    by_name = {each.name: each for each in found.fields}
    if len(found.fields) != len(names) or len(by_name) != len(names):
        return False
    if are_positions(names):
        pairs = zip(found.fields, wanted.fields, strict=True)
    elif by_name.keys() == set(names):
        pairs = zip([by_name[name] for name in names], wanted.fields, strict=True)
    else:
        return False
    return all(_is_same(one.dataType, other.dataType) for one, other in pairs)


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
        """The error, with the position of the first row that raises it alone."""
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
        if isinstance(schema.type_info, ArrowTypeInfo):
            arrays = [self._array(column, each) for column, each in pairs]
            return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)
        if schema.arrow_schema is None:
            return records_of(schema, [self._converted(column, each) for column, each in pairs])
        return shaped(tuple([self._column(column, each) for column, each in pairs]), schema.type_info)

    def _column(self, column: GateColumn, values: Sequence[Any]) -> Column:
        """A column of values: numbers and times in an array, others in a list, as small Arrow columns cost too much."""
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
        """The array in the gate's Arrow type, with unchanged values."""
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
    """The rows with their fields in the order of the wanted type, at every level: also in lists and in rows."""
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
        return array  # the caller's cast raises an error about it
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
    keys_may_be_none = True

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
