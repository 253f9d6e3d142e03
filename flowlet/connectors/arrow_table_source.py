"""The rows of an Arrow table that travels with the job.

Side:       task.
Invariants: each row is given once; the rows that are left are the position, so they can be dealt out to any number of
            readers.
Absent:     dealing out what a function of the user gives (``ArrowSource``): only the function knows what its readers
            have.
"""

from collections.abc import Sequence
from typing import Any

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.operators.record_batches import MAX_CHUNK_ROWS
from flowlet.operators.source_operator import Source
from flowlet.records import Chunk
from flowlet.splits.known_splits import NumbersLeft, Runs, share_of_runs
from flowlet.state.state_snapshots import StateShare


class ArrowTableSource(Source):
    """The rows of a ``pyarrow.Table``; each subtask gets a run of about the same length."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def create_reader(self, subtask: int, parallelism: int) -> "ArrowTableReader":
        """A reader of one run."""
        return ArrowTableReader(self._table, share_of_runs([(0, self._table.num_rows)], subtask, parallelism))

    def redistribute_positions(self, positions: Sequence[Runs | None], share: StateShare) -> Runs:
        """A run of the rows that are left, about as long as those of the other readers."""
        return share_of_runs([run for runs in positions for run in runs or ()], share.subtask, share.parallelism)


class ArrowTableReader:
    """Reads runs of rows, one after the other.  Threading: task thread."""

    never_waits = True

    def __init__(self, table: Any, runs: Runs) -> None:
        self._table = table
        self._left = NumbersLeft(runs)

    def __repr__(self) -> str:
        return f"<ArrowTableReader {self._left!r}>"

    def poll_chunk(self) -> Chunk | None:
        """The next rows as columns; None at the end."""
        rows = self._left.take(MAX_CHUNK_ROWS)
        if rows is None:
            return None
        (batch,) = self._table.slice(rows.start, len(rows)).combine_chunks().to_batches()
        return Chunk.of_columns(columns_of_batch(batch))

    def snapshot_position(self) -> Runs:
        """The rows that are left."""
        return self._left.runs

    def restore_position(self, position: Runs) -> None:
        """Go on with these."""
        self._left = NumbersLeft(position)

    def close(self) -> None:
        """Let the table go."""
        self._left = NumbersLeft(())
