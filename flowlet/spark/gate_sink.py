"""``GateSink``: pushes the rows of a partition, called by ``foreachPartition``; identifies a Spark task to the gate.

Side:       shared.
Invariants: a call returns when the gate's job has processed the partition's last row, or a checkpoint of it holds the
            partition; otherwise it raises, and Spark tries again.  While the gate grants no credit the call waits with
            one chunk of rows, and with those that no checkpoint holds if the gate's job takes some; the other rows stay
            in Spark.  No two attempts have the same job, epoch, partition and attempt: retries, speculative copies,
            repeated stages, and epochs that are replayed after a restart all differ.  No two writes have the same job
            and epoch: of a partition that is counted nothing more is sent.
Rules:      Spark's ``taskAttemptId`` is unique only within one SparkContext, so the job's name has a part that differs
            from run to run.
Source:     ``pyspark.TaskContext``.  The property of a streaming query is internal to Spark; the tests of
            ``foreachBatch`` and ``writeStream`` check that it is still there.
Hot path:   rows of a chunk are new objects, for which the garbage collector by default runs every 700 and finds
            nothing: 5.6 us per row of Spark and Python together, 2.4 us with a collector that runs rarely.
Promises:   docs/remote-gates.md, "Spark".
"""

import gc
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as st

from flowlet.columns import Columns
from flowlet.errors import ConfigError
from flowlet.ingest.description import GateTypeError, PartitionOffer
from flowlet.ingest.partition_writer import DEFAULT_LIMITS, PartitionWriter, PushLimits
from flowlet.ingest.producer import GateClient, open_gate
from flowlet.serde.type_serializer import preview
from flowlet.spark.gate_schema import GateSchema
from flowlet.spark.rows import RowConverter

_BATCH_ID: Final = "streaming.sql.batchId"
_MAX_ATTEMPT: Final = 2**31


def offer_of_this_task(write_id: str, *, per_stage: bool) -> PartitionOffer:
    """The offer of the current Spark task, with a new nonce; the epoch is the batch of a streaming query, else 0.

    ``per_stage``: the write of each stage is one of its own, because ``write_id`` is used for several.
    """
    context = TaskContext.get()
    if context is None:
        return PartitionOffer(write_id, partition=0)  # called outside of a Spark task
    epoch = int(context.getLocalProperty(_BATCH_ID) or 0)
    job = f"{write_id}/{context.stageId()}" if per_stage else write_id
    # Not attemptNumber(): it starts again at 0 when a stage is repeated.
    return PartitionOffer(
        job, context.partitionId(), context.taskAttemptId() % _MAX_ATTEMPT, epoch, is_retry=context.attemptNumber() > 0
    )


DEFAULT_CHUNK_ROWS: Final = 2_000  # bench/spark.py
_RECORDS: Final = (tuple, list, str, bytes, bytearray, Mapping)  # can be iterated over, and can be a record
_MIN_VALID_MS: Final = 12 * 3600 * 1000  # half of a token's life: tasks of this Spark job may start much later
_GC_THRESHOLD: Final = 50_000  # as in a TaskManager; Python's default is 700


