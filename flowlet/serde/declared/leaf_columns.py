"""Columns of texts, numbers, truth values, bytes, dates and times of declared types.

Hot path: C code per column; big integers, decimals, instants and times of day one by one.

Side:       pure.
Invariants: a value keeps its exact value; the base class's promises.
Units:      dates are ordinals as in ``date.toordinal``; points in time are microseconds since 1970.
"""

import datetime
import operator
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, Column, ListColumn, narrowed
from flowlet.common.typeinfo import TypeInformation
from flowlet.errors import SerdeError
from flowlet.serde.column_format import NUMBERS, Kind, check_length, framed
from flowlet.serde.columns import (
    INTS,
    decode_column,
    decode_ints,
    decode_payload,
    decode_short_texts,
    encode_column,
    encode_narrowed,
    encode_of_type,
    num_ints,
)
from flowlet.serde.declared.declared_column import DeclaredColumn, Reading
from flowlet.serde.declared.value_forms import ByteReader, value_form
from flowlet.serde.element_limits import MAX_MICROS, MIN_MICROS, CellBudget
from flowlet.serde.table_reader import decode_array, decode_truth_values
from flowlet.serde.type_serializer import ValueMismatchError, preview

_MIN_NARROWED: Final = 16  # as for other columns
_INSTANT: Final = np.dtype("M8[us]")
_TZINFO: Final = operator.attrgetter("tzinfo")


class IntegerColumn(DeclaredColumn):
    """``int`` of 8 to 64 bits."""

    __slots__ = ("_num_bits", "high", "low")
    classes: ClassVar[tuple[type, ...]] = (int,)
    refused: ClassVar[tuple[type, ...]] = (bool,)

    def __init__(self, type_info: TypeInformation, num_bits: int) -> None:
        super().__init__(type_info)
        self._num_bits = num_bits
        self.low, self.high = -(1 << num_bits - 1), (1 << num_bits - 1) - 1

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        return ArrayColumn(np.frombuffer(self._packed(values), np.int64))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        packed = self._packed(values)
        return (
            framed(Kind.INT64, packed)
            if len(values) < _MIN_NARROWED
            else encode_narrowed(narrowed(np.frombuffer(packed, np.int64)))
        )

    def _packed(self, values: Sequence[Any]) -> bytes:
        try:
            packed = struct.pack(f"<{len(values)}q", *values)
        except struct.error:
            raise self._out_of_range(values) from None
        if self._num_bits < 64 and not self._is_in_range(np.frombuffer(packed, np.int64)):
            raise self._out_of_range(values)
        return packed

    def _out_of_range(self, values: Sequence[int]) -> ValueMismatchError:
        value = next(value for value in values if not self.low <= value <= self.high)
        return ValueMismatchError(f"{preview(value)} does not fit into the {self._num_bits} bits of {self.type_info!r}")

    def _is_in_range(self, array: NDArray[Any]) -> bool:
        if array.dtype.kind == "i" and 8 * array.dtype.itemsize <= self._num_bits:
            return True
        return not len(array) or (self.low <= int(array.min()) and int(array.max()) <= self.high)

    def takes_array(self, array: NDArray[Any]) -> bool:
        """Whether all are integers in range.  Raises ValueMismatchError: one is out of range."""
        if array.dtype.kind not in "iu":
            return False
        if not self._is_in_range(array):
            raise self._out_of_range(array.tolist())
        return True

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind in INTS:
            if num_ints(kind, payload) != num_values:
                raise SerdeError(f"{num_ints(kind, payload)} integers in a column of {num_values}")
            array: NDArray[Any] = decode_ints(kind, payload)
        elif kind == Kind.ARRAY:
            array = decode_array(payload)
        else:
            raise self.refusal(kind)
        if array.dtype.kind not in "iu" or not self._is_in_range(array):
            raise SerdeError(f"numbers that do not fit into the {self._num_bits} bits of {self.type_info!r}")
        return ArrayColumn(array)


class FloatingColumn(DeclaredColumn):
    """``float``; an ``int`` that a float holds exactly becomes one."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (float, int)
    refused: ClassVar[tuple[type, ...]] = (bool,)

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        return ArrayColumn(np.frombuffer(self._packed(values, kinds), np.float64))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return framed(Kind.FLOAT64, self._packed(values, kinds))

    def _packed(self, values: Sequence[Any], kinds: set[type]) -> bytes:
        if not all(issubclass(kind, float) for kind in kinds):
            for value in values:
                if isinstance(value, int) and not _is_float(value):
                    raise ValueMismatchError(f"{preview(value)} is an int that no {self.type_info!r} holds exactly")
        return struct.pack(f"<{len(values)}d", *values)

    def takes_array(self, array: NDArray[Any]) -> bool:
        """Whether they are floating-point numbers."""
        return bool(array.dtype.kind == "f")

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind == Kind.FLOAT64:
            return ArrayColumn(np.frombuffer(payload, NUMBERS[Kind.FLOAT64]).astype(np.float64))
        array = decode_array(payload) if kind == Kind.ARRAY else None
        if array is None or array.dtype.kind != "f":
            raise self.refusal(kind)
        return ArrayColumn(array)


def _is_float(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


class BooleanColumn(DeclaredColumn):
    """``bool``."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (bool,)
    is_known_by_class = True

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        return ArrayColumn(np.frombuffer(bytes(values), np.bool_))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return encode_of_type(values, bool)

    def takes_array(self, array: NDArray[Any]) -> bool:
        """Whether they are truth values."""
        return bool(array.dtype.kind == "b")

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind != Kind.BOOL:
            raise self.refusal(kind)
        return ArrayColumn(decode_truth_values(payload))


