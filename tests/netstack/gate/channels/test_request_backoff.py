"""``RequestBackoff``: whether there is another request."""

from netstack.gate.channels.input_channel import RequestBackoff


def test_with_a_waiting_producer_the_time_only_counts() -> None:
    """RemoteInputChannelTest: listener time-out 500, maximum 1000: 500, 1000, 1500, 2000 and then failed."""
    backoff = RequestBackoff(1000, 500)

    asked = [(backoff.next(), backoff.waited_ms) for _ in range(4)]

    assert asked == [(True, 500), (True, 1000), (True, 1500), (False, 2000)]


def test_there_may_be_no_other_request() -> None:
    """LocalInputChannelTest: no back-off (0, 0)."""
    assert not RequestBackoff().next()
