"""Tests of ``flowlet.jm.client_lease``, by a clock that moves by hand."""

import pytest

from flowlet.jm.client_lease import ClientLease
from tests.flowlet.rpc.manual_timers import ManualTimers


class Watched:
    """A lease of ten seconds, and how often it expired."""

    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.num_expired = 0
        self.has_left: bool | None = None
        self.lease = ClientLease(10.0, self.timers, self._expired)

    def _expired(self, reason: str) -> None:
        self.has_left = reason.startswith("its client has ended")
        self.num_expired += 1


def test_it_expires_once_when_nobody_renews_it() -> None:
    watched = Watched()

    watched.timers.advance(9.9)
    before = watched.num_expired
    watched.timers.advance(0.1)
    watched.timers.advance(100)

    assert (before, watched.num_expired) == (0, 1)
    assert repr(watched.lease) == "<ClientLease of 10.0 s, over>"


def test_each_renewal_gives_the_whole_time_again() -> None:
    watched = Watched()

    for _ in range(10):
        watched.timers.advance(9)
        watched.lease.renew()
    before = watched.num_expired
    watched.timers.advance(10)

    assert (before, watched.num_expired) == (0, 1)


def test_a_loop_that_stood_still_gives_the_whole_time_again() -> None:
    """The client's messages of that time are still in the socket."""
    watched = Watched()

    watched.timers.stall(60)
    after_stall = watched.num_expired
    watched.timers.advance(10)

    assert (after_stall, watched.num_expired) == (0, 1)


@pytest.mark.parametrize("stall_s", [0.3, 9.5, 10.2, 45.0])
def test_no_stall_of_the_loop_is_the_silence_of_a_client(stall_s: float) -> None:
    """A stall may end just behind the deadline, when the timer is hardly late."""
    watched = Watched()
    watched.timers.advance(7.9)  # without a report

    watched.timers.stall(stall_s)
    after_stall = watched.num_expired
    watched.lease.renew()
    watched.timers.advance(9.9)

    assert (after_stall, watched.num_expired) == (0, 0)


def test_the_end_of_a_connection_that_is_noticed_late_is_not_that_of_the_client() -> None:
    """Its next request came over another connection before."""
    watched = Watched()
    former = watched.lease.renew()
    newest = watched.lease.renew()

    watched.lease.client_left(former)
    watched.timers.advance(9.9)
    after_late_news = watched.num_expired
    watched.lease.client_left(newest)
    watched.timers.advance(5)

    assert (after_late_news, watched.num_expired, watched.has_left) == (0, 1, True)


def test_a_client_that_left_gets_five_seconds_to_come_again() -> None:
    came, left = Watched(), Watched()
    came.timers.advance(9)
    left.timers.advance(9)

    for each in (came, left):
        each.lease.client_left(each.lease.renew())
        each.timers.advance(4.9)
    came.lease.renew()
    came.timers.advance(9.9)
    before = left.num_expired
    left.timers.advance(0.2)

    assert (came.num_expired, before, left.num_expired, left.has_left) == (0, 0, 1, True)


def test_a_closed_one_does_not_expire() -> None:
    watched = Watched()

    watched.lease.close()
    watched.lease.client_left(watched.lease.renew())
    watched.lease.close()
    watched.timers.advance(100)

    assert watched.num_expired == 0
