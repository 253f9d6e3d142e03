"""The isolation case notices records that differ from the sent ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import isolation
from bench.jobs.checked import WrongOutputError
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness


def consume(folder: Path, records: list[str], *, size: int) -> int:
    """Feed the consumer chunks of this size; the number that it reports."""
    harness = Harness(isolation.CountingConsumer(folder / "progress"), pickled=False)
    for start in range(0, len(records), size):
        harness.operator._next_report_ns = 0  # so that it reports each time
        harness.operator.process_chunk(Chunk(records[start : start + size]))
    return isolation.counts(folder / "progress")[-1][1]


@pytest.mark.parametrize("size", [1000, 999, 1, 2500])
def test_records_in_order_are_counted_however_they_are_cut(tmp_path: Path, size: int) -> None:
    assert consume(tmp_path, isolation.endless_records() * 3, size=size) == 3000


def lost(records: list[str]) -> None:
    del records[1500]


def doubled(records: list[str]) -> None:
    records.insert(1500, records[1500])


def swapped(records: list[str]) -> None:
    records[1500], records[1501] = records[1501], records[1500]


@pytest.mark.parametrize("damage", [lost, doubled, swapped])
def test_other_records_are_noticed(tmp_path: Path, damage: Callable[[list[str]], None]) -> None:
    records = isolation.endless_records() * 3
    damage(records)

    with pytest.raises(WrongOutputError, match="are not those that were sent"):
        consume(tmp_path, records, size=400)


def test_a_window_in_which_nothing_came_has_no_rate() -> None:
    with pytest.raises(WrongOutputError, match="nothing came"):
        isolation.rate_between([(1, 10), (5, 20)], 2, 9)
    assert isolation.rate_between([(0, 0), (10**9, 10), (3 * 10**9, 30)], 1, 4 * 10**9) == 10.0
