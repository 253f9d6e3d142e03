"""``CheckpointBarrierTracker``: at least once.

Source: Flink ``CheckpointBarrierTrackerTest``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.checkpoint.task.barrier_orders import (
    AlignmentTimedOut,
    BeginAlignment,
    CheckpointFailureReason,
    CheckpointRefused,
    CompleteInputs,
    TriggerCheckpointOnBarrier,
)
from flowlet.checkpoint.task.checkpoint_barrier_tracker import MAX_TRACKED
from tests.flowlet.checkpoint.task.barriers import Gate, aligned, timeoutable, unaligned

CANCELLED = CheckpointFailureReason.CANCELLATION_BARRIER
ENDED = CheckpointFailureReason.INPUT_END_OF_STREAM


def tracker(num_channels: int, *, after_finish: bool = True) -> Gate:
    return Gate(num_channels, None, after_finish=after_finish)


def feed(gate: Gate, *barriers: tuple[int, int]) -> None:
    """Pairs of id and channel, as in Flink's tests."""
    for checkpoint_id, channel in barriers:
        gate.barrier(channel, aligned(checkpoint_id))


def test_a_single_channel_triggers_at_once() -> None:
    """TestSingleChannelWithBarriers."""
    gate = tracker(1)

    assert gate.barrier(0, aligned(1, 3)) == [
        BeginAlignment(1, 3),
        TriggerCheckpointOnBarrier(aligned(1, 3)),
        CompleteInputs(1),
    ]
    feed(gate, (2, 0), (3, 0), (4, 0), (5, 0), (6, 0))

    assert gate.triggered == [1, 2, 3, 4, 5, 6]


def test_ids_may_be_left_out() -> None:
    """TestSingleChannelWithSkippedBarriers."""
    gate = tracker(1)

    feed(gate, (1, 0), (3, 0), (4, 0), (7, 0), (10, 0))

    assert gate.triggered == [1, 3, 4, 7, 10]


def test_a_barrier_that_comes_twice_triggers_once() -> None:
    gate = tracker(1)

    feed(gate, (1, 0), (1, 0))

    assert gate.triggered == [1]


def test_the_last_of_several_channels_triggers() -> None:
    """testMultiChannelWithBarriers: nothing is ever blocked."""
    gate = tracker(3)

    feed(gate, (1, 0), (1, 2), (1, 1), (2, 0), (2, 1), (3, 1), (2, 2), (3, 0), (3, 2), (4, 1), (4, 2), (4, 0))

    assert gate.triggered == [1, 2, 3, 4]


def test_checkpoints_that_are_overtaken_are_skipped() -> None:
    """testMultiChannelSkippingCheckpoints: 3 never completes, 4 subsumes it."""
    gate = tracker(3)

    feed(gate, (1, 0), (1, 2), (1, 1), (2, 0), (2, 1), (3, 1), (2, 2), (3, 2), (4, 1), (4, 2), (3, 2), (4, 0))

    assert gate.triggered == [1, 2, 4]
    assert gate.aborted == []


def test_a_checkpoint_may_complete_late() -> None:
    """testCompleteCheckpointsOnLateBarriers: barriers of several checkpoints are under way at once."""
    gate = tracker(3)

    feed(gate, (2, 1), (2, 2), (3, 1), (4, 1), (3, 2), (2, 0), (4, 2), (3, 0), (4, 0))

    assert gate.triggered == [2, 3, 4]


def test_a_newer_one_that_completes_first_subsumes_the_older() -> None:
    gate = tracker(3)

    feed(gate, (5, 0), (6, 0), (6, 1), (6, 2), (5, 1), (5, 2))

    assert gate.triggered == [6]


def test_a_single_channel_can_cancel() -> None:
    """TestSingleChannelAbortCheckpoint."""
    gate = tracker(1)
    feed(gate, (1, 0), (2, 0))
    gate.cancel(0, 4)
    feed(gate, (5, 0))
    gate.cancel(0, 6)

    assert gate.triggered == [1, 2, 5]
    assert gate.aborted == [(4, CANCELLED), (6, CANCELLED)]


def test_cancellations_of_several_channels_are_told_once() -> None:
    """TestMultiChannelAbortCheckpoint."""
    gate = tracker(3)
    feed(gate, (1, 1), (1, 2), (1, 0), (2, 0), (2, 2))
    gate.cancel(1, 2)
    feed(gate, (3, 2), (3, 1), (3, 0))
    gate.cancel(0, 4)
    feed(gate, (4, 1))
    gate.cancel(2, 4)
    feed(gate, (5, 2), (5, 1), (5, 0))
    gate.cancel(0, 6)
    gate.cancel(2, 6)

    assert gate.triggered == [1, 3, 5]
    assert gate.aborted == [(2, CANCELLED), (4, CANCELLED), (6, CANCELLED)]


