"""``RequestBackoff``: how long until the next request, and when there is none."""

import pytest

from netstack.gate.channels.input_channel import RequestBackoff


def delays(backoff: RequestBackoff, count: int) -> list[int | None]:
    return [backoff.next_delay_ms() for _ in range(count)]


def test_it_doubles_up_to_the_maximum() -> None:
    """LocalInputChannelTest: testPartitionRequestExponentialBackoff: 500, 1000, 2000, 3000, then no more."""
    backoff = RequestBackoff(500, 3000)

    assert (delays(backoff, 5), backoff.current_ms, backoff.is_counting_only) == (
        [500, 1000, 2000, 3000, None],
        3000,
        False,
    )


def test_there_may_be_one_attempt_or_none() -> None:
    """LocalInputChannelTest: single back-off (500, 500), no back-off (0, 0)."""
    assert delays(RequestBackoff(500, 500), 2) == [500, None]
    assert delays(RequestBackoff(), 1) == [None]


def test_flinks_default_ends_at_ten_seconds() -> None:
    """100 ms, doubled, at most 10,000."""
    assert delays(RequestBackoff(100, 10_000), 9) == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, None]


def test_with_a_waiting_producer_the_time_only_counts() -> None:
    """RemoteInputChannelTest: listener time-out 500, maximum 1000: 500, 1000, 1500, 2000 and then failed; no delay of
    our own.
    """
    backoff = RequestBackoff(0, 1000, listener_timeout_ms=500)
    currents = []

    asked = []
    for _ in range(4):
        asked.append(backoff.next_delay_ms())
        currents.append(backoff.current_ms)

    assert (asked, currents, backoff.is_counting_only) == ([0, 0, 0, None], [500, 1000, 1500, 2000], True)


def test_a_backwards_range_is_refused() -> None:
    """Also a negative one."""
    for initial_ms, max_ms in ((2, 1), (-1, 5)):
        with pytest.raises(ValueError, match=f"a back-off from {initial_ms} to {max_ms} ms"):
            RequestBackoff(initial_ms, max_ms)
