"""``SingleCheckpointBarrierHandler`` in aligned mode.

Source: Flink ``AlignedCheckpointsTest``, ``AlignedCheckpointsMassiveRandomTest``, ``CheckpointSequenceValidator``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.checkpoint.task.barrier_orders import (
    BeginAlignment,
    CheckpointFailureReason,
    CheckpointRefused,
    CompleteInputs,
    ResumeChannels,
    TriggerCheckpointOnBarrier,
)
from tests.flowlet.checkpoint.task.barriers import Gate, aligned, timeoutable, unaligned

CANCELLED = CheckpointFailureReason.CANCELLATION_BARRIER
SUBSUMED = CheckpointFailureReason.SUBSUMED
ENDED = CheckpointFailureReason.INPUT_END_OF_STREAM


def test_a_single_channel_is_never_held_back() -> None:
    """testSingleChannelWithBarriers: block and resume at once; alignment takes no time."""
    gate = Gate(1)

    orders = gate.barrier(0, aligned(1, 5))

    assert orders == [
        BeginAlignment(1, 5),
        TriggerCheckpointOnBarrier(aligned(1, 5)),
        ResumeChannels(((0, 0),)),
        CompleteInputs(1),
    ]


def test_the_last_barrier_triggers_and_resumes_all() -> None:
    """testMultiChannelWithBarriers: barriers of 4 checkpoints on 3 channels in changing orders."""
    gate = Gate(3)
    for checkpoint_id, order in enumerate([(1, 2, 0), (0, 1, 2), (2, 0, 1), (1, 0, 2)], start=1):
        for channel in order[:-1]:
            assert not any(
                isinstance(each, TriggerCheckpointOnBarrier) for each in gate.barrier(channel, aligned(checkpoint_id))
            )
        assert gate.blocked == set(order[:-1])

        gate.barrier(order[-1], aligned(checkpoint_id))

        assert gate.blocked == set()
    assert gate.triggered == [1, 2, 3, 4]
    assert gate.aborted == []


@pytest.mark.parametrize("num_channels", range(1, 8))
def test_no_channel_is_left_out(num_channels: int) -> None:
    """Exactly the last of them triggers."""
    gate = Gate(num_channels)
    for channel in range(num_channels - 1):
        gate.barrier(channel, aligned(1))
    assert gate.triggered == []

    gate.barrier(num_channels - 1, aligned(1))

    assert gate.triggered == [1]


def test_a_newer_barrier_gives_the_older_checkpoint_up() -> None:
    """testMultiChannelJumpingOverCheckpoint: 1 complete; 2 and 3 are overtaken on the way to 4."""
    gate = Gate(3)
    for channel in (1, 2, 0):
        gate.barrier(channel, aligned(1))
    gate.barrier(1, aligned(2))
    gate.barrier(0, aligned(2))
    assert gate.blocked == {0, 1}

    gate.barrier(2, aligned(3))
    assert gate.blocked == {2}
    gate.barrier(0, aligned(3))
    assert gate.blocked == {0, 2}
    gate.barrier(1, aligned(4))
    assert gate.blocked == {1}

    assert gate.aborted == [(2, SUBSUMED), (3, SUBSUMED)]
    gate.barrier(0, aligned(4))
    gate.barrier(2, aligned(4))
    assert gate.triggered == [1, 4]
    assert gate.blocked == set()


def test_a_late_barrier_only_resumes_its_channel() -> None:
    """FLINK-21104, FLINK-20331: the barrier of a checkpoint that was given up, or taken, starts nothing."""
    gate = Gate(2)
    gate.barrier(0, aligned(1))
    gate.barrier(0 if 0 not in gate.blocked else 1, aligned(2))

    assert gate.barrier(0, aligned(1)) == [ResumeChannels(((0, 0),))]
    gate.barrier(0, aligned(2))
    assert gate.barrier(0, aligned(2)) == [ResumeChannels(((0, 0),))]
    assert gate.triggered == [2]


def test_cancellations_without_a_barrier_are_told_once_each() -> None:
    """testMissingCancellationBarriers; the checkpoint that was pending is declined as well."""
    gate = Gate(2)
    gate.barrier(0, aligned(1))

    gate.cancel(1, 2)
    gate.cancel(1, 3)
    gate.cancel(0, 3)
    gate.cancel(0, 2)

    assert gate.aborted == [(1, SUBSUMED), (2, CANCELLED), (3, CANCELLED)]
    assert gate.blocked == set()
    assert gate.triggered == []


def test_channels_that_ended_before_are_not_waited_for() -> None:
    """testMetricsDoNotWaitForClosedChannels: 2 of 4 channels have ended."""
    gate = Gate(4)
    gate.end(1)
    gate.end(2)

    gate.barrier(0, aligned(2))
    gate.barrier(3, aligned(2))

    assert gate.triggered == [2]


@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel_while_aligning(after_finish: bool) -> None:
    """TestMultiChannelTriggerByEndOfPartition and the older rule: it counts as aligned, or gives the checkpoint up."""
    gate = Gate(3, after_finish=after_finish)
    gate.barrier(0, aligned(1))
    gate.barrier(1, aligned(1))

    gate.end(2)

    assert gate.triggered == ([1] if after_finish else [])
    assert gate.aborted == ([] if after_finish else [(1, ENDED)])
    assert gate.blocked == set()


def test_a_channel_counts_once_by_its_barrier_and_its_end() -> None:
    """testMultiChannelBarrierThenEndOfPartition: an injected barrier does not block, so the channel
    can end behind it.
    """
    gate = Gate(3)
    gate.barrier(0, aligned(1), is_injected=True)
    gate.end(0)
    assert gate.triggered == []
    gate.barrier(1, aligned(1))
    assert gate.triggered == []

    gate.barrier(2, aligned(1))

    assert gate.triggered == [1]


def test_after_an_end_the_rest_is_enough() -> None:
    """TestTwoLastBarriersOneByOne / testAlignAfterEndOfPartition."""
    gate = Gate(2)
    gate.end(0)

    gate.barrier(1, aligned(1))
    gate.barrier(1, aligned(2))

    assert gate.triggered == [1, 2]


def test_an_end_between_checkpoints_changes_nothing() -> None:
    """TestMultiChannelEndOfPartitionAfterCheckpoint."""
    gate = Gate(2)
    gate.barrier(0, aligned(1))
    gate.barrier(1, aligned(1))

    assert gate.end(0) == []
    assert gate.end(1) == []
    assert gate.aborted == []


def test_a_single_channel_can_cancel() -> None:
    """testSingleChannelAbortCheckpoint: barriers 1, 2, cancel 4, barrier 5, cancel 6."""
    gate = Gate(1)
    gate.barrier(0, aligned(1))
    gate.barrier(0, aligned(2))

    gate.cancel(0, 4)
    gate.barrier(0, aligned(5))
    gate.cancel(0, 6)

    assert gate.triggered == [1, 2, 5]
    assert gate.aborted == [(4, CANCELLED), (6, CANCELLED)]


def test_a_cancellation_ends_the_alignment() -> None:
    """testMultiChannelAbortCheckpoint: blocked channels go on; later barriers of the cancelled id resume at once."""
    gate = Gate(3)
    for channel in (1, 2, 0):
        gate.barrier(channel, aligned(1))
    gate.barrier(0, aligned(2))
    gate.barrier(2, aligned(2))

    gate.cancel(1, 2)

    assert gate.blocked == set()
    assert gate.aborted == [(2, CANCELLED)]
    for channel in (2, 1, 0):
        gate.barrier(channel, aligned(3))
    gate.cancel(0, 4)
    assert gate.barrier(1, aligned(4)) == [ResumeChannels(((0, 1),))]
    assert gate.cancel(2, 4) == []
    assert gate.triggered == [1, 3]
    assert gate.aborted == [(2, CANCELLED), (4, CANCELLED)]


def test_a_cancellation_of_what_was_subsumed_is_ignored() -> None:
    """TestIgnoreCancelBarrierIfCheckpointSubsumed."""
    gate = Gate(3)
    gate.barrier(1, aligned(3))
    gate.barrier(0, aligned(3))
    gate.barrier(2, aligned(5))

    assert gate.cancel(1, 3) == []
    assert gate.cancel(0, 3) == []
    gate.barrier(1, aligned(5))
    gate.barrier(0, aligned(5))

    assert gate.triggered == [5]
    assert gate.aborted == [(3, SUBSUMED)]


def test_a_cancellation_after_the_trigger_is_ignored() -> None:
    """The id is done."""
    gate = Gate(1)
    gate.barrier(0, aligned(1))

    assert gate.cancel(0, 1) == []


def test_an_unaligned_barrier_is_refused() -> None:
    """A producer that is configured differently cannot make a snapshot with holes."""
    gate = Gate(2)

    gate.barrier(0, unaligned(1))

    assert gate.aborted == [(1, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT)]
    assert gate.triggered == []


def test_injected_barriers_complete_a_checkpoint_and_late_ones_resume() -> None:
    """The JobManager's order stands for the barriers of all unfinished channels; the real ones find the checkpoint
    done.
    """
    gate = Gate(3)
    gate.end(0)
    gate.barrier(1, aligned(1), is_injected=True)
    gate.barrier(2, aligned(1), is_injected=True)
    assert gate.triggered == [1]

    assert gate.barrier(1, aligned(1)) == [ResumeChannels(((0, 1),))]
    assert gate.barrier(2, aligned(1), is_injected=True) == []


def test_announcements_and_timeouts_mean_nothing_here() -> None:
    """No timer is set for a barrier that could time out, and an announced one is waited for."""
    gate = Gate(2)

    assert gate.announce(0, timeoutable(1), 3) == []
    assert gate.timer is None
    gate.barrier(0, timeoutable(1))
    gate.now_ms = 100
    gate.barrier(1, timeoutable(1))

    assert gate.were_unaligned == [False]
    assert gate.prioritized == []


def test_a_refusal_is_declined_once() -> None:
    """A refusal counts even after the checkpoint was complete for the channels; one about an older checkpoint is
    ignored.
    """
    gate = Gate(1)
    gate.barrier(0, aligned(1))

    gate.handle(CheckpointRefused(1, SUBSUMED))
    gate.handle(CheckpointRefused(0, SUBSUMED))

    assert gate.aborted == [(1, SUBSUMED)]


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["next", "next", "next", "skip", "cancel", "end", "inject"])),
    max_size=60,
)


@given(steps=STEPS, after_finish=st.booleans())
def test_whatever_comes_nothing_stays_blocked_for_ever(steps: list[tuple[int, str]], after_finish: bool) -> None:
    """No id twice, no channel resumed that was not blocked; a checkpoint for which everybody sends a barrier ends it
    all.
    """
    gate = Gate(4, after_finish=after_finish)
    ids = [0] * 4
    open_channels = set(range(4))
    for channel, what in steps:
        if channel in gate.blocked or channel not in open_channels:
            continue
        if what == "end":
            open_channels.remove(channel)
            gate.end(channel)
            continue
        ids[channel] += 2 if what == "skip" else 1
        if what == "cancel":
            gate.cancel(channel, ids[channel])
        else:
            gate.barrier(channel, aligned(ids[channel]), is_injected=what == "inject")

    last = max(ids) + 1
    waiting = set(open_channels)
    while waiting:
        channel = min(waiting - gate.blocked)  # there is one, or all wait for each other
        gate.barrier(channel, aligned(last))
        waiting.remove(channel)

    assert gate.blocked == set()
    done = gate.triggered + gate.aborted_ids
    assert len(done) == len(set(done))
    if open_channels:
        assert gate.triggered[-1] == last
