"""``RunningFileSink``: what runs a ``FileSink`` in a task.

Side:   task.
Source: Flink ``FileSink``, its side of the tasks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO

from flowlet.common.serialization import Encoder, LineEncoder
from flowlet.common.typeinfo import TypeInformation
from flowlet.connectors.files.file_sink_committer import FileSinkCommitter
from flowlet.connectors.files.file_sink_writer import FileSinkWriter, MakeFormat
from flowlet.connectors.files.format_writers import CsvWriter, EncodedWriter, FormatWriter
from flowlet.connectors.files.part_files import Attempt
from flowlet.datastream.connectors.base import Sink, SupportsCommitter, SupportsWriterState
from flowlet.datastream.connectors.committer import Committer
from flowlet.datastream.connectors.file_sink import FileSink
from flowlet.datastream.connectors.sink_writer import WriterInitContext
from flowlet.datastream.formats.csv import CsvWriterFactory
from flowlet.datastream.formats.parquet import ParquetWriterFactory
from flowlet.errors import FlowletError
from flowlet.sinks.sink_contexts import InitContext
from flowlet.typed.java_text import written_text


class RunningFileSink(Sink, SupportsCommitter, SupportsWriterState):
    """Makes the writers and committers of a file sink.

    Args:
        sink: what the user has built.
        type_info: the declared type of its records; None: there is none.
    """

    def __init__(self, sink: FileSink, type_info: TypeInformation | None = None) -> None:
        self._sink = sink
        self._type_info = type_info

    def create_writer(self, context: WriterInitContext) -> FileSinkWriter:
        """The writer of a subtask."""
        return self.restore_writer(context, [])

    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[Any]) -> FileSinkWriter:
        """The writer of a subtask that goes on from a checkpoint."""
        assert isinstance(context, InitContext), "made by our operator"
        attempt = Attempt.of(
            context.get_job_id(),
            context.operator_id,
            context.get_index_of_this_subtask(),
            context.get_restored_checkpoint_id(),
            context.get_attempt_number(),
        )
        return FileSinkWriter(self._sink, self._make_format(), attempt, context.clock, recovered_state)

    def create_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The committer of a subtask."""
        return FileSinkCommitter()

    def _make_format(self) -> MakeFormat:
        match self._sink.format:
            case LineEncoder() as encoder:
                return partial(EncodedWriter, encoder.with_text(written_text(self._type_info)))
            case Encoder() as encoder:
                return partial(EncodedWriter, encoder)
            case CsvWriterFactory(schema=schema):
                return partial(CsvWriter, schema)
            case ParquetWriterFactory() as factory:
                return partial(_parquet_writer, factory)
            case other:
                raise FlowletError(
                    f"a file sink cannot write with a {type(other).__name__}; use ParquetBulkWriters or CsvBulkWriters"
                )


def _parquet_writer(factory: ParquetWriterFactory, file: BinaryIO) -> FormatWriter:
    # With it comes pyarrow, which most jobs do without.
    from flowlet.connectors.files.parquet_format import ParquetFormatWriter

    return ParquetFormatWriter(factory, file)
