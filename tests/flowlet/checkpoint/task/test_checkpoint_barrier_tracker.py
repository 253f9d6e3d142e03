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


def test_a_single_channel_triggers_at_once() -> None:
    gate = tracker(1)

    assert gate.barrier(0, aligned(1, 3)) == [
        BeginAlignment(1, 3),
        TriggerCheckpointOnBarrier(aligned(1, 3)),
        CompleteInputs(1),
    ]


@pytest.mark.parametrize(
    ("num_channels", "steps", "triggered", "cancelled"),
    [
        pytest.param(1, "1@0 3@0 4@0 7@0 10@0", [1, 3, 4, 7, 10], [], id="ids are left out"),
        pytest.param(1, "1@0 1@0", [1], [], id="a barrier comes twice"),
        pytest.param(
            3,
            "1@0 1@2 1@1 2@0 2@1 3@1 2@2 3@0 3@2 4@1 4@2 4@0",
            [1, 2, 3, 4],
            [],
            id="the last of several channels triggers",
        ),
        pytest.param(
            3,
            "1@0 1@2 1@1 2@0 2@1 3@1 2@2 3@2 4@1 4@2 3@2 4@0",
            [1, 2, 4],
            [],
            id="3 never completes, and is skipped when 4 overtakes it",
        ),
        pytest.param(3, "2@1 2@2 3@1 4@1 3@2 2@0 4@2 3@0 4@0", [2, 3, 4], [], id="several are under way at once"),
        pytest.param(3, "5@0 6@0 6@1 6@2 5@1 5@2", [6], [], id="a newer one that completes first subsumes the older"),
        pytest.param(1, "1@0 2@0 cancel:4@0 5@0 cancel:6@0", [1, 2, 5], [4, 6], id="a single channel cancels"),
        pytest.param(
            3,
            "1@1 1@2 1@0 2@0 2@2 cancel:2@1 3@2 3@1 3@0 cancel:4@0 4@1 cancel:4@2 5@2 5@1 5@0 cancel:6@0 cancel:6@2",
            [1, 3, 5],
            [2, 4, 6],
            id="cancellations of several channels are told once",
        ),
        pytest.param(
            3, "1@0 cancel:2@0 1@1 cancel:2@1 1@2 cancel:2@2", [], [1, 2], id="cancellations come between barriers"
        ),
        pytest.param(
            3,
            "1@0 2@0 cancel:3@1 1@1 1@2 2@1 2@2 3@0 3@2",
            [],
            [1, 2, 3],
            id="a cancellation aborts everything older, and barriers of those start nothing",
        ),
        pytest.param(2, "1@0 2@0 end@1", [2], [], id="the end of a channel completes two: the newest is triggered"),
        pytest.param(2, "1@0 end@0 1@1", [1], [], id="a channel ends behind its barrier"),
        pytest.param(2, "1@1 2@1 end@1 1@0 2@0", [1, 2], [], id="after the end the last barriers come one by one"),
    ],
)
def test_each_checkpoint_is_triggered_with_its_last_barrier_or_aborted_once(
    num_channels: int, steps: str, triggered: list[int], cancelled: list[int]
) -> None:
    """Nothing is ever blocked."""
    gate = tracker(num_channels)

    gate.play(steps)

    assert (gate.triggered, gate.aborted) == (triggered, [(each, CANCELLED) for each in cancelled])


def test_a_cancelled_checkpoint_is_forgotten_when_every_channel_has_reported() -> None:
    gate = tracker(3)

    gate.play("1@0 cancel:2@0 1@1 cancel:2@1 1@2 cancel:2@2")

    assert "[] pending" in repr(gate.machine)


@pytest.mark.parametrize("after_finish", [True, False])
def test_the_end_of_a_channel(after_finish: bool) -> None:
    """The end completes pending checkpoints, or by the older rule aborts them."""
    gate = tracker(3, after_finish=after_finish)

    gate.play("1@0 1@1 2@1 end@2")

    assert gate.triggered == ([1] if after_finish else [])
    assert gate.aborted == ([] if after_finish else [(1, ENDED), (2, ENDED)])
    gate.play("3@0 3@1")
    assert gate.triggered[-1] == 3


def test_only_so_many_checkpoints_are_tracked() -> None:
    """The oldest is forgotten, not aborted."""
    gate = tracker(2)
    gate.play(" ".join(f"{each}@0" for each in range(1, MAX_TRACKED + 2)))

    gate.play("1@1")
    assert gate.triggered == []
    gate.play("2@1")

    assert gate.triggered == [2]
    assert gate.aborted == []


def test_an_unaligned_barrier_is_refused() -> None:
    """A tracker keeps no data that an unaligned barrier overtook."""
    gate = tracker(2)

    gate.play("1@0 1@1", unaligned)

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
    gate.play("1@0")

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
            gate.play(f"{ids[channel]}@{channel}")

    last = max(ids) + 1
    gate.play(" ".join(f"{last}@{channel}" for channel in open_channels))

    done = gate.triggered + gate.aborted_ids
    assert len(done) == len(set(done))
    assert not open_channels or gate.triggered[-1] == last
