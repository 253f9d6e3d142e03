"""``SingleCheckpointBarrierHandler`` where barriers may overtake: unaligned, and aligned with a timeout.

Source: Flink ``UnalignedCheckpointsTest``, ``AlternatingCheckpointsTest``.
"""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.checkpoint.task.barrier_orders import (
    AbortCheckpoint,
    AlignmentTimedOut,
    BeginAlignment,
    CheckpointFailureReason,
    CheckpointRefused,
    CompleteInputs,
    InitInputs,
    PrioritizeBarrier,
    ResumeChannels,
    StartInputs,
    StartTimer,
    StopInputs,
    TriggerCheckpointOnBarrier,
)
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode, SingleCheckpointBarrierHandler
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, SavepointFormat, SnapshotType
from tests.flowlet.checkpoint.task.barriers import TIMEOUT_MS, Gate, aligned, timeoutable, unaligned

SUBSUMED = CheckpointFailureReason.SUBSUMED
CANCELLED = CheckpointFailureReason.CANCELLATION_BARRIER
ENDED = CheckpointFailureReason.INPUT_END_OF_STREAM
OVERTAKING = [BarrierMode.UNALIGNED, BarrierMode.ALTERNATING]


def alternating(num_channels: int, *, after_finish: bool = True) -> Gate:
    return Gate(num_channels, BarrierMode.ALTERNATING, after_finish=after_finish)


# ---------------------------------------------------------------- unaligned barriers


@pytest.mark.parametrize("mode", OVERTAKING)
def test_the_first_barrier_triggers_and_the_last_one_stops_the_inputs(mode: BarrierMode) -> None:
    """The state of the inputs is opened, then they start, then the snapshot is taken."""
    gate = Gate(3, mode)

    first = gate.barrier(1, unaligned(1, 5))
    second = gate.barrier(0, unaligned(1, 5))
    third = gate.barrier(2, unaligned(1, 5))

    barrier = unaligned(1, 5)
    assert first == [
        BeginAlignment(1, 5),
        InitInputs(barrier),
        StartInputs(barrier),
        TriggerCheckpointOnBarrier(barrier, is_last=False),
    ]
    assert second == []
    assert third == [StopInputs(1), CompleteInputs(1)]
    assert gate.blocked == set()


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_single_channel_starts_and_stops_at_once(mode: BarrierMode) -> None:
    gate = Gate(1, mode)

    orders = gate.barrier(0, unaligned(1))

    assert [type(each) for each in orders] == [
        BeginAlignment,
        InitInputs,
        StartInputs,
        TriggerCheckpointOnBarrier,
        StopInputs,
        CompleteInputs,
    ]


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_newer_unaligned_barrier_stops_the_older_checkpoint(mode: BarrierMode) -> None:
    """FLINK-17994, FLINK-18063: the inputs stop for the old id before they start for the new one."""
    gate = Gate(2, mode)
    gate.barrier(0, unaligned(1))

    orders = gate.barrier(1, unaligned(2))

    assert orders[:2] == [StopInputs(1), AbortCheckpoint(1, SUBSUMED, "the barrier of checkpoint 2")]
    assert StartInputs(unaligned(2)) in orders[2:]
    assert gate.barrier(1, unaligned(1)) == []
    assert gate.triggered == [1, 2]


@pytest.mark.parametrize("mode", OVERTAKING)
@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel_while_recording(mode: BarrierMode, after_finish: bool) -> None:
    """FLINK-24068: it counts, or gives the checkpoint up; either way the inputs stop."""
    gate = Gate(2, mode, after_finish=after_finish)
    gate.barrier(0, unaligned(1))

    gate.end(1)

    assert gate.recording is None
    assert gate.aborted == ([] if after_finish else [(1, ENDED)])
    assert isinstance(gate.machine, SingleCheckpointBarrierHandler)
    assert not gate.machine.is_checkpoint_pending


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_cancellation_while_recording_stops_the_inputs(mode: BarrierMode) -> None:
    gate = Gate(2, mode)
    gate.barrier(0, unaligned(1))

    gate.cancel(1, 1)

    assert gate.recording is None
    assert gate.aborted == [(1, CANCELLED)]
    assert gate.barrier(1, unaligned(1)) == []


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_cancellation_of_a_newer_checkpoint_also_ends_the_one_under_way(mode: BarrierMode) -> None:
    """TestProcessCancellationBarrierAfterProcessingBarrier and its variants."""
    gate = Gate(2, mode)
    gate.barrier(0, unaligned(1))

    gate.cancel(1, 2)
    gate.cancel(0, 1)

    assert gate.aborted == [(1, SUBSUMED), (2, CANCELLED)]
    assert gate.recording is None


