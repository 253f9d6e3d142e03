"""``PipelinedSubpartition.add_all`` and ``poll_run``: what ``add`` and ``poll`` do one by one; and the partitions that
fill them.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_builder import BufferConsumer, SegmentConsumer
from netstack.buffer.network_buffer import (
    BufferCompressor,
    BufferRecycler,
    MemorySegment,
    NetworkBuffer,
    recycle_segments,
)
from netstack.errors import ResourceBrokenError
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingSubpartition, BoundedDataFile
from netstack.partition.pipelined_subpartition import ADD_REFUSED, NO_BUFFER_SIZE, PipelinedSubpartition
from netstack.partition.result_partition import PipelinedApproximateSubpartition
from netstack.partition.result_subpartition import BufferAndBacklog, SegmentRun
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.partition.doubles import (
    Producing,
    Reading,
    RecordingListener,
    RecordingParent,
    barrier,
    event,
    partial_lengths,
    unaligned_barrier,
)
from tests.netstack.present import present
from tests.waiting import PATIENCE_S

SIZE = 16


class Pool(BufferRecycler):
    """A recycler that counts the segments in use."""

    def __init__(self) -> None:
        self.num_out = 0

    def recycle(self, segment: MemorySegment) -> None:
        self.num_out -= 1

    def consumer(self, number: int = 0, *, partial_record_length: int = 0) -> SegmentConsumer:
        self.num_out += 1
        segment = MemorySegment(memoryview(bytearray([number % 256]) * SIZE))
        return SegmentConsumer(segment, self, partial_record_length)


@dataclass(frozen=True)
class Polled:
    """One buffer as it leaves, whether in a run or alone."""

    number: int
    kind: DataType
    content: bytes


def polled(it: Reading, max_segments: int) -> tuple[list[Polled], int, DataType] | None:
    """Return what a reader of runs finds, a run or the result of ``poll``, with backlog and next data type after it."""
    run = it.subpartition.poll_run(max_segments)
    it.subpartition.check_invariants()
    if run is None:
        return polled_singly(it)
    found = [
        Polled(run.sequence_number + position, DataType.DATA_BUFFER, bytes(segment.view))
        for position, segment in enumerate(run.segments)
    ]
    recycle_segments(run.segments, run.recycler)
    return found, run.backlog, run.next_data_type


def polled_singly(it: Reading) -> tuple[list[Polled], int, DataType] | None:
    one = it.subpartition.poll()
    it.subpartition.check_invariants()
    if one is None:
        return None
    found = Polled(one.sequence_number, one.buffer.data_type, bytes(one.buffer.view))
    one.buffer.recycle()
    return [found], one.backlog, one.next_data_type


# ---------------------------------------------------------------- poll_run


def test_a_run_is_what_polls_find_one_by_one(it: Reading) -> None:
    """A run has the bytes and numbers of its buffers, the backlog and next type after its last one, and one pool."""
    pool = Pool()
    it.subpartition.add_all([pool.consumer(number) for number in range(5)])

    run = present(it.subpartition.poll_run(3))

    assert [bytes(segment.view) for segment in run.segments] == [bytes([number]) * SIZE for number in range(3)]
    assert run[1:] == (pool, 1, DataType.DATA_BUFFER, 0)
    assert (it.view.backlog, it.subpartition.num_queued_buffers) == (1, 2)
    recycle_segments(run.segments, run.recycler)
    assert polled_singly(it) == ([Polled(3, DataType.DATA_BUFFER, b"\3" * SIZE)], 0, DataType.NONE)
    assert pool.num_out == 1
    it.subpartition.release()
    assert pool.num_out == 0


def fill_from(it: Reading, script: str, pools: list[Pool]) -> None:
    """Do what each letter says.

    ``s``/``t``: a whole segment of the first or second pool; ``b``: a finished builder; ``o``: an open one, at the end
    only; ``e``: an event; ``k``: a blocking barrier; ``p``: a priority barrier; ``f``: flush; ``x``: poll.
    """
    for number, what in enumerate(script):
        match what:
            case "s" | "t":
                it.subpartition.add(pools["st".index(what)].consumer(number))
            case "b" | "o":
                it.add(7, is_finished=what == "b")
            case "e":
                it.subpartition.add(event())
            case "k":
                it.subpartition.add(barrier())
            case "p":
                it.subpartition.add(unaligned_barrier())
            case "x":
                it.poll()
            case _:
                it.subpartition.flush()


@given(
    body=st.text("sssstbekpf", max_size=12),
    tail=st.sampled_from(["", "o", "of", "f"]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    is_fed_between=st.booleans(),
)
def test_polling_runs_finds_what_polling_singly_finds(
    body: str, tail: str, sizes: list[int], is_fed_between: bool
) -> None:
    """Backlog and next data type are equal, too, wherever both have polled equally many."""
    readings, all_pools = [Reading(), Reading()], [[Pool(), Pool()], [Pool(), Pool()]]
    for it, pools in zip(readings, all_pools, strict=True):
        fill_from(it, body + tail, pools)
    together, singly = readings
    found: list[Polled] = []
    expected: list[Polled] = []
    behind: dict[int, tuple[int, DataType]] = {}
    for step in range(40):
        size = sizes[step % len(sizes)]
        one = polled(together, size)
        if one is None:
            assert polled_singly(singly) is None
            if not together.subpartition._is_blocked:
                break
            for it in readings:
                it.subpartition.resume_consumption()
            continue
        assert len(one[0]) <= size or len(one[0]) == 1
        found += one[0]
        while len(expected) < len(found):
            other = present(polled_singly(singly))
            expected += other[0]
            behind[len(expected)] = other[1:]
        assert behind[len(found)] == one[1:], f"behind {found[-1]}"
        if is_fed_between and step < 3:
            for it, pools in zip(readings, all_pools, strict=True):
                if not it.builders or it.builders[-1].is_finished:
                    fill_from(it, "ss", pools)

    assert found == expected
    for it, pools in zip(readings, all_pools, strict=True):
        it.close()
        assert [pool.num_out for pool in pools] == [0, 0]


def test_a_run_ends_where_another_pool_begins(it: Reading) -> None:
    """All segments of a run belong to one pool, so that its sender can give them back with one call."""
    one, other = Pool(), Pool()
    it.subpartition.add_all([one.consumer(0), one.consumer(1), other.consumer(2), one.consumer(3)])
    it.subpartition.flush()

    runs = [it.subpartition.poll_run(10) for _ in range(4)]

    assert [None if run is None else (len(run.segments), run.recycler, run.sequence_number) for run in runs] == [
        (2, one, 0),
        (1, other, 2),
        (1, one, 3),
        None,
    ]
    for run in runs:
        if run is not None:
            recycle_segments(run.segments, run.recycler)
    assert (one.num_out, other.num_out) == (0, 0)


def test_the_run_that_empties_the_queue_ends_the_flush(it: Reading) -> None:
    """Data that is added after the run is announced once it can be read, and not before."""
    pool = Pool()
    it.subpartition.add_all([pool.consumer(), pool.consumer()])
    it.subpartition.flush()
    before = it.listener.count

    run = present(it.subpartition.poll_run(5))
    assert (run.backlog, run.next_data_type) == (0, DataType.NONE)
    recycle_segments(run.segments, run.recycler)
    it.subpartition.add(pool.consumer())
    assert (it.listener.count - before, it.view.has_data(1)) == (0, False)
    it.subpartition.add(pool.consumer())

    assert (it.listener.count - before, it.view.has_data(1)) == (1, True)


def test_priority_events_and_blocking_leave_runs_to_poll(it: Reading) -> None:
    """A priority event stands before the data; behind a barrier nothing is found until the reader resumes."""
    pool = Pool()
    it.subpartition.add_all([pool.consumer(0), pool.consumer(1)])
    it.subpartition.add(unaligned_barrier())
    it.subpartition.add(barrier(2))
    it.subpartition.add_all([pool.consumer(2), pool.consumer(3)])

    assert it.subpartition.poll_run(5) is None
    assert it.poll().buffer.data_type is DataType.PRIORITIZED_EVENT_BUFFER
    assert it.subpartition.poll_run(5) is None, "the data was copied for the checkpoint: it has other readers"
    assert [it.poll().next_data_type for _ in range(2)] == [DataType.DATA_BUFFER, DataType.ALIGNED_CHECKPOINT_BARRIER]
    it.poll()
    assert it.subpartition.poll_run(5) is None
    it.subpartition.resume_consumption()
    run = present(it.subpartition.poll_run(5))

    assert (len(run.segments), run.sequence_number) == (2, 4)
    recycle_segments(run.segments, run.recycler)


def test_nothing_is_polled_of_a_released_subpartition(it: Reading) -> None:
    """No run is polled of a released subpartition, and its segments are recycled."""
    pool = Pool()
    it.subpartition.add_all([pool.consumer(), pool.consumer()])

    it.subpartition.release()

    assert (it.subpartition.poll_run(5), pool.num_out) == (None, 0)


def test_views_that_look_at_each_buffer_have_no_runs() -> None:
    """Views with compression, or whose readers may be replaced, give no runs."""
    parent, listener = RecordingParent(), RecordingListener()
    compressing = PipelinedSubpartition(0, parent, compressor=BufferCompressor())
    plain = PipelinedSubpartition(0, parent)
    approximate = PipelinedApproximateSubpartition(0, parent)

    views = [each.create_read_view(listener) for each in (compressing, approximate, plain)]

    assert [view is not None and view.poll_run is not None for view in views] == [False, False, True]


# ---------------------------------------------------------------- add_all

STARTS = ["", "s", "sf", "ss", "ssf", "e", "kx", "kxs", "p", "sp", "b", "sx", "kxp", "sfx"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("num_added", [1, 2, 3])
@pytest.mark.parametrize("is_first_finished", [True, False])
def test_several_are_announced_as_one_by_one(start: str, num_added: int, is_first_finished: bool) -> None:
    """Adding consumers together notifies the reader once if adding them one by one notifies it; queue, backlog and
    availability are equal both ways, also after a flush and an event.
    """
    states = []
    for is_together in (True, False):
        it, pool = Reading(), Pool()
        fill_from(it, start, [pool, pool])
        before = it.listener.count
        first = [BufferConsumer.of_event(bytes(SIZE), DataType.DATA_BUFFER)] if is_first_finished else [pool.consumer()]
        consumers = [*first, *(pool.consumer() for _ in range(num_added - 1))]
        if is_together:
            assert it.subpartition.add_all(consumers) == NO_BUFFER_SIZE
        else:
            for consumer in consumers:
                it.subpartition.add(consumer)
        it.subpartition.check_invariants()
        state: list[object] = [it.listener.count > before, it.view.availability(True), it.subpartition.num_queued_bytes]
        if is_together:
            assert it.listener.count - before <= 1
        before = it.listener.count
        it.subpartition.flush()
        state += [it.listener.count - before, it.view.availability(True), it.subpartition.num_queued_buffers]
        states.append(state)
        it.close()
        assert pool.num_out == 0

    assert states[0] == states[1]


def test_nothing_is_no_news(it: Reading) -> None:
    """An empty queue, or a single buffer, is not announced."""
    assert it.subpartition.add_all([]) == NO_BUFFER_SIZE
    it.add(3)
    it.subpartition.add_all([])

    assert (it.listener.count, it.subpartition.num_queued_buffers) == (0, 1)


@pytest.mark.parametrize("is_released", [True, False])
def test_what_nobody_will_read_goes_home(it: Reading, is_released: bool) -> None:
    """Buffers that are added to a released or finished subpartition are all closed."""
    pool = Pool()
    if is_released:
        it.subpartition.release()
    else:
        it.subpartition.finish()

    result = it.subpartition.add_all([pool.consumer() for _ in range(3)])

    assert (result, pool.num_out) == (ADD_REFUSED, 0)


def test_the_buffer_size_wanted_comes_back(it: Reading) -> None:
    """``add_all`` returns the wanted buffer size, like ``add``."""
    it.subpartition.set_buffer_size(12)

    assert it.subpartition.add_all([Pool().consumer()]) == 12
    it.subpartition.release()


# ---------------------------------------------------------------- a segment that was filled in one go


def test_a_segment_is_taken_whole_or_not_at_all() -> None:
    """A segment that was partly skipped, built, or has other readers is not taken; a taken one is closed."""
    pool = Pool()
    skipped, built, copied, taken = (pool.consumer() for _ in range(4))
    skipped.skip(3)
    built.build().recycle()
    copy = copied.copy()

    assert [consumer.take_segment() for consumer in (skipped, built, copied)] == [None, None, None]
    segment = present(taken.take_segment())
    for consumer in (skipped, built, copied, taken, copy):
        consumer.close()
    assert pool.num_out == 1
    recycle_segments([segment], taken.recycler)
    assert pool.num_out == 0


def test_it_reads_like_what_a_builder_left() -> None:
    """With its size, available, and finished from the first look on."""
    consumer = Pool().consumer(3, partial_record_length=5)
    known = (
        consumer.segment_size_bytes,
        consumer.num_bytes_unread,
        consumer.is_data_available,
        consumer.is_start_of_data_buffer,
    )
    assert (known, consumer.is_finished, consumer.partial_record_length) == ((SIZE, SIZE, True, True), False, 5)

    consumer.skip(5)
    assert (consumer.num_bytes_unread, consumer.is_finished, consumer.is_start_of_data_buffer) == (
        SIZE - 5,
        True,
        False,
    )
    buffer = present(consumer.take())

    assert (bytes(buffer.view), consumer.is_data_available, consumer.num_bytes_unread) == (b"\3" * (SIZE - 5), False, 0)
    buffer.recycle()


# ---------------------------------------------------------------- partitions


@pytest.mark.parametrize("num_bytes", [SIZE, 2 * SIZE, 5 * SIZE, 5 * SIZE + 3, SIZE + 1])
@pytest.mark.parametrize("prefix", [0, 5])
def test_long_records_say_where_they_began(num_bytes: int, prefix: int) -> None:
    """Buffers that a record fills say their whole size, the first one nothing."""
    it = Producing(segment=SIZE, num_segments=16)
    it.warm_up()
    record = bytes(range(num_bytes))
    if prefix:
        it.partition.emit_record(b"x" * prefix, 0)

    it.partition.emit_record(record, 0)
    it.partition.flush(0)

    lengths = partial_lengths(it, 0)
    ends = list(range(SIZE, prefix + num_bytes, SIZE))
    assert lengths == [0, *(min(SIZE, prefix + num_bytes - end) for end in ends)]
    content = b""
    while (found := it.views[0].next_buffer()) is not None:
        content += bytes(found.buffer.view)
        found.buffer.recycle()
    assert content == b"x" * prefix + record


def test_a_record_takes_what_is_free_and_leaves_the_pool_available() -> None:
    """In one lock round; one segment is left."""
    it = Producing(segment=SIZE, num_segments=16)
    it.warm_up()

    it.partition.emit_record(bytes(10 * SIZE), 0)

    assert (it.queued()[0], it.pool.is_available, it.listeners[0].count) == (10, True, 1)


def test_a_record_larger_than_the_pool_goes_out_as_buffers_come_back() -> None:
    """The writer waits for the reader, again and again, and everything arrives."""
    it = Producing(segment=SIZE, num_segments=4)
    content = bytearray()
    record = bytes(index % 251 for index in range(50 * SIZE + 3))

    def write() -> None:
        it.partition.emit_record(record, 0)
        it.partition.flush(0)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()

    poll_run = present(it.views[0].poll_run)
    while len(content) < len(record):
        run: SegmentRun | None = poll_run(3)
        if run is not None:
            content += b"".join(bytes(segment.view) for segment in run.segments)
            recycle_segments(run.segments, run.recycler)
        else:
            found: BufferAndBacklog | None = it.views[0].next_buffer()
            if found is not None:
                content += found.buffer.view
                found.buffer.recycle()
    writer.join(PATIENCE_S)

    assert bytes(content) == record


def test_the_maximum_of_a_subpartition_holds_for_long_records() -> None:
    """With a maximum of three per subpartition the pool is unavailable at the third buffer, not after all free ones."""
    it = Producing(segment=SIZE, num_segments=16, max_per_channel=3)
    it.warm_up()

    it.partition.emit_record(bytes(2 * SIZE), 0)
    assert it.pool.is_available
    it.partition.emit_record(bytes(SIZE), 0)

    assert not it.pool.is_available
    poll_run = present(it.views[0].poll_run)
    run = present(poll_run(10))
    recycle_segments(run.segments, run.recycler)
    assert it.pool.is_available


def test_data_that_cannot_be_copied_takes_no_buffers_along() -> None:
    """A record that is not bytes of single size is an error, and its segments are recycled."""
    it = Producing(segment=SIZE, num_segments=16)
    it.warm_up()
    words = memoryview(bytearray(64 * SIZE)).cast("I")

    with pytest.raises((ValueError, TypeError)):
        it.partition.emit_record(words, 0)

    assert num_in_use(it.pool) == 0


@pytest.mark.parametrize("num_good", range(5))
def test_a_disk_that_is_full_in_the_middle_closes_every_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_good: int
) -> None:
    """The buffers before the failed write, the failed one and the ones after it are recycled."""
    pool, parent = Pool(), RecordingParent()
    subpartition = BoundedBlockingSubpartition(0, parent, BoundedDataFile(tmp_path))
    num_left = num_good

    def write(buffer: NetworkBuffer) -> None:
        nonlocal num_left
        if not num_left:
            raise ResourceBrokenError("no space left on device")
        num_left -= 1

    monkeypatch.setattr(subpartition, "write", write)
    if num_good < 3:
        with pytest.raises(ResourceBrokenError, match="no space left"):
            subpartition.add_all([pool.consumer() for _ in range(4)])
        assert pool.num_out == 0
    else:
        assert subpartition.add_all([pool.consumer() for _ in range(4)]) == NO_BUFFER_SIZE
        assert pool.num_out == 1, "the last one may still be written to"
    subpartition.release()

    assert subpartition.add_all([pool.consumer() for _ in range(2)]) == ADD_REFUSED
    assert pool.num_out == 0


# ---------------------------------------------------------------- ``poll_little``


LITTLE = 20


class Producer:
    """Does what a script says, letter by letter."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.num_bytes = 0

    def do(self, letter: str) -> None:
        it = self.reading
        builder = it.builders[-1] if it.builders and not it.builders[-1].is_finished else None
        match letter:
            case "w" | "W":  # a little, or too much
                if builder is None or builder.is_full:
                    builder = it.add(is_finished=False)
                self.num_bytes += 1
                builder.append_and_commit(bytes([self.num_bytes % 256]) * (3 if letter == "w" else LITTLE + 1))
            case "d" if builder is not None:
                builder.finish()
            case "f":
                it.subpartition.flush()
            case "e" if builder is None:
                it.subpartition.add(event())
            case "b":
                it.subpartition.add(unaligned_barrier())
            case _:
                pass  # not now
        it.subpartition.check_invariants()

    def poll(self, *, takes_little: bool) -> tuple[bytes, int, DataType, int] | None:
        """Return the next buffer, however it is found; None if there is none."""
        subpartition = self.reading.subpartition
        found = subpartition.poll_little(LITTLE) if takes_little else None
        if found is None:
            found = subpartition.poll()
        subpartition.check_invariants()
        return None if found is None else described(found)


