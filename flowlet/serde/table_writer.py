"""Encodes columns of records.

Hot path: C code per column.

Side:       pure.
Invariants: a reader gets records with exactly the values of the table; numbers, codes and Arrow arrays keep their
            representation, too.
Format:     ``column_format``.
"""

from typing import Any, Final, Protocol

import numpy as np

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    OffsetColumn,
    Shape,
    ShortTextColumn,
    narrowed,
)
from flowlet.errors import SerdeError
from flowlet.serde.column_format import ARRAY_TYPES, FIELDS, NUMBERS, Kind, framed, header, raw
from flowlet.serde.columns import encode_column, encode_narrowed, encode_of_type, encode_short_texts, encode_texts
from flowlet.serde.element_limits import MAX_FIELDS
from flowlet.serde.object_columns import objects_head

# The depth of a field (it is in the tuple of all fields) and of the value of a constant field.
_FIELD_DEPTH: Final = 1
_CONSTANT_DEPTH: Final = 2
_INT64: Final = np.dtype(np.int64)
_ARRAY_KINDS: Final = {dtype.newbyteorder("="): index for index, dtype in enumerate(ARRAY_TYPES)}


class CodeWriter(Protocol):
    """The sender's view of the dictionary of one channel.

    One implementer: ``ChannelCodes`` stands on a floor above.
    """

    def try_encode(self, column: CodedColumn) -> bytes | None:
        """Encode a column as codes, with the texts that the channel does not know; None if its codes are of another
        dictionary.
        """


def encode_table(table: Columns, codes: CodeWriter | None = None) -> bytes:
    """All records as the bytes of one column."""
    return b"".join(table_parts(table, codes))


def table_parts(table: Columns, codes: CodeWriter | None = None) -> list[bytes]:
    """The bytes of at least one record as one column, in parts to be joined.

    ``codes``: the dictionary of the channel; None: codes are sent as their texts.

    Raises:
        SerdeError: a value cannot be pickled, or a row has too many fields.
    """
    if len(table.fields) > MAX_FIELDS:
        if table.shape in (Shape.TUPLE, Shape.OBJECT):
            return [encode_column(table.to_list())]
        raise SerdeError(f"rows of {len(table.fields)} fields, at most {MAX_FIELDS} can be sent")
    encoder = FieldEncoder(codes)
    fields = [column.accept(encoder) for column in table.fields]
    match table.shape:
        case Shape.SCALAR:
            return fields
        case Shape.TUPLE:
            return _framed_parts(Kind.TUPLES, FIELDS.pack(len(fields)), *fields)
        case Shape.OBJECT:
            kind, head = objects_head(table.record_type, table.field_names, encode_of_type)
            return _framed_parts(kind, head, *fields)
        case Shape.ROW:
            return _framed_parts(Kind.ROWS, FIELDS.pack(len(fields)), encode_column(table.field_names), *fields)
        case Shape.KEYED:
            # ``flowlet.io.record_writer`` prevents it.
            raise SerdeError("records with separate keys cannot be sent as columns")


def _framed_parts(kind: int, *payload: bytes) -> list[bytes]:
    return [header(kind, *payload), *payload]


def encode_timestamps(array: "np.ndarray[Any, np.dtype[np.int64]]") -> bytes:
    """Encode timestamps in milliseconds; at least one."""
    return encode_narrowed(narrowed(array))


class FieldEncoder(ColumnVisitor[bytes]):
    """Encodes one field.

    Args:
        codes: as in ``table_parts``.
    """

    __slots__ = ("_codes",)

    def __init__(self, codes: CodeWriter | None) -> None:
        self._codes = codes

    def visit_any(self, column: Column) -> bytes:
        """See ``ColumnVisitor``."""
        return encode_column(column.to_list(), depth=_FIELD_DEPTH)

    def visit_coded(self, column: CodedColumn) -> bytes:
        """See ``ColumnVisitor``."""
        coded = None if self._codes is None else self._codes.try_encode(column)
        return self.visit_any(column) if coded is None else coded

    def visit_array(self, column: ArrayColumn) -> bytes:
        """See ``ColumnVisitor``."""
        return _encode_array(column.array)

    def visit_offsets(self, column: OffsetColumn) -> bytes:
        """See ``ColumnVisitor``."""
        return encode_narrowed(column)

    def visit_constant(self, column: ConstantColumn) -> bytes:
        """See ``ColumnVisitor``."""
        one = encode_column([column.value], depth=_CONSTANT_DEPTH)
        return one if len(column) == 1 else framed(Kind.CONSTANT, one)

    def visit_list(self, column: ListColumn) -> bytes:
        """See ``ColumnVisitor``."""
        values = column.values
        return encode_texts(values) if column.value_type is str else encode_column(values, depth=_FIELD_DEPTH)

    def visit_short_texts(self, column: ShortTextColumn) -> bytes:
        """See ``ColumnVisitor``."""
        return encode_short_texts(column.packed16)

    def visit_arrow(self, column: ArrowColumn) -> bytes:
        """See ``ColumnVisitor``."""
        from flowlet.serde.arrow_serializer import encode_arrow_array  # here, because it imports pyarrow

        return framed(Kind.ARROW, encode_arrow_array(column.array))


def _encode_array(array: Any) -> bytes:
    if array.dtype == _INT64:
        return encode_narrowed(narrowed(array))
    if array.dtype == np.float64:
        return framed(Kind.FLOAT64, raw(array, NUMBERS[Kind.FLOAT64]))
    if array.dtype == np.bool_:
        return framed(Kind.BOOL, raw(array, array.dtype))
    kind = _ARRAY_KINDS[array.dtype]
    return framed(Kind.ARRAY, bytes((kind,)), raw(array, ARRAY_TYPES[kind]))
