"""The data source ``flowlet``: ``df.write.format("flowlet")`` and ``df.writeStream.format("flowlet")``.

Side:       task.  Three processes: the planner's (``writer``, ``streamWriter``), Spark's workers (``write``), and one on the driver's
            machine (``commit``, ``abort``).  None of them is the user's program.
Invariants: ``write`` returns when the gate's job has processed the partition's last row.  What a writer is pickled with opens one gate.
Promises:   at least once; docs/remote-gates.md, "Spark".  The message that each partition gives to ``commit`` names job, epoch, partition,
            attempt and nonce: commits of exactly those will need no other protocol.
Source:     ``pyspark.sql.datasource``.
Absent:     reading, and commits: what was pushed is there.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from flowlet.errors import ConfigError
from flowlet.ingest.producer import DEFAULT_TIMEOUT_S, GateClient, GateDescription, open_gate
from flowlet.spark.attempt import Attempt, attempt_of_this_task
from flowlet.spark.gate_schema import GateSchema
from flowlet.spark.gate_sink import push
from flowlet.spark.rows import BatchConverter

NAME: Final = "flowlet"
# Above this a batch goes in parts: each part is one element of the stream.
_MAX_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class PartitionPushed(WriterCommitMessage):
    """One partition was processed by the gate's job."""

    job: str
    epoch: int
    partition: int
    attempt: int
    nonce: str
    num_rows: int


@dataclass(frozen=True)
class GateTarget:
    """A gate, and the columns that are pushed into it; checked in the planner, used in the workers."""

    description: GateDescription
    columns: st.StructType
    timeout_s: float
    write_id: str = field(default_factory=lambda: f"spark-{uuid.uuid4().hex}")

    @classmethod
    def of_options(cls, options: Mapping[str, str], columns: st.StructType) -> "GateTarget":
        """Ask the JobManager, and compare the columns with the gate's.

        Raises:
            ConfigError: an option is missing or wrong.
            GateError: there is no such gate, no JobManager, or the secret is another one.
            SchemaMismatchError: a column does not fit; names it.
        """
        gate, jobmanager = _needed(options, "gate"), _needed(options, "jobmanager")
        timeout_s = _seconds(options.get("timeoutSeconds"))
        client = open_gate(gate, jobmanager=jobmanager, timeout_s=timeout_s, secret_file=options.get("secretFile"))
        target = cls(client.description, columns, timeout_s)
        target.converter()
        return target

    def converter(self) -> BatchConverter:
        """From Spark's batches to the gate's records."""
        return BatchConverter(GateSchema.of(self.description.name, self.description.type_info), self.columns)

    def push_partition(self, batches: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push what the Spark task that runs this has; an empty partition counts as well."""
        converter = self.converter()
        attempt: Attempt = attempt_of_this_task(self.write_id)
        offer = attempt.offer()
        num_rows = 0
        with GateClient(self.description, timeout_s=self.timeout_s).open_partition(offer) as writer:
            for batch in batches:
                num_rows += batch.num_rows
                for start in range(0, batch.num_rows, _MAX_ROWS):
                    push(writer, converter.convert(batch.slice(start, _MAX_ROWS)))
            writer.finish()
        return PartitionPushed(offer.job, offer.epoch, offer.partition, offer.attempt, offer.nonce.hex, num_rows)


class FlowletWriter(DataSourceArrowWriter):
    """Of one batch write; pickled to the workers, and to the process that commits."""

    def __init__(self, target: GateTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition; in a worker."""
        return self._target.push_partition(iterator)


class FlowletStreamWriter(DataSourceStreamArrowWriter):
    """Of one epoch of a streaming query."""

    def __init__(self, target: GateTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition of one epoch; in a worker."""
        return self._target.push_partition(iterator)


class FlowletDataSource(DataSource):
    """``format("flowlet")``.

    Options: ``gate`` and ``jobmanager`` (host:port); ``secretFile`` (default: as everywhere) and ``timeoutSeconds`` (5).
    """

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return NAME

    def writer(self, schema: st.StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - PySpark's signature
        """Checks gate and columns before any task runs.

        Raises:
            ConfigError, GateError, SchemaMismatchError: see ``GateTarget.of_options``.
        """
        _refuse_overwrite(overwrite=overwrite)
        return FlowletWriter(GateTarget.of_options(self.options, schema))

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - as above
        """As ``writer``, for every epoch."""
        _refuse_overwrite(overwrite=overwrite)
        return FlowletStreamWriter(GateTarget.of_options(self.options, schema))


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('what a gate took cannot be overwritten: use mode("append")')


def _needed(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(f'format("flowlet") needs option("{name}", ...): gate is the name in from_remote_gate, jobmanager is host:port')
    return str(value)


def _seconds(text: str | None) -> float:
    try:
        value = DEFAULT_TIMEOUT_S if text is None else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"option timeoutSeconds is {text!r}; it must be a number of seconds above 0")
    return value
