"""Compares a producer's records with the type of a gate.

Side:   pure.
"""

import hashlib
from collections.abc import Sequence

from flowlet.common.conversion import to_declared_shape
from flowlet.common.typeinfo import (
    ArrowTypeInfo,
    BasicArrayTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from flowlet.common.types import Row
from flowlet.ingest.errors import GateTypeError

FINGERPRINT_BYTES = 16


def type_fingerprint(type_info: TypeInformation) -> bytes:
    """16 bytes, the same for equal types in every process."""
    text = f"{type(type_info).__name__} {type_info!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()


def holds_any_object(type_info: TypeInformation) -> bool:
    """Whether records of the type may contain objects of any class."""
    match type_info:
        case PickledBytesTypeInfo():
            return True
        case RowTypeInfo() | TupleTypeInfo():
            return any(map(holds_any_object, type_info.get_field_types()))
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo() | PrimitiveArrayTypeInfo():
            return holds_any_object(type_info.elem_type)
        case MapTypeInfo():
            return holds_any_object(type_info.key_type_info) or holds_any_object(type_info.value_type_info)
        case _:
            return False


def check_record(record: object, type_info: TypeInformation, gate: str) -> None:
    """Check that a record is of the gate's type, as far as its parts show.

    Raises:
        GateTypeError: it is not; says which part, and what the gate takes.
    """
    try:
        to_declared_shape(record, type_info)
    except TypeError as error:
        raise GateTypeError(f"{_wrong_column(record, type_info)}{error}; {gate} takes {type_info!r}") from error


def _wrong_column(record: object, type_info: TypeInformation) -> str:
    """The first column of a row with a wrong value, as the beginning of a message; empty if there is none."""
    if isinstance(type_info, RowTypeInfo) and isinstance(record, Row | tuple | list):
        for name, value, declared in zip(type_info.get_field_names(), record, type_info.get_field_types(), strict=False):
            try:
                to_declared_shape(value, declared)
            except TypeError:
                return f"column {name!r}: "
    return ""


def check_columns(names: Sequence[str], type_info: TypeInformation, gate: str) -> None:
    """Check that the columns are the fields of the gate's type, in order.

    Raises:
        GateTypeError: they are not; names the first wrong column.
    """
    match type_info:
        case RowTypeInfo():
            wanted: Sequence[str | None] = type_info.get_field_names()
        case TupleTypeInfo():
            wanted = [None] * len(type_info.get_field_types())
        case ArrowTypeInfo():
            wanted = type_info.schema.names
        case PickledBytesTypeInfo():
            return
        case _:
            wanted = [None]
    for found, expected in zip(names, wanted, strict=False):
        if expected is not None and found != expected:
            raise GateTypeError(f"column {found!r} stands where {gate} has {expected!r}: its type is {type_info!r}")
    if len(names) != len(wanted):
        what = f"column {names[len(wanted)]!r} is one too many" if len(names) > len(wanted) else f"column {len(names)} is missing"
        raise GateTypeError(f"{what}: {gate} takes {type_info!r}")
