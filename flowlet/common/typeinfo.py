"""``Types`` and the classes of type information: the declared types of records.

Side:       pure.
Invariants: type information is immutable, comparable and hashable.  It converts nothing, except that
            ``from_collection`` brings its elements into the declared shape (``flowlet.common.values.conversion``).
Source:     PyFlink ``pyflink.common.typeinfo``.
Absent:     ``ExternalTypeInfo``, and what only a JVM needs (``get_java_type_info``, ``to_internal_type``,
            ``from_internal_type``).
"""

# ruff: noqa: N802  # PyFlink's names

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from flowlet.common.not_yet import explain_missing_names, java_only

__all__ = [
    "ArrowTypeInfo",
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "DateTypeInfo",
    "InferredTypeInfo",
    "InstantTypeInfo",
    "ListTypeInfo",
    "LocalTimeTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SqlTimeTypeInfo",
    "TimeTypeInfo",
    "TimestampTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "holds_any_object",
]


class TypeInformation:
    """The type of a stream's records; compared by value."""

    __slots__ = ()
    get_java_type_info = java_only("the type itself, or its repr() for a text")

    _compared: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.partition(".")[0] == "flowlet":  # a user's class defines its own comparison
            cls._compared += cls.__dict__.get("__slots__", ())

    def _parts(self) -> tuple[object, ...]:
        """Return the values of the slots: two types of one class differ in these."""
        return tuple([getattr(self, slot) for slot in self._compared])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and type(self) is type(other) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((type(self), self._parts()))

    def __repr__(self) -> str:
        return type(self).__name__


class BasicType(Enum):
    """The basic types; values are the names that Flink prints."""

    STRING = "String"
    BYTE = "Byte"
    BOOLEAN = "Boolean"
    SHORT = "Short"
    INT = "Integer"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    CHAR = "Char"
    BIG_INT = "BigInteger"
    BIG_DEC = "BigDecimal"
    INSTANT = "Instant"


_PRIMITIVES = set(BasicType) - {BasicType.STRING, BasicType.BIG_INT, BasicType.BIG_DEC, BasicType.INSTANT}


class BasicTypeInfo(TypeInformation):
    """A string, a number, a boolean or an instant."""

    __slots__ = ("basic_type",)

    def __init__(self, basic_type: BasicType) -> None:
        self.basic_type = basic_type

    def __repr__(self) -> str:
        return self.basic_type.value

    @staticmethod
    def STRING_TYPE_INFO() -> "BasicTypeInfo":
        """Text: ``str``."""
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> "BasicTypeInfo":
        """``bool``."""
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def BYTE_TYPE_INFO() -> "BasicTypeInfo":
        """An ``int`` of 8 bits."""
        return BasicTypeInfo(BasicType.BYTE)

    @staticmethod
    def SHORT_TYPE_INFO() -> "BasicTypeInfo":
        """An ``int`` of 16 bits."""
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT_TYPE_INFO() -> "BasicTypeInfo":
        """An ``int`` of 32 bits."""
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG_TYPE_INFO() -> "BasicTypeInfo":
        """An ``int`` of 64 bits."""
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT_TYPE_INFO() -> "BasicTypeInfo":
        """A ``float``, rounded to 32 bits by its own serializer; chunks between tasks keep Python's 64."""
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE_TYPE_INFO() -> "BasicTypeInfo":
        """A ``float``."""
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR_TYPE_INFO() -> "BasicTypeInfo":
        """A ``str`` of one character."""
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT_TYPE_INFO() -> "BasicTypeInfo":
        """An ``int`` of any size."""
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> "BasicTypeInfo":
        """A ``decimal.Decimal``."""
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT_TYPE_INFO() -> "InstantTypeInfo":
        """A point in time: ``flowlet.common.Instant``."""
        return InstantTypeInfo(BasicType.INSTANT)


class InstantTypeInfo(BasicTypeInfo):
    """``flowlet.common.Instant``."""

    __slots__ = ()


