"""``BoundedBlockingResultPartition``: written, then read as often as one likes; nothing of it stays behind."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ResourceBrokenError
from netstack.partition.bounded_blocking_result_partition import (
    BoundedBlockingResultPartition,
    BoundedBlockingSubpartition,
    BoundedDataFile,
)
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_subpartition import ResultSubpartitionView, SubpartitionState
from netstack.wire.events import EndOfPartition, EndOfSuperstep, Event, deserialize_event
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import Arena, RecordingListener, RecordingParent, partition_id_of
from tests.netstack.present import present
from tests.netstack.rigs import Ending
from tests.netstack.threads import run_together

SIZE = 64


def num_files(directory: Path) -> int:
    """Return how many files of ``directory`` are open in this process; those of partitions have no name any more."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link).startswith(f"{directory}{os.sep}") for link in links)


class Blocking(Ending):
    """A blocking partition of 64-byte buffers."""

    def __init__(
        self, directory: Path, num_subpartitions: int = 1, *, compressor: BufferCompressor | None = None
    ) -> None:
        super().__init__()
        self.directory = directory
        self.network = NetworkBufferPool(num_subpartitions + 15, SIZE)
        pool = self.network.create_buffer_pool(
            owner="map", num_required=num_subpartitions + 1, max_buffers=num_subpartitions + 9
        )
        self.partition = BoundedBlockingResultPartition(
            partition_id_of(), num_subpartitions, pool, "map", directory, compressor=compressor
        )
        self.listener = RecordingListener()

    def view(self, index: int = 0, last: int | None = None) -> ResultSubpartitionView:
        return self.partition.create_subpartition_view(index, self.listener, last)

    def end(self) -> None:
        self.partition.finish()
        self.partition.close()

    def give_back(self) -> None:
        self.partition.check_invariants()
        self.partition.close()
        self.partition.release()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"
        assert num_files(self.directory) == 0


@pytest.fixture
def it(tmp_path: Path) -> Blocking:
    return Blocking(tmp_path)


def read(view: ResultSubpartitionView) -> tuple[bytes, list[Event]]:
    """Read everything, as a reader with credit does."""
    content, events = bytearray(), []
    while view.availability(True)[0]:
        found = present(view.next_buffer())
        if found.buffer.is_buffer:
            content.extend(found.buffer.view)
        else:
            events.append(deserialize_event(found.buffer.view))
        found.buffer.recycle()
        assert (found.next_data_type is not DataType.NONE) == view.availability(True)[0]
    assert view.next_buffer() is None
    return bytes(content), events


def test_create_reader_before_finished(it: Blocking) -> None:
    """BoundedBlockingSubpartitionTest.testCreateReaderBeforeFinished: refused (row A10), and possible afterwards."""
    with pytest.raises(LocalProtocolError, match="is read before it is finished"):
        it.view()

    it.end()
    it.view().release()


def test_read_10_consumers_sequential(it: Blocking) -> None:
    """BoundedBlockingSubpartitionWriteReadTest.testRead10ConsumersSequential: identical data (row A10)."""
    expected = bytes(range(256)) * 20
    it.partition.emit_record(expected, 0)
    it.partition.broadcast_event(EndOfSuperstep())
    it.end()

    for _ in range(10):
        view = it.view()
        assert read(view) == (expected, [EndOfSuperstep(), EndOfPartition()])
        view.release()
        assert not it.partition.is_released


@pytest.mark.slow
def test_read_10_consumers_concurrent(it: Blocking) -> None:
    """BoundedBlockingSubpartitionWriteReadTest.testRead10ConsumersConcurrent: as many threads."""
    expected, results = bytes(range(256)) * 50, list[tuple[bytes, list[Event]]]()
    it.partition.emit_record(expected, 0)
    it.end()
    views = [it.view() for _ in range(10)]

    def consume(view: ResultSubpartitionView) -> None:
        results.append(read(view))

    run_together(*(partial(consume, view) for view in views))
    for view in views:
        view.release()

    assert results == [(expected, [EndOfPartition()])] * 10


def test_numbers_of_a_reader(it: Blocking) -> None:
    """Each reader counts its own sequence numbers and backlog; events need no credit."""
    it.partition.emit_record(bytes(2 * SIZE), 0)
    it.end()
    view = it.view()
    states = [(view.availability(False), view.backlog, view.num_queued_buffers, view.peek_next_subpartition())]
    numbers = []
    for _ in range(2):
        found = present(view.next_buffer())
        found.buffer.recycle()
        numbers.append((found.sequence_number, found.backlog, found.next_data_type))
    states.append((view.availability(False), view.backlog, view.num_queued_buffers, view.has_data(0)))

    assert it.listener.count == 1
    assert numbers == [(0, 1, DataType.DATA_BUFFER), (1, 0, DataType.END_OF_PARTITION)]
    assert states == [((False, 2), 2, 3, 0), ((True, 0), 0, 1, True)]
    view.release()


