"""``ReplyBudget`` and ``RateLimit``."""

import pytest
from structlog.testing import capture_logs

from netstack.flow.admission import MAX_WAITING_REPLIES, MAX_WAITING_REPLY_BYTES, RateLimit, ReplyBudget
from netstack.testing.embedded_event_loop import ManualClock
from netstack.transport.network_channel import NetworkChannel
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers


def test_what_is_written_to_a_writable_channel_does_not_count() -> None:
    """Messages to a writable channel do not count, however many they are."""
    budget = ReplyBudget()

    assert all(budget.spend(10_000, is_writable=True) for _ in range(10 * MAX_WAITING_REPLIES))


@pytest.mark.parametrize(
    ("num_bytes", "limit"), [(1, MAX_WAITING_REPLIES), (64 * 1024, MAX_WAITING_REPLY_BYTES // (64 * 1024))]
)
def test_what_waits_is_bounded_in_messages_and_bytes(num_bytes: int, limit: int) -> None:
    """The last one that fits is fine, the next one is too much."""
    budget = ReplyBudget()

    assert all(budget.spend(num_bytes, is_writable=False) for _ in range(limit))
    assert not budget.spend(num_bytes, is_writable=False)
    assert str(limit + 1) in repr(budget)


def test_a_peer_that_reads_again_starts_anew() -> None:
    """A writable channel resets the count of waiting replies."""
    budget = ReplyBudget()
    for _ in range(MAX_WAITING_REPLIES):
        budget.spend(1, is_writable=False)

    budget.spend(1, is_writable=True)

    assert all(budget.spend(1, is_writable=False) for _ in range(MAX_WAITING_REPLIES))


def test_a_burst_is_ten_seconds_worth_and_refills_with_time() -> None:
    """After its burst, a rate allows one message per period, and never saves up more than the burst."""
    clock = ManualClock()
    limit = RateLimit(2.0, lambda: clock.now_ns() / 1e9)

    assert [limit.take() for _ in range(21)] == [True] * 20 + [False]
    clock.advance(500_000_000)
    assert [limit.take(), limit.take()] == [True, False]
    clock.advance(3_600_000_000_000)
    assert [limit.take() for _ in range(21)] == [True] * 20 + [False]
    assert "2/s" in repr(limit)


def test_answers_that_were_expected_make_the_budget_larger() -> None:
    """Each expected reply adds one message to the budget, however long it is."""
    budget = ReplyBudget(num_expected=100)

    assert all(budget.spend(1000, is_writable=False) for _ in range(MAX_WAITING_REPLIES + 100))
    assert not budget.spend(1, is_writable=False)


def test_messages_that_nobody_serves_cannot_fill_the_log() -> None:
    """A peer may send any number of them."""
    channel = NetworkChannel(CONFIG, handlers(Inbox()))

    with capture_logs() as logs:
        for _ in range(100):
            channel.on_unhandled_message(object())

    assert 1 <= len([line for line in logs if line["event"] == "no handler serves the message"]) <= 20
