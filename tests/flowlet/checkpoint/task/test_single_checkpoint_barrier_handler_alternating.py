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
    CompleteInputs,
    InitInputs,
    PrioritizeBarrier,
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
OVERTAKING = [BarrierMode.UNALIGNED, BarrierMode.ALTERNATING]


def alternating(num_channels: int, *, after_finish: bool = True) -> Gate:
    return Gate(num_channels, BarrierMode.ALTERNATING, after_finish=after_finish)


# ---------------------------------------------------------------- unaligned barriers


@pytest.mark.parametrize("mode", OVERTAKING)
def test_the_first_barrier_triggers_and_the_last_one_stops_the_inputs(mode: BarrierMode) -> None:
    """The state of the inputs is opened, then they start, then the snapshot is taken."""
    gate, barrier = Gate(3, mode), unaligned(1, 5)

    first, second, third = (gate.barrier(channel, barrier) for channel in (1, 0, 2))

    assert first == [
        BeginAlignment(1, 5),
        InitInputs(barrier),
        StartInputs(barrier),
        TriggerCheckpointOnBarrier(barrier, is_last=False),
    ]
    assert second == []
    assert third == [StopInputs(1), CompleteInputs(1)]
    assert gate.blocked == set()
    assert [type(each) for each in Gate(1, mode).barrier(0, barrier)] == [type(each) for each in [*first, *third]]


BEGUN = "1@0 -> begin 1; init 1; start 1; trigger 1 unaligned"


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_newer_unaligned_barrier_stops_the_older_checkpoint(mode: BarrierMode) -> None:
    """FLINK-17994, FLINK-18063: the inputs stop for the old id before they start for the new one."""
    newer = "2@1 -> stop 1; abort 1 SUBSUMED; begin 2; init 2; start 2; trigger 2 unaligned"
    Gate(2, mode).tell(BEGUN, newer, "1@1 ->", make=unaligned)

    gate = Gate(2, mode)
    gate.play("1@0", unaligned)
    assert AbortCheckpoint(1, SUBSUMED, "the barrier of checkpoint 2") in gate.barrier(1, unaligned(2))


@pytest.mark.parametrize("mode", OVERTAKING)
@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel_while_recording(mode: BarrierMode, after_finish: bool) -> None:
    """FLINK-24068: it counts, or gives the checkpoint up; either way the inputs stop."""
    gate = Gate(2, mode, after_finish=after_finish)

    gate.tell(
        BEGUN, f"end@1 -> stop 1; {'complete 1' if after_finish else 'abort 1 INPUT_END_OF_STREAM'}", make=unaligned
    )

    assert isinstance(gate.machine, SingleCheckpointBarrierHandler)
    assert not gate.machine.is_checkpoint_pending


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_cancellation_while_recording_stops_the_inputs(mode: BarrierMode) -> None:
    """A later barrier of the checkpoint starts nothing."""
    Gate(2, mode).tell(BEGUN, "cancel:1@1 -> stop 1; abort 1 CANCELLATION_BARRIER", "1@1 ->", make=unaligned)


@pytest.mark.parametrize("mode", OVERTAKING)
def test_a_cancellation_of_a_newer_checkpoint_also_ends_the_one_under_way(mode: BarrierMode) -> None:
    gate = Gate(2, mode)

    gate.play("1@0 cancel:2@1 cancel:1@0", unaligned)

    assert gate.aborted == [(1, SUBSUMED), (2, CANCELLED)]
    assert gate.recording is None


def test_a_cancellation_before_any_barrier_marks_the_id_as_done() -> None:
    gate = Gate(1, BarrierMode.UNALIGNED)

    gate.tell("cancel:1@0 -> stop 1; abort 1 CANCELLATION_BARRIER", "1@0 ->", make=unaligned)

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
    """Each checkpoint is taken as its barriers say."""
    gate = alternating(2)

    for checkpoint_id, make in enumerate([aligned, unaligned, timeoutable, unaligned], start=1):
        gate.play(f"{checkpoint_id}@0 {checkpoint_id}@1", make)

    assert gate.triggered == [1, 2, 3, 4]
    assert gate.were_unaligned == [False, True, False, True]
    assert gate.blocked == set()


def test_the_same_id_as_savepoint_is_never_unaligned() -> None:
    """A savepoint has no timeout, so none is set."""
    gate = alternating(2)
    savepoint = CheckpointBarrier(1, 0, CheckpointOptions(SnapshotType.SAVEPOINT, SavepointFormat.CANONICAL))
    gate.barrier(0, savepoint)
    assert gate.timer is None
    gate.now_ms = 10_000

    gate.barrier(1, savepoint)

    assert gate.were_unaligned == [False]


# ---------------------------------------------------------------- upstream switched


