"""The Arrow forms of tuples, rows, lists and maps in a remote gate, and of each declared type (``gate_form``).

``GateBatches``: many records of a declared type as one Arrow message.

Hot path: C code per column; a Python loop over lists, maps, and rows in rows.

Side:       pure.
Invariants: those of ``leaf_forms``.  The form of every part is known from the type, so values nest no deeper than the
            type.  An error in a part names the path to it.  Before a dict is built, CPython's search for places is
            carried out in numpy, with CPython's sequence, for every size that the dict has while it grows.  So a few
            thousand integers that were chosen to collide are refused.
Format:     a tuple is a struct; a row, too, with its kind (int8) in front of its fields.  A map is a list of structs of
            a key and a value: a key may be None.  With ``texts_are_bytes`` texts are binary, because one of them has a
            lone surrogate.  Records are a BATCH: u8 flags, and an Arrow IPC message without its schema, which both
            sides know: a field for each field of a tuple or row, or one for the whole record.  Flags: 1: the kinds of
            the rows stand in front of the fields; 2: texts are bytes.
Source:     CPython ``Objects/dictobject.c``: ``lookdict``, ``PERTURB_SHIFT``, ``USABLE_FRACTION``.
Rules:      the fields of a ``Row`` with names are found by name, in any order, at every level; those of a ``Row``
            without names, a tuple or a list by position; those of a dict by key.  In all cases a reader gets a ``Row``
            with the declared names.
"""

import array
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.columns import ArrowColumn, Column, Columns, ListColumn, Shape
from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    BasicType,
    BasicTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row, RowKind, alike_fields, are_positions, rows_of
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.arrow_serializer import batch_of_message, num_values
from flowlet.serde.column_writer import (
    HAS_KINDS,
    MAX_PACKED_DECLARED,
    TEXTS_ARE_BYTES,
    ElementTooLargeError,
    Kind,
    framed,
)
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order, preview
from flowlet.types.leaf_forms import (
    CharacterForm,
    GateForm,
    LeafForm,
    PickledForm,
    array_of_column,
    arrow_type_of,
    bytes_form,
    text_bytes_form,
)

T = TypeVar("T")
R = TypeVar("R")


# ---------------------------------------------------------------- tuples and rows


