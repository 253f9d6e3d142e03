"""Barriers in a ``PipelinedSubpartition``: the data that they overtake at once, or after their timeout."""

import pytest

from netstack.buffer.buffer_builder import BufferConsumer, ContentConsumer
from netstack.buffer.network_buffer import FREEING_RECYCLER, MemorySegment
from netstack.errors import LocalProtocolError
from netstack.partition.channel_state import NO_CHANNEL_STATE, InFlightData, InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.wire.events import EndOfSuperstep, deserialize_event, event_data_type, serialize_event
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import (
    TIMEOUTABLE,
    Arena,
    Reading,
    RecordingParent,
    barrier,
    drain,
    event,
    next_one,
    recycled_sizes,
    unaligned_barrier,
)


def in_flight(it: Reading) -> list[tuple[int, str, list[int]]]:
    """Return checkpoint, state, and sizes of the buffers of each future."""
    found = []
    for checkpoint_id, data in it.state.futures:
        state = "pending" if not data.end.is_done else "done" if data.error is None else type(data.error).__name__
        found.append((checkpoint_id, state, recycled_sizes(data.take())))
    return found


# ---------------------------------------------------------------- what a barrier overtakes


def test_barrier_overtaking(it: Reading) -> None:
    """PipelinedSubpartitionWithReadViewTest.testBarrierOvertaking: sizes 1, 2, event, 4, then an unaligned barrier."""
    it.add(1)
    it.add(2)
    superstep = EndOfSuperstep()
    it.subpartition.add(BufferConsumer.of_event(serialize_event(superstep), event_data_type(superstep)))
    it.add(4)
    assert (it.listener.count, it.listener.priority_sequence_numbers) == (1, [])

    it.subpartition.add(unaligned_barrier(5))

    assert (it.listener.count, it.listener.priority_sequence_numbers) == (1, [0])
    assert it.state.output == [(5, (7, 3), [1, 2, 4])]
    assert next_one(it) == (34, True, 2, False)
    assert [next_one(it), next_one(it)] == [(1, True, 1, False), (2, True, 0, True)]
    assert [next_one(it), next_one(it), it.view.next_buffer()] == [(4, False, 0, False), (4, False, 0, False), None]


def test_a_priority_event_that_is_no_barrier_overtakes_without_snapshot(it: Reading) -> None:
    """PipelinedSubpartition.processPriorityBuffer: only barriers keep the data that they overtake."""
    it.add(10)
    it.add(10)

    it.subpartition.add(BufferConsumer.of_event(serialize_event(EndOfSuperstep()), DataType.PRIORITIZED_EVENT_BUFFER))

    assert (it.state.output, it.poll().buffer.size) == ([], 4)


@pytest.mark.parametrize(
    "wrong",
    [barrier(1, TIMEOUTABLE, has_priority=True), barrier(1, has_priority=True)],
    ids=["timeoutable with priority", "aligned with priority"],
)
def test_only_unaligned_barriers_have_priority(it: Reading, wrong: BufferConsumer) -> None:
    """PipelinedSubpartition.processPriorityBuffer: "Only unaligned checkpoints should be priority events"."""
    with pytest.raises(LocalProtocolError, match="cannot be sent as PRIORITIZED_EVENT_BUFFER"):
        it.subpartition.add(wrong)

    assert it.subpartition.num_queued_buffers == 0


def test_an_unused_state_writer_recycles() -> None:
    """Without unaligned checkpoints the overtaken data is recycled."""
    subpartition, arena = PipelinedSubpartition(0, RecordingParent()), Arena()
    for checkpoint_id in (1, 2):
        builder = arena.builder()
        subpartition.add(builder.create_buffer_consumer())
        builder.append_and_commit(b"abc")
        builder.close()
        subpartition.add(
            barrier(checkpoint_id, TIMEOUTABLE) if checkpoint_id == 1 else unaligned_barrier(checkpoint_id)
        )
    subpartition.aligned_barrier_timeout(1)

    subpartition.release()

    assert arena.num_out == 0


# ---------------------------------------------------------------- barriers that may time out


