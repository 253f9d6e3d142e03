"""``GateSchema``: the columns that Spark must deliver to a gate.

Side:       pure.
Invariants: types are compared, never widened, so that values arrive unchanged; an error names the column that does not
            fit.
Rules:      a row type with names takes columns by name, in any order, and so do the rows in it, at every level; a
            tuple, or a row type without names, by position; any other type takes a single column.  A gate of
            ``PICKLED_BYTE_ARRAY`` takes rows of any columns.  An Arrow schema takes its fields by name; the gate's
            records are then batches of them.
Units:      a Spark ``timestamp`` is a point in time: a ``datetime`` in UTC without a zone (``SQL_TIMESTAMP``) or an
            ``Instant``.  A ``timestamp_ntz`` keeps its fields (``LOCAL_DATE_TIME``).
Absent:     intervals, variants, and Python's big integers, which Spark does not have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    ArrowTypeInfo,
    BasicType,
    BasicTypeInfo,
    LocalTimeTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    named_fields,
)
from flowlet.common.types import are_positions
from flowlet.errors import FlowletError
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.types.declared_records import column_order
from flowlet.types.leaf_forms import arrow_type_of
from netstack.late import dataclass

_TimeType = LocalTimeTypeInfo.TimeType

# A column of the Spark type fits a gate of the type beside it.  ``type_info_of`` chooses the first entry for a Spark
# type.
_LEAVES: Final[tuple[tuple[st.DataType, TypeInformation], ...]] = (
    (st.StringType(), Types.STRING()),
    (st.BooleanType(), Types.BOOLEAN()),
    (st.ByteType(), Types.BYTE()),
    (st.ShortType(), Types.SHORT()),
    (st.IntegerType(), Types.INT()),
    (st.LongType(), Types.LONG()),
    (st.FloatType(), Types.FLOAT()),
    (st.DoubleType(), Types.DOUBLE()),
    (st.BinaryType(), Types.PRIMITIVE_ARRAY(Types.BYTE())),
    (st.DateType(), Types.SQL_DATE()),
    (st.DateType(), LocalTimeTypeInfo(_TimeType.LOCAL_DATE)),
    (st.TimestampType(), Types.SQL_TIMESTAMP()),
    (st.TimestampType(), Types.INSTANT()),
    (st.TimestampNTZType(), LocalTimeTypeInfo(_TimeType.LOCAL_DATE_TIME)),
)
_SPARK: Final[Mapping[TypeInformation, st.DataType]] = {flink: spark for spark, flink in _LEAVES}


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

    @property
    def takes_batches(self) -> bool:
        """Whether a record is a whole record batch."""
        return isinstance(self.type_info, ArrowTypeInfo)

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
        case BasicTypeInfo(basic_type=BasicType.BIG_DEC):
            return st.DecimalType(38, 18)
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
        case st.DecimalType():
            return Types.BIG_DEC()
        case _:
            found = next((flink for spark, flink in _LEAVES if _is_same(data_type, spark)), None)
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
            # It has, but only with a conversion of the values.
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
    """By name, in any order; by position where the gate's fields have no names."""
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
