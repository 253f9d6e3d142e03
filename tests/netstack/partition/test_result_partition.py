"""``ResultPartition``: every byte goes to its subpartition, and nobody waits for a partner that is gone."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, ResourceClosedError
from netstack.partition.buffer_writing_result_partition import ResultPartitionStatistics
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition_view import ResultSubpartitionView
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode, deserialize_event
from tests.netstack.partition.doubles import RecordingListener, partition_id_of
from tests.waiting import PATIENCE_S, spin_until

SEGMENT = 16


@dataclass
class Setup:
    network: NetworkBufferPool
    partition: ResultPartition
    listeners: list[RecordingListener]
    views: list[ResultSubpartitionView]


def make(num_subpartitions: int = 2, *, max_buffers: int = 40, with_views: bool = True) -> Setup:
    network = NetworkBufferPool(64, SEGMENT)
    pool = network.create_buffer_pool(owner="map (1/2)", num_required=num_subpartitions + 1, max_buffers=max_buffers)
    partition = ResultPartition(partition_id_of(), num_subpartitions, pool, "map (1/2)")
    listeners = [RecordingListener() for _ in range(num_subpartitions)]
    views = [partition.create_subpartition_view(index, listener) for index, listener in enumerate(listeners)] if with_views else []
    return Setup(network, partition, listeners, views)


def end(it: Setup) -> None:
    """Whatever a test did: after close and release of all views the memory is complete."""
    it.partition.check_invariants()
    it.partition.close()
    for view in it.views:
        view.release()
    assert it.partition.is_released
    it.network.check_invariants()
    it.network.destroy()
    assert it.network.num_available == it.network.num_total, f"leaked: {it.network!r}"


@pytest.fixture
def it() -> Iterator[Setup]:
    setup = make()
    yield setup
    end(setup)


def read(view: ResultSubpartitionView) -> tuple[bytes, list[Event]]:
    """Everything that can be polled, committed or flushed or not."""
    content, events = bytearray(), []
    while (found := view.next_buffer()) is not None:
        if found.buffer.is_buffer:
            content.extend(found.buffer.view)
        else:
            events.append(deserialize_event(found.buffer.view))
        found.buffer.recycle()
    return bytes(content), events


def sizes(view: ResultSubpartitionView) -> list[int]:
    found_sizes = []
    while (found := view.next_buffer()) is not None:
        found_sizes.append(found.buffer.size)
        found.buffer.recycle()
    return found_sizes


def test_records_go_to_their_subpartition_and_share_buffers(it: Setup) -> None:
    """Small records fill one buffer."""
    it.partition.emit_record(b"abc", 0)
    it.partition.emit_record(b"xy", 1)
    it.partition.emit_record(memoryview(b"def"), 0)

    assert [sizes(view) for view in it.views] == [[6], [2]]


def test_a_record_may_span_buffers(it: Setup) -> None:
    """Each is full but the last, and the first bytes of the later ones are known to be a continuation."""
    record = bytes(range(2 * SEGMENT + 5))

    it.partition.emit_record(b"!", 0)
    it.partition.emit_record(record, 0)

    assert read(it.views[0])[0] == b"!" + record
    it.partition.emit_record(record, 0)
    subpartition = it.partition._subpartitions[0]
    assert isinstance(subpartition, PipelinedSubpartition)
    lengths = [consumer.partial_record_length for consumer in subpartition._buffers]
    assert lengths == [6, 16, 11], "the open buffer began with the 6 last bytes of the record before"
    assert sizes(it.views[0]) == [10, 16, 11]


def test_an_exact_fit_asks_for_no_further_buffer(it: Setup) -> None:
    """The full builder is finished; the next record opens another one."""
    it.partition.emit_record(bytes(SEGMENT), 0)

    assert it.partition.statistics() == ResultPartitionStatistics(SEGMENT, 1, 1, SEGMENT, 0, (SEGMENT, 0))
    assert it.listeners[0].count == 0, "a single buffer is not announced before a flush, full or not"
    it.partition.emit_record(b"x", 0)
    assert it.listeners[0].count == 1
    assert sizes(it.views[0]) == [SEGMENT, 1]


def reserve(it: Setup, num_segments: int, subpartition: int) -> list[MemorySegment]:
    """As many as that: one call gives what is free at the moment, at least one."""
    segments: list[MemorySegment] = []
    while len(segments) < num_segments:
        segments += it.partition.reserve_segments(num_segments - len(segments), subpartition)
    return segments


def test_segments_filled_in_place_stand_behind_what_was_emitted_before(it: Setup) -> None:
    it.partition.emit_record(b"abc", 0)
    segments = reserve(it, 2, 0)
    for segment, letter in zip(segments, b"xy", strict=True):
        segment.view[:] = bytes([letter]) * SEGMENT
    it.partition.emit_segments(segments, 0)
    it.partition.emit_record(b"def", 0)
    it.partition.flush_all()

    assert read(it.views[0])[0] == b"abc" + b"x" * SEGMENT + b"y" * SEGMENT + b"def"
    assert it.partition.statistics().num_bytes_by_subpartition[0] == 3 + 2 * SEGMENT, "the last buffer is still open"


def test_segments_filled_in_place_stand_behind_what_was_broadcast(it: Setup) -> None:
    it.partition.broadcast_record(b"all")
    segments = it.partition.reserve_segments(1, 1)
    segments[0].view[:] = b"z" * SEGMENT
    it.partition.emit_segments(segments, 1)
    it.partition.flush_all()

    assert read(it.views[1])[0] == b"all" + b"z" * SEGMENT
    assert read(it.views[0])[0] == b"all"


def test_segments_that_nobody_takes_go_back(it: Setup) -> None:
    """Its consumer left, or the partition was released, after they were reserved."""
    gone = reserve(it, 3, 0)
    it.views[0].release()
    it.partition.emit_segments(gone, 0)
    late = reserve(it, 3, 1)
    it.partition.release()

    with pytest.raises(ResourceClosedError):
        it.partition.emit_segments(late, 1)
    with pytest.raises(ResourceClosedError):
        it.partition.reserve_segments(1, 1)


def test_an_empty_record_is_nothing(it: Setup) -> None:
    """No byte, no error."""
    it.partition.emit_record(b"", 0)

    assert read(it.views[0]) == (b"", [])


def test_flush_announces_what_was_emitted(it: Setup) -> None:
    """One subpartition, or all of them."""
    it.partition.emit_record(b"a", 0)
    it.partition.emit_record(b"b", 1)

    it.partition.flush(1)
    first = [listener.count for listener in it.listeners]
    it.partition.flush_all()

    assert (first, [listener.count for listener in it.listeners]) == ([0, 1], [1, 1])


def test_statistics_count_finished_buffers(it: Setup) -> None:
    """Bytes and buffers when a buffer is finished, queued ones now."""
    it.partition.emit_record(bytes(20), 0)
    before = it.partition.statistics()
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))

    assert (before.num_bytes_out, before.num_buffers_out, before.num_queued_buffers) == (16, 1, 2)
    after = it.partition.statistics()
    assert (after.num_bytes_out, after.num_buffers_out, after.num_queued_buffers) == (20, 2, 4)


def test_the_ends_follow_the_data_in_order(it: Setup) -> None:
    """Data, end of data once, end of partition; every reader is told."""
    it.partition.emit_record(b"abc", 0)

    it.partition.notify_end_of_data(StopMode.NO_DRAIN)
    it.partition.notify_end_of_data(StopMode.DRAIN)
    it.partition.finish()

    ends: list[Event] = [EndOfData(StopMode.NO_DRAIN), EndOfPartition()]
    assert [read(view) for view in it.views] == [(b"abc", ends), (b"", ends)]
    assert it.partition.is_finished


def test_a_finished_partition_takes_nothing_more(it: Setup) -> None:
    """Every producing call says so."""
    it.partition.finish()

    calls: list[Callable[[], None]] = [
        lambda: it.partition.emit_record(b"x", 0),
        lambda: it.partition.broadcast_event(EndOfData(StopMode.DRAIN)),
        lambda: it.partition.notify_end_of_data(StopMode.DRAIN),
        it.partition.finish,
    ]
    for call in calls:
        with pytest.raises(LocalProtocolError, match="is finished and takes nothing more"):
            call()


def test_all_data_is_processed_when_every_consumer_said_so(it: Setup) -> None:
    """Not by half, not by one that says it twice."""
    it.partition.notify_end_of_data(StopMode.DRAIN)

    it.views[0].acknowledge_all_data_processed()
    it.views[0].acknowledge_all_data_processed()
    by_half = it.partition.all_data_processed.is_done
    it.views[1].acknowledge_all_data_processed()

    assert (by_half, it.partition.all_data_processed.is_done) == (False, True)


def test_it_is_released_when_consumed_and_closed() -> None:
    """Users = subpartitions + 1, in any order; the memory is back and the listener was told once."""
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        it = make()
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
        end(it)


def test_data_stays_readable_after_close(it: Setup) -> None:
    """The task is gone, its last buffers are not."""
    it.partition.emit_record(bytes(40), 0)
    it.partition.finish()
    it.partition.close()
    it.partition.close()

    assert read(it.views[0]) == (bytes(40), [EndOfPartition()])
    assert not it.partition.is_released


def test_closing_an_unfinished_partition_fails_its_readers(it: Setup) -> None:
    """They do not wait for an end that never comes."""
    it.partition.emit_record(b"abc", 0)

    it.partition.close()

    assert (it.views[0].is_released, it.views[0].next_buffer(), it.listeners[0].count) == (True, None, 1)
    assert "closed before it was finished" in str(it.views[0].failure_cause)
    assert it.network.num_available == 64


def test_fail_tells_every_reader_why(it: Setup) -> None:
    """Views are released with the cause, listeners told; what was queued is gone; producing is refused."""
    error = ValueError("the dog ate it")
    it.partition.emit_record(b"abc", 0)

    it.partition.fail(error)
    it.partition.fail(KeyError("later"))

    for view, listener in zip(it.views, it.listeners, strict=True):
        assert (view.is_released, view.next_buffer(), view.has_data(1), listener.count) == (True, None, False, 1)
        cause = view.failure_cause
        assert isinstance(cause, ProducerFailedError)
        assert "map (1/2), failed: ValueError: the dog ate it" in str(cause)
        assert cause.__cause__ is error
    with pytest.raises(ResourceClosedError, match="the dog ate it"):
        it.partition.emit_record(b"x", 0)
    with pytest.raises(ResourceClosedError):
        it.partition.finish()
    assert it.partition.all_data_processed.is_done, "nobody waits for acknowledgements any more"


def test_release_without_a_cause_still_gives_readers_one(it: Setup) -> None:
    """A remote reader is only told about a cause."""
    it.partition.release()

    assert "released before it was consumed" in str(it.views[0].failure_cause)


def test_the_text_of_a_failure_is_asked_for_outside_the_lock(it: Setup) -> None:
    """It can be a user's exception, whose ``__str__`` may ask the partition."""

    class Curious(Exception):
        def __str__(self) -> str:
            reader = threading.Thread(target=it.partition.check_invariants, daemon=True)  # takes the lock
            reader.start()
            reader.join(5)
            return f"waits: {reader.is_alive()}"

    it.partition.fail(Curious())

    assert "Curious: waits: False" in str(it.views[0].failure_cause)


