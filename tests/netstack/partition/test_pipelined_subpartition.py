"""``PipelinedSubpartition``: when readers are notified, which data can be read, and the backlog; with the scenarios of
Flink's own tests.
"""

import sys
import threading
from collections.abc import Callable

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
from tests.netstack.present import present
from tests.waiting import PATIENCE_S

# ---------------------------------------------------------------- what a reader is told


def play(it: Reading, script: str) -> None:
    """Do what each letter says.

    ``d``: add a finished buffer of 10 bytes; ``z``: an empty one; ``u``: a buffer of 10 bytes that is being written;
    ``n``: an empty one; ``w``: write 4 more bytes; ``e``: add an event; ``f``: flush; ``p``: poll; ``x``: finish.
    """
    for letter in script:
        match letter:
            case "d" | "z" | "u" | "n":
                it.add(10 if letter in "du" else 0, is_finished=letter in "dz")
            case "w":
                it.builders[-1].append_and_commit(b"more")
            case "e":
                it.subpartition.add(event())
            case "f":
                it.subpartition.flush()
            case "p":
                it.poll()
            case _:
                it.subpartition.finish()


@pytest.mark.parametrize(
    ("script", "told", "has_data", "backlog", "polled"),
    [
        pytest.param("d", 0, (False, False), 0, [(10, False, 0, False)], id="the first buffer"),
        pytest.param("u", 0, (False, False), 0, [(10, False, 0, False)], id="the first buffer, unfinished"),
        pytest.param("e", 1, (True, True), 0, [(4, False, 0, False)], id="the first event"),
        pytest.param("du", 1, (True, False), 1, [(10, False, 0, False)] * 2, id="the second buffer"),
        pytest.param("ddd", 1, (True, False), 2, [(10, True, 1, False), *[(10, False, 0, False)] * 2], id="the third"),
        pytest.param("de", 1, (True, False), 1, [(10, True, 0, True), (4, False, 0, False)], id="an event behind data"),
        pytest.param("dep", 1, (True, True), 0, [(4, False, 0, False)], id="an event at the head"),
        pytest.param("uff", 1, (True, False), 1, [(10, False, 0, False)], id="flush tells once"),
        pytest.param("dfd", 1, (True, False), 2, [(10, True, 1, False), (10, False, 0, False)], id="unread flush"),
        pytest.param("fnf", 0, (False, False), 0, [], id="flush of an empty buffer"),
        pytest.param("fnwpf", 0, (False, False), 0, [], id="flush of a buffer that was read to its end"),
        pytest.param("ufpwf", 2, (True, False), 1, [(4, False, 0, False)], id="flush of what was written since"),
        pytest.param("duf", 1, (True, False), 2, [(10, True, 1, False), (10, False, 0, False)], id="flush behind data"),
        pytest.param("fdupff", 2, (True, False), 1, [(10, False, 0, False)], id="flush of the one that is left"),
        pytest.param(
            "ddx", 2, (True, False), 2, [(10, True, 1, False), (10, True, 0, True), (4, False, 0, False)], id="finish"
        ),
        pytest.param("zzzd", 1, (True, False), 3, [(10, False, 0, False)], id="empty buffers before data"),
        pytest.param(
            "dpdpded",
            1,
            (True, False),
            1,
            [(10, True, 0, True), (4, False, 0, False), (10, False, 0, False)],
            id="an event between data",
        ),
    ],
)
def test_notifications_availability_and_backlog(
    it: Reading,
    script: str,
    told: int,
    has_data: tuple[bool, bool],
    backlog: int,
    polled: list[tuple[int, bool, int, bool]],
) -> None:
    """Table 2.D and PipelinedSubpartitionWithReadViewTest: how often the reader was told, whether there is data with
    and without credit, the backlog, and of each polled buffer its size, and what is available behind it.
    """
    play(it, script)

    assert (it.listener.count, (it.view.has_data(1), it.view.has_data(0)), it.view.backlog) == (told, has_data, backlog)
    assert [next_one(it) for _ in polled] == polled
    assert it.view.next_buffer() is None


def test_add_two_non_finished_buffers(it: Reading) -> None:
    """testAddTwoNonFinishedBuffer: the first must be finished when it is looked at."""
    first = it.add(0, is_finished=False)
    it.add(0, is_finished=False)
    assert it.listener.count == 1

    with pytest.raises(AssertionError, match="only the last buffer may be unfinished"):
        it.view.next_buffer()
    first.finish()


def test_add_empty_non_finished_buffer(it: Reading) -> None:
    """testAddEmptyNonFinishedBuffer: told when the second comes; nothing to read then."""
    first = it.add(0, is_finished=False)
    assert (it.listener.count, it.view.next_buffer()) == (0, None)

    first.finish()
    it.add(0, is_finished=False)

    assert (it.view.backlog, it.listener.count, it.view.next_buffer(), it.view.backlog) == (1, 1, None, 0)