class PickledBytesTypeInfo(TypeInformation):
    """Any Python object: the type of a stream without a declared type."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickledBytesTypeInfo)

    def __hash__(self) -> int:
        return hash(PickledBytesTypeInfo)

    def __repr__(self) -> str:
        return "PickledByteArrayTypeInfo"


class InferredTypeInfo(PickledBytesTypeInfo):
    """Any Python object, about which a function's annotation tells more: ``inferred``.

    Equal to the type of other objects.
    """

    __slots__ = ("inferred",)

    def __init__(self, inferred: TypeInformation) -> None:
        self.inferred = inferred

    def __repr__(self) -> str:
        return f"PickledByteArrayTypeInfo({self.inferred!r})"


class SqlTimeTypeInfo(TypeInformation):
    """Base class of the three SQL time types."""

    __slots__ = ()

    @staticmethod
    def DATE() -> "DateTypeInfo":
        """``datetime.date``."""
        return DateTypeInfo()

    @staticmethod
    def TIME() -> "TimeTypeInfo":
        """``datetime.time``."""
        return TimeTypeInfo()

    @staticmethod
    def TIMESTAMP() -> "TimestampTypeInfo":
        """``datetime.datetime``."""
        return TimestampTypeInfo()


class DateTypeInfo(SqlTimeTypeInfo):
    """``datetime.date``."""

    __slots__ = ()


class TimeTypeInfo(SqlTimeTypeInfo):
    """``datetime.time``."""

    __slots__ = ()


class TimestampTypeInfo(SqlTimeTypeInfo):
    """``datetime.datetime``."""

    __slots__ = ()


class LocalTimeTypeInfo(TypeInformation):
    """``datetime.date``, ``time`` or ``datetime``, without a time zone, in microseconds."""

    __slots__ = ("time_type",)

    class TimeType(Enum):
        """The three local types: dates, times, and dates with times."""

        LOCAL_DATE = 0
        LOCAL_TIME = 1
        LOCAL_DATE_TIME = 2

    def __init__(self, time_type: TimeType) -> None:
        self.time_type = time_type

    def __repr__(self) -> str:
        return f"LocalTimeTypeInfo<{self.time_type.name}>"


class ArrowTypeInfo(TypeInformation):
    """``pyarrow.RecordBatch`` of one ``pyarrow.Schema``, which is not imported here, because most
    programs need none.
    """

    __slots__ = ("schema",)

    def __init__(self, schema: Any) -> None:
        # Checked by name, so that pyarrow is not imported.
        if f"{type(schema).__module__}.{type(schema).__qualname__}" != "pyarrow.lib.Schema":
            raise TypeError(f"ArrowTypeInfo is made of a pyarrow.Schema, got {schema!r}")
        self.schema = schema

    def _parts(self) -> tuple[object, ...]:
        return (repr(self),)

    def __repr__(self) -> str:
        fields = (f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in self.schema)
        return f"ArrowTypeInfo({', '.join(fields)})"


class _ElementTypeInfo(TypeInformation):
    """Base class of types with many elements of one type."""

    __slots__ = ("elem_type",)

    def __init__(self, element_type: TypeInformation) -> None:
        self.elem_type = _checked(element_type, type(self).__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.elem_type!r}>"


class PrimitiveArrayTypeInfo(_ElementTypeInfo):
    """Numbers, booleans or characters, none of them None."""

    __slots__ = ()

    def __init__(self, element_type: TypeInformation) -> None:
        super().__init__(element_type)
        if not isinstance(element_type, BasicTypeInfo) or element_type.basic_type not in _PRIMITIVES:
            raise TypeError(
                f"an array of primitives cannot hold {element_type!r}: use Types.BASIC_ARRAY or Types.OBJECT_ARRAY"
            )


class BasicArrayTypeInfo(_ElementTypeInfo):
    """Values of a basic type; any of them may be None."""

    __slots__ = ()

    def __init__(self, element_type: TypeInformation) -> None:
        super().__init__(element_type)
        if not isinstance(element_type, BasicTypeInfo):
            raise TypeError(f"an array of basic types cannot hold {element_type!r}: use Types.OBJECT_ARRAY")


class ObjectArrayTypeInfo(_ElementTypeInfo):
    """Values of any type."""

    __slots__ = ()


class ListTypeInfo(_ElementTypeInfo):
    """A ``list``."""

    __slots__ = ()


ARRAY_TYPES: Final = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo, PrimitiveArrayTypeInfo)
"""The types of arrays, whose values are lists."""


class MapTypeInfo(TypeInformation):
    """A ``dict``."""

    __slots__ = ("key_type_info", "value_type_info")

    def __init__(self, key_type_info: TypeInformation, value_type_info: TypeInformation) -> None:
        self.key_type_info = _checked(key_type_info, "MapTypeInfo")
        self.value_type_info = _checked(value_type_info, "MapTypeInfo")

    def __repr__(self) -> str:
        return f"MapTypeInfo<{self.key_type_info!r}, {self.value_type_info!r}>"


class TupleTypeInfo(TypeInformation):
    """A ``tuple`` with a type for each field."""

    __slots__ = ("_field_types",)

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        self._field_types = tuple(_checked(field_type, "TupleTypeInfo") for field_type in field_types)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields, in order."""
        return list(self._field_types)

    def __repr__(self) -> str:
        return f"TupleTypeInfo({', '.join(map(repr, self._field_types))})"


