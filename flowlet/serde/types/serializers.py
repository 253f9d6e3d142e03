"""Creates the serializer of a declared type.

Side:   pure.
Source: Flink ``TypeInformation.createSerializer``.
Absent: a registry for users' own types: they are pickled, or declared as rows.
"""

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
from flowlet.serde.type_serializer import TypeSerializer
from flowlet.serde.types.basic_serializers import (
    BASIC_SERIALIZERS,
    SQL_DATE_SERIALIZER,
    SQL_TIME_SERIALIZER,
    SQL_TIMESTAMP_SERIALIZER,
    PickledSerializer,
)
from flowlet.serde.types.composite_serializers import (
    BytesSerializer,
    ListSerializer,
    MapSerializer,
    PrimitiveArraySerializer,
    RowSerializer,
    TupleSerializer,
    array_serializer,
)
from flowlet.serde.types.local_time_serializers import LOCAL_TIME_SERIALIZERS

_SQL_SERIALIZERS: Final[dict[type[TypeInformation], TypeSerializer]] = {
    DateTypeInfo: SQL_DATE_SERIALIZER,
    TimeTypeInfo: SQL_TIME_SERIALIZER,
    TimestampTypeInfo: SQL_TIMESTAMP_SERIALIZER,
}


def serializer_for(type_info: TypeInformation) -> TypeSerializer:
    """The serializer of the values that ``type_info`` describes.

    Raises TypeError: the class of ``type_info`` is unknown.
    """
    match type_info:
        case BasicTypeInfo():
            return BASIC_SERIALIZERS[type_info.basic_type]
        case PickledBytesTypeInfo():
            return PickledSerializer()
        case DateTypeInfo() | TimeTypeInfo() | TimestampTypeInfo():
            return _SQL_SERIALIZERS[type(type_info)]
        case LocalTimeTypeInfo():
            return LOCAL_TIME_SERIALIZERS[type_info.time_type]
        case ArrowTypeInfo():
            # Imported here: most programs have no Arrow, and the import takes longer than all of ours.
            from flowlet.serde.arrow_serializer import ArrowSerializer

            return ArrowSerializer(type_info.schema)
        case _:
            return _composite(type_info)


def _composite(type_info: TypeInformation) -> TypeSerializer:
    match type_info:
        case TupleTypeInfo():
            return TupleSerializer([serializer_for(field) for field in type_info.get_field_types()])
        case RowTypeInfo():
            return RowSerializer(
                type_info.get_field_names(), [serializer_for(field) for field in type_info.get_field_types()]
            )
        case ListTypeInfo():
            return ListSerializer(serializer_for(type_info.elem_type))
        case MapTypeInfo():
            return MapSerializer(serializer_for(type_info.key_type_info), serializer_for(type_info.value_type_info))
        case PrimitiveArrayTypeInfo(elem_type=BasicTypeInfo(basic_type=BasicType.BYTE)):
            return BytesSerializer()
        case PrimitiveArrayTypeInfo():
            return PrimitiveArraySerializer(serializer_for(type_info.elem_type))
        case BasicArrayTypeInfo() | ObjectArrayTypeInfo():
            return array_serializer(serializer_for(type_info.elem_type))
        case _:
            raise TypeError(f"no serializer for {type_info!r}: use Types.PICKLED_BYTE_ARRAY() for values of any type")
