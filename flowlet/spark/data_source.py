"""Pushes from Spark into a gate: by the data source ``flowlet`` (``df.write.format("flowlet")`` and
``df.writeStream.format("flowlet")``; ``register`` makes it known to the calling thread's Spark session), or by
``GateSink``, called by ``foreachPartition``.  Both identify a Spark task to the gate.

Side:       shared.
Invariants: a call returns when the gate's job has processed the partition's last row, or a checkpoint of it holds the
            partition; otherwise it raises, and Spark tries again.  While the gate grants no credit the call waits with
            one chunk of rows, and, if the gate's job takes checkpoints, with the rows that none holds; the other rows
            stay in Spark.  Each attempt has its own combination of job, epoch, partition and attempt: retries,
            speculative copies, repeated stages, and epochs that are replayed after a restart all differ.  Each write
            has its own job and epoch: a partition that is counted is not sent again.  A pickled writer can open one
            gate only.  Partitions count for a gate with ``producers`` when Spark commits their write; ``commit`` fails
            if the gate's job has failed.
Rules:      Spark's ``taskAttemptId`` is unique only within one SparkContext, so the job's name has a part that differs
            from run to run.
Source:     ``pyspark.TaskContext``, ``pyspark.sql.datasource``.  The property of a streaming query is internal to
            Spark; the tests of ``foreachBatch`` and ``writeStream`` check that it is still there.
Hot path:   rows of a chunk are new objects, for which the garbage collector by default runs every 700 and finds
            nothing: 5.6 us per row of Spark and Python together, 2.4 us with a collector that runs rarely.
Promises:   docs/remote-gates.md, "Spark": exactly once if the gate's job takes checkpoints and all attempts of a task
            have equal rows, else at least once.
Absent:     reading; undoing (records of an aborted write stay processed).
"""

import gc
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from flowlet.columns import Columns
from flowlet.errors import ConfigError, FlowletError
from flowlet.ingest.description import GateDescription, GateError, GateTypeError, PartitionOffer
from flowlet.ingest.partition_writer import DEFAULT_LIMITS, PartitionWriter, PushLimits
from flowlet.ingest.producer import GateClient, open_gate
from flowlet.serde.type_serializer import preview
from flowlet.spark.gate_schema import BatchConverter, GateSchema, RowConverter
from netstack.late import dataclass
from netstack.log_lines import LogLines

_BATCH_ID: Final = "streaming.sql.batchId"
_MAX_ATTEMPT: Final = 2**31


def offer_of_this_task(write_id: str, *, per_stage: bool) -> PartitionOffer:
    """The offer of the current Spark task, with a new nonce; the epoch is the batch of a streaming query, else 0.

    ``per_stage``: each stage is a write of its own, because several stages use one ``write_id``.
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
        """The state for Spark's workers, with a token that is valid for 12 hours at least.

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
            TypeError: the argument may be a record, which Spark's ``foreach`` passes: its fields would be taken for
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
    """Let the garbage collector run as rarely as in a TaskManager inside the block.

    Unchanged if it is off or runs more rarely already.
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


NAME: Final = "flowlet"
_log = LogLines(__name__)
# Larger batches are sent in parts of so many rows, because each part is one stream element.
_MAX_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class PartitionPushed(WriterCommitMessage):
    """The message of a task that has pushed its partition, which the gate's job has processed."""

    job: str
    epoch: int
    partition: int
    attempt: int
    nonce: str
    num_rows: int


@dataclass(frozen=True)
class FlowletWriter(DataSourceArrowWriter):
    """The writer of a batch: a gate and the columns to push into it; checked in the planner, pickled for the workers
    and the committing process.
    """

    description: GateDescription
    columns: st.StructType
    limits: PushLimits
    write_id: str

    @classmethod
    def of_options(
        cls, options: Mapping[str, str], columns: st.StructType, *, write_id: str | None = None
    ) -> "FlowletWriter":
        """Look up the gate, and compare its columns with the DataFrame's.

        ``write_id``: of a write that was announced before; None: a new one, which is announced.

        Raises:
            ConfigError: an option is missing or wrong.
            GateError: there is no such gate or no JobManager, or the secret is wrong.
            SchemaMismatchError: a column does not fit; names it.
        """
        gate = _needed(options, "gate")
        jobmanager = _needed(options, "jobmanager")
        timeout_s = _seconds(options, "timeoutSeconds", DEFAULT_LIMITS.timeout_s)
        announced = None if write_id is not None else f"spark-{uuid.uuid4().hex}"
        client = open_gate(
            gate,
            jobmanager=jobmanager,
            timeout_s=timeout_s,
            secret_file=options.get("secretFile"),
            wait_for_gate_s=_seconds(options, "waitForGate", 0.0),
            committed_job=announced,
        )
        limits = PushLimits(
            timeout_s,
            _seconds(options, "waitForRoom", DEFAULT_LIMITS.wait_for_room_s),
            _seconds(options, "resumeTimeout", DEFAULT_LIMITS.resume_timeout_s),
            int(_seconds(options, "maxKeptBytes", DEFAULT_LIMITS.max_kept_bytes, "bytes")),
        )
        writer = cls(client.description, columns, limits, write_id or announced or "")
        writer.converter()
        return writer

    def client(self) -> GateClient:
        """The gate, for a process that was sent this writer."""
        return GateClient(self.description, **asdict(self.limits))

    def converter(self) -> BatchConverter:
        """A converter from Spark's batches to the gate's records."""
        return BatchConverter(GateSchema.of(self.description.name, self.description.type_info), self.columns)

    def write(self, iterator: Iterator[pa.RecordBatch], *, has_epochs: bool = False) -> PartitionPushed:
        """Push the partition of the current Spark task; an empty partition counts, too.  Called in a worker."""
        converter = self.converter()
        offer = offer_of_this_task(self.write_id, per_stage=False)
        if not has_epochs:  # a batch that is written inside foreachBatch is committed without one
            offer = replace(offer, epoch=0)
        num_rows = 0
        with self.client().open_partition(offer) as writer:
            for batch in iterator:
                num_rows += batch.num_rows
                for start in range(0, 0 if writer.is_counted else batch.num_rows, _MAX_ROWS):
                    push(writer, converter.convert(batch.slice(start, _MAX_ROWS)))
            writer.finish()
        offer = writer.offer
        return PartitionPushed(offer.job, offer.epoch, offer.partition, offer.attempt, offer.nonce.hex, num_rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int = 0) -> None:
        """Tell the JobManager that the write is complete: every task has succeeded.

        Raises GateError: as ``GateClient.commit``.
        """
        self.client().commit(self.write_id, len(messages), epoch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], epoch: int = 0) -> None:
        """Tell the JobManager that the write has failed, or could not be committed.

        A failure is only logged: a write that is never committed does not count, either.
        """
        try:
            self.client().abort_write(self.write_id, epoch)
        except GateError as error:
            _log.warning("the JobManager was not told of a failed write", gate=str(self.description), error=str(error))


class FlowletStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one epoch of a streaming query.

    ``look_up``: gives the target of the write with this id, or of a new write for None.
    """

    def __init__(self, look_up: Callable[[str | None], FlowletWriter], target: FlowletWriter | None) -> None:
        self._look_up = look_up
        # None in the committing process, which finds the write in the messages of the tasks.
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        return {"_look_up": None, "_target": self._target}  # workers need no way to the secret

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition of one epoch; called in a worker."""
        assert self._target is not None, "planned"
        return self._target.write(iterator, has_epochs=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's signature
        """Commit an epoch, of which every task has succeeded.  Raises GateError: as ``GateClient.commit``."""
        write_id = _write_id_of(messages)
        if write_id is not None:  # else the epoch has no partition that could count
            self._look_up(write_id).commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Abort an epoch that has failed, or could not be committed.

        Never raises: Spark would report that error instead of the cause.
        """
        write_id = _write_id_of(messages)
        if write_id is None:
            return  # no task has pushed its partition, so there is nothing to take back
        try:
            target = self._look_up(write_id)
        except FlowletError as error:
            _log.warning("the JobManager was not told of a failed epoch", epoch=batchId, error=str(error))
            return
        target.abort(messages, batchId)


def _write_id_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The id of the write that the tasks of an epoch have pushed into; None: no task has."""
    return next((message.job for message in messages if isinstance(message, PartitionPushed)), None)


class FlowletDataSource(DataSource):
    """The data source of ``format("flowlet")``.

    Options, with their defaults: ``gate`` and ``jobmanager`` (host:port); ``secretFile`` (``$FLOWLET_SECRET_FILE``,
    else ``~/.flowlet/secret``); ``timeoutSeconds`` (60), for each answer; ``waitForGate`` (0): so many seconds for the
    gate's job to appear; ``waitForRoom`` (300): so many seconds for a place among the gate's producers;
    ``resumeTimeout`` (120): so many seconds for a gate that was lost to come back; ``maxKeptBytes`` (33554432): so much
    of a partition may wait for a checkpoint.  The last two matter only if the gate's job takes checkpoints.
    """

    _was_sent = False  # whether this is the copy of the process that commits a stream; the planner makes its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._was_sent = True

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return NAME

    def writer(self, schema: st.StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - PySpark's signature
        """Check the gate and the columns before any task runs.

        Raises:
            ConfigError, GateError, SchemaMismatchError: as ``FlowletWriter.of_options``.
        """
        _refuse_overwrite(overwrite=overwrite)
        return FlowletWriter.of_options(self.options, schema)

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - as above
        """Check the gate and the columns of an epoch, as ``writer`` does.

        The process that commits the epoch looks the gate up only when it needs it.
        """
        _refuse_overwrite(overwrite=overwrite)

        def look_up(write_id: str | None) -> FlowletWriter:
            return FlowletWriter.of_options(self.options, schema, write_id=write_id)

        return FlowletStreamWriter(look_up, None if self._was_sent else look_up(None))


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('records in a gate cannot be overwritten: use mode("append")')


def _needed(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(
            f'format("flowlet") needs option("{name}", ...): gate is the name in from_remote_gate, jobmanager is '
            "host:port"
        )
    return str(value)


def _seconds(options: Mapping[str, str], name: str, default: float, what: str = "seconds") -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"option {name} is {text!r}; it must be a number of {what} above 0")
    return value


def register(spark: SparkSession) -> None:
    """Let this thread use ``format("flowlet")`` with ``spark``.

    Spark finds the Python data sources of the session that is active in the calling thread, and each thread has its own
    active session: the thread that made the session has it, a thread of a pool has none.  Call this function in each
    thread of a pool, for example as the initializer of a ``ThreadPoolExecutor``.  The main thread needs it only where
    ``pyspark_flowlet`` is not on the path of Spark's Python.
    """
    spark.dataSource.register(FlowletDataSource)
    spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]  # PySpark has no public call
