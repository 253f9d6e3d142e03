"""``Admission``: the oldest stranger is cut first, and authenticated connections stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from netstack.flow.admission import (
    MAX_WAITING_REPLIES,
    MAX_WAITING_REPLY_BYTES,
    Admission,
    AdmissionStatistics,
    RateLimit,
    ReplyBudget,
)
from netstack.testing.embedded_event_loop import ManualClock
from netstack.transport.network_channel import NetworkChannel
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers

LOOPBACK = "127.0.0.1"


def make(max_connections: int = 10, max_unauthenticated: int = 3, per_host: int = 2) -> Admission[int]:
    return Admission(
        max_connections=max_connections, max_unauthenticated=max_unauthenticated, max_unauthenticated_per_host=per_host
    )


def test_the_oldest_unauthenticated_one_makes_room() -> None:
    book = make()
    for number in range(3):
        assert book.arrive(number, LOOPBACK) == []
    book.authenticate(0)

    assert book.arrive(3, LOOPBACK) == []
    assert book.arrive(4, LOOPBACK) == [1]
    assert [book.is_authenticated(number) for number in range(5)] == [True, False, False, False, False]
    assert book.statistics() == AdmissionStatistics(
        num_connections=4, num_unauthenticated=3, num_evicted=1, num_refused=0
    )


def test_one_address_cannot_use_up_what_is_for_all() -> None:
    """Except on loopback, where every client has this machine's address."""
    book = make(max_unauthenticated=5)
    for number in range(2):
        assert book.arrive(number, "192.0.2.1") == []
    assert book.arrive(2, "192.0.2.2") == []

    assert book.arrive(3, "192.0.2.1") == [0]
    assert book.arrive(4, LOOPBACK) == []
    assert book.arrive(5, LOOPBACK) == []


def test_a_full_house_of_known_ones_refuses_the_next() -> None:
    book = make(max_connections=2)
    for number in range(2):
        book.arrive(number, LOOPBACK)
        book.authenticate(number)

    assert book.arrive(2, LOOPBACK) is None
    assert book.statistics().num_refused == 1
    book.leave(0)
    book.leave(0)
    assert book.arrive(3, LOOPBACK) == []


def test_a_stranger_makes_room_in_a_full_house() -> None:
    book = make(max_connections=2)
    book.arrive(0, LOOPBACK)
    book.authenticate(0)
    book.arrive(1, LOOPBACK)

    assert book.arrive(2, LOOPBACK) == [1]


def test_one_that_was_cut_is_not_known_any_more() -> None:
    """A stranger that was cut is not authenticated by a proof that was on its way."""
    book = make(max_unauthenticated=1)
    book.arrive(0, LOOPBACK)
    assert book.arrive(1, LOOPBACK) == [0]

    book.authenticate(0)

    assert not book.is_authenticated(0)
    assert "1 connections, 1 unauthenticated" in repr(book)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "authenticate", "leave"]),
            st.integers(0, 9),
            st.sampled_from(["127.0.0.1", "a", "b"]),
        )
    )
)
def test_no_limit_is_ever_exceeded(steps: list[tuple[str, int, str]]) -> None:
    book, known = make(max_connections=5), set[int]()
    for kind, number, host in steps:
        if kind == "leave":
            book.leave(number)
            known.discard(number)
        elif kind == "authenticate":
            book.authenticate(number)
        elif number not in known:
            evicted = book.arrive(number, host)
            known -= set(evicted or ())
            if evicted is not None:
                known.add(number)
        book.check_invariants()
        assert book.statistics().num_connections == len(known)


# ---------------------------------------------------------------- limits per peer


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
