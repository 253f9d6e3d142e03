"""Numbers that look random and are equal in every process."""

from collections import Counter

from bench.jobs.scattered import below, scattered


def test_numbers_are_those_of_every_other_process() -> None:
    """Changed numbers make figures of two versions of this bench incomparable."""
    assert [scattered(0), scattered(1), scattered(0, 1)] == [
        16294208416658607535,
        9018883062403043925,
        7960286522194355700,
    ]


def test_draws_are_spread_evenly() -> None:
    counts = Counter(below(10, number, draw) for number in range(2000) for draw in range(5))

    assert sorted(counts) == list(range(10))
    assert max(counts.values()) < 1.15 * min(counts.values())
