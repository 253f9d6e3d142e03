"""``ChannelStatePersister``: data between the start of a checkpoint and its barrier."""

import pytest

from netstack.errors import CheckpointSubsumedError
from netstack.gate.channels.in_flight_recorder import ChannelStatePersister


def states(persister: ChannelStatePersister) -> tuple[bool, bool]:
    return persister.is_pending, persister.has_barrier_received


def test_data_is_persisted_from_the_start_to_the_barrier() -> None:
    """ChannelStatePersisterTest: start, barrier, stop."""
    persister = ChannelStatePersister()
    seen = [states(persister)]

    persister.start(1)
    seen.append(states(persister))
    counts = persister.on_barrier(1)
    seen.append(states(persister))
    persister.stop(1)
    seen.append(states(persister))

    assert (counts, seen) == (True, [(False, False), (True, False), (False, True), (False, False)])


def test_a_barrier_before_the_start_leaves_nothing_to_persist() -> None:
    """ChannelStatePersisterTest: testNewBarrierNotOverwrittenByStopPersisting, and the start after the barrier."""
    persister = ChannelStatePersister()

    counts = persister.on_barrier(1)
    persister.start(1)
    after_start = states(persister)
    persister.on_barrier(2)
    persister.stop(1)

    assert (counts, after_start, states(persister), persister.last_seen_barrier) == (
        True,
        (False, True),
        (False, True),
        2,
    )


def test_a_newer_start_makes_an_older_barrier_pointless() -> None:
    """ChannelStatePersisterTest: testNewBarrierNotOverwrittenByCheckForBarrier: the late one does not end the
    persisting.
    """
    persister = ChannelStatePersister()
    persister.on_barrier(1)

    persister.start(2)
    late = persister.on_barrier(1)

    assert (late, states(persister), persister.on_barrier(2), states(persister)) == (
        False,
        (True, False),
        True,
        (False, True),
    )


def test_a_start_after_a_newer_barrier_is_refused() -> None:
    """ChannelStatePersisterTest: testLateBarrierOnStartedAndCancelledCheckpoint's twin: the older checkpoint is
    subsumed.
    """
    persister = ChannelStatePersister()
    persister.on_barrier(7)

    with pytest.raises(
        CheckpointSubsumedError, match="barrier of checkpoint 7 arrived before checkpoint 6 was started"
    ):
        persister.start(6)

    assert states(persister) == (False, True)


def test_a_late_barrier_of_a_stopped_checkpoint_does_not_count() -> None:
    """ChannelStatePersisterTest: testLateBarrierOnCompletedCheckpoint, testLateBarrierTriggeringCheckpoint."""
    persister = ChannelStatePersister()
    persister.start(1)
    persister.stop(1)

    late, next_one = persister.on_barrier(1), persister.on_barrier(2)

    assert (late, next_one, persister.last_seen_barrier) == (False, True, 2)
    assert states(persister) == (False, True)


def test_stopping_an_older_checkpoint_changes_nothing() -> None:
    """The newer one goes on."""
    persister = ChannelStatePersister()
    persister.start(2)

    persister.stop(1)

    assert states(persister) == (True, False)
