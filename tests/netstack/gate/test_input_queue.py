"""``InputQueue``: the turns of channels, priority events, and the futures."""

from collections.abc import Callable
from functools import partial

import pytest

from netstack.wire.events import CheckpointBarrier, EndOfPartition
from tests.netstack.gate.remote_gate import UNALIGNED, RemoteGate, kinds, requested_gate


def test_a_channel_with_a_priority_event_goes_first(it: RemoteGate) -> None:
    """A channel with a priority event moves before the waiting channels, and afterwards takes its turn among them."""
    it.receive(0, b"0")
    it.receive(1, b"1")
    it.receive_priority(1)
    states = [it.gate.priority_event_available_future().is_done]

    found = [it.poll()]
    states.append(it.gate.priority_event_available_future().is_done)
    found += [it.poll(), it.poll()]

    assert kinds(found) == [(1, True, True, False), (0, False, True, False), (1, False, False, False)]
    assert (states, found[0].event) == ([True, False], UNALIGNED)


def test_priority_events_of_several_channels(it: RemoteGate) -> None:
    """Each priority event says whether there are more of them."""
    told: list[str] = []
    it.gate.priority_event_available_future().add_done_callback(lambda: told.append("priority"))
    it.gate.available_future().add_done_callback(lambda: told.append("data"))
    it.receive_priority(0)
    it.receive_priority(1)
    it.receive_priority(1, CheckpointBarrier(2, 124, UNALIGNED.options))

    found = [it.poll() for _ in range(3)]

    assert told == ["priority", "data"]
    assert kinds(found) == [(0, True, True, True), (1, True, True, True), (1, True, False, False)]


def test_after_the_close_no_channel_stands_in_line(it: RemoteGate) -> None:
    """Neither one with data nor one with a priority event."""
    it.receive(0)
    it.receive_priority(1)

    it.gate.close()

    it.gate.check_invariants()
    assert not it.gate.channels[0].is_queued
    assert not it.gate.channels[1].is_queued


def test_a_late_priority_notification_is_outdated(it: RemoteGate) -> None:
    """A45, F22: it carries the number of an event that was polled already; a forced one counts, and finds nothing."""
    channel = it.gate.channels[0]
    it.receive_priority(0)
    it.poll()

    it.gate.notify_priority_event(channel, 0)
    outdated = it.gate.priority_event_available_future().is_done
    it.gate.notify_priority_event_force(channel)
    forced = it.gate.priority_event_available_future().is_done

    assert (outdated, forced, it.gate.poll_next()) == (False, True, None)
    assert not it.gate.priority_event_available_future().is_done
    it.gate.check_invariants()


def _late_notifications(it: RemoteGate) -> list[Callable[[], None]]:
    """Collect the loop's notifications of priority events, for a task that is faster than the loop."""
    late: list[Callable[[], None]] = []
    notify = it.gate.notify_priority_event
    it.gate.notify_priority_event = lambda channel, number: late.append(partial(notify, channel, number))  # type: ignore[method-assign,assignment]  # forced
    return late


def test_a_priority_event_that_was_polled_as_an_ordinary_one_is_remembered(it: RemoteGate) -> None:
    """The channel had its turn because of its data, and the loop comes with its news afterwards: there are none."""
    late = _late_notifications(it)
    it.receive(0)
    it.receive_priority(0)
    found = [it.poll()]

    late.pop()()

    assert not it.gate.priority_event_available_future().is_done
    found.append(it.poll())
    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


@pytest.mark.parametrize("is_first_prioritized", [False, True])
def test_a_priority_event_that_is_told_of_while_it_is_polled_leaves_nothing_behind(
    it: RemoteGate, is_first_prioritized: bool
) -> None:
    """The notification comes between the poll and the look at the queue: the event is in hand already."""
    late = _late_notifications(it)
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def next_buffer() -> object:
        polled = original()
        while late:
            late.pop()()
        return polled

    it.receive(0)
    it.receive_priority(0)
    if is_first_prioritized:
        it.gate.notify_priority_event_force(channel)
    channel.next_buffer = next_buffer  # type: ignore[method-assign,assignment]  # a forced interleaving

    found = [it.poll()]

    assert not it.gate.priority_event_available_future().is_done
    found.append(it.poll())
    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


