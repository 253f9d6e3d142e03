"""``ResultPartition``: its ends, its views, and its failures."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, ResourceClosedError
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, EndOfData, EndOfPartition, Event, StopMode
from tests.netstack.partition.producing import SEGMENT as SIZE
from tests.netstack.partition.producing import (
    TIMEOUTABLE,
    UNALIGNED,
    Producing,
    RecordingListener,
    RecordingStateWriter,
    partition_id_of,
    read,
    recycled_sizes,
)

SEGMENT = 16  # bytes: small, so that records span buffers


@pytest.fixture
def it() -> Producing:
    return Producing()


def test_the_ends_follow_the_data_in_order(small: Producing) -> None:
    """Behind the data, in a buffer of all, come one end of data and the end of the partition; every reader is told."""
    small.partition.emit_record(b"abc", 0)
    small.partition.broadcast_record(b"de")

    small.partition.notify_end_of_data(StopMode.NO_DRAIN)
    small.partition.notify_end_of_data(StopMode.DRAIN)
    small.partition.finish()

    ends: list[Event] = [EndOfData(StopMode.NO_DRAIN), EndOfPartition()]
    assert [read(view) for view in small.views] == [(b"abcde", ends), (b"de", ends)]
    assert [listener.count for listener in small.listeners] == [2, 2]
    assert small.partition.is_finished


def test_a_finished_partition_takes_nothing_more(small: Producing) -> None:
    """ResultPartition.checkInProduceState (row F14): every producing call says so."""
    small.partition.finish()

    calls: list[Callable[[], None]] = [
        lambda: small.partition.emit_record(b"x", 0),
        lambda: small.partition.broadcast_record(b"x"),
        lambda: small.partition.broadcast_event(EndOfData(StopMode.DRAIN)),
        lambda: small.partition.notify_end_of_data(StopMode.DRAIN),
        small.partition.finish,
    ]
    for call in calls:
        with pytest.raises(LocalProtocolError, match="is finished and takes nothing more"):
            call()


def test_all_data_is_processed_when_every_consumer_said_so(small: Producing) -> None:
    """ResultPartitionTest.testWaitForAllRecordProcessed: not by half, not by one that says it twice."""
    small.partition.notify_end_of_data(StopMode.DRAIN)

    small.views[0].acknowledge_all_data_processed()
    small.views[0].acknowledge_all_data_processed()
    by_half = small.partition.all_data_processed.is_done
    small.views[1].acknowledge_all_data_processed()

    assert (by_half, small.partition.all_data_processed.is_done) == (False, True)


def test_it_is_released_when_consumed_and_closed() -> None:
    """The last of the consumers and the producer, in any order, returns the memory and notifies the listener once."""
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        it = Producing(segment=SEGMENT)
        released: list[str] = []
        it.partition.add_release_listener(partial(released.append, "released"))
        it.partition.emit_record(bytes(50), 0)
        it.partition.finish()
        states = []

        for user in order:
            if user == 2:
                it.partition.close()
            else:
                it.views[user].release()
            states.append(it.partition.is_released)

        assert (states, released, it.partition.failure_cause) == ([False, False, True], ["released"], None)
        assert it.network.num_available == 64
        it.close()


def test_data_stays_readable_after_close(small: Producing) -> None:
    """The task is gone, its last buffers are not."""
    small.partition.emit_record(bytes(40), 0)
    small.partition.finish()
    small.partition.close()
    small.partition.close()

    assert read(small.views[0]) == (bytes(40), [EndOfPartition()])
    assert not small.partition.is_released


def test_closing_an_unfinished_partition_fails_its_readers(small: Producing) -> None:
    """Readers do not wait for an end that never comes: they get the failure."""
    small.partition.emit_record(b"abc", 0)

    small.partition.close()

    assert (small.views[0].is_released, small.views[0].next_buffer(), small.listeners[0].count) == (True, None, 1)
    assert "closed before it was finished" in str(small.views[0].failure_cause)
    assert small.network.num_available == 64


def test_fail_tells_every_reader_why(small: Producing) -> None:
    """Views are released with the cause, listeners are notified, queued data is dropped, and producing is refused."""
    error = ValueError("the dog ate it")
    small.partition.emit_record(b"abc", 0)

    small.partition.fail(error)
    small.partition.fail(KeyError("later"))

    for view, listener in zip(small.views, small.listeners, strict=True):
        assert (view.is_released, view.next_buffer(), view.has_data(1), listener.count) == (True, None, False, 1)
        cause = view.failure_cause
        assert isinstance(cause, ProducerFailedError)
        assert "map (1/2), failed: ValueError: the dog ate it" in str(cause)
        assert cause.__cause__ is error
    with pytest.raises(ResourceClosedError, match="the dog ate it"):
        small.partition.emit_record(b"x", 0)
    with pytest.raises(ResourceClosedError):
        small.partition.finish()
    assert small.partition.all_data_processed.is_done, "nobody waits for acknowledgements any more"


def test_release_without_a_cause_still_gives_readers_one(small: Producing) -> None:
    """A remote reader is only told about a cause."""
    small.partition.release()

    assert "released before it was consumed" in str(small.views[0].failure_cause)


def test_the_text_of_a_failure_is_asked_for_outside_the_lock(small: Producing) -> None:
    """A failure can be a user's exception, whose ``__str__`` may call the partition."""

    class Curious(Exception):
        def __str__(self) -> str:
            reader = threading.Thread(target=small.partition.check_invariants, daemon=True)  # takes the lock
            reader.start()
            reader.join(5)
            return f"waits: {reader.is_alive()}"

    small.partition.fail(Curious())

    assert "Curious: waits: False" in str(small.views[0].failure_cause)


