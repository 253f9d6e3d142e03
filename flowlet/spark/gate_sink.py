"""``GateSink``: what ``foreachPartition`` calls with the rows of a partition.

Side:       task.  Made in the driver, pickled, called in Spark's Python workers.
Invariants: a call returns when the gate's job has processed the partition's last row, and raises otherwise: Spark then tries again.
            A row that the gate's job cannot take now stays in Spark: the call waits, and holds one chunk of rows.
Hot path:   rows that wait for their chunk are new objects for the garbage collector, which by default runs every 700 of them and finds
            nothing: 2.4 -> 5.6 us per row of Spark and Python together, against 2.4 with a collector that runs rarely.
Promises:   at least once; docs/remote-gates.md, "Spark".
"""

import gc
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

from flowlet.chain.preview import preview
from flowlet.columns import Columns
from flowlet.errors import ConfigError
from flowlet.ingest.producer import DEFAULT_TIMEOUT_S, GateClient, GateDescription, PartitionWriter, open_gate
from flowlet.spark.attempt import attempt_of_this_task
from flowlet.spark.gate_schema import GateSchema
from flowlet.spark.rows import RowConverter

DEFAULT_CHUNK_ROWS: Final = 2_000  # bench/spark.py
_RECORDS: Final = (tuple, list, str, bytes, bytearray, Mapping)  # what can be iterated over, and can be a record
_GC_THRESHOLD: Final = 50_000  # that of a TaskManager; Python's is 700


class GateSink:
    """Pushes the rows of each partition into a gate of a running job: ``df.foreachPartition(GateSink("clicks", jobmanager=...))``.

    For RDDs too, whose records are tuples in the order of the gate's fields, or single values; and inside ``foreachBatch``.  A DataFrame
    of many rows goes several times faster through ``df.write.format("flowlet")``, which needs no ``Row`` for each of them.

    Threading: any; calls share nothing but the connections of their process.
    Life cycle: the constructor asks the JobManager where the gate is and for a token that is good for this gate alone, a day long; the
        workers need neither the JobManager nor the secret.

    Args:
        gate: its name in ``env.from_remote_gate``.
        jobmanager: host:port.
        secret_file: the cluster's; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.
        timeout_s: of that question, and of every offer of a partition.
        schema: of the DataFrame; with it types are compared here, before anything runs, else value by value in the workers.
        chunk_rows: how many rows are sent together.  A row waits for the others of its chunk.

    Raises:
        GateError: there is no such gate, no JobManager, or the secret is another one; names gate and JobManager.
        SchemaMismatchError: a column of ``schema`` does not fit; names the column.
    """

    def __init__(
        self,
        gate: str,
        *,
        jobmanager: str,
        secret_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schema: st.StructType | None = None,
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ) -> None:
        if chunk_rows < 1:
            raise ConfigError(f"chunk_rows is {chunk_rows}, it must be 1 or more")
        self.description = open_gate(gate, jobmanager=jobmanager, timeout_s=timeout_s, secret_file=secret_file).description
        self._schema = GateSchema.of(gate, self.description.type_info)
        if schema is not None:
            self._schema.check_spark(schema)
        self._timeout_s = timeout_s
        self._chunk_rows = chunk_rows
        self._write_id = f"spark-{uuid.uuid4().hex}"

    def __repr__(self) -> str:
        return f"<GateSink into {self.description}>"

    def __call__(self, rows: Any) -> None:
        """Push one partition; for Spark.

        Raises:
            TypeError: this may be a record: Spark's ``foreach`` calls with each, and its fields would be taken for records.
            GateError: the gate, its job or the connection was lost, or the attempt was refused; names the gate.
            SchemaMismatchError: a row does not fit; names the column.
        """
        if not isinstance(rows, Iterable) or isinstance(rows, _RECORDS):
            raise TypeError(
                f"a GateSink takes an iterator over the rows of a partition, got {preview(rows)}; foreach() calls it with each row: use "
                'foreachPartition(sink) for a batch, and writeStream.format("flowlet") or foreachBatch for a stream'
            )
        remaining = iter(rows)
        converter = RowConverter(self._schema, clock_is_utc=clock_is_utc())
        with open_writer(self.description, self._write_id, self._timeout_s) as writer, collecting_rarely():
            while chunk := list(islice(remaining, self._chunk_rows)):
                push(writer, converter.convert(chunk))
            writer.finish()


def open_writer(description: GateDescription, write_id: str, timeout_s: float) -> PartitionWriter:
    """A writer for the partition of the Spark task that runs this."""
    return GateClient(description, timeout_s=timeout_s).open_partition(attempt_of_this_task(write_id).offer())


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Inside, the garbage collector of this process runs as rarely as in a TaskManager; not more often than before, nor if it is off."""
    before = gc.get_threshold()
    is_often = 0 < before[0] < _GC_THRESHOLD
    if is_often:
        gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        if is_often:
            gc.set_threshold(*before)


def push(writer: PartitionWriter, payload: Columns | pa.RecordBatch | list[Any]) -> None:
    """Write columns or records, whichever it is."""
    match payload:
        case list():
            writer.write_records(payload)
        case Columns():
            writer.write_columns(payload)
        case _:
            writer.write_batch(payload)


def clock_is_utc() -> bool:
    """Whether this process shows points in time in UTC, in winter and in summer."""
    return time.timezone == 0 and not time.daylight
