"""The scenarios of Flink's ``PartitionRequestQueueTest``, over views that say what the test wants."""

from collections.abc import Iterator

import pytest

from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.partition.result_subpartition_view import BufferAndBacklog
from netstack.wire.codec import encode
from netstack.wire.decoder import FrameDecoder
from netstack.wire.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    ResumeConsumption,
    SegmentId,
)
from tests.netstack.handlers.doubles import (
    BARRIER,
    DATA,
    EVENT,
    NONE,
    NUM_BLOCKING_BYTES,
    EmptyAlwaysAvailableView,
    ScriptedView,
    block,
    is_queued,
    notify,
    open_reader,
    unblock,
)
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, receiver_of, request


@pytest.fixture
def server() -> Iterator[ServerSide]:
    side = ServerSide()
    yield side
    side.close()


def kinds(server: ServerSide) -> list[DataType]:
    """What was sent, which must be buffers only."""
    sent = server.sent()
    assert all(isinstance(each, BufferResponse) for each in sent), sent
    return [each.data_type for each in sent if isinstance(each, BufferResponse)]


def test_partition_request_timeout(server: ServerSide) -> None:
    """PartitionRequestQueueTest: notify reader partition timeout.  The receiver is told that the partition was not found."""
    server.receive(request(receiver=5, credit=10))

    server.loop.advance(CONFIG.partition_request_timeout_s)

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, receiver_of(5))


def test_notify_reader_non_empty_on_empty_readers(server: ServerSide) -> None:
    """PartitionRequestQueueTest: an empty reader in front of a full one; when the socket opens both are drained, once."""
    empty = open_reader(server, EmptyAlwaysAvailableView(), receiver=1, credit=10)
    full = open_reader(server, ScriptedView(*[DATA] * 5), receiver=2, credit=10)
    block(server)

    for reader in (empty, empty, full, full):
        notify(server, reader)
    assert is_queued(server, 1)
    assert is_queued(server, 2)
    unblock(server)

    assert server.data() == [(2, number) for number in range(5)]
    assert not is_queued(server, 1)


class ReadOnlyView(ScriptedView):
    """Hands out buffers over memory that nobody may write."""

    def next_buffer(self) -> BufferAndBacklog | None:
        self.elements.popleft()
        self.num_out += 1
        segment = MemorySegment(memoryview(bytes(range(10))))
        return BufferAndBacklog(NetworkBuffer(segment, self, 10, DATA), 0, NONE, 0)


@pytest.mark.parametrize("kind", [ScriptedView, ReadOnlyView])
def test_buffer_writing(server: ServerSide, kind: type[ScriptedView]) -> None:
    """PartitionRequestQueueTest: default and read-only buffers.  One buffer is one response, and comes home."""
    view = kind(DATA)

    notify(server, open_reader(server, view, credit=2**31 - 1))

    assert server.data() == [(1, 0)]
    assert view.num_out == 0


def test_enqueue_reader_by_notifying_event_buffer(server: ServerSide) -> None:
    """PartitionRequestQueueTest: the next element is an event: the reader is queued and sends it, without any credit."""
    reader = open_reader(server, ScriptedView(EVENT, DATA), credit=0)
    block(server)

    notify(server, reader)
    was_queued = is_queued(server)
    unblock(server)

    assert was_queued
    assert not is_queued(server)
    assert reader.credit.available == 0
    assert kinds(server) == [EVENT]


def test_enqueue_reader_by_notifying_buffer_and_credit(server: ServerSide) -> None:
    """PartitionRequestQueueTest: five notifications without credit queue nothing; three credits are exactly three responses."""
    view = ScriptedView(*[DATA] * 10)
    reader = open_reader(server, view, credit=2)
    reader.credit.reset()
    block(server)

    for _ in range(5):
        notify(server, reader)
    assert not is_queued(server)
    for number in range(1, 4):
        server.receive(AddCredit(receiver_of(1), 1))
        assert is_queued(server)
        assert reader.credit.available == number
    assert len(view.elements) == 10
    unblock(server)

    assert not is_queued(server)
    assert reader.credit.available == 0
    assert kinds(server) == [DATA] * 3
    assert len(view.elements) == 7


def test_enqueue_reader_by_resuming_consumption(server: ServerSide) -> None:
    """PartitionRequestQueueTest: behind a barrier nothing is sent until the receiver resumes; then it is sent by itself."""
    view = ScriptedView(BARRIER, DATA)
    notify(server, open_reader(server, view))
    assert kinds(server) == [BARRIER]
    assert server.queue.statistics()[0].is_blocked

    server.receive(ResumeConsumption(receiver_of(1)))

    assert kinds(server) == [DATA]
    assert not server.queue.statistics()[0].is_blocked
    assert view.orders == ["resume"]


def test_announce_backlog(server: ServerSide) -> None:
    """PartitionRequestQueueTest: a receiver without exclusive buffers is told of the backlog, until it granted credit."""
    view = ScriptedView(DATA, DATA)
    reader = open_reader(server, view, credit=0)

    notify(server, reader)
    decoder = FrameDecoder(None, max_data_frame_bytes=4 * SEGMENT)
    announced = list(decoder.feed(server.channel.read_all_outbound()))
    server.receive(AddCredit(receiver_of(1), 2))

    assert announced == [BacklogAnnouncement(receiver_of(1), 2)]
    assert kinds(server) == [DATA, DATA]