class RowTypeInfo(TypeInformation):
    """A ``Row`` with a type and a name for each field; default names are f0, f1, ...

    Raises:
        ValueError: the numbers of names and types differ, or a name occurs twice.
    """

    __slots__ = ("_are_named", "_field_names", "_field_types")

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None) -> None:
        self._field_types = tuple(_checked(field_type, "RowTypeInfo") for field_type in field_types)
        self._are_named = field_names is not None
        names = tuple(f"f{index}" for index in range(len(field_types))) if field_names is None else tuple(field_names)
        if len(names) != len(self._field_types):
            raise ValueError(
                f"a row type has one name per field: {len(self._field_types)} types, {len(names)} names {list(names)!r}"
            )
        if len(set(names)) != len(names):
            raise ValueError(f"the field names of a row differ from each other, got {list(names)!r}")
        self._field_names = names

    def get_field_names(self) -> list[str]:
        """Return the names of the fields, in order."""
        return list(self._field_names)

    def get_field_index(self, field_name: str) -> int:
        """Return the position of the named field; -1 for a type without names of its own.

        Raises ValueError if there is no such field.
        """
        if not getattr(self, "_are_named", True) and field_name not in self._field_names:
            return -1
        return self._field_names.index(field_name)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields, in order."""
        return list(self._field_types)

    def _parts(self) -> tuple[object, ...]:
        return (self._field_types, self._field_names)

    def __repr__(self) -> str:
        if not getattr(self, "_are_named", True):  # a type in a checkpoint of an older version does not tell
            return f"RowTypeInfo({', '.join(map(repr, self._field_types))})"
        fields = (
            f"{name}: {field_type!r}" for name, field_type in zip(self._field_names, self._field_types, strict=True)
        )
        return f"RowTypeInfo({', '.join(fields)})"


class Types:
    """Makes type information: ``Types.TUPLE([Types.STRING(), Types.INT()])``."""

    STRING = staticmethod(BasicTypeInfo.STRING_TYPE_INFO)
    BYTE = staticmethod(BasicTypeInfo.BYTE_TYPE_INFO)
    BOOLEAN = staticmethod(BasicTypeInfo.BOOLEAN_TYPE_INFO)
    SHORT = staticmethod(BasicTypeInfo.SHORT_TYPE_INFO)
    INT = staticmethod(BasicTypeInfo.INT_TYPE_INFO)
    LONG = staticmethod(BasicTypeInfo.LONG_TYPE_INFO)
    FLOAT = staticmethod(BasicTypeInfo.FLOAT_TYPE_INFO)
    DOUBLE = staticmethod(BasicTypeInfo.DOUBLE_TYPE_INFO)
    CHAR = staticmethod(BasicTypeInfo.CHAR_TYPE_INFO)
    BIG_INT = staticmethod(BasicTypeInfo.BIG_INT_TYPE_INFO)
    BIG_DEC = staticmethod(BasicTypeInfo.BIG_DEC_TYPE_INFO)
    INSTANT = staticmethod(BasicTypeInfo.INSTANT_TYPE_INFO)
    SQL_DATE = staticmethod(SqlTimeTypeInfo.DATE)
    SQL_TIME = staticmethod(SqlTimeTypeInfo.TIME)
    SQL_TIMESTAMP = staticmethod(SqlTimeTypeInfo.TIMESTAMP)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any Python object."""
        return PickledBytesTypeInfo()

    @staticmethod
    def ARROW(schema: Any) -> ArrowTypeInfo:
        """A ``pyarrow.RecordBatch`` of this ``pyarrow.Schema``.  Not in PyFlink."""
        return ArrowTypeInfo(schema)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """A ``Row`` whose fields are named f0, f1, ..."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """A ``Row`` with these names."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:
        """A ``tuple``."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> PrimitiveArrayTypeInfo:
        """Numbers, booleans or characters; ``bytes`` for ``Types.BYTE()``."""
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> BasicArrayTypeInfo:
        """Values of one basic type, or None."""
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> ObjectArrayTypeInfo:
        """Values of any one type."""
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> MapTypeInfo:
        """A ``dict``."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> ListTypeInfo:
        """A ``list``."""
        return ListTypeInfo(element_type_info)


COMPOSITE_TYPES: Final = (TupleTypeInfo, RowTypeInfo, MapTypeInfo, *ARRAY_TYPES)
"""The types whose values have parts with types of their own."""


def named_fields(type_info: TypeInformation) -> list[tuple[str, TypeInformation]]:
    """Return the name and the type of each field of a row; those of a tuple are f0, f1, ..., and any other value is its
    only field.
    """
    if isinstance(type_info, RowTypeInfo):
        return list(zip(type_info.get_field_names(), type_info.get_field_types(), strict=True))
    types = type_info.get_field_types() if isinstance(type_info, TupleTypeInfo) else [type_info]
    return [(f"f{position}", each) for position, each in enumerate(types)]


def part_types(type_info: TypeInformation) -> Sequence[TypeInformation]:
    """Return the types of a value's parts: of the fields of a tuple or row, the keys and values of a map, or the
    elements of an array.
    """
    if isinstance(type_info, TupleTypeInfo | RowTypeInfo):
        return type_info.get_field_types()
    if isinstance(type_info, MapTypeInfo):
        return (type_info.key_type_info, type_info.value_type_info)
    return (type_info.elem_type,) if isinstance(type_info, _ElementTypeInfo) else ()


def holds_any_object(type_info: TypeInformation) -> bool:
    """Whether records of the type may contain objects of any class."""
    return isinstance(type_info, PickledBytesTypeInfo) or any(map(holds_any_object, part_types(type_info)))


def _checked(part: TypeInformation, owner: str) -> TypeInformation:
    if not isinstance(part, TypeInformation):
        raise TypeError(f"{owner} is made of type information such as Types.STRING(), got {part!r}")
    return part


explain_missing_names(__name__)
