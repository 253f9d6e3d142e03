"""Joins of columns in a task: late rows, snapshots.

Hot path, per chunk and per watermark.

Side:       task.
Source:     Flink ``WindowOperator`` with a ``CoGroupFunction``.
Invariants: results of a watermark are emitted before it; in BATCH mode with the end of their keys.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from flowlet.chain.state_share import StateShare
from flowlet.columns import Columns
from flowlet.columns.arrow_batches import columns_of_batch, columns_of_records
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.kernels.windows.column_inputs import ColumnInputs
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, ColumnarJoin, ColumnJoin
from flowlet.operators.multiple_input_operator import TwoInputStreamOperator
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.windows.window_columns_operator import checked_timestamps
from flowlet.windows.window_columns_snapshot import WindowColumnsSnapshot, decoded, encoded, merged, of_key_groups


class JoinColumnsOperator(UserFunctionOperator, TwoInputStreamOperator):
    """Joins the rows of two inputs by key and window.

    Args:
        join: what is joined.
        name: for people.
    """

    ends_keys_singly: ClassVar[bool | None] = False

    def __init__(self, join: ColumnJoin, *, name: str = "Join") -> None:
        super().__init__(name)
        self._join = join
        self._rows = ColumnarJoin(join)

    @property
    def _description(self) -> str:
        """What a snapshot of the state belongs to."""
        join = self._join
        sides = [f"{join.kept_columns(side)} by {join.keys[side]!r}" for side in (LEFT, RIGHT)]
        return f"{join.kind} join of {' and '.join(sides)}, a {join.key_type}, in {join.windows}"

    def process_chunk1(self, chunk: Chunk) -> None:
        """Rows of the left side."""
        self._take(LEFT, chunk)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Rows of the right side."""
        self._take(RIGHT, chunk)

    def process_watermark(self, watermark: Watermark) -> None:
        """Emit the rows of the windows that end here, then the watermark."""
        self._fire(watermark.timestamp)
        super().process_watermark(watermark)

    def end_keys(self) -> None:
        """With sorted inputs: emit all rows of the keys so far, and forget them."""
        super().end_keys()
        self._fire(MAX_TIMESTAMP)
        self._rows = ColumnarJoin(self._join)  # for which no row is late

    def _fire(self, time_ms: int) -> None:
        for joined in self._rows.fire(time_ms):
            self.output.collect(Chunk.of_columns(columns_of_batch(joined.batch), joined.ends_ms - 1))

    def close(self) -> None:
        """Let the rows go."""
        self._rows = ColumnarJoin(self._join)
        super().close()

    def _take(self, side: int, chunk: Chunk) -> None:
        if not len(chunk):
            return
        schema = self._join.schemas[side]
        try:
            columns: Columns = columns_of_records(chunk.values, schema) if chunk.columns is None else chunk.columns
            num_late = self._rows.add(side, ColumnInputs(columns, schema, checked_timestamps(chunk)))
        except (FlowletError, TypeError) as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows") from error
        self.ctx.counters.num_late_records_dropped += num_late

    # -- checkpoints

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """Arrays that nobody changes; another thread makes bytes of them."""
        return partial(encoded, self._rows.state(), self._description)

    def initialize_state(self, state: object | None) -> None:
        """Go on from a snapshot.

        Raises:
            StateRestoreError: it is of another join.
        """
        if state is None:
            return
        assert isinstance(state, WindowColumnsSnapshot), f"a snapshot of {self.name!r} is a {type(state).__name__}"
        found = decoded(state, self._description, self.name)
        try:
            self._rows.load(found)
        except TypeError as error:
            raise StateRestoreError(f"operator {self.name!r}: {error}") from error

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The keys of this subtask's key groups."""
        parts = [each for each in states if isinstance(each, WindowColumnsSnapshot)]
        return merged([of_key_groups(each, share.key_groups, share.max_parallelism) for each in parts])
