"""Operators on record batches: a function of batches, records into columns, columns into records; and sources of
batches.

Hot path, per chunk.

Side:   task.
Rules:  a batch that a function gives with as many rows as it got keeps their timestamps; the rows of any other batch
        get the largest timestamp that went in, so that none is late because of the function.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.columns import Columns, Shape
from flowlet.columns.arrow_batches import batch_of_records, columns_of_batch
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.source_operator import ShareReader, ShareSource
from flowlet.operators.source_reader import Source, SourceReaderBase
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview

# 16,384-65,536 rows per chunk: 48 -> 64 M rows/s (hot-path measurements, 2); a keyed edge splits it.
MAX_CHUNK_ROWS: Final = 65_536


class ToColumnsOperator(UserFunctionOperator):
    """Records as rows of a schema.

    Args:
        schema: a ``pyarrow.Schema``.
        name: for people.
    """

    takes_chunks = True

    def __init__(self, schema: Any, *, name: str = "To Arrow") -> None:
        super().__init__(name)
        self._schema = schema

    def process_chunk(self, chunk: Chunk) -> None:
        """Emit the records as columns of the schema's types."""
        if len(chunk):
            self.output.collect(Chunk.of_columns(self._columns(chunk), chunk.timestamp_array))

    def _columns(self, chunk: Chunk) -> Columns:
        return columns_of_batch(self._batch(chunk))

    def _batch(self, chunk: Chunk) -> Any:
        try:
            return batch_of_records(chunk.values if chunk.columns is None else chunk.columns, self._schema)
        except TypeError as error:
            # Only now one by one: the error of the whole chunk does not tell which record it is about.
            failed, cause = self._first_failure(chunk.values, error)
            raise UserFunctionError(self.name, self.ctx.subtask, preview(failed)) from cause

    def _first_failure(self, values: list[Any], error: TypeError) -> tuple[Any, TypeError]:
        for value in values:
            try:
                batch_of_records([value], self._schema)
            except TypeError as its_error:
                return value, its_error
        # Each record fits alone, and they do not fit together: the first one stands for all.
        return values[0], error


class MapBatchesOperator(ToColumnsOperator):
    """Calls a function with each record batch, and emits the batches that it gives.

    Args:
        function: of a ``pyarrow.RecordBatch``; gives one, or an iterable of some.
        schema: of the batches that go in.
        output_schema: of the batches that the function gives.
        name: for people.
    """

    takes_batches = True

    def __init__(
        self, function: Callable[[Any], Any], schema: Any, output_schema: Any, *, name: str = "Map Batches"
    ) -> None:
        super().__init__(schema, name=name)
        self._function = self._add(function, "map_batch")
        self._output_schema = output_schema

    def process_chunk(self, chunk: Chunk) -> None:
        """Call the function once, with the whole chunk."""
        if not len(chunk):
            return
        timestamps = chunk.timestamp_array
        for result in self._results(self._batch(chunk)):
            times = timestamps
            if times is not None and len(times) != result.num_rows:
                times = np.full(result.num_rows, times.max())
            for part in chunks_of(result, times):
                self.output.collect(part)

    def _results(self, batch: Any) -> Iterator[Any]:
        """The batches that the function gives, checked.  An error behind this operator is not raised in here, so the
        function is not blamed for it.
        """
        try:
            results = self._function.call(batch)
            for result in _several(results):
                yield self._checked(result, results)
        except FlowletError:
            raise
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {batch.num_rows} rows") from error

    def _checked(self, result: Any, results: Any) -> Any:
        if not isinstance(result, pa.RecordBatch | pa.Table):
            whole = "" if results is result else f" in a {type(results).__name__}"
            raise TypeError(
                "map_batches() needs a function that returns record batches, it returned a "
                f"{type(result).__name__}{whole}"
            )
        return _of_schema(result, self._output_schema, "map_batches()", "got")


class SelectColumnsOperator(ToColumnsOperator):
    """Some of the columns of a schema.

    Args:
        positions: of the columns, in the order in which they come out.
        schema: of the batches that go in.
        name: for people.
    """

    def __init__(self, positions: tuple[int, ...], schema: Any, *, name: str = "Select") -> None:
        super().__init__(schema, name=name)
        self._positions = positions
        self._names = tuple(schema.names[position] for position in positions)

    def process_chunk(self, chunk: Chunk) -> None:
        """Drop the other columns."""
        if len(chunk):
            columns = self._columns(chunk) if chunk.columns is None else chunk.columns
            fields = tuple([columns.fields[position] for position in self._positions])
            self.output.collect(
                Chunk.of_columns(Columns(len(chunk), fields, Shape.ROW, self._names), chunk.timestamp_array)
            )


