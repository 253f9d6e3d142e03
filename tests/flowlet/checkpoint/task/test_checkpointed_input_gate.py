"""``CheckpointedInputGate``.

Source: Flink ``CheckpointedInputGateTest``.
"""

from typing import Any, cast

import pytest

from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode, SingleCheckpointBarrierHandler
from netstack.errors import RemoteProtocolError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import (
    CancelCheckpointMarker,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    Event,
    EventAnnouncement,
    OtherEvent,
    StopMode,
)
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.doubles import Mailbox, RecordingListener, ScriptedGate
from tests.netstack.gate.manual_timers import ManualTimers


class Fixture:
    def __init__(self, num_channels: int = 2, mode: BarrierMode = BarrierMode.ALTERNATING) -> None:
        self.raw = ScriptedGate(num_channels)
        self.listener = RecordingListener()
        self.timers = ManualTimers()
        self.mailbox = Mailbox()
        self.handler = CheckpointBarrierHandler(
            SingleCheckpointBarrierHandler(num_channels, mode),
            cast(Any, [self.raw]),
            cast(Any, self.listener),
            self.timers.call_later,
        )
        channels = [(0, index) for index in range(num_channels)]
        self.gate = CheckpointedInputGate(
            cast("SingleInputGate", self.raw),  # what it needs of one
            self.handler,
            channels,
            self.mailbox.executor,
        )

    def add(self, *items: Event | bytes) -> None:
        """Add items of channel 0."""
        for item in items:
            self.raw.add(0, item)

    def keep(self, *items: Event | bytes) -> None:
        """Add items of channel 0, each with a notification of priority that comes too late and brings it to light."""
        for item in items:
            self.raw.add(0, item)
            self.raw.pretend_priority()
            self.mailbox.run()

    def bring_priority(self, channel: int, event: Event) -> None:
        """An event overtakes what the gate has; a mail takes it out."""
        self.raw.add_priority(channel, event)
        assert self.mailbox.run() == 1

    def poll(self) -> list[object]:
        """Poll once, several items at a time."""
        return [self._content(item) for item in self.gate.poll_many(8)]

    def poll_all(self) -> list[object]:
        found: list[object] = []
        while (item := self.gate.poll_next()) is not None:
            found.append(self._content(item))
        return found

    def _content(self, item: BufferOrEvent) -> object:
        if item.buffer is None:
            return item.event
        content = bytes(item.buffer.view)
        item.buffer.recycle()
        return content


def test_barriers_are_handled_and_the_caller_sees_everything() -> None:
    """The caller may ignore elements that are about checkpoints."""
    fixture = Fixture(mode=BarrierMode.ALIGNED)
    events: list[Event | bytes] = [b"a", aligned(1), b"b", aligned(1), CancelCheckpointMarker(2), OtherEvent("x", b"")]
    for channel, event in zip([0, 0, 1, 1, 0, 0], events, strict=True):
        fixture.raw.add(channel, event)

    assert fixture.poll_all() == events
    assert fixture.listener.calls == [("trigger", 1), ("complete", 1), ("abort", 2)]
    assert fixture.raw.calls == [("resume", 0), ("resume", 1)]
    assert fixture.listener.alignments[1].bytes_processed == 1, "b came while channel 0 stood still"


def test_the_end_of_data_is_acknowledged_when_it_is_polled() -> None:
    """All data before it was processed; the caller's own acknowledgement would be one too many."""
    fixture = Fixture()
    fixture.raw.add(1, EndOfData(StopMode.DRAIN))

    item = fixture.gate.poll_next()

    assert item is not None
    fixture.gate.acknowledge_all_records_processed(1)
    assert fixture.raw.acknowledged == [1]


def test_the_end_of_a_partition_counts_for_the_checkpoint() -> None:
    fixture = Fixture(mode=BarrierMode.ALIGNED)
    fixture.raw.add(0, aligned(1))
    fixture.raw.add(1, EndOfPartition())

    fixture.poll_all()

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]


