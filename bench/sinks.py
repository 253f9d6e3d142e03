"""The file sink beside a bare writer of each format.

Side:     any.
Sink:     the operator of ``FileSink`` in this process, with the harness of tests: chunks of 1,000 tuples of a number
          and a text, a checkpoint per 100 chunks, and the final one.  Files are fsynced.
Bare:     what a plain program would write: one call per chunk, one file, one fsync at the end.
Columns:  the chunks are columns, as behind an exchange; only for Parquet.
"""

import csv
import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bench.jobs.pipeline import Run
from bench.load import ForeignLoad
from bench.report import Result
from bench.rounds import Contender, compare
from flowlet.columns import Columns, ListColumn, Shape
from flowlet.common.serialization import Encoder
from flowlet.common.typeinfo import Types
from flowlet.connectors.files.parquet_writer import ROWS_PER_GROUP
from flowlet.connectors.files.sink import RunningFileSink
from flowlet.datastream.connectors.file_system import BucketAssigner, FileSink
from flowlet.datastream.formats.csv import CsvBulkWriters, CsvSchema
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.datastream.formats.parquet import ParquetBulkWriters
from flowlet.records import Chunk
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.input_harnesses import OneInputOperatorHarness

CHUNK: Final = 1_000
NUM_CHUNKS: Final = 500
QUICK_CHUNKS: Final = 20
CHUNKS_PER_CHECKPOINT: Final = 100
SCHEMA: Final = CsvSchema.builder().add_number_column("number").add_string_column("text").build()
ROW: Final = Types.ROW_NAMED(["number", "text"], [Types.LONG(), Types.STRING()])
ARROW: Final = pa.schema([("number", pa.int64()), ("text", pa.string())])
JSON: Final = msgspec.json.Encoder()
Pairs = list[tuple[int, str]]
BUILDERS: Final[dict[str, Callable[[str], Any]]] = {
    "text": lambda folder: FileSink.for_row_format(folder, Encoder.simple_string_encoder()),
    "json": lambda folder: FileSink.for_row_format(folder, JsonLinesEncoder()),
    "csv": lambda folder: FileSink.for_bulk_format(folder, CsvBulkWriters.for_schema(SCHEMA)),
    "parquet": lambda folder: FileSink.for_bulk_format(folder, ParquetBulkWriters.for_row_type(ROW)),
}


def run(num_runs: int, *, quick: bool = False) -> list[Result]:
    """Measure each format, as a sink and bare, in turns."""
    num_chunks = QUICK_CHUNKS if quick else NUM_CHUNKS
    pairs = [(number, f"text {number % 97}") for number in range(CHUNK)]
    results: list[Result] = []
    for name in BUILDERS:
        ours = [
            Contender(
                f"sink {name}", partial(measured, partial(write_sink, name, lambda: Chunk(list(pairs))), num_chunks)
            )
        ]
        if name == "parquet":
            columns = partial(columns_of, pairs)
            ours.append(
                Contender(
                    "sink parquet from columns", partial(measured, partial(write_sink, name, columns), num_chunks)
                )
            )
        bare = Contender(f"bare {name}", partial(measured, partial(write_bare, name, pairs), num_chunks), is_peer=True)
        results += compare([*ours, bare], num_runs, "records/s")
    return results


def columns_of(pairs: Pairs) -> Chunk:
    """Return the records by column."""
    numbers, texts = zip(*pairs, strict=True)
    return Chunk.of_columns(Columns(len(pairs), (ListColumn(list(numbers)), ListColumn(list(texts))), Shape.TUPLE))


def measured(write: Callable[[Path, int], None], num_chunks: int) -> Run:
    """Return the rate of one run into a new folder."""
    with tempfile.TemporaryDirectory() as folder, ForeignLoad() as load:
        start = time.perf_counter()
        write(Path(folder), num_chunks)
        seconds = time.perf_counter() - start
    return Run(num_chunks * CHUNK / seconds, seconds, load.cores)


def write_sink(name: str, make: Callable[[], Chunk], folder: Path, num_chunks: int) -> None:
    """Write with the operator, checkpoints included."""
    sink = BUILDERS[name](str(folder)).with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
    with OneInputOperatorHarness(SinkOperator(RunningFileSink(sink)), checks_leaks=False) as harness:
        operator = harness.operator
        for number in range(1, num_chunks + 1):
            operator.process_chunk(make())
            if number % CHUNKS_PER_CHECKPOINT == 0:
                harness.snapshot(number)
                harness.notify_checkpoint_complete(number)
        operator.finish()
        harness.snapshot(num_chunks + 1)
        harness.notify_checkpoint_complete(num_chunks + 1)


def write_bare(name: str, pairs: Pairs, folder: Path, num_chunks: int) -> None:
    """Write with the library alone."""
    with open(folder / "file", "wb") as file:
        if name == "parquet":
            _parquet(file, pairs, num_chunks)
        else:
            for _ in range(num_chunks):
                BARE[name](file, pairs)
        file.flush()
        os.fsync(file.fileno())


def _parquet(file: BinaryIO, pairs: Pairs, num_chunks: int) -> None:
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, ARROW) as writer:
        for number in range(1, num_chunks + 1):
            numbers, texts = zip(*pairs, strict=True)
            waiting.append(pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=ARROW))
            if len(waiting) * CHUNK >= ROWS_PER_GROUP or number == num_chunks:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting.clear()


def _text(file: BinaryIO, pairs: Sequence[Any]) -> None:
    file.write(("\n".join([str(each) for each in pairs]) + "\n").encode())


def _json(file: BinaryIO, pairs: Sequence[Any]) -> None:
    file.write(JSON.encode_lines(pairs))


def _csv(file: BinaryIO, pairs: Sequence[Any]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(pairs)
    file.write(text.getvalue().encode())


BARE: Final = {"text": _text, "json": _json, "csv": _csv}
