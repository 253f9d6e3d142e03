"""``InMemoryChannelStateWriter``.

Source: Flink ``ChannelStateWriterImplTest``, ``ChannelStateWriteRequestDispatcherTest``.
"""

import threading
from collections.abc import Iterator

import pytest

from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import BufferOwnershipError
from netstack.partition.channel_state import (
    InFlightData,
    InputChannelInfo,
    ResultSubpartitionInfo,
)
from netstack.wire.messages import DataType
from tests.waiting import PATIENCE_S

ABORTED = CheckpointError(1, CheckpointFailureReason.ABORTED_BY_NOTIFICATION)
INPUT, OTHER_INPUT = InputChannelInfo(0, 1), InputChannelInfo(2, 0)
OUTPUT = ResultSubpartitionInfo(0, 3)


class Buffers:
    """Makes buffers; at the end all of them must have been recycled."""

    def __init__(self) -> None:
        self._made: list[NetworkBuffer] = []

    def make(self, data: bytes) -> NetworkBuffer:
        buffer = NetworkBuffer.unpooled(data, DataType.DATA_BUFFER)
        self._made.append(buffer)
        return buffer

    def check(self) -> None:
        for buffer in self._made:
            with pytest.raises(BufferOwnershipError):
                buffer.retain()


@pytest.fixture
def buffers() -> Iterator[Buffers]:
    found = Buffers()
    yield found
    found.check()


def add_input(
    writer: InMemoryChannelStateWriter, checkpoint_id: int, channel: InputChannelInfo, *items: NetworkBuffer
) -> None:
    writer.add_input_data(checkpoint_id, channel, items)


def add_output(writer: InMemoryChannelStateWriter, checkpoint_id: int, *items: NetworkBuffer) -> None:
    data = InFlightData()
    data.complete(items)
    writer.add_output_data(checkpoint_id, OUTPUT, data)


def test_data_is_kept_by_channel_in_its_order(buffers: Buffers) -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)

    add_input(writer, 1, INPUT, buffers.make(b"a"), buffers.make(b"b"))
    add_input(writer, 1, OTHER_INPUT, buffers.make(b"x"))
    add_output(writer, 1, buffers.make(b"out"))
    add_input(writer, 1, INPUT, buffers.make(b"c"))
    writer.finish_output(1)
    assert not result.done()
    writer.finish_input(1)

    snapshot = result.result(0)
    assert snapshot.inputs == {INPUT: (b"a", b"b", b"c"), OTHER_INPUT: (b"x",)}
    assert snapshot.outputs == {OUTPUT: (b"out",)}
    assert snapshot.num_bytes == 7
    assert writer.open_checkpoints == []


def test_the_result_may_be_taken_after_everything_is_here() -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    writer.finish_input(1)
    writer.finish_output(1)

    assert writer.take_result(1).result(0).num_bytes == 0
    with pytest.raises(CheckpointError, match="taken"):
        writer.take_result(1)


def test_what_is_not_open_is_recycled_and_forgotten(buffers: Buffers) -> None:
    """Data that is added before the start, after the end of the part, or after an abort is not kept."""
    writer = InMemoryChannelStateWriter()
    add_input(writer, 1, INPUT, buffers.make(b"early"))
    writer.start(1)
    writer.finish_input(1)
    add_input(writer, 1, INPUT, buffers.make(b"late"))
    writer.finish_output(1)
    add_output(writer, 1, buffers.make(b"late"))
    writer.start(2)
    writer.abort(2, ABORTED)
    add_output(writer, 2, buffers.make(b"late"))

    assert writer.take_result(1).result(0).num_bytes == 0


def test_an_abort_fails_whoever_waits_and_closes_the_id() -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)

    writer.abort(1, ABORTED)

    assert result.exception(0) is ABORTED
    with pytest.raises(CheckpointError, match="started or aborted before"):
        writer.start(1)


def test_an_abort_may_come_before_the_start() -> None:
    """An abort that is reported before the start applies to its checkpoint id only; an older one may still start."""
    writer = InMemoryChannelStateWriter()
    writer.abort(5, ABORTED)

    with pytest.raises(CheckpointError):
        writer.start(5)
    writer.start(4)


def test_a_newer_checkpoint_fails_the_older_ones(buffers: Buffers) -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)
    add_input(writer, 1, INPUT, buffers.make(b"a"))

    writer.start(2)

    error = result.exception(0)
    assert isinstance(error, CheckpointError)
    assert error.reason is CheckpointFailureReason.SUBSUMED
    with pytest.raises(CheckpointError):
        writer.start(1)
    assert writer.open_checkpoints == [2]


def test_a_checkpoint_that_is_complete_is_not_failed_by_a_newer_one() -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    writer.finish_input(1)
    writer.finish_output(1)

    writer.start(2)

    assert writer.take_result(1).exception(0) is None


def test_data_that_is_not_known_yet_is_waited_for(buffers: Buffers) -> None:
    """The data that a barrier with a timeout overtakes is known when the barrier is consumed, or not at all."""
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)
    first, second = InFlightData(), InFlightData()
    writer.add_output_data(1, OUTPUT, first)
    writer.add_output_data(1, ResultSubpartitionInfo(0, 4), second)
    writer.finish_input(1)
    writer.finish_output(1)

    first.complete([buffers.make(b"late")])
    assert not result.done()
    second.complete([])

    assert result.result(0).outputs == {OUTPUT: (b"late",)}


def test_data_that_fails_fails_the_checkpoint() -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)
    data = InFlightData()
    writer.add_output_data(1, OUTPUT, data)

    data.complete((), RuntimeError("the partition was released"))

    error = result.exception(0)
    assert isinstance(error, CheckpointError)
    assert error.reason is CheckpointFailureReason.CHANNEL_STATE_FAILED
    assert "the partition was released" in str(error)


def test_futures_of_checkpoints_that_are_gone_are_recycled(buffers: Buffers) -> None:
    """The checkpoint may have been aborted meanwhile, or never opened."""
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    pending, unknown = InFlightData(), InFlightData()
    writer.add_output_data(1, OUTPUT, pending)
    writer.add_output_data(9, OUTPUT, unknown)
    writer.abort(1, ABORTED)

    pending.complete([buffers.make(b"a")])
    unknown.complete([buffers.make(b"b")])

    assert writer.open_checkpoints == []


def test_the_close_fails_what_is_open() -> None:
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)

    writer.close()
    writer.close()

    error = result.exception(0)
    assert isinstance(error, CheckpointError)
    assert error.reason is CheckpointFailureReason.TASK_CLOSING
    with pytest.raises(CheckpointError):
        writer.start(2)


def test_many_threads_may_add_while_a_checkpoint_is_aborted(buffers: Buffers) -> None:
    """Each buffer is recycled once, none is lost, and one result is delivered."""
    writer = InMemoryChannelStateWriter()
    writer.start(1)
    result = writer.take_result(1)
    made = [[buffers.make(b"x") for _ in range(200)] for _ in range(4)]
    start = threading.Barrier(5)

    def add(items: list[NetworkBuffer]) -> None:
        start.wait(PATIENCE_S)
        for item in items:
            add_input(writer, 1, INPUT, item)

    threads = [threading.Thread(target=add, args=(items,)) for items in made]
    for thread in threads:
        thread.start()
    start.wait(PATIENCE_S)
    writer.abort(1, ABORTED)
    for thread in threads:
        thread.join(PATIENCE_S)

    assert result.exception(0) is ABORTED
