"""``CommittableRows``: rows that wait in the checkpoint for their transaction.

Side:   pure.
Format: ``rows`` has any number of parts, each a u32 size and so many bytes: the pickle of a list of rows
        (``record_pickle.dumps_value``).
Source: Flink ``GenericWriteAheadSink.PendingCheckpoint``, which names a file; here the rows are state.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from flowlet.errors import SerdeError
from flowlet.serde.pickles.record_pickle import dumps_value, has_class_table, is_of_another_program, loads_value
from netstack.late import dataclass

_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class CommittableRows:
    """The rows of one transaction.

    Attributes:
        writer: the random id of the attempt that wrote them.
        number: which transaction of the writer it is, from 0.
        prepared_ms: when it was prepared, in ms since 1970.
        num_rows: for people.
        rows: see the header.

    What another program prepared is read with the classes of the one that runs, as soon as it is restored
    (``classes_found_by``).
    """

    writer: str
    number: int
    prepared_ms: int
    num_rows: int
    rows: bytes

    def __getstate__(self) -> list[Any]:
        """The values of the fields in their order, as of any frozen dataclass with slots."""
        return [getattr(self, each.name) for each in fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        """Take the fields; rows are written anew where they would bring classes of another program along."""
        for field, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, field.name, _with_running_classes(value) if field.name == "rows" else value)

    def __repr__(self) -> str:
        return f"<CommittableRows {self.writer}-{self.number}, {self.num_rows} rows>"


def encoded_part(rows: Sequence[Any]) -> bytes:
    """Some rows as a part of ``CommittableRows.rows``.  Raises SerdeError: one cannot be pickled."""
    data = dumps_value(list(rows))
    return b"".join((_SIZE.pack(len(data)), data))


def decoded_rows(data: bytes) -> list[Any]:
    """The rows of all parts, in order.

    Raises:
        SerdeError: the bytes are cut off.
        Exception: whatever rebuilding a row raises.
    """
    return [row for part in _parts(data) for row in loads_value(part)]


def _with_running_classes(data: bytes) -> bytes:
    if not is_of_another_program() or not any(map(has_class_table, _parts(data))):
        return data
    return b"".join([encoded_part(loads_value(part)) for part in _parts(data)])


def _parts(data: bytes) -> Iterator[memoryview]:
    view, position = memoryview(data), 0
    while position < len(data):
        end = position + _SIZE.size
        if end <= len(data):
            position, end = end, end + _SIZE.unpack_from(data, position)[0]
        if end > len(data):
            raise SerdeError(f"rows that wait for a commit are cut off: {len(data)} bytes, a part ends at {end}")
        yield view[position:end]
        position = end
