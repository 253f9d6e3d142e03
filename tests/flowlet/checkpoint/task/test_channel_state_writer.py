"""``InMemoryChannelStateWriter``: data in flight is kept until it is stored, and restored piece by piece.

Source: Flink ``ChannelStateWriterImplTest``, ``ChannelStateWriteRequestDispatcherTest``.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter, decode_channels, encode_channels
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, SubtaskState
from flowlet.checkpoint.task.state_codec import encode_state
from flowlet.errors import StateRestoreError
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import BufferOwnershipError
from netstack.partition.channel_state import InFlightData, InputChannelInfo, ResultSubpartitionInfo
from netstack.wire.messages import DataType
from tests.waiting import PATIENCE_S

ABORTED = CheckpointError(1, CheckpointFailureReason.ABORTED_BY_NOTIFICATION)
INPUT, OTHER_INPUT = InputChannelInfo(0, 1), InputChannelInfo(2, 0)
OUTPUT = ResultSubpartitionInfo(0, 3)


Make = Callable[[bytes], NetworkBuffer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes buffers; at the end all of them must have been recycled."""
    made: list[NetworkBuffer] = []

    def make_one(data: bytes) -> NetworkBuffer:
        made.append(NetworkBuffer.unpooled(data, DataType.DATA_BUFFER))
        return made[-1]

    yield make_one
    for buffer in made:
        with pytest.raises(BufferOwnershipError):
            buffer.retain()


@pytest.fixture
def writer() -> InMemoryChannelStateWriter:
    """A writer with which checkpoint 1 has started."""
    made = InMemoryChannelStateWriter()
    made.start(1)
    return made


def add_output(writer: InMemoryChannelStateWriter, checkpoint_id: int, *items: NetworkBuffer) -> None:
    data = InFlightData()
    data.complete(items)
    writer.add_output_data(checkpoint_id, OUTPUT, data)


def finish(writer: InMemoryChannelStateWriter) -> None:
    writer.finish_input(1)
    writer.finish_output(1)


def reason_of(result: Future[ChannelStateSnapshot]) -> CheckpointFailureReason:
    """Return why the channel state failed."""
    error = result.exception(0)
    assert isinstance(error, CheckpointError)
    return error.reason


def test_data_is_kept_by_channel_in_its_order(writer: InMemoryChannelStateWriter, make: Make) -> None:
    result = writer.take_result(1)

    writer.add_input_data(1, INPUT, [make(b"a"), make(b"b")])
    writer.add_input_data(1, OTHER_INPUT, [make(b"x")])
    add_output(writer, 1, make(b"out"))
    writer.add_input_data(1, INPUT, [make(b"c")])
    writer.finish_output(1)
    assert not result.done()
    writer.finish_input(1)

    snapshot = result.result(0)
    assert snapshot.inputs == {INPUT: (b"a", b"b", b"c"), OTHER_INPUT: (b"x",)}
    assert snapshot.outputs == {OUTPUT: (b"out",)}
    assert snapshot.num_bytes == 7
    assert writer.open_checkpoints == []


def test_the_result_may_be_taken_after_everything_is_here(writer: InMemoryChannelStateWriter) -> None:
    finish(writer)

    assert writer.take_result(1).result(0).num_bytes == 0
    with pytest.raises(CheckpointError, match="taken"):
        writer.take_result(1)


def test_what_is_not_open_is_recycled_and_forgotten(make: Make) -> None:
    """Data that is added before the start, after the end of the part, or after an abort is not kept."""
    writer = InMemoryChannelStateWriter()
    writer.add_input_data(1, INPUT, [make(b"early")])
    writer.start(1)
    writer.finish_input(1)
    writer.add_input_data(1, INPUT, [make(b"late")])
    writer.finish_output(1)
    add_output(writer, 1, make(b"late"))
    writer.start(2)
    writer.abort(2, ABORTED)
    add_output(writer, 2, make(b"late"))

    assert writer.take_result(1).result(0).num_bytes == 0


def test_an_abort_fails_whoever_waits_and_closes_the_id(writer: InMemoryChannelStateWriter) -> None:
    result = writer.take_result(1)

    writer.abort(1, ABORTED)

    assert result.exception(0) is ABORTED
    with pytest.raises(CheckpointError, match="started or aborted before"):
        writer.start(1)


def test_an_abort_may_come_before_the_start(writer: InMemoryChannelStateWriter) -> None:
    """An abort that is reported before the start applies to its checkpoint id only; an older one may still start."""
    writer.abort(5, ABORTED)

    with pytest.raises(CheckpointError):
        writer.start(5)
    writer.start(4)


