"""``GateForm``: the Arrow form of one declared type in a remote gate.  It checks values, makes Arrow arrays of them,
and makes columns of arrays that were read.  This module has the forms of values without parts.

``arrow_type_of``: the Arrow type of a declared one.  ``bytes_form``: the form of values that Arrow lacks.

Hot path: C code per column; a Python loop over values that Arrow lacks.

Side:       pure.
Invariants: whatever the bytes are, an array that was read gives values of the declared type, or None, or an error: a
            point in time beyond the year 9999, which Python does not have, is refused.  No bytes are unpickled (except
            for ``PICKLED_BYTE_ARRAY``, whose gates trust their producers), and no name is imported or called.  A value
            keeps its exact value: it is never rounded, widened or cut off, except floats in a column of Arrow's
            float32.
Format:     numbers, truth values, texts, bytes, dates, times and timestamps have Arrow's types; FLOAT has 64 bits, as
            between tasks.  Values that Arrow lacks are binary, numbers big-endian.  An ``int`` of any size: as few
            bytes as it needs, with a sign.  A ``decimal.Decimal``: the i32 scale, then its digits as such an int.  An
            ``Instant``: i64 seconds, i32 nanoseconds.  A batch: ``message_of_batch``.  Any objects: ``PickledForm``.
Units:      dates in days, times in microseconds; in a column with a time zone, a ``datetime`` without one means UTC.
"""

import array
import datetime
import decimal
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowlet.columns import ArrayColumn, ArrowColumn, Column, ColumnVisitor, ConstantColumn, ListColumn, OffsetColumn
from flowlet.columns.arrow_batches import first_overflow
from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    ArrowTypeInfo,
    RowTypeInfo,
    TypeInformation,
)
from flowlet.common.values.conversion import field_form
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import batch_of_message, message_of_batch
from flowlet.serde.column_writer import ENCODING, SURROGATES, are_apart
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.serde.type_serializer import ValueMismatchError, mismatch, preview

_NONE: Final = frozenset({type(None)})
_ZONE: Final = operator.attrgetter("tzinfo")
_TIMESTAMP: Final = pa.timestamp("us")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - as in the columns
_NO_OFFSET: Final = datetime.timedelta(0)


class GateForm(ABC):
    """The Arrow form of one type.  Threading: any; it has no state.

    Args:
        name: the declared type, or Arrow's own, for messages.
        arrow_type: of the arrays.
        classes: of the values; subclasses fit, too, except ``bool``, which is no number.
    """

    __slots__ = ("_classes", "arrow_type", "name")
    is_plain: bool = False
    """Whether the array holds the values themselves, so that a cast of Arrow makes it."""

    def __init__(self, name: object, arrow_type: pa.DataType, classes: tuple[type, ...] = (object, bool)) -> None:
        self.name = name
        self.arrow_type = arrow_type
        self._classes = classes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}>"

    def array_of(self, values: Sequence[Any], kinds: set[type] | None = None) -> pa.Array:
        """An array of exactly these values, None as null.

        ``kinds``: their classes, if known.

        Raises:
            ValueMismatchError: a value does not fit.
            UnicodeEncodeError: a text has a lone surrogate, and texts are no bytes.
        """
        kinds = set(map(type, values)) if kinds is None else kinds
        for kind in kinds - _NONE:
            if not self._fits(kind):
                raise self.mismatch(next(value for value in values if type(value) is kind))
        return self._array(values, kinds)

    def _fits(self, kind: type) -> bool:
        return kind in self._classes or (kind is not bool and issubclass(kind, self._classes))

    def mismatch(self, value: Any) -> ValueMismatchError:
        """The error for a value that does not fit."""
        if isinstance(self.name, pa.DataType):
            return ValueMismatchError(f"{preview(value)} of type {type(value).__name__} is no {self.name}")
        return mismatch(value, str(self.name))

    @abstractmethod
    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        """An array of values whose classes were checked.  Raises as ``array_of``."""

    def checked(self, found: pa.Array) -> pa.Array:
        """Check an array of the form's own type; returns it.  Raises ValueMismatchError: a value does not fit."""
        return found

    def kept(self, values: Sequence[Any]) -> Column:
        """A column of these values for a sender.  Raises as ``array_of``."""
        self.array_of(values)
        return ListColumn(list(values))

    @abstractmethod
    def column_of(self, found: pa.Array) -> Column:
        """The values of an array of the form's own type.  Raises SerdeError, ValueError: a value is of another type."""


