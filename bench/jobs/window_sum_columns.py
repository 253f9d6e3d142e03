"""The sums of ``bench/jobs/window_sums.py`` on columns: (k, amount, ts) in record batches.

Side:   any; sources and sinks run inside the TaskManagers.
Rows:   those of the single records.  Their batches are made before the clock starts.
Proof:  the sum of every window of every key is exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.jobs import window_sums
from bench.jobs.checked import START_PREFIX, CheckedSink, Keep, Reports, check_last_values, check_num_outputs
from bench.jobs.columns import marked
from bench.jobs.pipeline import Deployment, Run, into_operator, run_program
from bench.jobs.window_sums import DELAY_MS, WINDOW_MS
from flowlet.common import Duration, Time
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.window import TumblingEventTimeWindows

ROWS_PER_BATCH: Final = 65_536


@dataclass(frozen=True)
class Rows:
    """The rows of a job, as ``from_arrow`` asks for them: of ``n`` subtasks, each has every ``n``-th row."""

    num_keys: int
    num_rows: int
    is_twin: bool

    @property
    def schema(self) -> Any:
        """The schema of the batches."""
        return pa.schema(
            [("k", pa.string() if self.is_twin else pa.int64()), ("amount", pa.int64()), ("ts", pa.int64())]
        )

    def numbers(self, subtask: int, parallelism: int) -> Iterator[tuple[Any, Any, Any]]:
        """Yield key numbers, amounts and times of each batch."""
        step = parallelism * ROWS_PER_BATCH
        for at in range(subtask, self.num_rows, step):
            numbers = np.arange(at, min(at + step, self.num_rows), parallelism)
            times = window_sums.FIRST_MS + numbers // window_sums.RECORDS_PER_MS
            scattered = numbers * window_sums.FACTOR
            yield (
                scattered % self.num_keys,
                numbers % window_sums.AMOUNTS,
                times - scattered % DELAY_MS if self.is_twin else times,
            )

    def batches(self, subtask: int, parallelism: int) -> Iterator[Any]:
        """Yield all batches of a subtask."""
        texts = pa.array([self.name_of(number) for number in range(self.num_keys)], pa.string())
        for keys, amounts, times in self.numbers(subtask, parallelism):
            yield pa.record_batch(
                [texts.take(pa.array(keys)) if self.is_twin else keys, amounts, times], schema=self.schema
            )

    def name_of(self, key: int) -> str:
        """Return the text of one key."""
        return f"user {key}" if self.is_twin else str(key)


@dataclass(frozen=True)
class MarkedRows:
    """The rows of a job; the time at which the first batch is asked for goes into a file."""

    rows: Rows
    folder: Path

    def __call__(self, subtask: int, parallelism: int) -> Iterator[Any]:
        """Return the share of one subtask."""
        ready = list(self.rows.batches(subtask, parallelism))
        return marked(iter(ready), self.folder / f"{START_PREFIX}{subtask}")


class WindowSink(CheckedSink):
    """Keeps the sums of all windows by key and start."""

    def _fold_kept(self) -> None:
        for chunk in self._kept:
            assert chunk.columns is not None, "windows of columns give columns"
            keys, starts, _, totals = (column.to_list() for column in chunk.columns.fields)
            starts_ms = np.array(starts, "datetime64[ms]").astype(np.int64).tolist()
            self._last.update(
                {f"{key} {start}": total for key, start, total in zip(keys, starts_ms, totals, strict=True)}
            )


@lru_cache(maxsize=4)  # of columns and of Java
def expected(rows: Rows) -> dict[str, int]:
    """Return the sum of every window of every key, by key and start."""
    first = (window_sums.FIRST_MS - DELAY_MS) // WINDOW_MS
    num_windows = 1 + (window_sums.FIRST_MS + rows.num_rows // window_sums.RECORDS_PER_MS) // WINDOW_MS - first
    sums, counts = (np.zeros(rows.num_keys * num_windows) for _ in range(2))
    for keys, amounts, times in rows.numbers(0, 1):
        cells = keys * num_windows + times // WINDOW_MS - first
        sums += np.bincount(cells, amounts, len(sums))
        counts += np.bincount(cells, minlength=len(sums))
    found = {}
    for cell in np.flatnonzero(counts).tolist():
        key, window = divmod(cell, num_windows)
        found[f"{rows.name_of(key)} {(first + window) * WINDOW_MS}"] = int(sums[cell])
    return found


def build(rows: Rows, environment: StreamExecutionEnvironment, folder: Path) -> None:
    """Build the program."""
    stream = environment.from_arrow(MarkedRows(rows, folder), rows.schema)
    timed = stream.with_event_time("ts", Duration.of_millis(DELAY_MS if rows.is_twin else 0))
    windows: Any = timed.key_by("k").window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    make = partial(WindowSink, folder, Keep(0, len(expected(rows))), in_chunks=True)
    into_operator(windows.agg(total=("amount", "sum")), "window sink", make)


def check(rows: Rows, reports: Reports) -> None:
    """Check that every window has its sum.

    Raises:
        WrongOutputError: the number of windows, or a sum, is wrong.
    """
    check_num_outputs(reports, len(expected(rows)))
    check_last_values(reports, expected(rows))


def run(rows: Rows, deployment: Deployment) -> Run:
    """Run the job once, in a fresh cluster."""
    return run_program(partial(build, rows), rows.num_rows, partial(check, rows), deployment)
