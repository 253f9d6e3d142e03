"""Running results of many keys in one operator and one process: what each back end takes per record.

Side:   any.
Keys:   texts in random order: as many as are said, or a hot set that fits into the cache of RocksDB.
Clock:  the second half of the records: by then all keys of a hot set have come.
Forms:  ``sum`` with records, and with columns; ``reduce`` with a function that is called; ``windows of columns``, each
        of a quarter of the records, whose results are emitted on the way.
Proof:  the last result of each key, or the sum of the results of all windows, is the number of its records.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.jobs.checked import WrongOutputError
from bench.jobs.keyed_states import BACKENDS, NUM_GROUPS
from flowlet.chain.operator_output import StandaloneOutput
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.columns import Shape, columns_of
from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.window_partials import WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator, KeyedSumOperator
from flowlet.records import Chunk, Watermark
from flowlet.timers.keyed_timer_service import KeyContext
from flowlet.windows.window_columns_operator import WindowColumnsOperator

WINDOWS: Final = "windows of columns"
FORMS: Final = ("sum", "sum of columns", "reduce", WINDOWS)
HOT_KEYS: Final = 10_000
_CHUNK_RECORDS: Final = 4_000
_SEED: Final = 1


def _added(one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    return one[0], one[1] + other[1]


_SCHEMA: Final = pa.schema([("key", pa.string()), ("n", pa.int64())])


def _windows(num_records: int) -> WindowColumnsOperator:
    total = WindowAggregate("total", "sum", "n", pa.int64())
    size = num_records // 4
    return WindowColumnsOperator(WindowedAggregation(AlignedWindows(size, size), (total,), "key", pa.string()), _SCHEMA)


_MAKE: Final[dict[str, Callable[[int], StreamOperator]]] = {
    "sum": lambda _: KeyedSumOperator(itemgetter(0), 1),
    "sum of columns": lambda _: KeyedSumOperator(itemgetter(0), 1),
    "reduce": lambda _: KeyedReduceOperator(itemgetter(0), _added),
    WINDOWS: _windows,
}


class _Results:
    """An output that keeps the last result of each key, or the sum of the results of all windows."""

    def __init__(self) -> None:
        self.last: Counter[str] = Counter()

    def collect(self, chunk: Chunk) -> None:
        """Look at the records; columns are turned into lists."""
        columns = chunk.columns
        if columns is None or columns.shape is not Shape.ROW:
            dict.update(self.last, chunk.values)  # Counter.update would add
            return
        found = [columns.fields[columns.field_names.index(name)].to_list() for name in ("key", "total")]
        for key, total in zip(*found, strict=True):
            self.last[key] += total

    def emit_control(self, element: Watermark) -> None:
        """Ignore it: only records are looked at."""


@dataclass(frozen=True)
class Rows:
    """``num_records`` records of ``num_keys`` keys."""

    form: str
    num_keys: int
    num_records: int

    def chunks(self) -> tuple[Sequence[Chunk], Counter[str]]:
        """Return the chunks that go in, and how many records each key has."""
        drawn = random.Random(_SEED).choices(range(self.num_keys), k=self.num_records)
        keys = [f"key-{number}" for number in drawn]
        parts = [keys[start : start + _CHUNK_RECORDS] for start in range(0, len(keys), _CHUNK_RECORDS)]
        chunks = [self._chunk([(key, 1) for key in part], _CHUNK_RECORDS * place) for place, part in enumerate(parts)]
        return chunks, Counter(keys)

    def _chunk(self, records: list[Any], first: int) -> Chunk:
        if self.form == WINDOWS:
            keys = pa.array([key for key, _ in records])
            batch = pa.record_batch([keys, pa.array(np.ones(len(keys), np.int64))], schema=_SCHEMA)
            return Chunk.of_columns(columns_of_batch(batch), np.arange(first, first + len(keys)))
        columns = columns_of(records) if self.form == "sum of columns" else None
        return Chunk(records) if columns is None else Chunk.of_columns(columns)


def _pass_watermark(operator: StreamOperator, chunk: Chunk) -> None:
    if chunk.timestamp_array is not None:
        operator.process_watermark(Watermark(int(chunk.timestamp_array[-1])))


def rate(rows: Rows, backend: str) -> float:
    """Return the records per second of CPU time.  Raises WrongOutputError."""
    context, output, operator = KeyContext(), _Results(), _MAKE[rows.form](rows.num_records)
    chunks, counts = rows.chunks()
    with closing(BACKENDS[backend](context)) as states:
        ctx = OperatorContext("bench", 0, 1, NUM_GROUPS, "rows", key_context=context, keyed_state=states)
        # The operators call no other method of the output.
        operator.setup(ctx, StandaloneOutput("rows", output, ctx.counters))  # type: ignore[arg-type]
        operator.open()
        middle = len(chunks) // 2
        for chunk in chunks[:middle]:
            operator.process_chunk(chunk)
            _pass_watermark(operator, chunk)
        start_s = time.process_time()
        for chunk in chunks[middle:]:
            operator.process_chunk(chunk)
            _pass_watermark(operator, chunk)
        used_s = time.process_time() - start_s
        operator.close()
    if output.last != counts:
        raise WrongOutputError(f"{rows}: {len(output.last)} results of {len(counts)} keys, or other numbers")
    return sum(map(len, chunks[middle:])) / used_s
