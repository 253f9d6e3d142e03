"""``GateChannels``: set-up, requests, channels whose producer becomes known, and orders to the producers."""

from collections.abc import Callable
from functools import partial

import pytest

from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectError, LocalProtocolError, RemoteProtocolError, ResourceClosedError, TransportError
from netstack.gate.channels.input_channel import InputChannel, ProducerState, RequestBackoff
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ResultPartitionID, input_channel_id
from netstack.partition.channel_state import DecompressedInput, InputChannelInfo
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import CheckpointBarrier, EndOfPartition, Event, OtherEvent, serialize_event
from netstack.wire.messages import DataType
from tests.netstack.gate.doubles import RecordingClient, data, remote_channel
from tests.netstack.gate.manual_timers import ManualTimers
from tests.netstack.gate.remote_gate import SEGMENT, UNALIGNED, RemoteGate
from tests.netstack.gate.state_writer import RecordingStateWriter
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.threads import run_together


def test_setup_takes_the_exclusive_buffers_of_every_channel() -> None:
    """testRequestBuffersWithRemoteInputChannel: 2 each, 8 floating ones for both, and all of them back at the end."""
    network, client = NetworkBufferPool(16, SEGMENT), RecordingClient()
    gate = SingleInputGate("reduce")
    for index in range(2):
        gate.add_channel(remote_channel(gate, client, network, index=index, num_segments=2, is_requested=False))
    pool = network.create_buffer_pool(owner="gate", num_required=1, max_buffers=8)
    gate.set_buffer_pool(pool)

    assert (network.num_available + pool.num_available, pool.num_buffers) == (12, 8)
    gate.close()
    assert (network.num_available, pool.is_destroyed) == (16, True)
    network.destroy()


def unknown(gate: SingleInputGate, index: int) -> UnknownInputChannel:
    return UnknownInputChannel(gate, index, partition_id_of(index), 0)


def test_an_unknown_channel_is_replaced_before_the_request() -> None:
    """testUpdateInputChannel, testUpdateUnknownInputChannel: the request then goes to the new one, once."""
    it = RemoteGate(1)
    it.gate.add_channel(unknown(it.gate, 1))

    is_taken = it.gate.update_channel(it.remote(1))
    is_taken_again = it.gate.update_channel(it.remote(1))
    it.gate.request_partitions()

    assert (is_taken, is_taken_again, it.client.orders) == (True, False, [("request", 0), ("request", 1)])


def test_an_unknown_channel_is_replaced_after_the_request() -> None:
    """SingleInputGateTest: testUpdateInputChannel: remote and local; each is requested at once, and read."""
    it = RemoteGate(0)
    partition = it.partition(1)
    it.partitions.append(partition)
    it.manager.register(partition)
    for index in range(3):
        it.gate.add_channel(unknown(it.gate, index))
    it.gate.request_partitions()

    it.gate.update_channel(it.remote(0))
    it.gate.update_channel(LocalInputChannel(it.gate, 1, partition.partition_id, 0, it.manager))
    it.receive(0)
    partition.emit_record(b"local", 0)
    partition.flush_all()

    assert [it.poll().channel_index for _ in range(2)] == [0, 1]
    assert [row.kind for row in it.gate.channel_statistics()] == ["remote", "local", "unknown"]
    partition.finish()


def test_an_update_gives_the_new_channel_the_floating_buffers() -> None:
    """The new channel lives on floating buffers if it has no exclusive ones."""
    it = RemoteGate(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=2, max_buffers=2))
    it.gate.request_partitions()
    channel = it.remote(0, num_segments=0)

    it.gate.update_channel(channel)
    channel.on_sender_backlog(5)

    assert channel.buffer_manager.num_unannounced == 2
    with pytest.raises(LocalProtocolError, match="has its floating buffers already"):
        it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=1, max_buffers=1))


