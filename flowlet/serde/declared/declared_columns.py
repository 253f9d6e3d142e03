"""Creates the columns of a declared type.

Side: pure.
"""

from functools import lru_cache
from typing import Final

from flowlet.common.typeinfo import (
    ArrowTypeInfo,
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    ListTypeInfo,
    LocalTimeTypeInfo,
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
from flowlet.serde.declared.composite_columns import FieldsColumn, ListsColumn, MapColumn, RowColumn
from flowlet.serde.declared.declared_column import DeclaredColumn
from flowlet.serde.declared.leaf_columns import (
    AnyColumn,
    BooleanColumn,
    BytesColumn,
    CharacterColumn,
    DateColumn,
    FloatingColumn,
    IntegerColumn,
    SerializedColumn,
    TextColumn,
    TimestampColumn,
)
from flowlet.serde.types.local_time_serializers import LOCAL_TIME_SERIALIZERS
from flowlet.serde.types.serializers import serializer_for

_BITS: Final = {BasicType.BYTE: 8, BasicType.SHORT: 16, BasicType.INT: 32, BasicType.LONG: 64}
_BASIC: Final[dict[BasicType, type[TextColumn | BooleanColumn | FloatingColumn]]] = {
    BasicType.STRING: TextColumn,
    BasicType.CHAR: CharacterColumn,
    BasicType.BOOLEAN: BooleanColumn,
    BasicType.FLOAT: FloatingColumn,
    BasicType.DOUBLE: FloatingColumn,
}
_TimeType = LocalTimeTypeInfo.TimeType
_MAX_TYPES: Final = 256


@lru_cache(_MAX_TYPES)
def declared_column(type_info: TypeInformation) -> DeclaredColumn:
    """The column form of a type.  Raises TypeError: the class of the type is unknown."""
    match type_info:
        case BasicTypeInfo():
            return _basic(type_info)
        case DateTypeInfo() | LocalTimeTypeInfo(time_type=_TimeType.LOCAL_DATE):
            return DateColumn(type_info)
        case TimestampTypeInfo() | LocalTimeTypeInfo(time_type=_TimeType.LOCAL_DATE_TIME):
            return TimestampColumn(type_info)
        case TimeTypeInfo() | LocalTimeTypeInfo():
            # Exact to the microsecond, which SQL's serializer is not.
            return SerializedColumn(type_info, LOCAL_TIME_SERIALIZERS[_TimeType.LOCAL_TIME])
        case PickledBytesTypeInfo():
            return AnyColumn(type_info)
        case PrimitiveArrayTypeInfo(elem_type=BasicTypeInfo(basic_type=BasicType.BYTE)):
            return BytesColumn(type_info)
        case PrimitiveArrayTypeInfo():
            return ListsColumn(type_info, declared_column(type_info.elem_type), may_hold_none=False)
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo():
            return ListsColumn(type_info, declared_column(type_info.elem_type))
        case MapTypeInfo():
            return MapColumn(
                type_info, declared_column(type_info.key_type_info), declared_column(type_info.value_type_info)
            )
        case RowTypeInfo():
            return RowColumn(
                type_info, type_info.get_field_names(), list(map(declared_column, type_info.get_field_types()))
            )
        case TupleTypeInfo():
            fields = list(map(declared_column, type_info.get_field_types()))
            return FieldsColumn(type_info, [f"f{position}" for position in range(len(fields))], fields)
        case ArrowTypeInfo():
            return SerializedColumn(type_info, serializer_for(type_info))
        case _:
            raise TypeError(f"no column of {type_info!r}")


def _basic(type_info: BasicTypeInfo) -> DeclaredColumn:
    num_bits = _BITS.get(type_info.basic_type)
    if num_bits is not None:
        return IntegerColumn(type_info, num_bits)
    kind = _BASIC.get(type_info.basic_type)
    return SerializedColumn(type_info, serializer_for(type_info)) if kind is None else kind(type_info)