def test_a_producer_failure_is_not_wrapped_twice(small: Producing) -> None:
    """The cause that is one already is passed on."""
    cause = ProducerFailedError("upstream of upstream")

    small.partition.release(cause)

    assert small.views[0].failure_cause is cause


def test_a_release_listener_that_comes_late_is_called_at_once(small: Producing) -> None:
    """A listener that is added after the release does not miss it."""
    small.partition.release()
    told: list[str] = []

    small.partition.add_release_listener(lambda: told.append("released"))

    assert told == ["released"]


def test_views_are_refused_with_a_reason(small: Producing) -> None:
    """An index outside, a second reader, a released partition, a consumed subpartition."""
    for index in (-1, 2):
        with pytest.raises(LocalProtocolError, match=f"has 2 subpartitions, {index} is none of them"):
            small.partition.create_subpartition_view(index, RecordingListener())
    with pytest.raises(LocalProtocolError, match="read by somebody else"):
        small.partition.create_subpartition_view(1, RecordingListener())
    small.views[0].release()
    with pytest.raises(PartitionNotFoundError, match="its subpartition 0 was consumed"):
        small.partition.create_subpartition_view(0, RecordingListener())
    small.partition.fail(ValueError("boom"))
    with pytest.raises(PartitionNotFoundError, match="boom"):
        small.partition.create_subpartition_view(1, RecordingListener())


def test_approximate_partitions_wait_for_their_next_consumer() -> None:
    """ResultPartitionType.PIPELINED_APPROXIMATE: no consumer's end releases it."""
    it = Producing(1, partition_type=ResultPartitionType.PIPELINED_APPROXIMATE)
    it.partition.emit_record(b"abc", 0)
    it.views[0].release()
    it.views = [it.partition.create_subpartition_view(0, RecordingListener())]

    assert read(it.views[0])[0] == b"abc"
    it.partition.finish()
    it.partition.close()
    assert it.partition.is_released is False


def test_partitions_need_a_subpartition() -> None:
    """ResultPartition: none makes no sense."""
    it = Producing(1)
    with pytest.raises(ValueError, match="a partition of 0 subpartitions"):
        ResultPartition(partition_id_of(), 0, it.pool, "map")


# ---------------------------------------------------------------- ranges of subpartitions


def test_a_range_of_subpartitions_is_one_view() -> None:
    """ResultPartition.createSubpartitionView of a range: read one after the other, as records may span buffers."""
    it, listener = Producing(3, with_views=False), RecordingListener()
    for index in range(3):
        it.partition.emit_record(bytes(SIZE + 1), index)
    view = it.partition.create_subpartition_view(1, listener, 2)
    it.views = [view, it.partition.create_subpartition_view(0, listener)]

    it.partition.finish()

    assert read(view) == (bytes(2 * SIZE + 2), [EndOfPartition()] * 2)