def described(found: BufferAndBacklog) -> tuple[bytes, int, DataType, int]:
    buffer, backlog, next_data_type, sequence_number = found
    content = bytes(buffer.view)
    buffer.recycle()
    return content, backlog, next_data_type, sequence_number


@given(script=st.text("wwwWdfffebppp", max_size=30))
def test_polling_little_finds_what_polling_finds(script: str) -> None:
    one, other = Producer(), Producer()

    for letter in script + "dfppp":
        if letter == "p":
            assert one.poll(takes_little=True) == other.poll(takes_little=False)
        else:
            one.do(letter)
            other.do(letter)

    assert one.reading.listener.count == other.reading.listener.count
    for producer in (one, other):
        while producer.poll(takes_little=False) is not None:
            pass
        producer.reading.close()


def test_a_lone_flushed_buffer_is_little_until_it_is_too_large() -> None:
    producer = Producer()

    for letter in "wf":
        producer.do(letter)
    found = present(producer.reading.subpartition.poll_little(LITTLE))
    assert described(found) == (b"\1\1\1", 0, DataType.NONE, 0)

    for letter in "Wf":
        producer.do(letter)
    assert producer.reading.subpartition.poll_little(LITTLE) is None
    assert producer.poll(takes_little=False) == (bytes([2]) * (LITTLE + 1), 0, DataType.NONE, 1)
    producer.reading.close()
