"""Rows that are lost, doubled or changed are noticed in every representation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.jobs.checked import WrongOutputError
from bench.jobs.summed import SummingSink, check_summed
from flowlet.columns import ArrayColumn, Columns, ListColumn, Shape
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness


def feed(folder: Path, *chunks: Chunk, subtask: int = 0) -> None:
    harness = Harness(SummingSink(folder), subtask=subtask, pickled=False)
    for chunk in chunks:
        harness.operator.process_chunk(chunk)
    harness.operator.finish()


def test_rows_of_every_kind_are_counted_and_summed(tmp_path: Path) -> None:
    column: Any
    for subtask, column in enumerate((ArrayColumn(np.array([1, 2])), ListColumn([3, 4]))):
        feed(tmp_path, Chunk.of_columns(Columns(2, (column,), Shape.TUPLE)), Chunk([(5, "x")]), subtask=subtask)

    check_summed(tmp_path, 6, 20)


@pytest.mark.parametrize(
    ("values", "message"), [([1, 2], "2 rows with the sum 3"), ([1, 2, 4], "sum 7"), ([1, 2, 3, 3], "4 rows")]
)
def test_another_number_or_sum_is_wrong(tmp_path: Path, values: list[int], message: str) -> None:
    feed(tmp_path, Chunk([(value,) for value in values]))

    with pytest.raises(WrongOutputError, match=message):
        check_summed(tmp_path, 3, 6)


def test_a_sink_that_did_not_end_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongOutputError, match="no sink reported"):
        check_summed(tmp_path, 0, 0)
