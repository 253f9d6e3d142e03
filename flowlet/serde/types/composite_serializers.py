"""Serializers of tuples, rows, lists, arrays and maps, and ``serializer_for`` any declared type.

Side:       pure.
Invariants: an error in a part names the path to it.  A count from the network allocates nothing before it is checked
            against the bytes that are left.  A copy shares immutable parts with its original, and nothing else.
Source:     Flink ``TypeInformation.createSerializer``; ``TupleSerializer``, ``RowSerializer``, ``ListSerializer``,
            ``MapSerializer``, ``GenericArraySerializer``, ``StringArraySerializer`` and the serializers of primitive
            arrays.
Absent:     a registry for users' own types: they are pickled, or declared as rows.
"""

import array
from collections.abc import Sequence
from typing import Any, Final

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
from flowlet.common.types import Row, RowKind, field_names_of
from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput
from flowlet.serde.type_serializer import TypeSerializer, ValueMismatchError, fields_in_order, mismatch, preview
from flowlet.serde.types.basic_serializers import (
    BASIC_SERIALIZERS,
    LOCAL_TIME_SERIALIZERS,
    SQL_DATE_SERIALIZER,
    SQL_TIME_SERIALIZER,
    SQL_TIMESTAMP_SERIALIZER,
    PickledSerializer,
    StringSerializer,
)

_ROW_KIND_BITS: Final = 2
_ROW_KINDS: Final = tuple(RowKind)


class TupleSerializer(TypeSerializer):
    """``tuple``: its fields in order.  A field may be None only if its own serializer has a format for None."""

    __slots__ = ("_fields", "is_immutable", "min_size_bytes")
    is_immutable: bool
    min_size_bytes: int

    def __init__(self, fields: Sequence[TypeSerializer]) -> None:
        self._fields = tuple(fields)
        self.is_immutable = all(field.is_immutable for field in fields)
        self.min_size_bytes = sum(field.min_size_bytes for field in fields)

    def serialize(self, value: Any, output: DataOutput) -> None:
        """The fields in order."""
        self._check(value)
        index = 0
        try:
            for index, field in enumerate(self._fields):
                field.serialize(value[index], output)
        except ValueMismatchError as error:
            raise error.within(f"f{index}") from None

    def deserialize(self, source: DataInput) -> tuple[Any, ...]:
        """The fields in order."""
        return tuple([field.deserialize(source) for field in self._fields])

    def _copy(self, value: Any) -> tuple[Any, ...]:
        self._check(value)
        return tuple([field.copy(item) for field, item in zip(self._fields, value, strict=True)])

    def _check(self, value: Any) -> None:
        if not isinstance(value, tuple):
            raise mismatch(value, f"a tuple of {len(self._fields)} fields")
        if len(value) != len(self._fields):
            raise ValueMismatchError(f"{preview(value)} has {len(value)} fields, declared are {len(self._fields)}")

    def __repr__(self) -> str:
        return f"TupleSerializer({', '.join(map(repr, self._fields))})"


class RowSerializer(TypeSerializer):
    """``Row``: a bit mask (2 bits row kind, then one bit per field, set if it is None), then the fields that are not
    None.

    Deserialized rows have the declared names.  A row with names must have just these, in any order.
    """

    __slots__ = ("_fields", "_mask_bytes", "_names")

    def __init__(self, names: Sequence[str], fields: Sequence[TypeSerializer]) -> None:
        self._names = list(names)
        self._fields = tuple(fields)
        self._mask_bytes = (_ROW_KIND_BITS + len(self._fields) + 7) // 8

    @property
    def min_size_bytes(self) -> int:
        """Size of the null mask in bytes."""
        return self._mask_bytes

    def serialize(self, value: Any, output: DataOutput) -> None:
        """The mask, then the fields."""
        items = self._items(value)
        output.write(self._mask(value.get_row_kind(), items))
        index = 0
        try:
            for index, (field, item) in enumerate(zip(self._fields, items, strict=True)):  # noqa: B007 - read below
                if item is not None:
                    field.serialize(item, output)
        except ValueMismatchError as error:
            raise error.within(self._names[index]) from None

    def deserialize(self, source: DataInput) -> Row:
        """The mask, then the fields."""
        mask = int.from_bytes(source.read_view(self._mask_bytes), "big")
        top = 8 * self._mask_bytes - 1
        if mask & ((1 << (top + 1 - _ROW_KIND_BITS - len(self._fields))) - 1):
            raise SerdeError("the mask of a row has bits behind those of its fields")
        kind = (mask >> top & 1) | (mask >> (top - 1) & 1) << 1
        first = top - _ROW_KIND_BITS
        values = [
            None if mask >> (first - index) & 1 else field.deserialize(source)
            for index, field in enumerate(self._fields)
        ]
        return self._row(values, _ROW_KINDS[kind], self._names)

    def _mask(self, kind: RowKind, items: Sequence[Any]) -> bytes:
        top = 8 * self._mask_bytes - 1
        # Flink writes the lower bit of the kind first.
        mask = (kind.value & 1) << top | (kind.value >> 1) << (top - 1)
        first = top - _ROW_KIND_BITS
        for index, item in enumerate(items):
            if item is None:
                mask |= 1 << (first - index)
        return mask.to_bytes(self._mask_bytes, "big")

    def _copy(self, value: Any) -> Row:
        items = [field.copy(item) for field, item in zip(self._fields, self._items(value), strict=True)]
        return self._row(items, value.get_row_kind(), None if field_names_of(value) is None else self._names)

    def _row(self, items: Sequence[Any], kind: RowKind, names: list[str] | None) -> Row:
        row = Row.of_kind(kind, *items)
        if names is not None:
            row.set_field_names(names)
        return row

    def _items(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, Row):
            raise mismatch(value, f"a Row of {len(self._fields)} fields")
        return fields_in_order(value, self._names)

    def __repr__(self) -> str:
        fields = (f"{name}: {field!r}" for name, field in zip(self._names, self._fields, strict=True))
        return f"RowSerializer({', '.join(fields)})"


