"""``InFlightRecorder`` as ``ChannelStatePersister``: data between the start of a checkpoint and its barrier."""

import threading

import pytest

from netstack.errors import CheckpointSubsumedError
from netstack.gate.channels.input_channel import InFlightRecorder
from netstack.partition.channel_state import NO_CHANNEL_STATE, InputChannelInfo


def new_recorder() -> InFlightRecorder:
    return InFlightRecorder(threading.Lock(), NO_CHANNEL_STATE, InputChannelInfo(0, 0))


def states(recorder: InFlightRecorder) -> tuple[bool, bool]:
    return recorder.is_pending, recorder.has_barrier_received


def test_data_is_persisted_from_the_start_to_the_barrier() -> None:
    """ChannelStatePersisterTest: start, barrier, stop."""
    recorder = new_recorder()
    seen = [states(recorder)]

    recorder.start_locked(1, ())
    seen.append(states(recorder))
    counts = recorder.on_barrier(1)
    seen.append(states(recorder))
    recorder.stop_locked(1)
    seen.append(states(recorder))

    assert (counts, seen) == (True, [(False, False), (True, False), (False, True), (False, False)])


def test_a_barrier_before_the_start_leaves_nothing_to_persist() -> None:
    """ChannelStatePersisterTest: testNewBarrierNotOverwrittenByStopPersisting, and the start after the barrier."""
    recorder = new_recorder()

    counts = recorder.on_barrier(1)
    recorder.start_locked(1, ())
    after_start = states(recorder)
    recorder.on_barrier(2)
    recorder.stop_locked(1)

    assert (counts, after_start, states(recorder), recorder.last_seen_barrier) == (
        True,
        (False, True),
        (False, True),
        2,
    )


def test_a_newer_start_makes_an_older_barrier_pointless() -> None:
    """ChannelStatePersisterTest: testNewBarrierNotOverwrittenByCheckForBarrier: the late one does not end the
    persisting.
    """
    recorder = new_recorder()
    recorder.on_barrier(1)

    recorder.start_locked(2, ())
    late = recorder.on_barrier(1)

    assert (late, states(recorder), recorder.on_barrier(2), states(recorder)) == (
        False,
        (True, False),
        True,
        (False, True),
    )


def test_a_start_after_a_newer_barrier_is_refused() -> None:
    """ChannelStatePersisterTest: testLateBarrierOnStartedAndCancelledCheckpoint's twin: the older checkpoint is
    subsumed.
    """
    recorder = new_recorder()
    recorder.on_barrier(7)

    with pytest.raises(
        CheckpointSubsumedError, match="barrier of checkpoint 7 arrived before checkpoint 6 was started"
    ):
        recorder.start_locked(6, ())

    assert states(recorder) == (False, True)


def test_a_late_barrier_of_a_stopped_checkpoint_does_not_count() -> None:
    """ChannelStatePersisterTest: testLateBarrierOnCompletedCheckpoint, testLateBarrierTriggeringCheckpoint."""
    recorder = new_recorder()
    recorder.start_locked(1, ())
    recorder.stop_locked(1)

    late, next_one = recorder.on_barrier(1), recorder.on_barrier(2)

    assert (late, next_one, recorder.last_seen_barrier) == (False, True, 2)
    assert states(recorder) == (False, True)


def test_stopping_an_older_checkpoint_changes_nothing() -> None:
    """The newer one goes on."""
    recorder = new_recorder()
    recorder.start_locked(2, ())

    recorder.stop_locked(1)

    assert states(recorder) == (True, False)
