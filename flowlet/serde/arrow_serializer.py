"""The serializer of Arrow record batches.

Side:       pure.
Invariants: a batch that came out was validated: offsets that point outside of it are refused, not followed.
Format:     i32 size, then the batch as one Arrow IPC message without its schema, which both sides know.
Absent:     dictionaries that go over several batches.  Only jobs that declare such a type import this module, and with it pyarrow.
"""

from typing import Any

import pyarrow as pa

from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput
from flowlet.serde.type_serializer import TypeSerializer, ValueMismatchError, mismatch, preview


class ArrowSerializer(TypeSerializer):
    """``pyarrow.RecordBatch`` of one schema.

    Ownership: what comes back lies in memory of its own.
    """

    __slots__ = ("_schema",)

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def is_immutable(self) -> bool:
        """True: Arrow's batches are."""
        return True

    @property
    def min_size_bytes(self) -> int:
        """4."""
        return 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """The batch must have exactly the schema; metadata may differ."""
        if not isinstance(value, pa.RecordBatch):
            raise mismatch(value, "a pyarrow.RecordBatch")
        if not value.schema.equals(self._schema):
            raise self._schema_mismatch(value)
        data = value.serialize()
        output.write_int(len(data))
        output.write(memoryview(data))

    def deserialize(self, source: DataInput) -> Any:
        """The next batch."""
        data = pa.py_buffer(source.read(source.read_count("bytes", min_bytes_each=1)))
        try:
            batch = pa.ipc.read_record_batch(data, self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            raise SerdeError(f"no record batch of this schema: {type(error).__name__}: {error}") from error
        return batch

    def _schema_mismatch(self, batch: Any) -> ValueMismatchError:
        """Names the first field that differs."""
        found, declared = batch.schema, self._schema
        if found.names != declared.names:
            return ValueMismatchError(f"a record batch of the fields {found.names!r}, declared are {declared.names!r}")
        for index, field in enumerate(declared):
            if not found.field(index).equals(field):
                values = preview(batch.column(index).slice(0, 3).to_pylist())
                return ValueMismatchError(f"{values} of type {found.field(index)}, declared is {field}", field.name)
        raise AssertionError("schemas with equal fields are equal")

    def __repr__(self) -> str:
        return f"ArrowSerializer({', '.join(f'{field.name}: {field.type}' for field in self._schema)})"
