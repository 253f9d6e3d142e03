"""``PipelinedSubpartition``: when readers are notified, which data can be read, and the backlog; with the scenarios of
Flink's own tests.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.partition.pipelined_subpartition import ADD_REFUSED, NO_BUFFER_SIZE, PipelinedSubpartition
from netstack.partition.result_subpartition import BufferAndBacklog, PipelinedSubpartitionView
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import (
    Arena,
    Producing,
    Reading,
    RecordingListener,
    RecordingParent,
    RecordingStateWriter,
    barrier,
    drain,
    event,
    next_one,
    unaligned_barrier,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def it() -> Iterator[Reading]:
    fixture = Reading()
    yield fixture
    fixture.subpartition.check_invariants()
    fixture.close()


# ---------------------------------------------------------------- table 2.D, row by row


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_first_data_buffer_is_not_announced(it: Reading, is_finished: bool) -> None:
    """The first data buffer, finished or not, is neither announced nor available, and the backlog is 0."""
    it.add(10, is_finished=is_finished)

    assert (it.listener.count, it.view.has_data(1), it.view.backlog) == (0, False, 0)


def test_the_first_event_is_announced(it: Reading) -> None:
    """An event is announced at once, since it is finished; it is no backlog and needs no credit."""
    it.subpartition.add(event())

    assert (it.listener.count, it.view.has_data(1), it.view.has_data(0), it.view.backlog) == (
        1,
        True,
        True,
        0,
    )


def test_the_second_element_is_announced_once(it: Reading) -> None:
    """The first can be read now; the last one is not counted."""
    it.add(10)
    it.add(20, is_finished=False)

    assert (it.listener.count, it.view.has_data(1), it.view.has_data(0), it.view.backlog) == (1, True, False, 1)


def test_further_buffers_are_not_announced(it: Reading) -> None:
    """The reader knows already; the backlog grows."""
    for _ in range(4):
        it.add(10)

    assert (it.listener.count, it.view.has_data(1), it.view.backlog) == (1, True, 3)


def test_an_event_at_the_end_makes_all_data_backlog(it: Reading) -> None:
    """An event finishes the buffers before it."""
    it.add(10)
    it.add(10)
    it.subpartition.add(event())

    assert (it.listener.count, it.view.backlog) == (1, 2)


def test_flush_announces_the_only_buffer_once(it: Reading) -> None:
    """The flushed buffer is backlog, and its unread bytes are available."""
    it.add(10, is_finished=False)

    it.subpartition.flush()
    it.subpartition.flush()

    assert (it.listener.count, it.view.has_data(1), it.view.backlog) == (1, True, 1)


def test_a_buffer_added_after_an_unread_flush_tells_nobody(it: Reading) -> None:
    """The reader was told by the flush and has not looked yet."""
    it.add(10)
    it.subpartition.flush()

    it.add(20)

    assert (it.listener.count, it.view.backlog) == (1, 2)


@pytest.mark.parametrize("is_read", [True, False])
def test_flush_of_nothing_tells_nobody(it: Reading, is_read: bool) -> None:
    """A flush notifies nobody for an empty queue, an empty buffer, or one that was read to its end."""
    it.subpartition.flush()
    builder = it.add(0, is_finished=False)
    if is_read:
        builder.append_and_commit(b"x")
        it.poll()

    it.subpartition.flush()

    assert (it.listener.count, it.view.has_data(1), it.view.backlog) == (0, False, 0)


def test_flush_after_more_was_written_tells_again(it: Reading) -> None:
    """Each flush with new data is one notification."""
    builder = it.add(10, is_finished=False)
    it.subpartition.flush()
    it.poll()

    builder.append_and_commit(b"more")
    it.subpartition.flush()

    assert (it.listener.count, it.poll().buffer.size) == (2, 4)


def test_finish_always_tells_and_makes_all_available(it: Reading) -> None:
    """The finish announces all data before it, and all buffers count as backlog."""
    it.add(10)
    it.add(10)
    assert it.listener.count == 1

    it.subpartition.finish()

    assert (it.listener.count, it.view.backlog) == (2, 2)
    assert [found.buffer.data_type for found in drain(it.subpartition)][-1] is DataType.END_OF_PARTITION


# ---------------------------------------------------------------- PipelinedSubpartitionWithReadViewTest


def test_add_two_non_finished_buffers(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAddTwoNonFinishedBuffer: the first must be finished when it is looked
    at.
    """
    first = it.add(0, is_finished=False)
    it.add(0, is_finished=False)
    assert it.listener.count == 1

    with pytest.raises(AssertionError, match="only the last buffer may be unfinished"):
        it.view.next_buffer()
    first.finish()


