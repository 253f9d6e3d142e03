"""Keyed running sums over columns: record batches of (k: int64, v: int64) -> key_by("k") -> sum("v") -> sink.

Side:     any; sources and sinks run inside the TaskManagers.
Rows:     row n is (a key of a shuffled table, n); the table has 1,000 keys and comes again and again.
Forms:    ``rows``: one output row per input row, the meaning that single records have; ``batches``: one per key and
          batch.
Sources:  ``produced``: every batch is computed when it is asked for; ``sliced``: batches are cut out of ready arrays.
          Imports and one-time work come before the first poll, as with the peers, which are warm.
Proof:    ``rows``: one output per row; both: the last sum of every key is exact; a run that is not timed checks every
          single output.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.jobs import pairs
from bench.jobs.checked import (
    START_PREFIX,
    Keep,
    Reports,
    WrongOutputError,
    check_increments,
    check_last_values,
    check_num_outputs,
)
from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment, Run, into_sink, run_program
from flowlet.datastream import StreamExecutionEnvironment

ROWS_PER_BATCH: Final = 65_536
NUM_ROWS: Final = 50_000_000
FORMS: Final = {"rows": "row", "batches": "batch"}
SOURCES: Final = ("produced", "sliced")
KEYS: Final = pairs.Keys("int", 1000, 131_072)  # entries: a power of two, so that a row finds its own by a mask
SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def produced(keys: pairs.Keys, start: int, stop: int) -> Iterator[Any]:
    """Compute batch after batch."""
    table, mask = np.array(pairs.make_table(keys), np.int64), keys.table - 1
    assert not keys.table & mask, "a power of two"

    def batch(at: int) -> Any:
        numbers = np.arange(at, min(at + ROWS_PER_BATCH, stop))
        return pa.record_batch([table.take(numbers & mask), numbers], schema=SCHEMA)

    batch(start)  # the first one imports pandas, where there is one
    return map(batch, range(start, stop, ROWS_PER_BATCH))


def sliced(keys: pairs.Keys, start: int, stop: int) -> Iterator[Any]:
    """Cut batches out of ready arrays, which are as long as the reader's share."""
    table, numbers = np.array(pairs.make_table(keys), np.int64), np.arange(start, stop)
    ready = pa.record_batch([table.take(numbers % len(table)), numbers], schema=SCHEMA)
    return (ready.slice(at, ROWS_PER_BATCH) for at in range(0, stop - start, ROWS_PER_BATCH))


def marked(batches: Iterator[Any], start_file: Path) -> Iterator[Any]:
    """Yield the batches; write the time at which the first one is asked for into a file."""
    start_file.write_text(str(time.monotonic_ns()), encoding="ascii")
    yield from batches


@dataclass(frozen=True)
class Batches:
    """The function that ``from_arrow`` calls in each subtask."""

    folder: Path
    num_rows: int
    keys: pairs.Keys
    kind: str

    def __call__(self, subtask: int, parallelism: int) -> Iterator[Any]:
        """Return the share of one subtask."""
        start, stop = pairs.share(self.num_rows, subtask, parallelism)
        batches = (sliced if self.kind == "sliced" else produced)(self.keys, start, stop)
        return marked(batches, self.folder / f"{START_PREFIX}{subtask}")


@dataclass(frozen=True)
class Job:
    """One way to sum ``num_rows`` rows."""

    form: str = "rows"
    source: str = "produced"
    keys: pairs.Keys = KEYS
    num_rows: int = NUM_ROWS
    inspects_all: bool = False

    @property
    def name(self) -> str:
        """The name of the figure."""
        return f"shuffle-columnar {self.form}, {self.source}"

    @property
    def as_pairs(self) -> pairs.Job:
        """The job that sums our records one by one, as the peers do."""
        return pairs.Job(keys=self.keys, num_pairs=self.num_rows, inspects_all=self.inspects_all)

    def build(self, environment: StreamExecutionEnvironment, folder: Path) -> None:
        """Build the program."""
        rows = environment.from_arrow(Batches(folder, self.num_rows, self.keys, self.source), SCHEMA)
        sums = rows.key_by("k").sum("v", emit=FORMS[self.form])
        into_sink(
            sums, folder, self.keep(environment.get_parallelism()), inspects_all=self.inspects_all, in_chunks=True
        )

    def keep(self, parallelism: int) -> Keep:
        """Cover the last two rounds of the table.  With ``batches``, as many outputs are kept: they come from even more
        rows.
        """
        if self.form == "batches":
            return Keep(0, 2 * self.keys.table)
        return Keep.last_cycles(self.num_rows, self.keys.table, parallelism)

    def check(self, reports: Reports, num_readers: int) -> None:
        """Check that every key ends at its sum; with ``rows``, also that there is exactly one output per row."""
        check_last_values(reports, self.as_pairs.sums())
        if self.form == "rows":
            check_num_outputs(reports, self.num_rows)
        if not self.inspects_all:
            return
        if self.form == "rows":
            check_increments(reports, (self.as_pairs.increments(number, num_readers) for number in range(num_readers)))
        elif any(step < 0 for sink in reports.sinks for steps in sink.increments.values() for step in steps):
            raise WrongOutputError("a running sum of numbers that are not negative became smaller")

    def run(self, deployment: Deployment = TWO_TASK_MANAGERS) -> Run:
        """Run the job once, in a fresh cluster."""
        check = partial(self.check, num_readers=deployment.num_task_managers)
        return run_program(self.build, self.num_rows, check, deployment)
