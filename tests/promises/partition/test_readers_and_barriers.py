"""Readers of a partition are told of its data, and barriers of its checkpoints overtake buffers."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from netstack.buffer.network_buffer import recycle_segments
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.wire.events import CheckpointBarrier, EndOfSuperstep
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.partition.producing import (
    SEGMENT,
    TIMEOUTABLE,
    Producing,
    RecordingListener,
    RecordingStateWriter,
    read,
    recycled_sizes,
)


@pytest.fixture
def it() -> Iterator[Producing]:
    """Yield one subpartition."""
    producing = Producing(1)
    yield producing
    producing.close()


# ---------------------------------------------------------------- who is told


@pytest.mark.parametrize("schedule", sorted(set(itertools.permutations("wwffpp"))), ids="".join)
def test_hist_8694_8760_flush_always_without_a_timer_never_strands_data(
    it: Producing, schedule: tuple[str, ...]
) -> None:
    """After the last flush the reader was told of all bytes, in every order of write, flush and a poll by the reader
    that was told (FLINK-8694).
    """
    told, written, flushed, got = 0, b"", b"", b""

    for step in (*schedule, "p"):
        match step:
            case "w":
                it.partition.emit_record(b"abc", 0)
                written += b"abc"
            case "f":
                it.partition.flush(0)
                flushed = written
            case _:
                if it.listeners[0].count == told:
                    continue  # a reader polls only when it was told
                told = it.listeners[0].count
                got += read(it.views[0])[0]

    assert got.startswith(flushed)


def test_hist_union_view_told_before_it_was_created() -> None:
    """Data that is there when a range gets its view is told once (UnionResultSubpartitionView)."""
    it = Producing(3, with_views=False)
    it.partition.broadcast_event(EndOfSuperstep())
    listener = RecordingListener()

    it.views = [it.partition.create_subpartition_view(0, listener, last=2)]

    assert (listener.count, read(it.views[0])) == (1, (b"", [EndOfSuperstep()] * 3))
    it.close()


# ---------------------------------------------------------------- barriers that may overtake


class Checkpointed:
    """A partition whose channel state is kept."""

    def __init__(self) -> None:
        self.partition_of = Producing(1)
        self.partition = self.partition_of.partition
        self.state = RecordingStateWriter()
        self.partition.set_channel_state_writer(self.state)

    @property
    def view(self) -> ResultSubpartitionView:
        return self.partition_of.views[0]

    def barrier(self, checkpoint_id: int) -> None:
        self.partition.broadcast_event(CheckpointBarrier(checkpoint_id, 0, TIMEOUTABLE))

    def in_flight(self) -> list[tuple[int, str, list[int]]]:
        """Return, by checkpoint, how it ended, and the sizes of what it has kept since the last look."""
        return [
            (
                checkpoint_id,
                type(data.error).__name__ if data.error is not None else "done" if data.end.is_done else "pending",
                recycled_sizes(data.take()),
            )
            for checkpoint_id, data in self.state.futures
        ]

    def next_type(self) -> DataType | None:
        """The type of the next element, which is recycled."""
        found = self.view.next_buffer()
        if found is None:
            return None
        found.buffer.recycle()
        return found.buffer.data_type


@pytest.fixture
def checkpointed() -> Iterator[Checkpointed]:
    it = Checkpointed()
    yield it
    it.in_flight()
    it.partition_of.close()


def test_a_timer_of_an_older_checkpoint_leaves_the_next_barrier(checkpointed: Checkpointed) -> None:
    """A second barrier supersedes the first, whose data fails, and overtakes in its own time
    (PipelinedSubpartitionTest.testConcurrentTimeoutableCheckpointBarrier).
    """
    checkpointed.barrier(3)
    checkpointed.partition.emit_record(bytes(10), 0)
    checkpointed.barrier(4)

    checkpointed.partition.aligned_barrier_timeout(3)

    assert checkpointed.in_flight() == [(3, "LocalProtocolError", []), (4, "pending", [])]
    checkpointed.partition.aligned_barrier_timeout(4)
    assert checkpointed.in_flight()[1] == (4, "done", [10])
    assert checkpointed.next_type() is DataType.PRIORITIZED_EVENT_BUFFER


def test_an_abort_of_another_checkpoint_leaves_the_barrier(checkpointed: Checkpointed) -> None:
    """An abort gives up only its own barrier, which is then polled as an aligned one (PipelinedSubpartitionTest,
    abortCheckpoint).
    """
    checkpointed.partition.emit_record(bytes(10), 0)
    checkpointed.barrier(3)

    checkpointed.partition.abort_checkpoint(2, ValueError("another"))
    before = checkpointed.in_flight()
    checkpointed.partition.abort_checkpoint(3, ValueError("declined"))
    checkpointed.partition.aligned_barrier_timeout(3)

    assert (before, checkpointed.in_flight()) == ([(3, "pending", [])], [(3, "ValueError", [])])
    assert str(checkpointed.state.futures[0][1].error) == "declined"
    assert [checkpointed.next_type() for _ in range(2)] == [
        DataType.DATA_BUFFER,
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    ]


@pytest.mark.parametrize(
    "end",
    [
        lambda it: it.partition.release(),
        lambda it: it.partition.fail(ValueError("boom")),
        lambda it: it.view.release(),
    ],
    ids=["released", "failed", "its consumer left"],
)
def test_a_barrier_that_nobody_reads_any_more_ends_its_snapshot(
    checkpointed: Checkpointed, end: Callable[[Checkpointed], None]
) -> None:
    """No reader waits for ever for the data before a barrier (PipelinedSubpartitionTest.testReleaseParent with a
    barrier).
    """
    checkpointed.partition.emit_record(bytes(10), 0)
    checkpointed.barrier(3)

    end(checkpointed)

    assert checkpointed.in_flight() == [(3, "ResourceClosedError", [])]


def test_a_barrier_that_overtakes_whole_segments_keeps_them_though_their_reader_is_done(
    checkpointed: Checkpointed,
) -> None:
    """A copy and the queue hold one segment: it is written anew only after both have let go."""
    record = bytes(range(256)) * (2 * SEGMENT // 256)
    checkpointed.partition.emit_record(record, 0)
    checkpointed.barrier(1)
    checkpointed.partition.aligned_barrier_timeout(1)
    assert checkpointed.next_type() is DataType.PRIORITIZED_EVENT_BUFFER

    got = _read_in_runs(checkpointed.view)
    num_used = num_in_use(checkpointed.partition_of.pool)
    checkpointed.partition.emit_record(b"!" * len(record), 0)  # into any free segment

    [(_, data)] = checkpointed.state.futures
    kept = data.take()
    content = b"".join(bytes(buffer.view) for buffer in kept)
    for buffer in kept:
        buffer.recycle()
    assert (got == record, content == record, num_used) == (True, True, 2)


def _read_in_runs(view: ResultSubpartitionView) -> bytes:
    """Read everything that can be polled, whole segments as runs; recycle all."""
    content = bytearray()
    poll_run = view.poll_run
    while True:
        run = None if poll_run is None else poll_run(5)
        if run is not None:
            for segment in run.segments:
                content += segment.view
            recycle_segments(run.segments, run.recycler)
            continue
        found = view.next_buffer()
        if found is None:
            return bytes(content)
        content += found.buffer.view
        found.buffer.recycle()
