"""Windows of columns: three aggregations of int64 rows by key and window, on one core.

Side:   any.
Work:   ``sum``, ``mean`` and ``count`` of a column in tumbling windows, by 1,000 integer keys in batches of 16,384 rows
        in order of time, with a watermark behind each batch; and its unfriendly twins: text keys, a million keys, times
        out of order over many windows, batches of 256 rows, and sliding windows.
Figure: CPU ns per row.  ``kernels``: without a job; ``by hand``: an equal table in one call of Arrow's ``group_by``,
        which knows the whole input in advance, and windows as a column of it.  ``job``: a whole job in one process,
        from the source on.
Proof:  the sums of all windows add up to that of the rows; the groups are as many as Arrow finds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.jobs.checked import WrongOutputError
from bench.report import Result
from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common import Duration, Time
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.window import TumblingEventTimeWindows
from flowlet.kernels.windows.columnar_windows import WindowedAggregation, columnar_windows
from flowlet.kernels.windows.window_partials import ColumnInputs, WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, WindowTables
from flowlet.records import MAX_TIMESTAMP

NUM_ROWS: Final = 4_000_000
_QUICK_ROWS: Final = 100_000
WINDOW_MS: Final = 5_000
ROWS_PER_MS: Final = 50
ROWS_PER_JOB_BATCH: Final = 65_536
_tables: Final[list[Any]] = []
_AGGREGATES: Final = (
    WindowAggregate("total", "sum", "v", pa.int64()),
    WindowAggregate("mean", "mean", "v", pa.int64()),
    WindowAggregate("n", "count"),
)


@dataclass(frozen=True)
class Work:
    """Rows and how they come."""

    name: str
    num_keys: int = 1_000
    has_texts: bool = False
    batch_rows: int = 16_384
    disorder_ms: int = 0  # how far rows are behind the latest
    slide_ms: int = WINDOW_MS

    def table(self, num_rows: int) -> Any:
        """Return the table of all rows."""
        rng = np.random.default_rng(7)
        keys = rng.integers(0, self.num_keys, num_rows)
        times = np.arange(num_rows) // ROWS_PER_MS
        if self.disorder_ms:
            times = times - rng.integers(0, self.disorder_ms, num_rows)
        column = pa.array([f"user {key}" for key in keys.tolist()]) if self.has_texts else pa.array(keys)
        return pa.table({"k": column, "v": rng.integers(0, 1_000, num_rows), "ts": times})


WORKS: Final = (
    Work("1,000 int keys, in order"),
    Work("text keys", has_texts=True),
    Work("a million keys", num_keys=1_000_000),
    Work("out of order over 20 windows", disorder_ms=20 * WINDOW_MS),
    Work("batches of 256", batch_rows=256),
    Work("sliding by a fifth", slide_ms=WINDOW_MS // 5),
)


def run(num_runs: int, *, quick: bool = False) -> list[Result]:
    """Measure each work in kernels and by hand, in turns, and the first one as a job."""
    num_rows = _QUICK_ROWS if quick else NUM_ROWS
    results = []
    for work in WORKS:
        table = work.table(num_rows)
        ways: dict[str, Callable[[], int]] = {
            "kernels": partial(in_kernels, work, table),
            "by hand": partial(by_hand, work, table),
        }
        if work is WORKS[0]:
            ways["job"] = partial(in_job, table)
        figures: dict[str, list[float]] = {way: [] for way in ways}
        num_groups = set()
        for _ in range(num_runs):
            for way, do in ways.items():
                start = time.process_time()
                num_groups.add(do())
                figures[way].append((time.process_time() - start) / num_rows * 1e9)
        if len(num_groups) != 1:
            raise WrongOutputError(f"{work.name}: {sorted(num_groups)} groups")
        results += [
            Result(
                f"window-columns {work.name}, {way}",
                "CPU ns/row",
                times,
                {"num_rows": num_rows},
                is_peer=way == "by hand",
            )
            for way, times in figures.items()
        ]
    return results


def in_kernels(work: Work, table: Any) -> int:
    """Return the number of results; batches are cut before."""
    shape = AlignedWindows(WINDOW_MS, work.slide_ms)
    windows = columnar_windows(WindowedAggregation(shape, _AGGREGATES, "k", table.schema.field("k").type))
    total, num_results = 0, 0
    for batch in table.to_batches(work.batch_rows):
        times = batch.column("ts").to_numpy()
        windows.add(ColumnInputs(columns_of_batch(batch), table.schema, times))
        for results in fired(windows, int(times[-1]) - work.disorder_ms - 1):
            num_results += results.num_rows
            total += int(results.column("total").to_numpy().sum())
    for results in fired(windows, MAX_TIMESTAMP):
        num_results += results.num_rows
        total += int(results.column("total").to_numpy().sum())
    check_total(total, table, WINDOW_MS // work.slide_ms)
    return num_results


def fired(windows: WindowTables[Any], watermark: int) -> Iterator[Any]:
    """Return the results up to a watermark."""
    return (emitted.batch for emitted in windows.fire(watermark))


def by_hand(work: Work, table: Any) -> int:
    """Return the number of groups."""
    times, total, num_groups = table.column("ts").to_numpy(), 0, 0
    for offset in range(0, WINDOW_MS, work.slide_ms):
        starts = pa.array((times - offset) // WINDOW_MS)
        grouped = (
            table.append_column("w", starts)
            .group_by(["k", "w"], use_threads=False)
            .aggregate([("v", "sum"), ("v", "mean"), ("v", "count")])
        )
        num_groups += grouped.num_rows
        total += int(grouped.column("v_sum").to_numpy().sum())
    check_total(total, table, WINDOW_MS // work.slide_ms)
    return num_groups


def in_job(table: Any) -> int:
    """Return the number of results of a job in this process."""
    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    _tables[:] = [table]
    rows = environment.from_arrow(ready_batches, table.schema).with_event_time("ts", Duration.of_millis(0))
    windows = rows.key_by("k").window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    with windows.agg(total=("v", "sum"), mean=("v", "mean"), n="count").execute_and_collect() as results:  # type: ignore[union-attr]
        totals = [row["total"] for row in results]
    check_total(sum(totals), table, 1)
    return len(totals)


def ready_batches(_subtask: int, _parallelism: int) -> list[Any]:
    """Return the rows of the job, which runs in this process: a table is too large to be sent with it."""
    batches: list[Any] = _tables[0].to_batches(ROWS_PER_JOB_BATCH)
    return batches


def check_total(total: int, table: Any, num_windows: int) -> None:
    """Check that the sums of all windows add up to the sum of the rows, each as often as it has windows."""
    expected = num_windows * int(table.column("v").to_numpy().sum())
    if total != expected:
        raise WrongOutputError(f"the sums of all windows add up to {total}, not {expected}")
