"""Rows by pane, beside a plain list."""

import random

import numpy as np
import pyarrow as pa
import pytest

from flowlet.kernels.windows import columnar_join as waiting_rows
from flowlet.kernels.windows.columnar_join import WaitingRows
from flowlet.kernels.windows.window_shapes import Run

Row = tuple[int, int]  # pane and number


def run_of(rows: list[Row]) -> Run:
    panes, numbers = (np.array([row[index] for row in rows], np.int64) for index in (0, 1))
    return Run(numbers % 3, panes, (), ((pa.array(numbers),),))


def rows_of(runs: list[Run]) -> list[Row]:
    return sorted(
        (pane, number)
        for run in runs
        for pane, number in zip(run.starts.tolist(), run.parts[0][0].to_pylist(), strict=True)
    )


@pytest.mark.slow
def test_random_rows_come_out_once_before_their_pane(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever runs they lie."""
    for name, number in (("_MIN_SORTED_ROWS", 20), ("_MIN_REST_ROWS", 4), ("_MAX_RECENT", 5)):
        monkeypatch.setattr(waiting_rows, name, number)
    rng = random.Random(0)
    for _ in range(8):
        rows, plain, pane = WaitingRows(), list[Row](), 0
        for number in range(60):
            new = [(pane + rng.randint(-1, 30), number * 100 + each) for each in range(rng.choice((1, 1, 3, 40)))]
            rows.add_run(run_of(new))
            plain += new
            rows.check_invariants()
            if rng.random() < 0.4:
                pane += rng.randint(0, 5)
                due = [row for row in plain if row[0] < pane]
                plain = [row for row in plain if row[0] >= pane]
                assert rows.has_before(pane) is bool(due)
                assert rows_of(rows.take_before(pane)) == sorted(due)
                rows.check_invariants()
        rows.replace_slots(np.array([7, 8, 9]))

        assert rows_of(list(rows.runs())) == sorted(plain)
        assert len(rows) == len(plain)
        assert all((run.slots == run.parts[0][0].to_numpy() % 3 + 7).all() for run in rows.runs())


def test_rows_of_later_panes_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait."""
    monkeypatch.setattr(waiting_rows, "_MIN_SORTED_ROWS", 50)
    rows = WaitingRows()
    for pane in range(100):
        rows.add_run(run_of([(pane, number) for number in range(waiting_rows._MIN_SORTED_ROWS + 1)]))
    before = {id(run) for run in rows.runs()}

    assert [len(run) for run in rows.take_before(1)] == [waiting_rows._MIN_SORTED_ROWS + 1]

    after = {id(run) for run in rows.runs()}
    assert after < before
    assert len(after) == len(before) - 1


def test_small_chunks_do_not_become_many_runs() -> None:
    rows = WaitingRows()

    for number in range(1_000):
        rows.add_run(run_of([(0, number)]))

    assert len(list(rows.runs())) <= waiting_rows._MAX_RECENT
    assert len(rows) == 1_000
