"""``DeclaredRecords``: checks, writes and reads chunks of records of one declared type, as remote gates use them.

``PackedRecords``: a few records of basic values as msgpack, whose decoder knows their types.

Hot path: C code per column (``gate_forms``).  Packed, a chunk of one record with two fields takes 3 us to write and 3
to read, as an Arrow message 40 and 30.  ``PackedRecords`` does not serve more than 32 records, nested values, dates and
decimals.

Side:       pure.
Invariants: the decoder is made of the declared types, so it reads no other values.  Chunks carry no keys: a reader
            takes keys from the records, so no sender can give a record the key of another one.
Format:     a column (``column_writer``).  PACKED: msgpack of tuples.  BATCH: ``gate_forms``.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from flowlet.columns import Columns
from flowlet.common.typeinfo import (
    ArrowTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    holds_any_object,
    named_fields,
)
from flowlet.common.types import alike_fields, are_positions, rows_of
from flowlet.common.values.conversion import field_form, integer_limits
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.column_writer import FREE_CELLS, MAX_PACKED_DECLARED, TEXTS_ARE_BYTES, Kind, column_at, framed
from flowlet.serde.type_serializer import ValueMismatchError

if TYPE_CHECKING:
    from flowlet.types.gate_forms import GateBatches

T = TypeVar("T")
R = TypeVar("R")

_pack: Final = msgspec.msgpack.Encoder().encode
# The first bytes of a msgpack list, by its number of records: a reader compares them before it takes memory for them.
_HEADS: Final = {size: _pack([None] * size)[:-size] for size in range(1, MAX_PACKED_DECLARED + 1)}
_PACKABLE: Final = frozenset({int, str, float, bool, bytes, NoneType})


def _packed_type(type_info: TypeInformation) -> Any:
    """The type that msgpack's decoder checks; None: msgpack has no such values."""
    form = field_form(type_info)
    if form is None or form.arrow is None or form.exact not in _PACKABLE:
        return None
    limits = integer_limits(type_info)
    return form.exact if limits is None else Annotated[int, msgspec.Meta(ge=limits[0], le=limits[1])]