def test_a_range_that_cannot_be_read_is_refused_as_a_whole() -> None:
    """A refused range consumes none of its subpartitions, unlike Flink's ResultPartition.createSubpartitionView."""
    it = Producing(3, with_views=False)
    taken = it.partition.create_subpartition_view(2, RecordingListener())
    for index in range(3):
        it.partition.emit_record(bytes([index]) * (SIZE + 1), index)

    with pytest.raises(LocalProtocolError, match="2 to 3 are none of them"):
        it.partition.create_subpartition_view(2, RecordingListener(), 3)
    with pytest.raises(LocalProtocolError, match="can only be consumed once"):
        it.partition.create_subpartition_view(0, RecordingListener(), 2)
    it.partition.check_invariants()
    listeners = [RecordingListener(), RecordingListener()]
    it.views = [
        *(it.partition.create_subpartition_view(index, listener) for index, listener in enumerate(listeners)),
        taken,
    ]
    it.partition.finish()

    assert [listener.count for listener in listeners] == [2, 2], "of what was there already, and of the end"
    assert [read(view) for view in it.views] == [
        (bytes([index]) * (SIZE + 1), [EndOfPartition()]) for index in range(3)
    ]


def test_a_refused_range_that_is_told_late_disturbs_nobody() -> None:
    """A producer was about to tell its reader; the next reader was told by itself."""
    it = Producing(2, with_views=False)
    taken = it.partition.create_subpartition_view(1, RecordingListener())
    refused = RecordingListener()
    it.partition.emit_record(bytes(SIZE + 1), 0)

    with pytest.raises(LocalProtocolError, match="can only be consumed once"):
        it.partition.create_subpartition_view(0, refused, 1)
    it.partition.fail(RuntimeError("late"))

    assert refused.count == 0
    it.views = [taken]


def test_a_range_with_a_consumed_subpartition_takes_nothing_of_the_others() -> None:
    """A range with a subpartition whose consumer has gone is refused, and its other subpartitions can still be read."""
    it = Producing(3, with_views=False)
    it.partition.create_subpartition_view(1, RecordingListener()).release()

    with pytest.raises(PartitionNotFoundError, match="its subpartition 1 was consumed"):
        it.partition.create_subpartition_view(0, RecordingListener(), 2)
    it.views = [it.partition.create_subpartition_view(index, RecordingListener()) for index in (0, 2)]
    it.partition.finish()

    assert [read(view) for view in it.views] == [(b"", [EndOfPartition()])] * 2
    assert not it.partition.is_released


# ---------------------------------------------------------------- checkpoints


def test_unaligned_barriers_overtake_and_keep_what_is_in_flight(it: Producing) -> None:
    """Open buffers are finished, and the overtaken data belongs to the checkpoint."""
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state, 3)
    it.partition.emit_record(b"abc", 0)
    it.partition.broadcast_record(b"de")

    it.partition.broadcast_event(CheckpointBarrier(4, 0, UNALIGNED), is_priority=True)

    assert state.output == [(4, (3, 0), [3, 2]), (4, (3, 1), [2])]
    assert [(it.poll(0), it.poll(0), it.poll(0)), (it.poll(1), it.poll(1))] == [(34, 3, 2), (34, 2)]


@pytest.mark.parametrize("end", ["timeout", "abort"])
def test_barriers_of_every_subpartition_time_out_or_are_aborted(it: Producing, end: str) -> None:
    """A barrier that was consumed already stays as it was."""
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state)
    it.partition.broadcast_record(b"de")
    it.partition.broadcast_event(CheckpointBarrier(4, 0, TIMEOUTABLE))
    it.poll(0)
    it.poll(0)

    if end == "timeout":
        it.partition.aligned_barrier_timeout(4)
    else:
        it.partition.abort_checkpoint(4, ValueError("declined"))

    results = [(data.end.is_done, data.error is None, recycled_sizes(data.take())) for _, data in state.futures]
    assert results == [(True, True, []), (True, True, [2]) if end == "timeout" else (True, False, [])]
    assert (it.poll(1), it.poll(1)) == ((34, 2) if end == "timeout" else (2, 34))
