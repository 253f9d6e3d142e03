"""Readers that come, fail and follow each other at any moment of what others do."""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import pytest

from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.wire.events import EndOfSuperstep
from tests.netstack.partition.producing import Producing, RecordingListener, read
from tests.promises.moments import Moment, every_moment, no_moment

SMALL = 15  # bytes


class Approximate:
    """A partition with one segment, whose readers follow each other."""

    def __init__(self, segment: int) -> None:
        self.producing = Producing(
            1, segment=segment, num_segments=1, partition_type=ResultPartitionType.PIPELINED_APPROXIMATE
        )
        self.partition = self.producing.partition
        self.partition.buffer_pool.observe_blocking(self)
        self.contents = [b""]  # by reader

    def mark_start(self) -> None:
        """Read before the producer parks, as there is no free segment."""
        with no_moment():
            self.read()

    def mark_end(self) -> None:
        """Go on without an act."""

    def read(self) -> None:
        self.contents[-1] += read(self.producing.views[0])[0]

    def replace(self) -> None:
        """The reader has failed, and another one takes its place."""
        self.producing.views = [self.partition.create_subpartition_view(0, RecordingListener())]
        self.contents.append(b"")


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moment]:
    return every_moment(monkeypatch, at_least=3)


@pytest.mark.parametrize("is_broadcast", [False, True])
@pytest.mark.parametrize("reads_at_once", [False, True])
@pytest.mark.parametrize("segment", [SMALL, 40])
def test_a_consumer_that_fails_while_a_record_is_written_tears_none(
    moments: Iterator[Moment], segment: int, reads_at_once: bool, is_broadcast: bool
) -> None:
    """PIPELINED_APPROXIMATE, with buffers as small as the consumer asked for or as their segments: the next reader's
    data begins with the first whole record that the last reader has not begun.
    """
    records = [b"a" * 10, b"b" * 10, b"c" * 2]
    written = b"".join(records)
    starts = [0, *accumulate(len(record) for record in records)]

    for moment in moments:
        it = Approximate(segment)
        it.producing.views[0].notify_new_buffer_size(SMALL)

        def fail(it: Approximate = it) -> None:
            it.partition.flush(0)
            it.read()
            it.replace()
            if reads_at_once:
                it.read()

        emit = it.partition.broadcast_record if is_broadcast else partial(it.partition.emit_record, subpartition=0)
        emit(records[0])
        with moment.of(fail):
            emit(records[1])
        emit(records[2])
        it.partition.flush(0)
        it.read()

        first = it.contents[0]
        assert written.startswith(first)
        assert len(it.contents) == 1 + moment.is_over
        if moment.is_over:
            assert it.contents[1] == written[next(start for start in starts if start >= len(first)) :]
        else:
            assert first == written
        it.producing.close()


def test_a_reader_whose_place_is_taken_takes_nothing_from_the_next_one(moments: Iterator[Moment]) -> None:
    """PIPELINED_APPROXIMATE: the new view comes at any moment of a poll; a buffer that the old one took afterwards
    would be missing, and its number, too.
    """
    for moment in moments:
        it = Producing(1, partition_type=ResultPartitionType.PIPELINED_APPROXIMATE)
        for record in (b"one", b"two", b"three"):
            it.partition.emit_record(record, 0)
            it.partition.finish_buffer(0)
        former = it.views[0]
        poll = former.next_buffer

        def replace(it: Producing = it) -> None:
            it.views = [it.partition.create_subpartition_view(0, RecordingListener())]

        with moment.of(replace):
            first = poll()
        if not moment.is_over:
            replace()
        late, numbers, contents = poll(), list[int](), list[bytes]()
        if first is not None:
            contents.append(bytes(first.buffer.view))
            first.buffer.recycle()
        while (found := it.views[0].next_buffer()) is not None:
            numbers.append(found.sequence_number)
            contents.append(bytes(found.buffer.view))
            found.buffer.recycle()

        assert (late, contents) == (None, [b"one", b"two", b"three"])
        assert numbers == list(range(len(numbers)))
        it.close()


def test_what_comes_while_a_range_gets_its_views_is_told(moments: Iterator[Moment]) -> None:
    """An event that comes meanwhile is told when all views of the range are there, and is read
    (UnionResultSubpartitionView).
    """
    for moment in moments:
        it = Producing(3, with_views=False)
        listener = RecordingListener()

        with moment.of(partial(it.partition.broadcast_event, EndOfSuperstep())):
            it.views = [it.partition.create_subpartition_view(0, listener, last=2)]
        if not moment.is_over:
            it.partition.broadcast_event(EndOfSuperstep())

        assert listener.count >= 1
        assert read(it.views[0])[1] == [EndOfSuperstep()] * 3
        it.close()
