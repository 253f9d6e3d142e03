"""Columns of tuples, rows, lists, arrays and maps of declared types: a column for each part.

Also which columns from elsewhere fit a declared type, and which keys would make building a dict quadratic.

Hot path: C code per column; a Python loop over lists and maps.

Side:       pure.
Invariants: those of ``declared_column``.  An error in a part names the path to it.  The search for places in CPython's
            dict is carried out in numpy, with its own sequence, for every size that the dict has while it grows.  So a
            few thousand integers that were chosen to collide are refused before the dict is built.
Source:     CPython ``Objects/dictobject.c``: ``lookdict``, ``PERTURB_SHIFT``, ``USABLE_FRACTION``.
Rules:      a ``Row`` with names goes by its names, in any order, at every level; without names, and tuples and lists,
            by position; a dict by its keys.  Whatever its form was, a reader gets a ``Row`` with the declared names.
"""

import array
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, ArrowColumn, Column, ColumnVisitor, ConstantColumn, ListColumn
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row, RowKind, parts_of, rows_of
from flowlet.errors import SerdeError
from flowlet.serde.column_format import FIELDS, Kind, check_end, column_at, framed
from flowlet.serde.columns import decode_sizes, encode_column
from flowlet.serde.declared.declared_column import DeclaredColumn, Reading
from flowlet.serde.declared.leaf_columns import IntegerColumn
from flowlet.serde.element_limits import CellBudget
from flowlet.serde.table_writer import CodeWriter
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order, preview

T = TypeVar("T")
R = TypeVar("R")


def fitting(declared: DeclaredColumn, column: Column) -> Column:
    """The column itself or one with the same values.

    Raises ValueMismatchError: a value or the representation does not fit.
    """
    return column.accept(_Fitting(declared))


class _Fitting(ColumnVisitor[Column]):
    __slots__ = ("_declared",)

    def __init__(self, declared: DeclaredColumn) -> None:
        self._declared = declared

    def visit_any(self, column: Column) -> Column:
        return self._declared.column_of(column.as_list())

    def visit_array(self, column: ArrayColumn) -> Column:
        return column if self._declared.takes_array(column.array) else self.visit_any(column)

    def visit_list(self, column: ListColumn) -> Column:
        return column if self._declared.takes_list_of(column.value_type) else self.visit_any(column)

    def visit_constant(self, column: ConstantColumn) -> Column:
        if not len(column):
            return self.visit_any(column)
        self._declared.column_of([column.value])
        return column

    def visit_arrow(self, column: ArrowColumn) -> Column:
        from flowlet.serde.declared.arrow_values import fitting_array, python_values  # here, because it imports pyarrow

        array = fitting_array(column.array, self._declared.type_info)
        return self._declared.column_of(python_values(column.array)) if array is None else ArrowColumn(array)


MAX_PROBES_EACH: Final = 32  # random keys need 3 in a full table, regular ones (multiples of 2**60) 13
MIN_CHECKED: Final = 128  # fewer keys are cheap whatever their hashes are
_MAX_ROUNDS: Final = 64
_PERTURB_SHIFT: Final = np.uint64(5)
_FIVE, _ONE = np.uint64(5), np.uint64(1)


