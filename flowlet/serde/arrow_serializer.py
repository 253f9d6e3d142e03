"""Arrow record batches as messages, and arrays as streams of one batch.

Side:       pure.
Invariants: a decoded batch is validated: its offsets never point outside of it.
Format:     one Arrow IPC message without its schema, which both sides know.  Compressed bodies are refused: a few
            bytes could allocate any amount.
Absent:     dictionaries that several batches share.  Only jobs that declare such a type import this module, and with it
            pyarrow.
"""

import struct
from typing import Any, Final

import pyarrow as pa

from flowlet.errors import SerdeError
from flowlet.serde.type_serializer import ValueMismatchError, mismatch, preview

_FREE_VALUES: Final = 1 << 21  # nulls and rows without columns take no bytes
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
# Where the vtable of a FlatBuffers table has the offset of a field: 4 bytes, then 2 per field.  From Arrow's
# Message.fbs.
_HEADER_OF_MESSAGE: Final = 4 + 2 * 2
_DATA_OF_DICTIONARY: Final = 4 + 2 * 1
_COMPRESSION_OF_BATCH: Final = 4 + 2 * 3


def message_of_batch(batch: Any, schema: pa.Schema) -> pa.Buffer:
    """The batch as one Arrow IPC message without its schema.

    Raises:
        ValueMismatchError: ``batch`` is no batch of exactly this schema (metadata may differ); the message names the
            first field that differs.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise mismatch(batch, "a pyarrow.RecordBatch")
    if not batch.schema.equals(schema):
        raise _schema_mismatch(batch, schema)
    for field, column in zip(schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise ValueMismatchError(f"holds null, declared is {field}", field.name)
    return batch.serialize()


def batch_of_message(data: pa.Buffer, schema: pa.Schema, most_values: int | None = None) -> Any:
    """The batch in a message of ``message_of_batch``; it shares the memory of ``data``.

    ``most_values``: how many values there may be; None: as many as take no more memory than the bytes, and two million.

    Raises:
        SerdeError: the message is corrupt, or its batch does not match ``schema``.
    """
    try:
        message = pa.ipc.read_message(data)
        refuse_compressed(message)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()  # before values are counted: Python itself does not expect a length below 0
        # A bit is the smallest value that takes memory.
        most = _FREE_VALUES + 8 * len(data) if most_values is None else most_values
        if sum(map(num_values, batch.columns)) > most:
            raise SerdeError(f"a record batch of {batch.num_rows} rows in {len(data)} bytes")
        batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError, ValueError, struct.error) as error:
        raise SerdeError(f"no record batch of this schema: {type(error).__name__}: {error}") from error
    for position, column in enumerate(batch.columns):
        # null_count first: pyarrow makes the field of a schema anew at each call, which takes longer than the rest.
        if column.null_count and not schema.field(position).nullable:
            raise SerdeError(f"no record batch of this schema: field {schema.names[position]!r} holds null")
    return batch


def num_values(array: pa.Array) -> int:
    """How many values an array and the arrays in it have."""
    return len(array) + sum(map(num_values, parts_of_array(array)))


def parts_of_array(array: pa.Array) -> list[pa.Array]:
    """The arrays inside an array of lists, structs, maps or dictionary codes."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return [array.dictionary]
    if not kind.num_fields:  # most columns: asking for each kind of type takes as long as reading one
        return []
    if pa.types.is_struct(kind):
        return [array.field(position) for position in range(kind.num_fields)]
    is_of_lists = (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_map(kind)
        or pa.types.is_fixed_size_list(kind)
    )
    return [array.values] if is_of_lists else []


def refuse_compressed(message: Any) -> None:
    """Refuse a compressed record batch or dictionary.  pyarrow does not expose the codec, so its FlatBuffers header is
    read here.

    Raises:
        SerdeError: the message is compressed.
        struct.error: the message's header points outside of the message.
    """
    metadata = memoryview(message.metadata)
    batch = _table(metadata, _U32.unpack_from(metadata, 0)[0], _HEADER_OF_MESSAGE)
    if message.type == "dictionary" and batch is not None:
        batch = _table(metadata, batch, _DATA_OF_DICTIONARY)
    if message.type != "schema" and batch is not None and _field(metadata, batch, _COMPRESSION_OF_BATCH) is not None:
        raise SerdeError(f"the {message.type} is compressed, which is not supported")


def _table(data: memoryview, table: int, slot: int) -> int | None:
    """The offset of the table to which a field of another table refers; None: the field is not set."""
    field = _field(data, table, slot)
    return None if field is None else field + int(_U32.unpack_from(data, field)[0])


def _field(data: memoryview, table: int, slot: int) -> int | None:
    """The offset of a table's field; None: the field is not set."""
    places = table - _I32.unpack_from(data, table)[0]
    if slot >= _U16.unpack_from(data, places)[0]:
        return None
    offset: int = _U16.unpack_from(data, places + slot)[0]
    return table + offset if offset else None


def _schema_mismatch(batch: Any, declared: pa.Schema) -> ValueMismatchError:
    """The error for the first field that differs."""
    found = batch.schema
    if found.names != declared.names:
        return ValueMismatchError(f"a record batch of the fields {found.names!r}, declared are {declared.names!r}")
    for index, field in enumerate(declared):
        if not found.field(index).equals(field):
            values = preview(batch.column(index).slice(0, 3).to_pylist())
            return ValueMismatchError(f"{values} of type {found.field(index)}, declared is {field}", field.name)
    raise AssertionError("schemas with equal fields are equal")


def encode_arrow_array(array: Any) -> memoryview:
    """A ``pyarrow.Array`` as the payload of ARROW."""
    batch = pa.record_batch([array], names=[""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_arrow_array(payload: memoryview) -> Any:
    """The payload of ARROW as a validated ``pyarrow.Array``."""
    stream = pa.py_buffer(bytes(payload))
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            refuse_compressed(message)  # a few compressed bytes could allocate any amount
        with pa.ipc.open_stream(stream) as reader:
            batch = reader.read_next_batch()
        # Refuses offsets that point outside the batch.
        batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError, StopIteration, ValueError, struct.error) as error:
        raise SerdeError(f"no Arrow array: {type(error).__name__}: {error}") from error
    if batch.num_columns != 1:
        raise SerdeError(f"a record batch of {batch.num_columns} fields instead of an Arrow array")
    return batch.column(0)
