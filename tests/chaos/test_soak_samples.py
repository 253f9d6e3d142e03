"""Slopes tell what grows from what only moves."""

import os
import random
from collections.abc import Callable

import pytest

from tests.chaos.soak_samples import Sample, left_over, sample, trend_of


def samples(mib_per_hour: float, *, noise: float = 0.0, count: int = 200) -> list[Sample]:
    """Return one sample each 2 s; some are far off."""
    rng = random.Random(0)
    found = []
    for number in range(count):
        at_s = 2.0 * number
        outlier = 500.0 if number % 17 == 0 else 0.0
        found.append(Sample(at_s, 100 + mib_per_hour * at_s / 3600 + rng.uniform(-noise, noise) + outlier, 20, 7))
    return found


def test_a_slope_is_found_beside_noise_and_outliers() -> None:
    trend = trend_of("process", samples(360.0, noise=5.0))

    assert trend is not None
    assert 300 < trend.rss_mib[2] < 420
    assert (trend.fds[2], trend.threads[2]) == (0.0, 0.0)
    assert trend.grown(50.0) is None
    problem = trend.grown(20.0)
    assert problem is not None
    assert problem.startswith("process has ")


def taken(start_s: float, count: int, mib: Callable[[int], float], fds: int, threads: int) -> list[Sample]:
    """Return one sample each 2 s, whose memory follows from its number."""
    return [Sample(start_s + 2.0 * number, mib(number), fds, threads) for number in range(count)]


# Some samples are taken while a task is being replaced.
BUSY = [Sample(120 + 2.0 * number, 120.0 + min(number, 10), 27, 15 if number % 7 else 10) for number in range(75)]
NOT_GROWN = {
    "what only moves": (samples(0.0, noise=20.0), 300, 5.0),
    "caches that are filled in the warm-up": (
        [*taken(0, 20, lambda number: 10.0 * number, 5, 5), *taken(40, 80, lambda _: 200.0, 20, 7)],
        160,
        1.0,
    ),
    "tasks that it got late": ([*taken(0, 60, lambda _: 97.0, 20, 6), *BUSY], 150, 5.0),
    "tasks that it had for a part of its life": (
        [
            *taken(0, 80, lambda _: 97.0, 20, 6),
            *taken(160, 50, lambda number: 120.0 + min(number, 10), 27, 15),
            *taken(260, 10, lambda _: 118.0, 20, 6),
        ],
        100,
        5.0,
    ),
}


@pytest.mark.parametrize(("found", "most_s", "more_mib"), NOT_GROWN.values(), ids=NOT_GROWN)
def test_what_does_not_come_of_growth_has_not_grown(found: list[Sample], most_s: float, more_mib: float) -> None:
    """A process that waited for its tasks is looked at while it had them."""
    trend = trend_of("process", found)

    assert trend is not None
    assert trend.seconds < most_s
    assert trend.grown(more_mib) is None


def test_a_process_that_grows_with_its_tasks_is_found_although_it_waited() -> None:
    busy = taken(120, 75, lambda number: 120.0 + number, 27, 15)

    trend = trend_of("process", taken(0, 60, lambda _: 97.0, 20, 6) + busy)

    assert trend is not None
    assert trend.grown(24.0) is not None


def test_descriptors_and_threads_are_compared_when_nothing_runs() -> None:
    idle, end = Sample(0.0, 100.0, 23, 12), Sample(900.0, 200.0, 30, 13)

    assert left_over("process", idle, end, 7, 1) == []
    assert left_over("process", idle, end, 6, 1) == ["process has 30 fds without any task, 23 before the soak"]


def test_two_samples_are_no_trend() -> None:
    assert trend_of("process", samples(0.0, count=2)) is None


def test_this_process_can_be_sampled_and_one_that_is_gone_cannot() -> None:
    taken = sample(os.getpid(), 1.0)

    assert taken is not None
    assert taken.rss_mib > 1
    assert taken.threads >= 1
    assert sample(2**22 + 1, 1.0) is None
