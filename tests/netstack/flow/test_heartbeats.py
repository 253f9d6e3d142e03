"""The times at which a connection needs a heartbeat, and at which its peer counts as lost."""

from itertools import islice

import pytest

from netstack.flow.heartbeats import Backoff, Heartbeats, Silence, Verdict


def looks(
    heartbeats: Heartbeats, until_s: float, *, bytes_in: int = 0, bytes_out: int = 0, start_s: float = 0.0
) -> list[Verdict]:
    """Look at every due time in ``(start_s, until_s]``; the counters stand still."""
    verdicts, now_s = [], start_s
    while (now_s := now_s + heartbeats.look_s) <= until_s:
        verdicts.append(heartbeats.look(now_s, bytes_in, bytes_out))
    return verdicts


def test_a_quiet_end_sends_before_its_peer_has_waited_an_interval() -> None:
    """Bytes that were sent count until the look after the next."""
    heartbeats = Heartbeats(2.0, 10.0, now_s=0.0)

    assert heartbeats.look_s == 1.0
    assert heartbeats.look(1.0, 0, 0) is Verdict.SEND
    assert heartbeats.look(2.0, 0, 13) is Verdict.NOTHING, "the heartbeat left"
    assert heartbeats.look(3.0, 0, 13) is Verdict.SEND


def test_the_peer_is_lost_after_the_timeout_and_not_before() -> None:
    heartbeats = Heartbeats(2.0, 10.0, now_s=0.0)

    verdicts = looks(heartbeats, 10.0)

    assert verdicts[:-1] == [Verdict.SEND] * 9
    assert verdicts[-1] is Verdict.CUT
    assert heartbeats.silent_s == 10.0


def test_one_byte_is_a_sign_of_life() -> None:
    heartbeats = Heartbeats(2.0, 10.0, now_s=0.0)
    looks(heartbeats, 9.0)

    heartbeats.look(10.0, 1, 0)

    assert heartbeats.silent_s == 0.0
    assert Verdict.CUT not in looks(heartbeats, 19.0, bytes_in=1, start_s=10.0)


def test_the_time_in_which_this_end_stood_still_is_no_silence_of_its_peer() -> None:
    """The bytes that arrived meanwhile are read only after the first look."""
    heartbeats = Heartbeats(2.0, 10.0, now_s=0.0)

    assert heartbeats.look(3600.0, 0, 0) is Verdict.SEND
    assert heartbeats.silent_s == 1.0


def test_a_peer_gets_heartbeats_as_often_as_it_asks_for() -> None:
    """A peer's interval makes heartbeats more frequent, and never less frequent than this end's own interval."""
    heartbeats = Heartbeats(2.0, 10.0, now_s=0.0)

    assert heartbeats.peer_wants(0.5)
    assert heartbeats.look_s == 0.25
    assert heartbeats.peer_wants(60.0)
    assert heartbeats.look_s == 1.0, "its own interval"
    assert not heartbeats.peer_wants(50.0)
    assert "silent for 0.0 of 10 s" in repr(heartbeats)


def silent_for_s(silence: Silence, *stalls_s: float) -> float:
    """Look as a timer does that is late by each of ``stalls_s``, until the peer is lost; how long that takes."""
    now_s, stalls = 0.0, iter(stalls_s)
    while True:
        now_s += silence.next_look_s + next(stalls, 0.0)
        if silence.look(now_s):
            return now_s


@pytest.mark.parametrize("stalls_s", [(), (0.3,), (0.0, 15.0), (15.0,) * 3, (1e6,)])
def test_time_in_which_this_end_stood_still_is_no_silence(stalls_s: tuple[float, ...]) -> None:
    """The peer gets the whole timeout without it, however short or long it was and wherever it ends."""
    assert silent_for_s(Silence(50.0, 0.0), *stalls_s) == pytest.approx(50.0 + sum(stalls_s))


def test_a_peer_that_was_heard_gets_the_whole_timeout_again() -> None:
    silence = Silence(50.0, 0.0)
    silence.look(10.0)
    silence.heard(13.0)

    verdicts = [silence.look(now_s) for now_s in (20.0, 30.0, 40.0, 50.0, 60.0, 62.9, 63.0)]

    assert verdicts == [False] * 6 + [True]


# ---------------------------------------------------------------- the delay before another try


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
