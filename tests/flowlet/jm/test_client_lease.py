"""Tests of ``flowlet.jm.client_lease``, by a clock that moves by hand."""

from flowlet.jm.client_lease import ClientLease
from tests.flowlet.rpc.manual_timers import ManualTimers


class Watched:
    """A lease of ten seconds, and how often it expired."""

    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.num_expired = 0
        self.lease = ClientLease(10.0, self.timers, self._expired)

    def _expired(self) -> None:
        self.num_expired += 1


def test_it_expires_once_when_nobody_renews_it() -> None:
    watched = Watched()

    watched.timers.advance(9.9)
    before = watched.num_expired
    watched.timers.advance(0.1)
    watched.timers.advance(100)

    assert (before, watched.num_expired) == (0, 1)
    assert repr(watched.lease) == "<ClientLease of 10 s, over>"


def test_each_renewal_gives_the_whole_time_again() -> None:
    watched = Watched()

    for _ in range(10):
        watched.timers.advance(9)
        watched.lease.renew()
    before = watched.num_expired
    watched.timers.advance(10)

    assert (before, watched.num_expired) == (0, 1)


def test_a_loop_that_stood_still_gives_the_whole_time_again() -> None:
    """What the client sent meanwhile is still in the socket."""
    watched = Watched()

    watched.timers.stall(60)
    after_stall = watched.num_expired
    watched.timers.advance(10)

    assert (after_stall, watched.num_expired) == (0, 1)


def test_a_closed_one_does_not_expire() -> None:
    watched = Watched()

    watched.lease.close()
    watched.lease.close()
    watched.timers.advance(100)

    assert watched.num_expired == 0