def test_a_cancellation_before_any_barrier_marks_the_id_as_done() -> None:
    """TestProcessCancellationBarrierBeforeProcessAndReceiveBarrier."""
    gate = Gate(1, BarrierMode.UNALIGNED)

    gate.cancel(0, 1)

    assert gate.barrier(0, unaligned(1)) == []
    assert "checkpoint 1 done" in repr(gate.machine)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_one_aligned_barrier_among_overtaking_ones_is_resumed_in_the_end(order: tuple[int, ...]) -> None:
    """The channel of a forced aligned barrier, as of a pointwise edge, stands still until all barriers are here."""
    gate = alternating(3)
    forced = CheckpointBarrier(1, 0, CheckpointOptions(alignment=Alignment.FORCED_ALIGNED))

    for channel in order:
        gate.barrier(channel, forced if channel == 0 else unaligned(1))

    assert gate.blocked == set()
    assert gate.triggered == [1]
    assert gate.recording is None


def test_an_unaligned_checkpoint_follows_an_aligned_one_and_back() -> None:
    """TestAlignedAfterUnalignedOutOfOrder and switchToUnalignedByUpstream: each id as its barriers say."""
    gate = alternating(2)
    for checkpoint_id, make in enumerate([aligned, unaligned, timeoutable, unaligned], start=1):
        for channel in (0, 1):
            gate.barrier(channel, make(checkpoint_id))

    assert gate.triggered == [1, 2, 3, 4]
    assert gate.were_unaligned == [False, True, False, True]
    assert gate.blocked == set()


def test_the_same_id_as_savepoint_is_never_unaligned() -> None:
    """TestAllChannelsUnalignedSavepoint's counterpart: a savepoint has no timeout, so none is set."""
    gate = alternating(2)
    options = CheckpointOptions(SnapshotType.SAVEPOINT, SavepointFormat.CANONICAL)
    gate.barrier(0, CheckpointBarrier(1, 0, options))
    assert gate.timer is None
    gate.now_ms = 10_000

    gate.barrier(1, CheckpointBarrier(1, 0, options))

    assert gate.were_unaligned == [False]


# ---------------------------------------------------------------- upstream switched


