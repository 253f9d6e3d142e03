"""The data source ``flowlet``: ``df.write.format("flowlet")`` and ``df.writeStream.format("flowlet")``; ``register``
makes it known to the calling thread's Spark session.

Side:       shared.
Invariants: ``write`` returns when the gate's job has processed the partition's last row, or a checkpoint of it holds
            the partition.  A pickled writer can open one gate only.  Partitions count for a gate with ``producers``
            when Spark commits their write; ``commit`` fails if the gate's job has failed.
Promises:   docs/remote-gates.md, "Spark": exactly once if the gate's job takes checkpoints and attempts of a task have
            the same rows, else at least once.
Source:     ``pyspark.sql.datasource``.
Absent:     reading; undoing (records of an aborted write stay processed).
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from flowlet.errors import ConfigError, FlowletError
from flowlet.ingest.description import GateDescription, GateError
from flowlet.ingest.partition_writer import DEFAULT_LIMITS, PushLimits
from flowlet.ingest.producer import GateClient, open_gate
from flowlet.spark.gate_schema import GateSchema
from flowlet.spark.gate_sink import offer_of_this_task, push
from flowlet.spark.rows import BatchConverter
from netstack.late import dataclass
from netstack.log_lines import LogLines

NAME: Final = "flowlet"
_log = LogLines(__name__)
# Larger batches are sent in parts of so many rows, because each part is one stream element.
_MAX_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class PartitionPushed(WriterCommitMessage):
    """The gate's job has processed one partition."""

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
        """Tell the JobManager that the write has failed, or could not be committed; without it, the write is not
        committed, which is as good.
        """
        try:
            self.client().abort_write(self.write_id, epoch)
        except GateError as error:
            _log.warning("the JobManager was not told of a failed write", gate=str(self.description), error=str(error))


class FlowletStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one epoch of a streaming query; ``look_up`` gives the target of the write with an id, or of a new
    one for None.
    """

    def __init__(self, look_up: Callable[[str | None], FlowletWriter], target: FlowletWriter | None) -> None:
        self._look_up = look_up
        # None in the committing process, which learns from the messages of the tasks what they wrote.
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        return {"_look_up": None, "_target": self._target}  # workers need no way to the secret

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition of one epoch; called in a worker."""
        assert self._target is not None, "planned"
        return self._target.write(iterator, has_epochs=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's signature
        """The epoch is complete: every task has succeeded.  Raises GateError: as ``GateClient.commit``."""
        write_id = _write_id_of(messages)
        if write_id is not None:  # else the epoch has no partition that could count
            self._look_up(write_id).commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """The epoch has failed, or could not be committed.

        Never raises: Spark would report that instead of the cause.
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
    """The write that the tasks of an epoch have pushed into; None: no task has."""
    return next((message.job for message in messages if isinstance(message, PartitionPushed)), None)


class FlowletDataSource(DataSource):
    """``format("flowlet")``.

    Options: ``gate`` and ``jobmanager`` (host:port); ``secretFile`` (default: ``$FLOWLET_SECRET_FILE``, else
             ``~/.flowlet/secret``);
    ``timeoutSeconds`` (5); ``waitForGate`` (0): so many seconds for the gate's job to appear; ``waitForRoom`` (300): so
    many seconds for a place among the gate's producers; ``resumeTimeout`` (120): so many seconds for a gate that was
    lost to come back, and ``maxKeptBytes`` (33554432): so much of a partition may wait for a checkpoint, both if the
    gate's job takes some.
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
        """Check the gate and the columns of an epoch, as ``writer``; where the epoch ends, the gate is looked up when
        it is needed.
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
    active session: the thread that made the session has it, a thread of a pool has none.  Call this in each of them,
    for example as the initializer of a ``ThreadPoolExecutor``.  The main thread needs it only where ``pyspark_flowlet``
    is not on the path of Spark's Python.
    """
    spark.dataSource.register(FlowletDataSource)
    spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]  # PySpark has no public call