def test_announce_backlog_after_the_release(server: ServerSide) -> None:
    """PartitionRequestQueueTest: announce backlog, second half.  A producer that fails meanwhile is told although there is no credit."""
    partition = server.partition()
    server.receive(request(credit=0))

    partition.fail(ValueError("out of cheese"))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PRODUCER_FAILED, receiver_of(1))


@pytest.mark.parametrize("is_available", [False, True])
def test_cancel_partition_request(server: ServerSide, is_available: bool) -> None:
    """PartitionRequestQueueTest: cancel of an unavailable and of an available view.  It leaves the queue and is released, once."""
    view = ScriptedView(DATA, DATA)
    reader = open_reader(server, view)
    block(server)
    if is_available:
        server.receive(AddCredit(receiver_of(1), 1))
        assert is_queued(server)

    server.receive(CancelPartitionRequest(receiver_of(1)))
    unblock(server)

    assert server.queue.statistics() == []
    assert reader.is_released
    assert view.num_released == 1
    assert server.sent() == []


def test_notify_new_buffer_size(server: ServerSide) -> None:
    """PartitionRequestQueueTest: a new buffer size reaches the producer's view."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(NewBufferSize(receiver_of(1), 65))

    assert view.orders == [("size", 65)]


def test_notify_required_segment_id(server: ServerSide) -> None:
    """PartitionRequestQueueTest: which segment is wanted next reaches the view; of an unknown receiver it is ignored."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(SegmentId(receiver_of(1), 3, 7))
    server.receive(SegmentId(receiver_of(9), 3, 7))

    assert view.orders == [("segment", 3, 7)]
    assert server.sent() == []


def test_readers_of_several_subpartitions_say_which_one(server: ServerSide) -> None:
    """Each response of a range names the subpartition that its element is from."""
    notify(server, open_reader(server, ScriptedView(DATA, EVENT, DATA, subpartitions=(0, 1, 1))))

    assert [each.subpartition for each in server.sent() if isinstance(each, BufferResponse)] == [0, 1, 1]


def test_a_reader_of_one_subpartition_names_it(server: ServerSide) -> None:
    """Its index in the partition, not its place on the connection."""
    fill(server.partition(num_subpartitions=3), 1, subpartition=2)

    server.receive(request(subpartition=2))

    assert [each.subpartition for each in server.sent() if isinstance(each, BufferResponse)] == [2]


def test_sequence_numbers_wrap_as_signed_32_bit_integers(server: ServerSide) -> None:
    """After 2,147,483,647 comes -2,147,483,648, as in Java; nothing fails to be encoded."""
    view = ScriptedView(*[DATA] * 3, sequence_number=2**31 - 2)
    other = ScriptedView(DATA, sequence_number=2**32 - 1)

    notify(server, open_reader(server, view, receiver=1, credit=3))
    notify(server, open_reader(server, other, receiver=2, credit=3))

    assert server.data() == [(1, 2**31 - 2), (1, 2**31 - 1), (1, -(2**31)), (2, -1)]
    assert [row.last_sequence_number for row in server.queue.statistics()] == [-(2**31), -1]


def test_statistics_are_one_row_per_reader(server: ServerSide) -> None:
    """Credit, backlog, what is queued, and the last number sent; a reader that waits for its partition has a row too."""
    server.receive(request(7, receiver=7, credit=3))
    notify(server, open_reader(server, ScriptedView(DATA, DATA, DATA, EVENT), receiver=1, credit=2))
    server.sent()

    waiting, open_row = server.queue.statistics()

    assert (waiting.state, waiting.num_credits_available, waiting.last_sequence_number) == ("waiting", 3, -1)
    assert (open_row.state, open_row.num_credits_available, open_row.num_credits_granted) == ("open", 0, 2)
    assert (open_row.num_buffers_sent, open_row.backlog, open_row.num_queued_buffers) == (2, 1, 2)
    assert (open_row.last_sequence_number, open_row.is_queued, open_row.is_blocked) == (1, False, False)


def test_while_the_socket_takes_nothing_each_backlog_is_announced_once(server: ServerSide) -> None:
    """However often the producer tells; what the receiver hears then is the backlog of that moment, and nothing of one that left."""
    views = [ScriptedView(DATA, DATA), ScriptedView(DATA)]
    staying, leaving = (open_reader(server, view, receiver=number, credit=0) for number, view in enumerate(views, 1))
    block(server)

    for _ in range(3):
        notify(server, staying)
        notify(server, leaving)
    waiting = server.channel.pending_bytes
    views[0].elements.append(DATA)
    server.receive(CancelPartitionRequest(receiver_of(2)))
    server.channel.flush_outbound()

    assert waiting == NUM_BLOCKING_BYTES
    server.channel.read_outbound()
    server.channel.flush_outbound()
    assert server.channel.read_all_outbound() == encode(BacklogAnnouncement(receiver_of(1), 3))
