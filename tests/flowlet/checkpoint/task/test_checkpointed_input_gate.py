"""``CheckpointedInputGate``.

Source: Flink ``CheckpointedInputGateTest``.
"""

from typing import Any, cast

import pytest

from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode, SingleCheckpointBarrierHandler
from netstack.errors import RemoteProtocolError
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
from tests.flowlet.checkpoint.task.doubles import Mailbox, ManualTimers, RecordingListener, ScriptedGate


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

    def poll_all(self) -> list[object]:
        found: list[object] = []
        while (item := self.gate.poll_next()) is not None:
            found.append(item.event)
            if item.buffer is not None:
                found[-1] = bytes(item.buffer.view)
                item.buffer.recycle()
        return found


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


def test_the_gate_is_finished_after_the_last_end() -> None:
    fixture = Fixture(num_channels=1)
    fixture.raw.add(0, EndOfPartition())
    assert not fixture.gate.is_finished

    fixture.poll_all()

    assert fixture.gate.is_finished


def test_only_barriers_can_be_announced() -> None:
    fixture = Fixture()
    fixture.raw.add_priority(0, EventAnnouncement(1, EndOfPartition()))

    with pytest.raises(RemoteProtocolError, match="only barriers"):
        fixture.gate.poll_next()


# ---------------------------------------------------------------- several at once


def test_several_buffers_come_up_to_the_next_event_which_comes_alone() -> None:
    """No caller looks at a barrier before the data in front of it was processed, and no later data comes with it."""
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    for item in (b"one", b"two", aligned(1), b"three"):
        fixture.raw.add(0, item)

    polled = [fixture.gate.poll_many(8)]
    assert fixture.listener.calls == []
    polled += [fixture.gate.poll_many(8), fixture.gate.poll_many(8), fixture.gate.poll_many(8)]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]
    found = [[item.event if item.buffer is None else bytes(item.buffer.view) for item in items] for items in polled]
    assert found == [[b"one", b"two"], [aligned(1)], [b"three"], []]


def test_all_that_is_polled_at_once_while_a_channel_stands_still_counts_for_the_alignment() -> None:
    fixture = Fixture(mode=BarrierMode.ALIGNED)
    for channel, item in ((0, aligned(1)), (1, b"one"), (1, b"three"), (1, aligned(1))):
        fixture.raw.add(channel, item)

    while fixture.gate.poll_many(8):
        pass

    assert fixture.listener.alignments[1].bytes_processed == len(b"onethree")


def test_what_is_kept_comes_first_and_one_by_one() -> None:
    fixture = Fixture(num_channels=1)
    for data in (b"one", b"two"):
        fixture.raw.add(0, data)
        fixture.raw.pretend_priority()
        fixture.mailbox.run()
    fixture.raw.add(0, b"three")

    polled = [[bytes(item.buffer.view) for item in fixture.gate.poll_many(8) if item.buffer] for _ in range(4)]

    assert polled == [[b"one"], [b"two"], [b"three"], []]


def test_an_aligned_barrier_waits_for_data_that_was_polled_before_it_and_is_not_processed() -> None:
    """A late notification brings it to light (FLINK-20145); a snapshot now would be one without that data."""
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    unprocessed = {0}
    fixture.gate.reads_ahead(unprocessed.__contains__)
    fixture.raw.add(0, aligned(1))
    fixture.raw.pretend_priority()

    fixture.mailbox.run()
    assert fixture.listener.calls == []
    unprocessed.clear()
    assert fixture.poll_all() == [aligned(1)]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]


# ---------------------------------------------------------------- priority events


def test_a_priority_barrier_does_not_wait_for_the_default_action() -> None:
    """A mail takes it out, before the data that came first; the data is still there."""
    fixture = Fixture()
    fixture.raw.add(0, b"data")

    fixture.raw.add_priority(0, unaligned(1))
    fixture.raw.add_priority(1, unaligned(1))
    assert fixture.mailbox.run() == 1

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]
    assert fixture.poll_all() == [b"data"]


def test_priority_events_are_watched_again_after_each_mail() -> None:
    fixture = Fixture()
    for checkpoint_id in (1, 2, 3):
        fixture.raw.add_priority(0, unaligned(checkpoint_id))
        assert fixture.mailbox.run() == 1

    assert [call for call in fixture.listener.calls if call[0] == "unaligned"] == [
        ("unaligned", each) for each in (1, 2, 3)
    ]


def test_an_announcement_is_taken_by_mail_and_the_timer_lets_the_barrier_overtake() -> None:
    fixture = Fixture()
    fixture.raw.add_priority(1, EventAnnouncement(5, timeoutable(1)))
    fixture.mailbox.run()

    fixture.timers.fire()

    assert fixture.raw.calls == [("prioritize", 1, 5)]


def test_a_barrier_whose_alignment_timed_out_overtakes_what_was_polled_too() -> None:
    """The barrier's checkpoint keeps that data; waiting for a slow function would last as long as the
    alignment that timed out.
    """
    fixture = Fixture(num_channels=1)
    fixture.gate.reads_ahead({0}.__contains__)
    fixture.raw.add_priority(0, EventAnnouncement(5, timeoutable(1)))
    fixture.mailbox.run()
    fixture.timers.fire()

    fixture.raw.add_priority(0, timeoutable(1))
    fixture.mailbox.run()

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]


