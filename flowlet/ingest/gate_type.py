"""Compares a producer's records with the type of a gate.

Side:   pure.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from flowlet.columns import Columns
from flowlet.common.typeinfo import (
    ArrowTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from flowlet.ingest.errors import GateTypeError
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk
from flowlet.serde.declared.declared_records import DeclaredRecords
from flowlet.serde.types.row_fields import are_positions
from flowlet.serde.types.type_serializer import ValueMismatchError, preview

FINGERPRINT_BYTES = 16


def type_fingerprint(type_info: TypeInformation) -> bytes:
    """16 bytes, the same for equal types in every process."""
    text = f"{type(type_info).__name__} {type_info!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()


def checked_records(
    records: list[Any], timestamps: list[int] | None, declared: DeclaredRecords | None, gate: str
) -> Chunk:
    """At least one record, in the form in which it is sent.  ``declared``: None: they are any objects.

    Raises:
        GateTypeError: a record is not of the gate's type; names the first one, its field, and shows the value.
    """
    if declared is None:
        return Chunk(records, timestamps)
    try:
        chunk = declared.chunk_of(records)
    except ValueMismatchError as error:
        raise GateTypeError(f"{error}; {gate} takes {declared.type_info!r}") from error
    return chunk if timestamps is None else chunk.with_timestamps(timestamps)


def checked_columns(columns: Columns, declared: DeclaredRecords | None, gate: str) -> Columns:
    """The same records in the shape of the gate's type.  Raises GateTypeError: as ``checked_records``."""
    if declared is None:
        return columns
    if isinstance(declared.type_info, ArrowTypeInfo):
        raise GateTypeError(f"{gate} takes whole record batches, {declared.type_info!r}: use write_batch")
    try:
        return declared.fitting(columns)
    except ValueMismatchError as error:
        raise GateTypeError(f"{error}; {gate} takes {declared.type_info!r}") from error


def check_timestamps(timestamps: list[int] | None, num_records: int, gate: str) -> None:
    """Check that each record has a timestamp of 64 bits.  Raises GateTypeError: one has not; names the record."""
    if timestamps is None:
        return
    if len(timestamps) != num_records:
        raise GateTypeError(f"{len(timestamps)} timestamps for {num_records} records, for {gate}")
    if set(map(type, timestamps)) <= {int} and (
        not timestamps or (min(timestamps) >= MIN_TIMESTAMP and max(timestamps) <= MAX_TIMESTAMP)
    ):
        return
    for position, timestamp in enumerate(timestamps):
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            raise GateTypeError(
                f"record {position}: the timestamp {preview(timestamp)} is no int of 64 bits (milliseconds), for {gate}"
            )


def check_columns(names: Sequence[str], type_info: TypeInformation, gate: str) -> list[int]:
    """Check that the columns are the fields of the gate's type; return the positions of the columns in the order of the
    fields.

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
            return list(range(len(names)))
        case _:
            wanted = [None]
    if isinstance(type_info, RowTypeInfo) and are_positions(type_info.get_field_names()):
        wanted = [None] * len(wanted)
    if len(set(names)) == len(names) == len(wanted) and set(names) == set(wanted):
        return [names.index(name) for name in wanted if name is not None]
    for found, expected in zip(names, wanted, strict=False):
        if expected is not None and found != expected:
            raise GateTypeError(f"column {found!r} stands where {gate} has {expected!r}: its type is {type_info!r}")
    if len(names) != len(wanted):
        what = (
            f"column {names[len(wanted)]!r} is one too many"
            if len(names) > len(wanted)
            else f"column {len(names)} is missing"
        )
        raise GateTypeError(f"{what}: {gate} takes {type_info!r}")
    return list(range(len(names)))
