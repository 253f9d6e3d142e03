"""The delay before another try."""

from itertools import islice

from netstack.flow.heartbeats import Backoff


def test_each_delay_is_longer_than_the_one_before_up_to_the_longest() -> None:
    assert list(islice(Backoff(0.1, 0.5).delays(), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert list(islice(Backoff(1, 100, factor=3).delays(), 4)) == [1, 3, 9, 27]


def test_the_first_delay_is_never_above_the_longest() -> None:
    assert Backoff(10, 3).delay(1) == 3


def test_jitter_takes_off_its_share_at_most() -> None:
    backoff = Backoff(8, 8, jitter=0.5)
    assert [backoff.delay(1, chance) for chance in (0, 0.5, 1)] == [8, 6, 4]


def test_failures_without_number_have_the_longest_delay() -> None:
    assert Backoff(0.1, 5.0).delay(10_000) == 5.0