def check_spread(keys: Sequence[Any]) -> None:
    """Check that the hashes of the keys of a dict differ enough.

    Raises SerdeError: they collide; TypeError: a key has no hash.
    """
    if len(keys) <= MIN_CHECKED:
        return
    hashes = np.array(list(map(hash, keys)), np.int64)
    size = MIN_CHECKED
    while True:
        size *= 2
        part = hashes[: 2 * size // 3]
        num_probes = count_probes(part, size)
        if num_probes > MAX_PROBES_EACH * len(part):
            raise SerdeError(
                f"a map of {len(keys)} keys whose hashes collide: the first {len(part)} need {num_probes} probes or "
                "more"
            )
        if len(part) == len(hashes):
            return


def count_probes(hashes: NDArray[np.int64], size: int) -> int:
    """How many places are looked at until all keys are in a table of ``size`` places; at least this many if it is a
    lot.

    ``size`` is a power of two, larger than the number of keys.
    """
    mask = np.uint64(size - 1)
    perturb = hashes.astype(np.uint64)
    place = perturb & mask
    is_taken = np.zeros(size, np.bool_)
    owner = np.zeros(size, np.intp)
    num_probes = 0
    for _ in range(_MAX_ROUNDS):
        num_probes += len(place)
        free = np.flatnonzero(~is_taken[place])
        owner[place[free]] = free  # of several keys at one place, one wins
        won = free[owner[place[free]] == free]
        is_taken[place[won]] = True
        waits = np.ones(len(place), np.bool_)
        waits[won] = False
        if len(won) == len(place):
            return num_probes
        perturb = perturb[waits] >> _PERTURB_SHIFT
        place = (place[waits] * _FIVE + perturb + _ONE) & mask
    return num_probes + len(place) * size


_KIND_COLUMN: Final = IntegerColumn(Types.BYTE(), 8)
_ROW_KINDS: Final = tuple(RowKind)


class FieldsColumn(DeclaredColumn):
    """``tuple``: a column for each field."""

    __slots__ = ("fields", "names")
    classes: ClassVar[tuple[type, ...]] = (tuple, list)
    cells_each = 2
    may_be_constant = False

    def __init__(self, type_info: TypeInformation, names: Sequence[str], fields: Sequence[DeclaredColumn]) -> None:
        super().__init__(type_info)
        self.names = tuple(names)
        self.fields = tuple(fields)

    def columns_of(self, values: Sequence[Any]) -> list[Column]:
        """A column for each field.  Raises ValueMismatchError: a value does not fit."""
        return self._columns(self._transposed(values, self._checked(values, set(map(type, values)))))

    def tuples_of(self, values: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """The fields of each record; None if some are no plain tuples."""
        return list(values) if set(map(type, values)) == {tuple} else None

    def records_of(self, tuples: list[tuple[Any, ...]]) -> list[Any]:
        """A record for each tuple of fields."""
        return tuples

    def fitting_fields(self, columns: Sequence[Column]) -> list[Column]:
        """``fitting`` for each field; raises ValueMismatchError."""
        if len(columns) != len(self.fields):
            raise ValueMismatchError(f"{len(columns)} columns, {self.type_info!r} has {len(self.fields)}")
        return self._of_each(fitting, columns)

    def encode_fields(self, columns: Sequence[Column], cells: CellBudget, codes: CodeWriter | None = None) -> bytes:
        """Records that are in columns; raises ValueMismatchError."""
        cells.take(self.cells_each * len(columns[0]))
        parts = self._of_each(lambda field, column: field.encode(column, cells, codes), columns)
        return framed(Kind.TUPLES, FIELDS.pack(len(parts)), *parts)

    def decode_fields(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> tuple[Column, ...]:
        """A column for each field; the budget was asked for the records themselves."""
        if kind != Kind.TUPLES:
            raise self.refusal(kind)
        (num_fields,), end = FIELDS.unpack_from(payload), FIELDS.size
        if num_fields != len(self.fields):
            raise SerdeError(f"{num_fields} fields, declared are {len(self.fields)}")
        columns = []
        for name, field in zip(self.names, self.fields, strict=True):
            try:
                column, end = field.decode(payload, end, num_values, reading)
            except (SerdeError, ValueError, struct.error) as error:
                raise SerdeError(f"field {name!r}: {error}") from error
            columns.append(column)
        check_end(end, payload)
        return tuple(columns)

    def _transposed(self, values: Sequence[Any], kinds: set[type]) -> list[Sequence[Any]]:
        if len(values[0]) == len(self.fields):
            with suppress(ValueError):  # another one has more fields, or fewer
                return list(zip(*values, strict=True))
        raise self._arity(next(value for value in values if len(value) != len(self.fields)))

    def _arity(self, value: Any) -> ValueMismatchError:
        return ValueMismatchError(
            f"{preview(value)} has {len(value)} fields, {self.type_info!r} has {len(self.fields)}"
        )

    def _columns(self, columns: Sequence[Sequence[Any]]) -> list[Column]:
        return self._of_each(lambda field, values: field.column_of(values), columns)

    def _of_each(self, call: Callable[[DeclaredColumn, T], R], columns: Sequence[T]) -> list[R]:
        """What a call gives for each field and its column.  Raises ValueMismatchError, with the name of the field."""
        found = []
        for name, field, column in zip(self.names, self.fields, columns, strict=True):
            try:
                found.append(call(field, column))
            except ValueMismatchError as error:
                raise error.within(name) from None
        return found

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        self._columns(self._transposed(values, kinds))
        return ListColumn(list(values))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        columns = [ListColumn(list(column)) for column in self._transposed(values, kinds)]
        return self.encode_fields(columns, cells) if columns else framed(Kind.TUPLES, FIELDS.pack(0))

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        fields = self.decode_fields(kind, payload, num_values, reading)
        lists = [field.to_list() for field in fields]
        return ListColumn(list(zip(*lists, strict=True)) if lists else [()] * num_values)


class RowColumn(FieldsColumn):
    """``Row``: as tuples, behind a column of row kinds if one is no INSERT."""

    __slots__ = ()
    classes: ClassVar[tuple[type, ...]] = (Row, tuple, list, dict)
    cells_each = 4

    def try_columns_of(self, values: Sequence[Any]) -> list[Column] | None:
        """As ``columns_of``; None if a row changes a table, which columns of fields do not say."""
        kinds = self._checked(values, set(map(type, values)))
        fields = self._fields_of_all(values, kinds)
        columns = self._columns(
            list(zip(*fields, strict=True)) if fields is not None else self._transposed(values, kinds)
        )
        return columns if fields is not None or not any(_row_kinds(values)) else None

    def tuples_of(self, values: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """The fields of each record; None if some are no rows, change a table or have other names."""
        fields = self._fields_of_all(values, set(map(type, values)))
        return None if fields is None else list(map(tuple, fields))

    def records_of(self, tuples: list[tuple[Any, ...]]) -> list[Any]:
        """A record for each tuple of fields."""
        return list(rows_of(self.names, tuples))

    def _fields_of_all(self, values: Sequence[Any], kinds: set[type]) -> list[list[Any]] | None:
        """The fields of rows that are all alike and change nothing; None if they are not."""
        parts = parts_of(values) if kinds == {Row} else None
        if parts is None or parts[0] not in (None, self.names) or len(parts[1][0]) != len(self.fields):
            return None
        return parts[1]

    def _transposed(self, values: Sequence[Any], kinds: set[type]) -> list[Sequence[Any]]:
        fields = self._fields_of_all(values, kinds)
        return list(zip(*(map(self._fields_of, values) if fields is None else fields), strict=True))

    def _fields_of(self, value: Any) -> Sequence[Any]:
        if isinstance(value, dict):
            if value.keys() != set(self.names):
                raise ValueMismatchError(f"{preview(value)} does not have the keys {', '.join(self.names)}")
            return [value[name] for name in self.names]
        if len(value) != len(self.names):
            raise self._arity(value)
        return fields_in_order(value, list(self.names))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        fields = super()._encode(values, kinds, cells)
        row_kinds = _row_kinds(values)
        return framed(Kind.KINDED, encode_column(row_kinds), fields) if any(row_kinds) else fields

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        row_kinds: list[int] = []
        if kind == Kind.KINDED:
            row_kinds, start = _KIND_COLUMN.decode_list(payload, 0, num_values, reading)
            if not set(row_kinds) <= {row_kind.value for row_kind in RowKind}:
                raise SerdeError("rows of an unknown kind")
            kind, inner, end = column_at(payload, start)
            check_end(end, payload)
            payload = inner
        rows = rows_of(self.names, super()._decode(kind, payload, num_values, reading).to_list())
        for row, row_kind in zip(rows, row_kinds, strict=False):
            row.set_row_kind(_ROW_KINDS[row_kind])
        return ListColumn(rows)


def _row_kinds(values: Sequence[Any]) -> list[int]:
    return [value.get_row_kind().value if isinstance(value, Row) else 0 for value in values]


class ListsColumn(DeclaredColumn):
    """``list``: a column of sizes, then a column of all elements, if there are any.

    A tuple or an ``array.array`` becomes a list.
    """

    __slots__ = ("_element", "_may_hold_none")
    classes: ClassVar[tuple[type, ...]] = (list, tuple, array.array)
    cells_each = 2
    may_be_constant = False

    def __init__(self, type_info: TypeInformation, element: DeclaredColumn, *, may_hold_none: bool = True) -> None:
        super().__init__(type_info)
        self._element = element
        self._may_hold_none = may_hold_none

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        elements = list(chain.from_iterable(values))
        try:
            self._element.column_of(elements)
        except ValueMismatchError:
            # The index is right for the elements of a single list, which is how the caller looks for the first wrong
            # record.
            index, error = first_mismatch(self._element, elements)
            raise error.within(f"[{index}]") from None
        self._check_none(elements)
        return ListColumn(list(values))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        elements = list(chain.from_iterable(values))
        sizes = encode_column(list(map(len, values)))
        if not elements:
            return framed(Kind.LISTS, sizes)
        self._check_none(elements)
        return framed(Kind.LISTS, sizes, self._element.encode(ListColumn(elements), cells))

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind != Kind.LISTS:
            raise self.refusal(kind)
        sizes, end = decode_sizes(payload, 0, num_values)
        elements: list[Any] = []
        if sum(sizes):
            try:
                elements, end = self._element.decode_list(payload, end, sum(sizes), reading)
            except (SerdeError, ValueError, struct.error) as error:
                raise SerdeError(f"elements: {error}") from error
        check_end(end, payload)
        self._check_none(elements)
        return ListColumn([elements[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)])

    def _check_none(self, elements: list[Any]) -> None:
        if not self._may_hold_none and None in elements:
            raise ValueMismatchError(f"None, which {self.type_info!r} does not hold", f"[{elements.index(None)}]")


class MapColumn(DeclaredColumn):
    """``dict``: a column of sizes, a column of all keys, a column of all values; without the last two if all maps are
    empty.
    """

    __slots__ = ("_key", "_value")
    classes: ClassVar[tuple[type, ...]] = (dict,)
    cells_each = 4
    may_be_constant = False

    def __init__(self, type_info: TypeInformation, key: DeclaredColumn, value: DeclaredColumn) -> None:
        super().__init__(type_info)
        self._key = key
        self._value = value

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        parts = list(chain.from_iterable(values)), list(chain.from_iterable(map(dict.values, values)))
        for what, column, part in zip(("keys", "values"), (self._key, self._value), parts, strict=True):
            try:
                column.column_of(part)
            except ValueMismatchError:
                index, error = first_mismatch(column, part)
                raise error.within(f"[{preview(parts[0][index])}]" if what == "values" else what) from None
        return ListColumn(list(values))

    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        keys, items = list(chain.from_iterable(values)), list(chain.from_iterable(map(dict.values, values)))
        sizes = encode_column(list(map(len, values)))
        if not keys:
            return framed(Kind.MAPS, sizes)
        return framed(
            Kind.MAPS, sizes, self._key.encode(ListColumn(keys), cells), self._value.encode(ListColumn(items), cells)
        )

    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind != Kind.MAPS:
            raise self.refusal(kind)
        sizes, end = decode_sizes(payload, 0, num_values)
        keys: list[Any] = []
        items: list[Any] = []
        if sum(sizes):
            try:
                keys, end = self._key.decode_list(payload, end, sum(sizes), reading)
                items, end = self._value.decode_list(payload, end, sum(sizes), reading)
            except (SerdeError, ValueError, struct.error) as error:
                raise SerdeError(f"entries: {error}") from error
        check_end(end, payload)
        return ListColumn(
            [
                _map(keys[end - size : end], items[end - size : end])
                for size, end in zip(sizes, accumulate(sizes), strict=True)
            ]
        )


def _map(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    check_spread(keys)
    entries = dict(zip(keys, values, strict=True))
    if len(entries) != len(keys):
        raise SerdeError(f"a map of {len(keys)} entries has {len(entries)} different keys")
    return entries


def first_mismatch(column: DeclaredColumn, values: Sequence[Any]) -> tuple[int, ValueMismatchError]:
    """The position of the first of these values that does not fit, and why.  One of them does not."""
    for position, value in enumerate(values):
        try:
            column.column_of([value])
        except ValueMismatchError as error:
            return position, error
    raise AssertionError("each value fits, but all together do not")