def test_only_barriers_can_be_announced() -> None:
    fixture = Fixture()
    fixture.raw.add_priority(0, EventAnnouncement(1, EndOfPartition()))

    with pytest.raises(RemoteProtocolError, match="only barriers"):
        fixture.gate.poll_next()


# ---------------------------------------------------------------- several at once


def test_several_buffers_come_up_to_the_next_event_which_comes_alone() -> None:
    """No caller looks at a barrier before the data in front of it was processed, and no later data comes with it."""
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    fixture.add(b"one", b"two", aligned(1), b"three")

    assert fixture.poll() == [b"one", b"two"]
    assert fixture.listener.calls == []
    assert [fixture.poll(), fixture.poll(), fixture.poll()] == [[aligned(1)], [b"three"], []]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]


def test_all_that_is_polled_at_once_while_a_channel_stands_still_counts_for_the_alignment() -> None:
    fixture = Fixture(mode=BarrierMode.ALIGNED)
    for channel, item in ((0, aligned(1)), (1, b"one"), (1, b"three"), (1, aligned(1))):
        fixture.raw.add(channel, item)

    while fixture.poll():
        pass

    assert fixture.listener.alignments[1].bytes_processed == len(b"onethree")


def test_what_is_kept_comes_first_and_one_by_one() -> None:
    fixture = Fixture(num_channels=1)
    fixture.keep(b"one", b"two")
    fixture.add(b"three")

    assert [fixture.poll() for _ in range(4)] == [[b"one"], [b"two"], [b"three"], []]


def test_an_aligned_barrier_waits_for_data_that_was_polled_before_it_and_is_not_processed() -> None:
    """A late notification brings it to light (FLINK-20145); a snapshot now would be one without that data."""
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    unprocessed = {0}
    fixture.gate.reads_ahead(unprocessed.__contains__)

    fixture.keep(aligned(1))
    assert fixture.listener.calls == []
    unprocessed.clear()
    assert fixture.poll_all() == [aligned(1)]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]


# ---------------------------------------------------------------- priority events


def test_a_priority_barrier_does_not_wait_for_the_default_action() -> None:
    """A mail takes it out, before the data that came first; the data is still there."""
    fixture = Fixture()
    fixture.add(b"data")

    fixture.raw.add_priority(0, unaligned(1))
    fixture.bring_priority(1, unaligned(1))

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]
    assert fixture.poll_all() == [b"data"]


def test_priority_events_are_watched_again_after_each_mail() -> None:
    fixture = Fixture()

    for checkpoint_id in (1, 2, 3):
        fixture.bring_priority(0, unaligned(checkpoint_id))

        assert fixture.listener.calls[-1] == ("unaligned", checkpoint_id)


def test_an_announcement_is_taken_by_mail_and_the_timer_lets_the_barrier_overtake() -> None:
    fixture = Fixture()
    fixture.bring_priority(1, EventAnnouncement(5, timeoutable(1)))

    fixture.timers.ring()

    assert fixture.raw.calls == [("prioritize", 1, 5)]


def test_a_barrier_whose_alignment_timed_out_overtakes_what_was_polled_too() -> None:
    """Its checkpoint keeps that data; waiting for a slow function would last as long as the alignment."""
    fixture = Fixture(num_channels=1)
    fixture.gate.reads_ahead({0}.__contains__)
    fixture.bring_priority(0, EventAnnouncement(5, timeoutable(1)))
    fixture.timers.ring()

    fixture.bring_priority(0, timeoutable(1))

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]


def test_a_poll_that_is_faster_than_the_mail() -> None:
    """The mail finds nothing with priority, and takes no data away."""
    fixture = Fixture()
    fixture.raw.add_priority(0, unaligned(1))
    fixture.add(b"data")

    assert fixture.gate.poll_next() is not None
    fixture.mailbox.run()

    assert fixture.poll_all() == [b"data"]
    fixture.bring_priority(1, unaligned(1))  # still watched


