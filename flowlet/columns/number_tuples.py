"""Tuples of numbers as columns, by way of ``marshal``.

Hot path: one call writes all types, lengths and values, 22 ns per pair of ints, where looking at types, taking the
tuples apart and packing the fields takes 64 (``bench shuffle``).

Side:       pure.
Invariants: the columns stand for exactly the values of the tuples.  marshal refuses subclasses and writes a tag in
            front of each value, so if all tuples have the tags of the first one, all have its types; anything else is
            left to the caller.
Versions:   CPython 3.11, 3.12 and 3.13 write and read one format.  Python does not promise it, so on other versions
            this way is not taken: the caller's general way makes equal columns.  The tests of this module say whether
            another version writes this format, too.
Units:      offsets in bytes.
Source:     marshal's version 2, which knows no references: list ``[``, tuple ``(`` and int32 length; ``i`` int32; ``l``
            int32 number of digits, negative for a negative number, 15 bits in two bytes each, the lowest first; ``g``
            float64.  Little-endian.
"""

import marshal
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.column import Column
from flowlet.columns.column_kinds import ArrayColumn, ConstantColumn

_IS_FORMAT_KNOWN: Final = sys.implementation.name == "cpython" and sys.version_info[:2] <= (3, 13)
_VERSION: Final = 2
_HEAD_BYTES: Final = 5  # a tag and a length, of the list and of each tuple
_MAX_FIELDS: Final = 16  # of more the fields are mostly of several types
_NUMBERS: Final = frozenset({int, float})
_TAG_BYTES: Final = 1
_BLOCK_ROWS: Final = 32
_DIGIT_BITS: Final = 15
_MAX_DIGITS: Final = 4  # five may be more than 64 bits
_INT32: Final = np.dtype("<i4")
_DIGIT: Final = np.dtype("<u2")
_FLOAT64: Final = np.dtype("<f8")


def try_number_columns(records: list[Any]) -> list[Column] | None:
    """The fields of exact tuples of exactly int or float, as columns; None if there are other records or values, or
    ints of different sizes.

    Args:
        records: at least one.
    """
    if not _IS_FORMAT_KNOWN:
        return None
    first = records[0]
    if type(first) is not tuple or not 0 < len(first) <= _MAX_FIELDS or not _NUMBERS.issuperset(map(type, first)):
        return None
    fields = [marshal.dumps(value, _VERSION) for value in first]
    num_bytes = _HEAD_BYTES + sum(map(len, fields))
    try:
        data = marshal.dumps(records, _VERSION)
    except ValueError:  # a value is of a type that marshal does not write
        return None
    if len(data) != _HEAD_BYTES + num_bytes * len(records):
        return None
    differences = _differences(data[_HEAD_BYTES:], num_bytes)
    return None if any(differences[:_HEAD_BYTES]) else _columns(first, fields, data, differences)


def _differences(data: bytes, num_bytes: int) -> bytes:
    """A number for each byte of a row: 0 if all rows have this byte in common, else another number."""
    row = data[:num_bytes]
    # Many rows side by side: numpy's loops are over the last dimension.
    block = np.frombuffer(row * _BLOCK_ROWS, np.uint8)
    blocks = np.frombuffer(data + row * (-(len(data) // num_bytes) % _BLOCK_ROWS), np.uint8).reshape(-1, len(block))
    by_row: NDArray[np.uint8] = np.bitwise_or.reduce(blocks ^ block, axis=0).reshape(-1, num_bytes)
    return bytes(np.bitwise_or.reduce(by_row, axis=0))


def _columns(first: tuple[Any, ...], fields: list[bytes], data: bytes, differences: bytes) -> list[Column] | None:
    num_rows = len(data) // len(differences)
    columns: list[Column] = []
    offset = _HEAD_BYTES
    for value, field in zip(first, fields, strict=True):
        end = offset + len(field)
        tag_end = offset + (_HEAD_BYTES if field[:_TAG_BYTES] == b"l" else _TAG_BYTES)
        if any(differences[offset:tag_end]):
            return None
        if type(value) is int and not any(differences[offset:end]):
            columns.append(ConstantColumn(value, num_rows))
        else:
            array = _array(field, data, _HEAD_BYTES + tag_end, len(differences))
            if array is None:
                return None
            columns.append(ArrayColumn(array))
        offset = end
    return columns


def _array(field: bytes, data: bytes, start: int, stride: int) -> NDArray[Any] | None:
    """The values of a field, one every ``stride`` bytes from ``start`` on; ``field`` is the first one, with its tag.

    None if the integers have more digits than fit into 64 bits.
    """
    num_rows = len(data) // stride
    tag = field[:_TAG_BYTES]
    if tag == b"i":
        return np.ndarray(num_rows, _INT32, data, start, (stride,)).astype(np.int64)
    if tag == b"g":
        return np.ndarray(num_rows, _FLOAT64, data, start, (stride,)).astype(np.float64)
    num_digits = int.from_bytes(field[_TAG_BYTES:_HEAD_BYTES], "little", signed=True)
    if abs(num_digits) > _MAX_DIGITS:
        return None
    total = np.zeros(num_rows, np.int64)
    for digit in reversed(range(abs(num_digits))):
        total <<= _DIGIT_BITS
        total += np.ndarray(num_rows, _DIGIT, data, start + _DIGIT.itemsize * digit, (stride,))
    return total if num_digits > 0 else -total
