"""``PipelinedApproximateSubpartition``: a new reader goes on where the failed one stopped, at a whole record."""

import threading
from collections.abc import Callable, Iterator

import pytest

from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_partition import PipelinedApproximateSubpartition
from netstack.partition.result_subpartition import PipelinedSubpartitionView
from tests.netstack.partition.doubles import Arena, RecordingListener, RecordingParent, barrier, event
from tests.netstack.present import present

SIZE = 8


class Approximate:
    """A subpartition, and builders of ``SIZE`` bytes."""

    def __init__(self) -> None:
        self.parent = RecordingParent()
        self.subpartition = PipelinedApproximateSubpartition(0, self.parent)
        self.arena = Arena()
        self.view = self.new_view()

    def new_view(self) -> PipelinedSubpartitionView:
        view = present(self.subpartition.create_read_view(RecordingListener()))
        self.view = view
        return view

    def add(self, content: bytes, partial_record_length: int = 0) -> None:
        """Add a finished buffer."""
        builder = self.arena.builder(SIZE)
        builder.append_and_commit(content)
        builder.finish()
        self.subpartition.add(builder.create_buffer_consumer(), partial_record_length)
        builder.close()

    def read(self) -> list[bytes]:
        found = []
        while (one := self.view.next_buffer()) is not None:
            found.append(bytes(one.buffer.view))
            one.buffer.recycle()
        self.subpartition.check_invariants()
        return found


@pytest.fixture
def it() -> Iterator[Approximate]:
    approximate = Approximate()
    yield approximate
    approximate.subpartition.release()
    assert approximate.arena.num_out == 0


def test_a_second_reader_takes_the_place_of_the_first(it: Approximate) -> None:
    """testRecreateReadView: with sequence number 0, and the first one reads nothing any more."""
    it.add(b"one")
    it.read()
    first = it.view

    poll_as_first = first.next_buffer
    it.new_view()
    it.add(b"two")

    assert poll_as_first() is None
    assert (first.is_released, first.next_buffer(), first.has_data(1), first.availability(True)) == (
        True,
        None,
        False,
        (False, 0),
    )
    found = present(it.view.next_buffer())
    assert (bytes(found.buffer.view), found.sequence_number) == (b"two", 0)
    found.buffer.recycle()


def test_a_released_view_leaves_everything_queued(it: Approximate) -> None:
    """PipelinedApproximateSubpartitionView.releaseAllResources: the partition does not count it as consumed."""
    it.add(b"one")

    it.view.release()
    it.view.release()

    assert (it.parent.consumed, it.subpartition.is_released, it.subpartition.num_queued_buffers) == ([], False, 1)
    it.new_view()
    assert it.read() == [b"one"]


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        ([(b"rest-new", 5)], [b"new"]),
        ([(b"whole", 0)], [b"whole"]),
        ([(b"rest", 4), (b"next", 0)], [b"next"]),
        ([(b"a" * 8, 8), (b"b" * 8, 8), (b"c-record", 2)], [b"record"]),
        ([(b"a" * 8, 8), (b"record", 0)], [b"record"]),
        ([(b"xrecord1", 1), (b"2end", 1)], [b"record1", b"2end"]),
    ],
    ids=["in one buffer", "none", "ends unfilled", "long record", "ends with its buffer", "the next spans"],
)
def test_what_is_left_of_a_torn_record_is_skipped(
    it: Approximate, buffers: list[tuple[bytes, int]], expected: list[bytes]
) -> None:
    """TestSkipPartialDataStartOfBuffer / EndOfBuffer / LongRecord: reading starts at a record."""
    for content, partial_record_length in buffers:
        it.add(content, partial_record_length)

    it.new_view()

    assert it.read() == expected


def test_a_buffer_that_was_read_in_part_is_not_skipped(it: Approximate) -> None:
    """testSkipPartialDataStartWithFullRecord: the rest of it begins with a record."""
    builder = it.arena.builder(SIZE)
    builder.append_and_commit(b"rest")
    it.subpartition.add(builder.create_buffer_consumer(4))
    assert it.read() == [b"rest"]
    builder.append_and_commit(b"new")
    builder.close()

    it.new_view()

    assert it.read() == [b"new"]


def test_the_rest_of_a_record_is_skipped_although_its_first_buffer_was_read_before_it_was_finished(
    it: Approximate,
) -> None:
    """Unlike Flink's isStartOfDataBuffer."""
    builder = it.arena.builder(SIZE)
    builder.append_and_commit(b"begin...")
    it.subpartition.add(builder.create_buffer_consumer())
    it.subpartition.flush()
    assert it.read() == [b"begin..."]

    it.new_view()
    assert it.read() == []
    builder.close()
    it.add(b"end-new", 4)

    assert it.read() == [b"new"]


