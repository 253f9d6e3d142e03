"""``UnionResultSubpartitionView``: several subpartitions as one, none of their records torn."""

from collections.abc import Callable

import pytest

from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_subpartition import (
    CACHE_CAPACITY,
    BufferAndBacklog,
    PipelinedSubpartitionView,
    UnionResultSubpartitionView,
)
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import Arena, RecordingListener, RecordingParent, event
from tests.netstack.present import present
from tests.netstack.rigs import Ending


class Union(Ending):
    """Three subpartitions read as one."""

    def __init__(self, num_subpartitions: int = 3, *, is_started: bool = True) -> None:
        super().__init__()
        self.parent = RecordingParent()
        self.arena = Arena()
        self.subpartitions = [PipelinedSubpartition(index, self.parent) for index in range(num_subpartitions)]
        self.listener = RecordingListener()
        self.view = UnionResultSubpartitionView(self.listener, range(num_subpartitions))
        if is_started:
            self.create_views()
            self.view.start()

    def create_views(self) -> None:
        for index, subpartition in enumerate(self.subpartitions):
            view = present(subpartition.create_read_view(self.view.listener_of(index)))
            self.view.add_view(index, view)

    def add(self, index: int, content: bytes, *, is_clear_end: bool = True) -> None:
        """Add a finished buffer, whose end is the end of a record or perhaps not."""
        builder = self.arena.builder(16)
        builder.append_and_commit(content)
        builder.finish()
        consumer = builder.create_buffer_consumer()
        consumer.data_type = DataType.DATA_BUFFER_WITH_CLEAR_END if is_clear_end else DataType.DATA_BUFFER
        self.subpartitions[index].add(consumer)
        builder.close()

    def poll(self) -> BufferAndBacklog | None:
        found = self.view.next_buffer()
        if found is not None:
            self.content.append(bytes(found.buffer.view) if found.buffer.is_buffer else b"event")
            found.buffer.recycle()
        return found

    def read(self) -> list[bytes]:
        self.content: list[bytes] = []
        while self.poll() is not None:
            pass
        return self.content

    def give_back(self) -> None:
        self.view.release()
        assert self.arena.num_out == 0


def test_subpartitions_take_turns() -> None:
    """testGetNextBuffer: one buffer each while buffers end with a record; numbers count through."""
    it = Union()
    for number in range(2):
        for index in range(3):
            it.add(index, f"{index}{number}".encode())
    for subpartition in it.subpartitions:
        subpartition.finish()

    peeked, found, numbers = [], [], []
    while (index := it.view.peek_next_subpartition()) >= 0:
        one = present(it.view.next_buffer())
        peeked.append(index)
        numbers.append(one.sequence_number)
        found.append(bytes(one.buffer.view) if one.buffer.is_buffer else b"end")
        one.buffer.recycle()

    assert found == [b"00", b"10", b"20", b"01", b"11", b"21", b"end", b"end", b"end"]
    assert peeked == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert numbers == list(range(9))
    assert it.view.next_buffer() is None


def test_a_record_is_read_to_its_end_before_the_next_subpartition() -> None:
    """After a buffer that may hold part of a record its subpartition goes on, or waits."""
    it = Union(2)
    it.add(0, b"a", is_clear_end=False)
    it.add(0, b"b", is_clear_end=False)
    it.add(1, b"other")
    it.add(1, b"other2")

    first = it.read()
    waiting = it.view.availability(True)
    it.subpartitions[0].add(event())

    assert (first, waiting) == ([b"a", b"b"], (False, 0))
    assert it.read() == [b"event", b"other", b"other2"]


def test_looking_ahead_tells_type_and_backlog() -> None:
    """testGetNextBuffer: the backlog is the number of buffers in the look-ahead, at most the capacity of the cache."""
    it = Union(1)
    for _ in range(CACHE_CAPACITY + 5):
        it.add(0, b"x")
    it.subpartitions[0].add(event())

    available = it.view.availability(False), it.view.availability(True), it.view.has_data(0)
    one = present(it.view.next_buffer())
    one.buffer.recycle()

    assert available == ((False, CACHE_CAPACITY), (True, CACHE_CAPACITY), False)
    assert (one.backlog, one.next_data_type) == (CACHE_CAPACITY - 1, DataType.DATA_BUFFER_WITH_CLEAR_END)
    assert it.view.num_queued_buffers == CACHE_CAPACITY + 5
    assert it.read() == [b"x"] * (CACHE_CAPACITY + 4) + [b"event"]


def test_the_listener_is_told_for_each_that_was_drained() -> None:
    """UnionResultSubpartitionViewTest.testNotifyDataAvailable: not again while it stands in line."""
    it = Union(2)
    it.subpartitions[0].add(event())
    it.view.on_data_available(0)
    it.subpartitions[1].add(event())
    counts = [it.listener.count]

    it.read()
    it.subpartitions[0].add(event())
    counts.append(it.listener.count)

    assert (counts, it.read()) == ([2, 3], [b"event"])


def test_orders_reach_every_subpartition() -> None:
    """UnionResultSubpartitionViewTest: new buffer size, acknowledgement, release; each view is released once."""
    it = Union(2)
    it.add(0, b"x")
    it.add(0, b"y")
    assert it.view.has_data(1)

    it.view.notify_new_buffer_size(77)
    it.view.acknowledge_all_data_processed()
    before = (it.view.is_released, it.view.num_queued_buffers)
    it.view.release()
    it.view.release()

    assert (before, it.view.is_released) == ((False, 2), True)
    assert [subpartition.desired_buffer_size for subpartition in it.subpartitions] == [77, 77]
    assert (it.parent.processed, it.parent.consumed, it.view.is_released, it.view.next_buffer()) == (
        [0, 1],
        [0, 1],
        True,
        None,
    )
    assert it.arena.num_out == 0