def test_an_update_after_the_close_is_released() -> None:
    """An update during or after the close recycles the buffers of the new channel."""
    it = RemoteGate(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.request_partitions()
    in_the_middle = it.remote(0)
    original = in_the_middle.request_subpartition

    def close_first() -> None:
        it.gate.close()
        original()

    in_the_middle.request_subpartition = close_first  # type: ignore[method-assign]  # a forced interleaving

    is_taken = it.gate.update_channel(in_the_middle)
    late = it.remote(0)
    is_late_taken = it.gate.update_channel(late)

    assert (is_taken, in_the_middle.is_released, is_late_taken, late.is_released) == (True, True, False, True)


def test_hist_1496_events_for_unknown_producers_are_kept() -> None:
    """testBackwardsEventWithUninitializedChannel: known ones get it now, the others once they are known."""
    it = RemoteGate(1)
    it.gate.add_channel(unknown(it.gate, 1))
    it.gate.add_channel(unknown(it.gate, 2))
    it.gate.request_partitions()
    events: list[Event] = [OtherEvent("first", b""), OtherEvent("second", b"")]

    for one in events:
        it.gate.send_task_event(one)
    sent_before = list(it.client.orders)
    it.gate.update_channel(it.remote(1))
    it.gate.send_task_event(OtherEvent("third", b""))
    it.gate.update_channel(it.remote(2))
    count = [sum(order == ("task event", index) for order in it.client.orders) for index in range(3)]

    assert sent_before == [("request", 0), ("task event", 0), ("task event", 0)]
    assert count == [3, 3, 3]
    assert it.client.task_events[-3:] == [serialize_event(one) for one in (*events, OtherEvent("third", b""))]


def test_events_that_are_sent_while_a_channel_starts_come_after_its_request_and_in_order() -> None:
    """The task sends one before the channel is requested, and one while the kept ones are brought to it."""
    it = RemoteGate(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.request_partitions()
    events = [OtherEvent(name, b"") for name in ("kept", "before the request", "while it is told")]
    it.gate.send_task_event(events[0])
    channel = it.remote(0)
    request, send = channel.request_subpartition, channel.send_task_event

    def request_late() -> None:
        it.gate.announce_buffer_size(100)  # of the producers that were requested
        it.gate.send_task_event(events[1])
        request()

    def send_slowly(event: Event) -> None:
        if event == events[0]:
            it.gate.send_task_event(events[2])
        send(event)

    channel.request_subpartition = request_late  # type: ignore[method-assign]  # forced interleavings
    channel.send_task_event = send_slowly  # type: ignore[method-assign]
    it.gate.update_channel(channel)
    it.gate.send_task_event(OtherEvent("afterwards", b""))

    assert it.client.orders == [("request", 0)] + 4 * [("task event", 0)]
    assert it.client.task_events == [serialize_event(one) for one in (*events, OtherEvent("afterwards", b""))]


def test_an_event_for_an_unknown_producer_waits_for_the_request() -> None:
    """The producer becomes known before the gate is requested."""
    it = RemoteGate(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.send_task_event(OtherEvent("x", b""))
    it.gate.update_channel(it.remote(0))
    it.gate.request_partitions()

    assert it.client.orders == [("request", 0), ("task event", 0)]


def test_a_channel_that_ends_as_it_starts_needs_no_events() -> None:
    it = RemoteGate(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.request_partitions()
    it.gate.send_task_event(OtherEvent("x", b""))
    channel = it.remote(0)
    channel.request_subpartition = channel.release  # type: ignore[method-assign]  # a forced interleaving

    assert it.gate.update_channel(channel)
    assert ("task event", 0) not in it.client.orders


@pytest.mark.slow
def test_hist_10747_19391_an_update_races_with_the_request_and_the_poll(tiny_switch_interval: None) -> None:
    """In every order the new channel is requested exactly once, and no thread waits for the lock of another."""
    for _ in range(150):
        it = RemoteGate(1)
        it.gate.add_channel(unknown(it.gate, 1))
        channel = it.remote(1)

        def poll(it: RemoteGate = it) -> None:
            for _ in range(20):
                it.gate.poll_next()

        run_together(it.gate.request_partitions, partial(it.gate.update_channel, channel), poll)

        assert sorted(it.client.orders) == [("request", 0), ("request", 1)]
        it.close()


def test_a_request_is_retriggered_by_its_partition() -> None:
    """testRequestBackoffConfiguration, F18: the one channel that reads it; nothing after the close."""
    it = RemoteGate(0)
    channels = [
        RemoteInputChannel(
            it.gate,
            index,
            partition_id_of(index),
            0,
            input_channel_id(index, 0),
            it.client,
            backoff=RequestBackoff(300, 100),
        )
        for index in range(2)
    ]
    for channel in channels:
        channel.assign_exclusive_segments(it.network, 1)
        it.gate.add_channel(channel)
    it.gate.request_partitions()

    it.gate.retrigger_partition_request(partition_id_of(1), 0)
    it.gate.retrigger_partition_request(partition_id_of(1), 5)
    it.gate.retrigger_partition_request(partition_id_of(9), 0)
    it.gate.close()
    it.gate.retrigger_partition_request(partition_id_of(0), 0)

    requests = [order for order in it.client.orders if order[0] == "request"]
    assert requests == [("request", 0), ("request", 1), ("request", 1)]


@pytest.mark.parametrize(
    ("raised", "expected"), [(OSError("nobody there"), TransportError), (ConnectError("nobody there"), ConnectError)]
)
def test_a_check_of_the_producer_that_fails_is_the_error_of_the_channel(
    raised: Exception, expected: type[Exception]
) -> None:
    """The thread that finds the partition missing is a timer's or the loop's, which would only log it."""

    class FailingChecker:
        def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
            raise raised

    gate = SingleInputGate("reduce (1/2)", state_checker=FailingChecker())
    timers = ManualTimers()
    manager = ResultPartitionManager(timers=timers)
    gate.add_channel(LocalInputChannel(gate, 0, partition_id_of(), 0, manager, wait_timeout_ms=10))
    gate.request_partitions()

    timers.ring()

    with pytest.raises(expected, match="nobody there"):
        gate.poll_next()
    gate.close()
    manager.shutdown()


def test_orders_go_to_their_channel(it: RemoteGate) -> None:
    """Resumptions and acknowledgements go to one channel, buffer sizes and task events to all."""
    it.gate.resume_consumption(1)
    it.gate.acknowledge_all_records_processed(0)
    it.gate.announce_buffer_size(300)
    it.gate.send_task_event(OtherEvent("x", b""))

    assert it.client.orders[2:] == [
        ("resume", 1),
        ("acknowledge", 0),
        ("size", 0),
        ("size", 1),
        ("task event", 0),
        ("task event", 1),
    ]
    it.gate.close()
    with pytest.raises(ResourceClosedError, match="was closed"):
        it.gate.resume_consumption(1)
    with pytest.raises(ResourceClosedError, match="was closed"):
        it.gate.send_task_event(OtherEvent("x", b""))


def test_hist_24738_ended_channels_hear_of_no_buffer_size(it: RemoteGate) -> None:
    """A channel that ended before, or just now, gets no buffer size; the others do."""
    it.receive_event(0, EndOfPartition())
    it.poll()
    it.gate.announce_buffer_size(300)
    channel = it.gate.channels[1]
    original = channel.announce_buffer_size

    def release_first(size_bytes: int) -> None:
        channel.release()
        original(size_bytes)

    channel.announce_buffer_size = release_first  # type: ignore[method-assign]  # a forced interleaving
    it.gate.announce_buffer_size(400)

    assert it.client.sizes == [300]


def watch(channel: InputChannel, calls: list[tuple[str, int, object]]) -> None:
    def started(barrier: CheckpointBarrier) -> None:
        calls.append(("started", channel.index, barrier))

    def stopped(checkpoint_id: int) -> None:
        calls.append(("stopped", channel.index, checkpoint_id))

    channel.checkpoint_started = started  # type: ignore[method-assign]  # a recorder
    channel.checkpoint_stopped = stopped  # type: ignore[method-assign]  # a recorder


def test_checkpoints_reach_every_channel(it: RemoteGate) -> None:
    """Start and stop of a checkpoint reach every channel."""
    calls: list[tuple[str, int, object]] = []
    for channel in it.gate.channels:
        watch(channel, calls)

    it.gate.checkpoint_started(UNALIGNED)
    it.gate.checkpoint_stopped(1)

    assert calls == [("started", 0, UNALIGNED), ("started", 1, UNALIGNED), ("stopped", 0, 1), ("stopped", 1, 1)]


# ---------------------------------------------------------------- what channels keep for unaligned checkpoints


def test_every_channel_keeps_its_data_under_gate_and_index() -> None:
    """Old channels, later ones, and those that replace an unknown channel all keep their data under gate and index."""
    gate, client, network, writer = (
        SingleInputGate("task"),
        RecordingClient(),
        NetworkBufferPool(8, 64),
        RecordingStateWriter(),
    )
    gate.add_channel(UnknownInputChannel(gate, 0, partition_id_of(), 0))
    early = remote_channel(gate, client, network, index=1, is_requested=False)
    late = remote_channel(gate, client, network, index=2, is_requested=False)
    replacing = remote_channel(gate, client, network, index=0, is_requested=False)

    gate.add_channel(early)
    gate.set_channel_state_writer(writer, 5)
    gate.add_channel(late)
    assert gate.update_channel(replacing)
    gate.request_partitions()
    for channel in (replacing, early, late):
        channel.checkpoint_started(UNALIGNED)
        channel.on_response(data(channel, 0))

    assert writer.persisted == [(1, InputChannelInfo(5, index), [4]) for index in range(3)]
    writer.recycle()
    gate.close()
    assert network.num_available == network.num_total


def test_after_the_request_it_is_too_late() -> None:
    """A writer is refused after the request, since data in flight might not be kept."""
    gate = SingleInputGate("task")
    gate.request_partitions()

    with pytest.raises(LocalProtocolError, match="before the request"):
        gate.set_channel_state_writer(RecordingStateWriter(), 0)


def test_data_in_flight_is_kept_as_it_was_before_its_compression() -> None:
    """A compressed buffer is persisted decompressed; a buffer that was not compressed is persisted as it is."""
    compressor, writer, network = BufferCompressor(), RecordingStateWriter(), NetworkBufferPool(8, 64)
    gate = SingleInputGate("task", decompressor=BufferDecompressor(1000))
    channel = remote_channel(gate, RecordingClient(), network, is_requested=False)
    gate.add_channel(channel)
    gate.set_channel_state_writer(writer, 0)
    gate.request_partitions()
    compressed = compressor.compress(NetworkBuffer.unpooled(b"a" * 500, DataType.DATA_BUFFER))
    assert compressed.is_compressed

    channel.checkpoint_started(UNALIGNED)
    channel.on_buffer(compressed, 0, 0)
    channel.on_buffer(NetworkBuffer.unpooled(b"b", DataType.DATA_BUFFER), 1, 0)

    assert [bytes(buffer.view) for buffer in writer.kept] == [b"a" * 500, b"b"]
    writer.recycle()
    gate.close()


def test_a_broken_buffer_is_an_error_that_leaks_nothing() -> None:
    """All buffers of the failed call are recycled, and none is written."""
    writer, network = RecordingStateWriter(), NetworkBufferPool(4, 64)
    pool = network.create_buffer_pool(owner="test", num_required=1, max_buffers=4)
    buffers = []
    for is_compressed in (False, True, False):
        segment = pool.request_segment_nowait()
        assert segment is not None
        buffers.append(NetworkBuffer(segment, pool, 3, DataType.DATA_BUFFER, is_compressed=is_compressed))

    with pytest.raises(RemoteProtocolError, match="no header"):
        DecompressedInput(writer, BufferDecompressor(64).decompress).add_input_data(1, InputChannelInfo(0, 0), buffers)

    assert writer.kept == []
    pool.destroy()
    assert network.num_available == 4
