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
    """Block and resume at once; alignment takes no time."""
    assert Gate(1).barrier(0, aligned(1, 5)) == [
        BeginAlignment(1, 5),
        TriggerCheckpointOnBarrier(aligned(1, 5)),
        ResumeChannels(((0, 0),)),
        CompleteInputs(1),
    ]


def test_the_last_barrier_triggers_and_resumes_all() -> None:
    """Barriers of 4 checkpoints come on 3 channels in changing orders."""
    gate = Gate(3)
    for checkpoint_id, order in enumerate([(1, 2, 0), (0, 1, 2), (2, 0, 1), (1, 0, 2)], start=1):
        first, second, last = order
        gate.play(f"{checkpoint_id}@{first} {checkpoint_id}@{second}")
        assert len(gate.triggered) == checkpoint_id - 1
        assert gate.blocked == {first, second}

        gate.play(f"{checkpoint_id}@{last}")

        assert gate.blocked == set()
    assert gate.triggered == [1, 2, 3, 4]
    assert gate.aborted == []


@pytest.mark.parametrize("num_channels", range(1, 8))
def test_no_channel_is_left_out(num_channels: int) -> None:
    """Exactly the last of them triggers."""
    gate = Gate(num_channels)

    gate.play(" ".join(f"1@{channel}" for channel in range(num_channels - 1)))
    assert gate.triggered == []
    gate.play(f"1@{num_channels - 1}")

    assert gate.triggered == [1]


def test_a_newer_barrier_gives_the_older_checkpoint_up() -> None:
    """Checkpoint 1 is complete; 2 and 3 are overtaken on the way to 4."""
    gate = Gate(3)

    for steps, blocked in (
        ("1@1 1@2 1@0", set()),
        ("2@1 2@0", {0, 1}),
        ("3@2", {2}),
        ("3@0", {0, 2}),
        ("4@1", {1}),
        ("4@0 4@2", set[int]()),
    ):
        gate.play(steps)
        assert gate.blocked == blocked, steps
    assert gate.triggered == [1, 4]
    assert gate.aborted == [(2, SUBSUMED), (3, SUBSUMED)]


def test_a_late_barrier_only_resumes_its_channel() -> None:
    """FLINK-21104, FLINK-20331: the barrier of a checkpoint that was given up, or taken, starts nothing."""
    gate = Gate(2)
    gate.play("1@0 2@1")

    assert gate.barrier(0, aligned(1)) == [ResumeChannels(((0, 0),))]
    gate.play("2@0")
    assert gate.barrier(0, aligned(2)) == [ResumeChannels(((0, 0),))]
    assert gate.triggered == [2]


@pytest.mark.parametrize(
    ("num_channels", "steps", "triggered", "aborted"),
    [
        pytest.param(
            2,
            "1@0 cancel:2@1 cancel:3@1 cancel:3@0 cancel:2@0",
            [],
            [(1, SUBSUMED), (2, CANCELLED), (3, CANCELLED)],
            id="cancellations without a barrier are told once each, and the pending checkpoint is declined",
        ),
        pytest.param(4, "end@1 end@2 2@0 2@3", [2], [], id="channels that ended before are not waited for"),
        pytest.param(2, "end@0 1@1 2@1", [1, 2], [], id="after an end the rest is enough"),
        pytest.param(2, "1@0 1@1 end@0 end@1", [1], [], id="ends between checkpoints change nothing"),
        pytest.param(
            1,
            "1@0 2@0 cancel:4@0 5@0 cancel:6@0",
            [1, 2, 5],
            [(4, CANCELLED), (6, CANCELLED)],
            id="a single channel cancels",
        ),
        pytest.param(
            3,
            "1@1 1@2 1@0 2@0 2@2 cancel:2@1",
            [1],
            [(2, CANCELLED)],
            id="a cancellation ends the alignment, and blocked channels go on",
        ),
        pytest.param(
            3,
            "1@2 1@1 1@0 cancel:2@0 2@1 cancel:2@2",
            [1],
            [(2, CANCELLED)],
            id="later barriers and cancellations of a cancelled checkpoint start nothing",
        ),
        pytest.param(
            3,
            "3@1 3@0 5@2 cancel:3@1 cancel:3@0 5@1 5@0",
            [5],
            [(3, SUBSUMED)],
            id="a cancellation of what was subsumed is ignored",
        ),
        pytest.param(1, "1@0 cancel:1@0", [1], [], id="a cancellation after the trigger is ignored"),
        pytest.param(
            3,
            "end@0 inject:1@1 inject:1@2 1@1 inject:1@2",
            [1],
            [],
            id="the JobManager's order stands for all barriers, and late ones find the checkpoint done",
        ),
    ],
)
def test_each_checkpoint_is_taken_or_given_up_once_and_nothing_stays_blocked(
    num_channels: int, steps: str, triggered: list[int], aborted: list[tuple[int, CheckpointFailureReason]]
) -> None:
    gate = Gate(num_channels)

    gate.play(steps)

    assert (gate.triggered, gate.aborted, gate.blocked) == (triggered, aborted, set())


def test_a_channel_counts_once_by_its_barrier_and_its_end() -> None:
    """An injected barrier does not block, so the channel can end behind it."""
    gate = Gate(3)

    gate.play("inject:1@0 end@0 1@1")
    assert gate.triggered == []
    gate.play("1@2")

    assert gate.triggered == [1]


@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel_while_aligning(after_finish: bool) -> None:
    """The end counts as aligned, or by the older rule gives the checkpoint up."""
    gate = Gate(3, after_finish=after_finish)

    gate.play("1@0 1@1 end@2")

    assert gate.triggered == ([1] if after_finish else [])
    assert gate.aborted == ([] if after_finish else [(1, ENDED)])
    assert gate.blocked == set()


def test_an_unaligned_barrier_is_refused() -> None:
    """A producer that is configured differently cannot make a snapshot with holes."""
    gate = Gate(2)

    gate.play("1@0", unaligned)

    assert gate.aborted == [(1, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT)]
    assert gate.triggered == []


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
    """A refusal counts even after the checkpoint was complete; one about an older checkpoint is ignored."""
    gate = Gate(1)
    gate.play("1@0")

    gate.handle(CheckpointRefused(1, SUBSUMED))
    gate.handle(CheckpointRefused(0, SUBSUMED))

    assert gate.aborted == [(1, SUBSUMED)]


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["next", "next", "next", "skip", "cancel", "end", "inject"])),
    max_size=60,
)


@given(steps=STEPS, after_finish=st.booleans())
def test_whatever_comes_nothing_stays_blocked_for_ever(steps: list[tuple[int, str]], after_finish: bool) -> None:
    """No id twice, nothing resumed that was not blocked; a checkpoint with everybody's barrier ends it all."""
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