class ToRecordsOperator(UserFunctionOperator):
    """Each row as a ``Row``."""

    takes_chunks = True

    def __init__(self, *, name: str = "To Records") -> None:
        super().__init__(name)

    def process_chunk(self, chunk: Chunk) -> None:
        """Make the rows."""
        if len(chunk):
            values = chunk.values if chunk.columns is None else chunk.columns.to_list()
            self.output.collect(Chunk(values, chunk.timestamps))


class ArrowTableSource(ShareSource):
    """The rows of a ``pyarrow.Table``, which travels with the job."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def create_reader(self, subtask: int, parallelism: int) -> ShareReader:
        """A reader of one run."""
        return ShareReader(self._table.num_rows, (subtask, parallelism), self._chunk_of, MAX_CHUNK_ROWS)

    def _chunk_of(self, rows: range) -> Chunk:
        # A slice may lie across several chunks of the table; combined, it is one batch.
        (batch,) = self._table.slice(rows.start, len(rows)).combine_chunks().to_batches()
        return Chunk.of_columns(columns_of_batch(batch))


class ArrowSource(Source):
    """The record batches that a user's function gives for each subtask.

    Positions cannot be dealt out to other subtasks: only the function knows which rows a reader has.

    Args:
        batches: a function of subtask and parallelism that gives an iterable of record batches, one, or None.
        schema: of all of them.
    """

    def __init__(self, batches: Any, schema: Any) -> None:
        self._batches = batches
        self._schema = schema

    def create_reader(self, subtask: int, parallelism: int) -> "ArrowReader":
        """A reader of the batches that the function gives for the subtask."""
        return ArrowReader(_several(self._batches(subtask, parallelism)), self._schema)


class ArrowReader(SourceReaderBase):
    """Reads record batches one after the other; its position is the number of rows that it gave.

    After a restart the function must give its rows again, in batches of any size; those before the position are
    dropped.
    """

    def __init__(self, batches: Iterable[Any], schema: Any) -> None:
        self._schema = schema
        self._parts = (part for batch in batches for part in _slices(self._checked(batch)))
        self._num_rows = 0
        self._num_to_drop = 0  # rows that were given before a restart

    def poll_chunk(self) -> Chunk | None:
        """The next rows; None at the end.  Raises FlowletError: there are fewer than before the restart."""
        for part in self._parts:
            num_dropped = min(self._num_to_drop, part.num_rows)
            self._num_to_drop -= num_dropped
            if num_dropped < part.num_rows:
                self._num_rows += part.num_rows - num_dropped
                return Chunk.of_columns(columns_of_batch(part.slice(num_dropped) if num_dropped else part))
        if self._num_to_drop:
            raise FlowletError(
                f"from_arrow(): after the restart its function gave {self._num_to_drop} rows less than before"
            )
        return None

    def snapshot_position(self) -> int:
        """How many rows have been read."""
        return self._num_rows

    def restore_position(self, position: int) -> None:
        """Drop the first ``position`` rows."""
        # Both at once: a snapshot before the rows are read again and dropped must have the whole position.
        self._num_rows = self._num_to_drop = position

    def close(self) -> None:
        """Let the batches go."""
        self._parts = iter(())  # type: ignore[assignment]  # an iterator that is at its end, too

    def _checked(self, batch: Any) -> Any:
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise TypeError(f"from_arrow() needs record batches, its function gave a {type(batch).__name__}")
        return _of_schema(batch, self._schema, "from_arrow()", "its function gave")


def chunks_of(batch: Any, timestamps: "np.ndarray[Any, np.dtype[np.int64]] | None") -> Iterator[Chunk]:
    """The rows of a record batch or table, with their timestamps, in chunks of a usual size."""
    start = 0
    for part in _slices(batch):
        times = None if timestamps is None else timestamps[start : start + part.num_rows]
        yield Chunk.of_columns(columns_of_batch(part), times)
        start += part.num_rows


def _slices(batch: Any) -> Iterator[Any]:
    """The rows of a batch or table in record batches of at most ``MAX_CHUNK_ROWS``; none for no rows."""
    batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
    for each in batches:
        for start in range(0, each.num_rows, MAX_CHUNK_ROWS):
            yield each.slice(start, MAX_CHUNK_ROWS)


def _several(results: Any) -> Iterable[Any]:
    if results is None:
        return ()
    is_one = isinstance(results, pa.RecordBatch | pa.Table) or not isinstance(results, Iterable)
    return (results,) if is_one else results


def _of_schema(batch: Any, schema: Any, step: str, got: str) -> Any:
    """The batch.  Raises TypeError: it has another schema; the error names both."""
    if not batch.schema.equals(schema):
        raise TypeError(f"{step} declares batches of ({_described(schema)}), {got} ({_described(batch.schema)})")
    return batch


def _described(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