def test_an_unaligned_barrier_converts_what_was_announced() -> None:
    """switchToUnalignedByUpstream: announced here, overtaking there."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 7)

    orders = gate.barrier(1, unaligned(1))

    assert orders[1] == PrioritizeBarrier(1, (0, 0), 7)
    assert gate.triggered == [1]
    gate.barrier(0, timeoutable(1))
    assert gate.blocked == set()
    assert gate.recording is None


def test_an_aligned_barrier_and_then_an_unaligned_one() -> None:
    """The blocked channel goes on when the last one is here; its barrier needs no second look."""
    gate = alternating(3)
    gate.barrier(0, timeoutable(1))
    gate.barrier(1, unaligned(1))
    assert gate.triggered == [1]
    assert gate.blocked == {0}

    gate.barrier(2, unaligned(1))

    assert gate.blocked == set()
    assert gate.were_unaligned == [True]


# ---------------------------------------------------------------- timeouts


def test_a_timer_runs_from_the_barriers_own_timestamp() -> None:
    """testTimeoutAlignment: of 10 ms, 4 are over when the announcement comes."""
    gate = alternating(2)
    gate.now_ms = 104

    assert gate.announce(0, timeoutable(1, 100), 0) == [StartTimer(1, 6)]
    assert gate.announce(1, timeoutable(1, 100), 0) == []


def test_a_barrier_from_the_future_waits_for_no_longer_than_the_timeout() -> None:
    """The clock was put back by an hour, or that of the JobManager is ahead."""
    gate = alternating(2)
    gate.now_ms = 100

    assert gate.announce(0, timeoutable(1, 3_600_100), 0) == [StartTimer(1, TIMEOUT_MS)]


def test_a_barrier_that_is_too_old_gets_a_timer_without_delay() -> None:
    gate = alternating(2)
    gate.now_ms = 1_000

    assert gate.announce(0, timeoutable(1, 100), 0) == [StartTimer(1, 0)]


def test_the_timer_prioritizes_announced_barriers_and_waits_for_the_first() -> None:
    """testActiveTimeoutAfterAnnouncementPassiveTimeout: nothing is triggered before a barrier is here."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 3)
    gate.announce(1, timeoutable(1), 8)

    assert gate.fire_timer() == [PrioritizeBarrier(1, (0, 0), 3), PrioritizeBarrier(1, (0, 1), 8)]
    gate.barrier(0, timeoutable(1))
    assert gate.triggered == [1]
    assert gate.were_unaligned == [True]
    gate.barrier(1, timeoutable(1))

    assert gate.blocked == set()
    assert gate.recording is None


def test_the_timer_after_the_first_barrier_triggers_at_once() -> None:
    """TestActiveTimeoutAfterBarrierPassiveTimeout / testTimeoutAlignmentOnAnnouncementForSecondCheckpoint."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 3)
    gate.announce(1, timeoutable(1), 8)
    gate.barrier(0, timeoutable(1))

    orders = gate.fire_timer()

    barrier = unaligned(1)
    assert orders == [
        PrioritizeBarrier(1, (0, 1), 8),
        InitInputs(barrier),
        StartInputs(barrier),
        TriggerCheckpointOnBarrier(barrier, is_last=False),
    ]
    assert gate.blocked == {0}
    gate.barrier(1, timeoutable(1))
    assert gate.blocked == set()


def test_an_announcement_after_the_timeout_is_prioritized_at_once() -> None:
    """testAnnouncementAfterTimeout: also after the snapshot was taken."""
    gate = alternating(3)
    gate.announce(0, timeoutable(1), 3)
    gate.fire_timer()

    assert gate.announce(1, timeoutable(1), 4) == [PrioritizeBarrier(1, (0, 1), 4)]
    gate.barrier(0, timeoutable(1))
    assert gate.announce(2, timeoutable(1), 5) == [PrioritizeBarrier(1, (0, 2), 5)]


def test_a_late_barrier_is_a_timeout_without_a_timer() -> None:
    """testPassiveTimeoutAlignment...: the timer may be stuck behind other mails."""
    gate = alternating(3)
    gate.barrier(0, timeoutable(1))
    gate.now_ms = TIMEOUT_MS
    gate.barrier(1, timeoutable(1))
    assert gate.triggered == []
    gate.now_ms += 1
    gate.announce(2, timeoutable(1), 9)

    gate.handle(AlignmentTimedOut(1))

    assert gate.were_unaligned == [True]
    assert gate.prioritized == [(2, 9)]


@pytest.mark.parametrize("last", [1, 2])
def test_a_barrier_that_comes_too_late(last: int) -> None:
    """A late barrier before the last one makes the checkpoint unaligned; the last one ends alignment as usual."""
    gate = alternating(3)
    for channel in range(last):
        gate.barrier(channel, timeoutable(1))
    gate.now_ms = TIMEOUT_MS + 1

    gate.barrier(last, timeoutable(1))

    assert gate.triggered == [1]
    assert gate.were_unaligned == [last == 1]


def test_the_end_of_a_channel_can_be_the_timeout() -> None:
    """Two are missing, one of them ends, and it is late."""
    gate = alternating(3)
    gate.barrier(0, timeoutable(1))
    gate.announce(2, timeoutable(1), 1)
    gate.now_ms = TIMEOUT_MS + 1

    gate.end(1)

    assert gate.were_unaligned == [True]
    assert gate.prioritized == [(2, 1)]
    gate.barrier(2, timeoutable(1))
    assert gate.blocked == set()


def test_the_end_of_a_channel_completes_an_aligned_checkpoint() -> None:
    gate = alternating(2)
    gate.barrier(0, timeoutable(1))

    orders = gate.end(1)

    assert orders[:2] == [InitInputs(timeoutable(1)), TriggerCheckpointOnBarrier(timeoutable(1))]
    assert gate.timer is None
    assert gate.blocked == set()


def test_the_last_announced_channel_may_end_before_a_barrier_is_polled() -> None:
    """A timeout with nothing but announcements, whose channels then end: the checkpoint is taken, not forgotten."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 1)
    gate.fire_timer()

    gate.end(0)
    gate.end(1)

    assert gate.triggered == [1]
    assert gate.recording is None


