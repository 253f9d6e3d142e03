"""Parts of windows of columns, made in the task that has the rows, so that few of them travel.

Hot path, per chunk.

Side:   task.
Rules:  nothing waits: the parts of a chunk go on at once, so there is no state, and a watermark passes behind them.
        Where most rows have a key and pane of their own, and in small batches, each row goes on as a part.
Source: the local half of Flink SQL's two-phase aggregation.
"""

from typing import Any, Final

from flowlet.errors import FlowletError, UserFunctionError
from flowlet.io.dictionary_bypass import DictionaryBypass
from flowlet.kernels.windows.column_inputs import ColumnInputs
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.local_windows import LocalParts, LocalWindows, PartsLayout
from flowlet.operators.record_batches import ToColumnsOperator
from flowlet.records import Chunk
from flowlet.windows.window_columns_operator import checked_timestamps

# Fewer rows in a part, on average, do not pay.
_ROWS_PER_PART: Final = 4
_MIN_ROWS: Final = 64  # of a batch that is looked at; not measured closely
_MIN_JUDGED_ROWS: Final = 1_024


class LocalWindowColumnsOperator(ToColumnsOperator):
    """Makes parts of rows.

    Args:
        aggregation: what is computed.
        schema: of the rows, a ``pyarrow.Schema``.
        layout: of the parts.
        name: for people.
    """

    def __init__(
        self, aggregation: WindowedAggregation, schema: Any, layout: PartsLayout, *, name: str = "Local Window"
    ) -> None:
        super().__init__(schema, name=name)
        self._aggregation = aggregation
        self._local = LocalWindows(aggregation, layout)
        self._bypass = DictionaryBypass()
        self._num_rows = self._num_parts = 0  # since the last judgement

    def __repr__(self) -> str:
        return f"<LocalWindowColumnsOperator {self.name!r} of {self._local!r}>"

    def process_chunk(self, chunk: Chunk) -> None:
        """Hand on the parts of the rows.

        Raises:
            UserFunctionError: the rows have no timestamps, or a value cannot be aggregated; names the column.
        """
        if not len(chunk):
            return
        columns = self._columns(chunk) if chunk.columns is None else chunk.columns
        try:
            parts = self._parts(ColumnInputs(columns, self._schema, checked_timestamps(chunk)))
        except (FlowletError, TypeError, OverflowError) as error:
            raise UserFunctionError(
                self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows {self._purpose}"
            ) from error
        self.output.collect(Chunk.of_columns(parts.columns, parts.timestamps))

    def _parts(self, inputs: ColumnInputs) -> LocalParts:
        if len(inputs) < _MIN_ROWS:
            return self._local.single(inputs)
        if self._bypass.is_taken():
            self._local.forget_keys()
            return self._local.single(inputs)
        try:
            parts = self._local.combined(inputs)
        except OverflowError:  # of a sum; it may be of rows that are too late
            parts = None
        self._num_rows += len(inputs)
        self._num_parts += len(inputs) if parts is None else len(parts.timestamps)
        if self._num_rows >= _MIN_JUDGED_ROWS:
            self._bypass.judge(self._num_rows, self._num_parts // _ROWS_PER_PART, is_full=False)
            self._num_rows = self._num_parts = 0
        return self._local.single(inputs) if parts is None else parts

    @property
    def _purpose(self) -> str:
        """For errors: nobody has named this operator, and there may be several."""
        aggregation = self._aggregation
        names = ", ".join([each.name for each in aggregation.aggregates])
        return f"for {names}" if aggregation.key is None else f"for {names} by {aggregation.key}"
