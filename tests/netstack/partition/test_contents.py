"""Contents in partitions: ``emit_content`` and what becomes of them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netstack.buffer.network_buffer import BufferCompressor
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    StopMode,
    deserialize_event,
)
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.buffer.test_network_buffer import Content
from tests.netstack.partition.doubles import Producing, RecordingListener, RecordingStateWriter, partition_id_of
from tests.netstack.present import present
from tests.waiting import PATIENCE_S, spin_until

SEGMENT = 16
UNALIGNED = CheckpointBarrier(1, 2, CheckpointOptions(alignment=Alignment.UNALIGNED))
TIMEOUTABLE = CheckpointBarrier(1, 2, CheckpointOptions(alignment=Alignment.ALIGNED, aligned_timeout_ms=100))


class LocalListener(RecordingListener):
    """The listener of a reader in the partition's process."""

    takes_contents = True


class Setup(Producing):
    """A partition with two subpartitions, whose readers come when the test says so."""

    def __init__(self, *, max_buffers: int = 8, **options: Any) -> None:
        super().__init__(segment=SEGMENT, num_segments=16, max_buffers=max_buffers, with_views=False, **options)
        self.listener = LocalListener()

    def give_back(self) -> None:
        self.partition.close()
        self.partition.release()
        super().give_back()

    def read_locally(self) -> ResultSubpartitionView:
        """Let a reader of this process read the first subpartition."""
        self.views.append(self.partition.create_subpartition_view(0, self.listener))
        return self.views[0]


@pytest.fixture
def it() -> Setup:
    setup = Setup()
    setup.read_locally()
    return setup


def polled(view: ResultSubpartitionView) -> list[Any]:
    """Poll contents as they are, data as bytes, and events."""
    found: list[Any] = []
    while (item := view.next_buffer()) is not None:
        buffer = item.buffer
        found.append(deserialize_event(buffer.view) if not buffer.is_buffer else buffer.content or bytes(buffer.view))
        buffer.recycle()
    return found


# ---------------------------------------------------------------- who takes contents


def test_only_a_reader_of_the_process_takes_contents() -> None:
    """Neither none nor a remote one does; a local one does, from then on."""
    it = Setup()
    remote = it.partition.create_subpartition_view(1, RecordingListener())
    content = Content()

    before = it.partition.emit_content(content, 0)
    it.read_locally()

    assert (before, it.partition.emit_content(content, 1), it.partition.takes_contents(1)) == (False, False, False)
    assert num_in_use(it.pool) == 0
    assert it.partition.takes_contents(0)
    assert it.partition.emit_content(content, 0)
    assert (polled(it.views[0]), polled(remote), content.num_made) == ([content], [], 0)
    it.views.append(remote)


@pytest.mark.parametrize(
    "options",
    [{"partition_type": ResultPartitionType.PIPELINED_APPROXIMATE}, {"compressor": BufferCompressor()}],
    ids=["approximate", "compressed"],
)
def test_partitions_whose_readers_want_bytes_take_none(options: dict[str, Any]) -> None:
    it = Setup(**options)
    it.read_locally()

    assert not it.partition.emit_content(Content(), 0)
    assert not it.partition.takes_contents(0)
    assert num_in_use(it.pool) == 0


def test_a_blocking_partition_takes_none(tmp_path: Path) -> None:
    network = NetworkBufferPool(16, SEGMENT)
    pool = network.create_buffer_pool(owner="map", num_required=2, max_buffers=10)
    partition = BoundedBlockingResultPartition(partition_id_of(), 1, pool, "map", tmp_path)

    assert not partition.emit_content(Content(), 0)
    assert not partition.takes_contents(0)

    partition.finish()
    partition.close()
    partition.release()
    network.destroy()
    assert network.num_available == network.num_total


def test_a_released_partition_takes_none(it: Setup) -> None:
    it.partition.release()

    with pytest.raises(ResourceClosedError, match="was released"):
        it.partition.emit_content(Content(), 0)


def test_a_finished_partition_takes_none(it: Setup) -> None:
    it.partition.finish()

    with pytest.raises(LocalProtocolError, match="is finished and takes nothing more"):
        it.partition.emit_content(Content(), 0)
    assert polled(it.views[0]) == [EndOfPartition()]


# ---------------------------------------------------------------- order


def test_contents_keep_their_place_between_records_and_events(it: Setup) -> None:
    """Also behind a buffer that is not full, or that every subpartition reads."""
    first, second, third = Content(), Content(), Content()

    it.partition.emit_record(b"abc", 0)
    it.partition.emit_content(first, 0)
    it.partition.emit_content(second, 0)
    it.partition.emit_record(b"def", 0)
    it.partition.broadcast_record(b"gh")
    it.partition.emit_content(third, 0)
    it.partition.broadcast_record(b"jk")
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))
    it.partition.emit_record(b"i", 0)
    it.partition.flush_all()

    assert polled(it.views[0]) == [b"abc", first, second, b"def", b"gh", third, b"jk", EndOfData(StopMode.DRAIN), b"i"]
    assert [content.num_made for content in (first, second, third)] == [0, 0, 0]


def test_the_last_content_is_read_when_it_is_flushed(it: Setup) -> None:
    """A flush makes the last content readable, like a buffer that is not full."""
    it.partition.emit_content(Content(), 0)
    assert it.listener.count == 0

    it.partition.flush_all()
    it.partition.flush_all()

    assert it.listener.count == 1
    found = present(it.views[0].next_buffer())
    assert (found.backlog, found.sequence_number) == (0, 0)
    found.buffer.recycle()


