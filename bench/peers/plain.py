"""No engine at all: our work in one process, in plain Python or in numpy.

Side:  any.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.jobs.checked import Reports, SinkReport
from bench.jobs.pairs import Job as PairJob
from bench.jobs.pairs import make_table
from bench.jobs.pipeline import Run
from bench.jobs.words import Job as WordJob
from bench.jobs.words import make_lines
from bench.load import ForeignLoad
from bench.rounds import Contender

_Numbers = NDArray[np.int64]


def count_words(job: WordJob) -> Contender:
    """Return a loop with a dictionary, on one core: the running count of every word, which goes nowhere."""

    def run() -> Run:
        lines, num_lines = make_lines(job.made_words), job.num_words // 10
        return _timed(lambda: _count(lines, num_lines), job.num_words, job.check_last)

    return Contender("plain Python, 1 process", run, is_peer=True)


def _count(lines: list[str], num_lines: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    size = len(lines)
    for number in range(num_lines):
        for word in lines[number % size].split():
            counts[word] = counts.get(word, 0) + 1
    return counts


def sum_pairs(job: PairJob) -> Contender:
    """Return a loop with a dictionary, on one core: the running sum of every key, which goes nowhere."""

    def run() -> Run:
        table = make_table(job.keys)
        return _timed(lambda: _sum(table, job.num_pairs), job.num_pairs, job.check_last)

    return Contender("plain Python, 1 process", run, is_peer=True)


def _sum(table: list[Any], num_pairs: int) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    size = len(table)
    for number in range(num_pairs):
        key = table[number % size]
        sums[key] = sums.get(key, 0) + number
    return sums


def sum_arrays(job: PairJob, source: str, batch: int = 65_536) -> Contender:
    """Return numpy, on one core: one sum per key and batch; ``source`` as of our jobs: batches that are made when they
    are needed, or cut out.
    """

    def run() -> Run:
        table = np.array(make_table(job.keys), np.int64)
        batches = (_sliced if source == "sliced" else _produced)(table, job.num_pairs, batch)
        return _timed(lambda: _sum_batches(batches, job.keys.size), job.num_pairs, job.check_last)

    return Contender(f"numpy, 1 process, batches of {batch:,}, {source}", run, is_peer=True)


def _produced(table: _Numbers, num_pairs: int, batch: int) -> Iterator[tuple[_Numbers, _Numbers]]:
    for at in range(0, num_pairs, batch):
        numbers = np.arange(at, min(at + batch, num_pairs))
        yield table.take(numbers % len(table)), numbers


def _sliced(table: _Numbers, num_pairs: int, batch: int) -> Iterator[tuple[_Numbers, _Numbers]]:
    keys, numbers = np.resize(table, num_pairs), np.arange(num_pairs)
    return ((keys[at : at + batch], numbers[at : at + batch]) for at in range(0, num_pairs, batch))


def _sum_batches(batches: Iterable[tuple[_Numbers, _Numbers]], num_keys: int) -> dict[Any, int]:
    sums = np.zeros(num_keys, np.int64)
    for keys, values in batches:
        np.add.at(sums, keys, values)
    return dict(enumerate(sums.tolist()))


def _timed(work: Callable[[], dict[Any, int]], num_records: int, check: Callable[[Reports], None]) -> Run:
    with ForeignLoad() as load:
        start_ns = time.monotonic_ns()
        last = work()
        end_ns = time.monotonic_ns()
    reports = Reports(start_ns, (SinkReport(num_records, end_ns, last),))
    check(reports)
    return Run(num_records / reports.seconds, reports.seconds, load.cores)