def test_a_newer_checkpoint_fails_the_older_ones(writer: InMemoryChannelStateWriter, make: Make) -> None:
    result = writer.take_result(1)
    writer.add_input_data(1, INPUT, [make(b"a")])

    writer.start(2)

    assert reason_of(result) is CheckpointFailureReason.SUBSUMED
    with pytest.raises(CheckpointError):
        writer.start(1)
    assert writer.open_checkpoints == [2]


def test_a_checkpoint_that_is_complete_is_not_failed_by_a_newer_one(writer: InMemoryChannelStateWriter) -> None:
    finish(writer)

    writer.start(2)

    assert writer.take_result(1).exception(0) is None


def test_data_that_is_not_known_yet_is_waited_for(writer: InMemoryChannelStateWriter, make: Make) -> None:
    """The data that a barrier with a timeout overtakes is known when the barrier is consumed, or not at all."""
    result = writer.take_result(1)
    first, second = InFlightData(), InFlightData()
    writer.add_output_data(1, OUTPUT, first)
    writer.add_output_data(1, ResultSubpartitionInfo(0, 4), second)
    finish(writer)

    first.complete([make(b"late")])
    assert not result.done()
    second.complete([])

    assert result.result(0).outputs == {OUTPUT: (b"late",)}


def test_data_that_fails_fails_the_checkpoint(writer: InMemoryChannelStateWriter) -> None:
    result, data = writer.take_result(1), InFlightData()
    writer.add_output_data(1, OUTPUT, data)

    data.complete((), RuntimeError("the partition was released"))

    assert reason_of(result) is CheckpointFailureReason.CHANNEL_STATE_FAILED
    assert "the partition was released" in str(result.exception(0))


def test_futures_of_checkpoints_that_are_gone_are_recycled(writer: InMemoryChannelStateWriter, make: Make) -> None:
    """The checkpoint may have been aborted meanwhile, or never opened."""
    pending, unknown = InFlightData(), InFlightData()
    writer.add_output_data(1, OUTPUT, pending)
    writer.add_output_data(9, OUTPUT, unknown)
    writer.abort(1, ABORTED)

    pending.complete([make(b"a")])
    unknown.complete([make(b"b")])

    assert writer.open_checkpoints == []


def test_the_close_fails_what_is_open(writer: InMemoryChannelStateWriter) -> None:
    result = writer.take_result(1)

    writer.close()
    writer.close()

    assert reason_of(result) is CheckpointFailureReason.TASK_CLOSING
    with pytest.raises(CheckpointError):
        writer.start(2)


def test_many_threads_may_add_while_a_checkpoint_is_aborted(writer: InMemoryChannelStateWriter, make: Make) -> None:
    """Each buffer is recycled once, none is lost, and one result is delivered."""
    result = writer.take_result(1)
    made = [[make(b"x") for _ in range(200)] for _ in range(4)]
    start = threading.Barrier(5)

    def add(items: list[NetworkBuffer]) -> None:
        start.wait(PATIENCE_S)
        for item in items:
            writer.add_input_data(1, INPUT, [item])

    threads = [threading.Thread(target=add, args=(items,)) for items in made]
    for thread in threads:
        thread.start()
    start.wait(PATIENCE_S)
    writer.abort(1, ABORTED)
    for thread in threads:
        thread.join(PATIENCE_S)

    assert result.exception(0) is ABORTED


# ---------------------------------------------------------------- stored

WHOLE = ChannelStateSnapshot({(0, 1): (b"in", b"", b"put"), (1, 0): (b"x",)}, {(2, 3): (b"o", b"ut")})


@pytest.mark.parametrize(
    "channels",
    [WHOLE, ChannelStateSnapshot(), ChannelStateSnapshot({(0, 0): ()})],
    ids=["inputs and outputs", "nothing", "a channel without pieces"],
)
def test_all_pieces_come_back(channels: ChannelStateSnapshot) -> None:
    assert decode_channels(encode_channels(channels)) == channels


@pytest.mark.parametrize("size", range(len(encode_channels(WHOLE))))
def test_what_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(StateRestoreError, match="restore another checkpoint"):
        decode_channels(encode_channels(WHOLE)[:size])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encode_channels(WHOLE) + b"x", "bytes instead of"),
        (encode_state(SubtaskState()), "are no data in flight"),
        (b"FLCH\x00\x09" + bytes(4), "format version 9, this flowlet reads 1"),
        (b"FLCH\x00\x01\x00\x00\x00\x01\xc1", "the head of the data in flight cannot be read"),
    ],
    ids=["more behind the end", "a state", "another version", "a broken head"],
)
def test_what_is_something_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        decode_channels(content)
