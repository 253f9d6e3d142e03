"""The sums of ``bench/jobs/window_sums.py`` as a plain Python loop.

Side:  pure.
"""

from collections import defaultdict
from collections.abc import Iterable

from bench.jobs.work import Found

WINDOW_MS = 5_000


def reduced(records: Iterable[tuple[int | str, int, int]]) -> Found:
    """Sum the amounts of each key in each window."""
    sums = defaultdict[tuple[int | str, int], int](int)
    for key, amount, time in records:
        sums[key, time - time % WINDOW_MS] += amount
    return Found(len(sums), {f"{key} {start}": total for (key, start), total in sums.items()})


reduced_twin = aggregated = aggregated_twin = reduced