def test_a_failure_of_one_is_a_failure_of_all() -> None:
    """UnionResultSubpartitionViewTest.testGetFailureCause: the reader is notified and finds the cause."""
    it = Union(2)
    before = (it.view.is_released, it.view.failure_cause)
    it.parent._failure_cause = ProducerFailedError("boom")

    it.subpartitions[1].release()

    assert (before, it.view.is_released, str(it.view.failure_cause), it.listener.count) == (
        (False, None),
        True,
        "boom",
        1,
    )


@pytest.mark.parametrize("is_in_line", [True, False])
def test_a_failure_is_told_even_if_every_subpartition_stands_in_line(is_in_line: bool) -> None:
    """Once; the look-ahead is dropped, since no one asks again with a full cache or without credit."""
    it = Union(2)
    for _ in range(CACHE_CAPACITY + 2 if is_in_line else 2):
        it.add(0, b"x")
    it.add(1, b"y")
    assert it.view.availability(False)[0] is False
    before = it.listener.count

    for subpartition in it.subpartitions:
        subpartition.release()

    assert (it.listener.count - before, it.view.is_released, it.arena.num_out) == (1, True, 0)
    assert (it.view.availability(True), it.view.peek_next_subpartition(), it.view.next_buffer()) == (
        (False, 0),
        -1,
        None,
    )


@pytest.mark.parametrize("is_early", [True, False], ids=["before the views are made", "behind it"])
def test_hist_union_view_told_before_it_was_created(is_early: bool) -> None:
    """Data that is announced before the start is not lost, and the reader is told of the whole union only."""
    it = Union(2, is_started=False)
    if is_early:
        it.subpartitions[0].add(event())
    it.create_views()
    if not is_early:
        it.subpartitions[0].add(event())
    before = it.listener.count

    it.view.start()

    assert (before, it.listener.count, it.read()) == (0, 1, [b"event"])


@pytest.mark.parametrize("num_views", [0, 2])
def test_a_failure_while_the_views_are_made_is_told_by_start(num_views: int) -> None:
    """``start`` reports the failure, whether or not the released view had been added."""
    it = Union(2, is_started=False)
    it.add(0, b"x")
    views = [
        subpartition.create_read_view(it.view.listener_of(index)) for index, subpartition in enumerate(it.subpartitions)
    ]
    for index, view in enumerate(views[:num_views]):
        assert view is not None
        it.view.add_view(index, view)
    it.subpartitions[0].release()
    for index, view in enumerate(views[num_views:], num_views):
        assert view is not None
        it.view.add_view(index, view)
    before = it.listener.count

    it.view.start()

    assert (before, it.listener.count, it.view.is_released, it.view.next_buffer()) == (0, 1, True, None)


def test_several_cannot_be_resumed() -> None:
    """UnionResultSubpartitionView.resumeConsumption: unsupported, as in Flink."""
    it = Union(2)

    with pytest.raises(LocalProtocolError, match="are read as one"):
        it.view.resume_consumption()


class InterruptedView(PipelinedSubpartitionView):
    """Something happens before or after the first poll of the view."""

    __slots__ = ("after", "before")

    def __init__(self, it: Union) -> None:
        super().__init__(it.subpartitions[0], it.view.listener_of(0))
        self.next_buffer = self._poll
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        it.view.add_view(0, self)

    def _poll(self) -> BufferAndBacklog | None:
        self.before()
        found = self._subpartition.poll()
        after, self.after = self.after, lambda: None
        after()
        return found


def test_what_happens_while_it_looks_ahead_is_not_lost() -> None:
    """A subpartition leaves the line before it is polled, so that data that arrives after the poll is announced."""
    it = Union(1)
    InterruptedView(it).after = lambda: it.add(0, b"late")
    it.subpartitions[0].add(event())

    assert it.read() == [b"event", b"late"]


def test_who_comes_while_another_thread_looks_ahead_is_told_afterwards() -> None:
    """A caller that asks meanwhile finds no data, does not wait, and is notified when there may be some."""
    it, found = Union(1), list[tuple[bool, int]]()
    InterruptedView(it).before = lambda: found.append(it.view.availability(True))
    it.subpartitions[0].add(event())
    before = it.listener.count

    assert it.view.availability(True) == (True, 0)
    assert (before, it.listener.count, it.read(), set(found)) == (1, 2, [b"event"], {(False, 0)})


@pytest.mark.parametrize(
    ("end", "is_told"),
    [(lambda it: it.view.release(), False), (lambda it: it.subpartitions[0].release(), True)],
    ids=["release", "failure"],
)
def test_a_buffer_that_was_being_polled_at_the_end_is_recycled(end: Callable[[Union], None], is_told: bool) -> None:
    """Neither leaked nor read, if the reader leaves, or its producer fails, which the reader is told."""
    it = Union(1)
    InterruptedView(it).after = lambda: end(it)
    it.add(0, b"x")
    it.add(0, b"y")
    before = it.listener.count

    assert it.view.next_buffer() is None
    assert (it.view.is_released, it.listener.count > before) == (True, is_told)