def test_a_channel_that_ended_or_counts_has_nothing_to_prioritize() -> None:
    """The announced barrier goes with its channel; that of a channel whose barrier was injected is not waited for."""
    gate = alternating(4)
    gate.announce(0, timeoutable(1), 1)
    gate.end(0)
    gate.barrier(1, timeoutable(1), is_injected=True)
    gate.announce(1, timeoutable(1), 2)
    gate.announce(2, timeoutable(1), 3)

    gate.fire_timer()

    assert gate.prioritized == [(2, 3)]


def test_an_aligned_checkpoint_in_time_needs_no_conversion() -> None:
    """testAllChannelsReceivedBeforeTimeout: the timer is gone, the output part is prepared."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 1)
    gate.barrier(0, timeoutable(1))
    gate.announce(1, timeoutable(1), 2)

    orders = gate.barrier(1, timeoutable(1))

    assert orders == [
        InitInputs(timeoutable(1)),
        TriggerCheckpointOnBarrier(timeoutable(1)),
        ResumeChannels(((0, 0), (0, 1))),
        CompleteInputs(1),
    ]
    assert gate.timer is None


@pytest.mark.parametrize("end", ["cancel", "newer", "complete", "refused"])
def test_no_timer_survives_its_checkpoint(end: str) -> None:
    """testNoActiveTimerAfter...: each end of a checkpoint stops its timer, and a timer that fires nevertheless does
    nothing.
    """
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 1)
    gate.barrier(0, timeoutable(1))
    match end:
        case "cancel":
            gate.cancel(1, 1)
        case "newer":
            gate.barrier(1, aligned(2))
        case "complete":
            gate.barrier(1, timeoutable(1))
        case _:
            gate.handle(CheckpointRefused(1, SUBSUMED))

    assert gate.timer is None
    assert gate.handle(AlignmentTimedOut(1)) == []


def test_a_new_checkpoint_starts_aligned_after_one_timed_out() -> None:
    """testTimeoutAlignmentOnFirstBarrier, then the next checkpoint: the phase is of one checkpoint."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 1)
    gate.fire_timer()
    gate.barrier(0, timeoutable(1))
    gate.barrier(1, timeoutable(1))

    gate.barrier(0, timeoutable(2))
    assert gate.blocked == {0}
    gate.barrier(1, timeoutable(2))

    assert gate.were_unaligned == [True, False]


def test_an_obsolete_announcement_is_ignored() -> None:
    """testOutOfOrderBarrier: of a checkpoint that is done, or older than the pending one."""
    gate = alternating(2)
    gate.announce(0, timeoutable(2), 1)

    assert gate.announce(1, timeoutable(1), 1) == []
    gate.cancel(0, 3)
    assert gate.announce(1, timeoutable(3), 1) == []


def test_an_announcement_of_a_newer_checkpoint_gives_the_older_one_up() -> None:
    """TestNextFirstCheckpointAnnouncement..."""
    gate = alternating(2)
    gate.barrier(0, timeoutable(1))

    gate.announce(1, timeoutable(2), 4)

    assert gate.aborted == [(1, SUBSUMED)]
    assert gate.blocked == set()
    assert gate.timer == StartTimer(2, TIMEOUT_MS)