class PackedRecords:
    """Writes and reads a few tuples or rows.  Threading: any; it has no state.

    Args:
        type_info: of the records; their fields have basic types.
    """

    __slots__ = ("_names", "_unpack")

    def __init__(self, type_info: TupleTypeInfo | RowTypeInfo) -> None:
        self._names = tuple(type_info.get_field_names()) if isinstance(type_info, RowTypeInfo) else None
        fields = tuple([_packed_type(each) | None for each in type_info.get_field_types()])
        self._unpack = msgspec.msgpack.Decoder(list[tuple[fields]]).decode  # type: ignore[valid-type]  # made at run time

    @classmethod
    def of(cls, type_info: TypeInformation) -> "PackedRecords | None":
        """A ``PackedRecords`` for records of this type; None if msgpack has no form for them."""
        if not isinstance(type_info, TupleTypeInfo | RowTypeInfo):
            return None
        types = type_info.get_field_types()
        return cls(type_info) if types and None not in map(_packed_type, types) else None

    def try_pack(self, records: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        """The records as a column, and the records that a reader will get; None if they need an Arrow message, or do
        not fit the type.
        """
        if len(records) > MAX_PACKED_DECLARED:
            return None
        tuples = self._tuples_of(records)
        if tuples is None or not _PACKABLE.issuperset(map(type, itertools.chain.from_iterable(tuples))):
            return None
        try:
            data = _pack(tuples)
            found = self._unpack(data)
        except (msgspec.MsgspecError, OverflowError, UnicodeError):
            return None
        return (framed(Kind.PACKED, data), self._records_of(found)) if found == tuples else None

    def _tuples_of(self, records: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        if self._names is None:
            return list(records) if set(map(type, records)) == {tuple} else None
        fields = alike_fields(records, self._names)
        return None if fields is None else list(map(tuple, fields))

    def _records_of(self, tuples: list[tuple[Any, ...]]) -> list[Any]:
        return tuples if self._names is None else list(rows_of(self._names, tuples))

    def unpack(self, payload: memoryview, num_records: int) -> list[Any]:
        """The records in a column.  Raises SerdeError: it is corrupt, or of other types."""
        head = _HEADS.get(num_records)
        if head is None or payload[: len(head)] != head:
            raise SerdeError(f"packed records that are not {num_records}, or more than {MAX_PACKED_DECLARED}")
        try:
            return self._records_of(self._unpack(payload))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise SerdeError(f"packed records: {error}") from error


# Constructors of values, and hashes of keys, may raise any of these errors for corrupt bytes.
_CORRUPT: Final = (ValueError, KeyError, IndexError, OverflowError, TypeError)


class DeclaredRecords:
    """The records of one declared type.  Threading: any; it has no state.

    Records of an Arrow schema are the messages of ``arrow_serializer``, whose bytes are read elsewhere.

    ``free_cells``: how many values a chunk may have besides one for each of its bytes.  Values take more memory than
    bytes: a truth value has one bit in a chunk, and eight bytes in a list.
    """

    __slots__ = ("_batches_of", "_free_cells", "_packed", "_sent_type", "type_info")

    def __init__(self, type_info: TypeInformation, free_cells: int = FREE_CELLS) -> None:
        self.type_info = type_info
        is_arrow = isinstance(type_info, ArrowTypeInfo)
        self._sent_type = Types.PRIMITIVE_ARRAY(Types.BYTE()) if is_arrow else type_info
        self._packed = PackedRecords.of(type_info)
        self._free_cells = free_cells
        self._batches_of: dict[bool, GateBatches] = {}  # by whether texts are bytes, once they are needed

    def __repr__(self) -> str:
        return f"DeclaredRecords({self.type_info!r})"

    def _batches(self, *, texts_are_bytes: bool = False) -> "GateBatches":
        batches = self._batches_of.get(texts_are_bytes)
        if batches is None:
            # Here, because it imports pyarrow, which a gate of a few plain records at a time does not need.
            from flowlet.types.gate_forms import GateBatches

            batches = GateBatches(self._sent_type, self._free_cells, texts_are_bytes=texts_are_bytes)
            self._batches_of[texts_are_bytes] = batches
        return batches

    def _in_batches(self, call: "Callable[[GateBatches, T], R]", argument: T) -> R:
        """The result of a call with ``GateBatches``; repeated with texts as bytes if a text has a lone surrogate."""
        try:
            return call(self._batches(), argument)
        except UnicodeEncodeError:
            return call(self._batches(texts_are_bytes=True), argument)

    # ---------------------------------------------------------------- checking, before records are sent

    def chunk_of(self, records: list[Any]) -> Chunk:
        """Check at least one record; returns the records in columns, or in a list if they are few, or if columns cannot
        hold them, such as rows that change a table, or rows without fields.

        Raises:
            ValueMismatchError: a record does not fit; names the first such record, its field and the expected type, and
                shows the value.
        """
        packed = None if self._packed is None else self._packed.try_pack(records)
        if packed is not None:
            return Chunk(packed[1])
        return self._checked(lambda batches, each: batches.chunk_of(each), records, ([record] for record in records))

    def fitting(self, columns: Columns) -> Columns:
        """The records in the declared shape; fields of rows are found by their names.

        Raises:
            ValueMismatchError: a column does not fit; names it and the first record that does not fit.
        """
        rows = (columns.slice(position, position + 1) for position in range(len(columns)))
        return self._checked(lambda batches, each: batches.fitting(each), columns, rows)

    def _checked(self, call: "Callable[[GateBatches, T], R]", records: T, each: Iterable[T]) -> R:
        try:
            return self._in_batches(call, records)
        except ValueMismatchError:
            for position, record in enumerate(each):
                try:
                    self._in_batches(call, record)
                except ValueMismatchError as error:
                    raise ValueMismatchError(f"record {position}: {error}") from None
            raise  # the type of the whole column does not fit

    # ---------------------------------------------------------------- writing and reading

    def encode(self, chunk: Chunk) -> bytes:
        """The records of a chunk, at least one, as one column.

        Raises:
            ValueMismatchError: a record does not fit.
            ElementTooLargeError: a reader would refuse the column, because it has too many values.
        """
        if chunk.columns is None and self._packed is not None:
            packed = self._packed.try_pack(chunk.values)
            if packed is not None:
                return packed[0]
        return self._in_batches(lambda batches, each: batches.encode(each), chunk)

    def decode(self, view: memoryview, offset: int, num_records: int) -> tuple[Columns | list[Any], int]:
        """Read the records at ``offset``: columns if possible, else a list; and the offset after them.

        Raises:
            SerdeError: the bytes are corrupt, of another type, or stand for too many values.
        """
        kind, payload, end = column_at(view, offset)
        try:
            if kind == Kind.PACKED and self._packed is not None:
                return self._packed.unpack(payload, num_records), end
            is_batch = kind == Kind.BATCH or (kind == _FORMER_BATCH and not holds_any_object(self.type_info))
            if not is_batch or not payload:
                raise SerdeError(f"a column of kind {kind}, which is no form of {self.type_info!r}")
            batches = self._batches(texts_are_bytes=bool(payload[0] & TEXTS_ARE_BYTES))
            return batches.decode(payload, num_records), end
        except _CORRUPT as error:
            raise SerdeError(f"no {self.type_info!r}: {type(error).__name__}: {error}") from error


_FORMER_BATCH: Final = 27  # for types without any objects its bytes equal those of BATCH


def declared_records(type_info: TypeInformation) -> DeclaredRecords | None:
    """The ``DeclaredRecords`` of a gate of this type; None if its records are any objects."""
    return None if isinstance(type_info, PickledBytesTypeInfo) else DeclaredRecords(type_info)


def column_order(names: Sequence[str], type_info: TypeInformation, gate: str) -> tuple[int, ...]:
    """The position of each field of a gate's records among columns of these names.

    Fields that have names are found by name, all others by position; records of any objects take all columns.

    Raises:
        ValueMismatchError: a column is missing, superfluous, or occurs twice; names it and the gate.
    """
    match type_info:
        case PickledBytesTypeInfo():
            return tuple(range(len(names)))
        case ArrowTypeInfo():
            wanted = type_info.schema.names
        case _:
            wanted = [name for name, _ in named_fields(type_info)]
    if list(names) == list(wanted):  # an Arrow schema may have two columns of one name
        return tuple(range(len(names)))
    if are_positions(wanted) and not isinstance(type_info, ArrowTypeInfo):
        if len(names) == len(wanted):
            return tuple(range(len(names)))
        raise ValueMismatchError(
            f"{gate} takes {len(wanted)} columns ({type_info!r}), there are {len(names)}: {', '.join(names)}"
        )
    for name in wanted:
        if names.count(name) != 1:
            what = "is missing" if name not in names else f"occurs {names.count(name)} times"
            raise ValueMismatchError(
                f"column {name!r} {what}: {gate} takes {', '.join(wanted)}; there are {', '.join(names)}"
            )
    for name in names:
        if name not in wanted:
            raise ValueMismatchError(f"column {name!r} is not one of {gate}, which takes {', '.join(wanted)}: drop it")
    return tuple(map(names.index, wanted))