def test_add_empty_non_finished_buffer(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testAddEmptyNonFinishedBuffer: told when the second comes; nothing to read
    then.
    """
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
    """PipelinedSubpartitionWithReadViewTest.testUnfinishedBufferBehindFinished: backlog 1; the second is not reported,
    but can be read.
    """
    it.add(1000)
    it.add(24, is_finished=False)

    assert (it.view.backlog, it.listener.count) == (1, 1)
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(1000, False, 0, False), (24, False, 0, False), None]


def test_flush_with_unfinished_buffer_behind_finished(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testFlushWithUnfinishedBufferBehindFinished: no new notification, backlog
    2.
    """
    it.add(1000)
    it.add(24, is_finished=False)
    it.subpartition.flush()

    assert (it.listener.count, it.view.backlog) == (1, 2)
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(1000, True, 1, False), (24, False, 0, False), None]


def test_flush_with_unfinished_buffer_behind_finished_2(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testFlushWithUnfinishedBufferBehindFinished2: with one left a flush tells
    once.
    """
    it.subpartition.flush()
    assert it.listener.count == 0
    it.add(1000)
    it.add(24, is_finished=False)
    assert next_one(it) == (1000, False, 0, False)

    it.subpartition.flush()
    after_first = it.listener.count
    it.subpartition.flush()

    assert after_first == 2
    assert (it.listener.count, it.view.backlog, next_one(it), it.view.next_buffer()) == (
        2,
        1,
        (24, False, 0, False),
        None,
    )


def test_multiple_empty_buffers(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testMultipleEmptyBuffers: 0, 1, 1, 1 notifications,
    then the data at once.
    """
    counts = []
    for size in (0, 0, 0, 1024):
        it.add(size)
        counts.append(it.listener.count)

    assert (counts, it.view.backlog, next_one(it)) == ([0, 1, 1, 1], 3, (1024, False, 0, False))
    assert it.subpartition.num_queued_buffers == 0


def test_basic_pipelined_produce_consume_logic(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBasicPipelinedProduceConsumeLogic: buffers and events, read as they
    come.
    """
    for _ in range(2):
        it.add(100)
        assert (it.view.availability(False)[0], it.view.backlog, it.listener.count) == (False, 0, 0)
        assert (next_one(it), it.view.next_buffer()) == ((100, False, 0, False), None)

    it.add(100)
    it.subpartition.add(event())
    it.add(100)

    assert (it.view.availability(False)[0], it.view.backlog, it.listener.count) == (False, 1, 1)
    assert [next_one(it), next_one(it), next_one(it)] == [
        (100, True, 0, True),
        (4, False, 0, False),
        (100, False, 0, False),
    ]
    assert (it.view.next_buffer(), it.listener.count) == (None, 1)


@pytest.mark.parametrize(("is_flushed", "is_ended"), [(False, False), (True, False), (False, True)])
def test_backlog_consistent_with_number_of_consumable_buffers(it: Reading, is_flushed: bool, is_ended: bool) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBacklogConsistentWithNumberOfConsumableBuffers: plain, flushed,
    finished.
    """
    for number in range(5):
        it.add(100, is_finished=number < 4 or is_ended)
    if is_flushed:
        it.subpartition.flush()
    if is_ended:
        it.subpartition.finish()

    backlog = it.view.backlog
    consumable = [found for found in drain(it.subpartition) if found.buffer.is_buffer]

    assert (backlog, len(consumable)) == ((5, 5) if is_flushed or is_ended else (4, 4))


# ---------------------------------------------------------------- polling


def test_a_buffer_that_is_being_written_is_read_piece_by_piece(it: Reading) -> None:
    """A reader that polls without a notification gets the committed bytes, with no data after them."""
    builder = it.add(1024 - 5, is_finished=False)

    first = it.poll()
    builder.append_and_commit(b"five!")
    builder.finish()
    second = it.poll()

    assert (first.buffer.size, first.backlog, first.next_data_type) == (1019, 0, DataType.NONE)
    assert (second.buffer.size, second.next_data_type, it.subpartition.num_queued_buffers) == (5, DataType.NONE, 0)


def test_sequence_numbers_count_polled_elements(it: Reading) -> None:
    """Sequence numbers begin at 0 and count data, pieces and events by one; skipped buffers do not count."""
    it.add(0)
    it.add(5)
    it.subpartition.add(event())
    it.add(5)
    it.subpartition.finish()

    assert [found.sequence_number for found in drain(it.subpartition)] == [0, 1, 2, 3]


def test_the_next_type_tells_what_can_be_polled(it: Reading) -> None:
    """The next type is data, event, end, or none, as the next poll will find it."""
    it.add(5)
    it.add(5)
    it.subpartition.add(event())
    it.subpartition.finish()

    types = [(found.buffer.data_type, found.backlog, found.next_data_type) for found in drain(it.subpartition)]

    assert types == [
        (DataType.DATA_BUFFER, 1, DataType.DATA_BUFFER),
        (DataType.DATA_BUFFER, 0, DataType.EVENT_BUFFER),
        (DataType.EVENT_BUFFER, 0, DataType.END_OF_PARTITION),
        (DataType.END_OF_PARTITION, 0, DataType.NONE),
    ]


def test_without_credit_only_an_event_is_data(it: Reading) -> None:
    """A reader without credit waits for the event at the head."""
    it.add(5)
    it.subpartition.add(event())

    before = it.view.has_data(0)
    it.poll()

    assert (before, it.view.has_data(0)) == (False, True)


@pytest.mark.parametrize("case", ["nothing", "nothing new", "not flushed", "much", "two", "an event", "blocked"])
def test_where_there_is_not_just_a_little_nothing_is_taken(it: Reading, case: str) -> None:
    it.add(10, is_finished=case not in ("nothing new", "not flushed"))
    it.subpartition.flush()
    it.poll()
    if case == "not flushed":
        it.builders[0].append_and_commit(bytes(5))
    elif case in ("much", "two"):
        for size in [11] if case == "much" else [5, 5]:
            it.add(size)
        it.subpartition.flush()
    elif case in ("an event", "blocked"):
        it.subpartition.add(event() if case == "an event" else barrier())
    if case == "blocked":
        it.poll()
        it.add(5)
        it.subpartition.flush()
    before = (it.view.availability(True), it.view.backlog)

    assert it.view.poll_little(10) is None

    assert (it.view.availability(True), it.view.backlog) == before
    it.subpartition.check_invariants()


# ---------------------------------------------------------------- priority events and blocking ones


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


def block(it: Reading) -> None:
    """Poll an aligned barrier."""
    it.subpartition.add(barrier())
    assert next_one(it)[1:] == (False, 0, False)
    it.listener.count = 0


def is_still(it: Reading) -> bool:
    """Whether the reader was not notified and finds no buffer."""
    return (it.listener.count, it.view.availability(True), it.view.next_buffer()) == (0, (False, 0), None)


def test_resume_blocked_subpartition_with_events(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithEvents: the event waits, then needs no
    credit.
    """
    block(it)
    it.subpartition.add(event())
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(False)[0], next_one(it)) == (1, True, (4, False, 0, False))


def test_resume_blocked_subpartition_with_unfinished_buffer_flushed(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithUnfinishedBufferFlushed: the flush is not
    forgotten.
    """
    block(it)
    it.add(100, is_finished=False)
    it.subpartition.flush()
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(True), next_one(it)) == (1, (True, 1), (100, False, 0, False))


def test_resume_blocked_subpartition_with_unfinished_buffer_not_flushed(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testResumeBlockedSubpartitionWithUnfinishedBufferNotFlushed: nothing is
    available yet.
    """
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
    """PipelinedSubpartitionWithReadViewTest, blocked: a priority event is announced and polled; the data after it stays
    blocked.
    """
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


# ---------------------------------------------------------------- sizes


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


def test_empty_buffers_are_sent_to_receivers_without_exclusive_buffers() -> None:
    """PipelinedSubpartition.pollBuffer, 0 exclusive credits: the receiver learns that the room it made is free again
    (table 2.D).
    """
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


def test_queued_bytes_are_what_can_still_be_read(it: Reading) -> None:
    """Bytes that were read in pieces do not count as queued; events do (outputQueueSize of 2.M)."""
    builder = it.add(10, is_finished=False)
    it.poll()
    builder.append_and_commit(b"more")
    builder.finish()
    it.subpartition.add(event())

    assert it.subpartition.num_queued_bytes == 8
    state = RecordingStateWriter()
    it.subpartition.channel_state = state
    it.subpartition.add(unaligned_barrier(9))
    assert state.output == [(9, (7, 3), [4])]


# ---------------------------------------------------------------- views and ends


def test_illegal_read_view_request(it: Reading) -> None:
    """PipelinedSubpartitionTest.testIllegalReadViewRequest: a second view is refused (row A09)."""
    with pytest.raises(LocalProtocolError, match=r"subpartition 3 is being read .* can only be consumed once"):
        it.subpartition.create_read_view(RecordingListener())


@pytest.mark.parametrize(("num_queued", "expected"), [(0, 0), (1, 1), (3, 1)])
def test_a_late_view_is_told_what_is_queued(num_queued: int, expected: int) -> None:
    """A late view is notified once if the queue is not empty."""
    subpartition = PipelinedSubpartition(0, RecordingParent())
    for _ in range(num_queued):
        subpartition.add(event())
    listener = RecordingListener()

    view = subpartition.create_read_view(listener)

    assert view is not None
    assert (listener.count, view.has_data(1)) == (expected, num_queued > 0)


def test_a_late_view_is_told_of_priority_events() -> None:
    """PipelinedSubpartition.createReadView: a reader is notified once of priority events that came before it."""
    subpartition, listener = PipelinedSubpartition(0, RecordingParent()), RecordingListener()
    subpartition.add(unaligned_barrier(1))
    subpartition.add(unaligned_barrier(2))

    view = subpartition.create_read_view(listener)

    assert view is not None
    assert (listener.count, listener.priority_sequence_numbers, view.availability(False)) == (1, [0], (True, 0))
    view.release()


def test_nothing_is_added_after_the_end(it: Reading) -> None:
    """The refused consumer is closed."""
    it.subpartition.finish()
    builder = it.arena.builder()

    was_added = it.subpartition.add(builder.create_buffer_consumer())

    builder.close()
    assert (was_added, it.subpartition.finish(), it.arena.num_out) == (ADD_REFUSED, ADD_REFUSED, 0)


def test_release_by_the_producer_frees_everything_and_tells_the_reader(it: Reading) -> None:
    """The reader finds a released view, the cause, and nothing to poll; once."""
    it.add(10, is_finished=False)
    it.parent._failure_cause = ProducerFailedError("boom")
    assert not it.view.is_released

    it.subpartition.release()
    it.subpartition.release()
    it.builders[0].close()

    assert (it.listener.count, it.view.is_released, it.view.next_buffer(), it.view.has_data(1)) == (
        1,
        True,
        None,
        False,
    )
    assert str(it.view.failure_cause) == "boom"
    assert (it.arena.num_out, it.parent.consumed) == (0, [])


@pytest.mark.parametrize(("has_view", "ends_by"), [(True, "producer"), (True, "reader"), (False, "producer")])
def test_cleanup_released_partition(has_view: bool, ends_by: str) -> None:
    """PipelinedSubpartitionTest.testCleanupReleasedPartition: all buffers are recycled, with and without a view, and
    none can be read.
    """
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
    assert subpartition.create_read_view(RecordingListener()) is None


def test_release_parent_and_view_after_release(it: Reading) -> None:
    """PipelinedSubpartitionTest.testReleaseParent: a buffer that is added afterwards is closed at once."""
    it.subpartition.release()
    builder = it.arena.builder()

    assert it.subpartition.add(builder.create_buffer_consumer()) == ADD_REFUSED
    builder.close()


def test_a_reader_that_leaves_makes_the_subpartition_a_sink(it: Reading) -> None:
    """Queued and later data is dropped; the partition is told once that the reader left."""
    it.add(10)
    it.add(10)

    it.view.release()
    it.view.release()
    it.add(10)
    it.subpartition.flush()
    it.subpartition.release()

    assert (it.subpartition.num_queued_buffers, it.parent.consumed, it.view.is_released) == (0, [3], True)
    assert it.listener.count == 1, "a reader that left is told nothing"
    for builder in it.builders:
        builder.close()
    assert it.arena.num_out == 0


def test_an_acknowledgement_reaches_the_partition(it: Reading) -> None:
    """The partition gets the acknowledgement with the index of the subpartition."""
    it.view.acknowledge_all_data_processed()

    assert it.parent.processed == [3]


def test_listeners_are_called_outside_the_lock(it: Reading) -> None:
    """A listener that polls at once finds the data (no deadlock, no stale state)."""
    found: list[BufferAndBacklog | None] = []
    subpartition = PipelinedSubpartition(0, RecordingParent())

    class PollingListener:
        def notify_data_available(self) -> None:
            found.append(subpartition.poll())

        def notify_priority_event(self, sequence_number: int) -> None:
            raise AssertionError("there is no priority event")

    subpartition.create_read_view(PollingListener())
    subpartition.add(event())

    assert [one.sequence_number for one in found if one is not None] == [0]


# ---------------------------------------------------------------- laws


Step = tuple[str, int]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "write", "event", "flush", "poll", "poll all"]), st.integers(0, 6)), max_size=40
)


@given(steps=STEPS)
def test_the_backlog_is_what_can_be_polled(steps: list[Step]) -> None:
    """In every state, as many non-empty data buffers as the backlog says can be polled while data is available."""
    it, expected, got = Reading(), bytearray(), bytearray()

    def write(builder: BufferBuilder, number: int) -> None:
        content = bytes([len(expected) % 251]) * number
        expected.extend(content[: builder.append_and_commit(content)])

    for name, number in steps:
        match name:
            case "add":
                if it.builders:
                    it.builders[-1].finish()
                write(it.add(0, is_finished=False), number + 1)
            case "write":
                if it.builders and not it.builders[-1].is_finished:
                    write(it.builders[-1], number)
            case "event":
                if it.builders:
                    it.builders[-1].finish()
                it.subpartition.add(event())
            case "flush":
                it.subpartition.flush()
            case _:
                backlog, num_data = it.view.backlog, 0
                while it.view.has_data(1):
                    found = it.view.next_buffer()
                    if found is None:
                        break
                    if found.buffer.is_buffer:
                        num_data += 1
                        got.extend(found.buffer.view)
                    found.buffer.recycle()
                    assert (found.next_data_type is not DataType.NONE) == it.view.has_data(1)
                    if name == "poll":
                        break
                else:
                    # A buffer that was read to its end before it was finished is counted, and skipped.
                    assert num_data <= backlog
        it.subpartition.check_invariants()
    if it.builders:
        it.builders[-1].finish()
    it.subpartition.finish()
    while (last := it.view.next_buffer()) is not None:
        if last.buffer.is_buffer:
            got.extend(last.buffer.view)
        last.buffer.recycle()
    it.close()

    assert got == expected


@pytest.mark.parametrize("schedule", sorted(set(itertools.permutations("wwffpp"))), ids="".join)
def test_hist_8694_8760_flush_always_without_a_timer_never_strands_data(schedule: tuple[str, ...]) -> None:
    """In every order of writes, flushes and polls after notifications, the reader is notified of all bytes after the
    last flush (FLINK-8694).
    """
    it = Reading()
    builder = it.add(0, is_finished=False)
    told, written, flushed, got = 0, 0, 0, 0

    for step in (*schedule, "p"):
        match step:
            case "w":
                written += builder.append_and_commit(b"abc")
            case "f":
                it.subpartition.flush()
                flushed = written
            case _:
                if it.listener.count == told:
                    continue  # a reader polls only when it was told
                told = it.listener.count
                got += sum(found.buffer.size for found in drain(it.subpartition))

    assert got >= flushed
    it.close()


# ---------------------------------------------------------------- threads


class WakingListener:
    """Wakes a consumer thread."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def notify_data_available(self) -> None:
        self.event.set()

    def notify_priority_event(self, sequence_number: int) -> None:
        self.event.set()


def consume(
    subpartition: PipelinedSubpartition,
    view: PipelinedSubpartitionView,
    listener: WakingListener,
    got: bytearray,
    before_poll: Callable[[], None] = lambda: None,
) -> None:
    """Poll when told, until the end of the partition or the release."""
    while True:
        assert listener.event.wait(PATIENCE_S), f"never told: {subpartition!r}"
        listener.event.clear()
        while view.has_data(1):
            before_poll()
            found = view.next_buffer()
            if found is None:
                break
            is_end = found.buffer.data_type is DataType.END_OF_PARTITION
            if found.buffer.is_buffer:
                got.extend(found.buffer.view)
            found.buffer.recycle()
            if is_end:
                return
        if view.is_released:
            return


def produce(subpartition: PipelinedSubpartition, arena: Arena, num_buffers: int) -> bytes:
    """Write small buffers in pieces, and flush now and then."""
    expected = bytearray()
    for number in range(num_buffers):
        builder = arena.builder(8)
        subpartition.add(builder.create_buffer_consumer())
        for piece in range(number % 3 + 1):
            content = bytes([number % 256, piece])
            builder.append_and_commit(content)
            expected.extend(content)
            if (number + piece) % 5 == 0:
                subpartition.flush()
        builder.close()
    subpartition.finish()
    return bytes(expected)


@pytest.mark.slow
def test_a_writing_and_a_reading_thread_lose_nothing(tiny_switch_interval: None) -> None:
    """All bytes arrive in order at a thread that only notifications wake."""
    subpartition, listener, arena, got = (
        PipelinedSubpartition(0, RecordingParent()),
        WakingListener(),
        Arena(),
        bytearray(),
    )
    view = subpartition.create_read_view(listener)
    assert view is not None
    reader = threading.Thread(target=consume, args=(subpartition, view, listener, got))
    reader.start()

    expected = produce(subpartition, arena, 3000)
    reader.join(PATIENCE_S)

    assert not reader.is_alive()
    assert bytes(got) == expected


@pytest.mark.slow
@pytest.mark.parametrize("is_slow_consumer", [False, True])
@pytest.mark.parametrize("is_slow_producer", [False, True])
def test_concurrent_produce_and_consume(
    is_slow_producer: bool, is_slow_consumer: bool, tiny_switch_interval: None
) -> None:
    """PipelinedSubpartitionTest.testConcurrentFast/SlowProduceAndFast/SlowConsume: 128 buffers in order; slow = gives
    way at each step.
    """
    subpartition, listener, arena, got = (
        PipelinedSubpartition(0, RecordingParent()),
        WakingListener(),
        Arena(),
        bytearray(),
    )
    view = subpartition.create_read_view(listener)
    assert view is not None

    def give_way(is_slow: bool) -> None:
        sys.setswitchinterval(1e-6 if is_slow else 5e-3)

    def produce_slowly_or_not() -> None:
        for number in range(128):
            give_way(is_slow_producer)
            builder = arena.builder(8)
            subpartition.add(builder.create_buffer_consumer())
            builder.append_and_commit(number.to_bytes(8, "big"))
            builder.close()
        subpartition.finish()

    producer = threading.Thread(target=produce_slowly_or_not)
    producer.start()
    consume(subpartition, view, listener, got, before_poll=lambda: give_way(is_slow_consumer))
    producer.join(PATIENCE_S)

    assert (producer.is_alive(), arena.num_out) == (False, 0)
    assert got == b"".join(number.to_bytes(8, "big") for number in range(128))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["producer", "consumer"])
def test_hist_20383_17823_release_races_with_writing_and_reading(end: str, tiny_switch_interval: None) -> None:
    """A release from either side at any moment ends the reader, lets the writer go on, and frees every segment
    (FLINK-20383, FLINK-17823).
    """
    for _ in range(60):
        subpartition, listener, got = PipelinedSubpartition(0, RecordingParent()), WakingListener(), bytearray()
        arena = Arena()
        view = subpartition.create_read_view(listener)
        assert view is not None
        reader = threading.Thread(target=consume, args=(subpartition, view, listener, got))
        writer = threading.Thread(target=produce, args=(subpartition, arena, 60))
        for thread in (reader, writer):
            thread.start()
        if end == "producer":
            subpartition.release()
        else:
            view.release()
            listener.notify_data_available()
        for thread in (reader, writer):
            thread.join(PATIENCE_S)

        assert not reader.is_alive()
        assert not writer.is_alive()
        view.release()
        assert arena.num_out == 0
        subpartition.check_invariants()


@pytest.mark.parametrize("end", ["finish", "release"])
def test_add_on_finished_and_released_partition(end: str) -> None:
    """ResultPartitionTest.testAddOnFinished/ReleasedPartition: the added consumer is closed, and no reader is notified
    (rows D30, D32).
    """
    it = Producing()
    if end == "finish":
        it.partition.finish()
    else:
        it.partition.release()
    arena, count = Arena(), it.listeners[0].count
    builder = arena.builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    builder.close()

    assert it.partition.subpartitions[0].add(consumer) == ADD_REFUSED
    assert (arena.num_out, it.listeners[0].count) == (0, count)
    it.close()
