"""Encodes arrays of 64-bit integers, and decodes them.

Hot path, per column: C code.

Side:       pure.
Format:     ``column_format``: CONSTANT, INT8 to INT64, OFFSETS.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDecoder`` turns all into
            SerdeError.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, Column, ColumnVisitor, ConstantColumn, OffsetColumn
from flowlet.errors import SerdeError
from flowlet.serde.column_format import (
    BASE,
    CONSTANT,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NUMBERS,
    OFFSET_TYPES,
    OFFSETS,
    framed,
    raw,
)

INTS: Final = frozenset({*NUMBERS, OFFSETS} - {FLOAT64})
_KINDS: Final = {1: INT8, 2: INT16, 4: INT32}
_INT64: Final = np.iinfo(np.int64)


class _NarrowedEncoder(ColumnVisitor[bytes]):
    def visit_any(self, column: Column) -> bytes:
        raise AssertionError(f"narrowed integers in {column!r}")

    def visit_constant(self, column: ConstantColumn) -> bytes:
        return framed(CONSTANT, framed(INT64, raw(np.array([column.value]), NUMBERS[INT64])))

    def visit_array(self, column: ArrayColumn) -> bytes:
        return framed(INT64, raw(column.array, NUMBERS[INT64]))

    def visit_offsets(self, column: OffsetColumn) -> bytes:
        offsets = column.offsets
        size = offsets.dtype.itemsize
        if offsets.dtype.kind == "i":
            return framed(_KINDS[size], raw(offsets, NUMBERS[_KINDS[size]]))
        return framed(OFFSETS, BASE.pack(column.base, size), raw(offsets, OFFSET_TYPES[size]))


_NARROWED_ENCODER: Final = _NarrowedEncoder()


def encode_narrowed(column: Column) -> bytes:
    """Encode the result of ``narrowed``."""
    return column.accept(_NARROWED_ENCODER)


def num_ints(kind: int, payload: memoryview) -> int:
    """How many integers a column has whose kind is in ``INTS``."""
    if kind != OFFSETS:
        return len(payload) // NUMBERS[kind].itemsize
    return (len(payload) - BASE.size) // max(1, int(BASE.unpack_from(payload)[1]))


def decode_ints(kind: int, payload: memoryview) -> NDArray[np.int64]:
    """Decode a column whose kind is in ``INTS``, into a new array."""
    if kind != OFFSETS:
        return np.frombuffer(payload, NUMBERS[kind]).astype(np.int64)
    base, size = BASE.unpack_from(payload)
    if size not in OFFSET_TYPES:
        raise SerdeError(f"offsets of {size} bytes")
    offsets: NDArray[Any] = np.frombuffer(payload[BASE.size :], OFFSET_TYPES[size])
    if base > _INT64.max - (1 << 8 * size) and base + int(offsets.max(initial=0)) > _INT64.max:
        raise SerdeError(f"an offset above {base} is beyond 64 bits")
    values = offsets.astype(np.int64)
    values += base
    return values
