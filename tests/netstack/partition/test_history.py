"""Bugs that Flink's producer side had: each is a test under its number."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.channel_state import InFlightData, InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.partition.result_subpartition import BufferAndBacklog, ResultSubpartitionView
from netstack.wire.events import CheckpointBarrier, EndOfSuperstep, StopMode
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.partition.doubles import (
    TIMEOUTABLE,
    UNALIGNED,
    Reading,
    RecordingListener,
    barrier,
    drain,
    event,
    partition_id_of,
    unaligned_barrier,
)
from tests.netstack.present import present
from tests.promises.moments import CountedLock

SIZE = 64


def blocked() -> Reading:
    """Return a subpartition whose reader stands behind an aligned barrier."""
    it = Reading()
    it.subpartition.add(barrier())
    it.poll()
    it.listener.count = 0
    return it


def told_sizes(it: Reading) -> list[int]:
    """Return the sizes that a reader finds that polls only after a notification."""
    if not it.listener.count:
        return []
    it.listener.count = 0
    return [found.buffer.size for found in drain(it.subpartition)]


@pytest.mark.parametrize("schedule", sorted(set(itertools.permutations("afr"))), ids="".join)
def test_hist_23223_data_flushed_while_blocked_is_told_on_resume(schedule: Sequence[str]) -> None:
    """In every order of append, flush and resume, with another flush in the end, the reader is notified of the data."""
    it = blocked()

    for step in (*schedule, "f"):
        match step:
            case "a":
                it.add(10, is_finished=False)
            case "f":
                it.subpartition.flush()
            case _:
                it.view.resume_consumption()

    assert told_sizes(it) == [10]


@pytest.mark.parametrize("num_buffers", range(6))
def test_hist_25664_buffers_added_while_blocked_are_told_on_resume(num_buffers: int) -> None:
    """Without a flush, all added buffers except the last are announced: the last one may not be finished."""
    it = blocked()
    for size in range(1, num_buffers + 1):
        it.add(size)

    it.view.resume_consumption()

    assert told_sizes(it) == list(range(1, num_buffers))


def poll_content(it: Reading) -> tuple[BufferAndBacklog, bytes]:
    found = present(it.view.next_buffer())
    content = bytes(found.buffer.view)
    found.buffer.recycle()
    return found, content


@pytest.mark.parametrize("num_polls_between", [0, 1])
def test_hist_40521_two_priority_events_in_flight(num_polls_between: int) -> None:
    """The second is announced after the first was polled; both come before the data."""
    it = Reading()
    it.add(1)
    it.add(2)
    it.subpartition.add(unaligned_barrier(1))
    polled = [poll_content(it) for _ in range(num_polls_between)]
    it.subpartition.add(unaligned_barrier(2))

    polled += [poll_content(it) for _ in range(4 - num_polls_between)]
    found, contents = [one for one, _ in polled], [content for _, content in polled]

    assert [content[11] for content in contents[:2]] == [1, 2], "the checkpoints, in order"
    assert [one.buffer.size for one in found] == [34, 34, 1, 2]
    assert [one.sequence_number for one in found] == [0, 1, 2, 3]
    assert found[0].next_data_type is (DataType.DATA_BUFFER if num_polls_between else DataType.PRIORITIZED_EVENT_BUFFER)
    assert it.listener.priority_sequence_numbers == ([0, 1] if num_polls_between else [0])
    assert [entry[2] for entry in it.state.output] == [[1, 2], [1, 2]]


def test_hist_40521_a_priority_event_queues_behind_one_that_is_left() -> None:
    """A third priority event overtakes the data, but not the second one, which is left after the first was polled."""
    it = Reading()
    it.add(1)
    it.subpartition.add(unaligned_barrier(1))
    it.subpartition.add(unaligned_barrier(2))
    contents = [poll_content(it)[1]]
    it.subpartition.add(unaligned_barrier(3))

    contents += [poll_content(it)[1] for _ in range(3)]

    assert [content[11] for content in contents[:3]] == [1, 2, 3], "the checkpoints, in order"


def test_hist_8750_nothing_is_told_after_the_end_was_polled() -> None:
    """Of a late flush or buffer: no notification, nothing available, no sequence number."""
    it = Reading()
    it.add(5)
    it.subpartition.finish()
    drain(it.subpartition)
    it.listener.count = 0

    it.subpartition.flush()
    it.subpartition.add(event())
    it.subpartition.finish()

    assert (it.listener.count, it.view.availability(True), it.view.availability(False)) == (0, (False, 0), (False, 0))
    assert it.view.next_buffer() is None


def make(num_subpartitions: int = 2, directory: Path | None = None) -> tuple[NetworkBufferPool, ResultPartition]:
    network = NetworkBufferPool(32, SIZE)
    pool = network.create_buffer_pool(owner="map", num_required=num_subpartitions + 1, max_buffers=16)
    if directory is not None:
        return network, BoundedBlockingResultPartition(partition_id_of(), num_subpartitions, pool, "map", directory)
    return network, ResultPartition(partition_id_of(), num_subpartitions, pool, "map")


def complete(network: NetworkBufferPool) -> bool:
    network.destroy()
    return network.num_available == network.num_total


def test_hist_22424_memory_stays_while_its_producer_writes() -> None:
    """After all consumers left, the segment of the open builder is not given away before the builder is closed."""
    network, partition = make(1)
    view = partition.create_subpartition_view(0, RecordingListener())
    partition.emit_record(b"abc", 0)
    builder = present(partition._builders[0])

    view.release()
    in_use = num_in_use(partition.buffer_pool)
    partition.emit_record(b"def", 0)

    assert (in_use, builder.finish()) == (1, 6)
    partition.close()
    assert complete(network)


@pytest.mark.parametrize("is_broadcast", [False, True])
@pytest.mark.parametrize("end", ["release", "fail", "close", "readers"])
@pytest.mark.parametrize("is_blocking", [False, True])
def test_hist_23724_32541_half_filled_builders_are_closed(
    is_broadcast: bool, end: str, is_blocking: bool, tmp_path: Path
) -> None:
    """However the partition ended in the middle of a buffer, neither memory nor disk is missing."""
    network, partition = make(2, tmp_path if is_blocking else None)
    views = (
        [] if is_blocking else [partition.create_subpartition_view(index, RecordingListener()) for index in range(2)]
    )
    if is_broadcast:
        partition.broadcast_record(bytes(SIZE + 5))
    else:
        partition.emit_record(bytes(SIZE + 5), 0)
        partition.emit_record(b"abc", 1)

    match end:
        case "release":
            partition.release()
        case "fail":
            partition.fail(ValueError("boom"))
        case "readers":
            for view in views:
                view.release()
        case _:
            pass
    partition.close()

    for view in views:
        view.release()
    assert (partition.is_released, complete(network), list(tmp_path.iterdir())) == (True, True, [])


@pytest.mark.parametrize("by", ["manager", "shutdown", "partition"])
def test_hist_13371_a_partition_that_nobody_ever_reads_is_released(by: str) -> None:
    """By its name, if its consumer was never deployed; all its memory is free."""
    network, partition = make(2)
    manager = ResultPartitionManager()
    manager.register(partition)
    partition.emit_record(bytes(3 * SIZE), 0)
    partition.finish()
    partition.close()
    assert (len(manager), partition.is_released) == (1, False)

    match by:
        case "manager":
            manager.release(partition.partition_id, None)
        case "shutdown":
            manager.shutdown()
        case _:
            partition.release()

    assert (len(manager), partition.is_released, complete(network)) == (0, True, True)


# ---------------------------------------------------------------- nobody is called under a lock


class Strict:
    """Listener and channel state writer that want to be called without any lock, and then call back."""

    def __init__(self) -> None:
        self.view: ResultSubpartitionView | None = None
        self.num_calls = 0

    def notify_data_available(self) -> None:
        self.called()

    def notify_priority_event(self, sequence_number: int) -> None:
        self.called()

    def called(self) -> None:
        assert not CountedLock.num_held, "called under a lock"
        self.num_calls += 1
        if self.view is not None:
            self.view.availability(True)

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        raise AssertionError("a producer has no input")

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        self.called()
        data.end.add_done_callback(lambda: self.on_done(data))

    def on_done(self, data: InFlightData) -> None:
        self.called()
        for buffer in data.take():
            buffer.recycle()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Strict:
    CountedLock.count_from_here(monkeypatch)
    return Strict()


def drain_view(view: ResultSubpartitionView) -> None:
    while (found := view.next_buffer()) is not None:
        found.buffer.recycle()
        if found.buffer.data_type.is_blocking_upstream:
            view.resume_consumption()


@pytest.mark.parametrize("is_range", [False, True])
@pytest.mark.parametrize("end", ["finish", "release", "fail", "reader"])
def test_hist_28942_28785_nobody_is_called_under_a_lock(strict: Strict, end: str, is_range: bool) -> None:
    """Listeners, state writers, futures and release listeners, on every way that leads to them."""
    network, partition = make(2)
    manager = ResultPartitionManager()
    partition.set_channel_state_writer(strict)
    partition.add_release_listener(strict.called)
    assert manager.create_view_or_listen(partition.partition_id, 0, strict, strict.called) is None
    manager.register(partition)
    strict.view = view = manager.create_subpartition_view(
        partition.partition_id, 0, strict, last=1 if is_range else None
    )
    other = None if is_range else partition.create_subpartition_view(1, strict)

    steps: list[Callable[[], None]] = [
        lambda: partition.emit_record(bytes(2 * SIZE), 0),
        partition.flush_all,
        lambda: partition.broadcast_event(EndOfSuperstep()),
        lambda: partition.broadcast_event(CheckpointBarrier(1, 0, UNALIGNED), is_priority=True),
        lambda: partition.broadcast_event(CheckpointBarrier(3, 0, TIMEOUTABLE)),
        lambda: partition.broadcast_record(b"abc"),
        lambda: partition.broadcast_event(CheckpointBarrier(4, 0, TIMEOUTABLE)),
        lambda: partition.aligned_barrier_timeout(4),
        lambda: partition.notify_end_of_data(StopMode.DRAIN),
        view.acknowledge_all_data_processed,
    ]
    if not is_range:
        steps += [
            lambda: partition.broadcast_event(CheckpointBarrier(5, 0, TIMEOUTABLE)),
            lambda: partition.abort_checkpoint(5, ValueError("declined")),
            lambda: drain_view(view),
            lambda: partition.broadcast_event(CheckpointBarrier(6, 0)),
        ]
    for step in steps:
        step()
    before = strict.num_calls
    match end:
        case "finish":
            partition.finish()
        case "release":
            manager.release(partition.partition_id, None)
        case "fail":
            partition.fail(ValueError("boom"))
        case _:
            view.release()
    partition.close()

    assert strict.num_calls > before or end == "reader"
    for each in (view, other):
        if each is not None:
            each.release()
    assert complete(network)


@pytest.mark.parametrize("end", ["release", "reader"])
def test_hist_28942_28785_nobody_is_called_under_a_lock_of_a_blocking_partition(
    strict: Strict, end: str, tmp_path: Path
) -> None:
    """A blocking partition, in files, calls its listeners without a lock, too."""
    network, partition = make(1, tmp_path)
    partition.add_release_listener(strict.called)
    partition.emit_record(bytes(5 * SIZE), 0)
    partition.finish()
    partition.close()
    strict.view = view = partition.create_subpartition_view(0, strict)
    drain_view(view)

    if end == "release":
        partition.release()
    view.release()
    partition.release()

    assert strict.num_calls >= 2
    assert (complete(network), list(tmp_path.iterdir())) == (True, [])