def test_cancellations_between_barriers() -> None:
    """TestInterleavedCancellationBarriers."""
    gate = tracker(3)
    feed(gate, (1, 0))
    gate.cancel(0, 2)
    feed(gate, (1, 1))
    gate.cancel(1, 2)
    feed(gate, (1, 2))
    gate.cancel(2, 2)

    assert gate.triggered == []
    assert gate.aborted == [(1, CANCELLED), (2, CANCELLED)]
    assert "[] pending" in repr(gate.machine)


def test_a_cancellation_aborts_everything_older() -> None:
    """testMixedWithCancellations: the barriers that come afterwards for the older ids start nothing."""
    gate = tracker(3)
    feed(gate, (1, 0), (2, 0))
    gate.cancel(1, 3)

    feed(gate, (1, 1), (1, 2), (2, 1), (2, 2), (3, 0), (3, 2))

    assert gate.triggered == []
    assert gate.aborted_ids == [1, 2, 3]


@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel(after_finish: bool) -> None:
    """TestTriggerCheckpointsWithEndOfPartition / the older rule: the end completes or aborts pending checkpoints."""
    gate = tracker(3, after_finish=after_finish)
    feed(gate, (1, 0), (1, 1), (2, 1))

    gate.end(2)

    assert gate.triggered == ([1] if after_finish else [])
    assert gate.aborted == ([] if after_finish else [(1, ENDED), (2, ENDED)])
    feed(gate, (3, 0), (3, 1))
    assert gate.triggered[-1] == 3


def test_the_newest_of_those_that_an_end_completes_is_triggered() -> None:
    """TestMultipleCheckpointsTriggeredByEndOfPartition..."""
    gate = tracker(2)
    feed(gate, (1, 0), (2, 0))

    gate.end(1)

    assert gate.triggered == [2]


def test_no_short_cut_for_the_last_channel_of_a_pending_checkpoint() -> None:
    """TestNoFastPathWithChannelFinishedDuringCheckpoints."""
    gate = tracker(2)
    feed(gate, (1, 0))
    gate.end(0)

    feed(gate, (1, 1))

    assert gate.triggered == [1]


def test_two_last_barriers_one_by_one() -> None:
    """testTwoLastBarriersOneByOne: after the end of the other channel the last one is enough."""
    gate = tracker(2)
    feed(gate, (1, 1), (2, 1))
    gate.end(1)

    feed(gate, (1, 0), (2, 0))

    assert gate.triggered == [1, 2]


def test_only_so_many_checkpoints_are_tracked() -> None:
    """testManyPending: the oldest is forgotten, not aborted."""
    gate = tracker(2)
    feed(gate, *((each, 0) for each in range(1, MAX_TRACKED + 2)))

    feed(gate, (1, 1))
    assert gate.triggered == []
    feed(gate, (2, 1))

    assert gate.triggered == [2]
    assert gate.aborted == []


def test_an_unaligned_barrier_is_refused() -> None:
    """A tracker keeps no data that an unaligned barrier overtook."""
    gate = tracker(2)
    gate.barrier(0, unaligned(1))
    gate.barrier(1, unaligned(1))

    assert gate.aborted == [(1, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT)]
    assert gate.triggered == []
    assert "[] pending" in repr(gate.machine)


def test_announcements_and_timeouts_are_ignored() -> None:
    gate = tracker(2)

    assert gate.announce(0, timeoutable(1), 1) == []
    assert gate.handle(AlignmentTimedOut(1)) == []
    assert "newest -1" in repr(gate.machine)


def test_a_refusal_is_declined() -> None:
    gate = tracker(1)
    feed(gate, (1, 0))

    gate.handle(CheckpointRefused(1, CANCELLED))
    gate.handle(CheckpointRefused(0, CANCELLED))

    assert gate.aborted == [(1, CANCELLED)]
    assert repr(gate.machine) == "<CheckpointBarrierTracker: [] pending, newest 1>"


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["next", "next", "skip", "cancel", "end"])), max_size=60
    ),
    after_finish=st.booleans(),
)
def test_whatever_comes_an_id_is_triggered_or_aborted_once(steps: list[tuple[int, str]], after_finish: bool) -> None:
    gate = tracker(3, after_finish=after_finish)
    ids = [0, 0, 0]
    open_channels = {0, 1, 2}
    for channel, what in steps:
        if channel not in open_channels:
            continue
        if what == "end":
            open_channels.remove(channel)
            gate.end(channel)
            continue
        ids[channel] += 2 if what == "skip" else 1
        if what == "cancel":
            gate.cancel(channel, ids[channel])
        else:
            feed(gate, (ids[channel], channel))

    last = max(ids) + 1
    feed(gate, *((last, channel) for channel in open_channels))

    done = gate.triggered + gate.aborted_ids
    assert len(done) == len(set(done))
    assert not open_channels or gate.triggered[-1] == last