def _missing(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _with_none(values: list[Any], found: pa.Array) -> list[Any]:
    """The values, None in the place of each null."""
    if not found.null_count:
        return values
    return [value if is_there else None for value, is_there in zip(values, found.is_valid().to_pylist(), strict=True)]


def _spread(values: Sequence[Any], places: Sequence[int], size: int) -> list[Any]:
    """The values at these places, None at all others."""
    found: list[Any] = [None] * size
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found


class FieldsForm(GateForm):
    """``tuple``: an array for each field."""

    __slots__ = ("fields", "names")
    takes: ClassVar[tuple[type, ...]] = (tuple, list)
    head: ClassVar[tuple[pa.Field, ...]] = ()  # in front of the fields

    def __init__(self, name: object, names: Sequence[str], fields: Sequence[GateForm]) -> None:
        parts = [pa.field(each, field.arrow_type) for each, field in zip(names, fields, strict=True)]
        super().__init__(name, pa.struct([*self.head, *parts]), self.takes)
        self.names = tuple(names)
        self.fields = tuple(fields)

    def of_each(self, call: Callable[[GateForm, T], R], columns: Sequence[T]) -> list[R]:
        """The result of a call for each field and its column.  Raises ValueMismatchError with the name of the field."""
        found = []
        for name, field, column in zip(self.names, self.fields, columns, strict=True):
            try:
                found.append(call(field, column))
            except ValueMismatchError as error:
                raise error.within(name) from None
        return found

    def parted(self, records: Sequence[Any]) -> tuple[list[Sequence[Any]], pa.Array | None]:
        """The values of each field of records, at least one, and the kinds of rows if one is no INSERT.

        Raises ValueMismatchError: a record is None, of another class, or has other fields.
        """
        for kind in set(map(type, records)):
            if not self._fits(kind):
                raise self.mismatch(next(record for record in records if type(record) is kind))
        return self._transposed(records), None

    def _transposed(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        if len(values[0]) == len(self.fields):
            with suppress(ValueError):  # another one has more fields, or fewer
                return list(zip(*values, strict=True))
        raise self._arity(next(value for value in values if len(value) != len(self.fields)))

    def _arity(self, value: Any) -> ValueMismatchError:
        return ValueMismatchError(f"{preview(value)} has {len(value)} fields, {self.name} has {len(self.fields)}")

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        places = [place for place, value in enumerate(values) if value is not None]
        columns: Sequence[Sequence[Any]] = [()] * len(self.fields)
        if places:
            columns = self._transposed([values[place] for place in places])
        if len(places) < len(values):
            columns = [_spread(column, places, len(values)) for column in columns]
        arrays = [_kinds_array(values)] if self.head else []
        arrays += self.of_each(GateForm.array_of, columns)
        if not arrays:
            return pa.array([None if value is None else {} for value in values], self.arrow_type)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=_missing(values))

    def tuples_of(self, arrays: Sequence[pa.Array], num_records: int) -> list[tuple[Any, ...]]:
        """The fields of each record.  Raises SerdeError: a field does not fit; names it."""
        lists = [column.to_list() for column in self.columns_of(arrays)]
        return list(zip(*lists, strict=True)) if lists else [()] * num_records

    def columns_of(self, arrays: Sequence[pa.Array]) -> list[Column]:
        """A column for each field.  Raises SerdeError: a field does not fit; names it."""
        columns = []
        for name, field, found in zip(self.names, self.fields, arrays, strict=True):
            try:
                columns.append(field.column_of(found))
            except (SerdeError, ValueError, struct.error) as error:
                raise SerdeError(f"field {name!r}: {error}") from error
        return columns

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        arrays = [found.field(position) for position in range(len(self.fields))]
        return ListColumn(_with_none(list(self.tuples_of(arrays, len(found))), found))


KIND: Final = pa.field("", pa.int8())
_ROW_KINDS: Final = {kind.value: kind for kind in RowKind}


class StructForm(FieldsForm):
    """Rows, by the names of their fields."""

    __slots__ = ()
    takes: ClassVar[tuple[type, ...]] = (Row, tuple, list)

    def _transposed(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        fields = alike_fields(values, self.names)
        return list(zip(*(map(self._fields_of, values) if fields is None else fields), strict=True))

    def _fields_of(self, value: Any) -> Sequence[Any]:
        if isinstance(value, dict):
            if value.keys() != set(self.names):
                raise ValueMismatchError(f"{preview(value)} does not have the keys {', '.join(self.names)}")
            return [value[name] for name in self.names]
        if len(value) != len(self.names):
            raise self._arity(value)
        return fields_in_order(value, list(self.names))


class RowForm(StructForm):
    """``Row``: its kind, then its fields."""

    __slots__ = ()
    takes: ClassVar[tuple[type, ...]] = (Row, tuple, list, dict)
    head = (KIND,)

    def parted(self, records: Sequence[Any]) -> tuple[list[Sequence[Any]], pa.Array | None]:
        """Implement ``FieldsForm.parted``."""
        fields = alike_fields(records, self.names)
        if fields is not None:
            return list(zip(*fields, strict=True)), None
        columns, _ = super().parted(records)
        kinds = _kinds_array(records)
        return columns, kinds if any(kinds.to_pylist()) else None

    def rows(self, kinds: pa.Array, arrays: Sequence[pa.Array]) -> list[Row]:
        """The rows with these kinds and fields.  Raises SerdeError: a kind is unknown, or a field does not fit."""
        rows = rows_of(self.names, self.tuples_of(arrays, len(kinds)))
        for row, number in zip(rows, kinds.to_pylist(), strict=True):
            if number:
                if number not in _ROW_KINDS:
                    raise SerdeError("rows of an unknown kind")
                row.set_row_kind(_ROW_KINDS[number])
        return rows

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        kinds, *arrays = [found.field(position) for position in range(1 + len(self.fields))]
        return ListColumn(_with_none(list(self.rows(kinds, arrays)), found))


def _kinds_array(values: Sequence[Any]) -> pa.Array:
    """The kinds of rows as an array; values that are no ``Row`` count as INSERT."""
    return pa.array([value.get_row_kind().value if isinstance(value, Row) else 0 for value in values], pa.int8())


# ---------------------------------------------------------------- lists and maps


def _offsets_of(values: Sequence[Any]) -> pa.Array:
    sizes = [0, *[0 if value is None else len(value) for value in values]]
    return pa.array(np.cumsum(sizes, dtype=np.int64), pa.int32())


def _items(found: pa.Array) -> tuple[pa.Array, list[int]]:
    """The elements of all lists in an array; and the positions at which the lists begin, and the last one ends."""
    if not len(found):  # it may have no offset at all
        return found.values.slice(0, 0), [0]
    ends: list[int] = found.offsets.to_pylist()
    return found.values.slice(ends[0], ends[-1] - ends[0]), [end - ends[0] for end in ends]


class ListsForm(GateForm):
    """``list``; a tuple or an ``array.array`` becomes one.

    Args:
        name: as in ``GateForm``.
        element: the form of the elements.
        may_hold_none: whether elements may be None.
    """

    __slots__ = ("_element", "_may_hold_none", "is_plain")

    def __init__(self, name: object, element: GateForm, *, may_hold_none: bool = True) -> None:
        # In columns of Arrow's own types bytes count as a list of BYTE, each byte with a sign.
        bytes_too = (bytes,) if name == pa.list_(pa.int8()) else ()
        super().__init__(name, pa.list_(element.arrow_type), (list, tuple, array.array, *bytes_too))
        self._element = element
        self._may_hold_none = may_hold_none
        self.is_plain = element.is_plain

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        if bytes in self._classes:
            values = [array.array("b", value) if isinstance(value, bytes) else value for value in values]
        elements = list(chain.from_iterable([value for value in values if value is not None]))
        try:
            found = self._element.array_of(elements)
        except ValueMismatchError:
            # The index is right only for a single list: the caller looks for the wrong record with one record at a
            # time.
            index, error = first_mismatch(self._element, elements)
            raise error.within(f"[{index}]") from None
        whole = pa.ListArray.from_arrays(_offsets_of(values), found, mask=_missing(values))
        return self._without_none(whole)

    def checked(self, found: pa.Array) -> pa.Array:
        """Implement ``GateForm.checked``."""
        self._element.checked(found.flatten())
        return self._without_none(found)

    def _without_none(self, found: pa.Array) -> pa.Array:
        if self._may_hold_none:
            return found
        elements = found.flatten()  # of the lists themselves: an array may be a part of a longer one
        if elements.null_count:
            index = elements.is_null().to_pylist().index(True)
            raise ValueMismatchError(f"None, which {self.name} does not hold", f"[{index}]")
        return found

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        self._without_none(found)
        inner, ends = _items(found)
        try:
            elements = self._element.column_of(inner).to_list()
        except (SerdeError, ValueError, struct.error) as error:
            raise SerdeError(f"elements: {error}") from error
        return ListColumn(_with_none([elements[start:end] for start, end in pairwise(ends)], found))


class MapForm(GateForm):
    """``dict``: a list of its entries."""

    __slots__ = ("_key", "_value")

    def __init__(self, name: object, key: GateForm, value: GateForm) -> None:
        entry = pa.struct([("key", key.arrow_type), ("value", value.arrow_type)])
        super().__init__(name, pa.list_(entry), (dict,))
        self._key = key
        self._value = value

    def _array(self, values: Sequence[Any], kinds: set[type]) -> pa.Array:
        present = [value for value in values if value is not None]
        keys = list(chain.from_iterable(present))
        arrays = []
        for form, parts in ((self._key, keys), (self._value, list(chain.from_iterable(map(dict.values, present))))):
            try:
                arrays.append(form.array_of(parts))
            except ValueMismatchError:
                index, error = first_mismatch(form, parts)
                raise error.within("keys" if parts is keys else f"[{preview(keys[index])}]") from None
        entries = pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type.value_type))
        return pa.ListArray.from_arrays(_offsets_of(values), entries, mask=_missing(values))

    def column_of(self, found: pa.Array) -> Column:
        """Implement ``GateForm.column_of``."""
        entries, ends = _items(found)
        try:
            keys = self._key.column_of(entries.field(0)).to_list()
            items = self._value.column_of(entries.field(1)).to_list()
        except (SerdeError, ValueError, struct.error) as error:
            raise SerdeError(f"entries: {error}") from error
        return ListColumn(_with_none([_map(keys[start:end], items[start:end]) for start, end in pairwise(ends)], found))