def test_a_poll_that_is_faster_than_the_mail() -> None:
    """The mail finds nothing with priority, and takes no data away."""
    fixture = Fixture()
    fixture.raw.add_priority(0, unaligned(1))
    fixture.raw.add(0, b"data")

    assert fixture.gate.poll_next() is not None
    fixture.mailbox.run()

    assert fixture.poll_all() == [b"data"]
    fixture.raw.add_priority(1, unaligned(1))
    assert fixture.mailbox.run() == 1, "still watched"


def test_data_that_a_late_notification_brings_to_light_is_kept() -> None:
    """FLINK-20145: the event was polled before the notification; the data comes with the next poll, and keeps the gate
    available.
    """
    fixture = Fixture(num_channels=1)
    fixture.raw.add(0, b"one")
    fixture.raw.add(0, EndOfPartition())
    fixture.raw.pretend_priority()
    fixture.mailbox.run()
    assert fixture.gate.available_future().is_done

    first = fixture.gate.poll_next()

    assert first is not None
    assert first.buffer is not None
    first.buffer.recycle()
    assert not fixture.gate.is_finished
    assert fixture.poll_all() == [EndOfPartition()]


def test_a_gate_with_kept_items_is_available_and_not_finished() -> None:
    """The gate behind has no more data, and has ended."""
    fixture = Fixture(num_channels=1)
    fixture.raw.add(0, b"one")
    fixture.raw.pretend_priority()
    fixture.mailbox.run()
    assert fixture.gate.available_future().is_done
    assert fixture.poll_all() == [b"one"]
    assert not fixture.gate.available_future().is_done

    fixture.raw.add(0, EndOfPartition())
    fixture.raw.pretend_priority()
    fixture.mailbox.run()

    assert not fixture.gate.is_finished
    assert fixture.poll_all() == [EndOfPartition()]
    assert fixture.gate.is_finished


def test_priority_events_overtake_other_mails() -> None:
    fixture = Fixture()
    order: list[int] = []
    fixture.mailbox.executor.execute(lambda: order.append(len(fixture.listener.calls)), "a mail before")

    fixture.raw.add_priority(0, unaligned(1))
    fixture.mailbox.run()

    assert order == [2]


def test_kept_items_are_all_announced() -> None:
    """``more_available`` stays set while kept items are left, so that a reader that relies on it goes on polling."""
    fixture = Fixture(num_channels=1)
    for data in (b"one", b"two"):
        fixture.raw.add(0, data)
        fixture.raw.pretend_priority()
        fixture.mailbox.run()

    first, second = fixture.gate.poll_next(), fixture.gate.poll_next()

    assert first is not None
    assert second is not None
    assert first.more_available
    assert not second.more_available
    for item in (first, second):
        assert item.buffer is not None
        item.buffer.recycle()


def test_what_is_kept_is_given_back_by_the_close() -> None:
    fixture = Fixture(num_channels=1)
    fixture.raw.add(0, b"one")
    fixture.raw.pretend_priority()
    fixture.mailbox.run()

    fixture.gate.close()

    assert fixture.raw.is_closed


def test_a_priority_event_before_the_close_is_harmless() -> None:
    """testPriorityBeforeClose: the mail comes when the gate is closed, and does not post itself for ever."""
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


# ---------------------------------------------------------------- recovery


def test_without_recovery_a_producer_goes_on_at_once() -> None:
    fixture = Fixture()
    fixture.raw.add(1, EndOfOutputChannelState())

    fixture.poll_all()

    assert fixture.raw.calls == [("resume", 1)]


# ---------------------------------------------------------------- the rest of the contract


def test_every_channel_needs_a_name() -> None:
    fixture = Fixture()

    with pytest.raises(ValueError, match="1 names for the 2 channels"):
        CheckpointedInputGate(cast("SingleInputGate", fixture.raw), fixture.handler, [(0, 0)], fixture.mailbox.executor)


def test_nothing_overtakes_what_is_kept_except_unaligned_barriers() -> None:
    """An aligned barrier or an end behind kept data waits with it; otherwise a snapshot without that data would be
    taken.
    """
    fixture = Fixture(num_channels=1, mode=BarrierMode.ALIGNED)
    for item in (b"one", aligned(1), EndOfPartition()):
        fixture.raw.add(0, item)
        fixture.raw.pretend_priority()
        fixture.mailbox.run()
    assert fixture.listener.calls == []
    assert fixture.gate.kept_in_flight(0) == [b"one"]

    assert fixture.poll_all() == [b"one", aligned(1), EndOfPartition()]

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]
    assert fixture.gate.kept_in_flight(0) == []


def test_an_unaligned_barrier_overtakes_what_is_kept_which_is_in_flight_then() -> None:
    fixture = Fixture(num_channels=1, mode=BarrierMode.UNALIGNED)
    fixture.raw.add(0, b"one")
    fixture.raw.pretend_priority()
    fixture.mailbox.run()

    fixture.raw.add_priority(0, unaligned(1))
    fixture.mailbox.run()

    assert ("unaligned", 1) in fixture.listener.calls
    assert fixture.gate.kept_in_flight(0) == [b"one"]
    assert fixture.poll_all() == [b"one"]