def array_of_column(form: GateForm, column: Column) -> pa.Array:
    """An array of the values of a column; an array of the right type is used itself.  Raises as ``array_of``."""
    return _ArrayOf(form).visit(column)


class _ArrayOf(ColumnVisitor[pa.Array]):
    __slots__ = ("_form",)

    def __init__(self, form: GateForm) -> None:
        self._form = form

    def visit_any(self, column: Column) -> pa.Array:
        return self._form.array_of(column.as_list())

    def visit_list(self, column: ListColumn) -> pa.Array:
        return self._form.array_of(column.values, None if column.value_type is None else {column.value_type})

    def visit_constant(self, column: ConstantColumn) -> pa.Array:
        if not self._form.is_plain:  # one value alone may have another form than among others
            return self.visit_any(column)
        return self._form.array_of([column.value]).take(pa.array(np.zeros(len(column), np.int64)))

    def visit_array(self, column: ArrayColumn) -> pa.Array:
        form = self._form
        if isinstance(form, LeafForm) and column.array.dtype.kind in form.dtype_kinds:
            with suppress(pa.ArrowException, ValueMismatchError):
                found = pa.array(column.array, from_pandas=False)
                return form.checked(found if found.type == form.arrow_type else found.cast(form.arrow_type))
        return self.visit_any(column)  # says which value does not fit

    def visit_offsets(self, column: OffsetColumn) -> pa.Array:
        return self.visit_array(column.widened())

    def visit_arrow(self, column: ArrowColumn) -> pa.Array:
        form = self._form
        found = column.array
        if not form.is_plain:
            return form.array_of(python_values(found))
        if found.type != form.arrow_type:
            found = fitting_array(found, form.name).cast(form.arrow_type)
        return form.checked(found)


# ---------------------------------------------------------------- Arrow's types


def arrow_type_of(type_info: TypeInformation) -> pa.DataType | None:
    """The Arrow type for values of a declared type; None if there is none."""
    form = field_form(type_info)
    if form is not None and form.arrow is not None:
        return pa.type_for_alias(form.arrow)
    match type_info:
        case _ if isinstance(type_info, ARRAY_TYPES):
            element = arrow_type_of(type_info.elem_type)
            return None if element is None else pa.list_(element)
        case RowTypeInfo():
            types = [arrow_type_of(each) for each in type_info.get_field_types()]
            return None if None in types else pa.struct(list(zip(type_info.get_field_names(), types, strict=True)))
        case _:
            return None


