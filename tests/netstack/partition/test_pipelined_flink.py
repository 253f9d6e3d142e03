"""``PipelinedSubpartition``: the scenarios of Flink's own tests, under their names."""

import sys
import threading
from collections.abc import Iterator

import pytest

from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.errors import LocalProtocolError, ProducerFailedError, ResourceClosedError
from netstack.partition.pipelined_subpartition import ADD_REFUSED, NO_BUFFER_SIZE, PipelinedSubpartition
from netstack.wire.events import EndOfSuperstep, deserialize_event, event_data_type, serialize_event
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import (
    TIMEOUTABLE,
    Arena,
    Reading,
    RecordingListener,
    RecordingParent,
    RecordingStateWriter,
    barrier,
    drain,
    event,
    recycled_sizes,
    unaligned_barrier,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def it() -> Iterator[Reading]:
    reading = Reading()
    yield reading
    reading.subpartition.check_invariants()
    reading.close()


def next_one(it: Reading) -> tuple[int, bool, int, bool]:
    """What ``assertNextBuffer`` of Flink's test asserts: size, data available, backlog, event available."""
    found = it.poll()
    is_available, backlog = it.view.availability(True)
    assert (found.next_data_type is not DataType.NONE) == is_available
    assert found.next_data_type.is_event == it.view.availability(False)[0]
    assert found.backlog == backlog
    return found.buffer.size, is_available, found.backlog, found.next_data_type.is_event


# ---------------------------------------------------------------- PipelinedSubpartitionWithReadViewTest


def test_add_two_non_finished_buffers(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAddTwoNonFinishedBuffer: the first must be finished when it is looked at."""
    first = it.add(0, is_finished=False)
    it.add(0, is_finished=False)
    assert it.listener.count == 1

    with pytest.raises(AssertionError, match="only the last buffer may be unfinished"):
        it.view.next_buffer()
    first.finish()


def test_add_empty_non_finished_buffer(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAddEmptyNonFinishedBuffer: told when the second comes; nothing to read then."""
    first = it.add(0, is_finished=False)
    assert (it.listener.count, it.view.next_buffer()) == (0, None)

    first.finish()
    it.add(0, is_finished=False)

    assert (it.view.backlog, it.listener.count, it.view.next_buffer(), it.view.backlog) == (1, 1, None, 0)


def test_add_non_empty_not_finished_buffer(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAddNonEmptyNotFinishedBuffer: readable, with backlog 0."""
    it.add(1024, is_finished=False)

    assert (it.view.backlog, next_one(it), it.listener.count) == (0, (1024, False, 0, False), 0)


def test_unfinished_buffer_behind_finished(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testUnfinishedBufferBehindFinished: backlog 1; the second is not reported, but can be read."""
    it.add(1000)
    it.add(24, is_finished=False)

    assert (it.view.backlog, it.listener.count) == (1, 1)
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(1000, False, 0, False), (24, False, 0, False), None]


def test_flush_with_unfinished_buffer_behind_finished(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testFlushWithUnfinishedBufferBehindFinished: no new notification, backlog 2."""
    it.add(1000)
    it.add(24, is_finished=False)
    it.subpartition.flush()

    assert (it.listener.count, it.view.backlog) == (1, 2)
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(1000, True, 1, False), (24, False, 0, False), None]


def test_flush_with_unfinished_buffer_behind_finished_2(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testFlushWithUnfinishedBufferBehindFinished2: with one left a flush tells once."""
    it.subpartition.flush()
    assert it.listener.count == 0
    it.add(1000)
    it.add(24, is_finished=False)
    assert next_one(it) == (1000, False, 0, False)

    it.subpartition.flush()
    it.subpartition.flush()

    assert (it.listener.count, it.view.backlog, next_one(it), it.view.next_buffer()) == (2, 1, (24, False, 0, False), None)


def test_multiple_empty_buffers(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testMultipleEmptyBuffers: 0, 1, 1, 1 notifications, then the data at once."""
    counts = []
    for size in (0, 0, 0, 1024):
        it.add(size)
        counts.append(it.listener.count)

    assert (counts, it.view.backlog, next_one(it)) == ([0, 1, 1, 1], 3, (1024, False, 0, False))


def test_empty_flush(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testEmptyFlush: tells nobody."""
    it.subpartition.flush()

    assert it.listener.count == 0


def test_basic_pipelined_produce_consume_logic(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBasicPipelinedProduceConsumeLogic: buffers and events, read as they come."""
    for _ in range(2):
        it.add(100)
        assert (it.view.availability(False)[0], it.view.backlog, it.listener.count) == (False, 0, 0)
        assert (next_one(it), it.view.next_buffer()) == ((100, False, 0, False), None)

    it.add(100)
    it.subpartition.add(event())
    it.add(100)

    assert (it.view.availability(False)[0], it.view.backlog, it.listener.count) == (False, 1, 1)
    assert [next_one(it), next_one(it), next_one(it)] == [(100, True, 0, True), (4, False, 0, False), (100, False, 0, False)]
    assert (it.view.next_buffer(), it.listener.count) == (None, 1)


def test_barrier_overtaking(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBarrierOvertaking: sizes 1, 2, event, 4, then an unaligned barrier."""
    it.add(1)
    it.add(2)
    superstep = EndOfSuperstep()
    it.subpartition.add(BufferConsumer.of_event(serialize_event(superstep), event_data_type(superstep)))
    it.add(4)
    assert (it.listener.count, it.listener.priority_sequence_numbers) == (1, [])

    it.subpartition.add(unaligned_barrier(5))

    assert (it.listener.count, it.listener.priority_sequence_numbers) == (1, [0])
    assert it.state.output == [(5, (7, 3), -1, [1, 2, 4])]
    assert next_one(it) == (34, True, 2, False)
    assert [next_one(it), next_one(it)] == [(1, True, 1, False), (2, True, 0, True)]
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(4, False, 0, False), (4, False, 0, False), None]


def test_availability_after_priority(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAvailabilityAfterPriority: 1 then 2 notifications, 1 of priority."""
    told = []
    it.subpartition.add(unaligned_barrier())
    told.append((it.listener.count, len(it.listener.priority_sequence_numbers)))
    for size in (1, 2):
        it.add(size)
        told.append((it.listener.count, len(it.listener.priority_sequence_numbers)))

    assert told == [(1, 1), (2, 1), (2, 1)]
    assert next_one(it) == (34, True, 1, False)
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(1, False, 0, False), (2, False, 0, False), None]


@pytest.mark.parametrize(("is_flushed", "is_ended"), [(False, False), (True, False), (False, True)])
def test_backlog_consistent_with_number_of_consumable_buffers(it: Reading, is_flushed: bool, is_ended: bool) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBacklogConsistentWithNumberOfConsumableBuffers: plain, flushed, finished."""
    for number in range(5):
        it.add(100, is_finished=number < 4 or is_ended)
    if is_flushed:
        it.subpartition.flush()
    if is_ended:
        it.subpartition.finish()

    backlog = it.view.backlog
    consumable = [found for found in drain(it.subpartition) if found.buffer.is_buffer]

    assert (backlog, len(consumable)) == ((5, 5) if is_flushed or is_ended else (4, 4))


def block(it: Reading) -> None:
    """Poll an aligned barrier."""
    it.subpartition.add(barrier())
    assert next_one(it)[1:] == (False, 0, False)
    it.listener.count = 0


def is_still(it: Reading) -> bool:
    """Nobody was told, and there is nothing to poll."""
    return (it.listener.count, it.view.availability(True), it.view.next_buffer()) == (0, (False, 0), None)


def test_resume_blocked_subpartition_with_events(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithEvents: the event waits, then needs no credit."""
    block(it)
    it.subpartition.add(event())
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(False)[0], next_one(it)) == (1, True, (4, False, 0, False))


def test_resume_blocked_subpartition_with_unfinished_buffer_flushed(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithUnfinishedBufferFlushed: the flush is not forgotten."""
    block(it)
    it.add(100, is_finished=False)
    it.subpartition.flush()
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(True), next_one(it)) == (1, (True, 1), (100, False, 0, False))


def test_resume_blocked_subpartition_with_unfinished_buffer_not_flushed(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithUnfinishedBufferNotFlushed: nothing is available yet."""
    block(it)
    it.add(100, is_finished=False)
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(True)) == (0, (False, 0))


def test_resume_blocked_subpartition_with_finished_buffers(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithFinishedBuffers: both come."""
    block(it)
    it.add(100)
    it.add(100)
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(True)) == (1, (True, 1))
    assert [next_one(it), next_one(it)] == [(100, False, 0, False), (100, False, 0, False)]


def test_resume_blocked_empty_subpartition(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedEmptySubpartition: still nothing."""
    block(it)

    it.view.resume_consumption()

    assert is_still(it)


def test_priority_bypasses_the_block(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest, blocked: a priority event is told and polled, the data behind it stays blocked."""
    block(it)
    it.add(100)
    it.add(100)

    it.subpartition.add(unaligned_barrier(2))

    assert (it.listener.count, it.listener.priority_sequence_numbers) == (0, [1])
    assert (it.view.availability(False), it.view.availability(True)) == ((True, 0), (True, 0))
    assert next_one(it) == (34, False, 0, False)
    assert is_still(it)
    it.view.resume_consumption()
    assert next_one(it) == (100, False, 0, False)


def test_a_subpartition_that_is_not_blocked_cannot_be_resumed(it: Reading) -> None:
    """PipelinedSubpartition.resumeConsumption checks its state; one that was released takes it."""
    with pytest.raises(LocalProtocolError, match="subpartition 3 is resumed, but not blocked"):
        it.view.resume_consumption()

    it.subpartition.release()
    it.view.resume_consumption()


# ---------------------------------------------------------------- PipelinedSubpartitionTest


def test_illegal_read_view_request(it: Reading) -> None:
    """PipelinedSubpartitionTest.testIllegalReadViewRequest: a second view is refused (row A09)."""
    with pytest.raises(LocalProtocolError, match="can only be consumed once"):
        it.subpartition.create_read_view(RecordingListener())


def test_is_released_checks_parent(it: Reading) -> None:
    """PipelinedSubpartitionTest.testIsReleasedChecksParent: a view is released with its subpartition."""
    before = it.view.is_released
    it.subpartition.release()

    assert (before, it.view.is_released) == (False, True)


@pytest.mark.parametrize("has_view", [True, False])
@pytest.mark.parametrize("ends_by", ["producer", "reader"])
def test_cleanup_released_partition(has_view: bool, ends_by: str) -> None:
    """PipelinedSubpartitionTest.testCleanupReleasedPartition: data and events are freed, with and without a view."""
    subpartition, arena = PipelinedSubpartition(0, RecordingParent()), Arena()
    builders = [arena.builder(), arena.builder()]
    for builder in builders:
        subpartition.add(builder.create_buffer_consumer())
        builder.append_and_commit(b"abc")
        builder.finish()
    subpartition.add(event())
    view = subpartition.create_read_view(RecordingListener()) if has_view else None

    if view is not None and ends_by == "reader":
        view.release()
    else:
        subpartition.release()

    for builder in builders:
        builder.close()
    assert (subpartition.is_released, view is None or view.is_released, arena.num_out) == (True, True, 0)
    assert view is None or view.next_buffer() is None


def test_release_parent_and_view_after_release(it: Reading) -> None:
    """PipelinedSubpartitionTest.testReleaseParent: what is added afterwards is closed at once."""
    it.subpartition.release()
    builder = it.arena.builder()

    assert it.subpartition.add(builder.create_buffer_consumer()) == ADD_REFUSED
    builder.close()


def test_starting_buffer_size(it: Reading) -> None:
    """PipelinedSubpartitionTest.testStartingBufferSize: no wish yet."""
    builder = it.arena.builder()
    it.builders.append(builder)

    assert it.subpartition.add(builder.create_buffer_consumer()) == NO_BUFFER_SIZE == 2**31 - 1


def test_new_buffer_size(it: Reading) -> None:
    """PipelinedSubpartitionTest.testNewBufferSize: what the view asks for is the answer to the next buffer."""
    it.view.notify_new_buffer_size(42)
    builder = it.arena.builder()
    it.builders.append(builder)

    assert it.subpartition.add(builder.create_buffer_consumer()) == 42


def test_negative_new_buffer_size(it: Reading) -> None:
    """PipelinedSubpartitionTest.testNegativeNewBufferSize: refused, and nothing changes."""
    with pytest.raises(ValueError, match="a buffer size of -1 bytes"):
        it.view.notify_new_buffer_size(-1)
    assert it.subpartition.desired_buffer_size == NO_BUFFER_SIZE


def test_producer_failed_exception(it: Reading) -> None:
    """PipelinedSubpartitionTest.testProducerFailedException: the view names the cause."""
    it.parent.failure_cause = ProducerFailedError("Expected test exception")

    it.subpartition.release()

    assert (it.view.is_released, str(it.view.failure_cause)) == (True, "Expected test exception")


def in_flight(it: Reading) -> list[tuple[int, str, list[int]]]:
    """Of each future: checkpoint, state, and sizes of the buffers."""
    found = []
    for checkpoint_id, data in it.state.futures:
        state = "pending" if not data.is_done else "done" if data.error is None else type(data.error).__name__
        found.append((checkpoint_id, state, recycled_sizes(data.take())))
    return found


def test_consume_timeoutable_checkpoint_barrier_quickly(it: Reading) -> None:
    """PipelinedSubpartitionTest.testConsumeTimeoutableCheckpointBarrierQuickly: polled in time, nothing was in flight."""
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    before = in_flight(it)

    found = it.poll()
    it.subpartition.aligned_barrier_timeout(3)

    assert (found.buffer.data_type, found.next_data_type) == (DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER, DataType.NONE)
    assert (before, in_flight(it), it.listener.priority_sequence_numbers) == ([(3, "pending", [])], [(3, "done", [])], [])
    it.view.resume_consumption()


@pytest.mark.parametrize("num_buffers", [0, 1])
def test_timeout_aligned_to_unaligned_barrier(it: Reading, num_buffers: int) -> None:
    """PipelinedSubpartitionTest.testTimeoutAlignedToUnalignedBarrier / WithInflightBuffers: it overtakes what was before it."""
    for _ in range(num_buffers):
        it.add(10)
    it.subpartition.add(barrier(3, TIMEOUTABLE))

    it.subpartition.aligned_barrier_timeout(3)

    assert in_flight(it) == [(3, "done", [10] * num_buffers)]
    assert it.listener.priority_sequence_numbers == [0]
    found = it.view.next_buffer()
    assert found is not None
    parsed = deserialize_event(found.buffer.view)
    found.buffer.recycle()
    assert "UNALIGNED" in str(parsed)
    assert (found.buffer.data_type, found.sequence_number) == (DataType.PRIORITIZED_EVENT_BUFFER, 0)
    assert [one.buffer.size for one in drain(it.subpartition)] == []
    assert [it.poll().buffer.size for _ in range(num_buffers)] == [10] * num_buffers


def test_timeout_aligned_barrier_between_buffers(it: Reading) -> None:
    """PipelinedSubpartitionTest.testTimeoutAlignedToUnalignedBarrier: what came behind it is not in flight."""
    it.add(10)
    it.subpartition.add(event())
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.add(20)

    it.subpartition.aligned_barrier_timeout(2)
    it.subpartition.aligned_barrier_timeout(3)
    it.subpartition.aligned_barrier_timeout(3)

    assert in_flight(it) == [(3, "done", [10])]
    assert [it.poll().buffer.size for _ in range(4)] == [34, 10, 4, 20]


def test_add_barriers_without_consuming(it: Reading) -> None:
    """PipelinedSubpartitionTest.testConcurrentTimeoutableCheckpointBarrier: a second one supersedes the first, whose data fails."""
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.add(10)
    it.subpartition.add(barrier(4, TIMEOUTABLE))
    it.subpartition.aligned_barrier_timeout(3)

    assert in_flight(it) == [(3, "LocalProtocolError", []), (4, "pending", [])]
    it.subpartition.aligned_barrier_timeout(4)
    assert in_flight(it)[1] == (4, "done", [10])


def test_abort_checkpoint_of_a_timeoutable_barrier(it: Reading) -> None:
    """PipelinedSubpartitionTest, abortCheckpoint: the data fails with the cause; the barrier stays, and is polled as an aligned one."""
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.subpartition.abort_checkpoint(2, ValueError("another"))
    it.subpartition.abort_checkpoint(3, ValueError("declined"))

    it.subpartition.aligned_barrier_timeout(3)

    assert (in_flight(it), str(it.state.futures[0][1].error)) == ([(3, "ValueError", [])], "declined")
    assert it.poll().buffer.data_type is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER


def test_another_event_does_not_end_the_wait_for_a_barrier(it: Reading) -> None:
    """PipelinedSubpartition.completeTimeoutableCheckpointBarrier: only the poll of that very barrier does."""
    it.subpartition.add(event())
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.poll()
    before = in_flight(it)
    it.poll()

    assert (before, in_flight(it)) == ([(3, "pending", [])], [(3, "done", [])])


def test_a_late_view_is_told_of_priority_events() -> None:
    """PipelinedSubpartition.createReadView: what came before the reader is told to it, once."""
    subpartition, listener = PipelinedSubpartition(0, RecordingParent()), RecordingListener()
    subpartition.add(unaligned_barrier(1))
    subpartition.add(unaligned_barrier(2))

    view = subpartition.create_read_view(listener)

    assert view is not None
    assert (listener.count, listener.priority_sequence_numbers, view.availability(False)) == (1, [0], (True, 0))
    view.release()


def test_release_fails_the_data_before_a_barrier(it: Reading) -> None:
    """PipelinedSubpartitionTest.testReleaseParent with a barrier: nobody waits for ever."""
    it.subpartition.add(barrier(3, TIMEOUTABLE))

    it.subpartition.release()

    assert in_flight(it) == [(3, ResourceClosedError.__name__, [])]


@pytest.mark.parametrize(
    "wrong",
    [barrier(1, TIMEOUTABLE, has_priority=True), barrier(1, has_priority=True)],
    ids=["timeoutable with priority", "aligned with priority"],
)
def test_only_unaligned_barriers_have_priority(it: Reading, wrong: BufferConsumer) -> None:
    """PipelinedSubpartition.processPriorityBuffer: "Only unaligned checkpoints should be priority events"."""
    with pytest.raises(LocalProtocolError, match="cannot be sent as PRIORITIZED_EVENT_BUFFER"):
        it.subpartition.add(wrong)

    assert it.subpartition.num_queued_buffers == 0


def test_a_priority_event_that_is_no_barrier_overtakes_without_snapshot(it: Reading) -> None:
    """PipelinedSubpartition.processPriorityBuffer: only barriers keep what they overtake."""
    it.add(10)
    it.add(10)

    it.subpartition.add(BufferConsumer.of_event(serialize_event(EndOfSuperstep()), DataType.PRIORITIZED_EVENT_BUFFER))

    assert (it.state.output, it.poll().buffer.size) == ([], 4)


# ---------------------------------------------------------------- fast and slow threads


class PacedListener:
    """Wakes a consumer thread."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def notify_data_available(self) -> None:
        self.event.set()

    def notify_priority_event(self, sequence_number: int) -> None:
        self.event.set()


@pytest.mark.slow
@pytest.mark.parametrize("is_slow_consumer", [False, True])
@pytest.mark.parametrize("is_slow_producer", [False, True])
def test_concurrent_produce_and_consume(is_slow_producer: bool, is_slow_consumer: bool, tiny_switch_interval: None) -> None:
    """PipelinedSubpartitionTest.testConcurrentFast/SlowProduceAndFast/SlowConsume: 128 buffers in order; slow = gives way at each step."""
    subpartition, listener, arena, got = PipelinedSubpartition(0, RecordingParent()), PacedListener(), Arena(), []
    view = subpartition.create_read_view(listener)
    assert view is not None

    def give_way(is_slow: bool) -> None:
        sys.setswitchinterval(1e-6 if is_slow else 5e-3)

    def produce() -> None:
        for number in range(128):
            give_way(is_slow_producer)
            with_consumer = arena.builder(8)
            subpartition.add(with_consumer.create_buffer_consumer())
            with_consumer.append_and_commit(number.to_bytes(8, "big"))
            with_consumer.close()
        subpartition.finish()

    producer = threading.Thread(target=produce)
    producer.start()
    is_over = False
    while not is_over:
        assert listener.event.wait(PATIENCE_S), f"never told: {subpartition!r}"
        listener.event.clear()
        while view.availability(True)[0]:
            give_way(is_slow_consumer)
            found = view.next_buffer()
            if found is None:
                break
            if found.buffer.is_buffer:
                got.append(int.from_bytes(found.buffer.view, "big"))
            is_over = found.buffer.data_type is DataType.END_OF_PARTITION
            found.buffer.recycle()
    producer.join(PATIENCE_S)

    assert (producer.is_alive(), got, arena.num_out) == (False, list(range(128)), 0)


# ---------------------------------------------------------------- receivers without exclusive buffers


def test_empty_buffers_are_sent_to_receivers_without_exclusive_buffers() -> None:
    """PipelinedSubpartition.pollBuffer, 0 exclusive credits: the receiver learns that the room it made is free again (table 2.D)."""
    it = Reading(sends_empty_buffers=True)
    it.add(0)
    it.add(5)
    it.add(0, is_finished=False)

    polled = [it.poll().buffer.size for _ in range(2)]
    nothing = it.view.next_buffer()
    it.builders[-1].finish()
    it.subpartition.finish()

    assert (polled, nothing) == ([0, 5], None)
    assert [found.buffer.size for found in drain(it.subpartition)] == [0, 4]
    it.close()


def test_an_unused_state_writer_recycles() -> None:
    """Without unaligned checkpoints nobody wants the data: it goes home."""
    subpartition, arena = PipelinedSubpartition(0, RecordingParent()), Arena()
    for checkpoint_id in (1, 2):
        builder = arena.builder()
        subpartition.add(builder.create_buffer_consumer())
        builder.append_and_commit(b"abc")
        builder.close()
        subpartition.add(barrier(checkpoint_id, TIMEOUTABLE) if checkpoint_id == 1 else unaligned_barrier(checkpoint_id))
    subpartition.aligned_barrier_timeout(1)

    subpartition.release()

    assert arena.num_out == 0


def test_queued_bytes_are_what_can_still_be_read(it: Reading) -> None:
    """Whatever was read in pieces is gone; events count (outputQueueSize of 2.M)."""
    builder = it.add(10, is_finished=False)
    it.poll()
    builder.append_and_commit(b"more")
    builder.finish()
    it.subpartition.add(event())

    assert it.subpartition.num_queued_bytes == 8
    state = RecordingStateWriter()
    it.subpartition.channel_state = state
    it.subpartition.add(unaligned_barrier(9))
    assert state.output == [(9, (7, 3), -1, [4])]