class TextColumn(DeclaredColumn):
    """``str``."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (str,)
    is_known_by_class = True

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return encode_of_type(values, str)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind in (Kind.TEXT, Kind.TEXT_SIZES):
            return ListColumn(list(decode_payload(kind, payload, num_values, 0)), str)
        if kind == Kind.SHORT_TEXTS:
            return decode_short_texts(payload, num_values)
        if kind == Kind.CODED:
            return reading.dictionary.read(payload, num_values)
        raise self.refusal(kind)


class CharacterColumn(TextColumn):
    """``str`` of one character."""

    __slots__ = ()
    is_known_by_class = False

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        if list(map(len, values)).count(1) != len(values):
            raise ValueMismatchError(
                f"{preview(next(value for value in values if len(value) != 1))} is not one character"
            )
        return super()._column(values, kinds)

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        self._column(values, kinds)
        return super()._encode(values, kinds, cells)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        column = super()._decode(kind, payload, num_values, reading)
        if list(map(len, column.to_list())).count(1) != len(column):
            raise SerdeError("texts that are not one character")
        return column


class BytesColumn(DeclaredColumn):
    """``bytes``; a ``bytearray`` becomes ``bytes``."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (bytes, bytearray)
    is_known_by_class = True

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return encode_of_type(values if kinds == {bytes} else list(map(bytes, values)), bytes)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind != Kind.BYTES:
            raise self.refusal(kind)
        return ListColumn(list(decode_payload(kind, payload, num_values, 0)), bytes)


class DateColumn(DeclaredColumn):
    """``datetime.date``, as its ordinal."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (datetime.date,)
    refused: ClassVar[tuple[type, ...]] = (datetime.datetime,)
    is_known_by_class = True

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return encode_of_type(list(map(datetime.date.toordinal, values)), int)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind not in INTS:
            raise self.refusal(kind)
        return ListColumn(list(map(datetime.date.fromordinal, decode_ints(kind, payload).tolist())), datetime.date)


class TimestampColumn(DeclaredColumn):
    """``datetime.datetime`` without a zone, exact to the microsecond."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (datetime.datetime,)

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        if list(map(_TZINFO, values)).count(None) != len(values):
            value = next(value for value in values if value.tzinfo is not None)
            raise ValueMismatchError(
                f"{preview(value)} has a time zone, which {self.type_info!r} does not keep: convert it to UTC"
            )
        return ArrayColumn(np.array(values, _INSTANT))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        column = self._column(values, kinds)
        return self.encode(column, CellBudget())

    def takes_array(self, array: NDArray[Any]) -> bool:
        """Whether they are instants that Python has."""
        return array.dtype == _INSTANT and _are_datetimes(array)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        array = decode_array(payload) if kind == Kind.ARRAY else None
        if array is None or array.dtype != _INSTANT:
            raise self.refusal(kind)
        if not _are_datetimes(array):
            raise SerdeError("points in time beyond the years 1 to 9999")
        return ArrayColumn(array)


def _are_datetimes(array: NDArray[Any]) -> bool:
    micros = array.view(np.int64)
    return not len(micros) or (int(micros.min()) >= MIN_MICROS and int(micros.max()) <= MAX_MICROS)


class SerializedColumn(DeclaredColumn):
    """Values in their ``ValueForm``, one after the other.

    Their sizes differ, so none may stand for many.
    """

    __slots__ = ("_form",)
    may_be_constant = False

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self._form = value_form(type_info)

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        self._encode(values, kinds, CellBudget())
        return super()._column(values, kinds)

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return framed(Kind.VALUES, b"".join(map(self._form.write, values)))

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind != Kind.VALUES:
            raise self.refusal(kind)
        if num_values * self._form.min_size_bytes > len(payload):
            raise SerdeError(f"{num_values} values of {self.type_info!r} in {len(payload)} bytes")
        source = ByteReader(payload)
        try:
            values = [self._form.read(source) for _ in range(num_values)]
        except Exception as error:  # constructors may raise anything for corrupt bytes
            reason = str(error) if isinstance(error, SerdeError) else f"{type(error).__name__}: {error}"
            raise SerdeError(f"broken serialization: {self._form.name} at byte {source.position}: {reason}") from error
        if source.remaining:
            raise SerdeError(f"{source.remaining} bytes are left behind the values")
        return ListColumn(values)


class AnyColumn(DeclaredColumn):
    """Any objects, pickled: only for gates that trust their producers."""

    __slots__ = ()

    def column_of(self, values: Sequence[Any]) -> Column:
        """The values as they are."""
        return ListColumn(list(values))

    def encode_values(self, values: Sequence[Any], cells: CellBudget, kinds: set[type] | None = None) -> bytes:
        """As ``columns.encode_column``."""
        return encode_column(values, depth=1)

    def decode(self, view: memoryview, offset: int, num_values: int, reading: Reading) -> tuple[Column, int]:
        """As ``columns.decode_column``."""
        values, end = decode_column(view, offset, num_values, depth=1)
        return ListColumn(list(values)), end

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        return self.encode_values(values, cells)

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        values = decode_payload(kind, payload, num_values, 1)
        check_length(kind, values, num_values)
        return ListColumn(list(values))
