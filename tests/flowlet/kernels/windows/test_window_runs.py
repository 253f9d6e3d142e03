"""Rows by pane, beside a plain list."""

import random

import numpy as np
import pyarrow as pa
import pytest

from flowlet.kernels.windows import window_shapes
from flowlet.kernels.windows.window_shapes import Run, WindowRuns

Row = tuple[int, int]  # pane and number


def run_of(rows: list[Row]) -> Run:
    panes, numbers = (np.array([row[index] for row in rows], np.int64) for index in (0, 1))
    return Run(numbers % 3, panes, (), ((pa.array(numbers),),)).in_order()


def rows_of(runs: list[Run]) -> list[Row]:
    return [
        (pane, number)
        for run in runs
        for pane, number in zip(run.starts.tolist(), run.parts[0][0].to_pylist(), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("saves_rows", [False, True])
def test_random_rows_come_out_once_before_their_pane(monkeypatch: pytest.MonkeyPatch, *, saves_rows: bool) -> None:
    """Rows lie in any runs; those of one pane keep the order in which they came."""
    for name, number in (("_MAX_RUNS", 5), ("_MIN_PENDING_ROWS", 30)):
        monkeypatch.setattr(window_shapes, name, number)
    rng = random.Random(0)
    for _ in range(8):
        rows, plain, pane = WindowRuns(Run.in_order, saves_rows=saves_rows), list[Row](), 0
        for number in range(60):
            new = [(pane + rng.randint(-1, 30), number * 100 + each) for each in range(rng.choice((1, 1, 3, 40)))]
            rows.add(run_of(new))
            plain += new
            rows.check_invariants()
            assert rows.first == min(row[0] for row in plain)
            if rng.random() < 0.4:
                pane += rng.randint(0, 5)
                due = [row for row in plain if row[0] < pane]
                plain = [row for row in plain if row[0] >= pane]
                found = rows_of(rows.take_before(pane))
                assert sorted(found, key=lambda row: row[0]) == sorted(due, key=lambda row: row[0])
                rows.check_invariants()
        rows.replace_slots(np.array([7, 8, 9]))

        assert sorted(rows_of(list(rows.runs()))) == sorted(plain)
        assert len(rows) == len(plain)
        assert all((run.slots == run.parts[0][0].to_numpy() % 3 + 7).all() for run in rows.runs())


def test_rows_of_later_panes_are_not_touched() -> None:
    """The number of rows that wait makes no difference."""
    rows = WindowRuns(Run.in_order, saves_rows=False)
    for pane in range(window_shapes._MAX_RUNS):
        rows.add(run_of([(pane, number) for number in range(50)]))
    before = {id(run) for run in rows.runs()}

    assert [len(run) for run in rows.take_before(1)] == [50]

    after = {id(run) for run in rows.runs()}
    assert after < before
    assert len(after) == len(before) - 1


def test_small_chunks_do_not_become_many_runs() -> None:
    rows = WindowRuns(Run.in_order, saves_rows=False)

    for number in range(1_000):
        rows.add(run_of([(0, number)]))

    assert len(rows.runs()) <= window_shapes._MAX_RUNS
    assert len(rows) == 1_000


def test_a_row_is_joined_a_few_times_at_most() -> None:
    """Many small chunks may come behind many rows."""
    num_joined = 0

    def joined(run: Run) -> Run:
        nonlocal num_joined
        num_joined += len(run)
        return run.in_order()

    rows = WindowRuns(joined, saves_rows=False)
    rows.add(run_of([(0, number) for number in range(10_000)]))
    for number in range(8_000):
        rows.add(run_of([(0, number)]))

    assert num_joined < 3 * 18_000


def test_a_part_of_a_run_does_not_hold_the_memory_of_all() -> None:
    rows = WindowRuns(Run.in_order, saves_rows=False)
    rows.add(run_of([(pane, pane) for pane in range(1_000)]))

    rows.take_before(600)

    (run,) = rows.runs()
    assert run.num_held == 0
    assert run.starts.base is None