def test_a_producer_failure_is_not_wrapped_twice(it: Setup) -> None:
    """The cause that is one already is passed on."""
    cause = ProducerFailedError("upstream of upstream")

    it.partition.release(cause)

    assert it.views[0].failure_cause is cause


def test_a_release_listener_that_comes_late_is_called_at_once(it: Setup) -> None:
    """Nothing is missed."""
    it.partition.release()
    told: list[str] = []

    it.partition.add_release_listener(lambda: told.append("released"))

    assert told == ["released"]


def test_views_are_refused_with_a_reason(it: Setup) -> None:
    """An index outside, a second reader, a released partition, a consumed subpartition."""
    for index in (-1, 2):
        with pytest.raises(LocalProtocolError, match=f"has 2 subpartitions, {index} is none of them"):
            it.partition.create_subpartition_view(index, RecordingListener())
    with pytest.raises(LocalProtocolError, match="read by somebody else"):
        it.partition.create_subpartition_view(1, RecordingListener())
    it.views[0].release()
    with pytest.raises(PartitionNotFoundError, match="its subpartition 0 was consumed"):
        it.partition.create_subpartition_view(0, RecordingListener())
    it.partition.fail(ValueError("boom"))
    with pytest.raises(PartitionNotFoundError, match="boom"):
        it.partition.create_subpartition_view(1, RecordingListener())