def test_a_later_priority_event_that_is_told_of_while_one_is_polled_counts(it: RemoteGate) -> None:
    """A notification that comes while a priority event is polled counts if it announces the next one."""
    late = _late_notifications(it)
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def next_buffer() -> object:
        polled = original()
        if it.numbers[0] == 2:
            it.receive_priority(0, CheckpointBarrier(2, 124, UNALIGNED.options))
            while late:
                late.pop()()
        return polled

    it.receive(0)
    it.receive_priority(0)
    channel.next_buffer = next_buffer  # type: ignore[method-assign,assignment]  # a forced interleaving

    found = [it.poll()]

    assert it.gate.priority_event_available_future().is_done
    found += [it.poll(), it.poll()]
    assert kinds(found) == [(0, True, True, True), (0, True, True, False), (0, False, False, False)]


def test_outdated_numbers_are_told_apart_across_the_wrap(it: RemoteGate) -> None:
    """F22: numbers are compared across the wrap: after 2^31 - 1 comes -2^31."""
    channel = it.gate.channels[0]
    seen = []
    for last, number in ((2**31 - 1, -(2**31)), (-(2**31), 2**31 - 1), (-5, -6), (-6, -5), (7, 7)):
        channel.last_priority_sequence_number = last
        it.gate.notify_priority_event(channel, number)
        seen.append(it.gate.priority_event_available_future().is_done)
        assert it.gate.poll_next() is None

    assert seen == [True, False, False, True, False]


def test_a_double_notification_queues_once(it: RemoteGate) -> None:
    """A45: with and without priority, in every order."""
    channel = it.gate.channels[0]
    for _ in range(2):
        it.gate.notify_channel_non_empty(channel)
        it.gate.notify_priority_event_force(channel)
        it.gate.notify_priority_event_force(channel)
        it.gate.notify_channel_non_empty(channel)
        it.gate.check_invariants()

    assert it.gate.available_future().is_done
    assert (it.gate.poll_next(), it.gate.available_future().is_done) == (None, False)
    it.gate.check_invariants()


def test_a_priority_event_during_the_poll_is_not_lost(it: RemoteGate) -> None:
    """That poll finds it, and promises no further priority event."""
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def receive_after() -> object:
        if it.numbers[0] == 1:
            it.gate.notify_channel_non_empty(channel)
            it.receive_priority(0)
        return original()

    channel.next_buffer = receive_after  # type: ignore[method-assign,assignment]  # a forced interleaving
    it.receive(0)

    found = [it.poll(), it.poll()]

    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


def test_close_completes_both_futures(it: RemoteGate) -> None:
    """A thread that waits only for priority events wakes up at ``close``, too."""
    priority = it.gate.priority_event_available_future()

    it.gate.close()

    assert (priority.is_done, it.gate.available_future().is_done) == (True, True)


def test_hist_22368_an_ended_channel_does_not_stay_in_the_queue(it: RemoteGate) -> None:
    """A notification slipped in before the release: the task would be woken for nothing."""
    channel = it.gate.channels[1]
    original = channel.release
    it.receive_event(1, EndOfPartition())

    def notify_first() -> None:
        it.gate.notify_channel_non_empty(channel)
        it.gate.notify_priority_event_force(channel)
        original()

    channel.release = notify_first  # type: ignore[method-assign]  # a forced interleaving

    found = it.poll()

    assert (found.more_available, it.gate.available_future().is_done, it.gate.unfinished_channels) == (
        False,
        False,
        [0],
    )
    assert channel.is_queued is False


def test_a_release_while_the_channel_is_polled() -> None:
    """TestReleaseWhilePollingChannel (FLINK-17823): the close finds the channel in the task's hands."""
    it = requested_gate(1)
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def close_after() -> object:
        found = original()
        it.gate.close()
        return found

    channel.next_buffer = close_after  # type: ignore[method-assign,assignment]  # a forced interleaving
    it.receive(0)
    it.receive(0)

    found = it.gate.poll_next()

    assert found is not None
    assert found.buffer is not None
    found.buffer.recycle()