def _map(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    check_spread(keys)
    entries = dict(zip(keys, values, strict=True))
    if len(entries) != len(keys):
        raise SerdeError(f"a map of {len(keys)} entries has {len(entries)} different keys")
    return entries


def first_mismatch(form: GateForm, values: Sequence[Any]) -> tuple[int, ValueMismatchError]:
    """The position of the first value that does not fit, and its error; one of the values does not fit."""
    for position, value in enumerate(values):
        try:
            form.array_of([value])
        except ValueMismatchError as error:
            return position, error
    raise AssertionError("each value fits, but all together do not")


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
    """How many places are looked at until all keys are in a table of ``size`` places; a lower bound if there are many.

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


# ---------------------------------------------------------------- the form of a type

_MAX_TYPES: Final = 256


@lru_cache(_MAX_TYPES)
def gate_form(type_info: TypeInformation, *, texts_are_bytes: bool = False) -> GateForm:
    """The form of a declared type.  Raises TypeError: the class of the type is unknown."""
    inner = partial(gate_form, texts_are_bytes=texts_are_bytes)
    match type_info:
        case BasicTypeInfo(basic_type=BasicType.STRING | BasicType.CHAR as kind) if texts_are_bytes:
            return text_bytes_form(type_info, is_character=kind is BasicType.CHAR)
        case BasicTypeInfo(basic_type=BasicType.CHAR):
            return CharacterForm(type_info, pa.string())
        case BasicTypeInfo(basic_type=BasicType.FLOAT):
            return LeafForm(type_info, pa.float64())
        case MapTypeInfo():
            return MapForm(type_info, inner(type_info.key_type_info), inner(type_info.value_type_info))
        case RowTypeInfo():
            return RowForm(type_info, type_info.get_field_names(), list(map(inner, type_info.get_field_types())))
        case TupleTypeInfo():
            fields = list(map(inner, type_info.get_field_types()))
            return FieldsForm(type_info, [f"f{position}" for position in range(len(fields))], fields)
        case _ if isinstance(type_info, ARRAY_TYPES) and type_info != Types.PRIMITIVE_ARRAY(Types.BYTE()):
            may_hold_none = not isinstance(type_info, PrimitiveArrayTypeInfo)
            return ListsForm(type_info, inner(type_info.elem_type), may_hold_none=may_hold_none)
        case PickledBytesTypeInfo():
            return PickledForm(type_info, pa.binary())
        case _:
            arrow_type = arrow_type_of(type_info)
            return LeafForm(type_info, arrow_type) if arrow_type else bytes_form(type_info)


@lru_cache(_MAX_TYPES)
def arrow_form(arrow_type: pa.DataType) -> GateForm:
    """The form of a column of an Arrow type, which takes values of exactly its classes."""
    if pa.types.is_list(arrow_type):
        return ListsForm(arrow_type, arrow_form(arrow_type.value_type))
    if pa.types.is_struct(arrow_type):
        names = [each.name for each in arrow_type]
        return StructForm(arrow_type, names, [arrow_form(each.type) for each in arrow_type])
    return LeafForm(arrow_type, arrow_type, is_exact=True)


def exact_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """An array of exactly these values, None as null.

    Raises ValueMismatchError: a value is not of the type; the message shows the value.
    """
    return arrow_form(arrow_type).array_of(values)


# ---------------------------------------------------------------- records


def shaped(fields: Sequence[Column], type_info: TypeInformation) -> Columns:
    """Columns of records of ``type_info``, at least one field; records of any objects are tuples."""
    match type_info:
        case RowTypeInfo():
            return Columns(len(fields[0]), tuple(fields), Shape.ROW, tuple(type_info.get_field_names()))
        case TupleTypeInfo() | PickledBytesTypeInfo():
            return Columns(len(fields[0]), tuple(fields), Shape.TUPLE)
        case _:
            return Columns(len(fields[0]), tuple(fields), Shape.SCALAR)


class GateBatches:
    """Checks, writes and reads records of one type.  Threading: any; it has no state.

    Args:
        type_info: the declared type.
        free_cells: as in ``DeclaredRecords``.
        texts_are_bytes: as in ``gate_form``.
    """

    __slots__ = ("_flags", "_form", "_free_cells", "_schema", "_split", "_type_info")

    def __init__(self, type_info: TypeInformation, free_cells: int, *, texts_are_bytes: bool) -> None:
        self._type_info = type_info
        self._free_cells = free_cells
        self._flags = TEXTS_ARE_BYTES if texts_are_bytes else 0
        form = self._form = gate_form(type_info, texts_are_bytes=texts_are_bytes)
        # Records without fields are sent whole, as single values are: a batch without fields has no rows.
        self._split = form if isinstance(form, FieldsForm) and form.fields else None
        self._schema = pa.schema([("", form.arrow_type)])
        if self._split is not None:
            fields = zip(self._split.names, self._split.fields, strict=True)
            self._schema = pa.schema([(name, each.arrow_type) for name, each in fields])

    def chunk_of(self, records: list[Any]) -> Chunk:
        """Implement ``DeclaredRecords.chunk_of`` without the number of the record in its error."""
        form = self._form
        if not isinstance(form, FieldsForm):
            if len(records) > MAX_PACKED_DECLARED:
                return Chunk.of_columns(Columns(len(records), (form.kept(records),), Shape.SCALAR))
            form.array_of(records)
            return Chunk(records)
        parts, kinds = form.parted(records)
        columns = form.of_each(lambda field, values: field.kept(values), parts)
        if self._split is None or kinds is not None:
            return Chunk(records)
        return Chunk.of_columns(shaped(columns, self._type_info))

    def fitting(self, columns: Columns) -> Columns:
        """Implement ``DeclaredRecords.fitting`` without the number of the record in its error."""
        form = self._form
        fields = columns.fields
        if not isinstance(form, FieldsForm):
            if len(fields) != 1:
                raise ValueMismatchError(f"records of {len(fields)} columns, declared is {self._type_info!r}")
            return Columns(len(columns), (_fitting(form, fields[0]),), Shape.SCALAR)
        if columns.field_names not in ((), form.names):
            if isinstance(form, RowForm) and set(columns.field_names) == set(form.names):
                fields = tuple([fields[columns.field_names.index(name)] for name in form.names])
            elif not are_positions(form.names):
                raise ValueMismatchError(
                    f"records of the columns {', '.join(columns.field_names)}, declared is {self._type_info!r}"
                )
        if len(fields) != len(form.fields):
            raise ValueMismatchError(f"{len(fields)} columns, {self._type_info!r} has {len(form.fields)}")
        return shaped(form.of_each(_fitting, fields), self._type_info)

    def encode(self, chunk: Chunk) -> bytes:
        """Implement ``DeclaredRecords.encode`` for records as an Arrow message."""
        split = self._split
        columns = chunk.columns
        flags = self._flags
        schema = self._schema
        if columns is not None and columns.shape in (Shape.SCALAR, Shape.TUPLE, Shape.ROW):
            if split is None:
                arrays = [array_of_column(self._form, columns.fields[0])]
            else:
                arrays = split.of_each(array_of_column, columns.fields)
        elif split is None:
            arrays = [self._form.array_of(chunk.values)]
        else:
            parts, kinds = split.parted(chunk.values)
            arrays = split.of_each(GateForm.array_of, parts)
            if kinds is not None:
                arrays.insert(0, kinds)
                flags |= HAS_KINDS
                schema = schema.insert(0, KIND)
        message = memoryview(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())
        num_cells = sum(map(num_values, arrays))
        most = self._free_cells + len(message)
        if num_cells > most:
            raise ElementTooLargeError(
                f"{len(chunk)} records stand for {num_cells} values in {len(message)} bytes, allowed are {most}"
            )
        return framed(Kind.BATCH, bytes((flags,)), message)

    def decode(self, payload: memoryview, num_records: int) -> Columns | list[Any]:
        """The records in a BATCH.  Raises SerdeError, or an error of a constructor: the bytes are corrupt."""
        form = self._form
        schema = self._schema
        has_kinds = bool(payload[0] & HAS_KINDS)
        message = pa.py_buffer(bytes(payload[1:]))
        if has_kinds:
            schema = schema.insert(0, KIND)
        batch = batch_of_message(message, schema, self._free_cells + len(message))
        if batch.num_rows != num_records:
            raise SerdeError(f"a record batch of {batch.num_rows} rows in a chunk of {num_records} records")
        if has_kinds:
            if not isinstance(form, RowForm):
                raise SerdeError(f"kinds of rows, declared is {self._type_info!r}")
            return list(form.rows(batch.column(0), batch.columns[1:]))
        if self._split is not None:
            return shaped(self._split.columns_of(batch.columns), self._type_info)
        column = form.column_of(batch.column(0))
        if not isinstance(form, FieldsForm):
            return Columns(num_records, (column,), Shape.SCALAR)
        records = column.to_list()
        if None in records:
            raise SerdeError(f"None in the place of a record of {self._type_info!r}")
        return records


def _fitting(form: GateForm, column: Column) -> Column:
    found = array_of_column(form, column)
    if not isinstance(form, ListsForm) or not form.is_plain:
        return form.column_of(found)
    # Arrow's lists stay in Arrow, without a loop over them.  A part of a longer array is copied, so as not to keep all.
    return ArrowColumn(found.take(pa.array(np.arange(len(found)))) if found.offset else found)