_MIN_MICROS: Final = -62_135_596_800_000_000  # the years 1 to 9999
_MAX_MICROS: Final = 253_402_300_799_999_999
_MICROS_PER_DAY: Final = 24 * 3600 * 1_000_000
# Types in which not all integers are values, each with its integer type, the least value, and the greatest.
_RANGES: Final = {
    pa.date32(): (pa.int32(), _MIN_MICROS // _MICROS_PER_DAY, _MAX_MICROS // _MICROS_PER_DAY),
    pa.time64("us"): (pa.int64(), 0, _MICROS_PER_DAY - 1),
    pa.timestamp("us"): (pa.int64(), _MIN_MICROS, _MAX_MICROS),
}
# Types whose values are also values of the other type; integers of fewer bits are handled apart.
_SAME_VALUES: Final = {pa.float32(): pa.float64(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def python_values(array: pa.Array) -> list[Any]:
    """The values as Python objects, maps as dicts.  Raises ValueMismatchError: a map has a key twice."""
    try:
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except TypeError:  # before pyarrow 19
        return list(array.to_pylist())
    except KeyError as error:
        raise ValueMismatchError(f"a map with the key {error} twice") from error
    return values


def fitting_array(array: pa.Array, declared: Any) -> pa.Array:
    """The values in the Arrow type of a declared type, which must have one.

    Raises:
        ValueMismatchError: the array is of another type.
    """
    wanted = arrow_type_of(declared)
    assert wanted is not None, "it has one"
    found = array.type
    # The elements of a list may have another name.
    are_lists = pa.types.is_list(found) and pa.types.is_list(wanted)
    if found == wanted or (are_lists and found.value_type == wanted.value_type):
        return array
    are_integers = pa.types.is_signed_integer(found) and pa.types.is_signed_integer(wanted)
    if (are_integers and found.bit_width < wanted.bit_width) or wanted == _SAME_VALUES.get(found):
        return array.cast(wanted)
    values = preview(array.slice(0, 3).to_pylist())
    raise ValueMismatchError(f"{values} of Arrow's type {found}, declared is {declared!r}: cast it to {wanted}")


# ---------------------------------------------------------------- values that Arrow has

_INTEGERS: Final = [pa.type_for_alias(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
# By the id of an Arrow type, which does not depend on unit, zone and precision: the classes of its values, and the
# kinds of numpy's types that hold them.
_VALUES: Final[dict[int, tuple[tuple[type, ...], str]]] = {
    **{each.id: ((str,), "") for each in (pa.string(), pa.large_string())},
    **{each.id: ((bytes, bytearray), "") for each in (pa.binary(), pa.large_binary())},
    **{each.id: ((int,), "iu") for each in _INTEGERS},
    **{each.id: ((float,), "f") for each in (pa.float32(), pa.float64())},
    pa.bool_().id: ((bool,), "b"),
    pa.date32().id: ((datetime.date,), ""),
    pa.time64("us").id: ((datetime.time,), ""),
    _TIMESTAMP.id: ((datetime.datetime,), "M"),
    pa.decimal128(38, 18).id: ((decimal.Decimal,), ""),
}


def classes_of_arrow(arrow_type: pa.DataType) -> frozenset[type] | None:
    """The classes of the values of an Arrow type without parts; None: it has parts, or other values."""
    return frozenset(_VALUES[arrow_type.id][0]) if arrow_type.id in _VALUES else None


# Of ``array``, which has numpy's letters.
_TYPECODES: Final[dict[tuple[int, type], str]] = {
    (pa.float64().id, float): "d",
    **{(each.id, int): np.dtype(each.to_pandas_dtype()).char for each in _INTEGERS},
}
_UNZONED: Final = frozenset({pa.time64("us").id, _TIMESTAMP.id})


class LeafForm(GateForm):
    """Values that Arrow has.

    Args:
        name: as in ``GateForm``.
        arrow_type: as in ``GateForm``.
        is_exact: for a column of Arrow's own type: values of subclasses are refused, and so is an ``int`` for a float;
            a time in UTC loses its zone.
    """

    __slots__ = ("_is_exact", "_limits", "dtype_kinds")
    is_plain = True

    def __init__(self, name: object, arrow_type: pa.DataType, *, is_exact: bool = False) -> None:
        classes, self.dtype_kinds = _VALUES.get(arrow_type.id, ((), ""))
        super().__init__(name, arrow_type, (*classes, int) if float in classes and not is_exact else classes)
        self._is_exact = is_exact
        self._limits = _RANGES.get(arrow_type)

    def _fits(self, kind: type) -> bool:
        if self._is_exact or (self.arrow_type == pa.date32() and issubclass(kind, datetime.datetime)):
            return kind in self._classes
        return super()._fits(kind)

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        if self.arrow_type.id in _UNZONED and getattr(self.arrow_type, "tz", None) is None:
            if any(map(_ZONE, filter(None, values))):
                values = [each if each is None or each.tzinfo is None else self._without_zone(each) for each in values]
            if self.arrow_type == _TIMESTAMP and (instants := instants_array(values)) is not None:
                return instants
        elif kinds == {int} or kinds == {float}:
            with suppress(KeyError, OverflowError):
                # Half the time of ``pa.array``.  An ``int`` for a float, and values out of range, are handled below.
                numbers = array.array(_TYPECODES[self.arrow_type.id, *kinds], values)
                return pa.Array.from_buffers(self.arrow_type, len(values), [None, pa.py_buffer(numbers)])
        if float in self._classes and not kinds <= {float, type(None)}:
            values = [self._float(value) if isinstance(value, int) else value for value in values]
        try:
            found = pa.array(values, self.arrow_type, from_pandas=False)
        except UnicodeError:
            if not self._is_exact:
                raise
            raise self._misfit(values) from None
        except (pa.ArrowException, OverflowError):
            raise self._misfit(values) from None
        if self.arrow_type == pa.float32() and (value := first_overflow(values, found)) is not None:
            raise self.mismatch(value)
        return found

    def _misfit(self, values: Sequence[Any]) -> ValueMismatchError:
        for value in values:
            try:
                pa.array([value], self.arrow_type, from_pandas=False)
            except (pa.ArrowException, OverflowError, UnicodeError):
                if int not in self._classes or self._is_exact:
                    return self.mismatch(value)
                return ValueMismatchError(
                    f"{preview(value)} does not fit into the {self.arrow_type.bit_width} bits of {self.name}"
                )
        raise AssertionError("each value fits, but all together do not")

    def _float(self, value: int) -> float:
        with suppress(OverflowError):
            number = float(value)
            if int(number) == value:
                return number
        raise ValueMismatchError(f"{preview(value)} is an int that no {self.name} holds exactly")

    def _without_zone(self, value: Any) -> Any:
        if not self._is_exact:
            raise ValueMismatchError(
                f"{preview(value)} has a time zone, which {self.name} does not keep: convert it to UTC"
            )
        if value.utcoffset() != _NO_OFFSET:
            raise ValueMismatchError(
                f"{preview(value)} has an offset from UTC, which a {self.name} cannot hold: convert it, or use a "
                "column in UTC"
            )
        return value.replace(tzinfo=None)

    def checked(self, found: pa.Array) -> pa.Array:
        """Implement ``GateForm.checked``."""
        if self._limits is not None:
            plain, low, high = self._limits
            ends = pc.min_max(found.view(plain)).as_py()
            if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
                raise ValueMismatchError(f"{ends} in an array of {found.type}, Python has values from {low} to {high}")
        return found

    def kept(self, values: Sequence[Any]) -> Column:
        """Implement ``GateForm.kept``."""
        return self.column_of(self.array_of(values))

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        self.checked(found)
        if self.arrow_type == pa.date32():  # by numpy, which takes a hundredth of the time of ``to_pylist``
            days: list[Any] = found.to_numpy(zero_copy_only=False).tolist()
            return ListColumn(days, None if found.null_count else datetime.date)
        if found.null_count or not self.dtype_kinds:
            return ArrowColumn(found)
        numbers = found.to_numpy(zero_copy_only=False)
        return ArrayColumn(numbers.astype(np.int64, copy=False) if numbers.dtype.kind == "i" else numbers)


def instants_array(values: Sequence[Any]) -> pa.Array | None:
    """An array of datetimes without a zone, in less than half the time of ``pa.array``; None: a value is None, or of a
    subclass.
    """
    try:
        return pa.array(list(map(operator.sub, values, repeat(_EPOCH))), pa.duration("us")).view(_TIMESTAMP)
    except (TypeError, ValueError, OverflowError):
        return None


class CharacterForm(LeafForm):
    """``str`` of one character, for which Arrow has no type."""

    __slots__ = ()
    is_plain = False

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        _check_characters(values)
        return super()._array(values, kinds)

    def checked(self, found: pa.Array) -> pa.Array:
        """Implement ``GateForm.checked``."""
        if pc.any(pc.not_equal(pc.utf8_length(found), 1)).as_py():
            raise ValueMismatchError("texts that are not one character")
        return found


def _check_characters(values: Sequence[Any]) -> None:
    wrong = next((value for value in values if value is not None and len(value) != 1), None)
    if wrong is not None:
        raise ValueMismatchError(f"{preview(wrong)} is not one character")


# ---------------------------------------------------------------- values that Arrow lacks


class BytesForm(GateForm):
    """Values one by one, each as bytes.

    Args:
        type_info: the declared type.
        write: gives the bytes of a value; raises ValueMismatchError: the value does not fit the type.
        read: gives the value; may raise any error for corrupt bytes.
        classes: as in ``GateForm``.
    """

    __slots__ = ("read", "write")

    def __init__(
        self, type_info: object, write: Callable[[Any], bytes], read: Callable[[bytes], Any], *classes: type
    ) -> None:
        super().__init__(type_info, pa.binary(), classes)
        self.write = write
        self.read = read

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        return pa.array([None if value is None else self.write(value) for value in values], pa.binary())

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        return ListColumn([None if data is None else self._value(data) for data in found.to_pylist()])

    def _value(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except Exception as error:  # constructors may raise anything for corrupt bytes
            reason = str(error) if isinstance(error, SerdeError) else f"{type(error).__name__}: {error}"
            raise SerdeError(f"broken bytes of {self.name}: {reason}") from error


def bytes_form(type_info: TypeInformation) -> BytesForm:
    """The form of a type whose values Arrow lacks.  Raises TypeError: Arrow has them, or the type is unknown."""
    form = field_form(type_info)
    if form is not None and form.to_bytes is not None:
        return BytesForm(type_info, form.to_bytes, form.from_bytes, form.exact or object)
    if isinstance(type_info, ArrowTypeInfo):
        schema = type_info.schema
        return BytesForm(
            type_info,
            lambda value: bytes(message_of_batch(value, schema)),
            lambda data: batch_of_message(pa.py_buffer(data), schema),
            object,
            bool,
        )
    raise TypeError(f"no column of {type_info!r}")


def _pickled(value: Any) -> bytes:
    try:
        return dumps_value(value)
    except SerdeError as error:
        raise ValueMismatchError(f"{preview(value)} cannot be sent: {error}") from error


class PickledForm(GateForm):
    """Any objects: the first value is the pickle of a list of all (a fifth of the time of a pickle of each), the others
    are empty.  If an object that can change may be in two values, each value is a pickle of its own: records that are
    read must not share such an object.
    """

    __slots__ = ()

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        if len(values) > 1 and not are_apart([values]):
            return pa.array(list(map(_pickled, values)), pa.binary())
        try:
            pickled = dumps_value(list(values))
        except SerdeError:
            for value in values:
                _pickled(value)  # names the one that cannot be sent
            raise
        return pa.array([pickled, *repeat(b"", len(values) - 1)][: len(values)], pa.binary())

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        if not len(found):
            return ListColumn([])
        pickles = found.to_pylist()
        has_pickle_of_each = len(pickles) > 1 and pickles[1]  # which is never empty
        try:
            values = list(map(loads_value, pickles)) if has_pickle_of_each else loads_value(pickles[0])
        except Exception as error:  # the constructors of a program may raise anything
            raise SerdeError(f"broken bytes of {self.name}: {type(error).__name__}: {error}") from error
        if type(values) is not list or len(values) != len(found):
            raise SerdeError(f"broken bytes of {self.name}: no list of {len(found)} values")
        return ListColumn(values)


def text_bytes_form(type_info: TypeInformation, *, is_character: bool) -> BytesForm:
    """The form of texts with lone surrogates, which Arrow's texts cannot have."""

    def write(value: str) -> bytes:
        if is_character:
            _check_characters([value])
        return value.encode(ENCODING, SURROGATES)

    def read(data: bytes) -> str:
        value = data.decode(ENCODING, SURROGATES)
        if is_character:
            _check_characters([value])
        return value

    return BytesForm(type_info, write, read, str)