def test_an_unaligned_barrier_converts_what_was_announced() -> None:
    """The barrier was announced here, and overtook there."""
    alternating(2).tell(
        "announce:1@0 -> timer 10",
        "unaligned:1@1 -> begin 1; prioritize 0#10; init 1; start 1; trigger 1 unaligned",
        "1@0 -> stop 1; resume 0; complete 1",
        make=timeoutable,
    )


def test_an_aligned_barrier_and_then_an_unaligned_one() -> None:
    """The blocked channel goes on when the last one is here; its barrier needs no second look."""
    alternating(3).tell(
        "1@0 -> timer 10; begin 1",
        "unaligned:1@1 -> init 1; start 1; trigger 1 unaligned",
        "unaligned:1@2 -> stop 1; resume 0; complete 1",
        make=timeoutable,
    )


# ---------------------------------------------------------------- timeouts


@pytest.mark.parametrize(
    ("now_ms", "timestamp_ms", "delay_ms"),
    [(104, 100, 6), (100, 3_600_100, TIMEOUT_MS), (1_000, 100, 0)],
    ids=["4 of 10 ms are over", "the clock was put back by an hour", "too old"],
)
def test_a_timer_runs_from_the_barriers_own_timestamp(now_ms: int, timestamp_ms: int, delay_ms: int) -> None:
    """It waits for no longer than the timeout, even if the clock of the JobManager is ahead."""
    gate = alternating(2)
    gate.now_ms = now_ms

    assert gate.announce(0, timeoutable(1, timestamp_ms), 0) == [StartTimer(1, delay_ms)]
    assert gate.announce(1, timeoutable(1, timestamp_ms), 0) == []


def test_the_timer_prioritizes_announced_barriers_and_waits_for_the_first() -> None:
    """Nothing is triggered before a barrier is here."""
    alternating(2).tell(
        "announce:1@0 announce:1@1 -> timer 10",
        "fire -> prioritize 0#10; prioritize 1#11",
        "1@0 -> begin 1; init 1; start 1; trigger 1 unaligned",
        "1@1 -> stop 1; resume 0 1; complete 1",
        make=timeoutable,
    )


def test_the_timer_after_the_first_barrier_triggers_at_once() -> None:
    gate, barrier = alternating(2), unaligned(1)
    gate.announce(0, timeoutable(1), 3)
    gate.announce(1, timeoutable(1), 8)
    gate.barrier(0, timeoutable(1))

    assert gate.fire_timer() == [
        PrioritizeBarrier(1, (0, 1), 8),
        InitInputs(barrier),
        StartInputs(barrier),
        TriggerCheckpointOnBarrier(barrier, is_last=False),
    ]
    assert gate.blocked == {0}
    gate.barrier(1, timeoutable(1))
    assert gate.blocked == set()


def test_an_announcement_after_the_timeout_is_prioritized_at_once() -> None:
    """The rule holds after the snapshot was taken, too."""
    alternating(3).tell(
        "announce:1@0 -> timer 10",
        "fire -> prioritize 0#10",
        "announce:1@1 -> prioritize 1#11",
        "1@0 -> begin 1; init 1; start 1; trigger 1 unaligned",
        "announce:1@2 -> prioritize 2#12",
        make=timeoutable,
    )


def test_a_late_barrier_is_a_timeout_without_a_timer() -> None:
    """The timer may be stuck behind other mails; the last barrier ends alignment as usual, however late it is."""
    in_time = "1@0 -> timer 10; begin 1", "clock:10 1@1 ->"
    alternating(3).tell(
        *in_time,
        "clock:11 announce:1@2 ->",
        "fire -> prioritize 2#12; init 1; start 1; trigger 1 unaligned",
        make=timeoutable,
    )
    alternating(3).tell(*in_time, "clock:11 1@2 -> init 1; trigger 1; resume 0 1 2; complete 1", make=timeoutable)
    alternating(3).tell(in_time[0], "clock:11 1@1 -> init 1; start 1; trigger 1 unaligned", make=timeoutable)


def test_the_end_of_a_channel_can_be_the_timeout() -> None:
    """Two are missing, one of them ends, and it is late."""
    alternating(3).tell(
        "1@0 announce:1@2 -> timer 10; begin 1",
        "clock:11 end@1 -> prioritize 2#12; init 1; start 1; trigger 1 unaligned",
        "1@2 -> stop 1; resume 0 2; complete 1",
        make=timeoutable,
    )


def test_the_end_of_a_channel_completes_an_aligned_checkpoint() -> None:
    gate = alternating(2)

    gate.tell("1@0 -> timer 10; begin 1", "end@1 -> init 1; trigger 1; resume 0; complete 1", make=timeoutable)

    assert gate.timer is None


