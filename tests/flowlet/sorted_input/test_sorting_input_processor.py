"""The keys that one sorted input gives its records; the rest runs in jobs (``client/test_batch_jobs.py``)."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.keys.column_key import ColumnKey, ColumnValue
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk
from flowlet.sorted_input.external_sorter import ExternalSorter
from flowlet.sorted_input.sorting_input_processor import SortedInput
from tests.flowlet.operators.harness import Harness
from tests.flowlet.windows.test_window_columns_operator import operator

DAYS = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1)]
INSTANTS = [datetime.datetime.combine(day, datetime.time()) for day in DAYS]


def in_a_list(values: list[Any]) -> Chunk:
    """Return a chunk as a writer by a column's key sends rows: instants and dates are numbers among the keys."""
    chunk = Chunk([Row(k=value) for value in values])
    chunk.keys = [ColumnKey("k").get_key(row) for row in chunk.values]
    return chunk


def in_columns(values: list[Any]) -> Chunk:
    return Chunk.of_columns(columns_of_batch(pa.RecordBatch.from_pydict({"k": values})))


@pytest.mark.parametrize("values", [INSTANTS, DAYS, ["b", "a"], [2, 1], [None, 1]], ids=repr)
def test_a_key_of_a_column_is_one_key_however_its_rows_travel(values: list[Any]) -> None:
    """Rows may travel in columns, in a list with the keys of the sender, or without keys; a function's key is equal,
    too.
    """
    sorter = ExternalSorter(1 << 27)
    collected = SortedInput(sorter, ColumnValue("k"), Harness(operator()).operator, Attention())
    by_function = SortedInput(sorter, lambda row: row["k"], Harness(operator()).operator, Attention())

    for chunk in (in_columns(values), in_a_list(values), Chunk([Row(k=value) for value in values])):
        collected.process_chunk(chunk)
    by_function.process_chunk(Chunk([Row(k=value) for value in values]))
    (block,) = sorter.sorted_blocks()

    assert np.unique(block.codes, return_index=True)[1].tolist() == [0, 4]
    assert [row["k"] for row in block.chunk.records()] == [
        each for value in sorted(values, key=str) for each in [value] * 4
    ]
    sorter.close()