class ListSerializer(TypeSerializer):
    """``list``: i32 size, then the elements.

    ``has_null_flags``: whether a byte before each element says if it is None, as in arrays of objects; otherwise the
        element's serializer
    must have a format for None.
    """

    __slots__ = ("_element", "_has_null_flags", "_name")
    min_size_bytes = 4

    def __init__(self, element: TypeSerializer, *, has_null_flags: bool = False, name: str = "ListSerializer") -> None:
        self._element = element
        self._has_null_flags = has_null_flags
        self._name = name

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Size and elements."""
        if not isinstance(value, list):
            raise mismatch(value, "a list")
        output.write_int(len(value))
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007 - read below
                if self._has_null_flags:
                    output.write_boolean(value=item is not None)
                    if item is None:
                        continue
                self._element.serialize(item, output)
        except ValueMismatchError as error:
            raise error.within(f"[{index}]") from None

    def deserialize(self, source: DataInput) -> list[Any]:
        """Size and elements."""
        read = self._element.deserialize
        if not self._has_null_flags:
            count = source.read_count("elements", min_bytes_each=self._element.min_size_bytes)
            return [read(source) for _ in range(count)]
        count = source.read_count("elements", min_bytes_each=1)
        return [read(source) if source.read_boolean() else None for _ in range(count)]

    def _copy(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise mismatch(value, "a list")
        return self._element.copy_all(value)

    def __repr__(self) -> str:
        return f"{self._name}({self._element!r})"


class MapSerializer(TypeSerializer):
    """``dict``: i32 size, then for each entry, in the dict's order: the key, a byte that is 1 if the value is None, the
    value.
    """

    __slots__ = ("_key", "_value")
    min_size_bytes = 4

    def __init__(self, key: TypeSerializer, value: TypeSerializer) -> None:
        self._key = key
        self._value = value

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Size and entries."""
        if not isinstance(value, dict):
            raise mismatch(value, "a dict")
        output.write_int(len(value))
        key = None
        try:
            for key, item in value.items():
                self._key.serialize(key, output)
                output.write_boolean(value=item is None)
                if item is not None:
                    self._value.serialize(item, output)
        except ValueMismatchError as error:
            raise error.within(f"[{preview(key)}]") from None

    def deserialize(self, source: DataInput) -> dict[Any, Any]:
        """Refuses a key that occurs twice."""
        count = source.read_count("entries", min_bytes_each=self._key.min_size_bytes + 1)
        entries: dict[Any, Any] = {}
        for _ in range(count):
            key = self._key.deserialize(source)
            entries[key] = None if source.read_boolean() else self._value.deserialize(source)
        if len(entries) != count:
            raise SerdeError(f"a map of {count} entries has {len(entries)} different keys")
        return entries

    def _copy(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise mismatch(value, "a dict")
        return {self._key.copy(key): self._value.copy(item) for key, item in value.items()}

    def __repr__(self) -> str:
        return f"MapSerializer({self._key!r}, {self._value!r})"


class PrimitiveArraySerializer(ListSerializer):
    """``list`` or ``array.array`` of numbers, booleans or characters, never None; deserialized as a list."""

    __slots__ = ()

    def __init__(self, element: TypeSerializer) -> None:
        super().__init__(element, name="PrimitiveArraySerializer")

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Size and elements."""
        super().serialize(value.tolist() if isinstance(value, array.array) else value, output)

    def _copy(self, value: Any) -> Any:
        return value[:] if isinstance(value, array.array) else super()._copy(value)


class BytesSerializer(TypeSerializer):
    """``bytes``, or ``bytearray``, which is deserialized as ``bytes``: i32 size, then the bytes."""

    __slots__ = ()
    min_size_bytes = 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Size and bytes."""
        if not isinstance(value, bytes | bytearray):
            raise mismatch(value, "bytes")
        output.write_int(len(value))
        output.write(value)

    def deserialize(self, source: DataInput) -> bytes:
        """Size and bytes."""
        return source.read(source.read_count("bytes", min_bytes_each=1))

    def _copy(self, value: Any) -> Any:
        return value if type(value) is bytes else value[:]


def array_serializer(element: TypeSerializer) -> ListSerializer:
    """The serializer of an array of objects that may be None; texts have their own format for None."""
    is_text = isinstance(element, StringSerializer)
    return ListSerializer(
        element, has_null_flags=not is_text, name="StringArraySerializer" if is_text else "GenericArraySerializer"
    )


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
