"""Running results of many keys in one operator and one process: what each back end takes per record.

Side:   any.
Keys:   texts in random order: as many as are said, or a hot set that fits into the cache of RocksDB.
Clock:  the second half of the records: by then all keys of a hot set have come.
Forms:  ``sum`` with records, and with columns; ``reduce`` with a function that is called.
Proof:  the last result of each key is the number of its records.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from bench.jobs.keyed_states import BACKENDS, NUM_GROUPS
from flowlet.chain.stream_operator import OperatorContext
from flowlet.columns import columns_of
from flowlet.operators.keyed_aggregation_operator import KeyedAggregationOperator, KeyedReduceOperator
from flowlet.operators.keyed_sum_operator import KeyedSumOperator
from flowlet.records import Chunk
from flowlet.timers.time_api import KeyContext

FORMS: Final = ("sum", "sum of columns", "reduce")
HOT_KEYS: Final = 10_000
_CHUNK_RECORDS: Final = 4_000
_SEED: Final = 1


def _added(one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    return one[0], one[1] + other[1]


_MAKE: Final[dict[str, Callable[[], KeyedAggregationOperator]]] = {
    "sum": lambda: KeyedSumOperator(itemgetter(0), 1),
    "sum of columns": lambda: KeyedSumOperator(itemgetter(0), 1),
    "reduce": lambda: KeyedReduceOperator(itemgetter(0), _added),
}


class _LastResults:
    """An output that keeps the last result of each key."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def collect(self, chunk: Chunk) -> None:
        """Look at the records, of which columns make a list."""
        self.last.update(chunk.values)


@dataclass(frozen=True)
class Rows:
    """``num_records`` records of ``num_keys`` keys."""

    form: str
    num_keys: int
    num_records: int

    def chunks(self) -> tuple[Sequence[Chunk], Counter[str]]:
        """Those that go in, and how many records each key has."""
        drawn = random.Random(_SEED).choices(range(self.num_keys), k=self.num_records)
        keys = [f"key-{number}" for number in drawn]
        parts = [keys[start : start + _CHUNK_RECORDS] for start in range(0, len(keys), _CHUNK_RECORDS)]
        return [self._chunk([(key, 1) for key in part]) for part in parts], Counter(keys)

    def _chunk(self, records: list[Any]) -> Chunk:
        columns = columns_of(records) if self.form == "sum of columns" else None
        return Chunk(records) if columns is None else Chunk.of_columns(columns)


def rate(rows: Rows, backend: str) -> float:
    """Records per second of CPU time.  Raises WrongOutputError."""
    context, output, operator = KeyContext(), _LastResults(), _MAKE[rows.form]()
    chunks, counts = rows.chunks()
    with closing(BACKENDS[backend](context)) as states:
        operator.setup(
            OperatorContext("bench", 0, 1, NUM_GROUPS, "rows", key_context=context, keyed_state=states),
            output,  # type: ignore[arg-type]  # nothing else is called
        )
        operator.open()
        middle = len(chunks) // 2
        for chunk in chunks[:middle]:
            operator.process_chunk(chunk)
        start_s = time.process_time()
        for chunk in chunks[middle:]:
            operator.process_chunk(chunk)
        used_s = time.process_time() - start_s
        operator.close()
    if output.last != counts:
        raise WrongOutputError(f"{rows}: {len(output.last)} results of {len(counts)} keys, or other numbers")
    return sum(map(len, chunks[middle:])) / used_s