def test_a_content_before_another_one_is_news(it: Setup) -> None:
    it.partition.emit_content(Content(), 0)
    it.partition.emit_content(Content(), 0)

    assert it.listener.count == 1
    assert len(polled(it.views[0])) == 2


def test_a_run_of_whole_segments_ends_before_a_content(it: Setup) -> None:
    content = Content()
    for _ in range(2):
        (segment,) = it.partition.reserve_segments(1, 0)
        segment.view[:] = b"x" * SEGMENT
        it.partition.emit_segments([segment], 0)
    it.partition.emit_content(content, 0)
    it.partition.flush_all()

    poll_run = present(it.views[0].poll_run)
    run = present(poll_run(8))
    assert (len(run.segments), poll_run(8)) == (2, None)
    for segment in run.segments:
        run.recycler.recycle(segment)

    assert polled(it.views[0]) == [content]


def test_it_counts_as_a_buffer_of_its_estimated_size(it: Setup) -> None:
    before = it.partition.statistics()

    it.partition.emit_content(Content(size_bytes=70), 0)

    after = it.partition.statistics()
    assert (after.num_bytes_out - before.num_bytes_out, after.num_buffers_out - before.num_buffers_out) == (70, 1)
    assert (after.num_queued_buffers, after.num_queued_bytes) == (1, 70)


# ---------------------------------------------------------------- flow control


def test_a_content_takes_one_segment_until_it_is_recycled(it: Setup) -> None:
    it.partition.emit_content(Content(), 0)
    it.partition.flush_all()
    queued = num_in_use(it.pool)

    found = present(it.views[0].next_buffer())
    polled_ = num_in_use(it.pool)
    found.buffer.recycle()

    assert (queued, polled_, num_in_use(it.pool)) == (1, 1, 0)


def test_the_writer_waits_for_a_segment() -> None:
    """The number of unread contents is bounded: each takes a segment, like any other buffer."""
    it = Setup(max_buffers=3)
    view = it.read_locally()
    num_emitted = [0]

    def emit() -> None:
        for _ in range(4):
            it.partition.emit_content(Content(), 0)
            num_emitted[0] += 1

    writer = threading.Thread(target=emit)
    writer.start()
    spin_until(lambda: num_emitted[0] == 3 and not it.partition.buffer_pool.is_available)
    found = present(view.next_buffer())
    assert writer.is_alive()
    found.buffer.recycle()
    writer.join(PATIENCE_S)

    assert (writer.is_alive(), num_emitted) == (False, [4])
    it.partition.flush_all()
    assert len(polled(view)) == 3


def test_a_release_wakes_the_writer_and_returns_all_segments() -> None:
    it = Setup(max_buffers=3)
    it.read_locally()
    errors: list[Exception] = []

    def emit() -> None:
        try:
            for _ in range(4):
                it.partition.emit_content(Content(), 0)
        except ResourceClosedError as error:
            errors.append(error)

    writer = threading.Thread(target=emit)
    writer.start()
    spin_until(lambda: not it.partition.buffer_pool.is_available)
    it.partition.close()
    writer.join(PATIENCE_S)

    assert (writer.is_alive(), len(errors), num_in_use(it.pool)) == (False, 1, 0)


@pytest.mark.parametrize(
    "release", [lambda it: it.partition.release(), lambda it: it.views[0].release()], ids=["partition", "reader"]
)
def test_contents_that_nobody_will_read_return_their_segments(it: Setup, release: Callable[[Setup], None]) -> None:
    content = Content()
    for _ in range(3):
        it.partition.emit_content(content, 0)

    release(it)

    assert (num_in_use(it.pool), content.num_made) == (0, 0)


# ---------------------------------------------------------------- checkpoints


def test_a_barrier_that_overtakes_a_content_copies_its_bytes(it: Setup) -> None:
    """The copied bytes are in order with the data around the content, in pieces; the content itself still arrives."""
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state)
    content = Content(bytes(40 * 1024))
    it.partition.emit_record(b"abc", 0)
    it.partition.emit_content(content, 0)
    it.partition.emit_record(b"de", 0)

    it.partition.broadcast_event(UNALIGNED, is_priority=True)

    assert [(checkpoint, sizes) for checkpoint, info, sizes in state.output if info.subpartition_index == 0] == [
        (1, [3, 32 * 1024, 8 * 1024, 2])
    ]
    it.partition.flush_all()
    assert polled(it.views[0]) == [UNALIGNED, b"abc", content, b"de"]
    assert content.num_made == 1


def test_a_barrier_that_times_out_copies_the_bytes_before_it(it: Setup) -> None:
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state)
    before, behind = Content(b"before"), Content(b"behind it")
    it.partition.emit_content(before, 0)
    it.partition.broadcast_event(TIMEOUTABLE)
    it.partition.emit_content(behind, 0)

    it.partition.aligned_barrier_timeout(1)

    (future,) = [each for checkpoint, each in state.futures if checkpoint == 1][:1]
    kept = future.take()
    assert [bytes(buffer.view) for buffer in kept] == [b"before"]
    for buffer in kept:
        buffer.recycle()
    assert (before.num_made, behind.num_made) == (1, 0)
    it.partition.flush_all()
    assert polled(it.views[0])[1:] == [before, behind]


def test_a_barrier_does_not_copy_a_content_that_was_read(it: Setup) -> None:
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state)
    it.partition.emit_content(Content(), 0)
    it.partition.flush_all()
    polled(it.views[0])

    it.partition.broadcast_event(UNALIGNED, is_priority=True)

    assert state.output == []