class GateSink:
    """Pushes the rows of each partition into a gate of a running job: ``df.foreachPartition(GateSink("clicks",
    jobmanager=...))``.

    Also for RDDs, whose records are tuples in the order of the gate's fields, or single values, and inside
    ``foreachBatch``.  For large DataFrames ``df.write.format("flowlet")`` is several times faster, because it makes no
    ``Row`` objects.

    Threading: any; calls share only the connections of their process.
    Life cycle: the constructor gets the gate's address and a token from the JobManager.  The token is valid for this
        gate and one day; whenever the driver pickles the sink for a Spark job, a token that is older than 12 hours is
        replaced.  The workers have no secret.

    Args:
        gate: the name given to ``env.from_remote_gate``.
        jobmanager: host:port.
        secret_file: the cluster's; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.
        timeout_s: of the look-up, and of each offer of a partition.
        schema: of the DataFrame; types are then compared here, before anything runs, otherwise value by value in the
            workers.
        chunk_rows: how many rows are sent together.  A row waits for the others of its chunk.
        wait_for_gate_s: how long to ask again if there is no JobManager yet, or no running job with this gate.
        wait_for_room_s: how long a partition waits for a place among the gate's producers.
        resume_timeout_s: how long a partition waits for a gate that was lost, if the gate's job takes checkpoints.
        max_kept_bytes: how much of a partition may wait for a checkpoint; see ``GateClient``.

    Raises:
        GateError: there is no such gate or no JobManager, or the secret is wrong; names gate and JobManager.
        SchemaMismatchError: a column of ``schema`` does not fit; names the column.
    """

    def __init__(
        self,
        gate: str,
        *,
        jobmanager: str,
        secret_file: str | Path | None = None,
        timeout_s: float = DEFAULT_LIMITS.timeout_s,
        schema: st.StructType | None = None,
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
        wait_for_gate_s: float = 0.0,
        wait_for_room_s: float = DEFAULT_LIMITS.wait_for_room_s,
        resume_timeout_s: float = DEFAULT_LIMITS.resume_timeout_s,
        max_kept_bytes: int = DEFAULT_LIMITS.max_kept_bytes,
    ) -> None:
        if chunk_rows < 1:
            raise ConfigError(f"chunk_rows is {chunk_rows}, it must be 1 or more")
        # Only where the sink was made: neither the secret nor this goes into its pickled form.
        self._look_up: Callable[[], GateClient] | None = partial(
            open_gate,
            gate,
            jobmanager=jobmanager,
            timeout_s=timeout_s,
            secret_file=secret_file,
            wait_for_gate_s=wait_for_gate_s,
        )
        self.description = self._look_up().description
        self._schema = GateSchema.of(gate, self.description.type_info)
        if schema is not None:
            self._schema.check_spark(schema)
        self._limits = PushLimits(timeout_s, wait_for_room_s, resume_timeout_s, max_kept_bytes)
        self._chunk_rows = chunk_rows
        self._write_id = f"spark-{uuid.uuid4().hex}"

    def __repr__(self) -> str:
        return f"<GateSink into {self.description}>"

    def __getstate__(self) -> dict[str, Any]:
        """For Spark's workers, with a token that is valid for 12 hours at least.

        Raises:
            GateError: there is no such gate or no JobManager any more.
            GateTypeError: the gate has another type now.
        """
        if self._look_up is not None and self.description.expires_ms - time.time_ns() // 1_000_000 < _MIN_VALID_MS:
            before = self.description
            self.description = self._look_up().description
            if self.description.fingerprint != before.fingerprint:
                raise GateTypeError(
                    f"{self.description} takes {self.description.type_name} now, not {before.type_name}: make a new "
                    "GateSink"
                )
        return self.__dict__ | {"_look_up": None}

    def __call__(self, rows: Any) -> None:
        """Push one partition; called by Spark.

        Raises:
            TypeError: this may be a record: Spark's ``foreach`` calls with each, and its fields would be taken for
                records.
            GateError: the gate, its job or the connection was lost, or the attempt was refused; names the gate.
            SchemaMismatchError: a row does not fit; names the column.
        """
        if not isinstance(rows, Iterable) or isinstance(rows, _RECORDS):
            raise TypeError(
                f"a GateSink takes an iterator over the rows of a partition, got {preview(rows)}; foreach() calls it "
                "with each row: use "
                'foreachPartition(sink) for a batch, and writeStream.format("flowlet") or foreachBatch for a stream; '
                "of a list of rows, "
                "pass iter(rows)"
            )
        remaining = iter(rows)
        converter = RowConverter(self._schema, clock_is_utc=clock_is_utc())
        client = GateClient(self.description, **asdict(self._limits))
        with client.open_partition(offer_of_this_task(self._write_id, per_stage=True)) as writer, collecting_rarely():
            while not writer.is_counted and (chunk := list(islice(remaining, self._chunk_rows))):
                push(writer, converter.convert(chunk))
            writer.finish()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Inside the block the garbage collector runs as rarely as in a TaskManager; unchanged if it is off or runs more
    rarely already.
    """
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
    """Write columns, a batch or a list of records."""
    match payload:
        case list():
            writer.write_records(payload)
        case Columns():
            writer.write_columns(payload)
        case _:
            writer.write_batch(payload)


def clock_is_utc() -> bool:
    """Whether the local time of this process is UTC, in winter and in summer."""
    return time.timezone == 0 and not time.daylight
