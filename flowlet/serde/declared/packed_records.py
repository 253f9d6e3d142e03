"""``PackedRecords``: a few records of basic values as msgpack, whose decoder knows their types.

Hot path: a chunk of one record with two fields takes 3 us to write and 3 to read, in columns 30 and 16.  It does not
    serve more than 15
records, nested values, dates and decimals.

Side:       pure.
Invariants: as ``declared_column``: the decoder is made of the declared types, so it reads nothing else.
"""

import itertools
from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Final

import msgspec

from flowlet.errors import SerdeError
from flowlet.serde.column_format import PACKED, framed
from flowlet.serde.declared.declared_column import DeclaredColumn
from flowlet.serde.declared.leaf_columns import BooleanColumn, BytesColumn, FloatingColumn, IntegerColumn, TextColumn

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
        return framed(PACKED, data) if is_same else None

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