def test_a_record_that_begins_in_the_rest_of_a_buffer_is_read_to_its_end(it: Approximate) -> None:
    """It may go on in the next buffer."""
    builder = it.arena.builder(SIZE)
    builder.append_and_commit(b"whole")
    it.subpartition.add(builder.create_buffer_consumer())
    it.subpartition.flush()
    assert it.read() == [b"whole"]

    it.new_view()
    builder.append_and_commit(b"new")
    builder.close()
    it.add(b"end-next", 4)

    assert it.read() == [b"new", b"end-next"]


class OvertakenLock:
    """A lock whose first taker is too late: ``happens`` is called before it gets the lock."""

    def __init__(self, lock: threading.Lock, happens: Callable[[], object]) -> None:
        self._lock = lock
        self._happens: Callable[[], object] | None = happens

    def __enter__(self) -> None:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def test_an_order_that_comes_just_too_late_does_not_resume_the_next_reader(it: Approximate) -> None:
    """The old reader resumes while the new one is made, and that one is blocked already."""
    it.subpartition.add(barrier())
    it.read()
    former, subpartition = it.view, it.subpartition

    def replace() -> None:
        it.new_view()
        subpartition.add(barrier())
        it.read()

    subpartition._lock = OvertakenLock(subpartition._lock, replace)  # type: ignore[assignment]  # it is enough
    former.resume_consumption()

    assert subpartition._is_blocked


def test_a_buffer_in_use_by_nobody_goes_home_outside_the_locks(it: Approximate) -> None:
    """The thread that gets its segment may call the subpartition."""
    builder = it.arena.builder(SIZE)
    builder.append_and_commit(b"one")
    it.subpartition.add(builder.create_buffer_consumer())
    it.subpartition.flush()
    it.read()
    builder.close()
    seen: list[bool] = []
    it.arena.on_recycle = lambda: seen.append(it.subpartition._lock.locked())

    assert (it.read(), seen) == ([], [False])


def test_a_new_reader_is_not_blocked_by_the_barrier_of_the_last(it: Approximate) -> None:
    """An order of the old reader to resume is none of its business."""
    it.subpartition.add(barrier())
    it.read()
    it.add(b"one")
    it.add(b"two")
    first = it.view

    it.new_view()
    first.resume_consumption()

    assert (it.view.has_data(1), it.read()) == (True, [b"one", b"two"])


def test_the_present_reader_resumes_itself(it: Approximate) -> None:
    """PipelinedApproximateSubpartitionView.resumeConsumption: as any other view."""
    it.subpartition.add(barrier())
    it.add(b"one")
    it.read()

    it.view.resume_consumption()

    assert it.read() == [b"one"]


def test_events_do_not_end_the_search_for_a_record(it: Approximate) -> None:
    """PipelinedApproximateSubpartition.buildSliceBuffer: an event is no start of a record, and is not skipped."""
    it.subpartition.add(event())
    it.add(b"rest-new", 5)

    it.new_view()

    assert it.read() == [b"\0\0\0\7", b"new"]


def test_types_say_how_they_are_consumed_and_released() -> None:
    """ResultPartitionType (row F13): the table of flags."""
    kinds = ResultPartitionType
    flags = {
        kind.name: (
            kind.is_bounded,
            kind.is_persistent,
            kind.is_blocking,
            kind.must_be_pipelined_consumed,
            kind.is_released_by_scheduler,
        )
        for kind in kinds
    }

    assert flags == {
        "BLOCKING": (True, False, True, False, True),
        "BLOCKING_PERSISTENT": (True, True, True, False, True),
        "PIPELINED": (False, False, False, True, False),
        "PIPELINED_BOUNDED": (True, False, False, True, False),
        "PIPELINED_APPROXIMATE": (True, False, False, False, True),
    }
    assert all(kind.can_be_pipelined_consumed is not kind.is_blocking for kind in kinds)
    assert [kind.name for kind in kinds if kind.is_reconsumable] == [
        "BLOCKING",
        "BLOCKING_PERSISTENT",
        "PIPELINED_APPROXIMATE",
    ]
    assert [kind.name for kind in kinds if kind.supports_compression] == ["BLOCKING", "BLOCKING_PERSISTENT"]


def test_pools_are_bounded_by_type() -> None:
    """ResultPartitionTest.testPipelinedPartitionBufferPool: 2 n + 8 if it is bounded, else without limit."""
    limits = [
        kind.max_pool_buffers(3, 2, 8)
        for kind in (ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.PIPELINED)
    ]

    assert limits == [14, None]
