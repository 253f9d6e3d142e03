"""``DeclaredRecords``: checks, writes and reads chunks of records of one declared type.

Creates the columns of a declared type.

``PackedRecords``: a few records of basic values as msgpack, whose decoder knows their types.

Hot path: a chunk of one record with two fields takes 3 us to write and 3 to read, in columns 30 and 16.  It does not
serve more than 15 records, nested values, dates and decimals.

Hot path: C code per column.

Side:       pure.
Invariants: as ``declared_column``: the decoder is made of the declared types, so it reads nothing else.  as
            ``declared_column``.  Chunks carry no keys: a reader takes them from the records, so no sender can give a
            record another's.
Format:     ``column_format``: the column of the records in a chunk.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import NoneType
from typing import Annotated, Any, Final

import msgspec

from flowlet.columns import Column, Columns, ListColumn, Shape
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
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import are_positions
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.channel_dictionary import ChannelDictionary, ElementTooLargeError
from flowlet.serde.column_format import Kind, column_at, framed
from flowlet.serde.declared.composite_columns import FieldsColumn, ListsColumn, MapColumn, RowColumn, fitting
from flowlet.serde.declared.declared_column import DeclaredColumn, Reading
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
from flowlet.serde.element_limits import FREE_CELLS, CellBudget
from flowlet.serde.table_writer import CodeWriter
from flowlet.serde.type_serializer import ValueMismatchError

_BASIC: Final[dict[BasicType, Callable[[TypeInformation], DeclaredColumn]]] = {
    BasicType.BYTE: partial(IntegerColumn, num_bits=8),
    BasicType.SHORT: partial(IntegerColumn, num_bits=16),
    BasicType.INT: partial(IntegerColumn, num_bits=32),
    BasicType.LONG: partial(IntegerColumn, num_bits=64),
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
        case BasicTypeInfo(basic_type=basic_type):
            return _BASIC.get(basic_type, SerializedColumn)(type_info)
        case DateTypeInfo() | LocalTimeTypeInfo(time_type=_TimeType.LOCAL_DATE):
            return DateColumn(type_info)
        case TimestampTypeInfo() | LocalTimeTypeInfo(time_type=_TimeType.LOCAL_DATE_TIME):
            return TimestampColumn(type_info)
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
        case _:
            return SerializedColumn(type_info)


MAX_PACKED: Final = 15  # msgpack says so many in its first byte
_HEAD: Final = 0x90
_PACKABLE: Final = frozenset({int, str, float, bool, bytes, NoneType})
_TYPES: Final[dict[type[DeclaredColumn], Any]] = {
    BooleanColumn: bool,
    BytesColumn: bytes,
    FloatingColumn: float,
    TextColumn: str,
}
_pack: Final = msgspec.msgpack.Encoder().encode


class PackedRecords:
    """Writes and reads lists of tuples with these fields.  Threading: any; it has no state."""

    __slots__ = ("_unpack",)

    def __init__(self, types: Sequence[Any]) -> None:
        fields = tuple([each | None for each in types])
        self._unpack = msgspec.msgpack.Decoder(list[tuple[fields]]).decode  # type: ignore[valid-type]  # made at run time

    @classmethod
    def of(cls, fields: Sequence[DeclaredColumn]) -> "PackedRecords | None":
        """For tuples with these fields; None if msgpack has no form of one of them."""
        types = [_type_of(field) for field in fields]
        return None if None in types or not types else cls(types)

    def try_pack(self, records: Sequence[Sequence[Any]]) -> bytes | None:
        """The records as a column, checked; None if they need columns, or do not fit."""
        if len(records) > MAX_PACKED or not _PACKABLE.issuperset(map(type, itertools.chain.from_iterable(records))):
            return None
        try:
            data = _pack(records)
            is_same = self._unpack(data) == records
        except (msgspec.MsgspecError, OverflowError, UnicodeError):
            return None
        return framed(Kind.PACKED, data) if is_same else None

    def unpack(self, payload: memoryview, num_records: int) -> list[tuple[Any, ...]]:
        """The records in a column.  Raises SerdeError: it is corrupt, or of other types."""
        if not 0 < num_records <= MAX_PACKED or not payload or payload[0] != _HEAD + num_records:
            raise SerdeError(f"packed records that are not {num_records}, or more than {MAX_PACKED}")
        try:
            records: list[tuple[Any, ...]] = self._unpack(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise SerdeError(f"packed records: {error}") from error
        return records


def _type_of(field: DeclaredColumn) -> Any:
    if isinstance(field, IntegerColumn):
        return Annotated[int, msgspec.Meta(ge=field.low, le=field.high)]
    return _TYPES.get(type(field))


# Constructors of values, and hashes of keys, may raise any of them for corrupt bytes.
_CORRUPT = (struct.error, ValueError, KeyError, IndexError, OverflowError, TypeError)


class DeclaredRecords:
    """The records of one declared type.  Threading: any; it has no state.

    Records of an Arrow schema are the messages of ``arrow_serializer``, whose bytes are read elsewhere.

    ``free_cells``: see ``CellBudget``.
    """

    __slots__ = ("_column", "_free_cells", "_packed", "type_info")

    def __init__(self, type_info: TypeInformation, free_cells: int = FREE_CELLS) -> None:
        self.type_info = type_info
        is_arrow = isinstance(type_info, ArrowTypeInfo)
        self._column: DeclaredColumn = declared_column(Types.PRIMITIVE_ARRAY(Types.BYTE()) if is_arrow else type_info)
        self._packed = PackedRecords.of(self._column.fields) if isinstance(self._column, FieldsColumn) else None
        self._free_cells = free_cells

    def __repr__(self) -> str:
        return f"DeclaredRecords({self.type_info!r})"

    # ---------------------------------------------------------------- checking, before records are sent

    def chunk_of(self, records: list[Any]) -> Chunk:
        """At least one record, checked, in columns; in a list where columns cannot hold them: rows that change a table,
        or without fields.

        Raises:
            ValueMismatchError: a record does not fit; names the first one and its field, says what is expected, and
                shows the value.
        """
        column = self._column
        try:
            if len(records) <= MAX_PACKED and self._packed is not None and isinstance(column, FieldsColumn):
                tuples = column.tuples_of(records)
                if tuples is not None and self._packed.try_pack(tuples) is not None:
                    return Chunk(column.records_of(tuples))
            if len(records) <= MAX_PACKED and not isinstance(column, RowColumn):
                column.encode(ListColumn(records), CellBudget())
                return Chunk(records)
            if not isinstance(column, FieldsColumn):
                return Chunk.of_columns(Columns(len(records), (column.column_of(records),), Shape.SCALAR))
            fields = column.try_columns_of(records) if isinstance(column, RowColumn) else column.columns_of(records)
        except ValueMismatchError:
            raise self._first_mismatch(records) from None
        return Chunk.of_columns(self._shaped(fields)) if fields else Chunk(records)

    def fitting(self, columns: Columns) -> Columns:
        """The same records in the declared shape; rows go by the names of their fields.

        Raises:
            ValueMismatchError: a column does not fit; names it and the first record that does not.
        """
        try:
            return self._fitting(columns)
        except ValueMismatchError as error:
            for position in range(len(columns)):
                try:
                    self._fitting(columns.slice(position, position + 1))
                except ValueMismatchError as found:
                    raise _at(position, found) from None
            raise error  # the type of the whole column does not fit

    def _fitting(self, columns: Columns) -> Columns:
        column, fields = self._column, columns.fields
        if not isinstance(column, FieldsColumn):
            if len(fields) != 1:
                raise ValueMismatchError(f"records of {len(fields)} columns, declared is {self.type_info!r}")
            return Columns(len(columns), (fitting(column, fields[0]),), Shape.SCALAR)
        if columns.field_names not in ((), column.names):
            if isinstance(column, RowColumn) and set(columns.field_names) == set(column.names):
                fields = tuple([fields[columns.field_names.index(name)] for name in column.names])
            elif not are_positions(column.names):
                raise ValueMismatchError(
                    f"records of the columns {', '.join(columns.field_names)}, declared is {self.type_info!r}"
                )
        return self._shaped(column.fitting_fields(fields))

    def _shaped(self, fields: Sequence[Column]) -> Columns:
        if isinstance(self.type_info, RowTypeInfo):
            return Columns(len(fields[0]), tuple(fields), Shape.ROW, tuple(self.type_info.get_field_names()))
        return Columns(
            len(fields[0]), tuple(fields), Shape.TUPLE if isinstance(self._column, FieldsColumn) else Shape.SCALAR
        )

    def _first_mismatch(self, records: list[Any]) -> ValueMismatchError:
        column = self._column
        for position, record in enumerate(records):
            try:
                column.columns_of([record]) if isinstance(column, FieldsColumn) else column.column_of([record])
            except ValueMismatchError as error:
                return _at(position, error)
        raise AssertionError("each record fits, but all together do not")

    # ---------------------------------------------------------------- writing

    def encode(self, chunk: Chunk, codes: CodeWriter | None = None) -> bytes:
        """The records of a chunk, at least one, as one column.

        Raises:
            ValueMismatchError: a record does not fit.
            ElementTooLargeError: a reader would refuse the column, because it expands to too many values.
        """
        cells = CellBudget()
        column, columns = self._column, chunk.columns
        if (
            columns is None
            and len(chunk) <= MAX_PACKED
            and self._packed is not None
            and isinstance(column, FieldsColumn)
        ):
            tuples = column.tuples_of(chunk.values)
            packed = None if tuples is None else self._packed.try_pack(tuples)
            if packed is not None:
                return packed
        if columns is None or columns.shape not in (Shape.SCALAR, Shape.TUPLE, Shape.ROW):
            data = column.encode(ListColumn(chunk.values), cells, codes)
        elif isinstance(column, FieldsColumn):
            data = column.encode_fields(columns.fields, cells, codes)
        else:
            data = column.encode(columns.fields[0], cells, codes)
        most = self._free_cells + len(data)
        if cells.num_taken > most:
            raise ElementTooLargeError(
                f"{len(chunk)} records stand for {cells.num_taken} values in {len(data)} bytes, allowed are {most}"
            )
        return data

    # ---------------------------------------------------------------- reading

    def decode(
        self, view: memoryview, offset: int, num_records: int, dictionary: ChannelDictionary
    ) -> tuple[Columns | list[Any], int]:
        """Read the records at ``offset``: columns if possible, else a list; and the offset after them.

        Raises:
            SerdeError: they are corrupt, of another type, or expand to too many values.
        """
        reading = Reading(CellBudget(self._free_cells + len(view)), dictionary)
        try:
            return self._decode(view, offset, num_records, reading)
        except _CORRUPT as error:
            raise SerdeError(f"no {self.type_info!r}: {type(error).__name__}: {error}") from error

    def _decode(
        self, view: memoryview, offset: int, num_records: int, reading: Reading
    ) -> tuple[Columns | list[Any], int]:
        column = self._column
        kind, payload, end = column_at(view, offset)
        if kind == Kind.PACKED and isinstance(column, FieldsColumn) and self._packed is not None:
            return column.records_of(self._packed.unpack(payload, num_records)), end
        if kind == Kind.TUPLES and isinstance(column, FieldsColumn) and column.fields:
            reading.cells.take(column.cells_each * num_records)
            return self._shaped(column.decode_fields(kind, payload, num_records, reading)), end
        values, end = column.decode(view, offset, num_records, reading)
        if not isinstance(column, FieldsColumn):
            return Columns(num_records, (values,), Shape.SCALAR), end
        records = values.to_list()
        if list(map(type, records)).count(NoneType):
            raise SerdeError(f"None in the place of a record of {self.type_info!r}")
        return records, end


def declared_records(type_info: TypeInformation) -> DeclaredRecords | None:
    """The format of the records of a gate of this type; None if they are any objects."""
    return None if isinstance(type_info, PickledBytesTypeInfo) else DeclaredRecords(type_info)


def _at(position: int, error: ValueMismatchError) -> ValueMismatchError:
    return ValueMismatchError(f"record {position}: {error}")