def test_availability_when_read_buffers_return(tmp_path: Path) -> None:
    """TestUnavailableWhenBuffersExhausted / AvailableWhenBuffersReturned (file store)."""
    it = Blocking(tmp_path)
    it.partition.emit_record(bytes(5 * SIZE), 0)
    it.end()
    view = it.view()
    assert view.availability(True) == (True, 5)
    found = [view.next_buffer() for _ in range(2)]
    first, second = (one for one in found if one is not None)

    exhausted = (second.next_data_type, view.availability(True), view.next_buffer())
    first.buffer.recycle()

    assert exhausted == (DataType.NONE, (False, 3), None)
    assert (it.listener.count, view.availability(True)) == (2, (True, 3))
    second.buffer.recycle()
    assert read(view) == (bytes(3 * SIZE), [EndOfPartition()])
    view.release()


def test_the_data_goes_with_the_last_reader(it: Blocking) -> None:
    """testCloseBoundedData: the file of a released subpartition stays until its last reader leaves."""
    it.partition.emit_record(bytes(SIZE), 0)
    it.end()
    views = [it.view(), it.view()]
    found = present(views[0].next_buffer())
    files = [num_files(it.directory)]

    it.partition.release()
    states = [(view.is_released, view.next_buffer(), view.availability(True)[0]) for view in views]
    for view in views:
        files.append(num_files(it.directory))
        view.release()
        view.release()
    files.append(num_files(it.directory))

    assert (files, states, it.listener.count) == ([1, 1, 1, 0], [(True, None, False)] * 2, 4)
    assert bytes(found.buffer.view) == bytes(SIZE)
    found.buffer.recycle()
    with pytest.raises(PartitionNotFoundError):
        it.view()