def test_availability_is_the_pools() -> None:
    """Not available while every buffer is queued; the future tells when one is back."""
    it = make(1, max_buffers=2)
    it.partition.emit_record(bytes(SEGMENT), 0)
    before = (it.partition.is_available, it.partition.available_future().is_done)
    it.partition.emit_record(bytes(SEGMENT), 0)
    future = it.partition.available_future()

    found = it.views[0].next_buffer()
    assert found is not None
    is_early = (it.partition.is_available, future.is_done)
    found.buffer.recycle()

    assert (before, is_early, it.partition.is_available, future.is_done) == ((True, True), (False, False), True, True)
    end(it)


# ---------------------------------------------------------------- a writer that blocks


class Writer:
    """A thread that emits full buffers until it ends."""

    def __init__(self, partition: ResultPartition, num_buffers: int, subpartition: int = 0) -> None:
        self.error: Exception | None = None
        self.partition = partition
        self.thread = threading.Thread(target=self._run, args=(num_buffers, subpartition))
        self.thread.start()

    def _run(self, num_buffers: int, subpartition: int) -> None:
        try:
            for number in range(num_buffers):
                self.partition.emit_record(bytes([number % 256]) * SEGMENT, subpartition)
        except ResourceClosedError as error:
            self.error = error

    def wait_until_parked(self) -> None:
        spin_until(lambda: "wait for a buffer" in repr(self.partition), "a writer that waits")

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), f"the writer hangs: {self.partition!r}"