def test_consume_timeoutable_checkpoint_barrier_quickly(it: Reading) -> None:
    """testConsumeTimeoutableCheckpointBarrierQuickly: polled in time, nothing was in flight."""
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    before = in_flight(it)

    found = it.poll()
    it.subpartition.aligned_barrier_timeout(3)

    assert (found.buffer.data_type, found.next_data_type) == (
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
        DataType.NONE,
    )
    assert (before, in_flight(it), it.listener.priority_sequence_numbers) == (
        [(3, "pending", [])],
        [(3, "done", [])],
        [],
    )
    it.view.resume_consumption()


@pytest.mark.parametrize("num_buffers", [0, 1])
def test_timeout_aligned_to_unaligned_barrier(it: Reading, num_buffers: int) -> None:
    """After its timeout a barrier overtakes the data before it."""
    for _ in range(num_buffers):
        it.add(10)
    it.subpartition.add(barrier(3, TIMEOUTABLE))

    it.subpartition.aligned_barrier_timeout(3)

    assert in_flight(it) == [(3, "done", [10] * num_buffers)]
    assert it.listener.priority_sequence_numbers == [0]
    found = it.view.next_buffer()
    assert found is not None
    parsed = deserialize_event(found.buffer.view)
    found.buffer.recycle()
    assert "UNALIGNED" in str(parsed)
    assert (found.buffer.data_type, found.sequence_number) == (DataType.PRIORITIZED_EVENT_BUFFER, 0)
    assert [one.buffer.size for one in drain(it.subpartition)] == []
    assert [it.poll().buffer.size for _ in range(num_buffers)] == [10] * num_buffers


def test_timeout_aligned_barrier_between_buffers(it: Reading) -> None:
    """PipelinedSubpartitionTest.testTimeoutAlignedToUnalignedBarrier: what came behind it is not in flight."""
    it.add(10)
    it.subpartition.add(event())
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.add(20)

    it.subpartition.aligned_barrier_timeout(2)
    it.subpartition.aligned_barrier_timeout(3)
    it.subpartition.aligned_barrier_timeout(3)

    assert in_flight(it) == [(3, "done", [10])]
    assert [it.poll().buffer.size for _ in range(4)] == [34, 10, 4, 20]


def test_another_event_does_not_end_the_wait_for_a_barrier(it: Reading) -> None:
    """PipelinedSubpartition.completeTimeoutableCheckpointBarrier: only the poll of that very barrier does."""
    it.subpartition.add(event())
    it.subpartition.add(barrier(3, TIMEOUTABLE))
    it.poll()
    before = in_flight(it)
    it.poll()

    assert (before, in_flight(it)) == ([(3, "pending", [])], [(3, "done", [])])


class BrokenContent:
    """Records that cannot be made bytes."""

    size_bytes = 8

    def to_bytes(self) -> bytes:
        raise ValueError("no bytes")


def test_a_time_out_that_fails_leaves_its_barrier_waiting(it: Reading) -> None:
    """A user's record cannot be serialized: nothing was overtaken, and the end of the checkpoint ends the wait."""
    segment = MemorySegment(memoryview(bytearray(8)))
    it.subpartition.add(ContentConsumer(segment, FREEING_RECYCLER, BrokenContent()))
    it.subpartition.add(barrier(3, TIMEOUTABLE))

    with pytest.raises(ValueError, match="no bytes"):
        it.subpartition.aligned_barrier_timeout(3)

    assert (in_flight(it), it.subpartition.num_queued_buffers) == ([(3, "pending", [])], 2)
    it.subpartition.check_invariants()
    it.subpartition.abort_checkpoint(3, ValueError("declined"))
    assert in_flight(it) == [(3, "ValueError", [])]


def test_it_recycles_everything() -> None:
    """The buffers of inputs, of outputs, and of outputs that are known only later are recycled."""
    arena, known, later = Arena(), InFlightData(), InFlightData()
    builder = arena.builder(8)
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    builder.close()

    NO_CHANNEL_STATE.add_input_data(1, InputChannelInfo(0, 1), [consumer.build()])
    known.complete([consumer.build()])
    NO_CHANNEL_STATE.add_output_data(1, ResultSubpartitionInfo(0, 1), known)
    NO_CHANNEL_STATE.add_output_data(1, ResultSubpartitionInfo(0, 1), later)
    later.complete([consumer.build()])

    consumer.close()
    assert (arena.num_out, known.take(), later.take()) == (0, (), ())
