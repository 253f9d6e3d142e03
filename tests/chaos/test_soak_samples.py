"""Slopes tell what grows from what only moves."""

import os
import random

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


def test_what_only_moves_has_not_grown() -> None:
    trend = trend_of("process", samples(0.0, noise=20.0))

    assert trend is not None
    assert trend.grown(5.0) is None


def test_what_is_allocated_in_the_warm_up_does_not_count() -> None:
    cold = [Sample(2.0 * number, 10.0 * number, 5, 5) for number in range(20)]
    warm = [Sample(40 + 2.0 * number, 200.0, 20, 7) for number in range(80)]

    trend = trend_of("process", cold + warm)

    assert trend is not None
    assert trend.grown(1.0) is None


def test_a_process_that_waited_for_its_tasks_has_not_grown_when_it_got_them() -> None:
    idle = [Sample(2.0 * number, 97.0, 20, 6) for number in range(60)]
    busy = [Sample(120 + 2.0 * number, 120.0 + min(number, 10), 27, 15 if number % 7 else 10) for number in range(75)]

    trend = trend_of("process", idle + busy)

    assert trend is not None
    assert trend.seconds < 150
    assert trend.grown(5.0) is None


def test_a_process_that_waited_for_most_of_its_life_has_not_grown_when_it_got_its_tasks() -> None:
    idle = [Sample(2.0 * number, 97.0, 20, 6) for number in range(80)]
    busy = [Sample(160 + 2.0 * number, 120.0 + min(number, 10), 27, 15) for number in range(50)]
    idle_again = [Sample(260 + 2.0 * number, 118.0, 20, 6) for number in range(10)]

    trend = trend_of("process", idle + busy + idle_again)

    assert trend is not None
    assert trend.seconds < 100
    assert trend.grown(5.0) is None


def test_a_process_that_grows_with_its_tasks_is_found_although_it_waited() -> None:
    idle = [Sample(2.0 * number, 97.0, 20, 6) for number in range(60)]
    busy = [Sample(120 + 2.0 * number, 120.0 + number, 27, 15) for number in range(75)]

    trend = trend_of("process", idle + busy)

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