def test_a_writer_blocks_until_its_consumer_reads() -> None:
    """Backpressure: the pool's maximum is queued, no more, and nothing is lost; the time is counted."""
    it = make(1, max_buffers=3)
    writer = Writer(it.partition, 10)
    writer.wait_until_parked()
    queued = it.partition.statistics().num_queued_buffers

    content = bytearray()
    while len(content) < 10 * SEGMENT:
        content.extend(read(it.views[0])[0])
    writer.join()

    assert queued == 3
    assert bytes(content) == b"".join(bytes([number]) * SEGMENT for number in range(10))
    assert it.partition.statistics().hard_blocked_ns > 0
    end(it)


class RecordingObserver:
    """Which thread said what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def mark_start(self) -> None:
        self.calls.append(("start", threading.current_thread().ident))

    def mark_end(self) -> None:
        self.calls.append(("end", threading.current_thread().ident))


@pytest.mark.parametrize("is_released", [False, True])
def test_an_observer_is_told_while_a_writer_waits_for_a_buffer(is_released: bool) -> None:
    """On the writer's thread; also when the wait ends in an error."""
    it, observer = make(1, max_buffers=3), RecordingObserver()
    it.partition.observe_blocking(observer)

    writer = Writer(it.partition, 4)
    writer.wait_until_parked()
    while_parked = list(observer.calls)
    if is_released:
        it.partition.release()
    else:
        read(it.views[0])
    writer.join()

    assert while_parked == [("start", writer.thread.ident)]
    assert observer.calls == [*while_parked, ("end", writer.thread.ident)]
    end(it)