@pytest.mark.parametrize(("script", "expected"), [("ddddu", 4), ("dddduf", 5), ("dddddx", 5)])
def test_the_backlog_counts_the_buffers_that_can_be_read(it: Reading, script: str, expected: int) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBacklogConsistentWithNumberOfConsumableBuffers."""
    play(it, script)

    backlog = it.view.backlog
    consumable = [found for found in drain(it.subpartition) if found.buffer.is_buffer]

    assert (backlog, len(consumable)) == (expected, expected)


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


def test_the_next_type_tells_what_can_be_polled(it: Reading) -> None:
    """Numbers begin at 0 and do not count skipped buffers; the next type is the one that the next poll will find."""
    play(it, "zddex")

    assert [
        (found.sequence_number, found.buffer.data_type, found.backlog, found.next_data_type)
        for found in drain(it.subpartition)
    ] == [
        (0, DataType.DATA_BUFFER, 1, DataType.DATA_BUFFER),
        (1, DataType.DATA_BUFFER, 0, DataType.EVENT_BUFFER),
        (2, DataType.EVENT_BUFFER, 0, DataType.END_OF_PARTITION),
        (3, DataType.END_OF_PARTITION, 0, DataType.NONE),
    ]


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


@pytest.mark.parametrize(
    ("script", "told", "available", "polled"),
    [
        pytest.param("e", 1, (True, 0), [(4, False, 0, False)], id="an event"),
        pytest.param("uf", 1, (True, 1), [(10, False, 0, False)], id="a flushed buffer"),
        pytest.param("u", 0, (False, 0), [(10, False, 0, False)], id="a buffer that was not flushed"),
        pytest.param("dd", 1, (True, 1), [(10, False, 0, False)] * 2, id="finished buffers"),
        pytest.param("", 0, (False, 0), [], id="nothing"),
    ],
)
def test_a_blocked_reader_finds_nothing_until_it_resumes(
    it: Reading, script: str, told: int, available: tuple[bool, int], polled: list[tuple[int, bool, int, bool]]
) -> None:
    """testResumeBlockedSubpartition...: flushes are not forgotten, events need no credit."""
    block(it)
    play(it, script)
    assert is_still(it)

    it.view.resume_consumption()

    assert (it.listener.count, it.view.availability(True)) == (told, available)
    assert it.view.availability(False)[0] == (script == "e")
    assert [next_one(it) for _ in polled] == polled
    assert it.view.next_buffer() is None


def test_priority_bypasses_the_block(it: Reading) -> None:
    """A priority event is announced and polled; the data after it stays blocked."""
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


def test_the_buffer_size_that_the_view_wants_is_the_answer_to_the_next_buffer(it: Reading) -> None:
    """PipelinedSubpartitionTest.testStartingBufferSize / NewBufferSize / NegativeNewBufferSize."""
    builders = [it.arena.builder() for _ in range(3)]
    it.builders += builders
    answers = [it.subpartition.add(builders[0].create_buffer_consumer())]
    it.view.notify_new_buffer_size(42)
    answers.append(it.subpartition.add(builders[1].create_buffer_consumer()))
    with pytest.raises(ValueError, match="a buffer size of -1 bytes"):
        it.view.notify_new_buffer_size(-1)
    answers.append(it.subpartition.add(builders[2].create_buffer_consumer()))

    assert answers == [NO_BUFFER_SIZE, 42, 42]
    assert NO_BUFFER_SIZE == 2**31 - 1


def test_empty_buffers_are_sent_to_receivers_without_exclusive_buffers() -> None:
    """They learn that the room they made is free again (table 2.D)."""
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


@pytest.mark.parametrize(
    ("num_events", "num_barriers", "told", "has_data"),
    [(0, 0, 0, False), (1, 0, 1, True), (3, 0, 1, True), (0, 2, 1, True)],
    ids=["nothing", "an event", "events", "priority events"],
)
def test_a_late_view_is_told_once_what_is_queued(num_events: int, num_barriers: int, told: int, has_data: bool) -> None:
    """PipelinedSubpartition.createReadView: also of priority events that came before it."""
    subpartition, listener = PipelinedSubpartition(0, RecordingParent()), RecordingListener()
    for _ in range(num_events):
        subpartition.add(event())
    for number in range(num_barriers):
        subpartition.add(unaligned_barrier(number))

    view = present(subpartition.create_read_view(listener))

    assert (listener.count, view.has_data(1), view.availability(False)) == (told, has_data, (has_data, 0))
    assert listener.priority_sequence_numbers == [0] * (num_barriers > 0)
    view.release()


@pytest.mark.parametrize(
    "end", [PipelinedSubpartition.finish, PipelinedSubpartition.release], ids=["finish", "release"]
)
def test_nothing_is_added_after_the_end(it: Reading, end: Callable[[PipelinedSubpartition], object]) -> None:
    """ResultPartitionTest.testAddOnFinished/ReleasedPartition: the refused consumer is closed, and nobody is told."""
    end(it.subpartition)
    told, builder = it.listener.count, it.arena.builder()

    was_added = it.subpartition.add(builder.create_buffer_consumer())

    builder.close()
    assert (was_added, it.subpartition.finish(), it.arena.num_out) == (ADD_REFUSED, ADD_REFUSED, 0)
    assert it.listener.count == told


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


def test_a_subpartition_without_reader_is_released(it: Reading) -> None:
    """PipelinedSubpartitionTest.testCleanupReleasedPartition: all buffers are recycled; no reader comes any more."""
    subpartition = PipelinedSubpartition(0, RecordingParent())
    builder = it.arena.builder()
    subpartition.add(builder.create_buffer_consumer())
    builder.close()
    subpartition.add(event())

    subpartition.release()

    assert (subpartition.is_released, it.arena.num_out) == (True, 0)
    assert subpartition.create_read_view(RecordingListener()) is None


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
    view = present(subpartition.create_read_view(listener))
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
    """testConcurrentFast/SlowProduceAndFast/SlowConsume: 128 buffers in order; slow = gives way at each step."""
    subpartition, listener, arena, got = (
        PipelinedSubpartition(0, RecordingParent()),
        WakingListener(),
        Arena(),
        bytearray(),
    )
    view = present(subpartition.create_read_view(listener))

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
    """The reader ends, the writer goes on, and every segment is free (FLINK-20383, FLINK-17823)."""
    for _ in range(60):
        subpartition, listener, got = PipelinedSubpartition(0, RecordingParent()), WakingListener(), bytearray()
        arena = Arena()
        view = present(subpartition.create_read_view(listener))
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