def test_the_last_announced_channel_may_end_before_a_barrier_is_polled() -> None:
    """A timeout with nothing but announcements, whose channels then end: the checkpoint is taken, not forgotten."""
    alternating(2).tell(
        "announce:1@0 -> timer 10",
        "fire -> prioritize 0#10",
        "end@0 -> begin 1",
        "end@1 -> init 1; start 1; trigger 1 unaligned; stop 1; complete 1",
        make=timeoutable,
    )


def test_a_channel_that_ended_or_counts_has_nothing_to_prioritize() -> None:
    """The announced barrier goes with its channel; that of a channel whose barrier was injected is not waited for."""
    alternating(4).tell(
        "announce:1@0 -> timer 10",
        "end@0 inject:1@1 announce:1@1 announce:1@2 -> begin 1",
        "fire -> prioritize 2#12; init 1; start 1; trigger 1 unaligned",
        make=timeoutable,
    )


def test_an_aligned_checkpoint_in_time_needs_no_conversion() -> None:
    """The timer is gone, the output part is prepared."""
    gate = alternating(2)

    gate.tell(
        "announce:1@0 1@0 announce:1@1 -> timer 10; begin 1",
        "1@1 -> init 1; trigger 1; resume 0 1; complete 1",
        make=timeoutable,
    )

    assert gate.timer is None


@pytest.mark.parametrize("end", ["cancel:1@1", "unaligned:2@1", "1@1", "refuse:1"])
def test_no_timer_survives_its_checkpoint(end: str) -> None:
    """Each end of a checkpoint stops its timer, and a timer that fires nevertheless does nothing."""
    gate = alternating(2)
    gate.play("announce:1@0 1@0", timeoutable)

    gate.play(end, timeoutable)

    assert gate.timer is None
    assert gate.handle(AlignmentTimedOut(1)) == []


def test_a_new_checkpoint_starts_aligned_after_one_timed_out() -> None:
    gate = alternating(2)

    gate.play("announce:1@0 fire 1@0 1@1 2@0", timeoutable)
    assert gate.blocked == {0}
    gate.play("2@1", timeoutable)

    assert gate.were_unaligned == [True, False]


def test_an_obsolete_announcement_is_ignored() -> None:
    """It is of a checkpoint that is done, or older than the pending one."""
    alternating(2).tell(
        "announce:2@0 -> timer 10",
        "announce:1@1 ->",
        "cancel:3@0 -> abort 2 SUBSUMED; abort 3 CANCELLATION_BARRIER",
        "announce:3@1 ->",
        make=timeoutable,
    )


def test_an_announcement_of_a_newer_checkpoint_gives_the_older_one_up() -> None:
    alternating(2).tell(
        "1@0 -> timer 10; begin 1", "announce:2@1 -> resume 0; abort 1 SUBSUMED; timer 10", make=timeoutable
    )


def test_a_cancelled_announced_checkpoint_forgets_its_announcements() -> None:
    """A later timeout would otherwise let a barrier overtake that is not there."""
    alternating(2).tell(
        "announce:1@0 -> timer 10",
        "cancel:2@1 -> abort 1 SUBSUMED; abort 2 CANCELLATION_BARRIER",
        "announce:3@1 -> timer 10",
        "fire -> prioritize 1#31",
        make=timeoutable,
    )


def test_without_a_timeout_in_the_barrier_there_is_no_timer() -> None:
    gate = alternating(2)

    gate.tell("1@0 -> begin 1")

    assert gate.handle(AlignmentTimedOut(1)) == []


def test_a_refused_start_is_declined() -> None:
    """The inputs know a newer barrier: the snapshot is not wanted any more."""
    gate = alternating(2)

    gate.tell(BEGUN, "refuse:1 -> stop 1; abort 1 SUBSUMED", make=unaligned)

    shown = "<SingleCheckpointBarrierHandler ALTERNATING ALIGNING: checkpoint 1 done, 0 of 0 barriers>"
    assert repr(gate.machine) == shown


def test_a_refusal_before_any_barrier_changes_nothing() -> None:
    gate = Gate(3, BarrierMode.UNALIGNED)

    gate.tell("refuse:4 ->")

    assert "checkpoint -1 done, 0 of 0 barriers" in repr(gate.machine)
    assert "RECORDING" not in repr(gate.machine)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["aligned", "announced", "unaligned", "cancel", "end", "timeout", "late"])
    ),
    max_size=60,
)


@given(steps=STEPS, after_finish=st.booleans())
def test_whatever_comes_the_accounts_are_kept(steps: list[tuple[int, str]], after_finish: bool) -> None:
    """The invariants hold with announcements, overtaking barriers and timeouts; a last checkpoint ends it all."""
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