def test_a_release_during_a_poll_leaves_the_file_to_the_reader(it: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that another thread's close of the gate overtakes reads its data to the end; then the file is closed."""
    it.partition.emit_record(b"a" * SIZE, 0)
    it.end()
    view = it.view()
    read = BoundedBlockingSubpartition.read
    files = []

    def read_slowly(data: BoundedBlockingSubpartition, number: int, target: memoryview) -> None:
        it.partition.release()
        view.release()
        files.append(num_files(it.directory))
        read(data, number, target)

    monkeypatch.setattr(BoundedBlockingSubpartition, "read", read_slowly)
    found = view.next_buffer()
    files.append(num_files(it.directory))

    assert found is not None
    assert (bytes(found.buffer.view), files, view.next_buffer()) == (b"a" * SIZE, [1, 0], None)
    found.buffer.recycle()


def test_readers_learn_why_the_partition_failed(it: Blocking) -> None:
    """ProducerFailed: the cause is named."""
    it.end()
    view = it.view()

    it.partition.fail(ValueError("boom"))

    assert "boom" in str(view.failure_cause)
    view.release()


def test_an_unfinished_partition_leaves_nothing(it: Blocking) -> None:
    """A task that fails before the end: closed and released, the files are gone."""
    it.partition.emit_record(bytes(3 * SIZE), 0)
    it.partition.close()

    assert (it.partition.is_released, num_files(it.directory)) == (True, 0)


def test_readers_are_not_resumed_but_acknowledge(it: Blocking) -> None:
    """The orders of a consumer: what makes no sense for files does nothing, or says so."""
    it.end()
    view = it.view()

    view.notify_new_buffer_size(5)
    view.acknowledge_all_data_processed()

    assert it.partition.all_data_processed.is_done
    with pytest.raises(LocalProtocolError, match="not blocked"):
        view.resume_consumption()
    it.partition.aligned_barrier_timeout(1)
    it.partition.abort_checkpoint(1, ValueError("declined"))
    view.release()


def test_a_range_is_read_as_one(tmp_path: Path) -> None:
    """One after the other, since records may go on in the next buffer."""
    it = Blocking(tmp_path, 3)
    for index in range(3):
        it.partition.emit_record(bytes([index]) * 100, index)
    it.end()

    view = it.view(0, 2)

    assert read(view) == (bytes(100) + b"\1" * 100 + b"\2" * 100, [EndOfPartition()] * 3)
    view.release()


def test_buffers_are_compressed_if_that_makes_them_smaller(tmp_path: Path) -> None:
    """BoundedBlockingSubpartition, canBeCompressed: data only, and only if it is strictly smaller."""
    it = Blocking(tmp_path, compressor=BufferCompressor())
    it.partition.emit_record(bytes(SIZE), 0)
    it.partition.emit_record(bytes(range(SIZE)), 0)
    it.end()
    view, decompressor, found = it.view(), BufferDecompressor(SIZE), []

    while (one := view.next_buffer()) is not None:
        was_compressed, size = one.buffer.is_compressed, one.buffer.size
        restored = decompressor.decompress(one.buffer)
        found.append((was_compressed, size < SIZE, bytes(restored.view)))
        restored.recycle()

    assert found == [(True, True, bytes(SIZE)), (False, False, bytes(range(SIZE))), (False, True, b"\0\0\0\0")]
    view.release()


def test_only_blocking_types(tmp_path: Path) -> None:
    """BoundedBlockingResultPartition.checkResultPartitionType: no pipelined type lives in files."""
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_buffer_pool(owner="map", num_required=2, max_buffers=4)

    with pytest.raises(ValueError, match="PIPELINED is no blocking type"):
        BoundedBlockingResultPartition(
            partition_id_of(), 1, pool, "map", tmp_path, partition_type=ResultPartitionType.PIPELINED
        )
    with pytest.raises(ResourceBrokenError):
        BoundedBlockingResultPartition(partition_id_of(), 1, pool, "map", tmp_path / "nowhere")
    assert num_files(tmp_path) == 0
    pool.destroy()
    network.destroy()


class BrokenDisk:
    """A partition with one buffer in each of its subpartitions; the disk is full from now on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.it = Blocking(directory, num_subpartitions=2)
        self.partition = self.it.partition
        self.partition.broadcast_record(b"a" * 60)

        def fail(data: BoundedBlockingSubpartition, buffer: NetworkBuffer) -> None:
            raise ResourceBrokenError("no space left on device")

        monkeypatch.setattr(BoundedBlockingSubpartition, "write", fail)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenDisk]:
    broken = BrokenDisk(tmp_path, monkeypatch)
    yield broken
    broken.it.close()


@pytest.mark.parametrize(
    "emit",
    [
        lambda partition: partition.emit_record(b"b" * 60, 0),
        lambda partition: partition.emit_record(b"b" * SIZE, 0),
        lambda partition: partition.broadcast_record(b"b" * 60),
    ],
    ids=["part of a buffer", "a buffer", "a broadcast"],
)
def test_a_full_disk_costs_no_segment(
    broken: BrokenDisk, emit: Callable[[BoundedBlockingResultPartition], None]
) -> None:
    """The emitting task gets the error; the buffer that it had begun is recycled with the partition."""
    with pytest.raises(ResourceBrokenError, match="no space left"):
        emit(broken.partition)

    broken.partition.fail(RuntimeError("the task failed"))


def test_an_end_that_could_not_be_written_is_no_end(broken: BrokenDisk) -> None:
    """No data is added behind the gap, and ``close`` releases the partition like any unfinished one."""
    with pytest.raises(ResourceBrokenError, match="no space left"):
        broken.partition.finish()
    with pytest.raises(LocalProtocolError, match="takes nothing more"):
        broken.partition.finish()
    before = broken.partition.is_finished
    broken.partition.close()

    assert (before, broken.partition.is_released, num_files(broken.it.directory)) == (False, True, 0)
    assert "before it was finished" in str(broken.partition.failure_cause)


# ---------------------------------------------------------------- one subpartition


class Single:
    """A subpartition without partition."""

    def __init__(self, directory: Path) -> None:
        self.parent, self.arena = RecordingParent(), Arena()
        self.subpartition = BoundedBlockingSubpartition(0, self.parent, BoundedDataFile(directory))

    def consumer(self) -> BufferConsumer:
        """Return the consumer of a finished buffer, whose writer is done with it."""
        builder = self.arena.builder(SIZE)
        consumer = builder.create_buffer_consumer()
        builder.append_and_commit(b"abc")
        builder.close()
        return consumer


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Single]:
    single = Single(tmp_path)
    yield single
    single.subpartition.release()
    single.subpartition.check_invariants()
    assert (single.arena.num_out, num_files(tmp_path)) == (0, 0)


@pytest.mark.parametrize("call", ["add", "flush", "finish"])
def test_recycle_current_buffer_on_failure(single: Single, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BoundedBlockingSubpartitionTest.testRecycleCurrentBufferOnFailure: a full disk leaks nothing."""

    def fail(buffer: NetworkBuffer) -> None:
        raise ResourceBrokenError("no space left on device")

    monkeypatch.setattr(single.subpartition, "write", fail)
    single.subpartition.add(single.consumer())
    calls = {
        "add": lambda: single.subpartition.add(single.consumer()),
        "flush": single.subpartition.flush,
        "finish": single.subpartition.finish,
    }

    with pytest.raises(ResourceBrokenError, match="no space left"):
        calls[call]()

    assert single.arena.num_out == 0


@pytest.mark.parametrize("end", ["finish", "release"])
def test_nothing_is_added_after_the_end(single: Single, end: str) -> None:
    """TestRecycleClosedBufferConsumer / AddToFinished: the consumer is closed; a second end is refused."""
    if end == "finish":
        single.subpartition.finish()
    else:
        single.subpartition.release()

    assert (single.subpartition.add(single.consumer()), single.subpartition.finish(), single.arena.num_out) == (
        -1,
        -1,
        0,
    )
    assert (single.subpartition.num_queued_buffers, single.subpartition.num_queued_bytes) == (0, 0)


def test_a_release_while_the_task_writes_leaves_the_file_to_the_task(
    single: Single, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last user closes the file: once, and never under a write."""
    write = single.subpartition.write

    def write_slowly(buffer: NetworkBuffer) -> None:
        single.subpartition.release()
        files = num_files(tmp_path)
        write(buffer)
        assert files, "the file was closed while it was written"

    monkeypatch.setattr(single.subpartition, "write", write_slowly)
    single.subpartition.add(single.consumer())

    assert single.subpartition.add(single.consumer()) == -1
    assert (num_files(tmp_path), single.subpartition.create_read_view(RecordingListener())) == (0, None)


def test_empty_buffers_are_not_written(single: Single) -> None:
    """A writer that was flushed and had nothing more to say."""
    builder = single.arena.builder(SIZE)
    single.subpartition.add(builder.create_buffer_consumer())
    builder.close()

    single.subpartition.finish()

    assert (single.subpartition.num_data_buffers, single.subpartition.max_buffer_bytes) == (0, 4)


def test_who_waits_for_room_is_not_told_after_its_release(tmp_path: Path) -> None:
    """A buffer that is recycled after the release wakes no reader."""
    it = Blocking(tmp_path)
    it.partition.emit_record(bytes(5 * SIZE), 0)
    it.end()
    view = it.view()
    found = [view.next_buffer() for _ in range(3)]

    view.release()
    for one in found:
        if one is not None:
            one.buffer.recycle()

    assert (len([one for one in found if one is not None]), it.listener.count) == (2, 1)


def test_readers_and_subpartitions_say_how_they_stand(single: Single) -> None:
    """The reprs have state and backlog."""
    single.subpartition.add(single.consumer())
    before = single.subpartition.state
    single.subpartition.finish()
    reader = present(single.subpartition.create_read_view(RecordingListener()))
    present(reader.next_buffer()).buffer.recycle()

    assert (before, single.subpartition.state) == (SubpartitionState.OPEN, SubpartitionState.FINISHED)
    assert (reader.is_released, reader.backlog, reader.num_queued_buffers) == (False, 0, 1)
    reader.release()
    assert (reader.is_released, single.subpartition.is_released) == (True, False)


# ---------------------------------------------------------------- the scenarios of Flink's tests of partitions in files


def test_flush_bounded_blocking_result_partition(tmp_path: Path) -> None:
    """ResultPartitionTest.testFlushBoundedBlockingResultPartition: each flush ends a buffer; 4 and 2, then the end."""
    it, record = Blocking(tmp_path, 2), b"\0\0\4\0"

    it.partition.emit_record(record, 0)
    it.partition.flush(0)
    it.partition.emit_record(record, 0)
    it.partition.broadcast_record(record)
    it.partition.flush_all()
    it.partition.broadcast_record(record)
    it.end()

    for index, expected in enumerate((4, 2)):
        view = it.view(index)
        assert [first_content(view) for _ in range(expected + 1)] == [record] * expected + [b"\0\0\0\0"]
        assert view.next_buffer() is None
        view.release()


def test_a_partition_holds_one_descriptor(tmp_path: Path) -> None:
    """64 producers with 64 consumers need no 4,096 files, neither while they write nor later."""
    it = Blocking(tmp_path, 64)
    for _ in range(3):
        for index in range(64):
            it.partition.emit_record(bytes([index]) * SIZE, index)
    counts = [num_files(tmp_path)]
    it.end()
    counts.append(num_files(tmp_path))

    views = [it.view(index) for index in range(64)]
    contents = [first_content(view) for view in views]
    counts.append(num_files(tmp_path))
    for view in views:
        view.release()
    it.close()

    assert contents == [bytes([index]) * SIZE for index in range(64)]
    assert counts == [1, 1, 1]


def first_content(view: ResultSubpartitionView) -> bytes:
    """Return the bytes of the first buffer of ``view``."""
    found = present(view.next_buffer())
    content = bytes(found.buffer.view)
    found.buffer.recycle()
    return content
