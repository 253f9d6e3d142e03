"""The data source ``flowlet``: ``df.write.format("flowlet")`` and ``df.writeStream.format("flowlet")``.

Side:       task.  Runs in three kinds of processes, none of them the user's program: the planner (``writer``, ``streamWriter``), Spark's
            workers (``write``), and one on the driver's machine (``commit``, ``abort``).
Invariants: ``write`` returns when the gate's job has processed the partition's last row.  A pickled writer can open one gate only.
Promises:   at least once; docs/remote-gates.md, "Spark".  Each partition's message for ``commit`` names job, epoch, partition, attempt and
            nonce, so that exactly-once commits will need no other protocol.
Source:     ``pyspark.sql.datasource``.
Absent:     reading; commits (records that were pushed stay processed).
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
from flowlet.ingest.description import GateDescription
from flowlet.ingest.producer import DEFAULT_TIMEOUT_S, GateClient, open_gate
from flowlet.spark.attempt import offer_of_this_task
from flowlet.spark.gate_schema import GateSchema
from flowlet.spark.gate_sink import push
from flowlet.spark.rows import BatchConverter

NAME: Final = "flowlet"
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
class GateTarget:
    """A gate and the columns to push into it; checked in the planner, used in the workers."""

    description: GateDescription
    columns: st.StructType
    timeout_s: float
    write_id: str = field(default_factory=lambda: f"spark-{uuid.uuid4().hex}")

    @classmethod
    def of_options(cls, options: Mapping[str, str], columns: st.StructType) -> "GateTarget":
        """Look up the gate, and compare its columns with the DataFrame's.

        Raises:
            ConfigError: an option is missing or wrong.
            GateError: there is no such gate or no JobManager, or the secret is wrong.
            SchemaMismatchError: a column does not fit; names it.
        """
        gate, jobmanager = _needed(options, "gate"), _needed(options, "jobmanager")
        timeout_s = _seconds(options.get("timeoutSeconds"))
        client = open_gate(gate, jobmanager=jobmanager, timeout_s=timeout_s, secret_file=options.get("secretFile"))
        target = cls(client.description, columns, timeout_s)
        target.converter()
        return target

    def converter(self) -> BatchConverter:
        """A converter from Spark's batches to the gate's records."""
        return BatchConverter(GateSchema.of(self.description.name, self.description.type_info), self.columns)

    def push_partition(self, batches: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push the partition of the current Spark task; an empty partition counts, too."""
        converter = self.converter()
        offer = offer_of_this_task(self.write_id)
        num_rows = 0
        with GateClient(self.description, timeout_s=self.timeout_s).open_partition(offer) as writer:
            for batch in batches:
                num_rows += batch.num_rows
                for start in range(0, batch.num_rows, _MAX_ROWS):
                    push(writer, converter.convert(batch.slice(start, _MAX_ROWS)))
            writer.finish()
        return PartitionPushed(offer.job, offer.epoch, offer.partition, offer.attempt, offer.nonce.hex, num_rows)


class FlowletWriter(DataSourceArrowWriter):
    """The writer of a batch; pickled for the workers and the committing process."""

    def __init__(self, target: GateTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition; called in a worker."""
        return self._target.push_partition(iterator)


class FlowletStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one epoch of a streaming query."""

    def __init__(self, target: GateTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionPushed:
        """Push one partition of one epoch; called in a worker."""
        return self._target.push_partition(iterator)


class FlowletDataSource(DataSource):
    """``format("flowlet")``.

    Options: ``gate`` and ``jobmanager`` (host:port); ``secretFile`` (default: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``);
    ``timeoutSeconds`` (5).
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return NAME

    def writer(self, schema: st.StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - PySpark's signature
        """Check the gate and the columns before any task runs.

        Raises:
            ConfigError, GateError, SchemaMismatchError: as ``GateTarget.of_options``.
        """
        _refuse_overwrite(overwrite=overwrite)
        return FlowletWriter(GateTarget.of_options(self.options, schema))

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - as above
        """As ``writer``, for every epoch."""
        _refuse_overwrite(overwrite=overwrite)
        return FlowletStreamWriter(GateTarget.of_options(self.options, schema))


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('records in a gate cannot be overwritten: use mode("append")')


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