def test_a_cancelled_announced_checkpoint_forgets_its_announcements() -> None:
    """A later timeout would otherwise let a barrier overtake that is not there."""
    gate = alternating(2)
    gate.announce(0, timeoutable(1), 4)
    gate.cancel(1, 2)
    gate.announce(1, timeoutable(3), 6)

    gate.fire_timer()

    assert gate.prioritized == [(1, 6)]


def test_without_a_timeout_in_the_barrier_there_is_no_timer() -> None:
    """TestTimeoutZero and the default."""
    gate = alternating(2)

    assert [type(each) for each in gate.barrier(0, aligned(1))] == [BeginAlignment]
    assert gate.handle(AlignmentTimedOut(1)) == []


def test_a_refused_start_is_declined() -> None:
    """The inputs know a newer barrier: the snapshot is not wanted any more."""
    gate = alternating(2)
    gate.barrier(0, unaligned(1))

    gate.handle(CheckpointRefused(1, SUBSUMED, "why"))

    assert gate.aborted == [(1, SUBSUMED)]
    assert gate.recording is None
    assert (
        repr(gate.machine)
        == "<SingleCheckpointBarrierHandler ALTERNATING ALIGNING: checkpoint 1 done, 0 of 0 barriers>"
    )


def test_what_is_asked_of_a_machine() -> None:
    machine = SingleCheckpointBarrierHandler(3, BarrierMode.UNALIGNED)

    machine.handle(CheckpointRefused(4, SUBSUMED), 0)

    assert "checkpoint -1 done, 0 of 0 barriers" in repr(machine)
    assert "RECORDING" not in repr(machine)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["aligned", "announced", "unaligned", "cancel", "end", "timeout", "late"])
    ),
    max_size=60,
)


@given(steps=STEPS, after_finish=st.booleans())
def test_whatever_comes_the_accounts_are_kept(steps: list[tuple[int, str]], after_finish: bool) -> None:
    """The invariants of aligned barriers hold with announcements, overtaking barriers and timeouts in any order, and
    one last checkpoint ends it all.
    """
    gate = alternating(4, after_finish=after_finish)
    ids = [0] * 4
    announced: dict[int, CheckpointBarrier] = {}
    open_channels = set(range(4))
    for channel, what in steps:
        if what == "late":
            gate.now_ms += TIMEOUT_MS + 1
        elif what == "timeout":
            if gate.timer is not None:
                gate.fire_timer()
        elif channel not in open_channels or channel in gate.blocked:
            continue
        elif channel in announced:
            gate.barrier(channel, announced.pop(channel))
        elif what == "end":
            open_channels.remove(channel)
            gate.end(channel)
        else:
            ids[channel] += 1
            _feed(gate, channel, ids[channel], what, announced)

    last = max(ids) + 1
    waiting = set(open_channels)
    while waiting:
        channel = min(waiting - gate.blocked)
        if channel in announced:
            gate.barrier(channel, announced.pop(channel))
            continue
        gate.barrier(channel, timeoutable(last, gate.now_ms))
        waiting.remove(channel)

    assert gate.blocked == set()
    assert gate.recording is None
    assert len(set(gate.aborted_ids)) == len(gate.aborted_ids)
    if open_channels:
        assert gate.triggered[-1] == last


def _feed(gate: Gate, channel: int, checkpoint_id: int, what: str, announced: dict[int, CheckpointBarrier]) -> None:
    match what:
        case "aligned":
            gate.barrier(channel, timeoutable(checkpoint_id, gate.now_ms))
        case "announced":
            announced[channel] = timeoutable(checkpoint_id, gate.now_ms)
            gate.announce(channel, announced[channel], checkpoint_id)
        case "unaligned":
            gate.barrier(channel, unaligned(checkpoint_id, gate.now_ms))
        case _:
            gate.cancel(channel, checkpoint_id)