def test_a_consumer_that_leaves_frees_its_blocked_producer() -> None:
    """The writer wakes, drops the rest, and finds all its consumers content."""
    it = make(1, max_buffers=3)
    writer = Writer(it.partition, 1000)
    writer.wait_until_parked()

    it.views[0].release()
    writer.join()

    assert (writer.error, it.partition.all_data_processed.is_done) == (None, True)
    it.partition.notify_end_of_data(StopMode.DRAIN)
    it.partition.finish()
    end(it)


def test_one_consumer_that_leaves_does_not_touch_the_others() -> None:
    """Only its own data is dropped, also for a record that spans buffers."""
    it = make(2)
    it.views[0].release()

    it.partition.emit_record(bytes(100), 0)
    it.partition.emit_record(b"kept" * 10, 1)

    assert (it.partition.statistics().num_queued_buffers, it.partition.is_released) == (3, False)
    assert read(it.views[1])[0] == b"kept" * 10
    end(it)


def test_what_nobody_reads_needs_no_buffer() -> None:
    """With every buffer queued for somebody else, emitting to a consumer that left does not block."""
    it = make(2, max_buffers=3)
    it.views[0].release()
    for _ in range(3):
        it.partition.emit_record(bytes(SEGMENT), 1)

    writer = Writer(it.partition, 5, subpartition=0)
    writer.join()

    assert (writer.error, it.partition.is_available) == (None, False)
    end(it)


def test_a_consumer_may_leave_while_its_record_is_written() -> None:
    """The rest of the record is dropped; the half-written builder is freed."""
    it = make(1)
    it.partition.emit_record(b"half", 0)

    it.views[0].release()
    it.partition.emit_record(bytes(100), 0)

    assert it.network.num_reserved >= 2
    end(it)


def test_fail_wakes_a_blocked_writer() -> None:
    """With an error, from any thread; the memory comes back when the task closes."""
    it = make(1, max_buffers=2)
    writer = Writer(it.partition, 1000)
    writer.wait_until_parked()

    it.partition.fail(ValueError("cancelled"))
    writer.join()

    assert isinstance(writer.error, ResourceClosedError)
    end(it)


@given(
    records=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=50), st.sampled_from(["", "flush", "read"])), max_size=25),
)
def test_every_subpartition_gets_its_bytes_in_order(records: list[tuple[int, bytes, str]]) -> None:
    """Any mix of records, flushes and reads; the counts agree, every segment comes back."""
    it = make(3, max_buffers=60)
    expected, got = [b""] * 3, [b""] * 3

    for index, record, action in records:
        it.partition.emit_record(record, index)
        expected[index] += record
        if action == "flush":
            it.partition.flush_all()
        elif action == "read":
            got[index] += read(it.views[index])[0]
        it.partition.check_invariants()
    it.partition.finish()
    for index, view in enumerate(it.views):
        content, events = read(view)
        got[index] += content
        assert events == [EndOfPartition()]

    assert got == expected
    assert it.partition.statistics().num_bytes_out == sum(map(len, expected))
    end(it)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["view", "fail", "flush"])
def test_hist_22424_ends_race_with_a_writer(how: str, tiny_switch_interval: None) -> None:
    """Leaving readers, failures and flushers at any moment: the writer ends and the memory is complete (FLINK-22424)."""
    for _ in range(40):
        it = make(2, max_buffers=4)
        writer = Writer(it.partition, 30)

        if how == "view":
            it.views[0].release()
        elif how == "fail":
            it.partition.fail(ValueError("x"))
        else:
            while writer.thread.is_alive():
                it.partition.flush_all()
                read(it.views[0])
        writer.join()

        end(it)