def test_a_gate_with_kept_items_is_available_and_not_finished() -> None:
    """FLINK-20145: an event was polled before its notification, which then brings data or an end to light; those come
    with the next poll.  ``more_available`` stays set meanwhile, so that a reader that relies on it goes on polling.
    """
    fixture = Fixture(num_channels=1)
    fixture.keep(b"one", b"two")
    assert fixture.gate.available_future().is_done
    first, second = fixture.gate.poll_next(), fixture.gate.poll_next()
    assert first is not None
    assert first.more_available
    assert second is not None
    assert not second.more_available
    assert not fixture.gate.available_future().is_done

    fixture.keep(EndOfPartition())

    assert not fixture.gate.is_finished
    assert fixture.poll_all() == [EndOfPartition()]
    assert fixture.gate.is_finished


def test_data_is_kept_in_front_of_the_end_of_its_partition() -> None:
    fixture = Fixture(num_channels=1)
    fixture.add(b"one", EndOfPartition())
    fixture.raw.pretend_priority()
    fixture.mailbox.run()

    assert fixture.poll() == [b"one"]
    assert not fixture.gate.is_finished
    assert fixture.poll_all() == [EndOfPartition()]


def test_priority_events_overtake_other_mails() -> None:
    fixture = Fixture()
    order: list[int] = []
    fixture.mailbox.executor.execute(lambda: order.append(len(fixture.listener.calls)), "a mail before")

    fixture.raw.add_priority(0, unaligned(1))
    fixture.mailbox.run()

    assert order == [2]


def test_what_is_kept_is_given_back_by_the_close() -> None:
    fixture = Fixture(num_channels=1)
    fixture.keep(b"one")

    fixture.gate.close()

    assert fixture.raw.is_closed


def test_a_priority_event_before_the_close_is_harmless() -> None:
    """The mail comes when the gate is closed, and does not post itself for ever."""
    fixture = Fixture()
    fixture.raw.add_priority(0, unaligned(1))

    fixture.gate.close()

    assert fixture.mailbox.run() == 1
    assert fixture.listener.calls == []


def test_a_closed_mailbox_takes_no_notice() -> None:
    """The network may still bring barriers when the task has ended."""
    fixture = Fixture()
    fixture.mailbox.mailbox.quiesce()
    fixture.mailbox.mailbox.close()

    fixture.raw.add_priority(0, unaligned(1))

    assert fixture.listener.calls == []


# ---------------------------------------------------------------- the rest of the contract


def test_without_recovery_a_producer_goes_on_at_once() -> None:
    fixture = Fixture()
    fixture.raw.add(1, EndOfOutputChannelState())

    fixture.poll_all()

    assert fixture.raw.calls == [("resume", 1)]


def test_every_channel_needs_a_name() -> None:
    fixture = Fixture()

    with pytest.raises(ValueError, match="1 names for the 2 channels"):
        CheckpointedInputGate(cast("SingleInputGate", fixture.raw), fixture.handler, [(0, 0)], fixture.mailbox.executor)


def test_nothing_overtakes_what_is_kept_except_unaligned_barriers() -> None:
    """An aligned barrier or an end behind kept data waits with it; else a snapshot would lack that data."""
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    fixture.keep(b"one", aligned(1), EndOfPartition())
    assert fixture.listener.calls == []
    assert fixture.gate.kept_in_flight(0) == [b"one"]

    assert fixture.poll_all() == [b"one", aligned(1), EndOfPartition()]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]
    assert fixture.gate.kept_in_flight(0) == []


def test_an_unaligned_barrier_overtakes_what_is_kept_which_is_in_flight_then() -> None:
    fixture = Fixture(num_channels=1, mode=BarrierMode.UNALIGNED)
    fixture.keep(b"one")

    fixture.bring_priority(0, unaligned(1))

    assert ("unaligned", 1) in fixture.listener.calls
    assert fixture.gate.kept_in_flight(0) == [b"one"]
    assert fixture.poll_all() == [b"one"]
