"""``PartitionRequestQueue``: turns, credit, writability, errors.

Source: Flink ``PartitionRequestQueueTest``, ``ServerTransportErrorHandlingTest``: the sections of these names.
"""

import asyncio
import dataclasses

import pytest

from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer
from netstack.config import SecurityConfig
from netstack.errors import ProducerFailedError, RemoteProtocolError
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.result_subpartition import BufferAndBacklog
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.server import NetworkServer
from netstack.wire.events import EndOfData, StopMode, deserialize_event
from netstack.wire.message_bytes import encode
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
)
from tests.netstack.connections import until
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
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, partition_id_of, receiver_of, request
from tests.netstack.wire.samples import FedDecoder, content


def kinds(server: ServerSide) -> list[DataType]:
    """Return the data types of the sent messages, which must be buffers only."""
    sent = server.sent()
    assert all(isinstance(each, BufferResponse) for each in sent), sent
    return [each.data_type for each in sent if isinstance(each, BufferResponse)]


def test_no_more_data_is_sent_than_credit_was_granted(server: ServerSide) -> None:
    """For two credits two of five buffers leave; each further credit sends exactly one more."""
    partition = server.partition()
    fill(partition, 5)

    server.receive(request(credit=2))
    first = server.data()
    server.receive(AddCredit(receiver_of(1), 1))
    second = server.data()
    server.receive(AddCredit(receiver_of(1), 2))
    third = server.data()

    assert (first, second, third) == ([(1, 0), (1, 1)], [(1, 2)], [(1, 3), (1, 4)])


def test_readers_that_become_ready_together_take_turns(server: ServerSide) -> None:
    """The socket takes nothing while both get credit; then they leave in turns."""
    for number in (0, 1):
        fill(server.partition(number), 6)
        server.receive(request(number, receiver=number + 1, credit=6))

    order = [number for number, _ in server.data()]

    assert sorted(order) == [1] * 6 + [2] * 6
    both = order[order.index(2) :]
    longest = min(both.count(1), both.count(2))
    assert both[: 2 * longest] == [2, 1] * longest, f"turns are not strict: {order}"


@pytest.mark.parametrize("num_bytes", [SEGMENT, 100], ids=["behind a run", "behind a buffer"])
def test_events_need_no_credit(server: ServerSide, num_bytes: int) -> None:
    """The end of data passes although the last credit paid for the data before it: a whole segment, or a part of
    one.
    """
    partition = server.partition()
    server.receive(request(credit=1))

    # One notification tells of both; nobody tells of the event once the credit is spent.
    partition.emit_record(bytes(num_bytes), 0)
    partition.notify_end_of_data(StopMode.DRAIN)
    sent = server.sent()

    kinds = [each.data_type for each in sent if isinstance(each, BufferResponse)]
    assert kinds == [DataType.DATA_BUFFER, DataType.END_OF_DATA]
    last = sent[-1]
    assert isinstance(last, BufferResponse)
    assert deserialize_event(memoryview(content(last))) == EndOfData(StopMode.DRAIN)


def test_nothing_is_written_above_the_high_watermark(server: ServerSide) -> None:
    """At most the watermark and one frame are pending; when the kernel takes bytes, it goes on."""
    partition = server.partition()
    fill(partition, 20)

    server.receive(request(credit=20))

    assert not server.channel.is_writable
    assert server.channel.pending_bytes <= 2 * SEGMENT + SEGMENT + 47
    assert len(server.data()) == 20


def test_a_gather_write_is_one_question_for_writability() -> None:
    """A gather that is begun is finished above the watermark; the next one waits."""
    server = ServerSide(dataclasses.replace(CONFIG, max_gather_bytes=4 * SEGMENT))
    fill(server.partition(), 20)

    server.receive(request(credit=20))

    assert not server.channel.is_writable
    assert server.channel.pending_bytes == 4 * (SEGMENT + 47)
    assert len(server.data()) == 20


def test_the_backlog_tells_what_is_left(server: ServerSide) -> None:
    """Each response has the number of data buffers that are still queued."""
    partition = server.partition()
    fill(partition, 3)

    server.receive(request(credit=3))

    assert [each.backlog for each in server.sent() if isinstance(each, BufferResponse)] == [2, 1, 0]


def test_a_cancelled_reader_sends_nothing_more(server: ServerSide) -> None:
    """The subpartition of a cancelled reader is given back; an unknown or repeated cancel is tolerated."""
    partition = server.partition()
    fill(partition, 3)
    server.receive(request(credit=1))
    server.sent()

    server.receive(CancelPartitionRequest(receiver_of(1)))
    server.receive(CancelPartitionRequest(receiver_of(1)))
    fill(partition, 3)

    assert server.sent() == []
    assert server.channel.is_open
    assert partition.statistics().num_queued_buffers == 0


def test_a_failed_producer_is_reported_to_its_receiver_once(server: ServerSide) -> None:
    """The cause travels as text; the connection and its other readers go on."""
    failing, healthy = server.partition(0), server.partition(1)
    server.receive(request(0, receiver=1))
    server.receive(request(1, receiver=2))

    failing.fail(ValueError("out of cheese"))
    fill(healthy, 1)
    sent = server.sent()

    errors = [each for each in sent if isinstance(each, ErrorResponse)]
    assert [(each.code, each.receiver) for each in errors] == [(ErrorCode.PRODUCER_FAILED, receiver_of(1))]
    assert "out of cheese" in errors[0].message
    assert any(isinstance(each, BufferResponse) and each.receiver == receiver_of(2) for each in sent)


def test_a_thousand_producers_may_fail_while_the_socket_takes_nothing(server: ServerSide) -> None:
    """The peer is not cut off and gets each producer's error once: these errors are no answers to it."""
    views = [ScriptedView() for _ in range(1500)]
    readers = [open_reader(server, view, receiver=number) for number, view in enumerate(views)]
    block(server)
    for view, reader in zip(views, readers, strict=True):
        view.is_released, view.failure_cause = True, ProducerFailedError("out of cheese")
        reader.notify_data_available()
    server.loop.run_pending()

    unblock(server)

    told = [each.receiver for each in server.sent() if isinstance(each, ErrorResponse)]
    assert len(told) == 1500
    assert set(told) == {receiver_of(number) for number in range(1500)}
    assert server.channel.is_open


class FailingView(ScriptedView):
    """Hands out one element and promises another one; then its producer fails."""

    def next_buffer(self) -> BufferAndBacklog | None:
        found = super().next_buffer()
        if found is None:
            self.is_released, self.failure_cause = True, ProducerFailedError("out of cheese")
            return None
        return found._replace(next_data_type=DataType.DATA_BUFFER)


@pytest.mark.parametrize("max_gather_bytes", [1, 4096])
def test_what_a_producer_sent_before_it_failed_arrives_before_its_error(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch, max_gather_bytes: int
) -> None:
    """Data before the failure arrives first, even if both are found in one gather write."""
    monkeypatch.setattr(server.queue, "_max_gather_bytes", max_gather_bytes)

    open_reader(server, FailingView(DataType.DATA_BUFFER, DataType.DATA_BUFFER), credit=5).notify_data_available()

    assert [type(each) for each in server.sent()] == [BufferResponse, BufferResponse, ErrorResponse]


def test_an_error_of_the_pipeline_answers_and_closes(server: ServerSide) -> None:
    """The peer is told of the decoder's error before the connection ends."""
    server.channel.pipeline.head.fire_exception_caught(RemoteProtocolError("bad magic"))

    error = server.sent()[-1]

    assert isinstance(error, ErrorResponse)
    assert (error.code, error.message, error.receiver) == (ErrorCode.PROTOCOL, "bad magic", None)
    assert not server.channel.is_open


class BrokenView(ScriptedView):
    """A view that says that it has data, and fails at the next call."""

    def __init__(
        self,
        *,
        fails_early: bool = False,
        fails_late: bool = False,
        has_runs: bool = False,
        subpartitions: tuple[int, ...] = (),
    ) -> None:
        super().__init__(DataType.DATA_BUFFER, subpartitions=subpartitions)
        self.fails_early = fails_early
        self.fails_late = fails_late
        self.poll_run = self.next_run if has_runs else None

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:
        if self.fails_early:
            raise OSError("disk on fire")
        return True, 1

    def peek_next_subpartition(self) -> int:
        raise OSError("disk on fire")

    def next_buffer(self) -> None:
        raise OSError("disk on fire")

    def next_run(self, max_segments: int) -> None:
        raise OSError("disk on fire")

    def release(self) -> None:
        super().release()
        if self.fails_late:
            raise OSError("disk burnt down")


@pytest.mark.parametrize(
    "view",
    [
        BrokenView(),
        BrokenView(has_runs=True),
        BrokenView(subpartitions=(0, 1)),
        BrokenView(fails_early=True),
        BrokenView(fails_late=True),
    ],
    ids=["read", "run", "peek", "availability", "release"],
)
def test_a_subpartition_that_cannot_be_read_ends_its_own_reader_only(server: ServerSide, view: BrokenView) -> None:
    """The receiver of the failed subpartition gets an error and does not hang; the others read on."""
    partition = server.partition()
    server.receive(request())
    broken = open_reader(server, view, receiver=2)

    broken.notify_data_available()
    [error] = server.sent()
    fill(partition, 2)

    assert isinstance(error, ErrorResponse)
    assert (error.code, error.message, error.receiver) == (ErrorCode.INTERNAL, "OSError: disk on fire", receiver_of(2))
    assert view.num_released == 1
    assert server.data() == [(1, 0), (1, 1)]
    server.receive(CancelPartitionRequest(receiver_of(2)))
    assert [row.receiver for row in server.queue.statistics()] == [receiver_of(1).hex()]


def test_a_failing_callback_of_one_partition_does_not_keep_the_others(server: ServerSide) -> None:
    """Every subpartition is given back at the end of the connection, whatever the callback of the first one does."""

    def fail() -> None:
        raise OSError("callback")

    partitions = [server.partition(number) for number in range(3)]
    for number, partition in enumerate(partitions):
        server.receive(request(number, receiver=number + 1))
        if number < 2:
            partition.all_data_processed.add_done_callback(fail)

    server.channel.lose_connection()

    assert [each.all_data_processed.is_done for each in partitions] == [True] * 3
    assert server.queue.reader(receiver_of(1)) is None


def test_producers_outlive_the_event_loop(server: ServerSide) -> None:
    """After the end of the loop, partitions can still be written, failed and closed."""
    partition, late = server.partition(0), server.partition(1)
    for number in (0, 1):
        server.receive(request(number, receiver=number + 1))
    server.loop.close()

    fill(partition, 2)
    partition.fail(ValueError("too late"))
    late.close()

    assert partition.is_released
    assert late.is_released


def test_credit_that_overflows_ends_the_flow_to_its_receiver_only(server: ServerSide) -> None:
    """The answer has the numbers; later messages of that receiver are no errors, and the neighbour goes on."""
    greedy, good = server.partition(0), server.partition(1)
    server.receive(request(0, receiver=1, credit=2))
    server.receive(request(1, receiver=2, credit=2))

    server.receive(AddCredit(receiver_of(1), 2**31 - 2))
    server.receive(AddCredit(receiver_of(1), 1))
    server.receive(AckAllUserRecordsProcessed(receiver_of(1)))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, receiver_of(1))
    assert "2147483646 credits on top of 2" in error.message
    assert greedy.all_data_processed.is_done, "its subpartition was given back"
    fill(good, 1)
    assert server.data() == [(2, 0)]


def test_a_cancelled_reader_leaves_its_place_in_the_queue(server: ServerSide) -> None:
    """A reader that is cancelled while it waits for the socket never gets its turn; the neighbour does."""
    for number in (0, 1):
        fill(server.partition(number), 6)
        server.receive(request(number, receiver=number + 1, credit=6))
    assert not server.channel.is_writable

    server.receive(CancelPartitionRequest(receiver_of(1)))
    order = [number for number, _ in server.data()]

    assert order.count(1) <= 3, "only what was written already"
    assert order.count(2) == 6


def test_a_view_that_fails_while_it_is_queued_is_reported_when_its_turn_comes(server: ServerSide) -> None:
    """The error follows the written data, and the neighbour goes on."""
    failing = server.partition(0)
    fill(failing, 6)
    server.receive(request(0, receiver=1, credit=6))
    fill(server.partition(1), 3)
    server.receive(request(1, receiver=2, credit=3))

    failing.fail(ValueError("late"))
    sent = server.sent()

    assert [each.receiver for each in sent if isinstance(each, ErrorResponse)] == [receiver_of(1)]
    assert sum(isinstance(each, BufferResponse) and each.receiver == receiver_of(2) for each in sent) == 3
    assert server.channel.is_open


@pytest.mark.parametrize(("num_buffers", "credit"), [((4, 0), 1), ((4, 4), 1), ((12, 2), 100)])
def test_the_failed_producer_of_a_range_is_reported_to_its_receiver(
    server: ServerSide, num_buffers: tuple[int, int], credit: int
) -> None:
    """Once, also with buffers in the look-ahead that have no credit or no room."""
    failing = server.partition(0, num_subpartitions=2)
    for subpartition, number in enumerate(num_buffers):
        fill(failing, number, subpartition)
    server.receive(PartitionRequest(partition_id_of(0), 0, 1, receiver_of(1), credit))
    server.receive(request(1, receiver=2, credit=3))
    if credit == 1:
        server.sent()

    failing.fail(ValueError("late"))
    sent = server.sent()
    fill(server.partition(1), 3)

    assert [(each.code, each.receiver) for each in sent if isinstance(each, ErrorResponse)] == [
        (ErrorCode.PRODUCER_FAILED, receiver_of(1))
    ]
    assert (server.channel.is_open, len(server.data())) == (True, 3)


def test_a_kernel_that_takes_everything_gets_one_batch_per_pass(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although each flush makes the channel writable again; the rest follows in later passes."""
    flush = server.channel.transport_flush
    is_taking = False

    def flush_and_take() -> None:
        nonlocal is_taking
        flush()
        if not is_taking:
            is_taking = True
            server.channel.flush_outbound()
            is_taking = False

    monkeypatch.setattr(server.channel, "transport_flush", flush_and_take)
    fill(server.partition(), 40)

    server.channel.write_inbound(request(credit=40))
    first_pass = len(server.channel.read_all_outbound()) // (SEGMENT + 47)
    server.loop.run_pending()

    assert first_pass == 16, "max_write_batch_bytes, rounded up to whole frames"
    assert len(server.channel.read_all_outbound()) // (SEGMENT + 47) == 24


# ---------------------------------------------------------------- PartitionRequestQueueTest, over views that say what the test wants  # noqa: E501


def test_notify_reader_non_empty_on_empty_readers(server: ServerSide) -> None:
    """An empty reader in front of a full one; when the socket opens both are drained, once."""
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
    """A view with buffers over memory that cannot be written."""

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
    """The next element is an event: the reader is queued and sends it, without any credit."""
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
    """Five notifications without credit queue nothing; three credits are exactly three responses."""
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
    """Behind a barrier nothing is sent until the receiver resumes; then it is sent by itself."""
    view = ScriptedView(BARRIER, DATA)
    notify(server, open_reader(server, view))
    assert kinds(server) == [BARRIER]
    assert server.queue.statistics()[0].is_blocked

    server.receive(ResumeConsumption(receiver_of(1)))

    assert kinds(server) == [DATA]
    assert not server.queue.statistics()[0].is_blocked
    assert view.orders == ["resume"]


def test_announce_backlog(server: ServerSide) -> None:
    """The backlog is announced to a receiver without exclusive buffers until it grants credit."""
    view = ScriptedView(DATA, DATA)
    reader = open_reader(server, view, credit=0)

    notify(server, reader)
    decoder = FedDecoder(None, max_data_frame_bytes=4 * SEGMENT)
    announced = list(decoder.feed(server.channel.read_all_outbound()))
    server.receive(AddCredit(receiver_of(1), 2))

    assert announced == [BacklogAnnouncement(receiver_of(1), 2)]
    assert kinds(server) == [DATA, DATA]


def test_announce_backlog_after_the_release(server: ServerSide) -> None:
    """Announce backlog, second half. The error of a producer that fails meanwhile is sent without credit."""
    partition = server.partition()
    server.receive(request(credit=0))

    partition.fail(ValueError("out of cheese"))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PRODUCER_FAILED, receiver_of(1))


@pytest.mark.parametrize("is_available", [False, True])
def test_cancel_partition_request(server: ServerSide, is_available: bool) -> None:
    """Cancel of an unavailable and of an available view. It leaves the queue and is released, once."""
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


def test_readers_of_several_subpartitions_say_which_one(server: ServerSide) -> None:
    """Each response of a range names the subpartition that its element is from."""
    notify(server, open_reader(server, ScriptedView(DATA, EVENT, DATA, subpartitions=(0, 1, 1))))

    assert [each.subpartition for each in server.sent() if isinstance(each, BufferResponse)] == [0, 1, 1]


def test_a_reader_of_one_subpartition_names_it(server: ServerSide) -> None:
    """The response has the index in the partition, not the place on the connection."""
    fill(server.partition(num_subpartitions=3), 1, subpartition=2)

    server.receive(request(subpartition=2))

    assert [each.subpartition for each in server.sent() if isinstance(each, BufferResponse)] == [2]


def test_sequence_numbers_wrap_as_signed_32_bit_integers(server: ServerSide) -> None:
    """After 2,147,483,647 comes -2,147,483,648, as in Java, and both can be encoded."""
    view = ScriptedView(*[DATA] * 3, sequence_number=2**31 - 2)
    other = ScriptedView(DATA, sequence_number=2**32 - 1)

    notify(server, open_reader(server, view, receiver=1, credit=3))
    notify(server, open_reader(server, other, receiver=2, credit=3))

    assert server.data() == [(1, 2**31 - 2), (1, 2**31 - 1), (1, -(2**31)), (2, -1)]
    assert [row.last_sequence_number for row in server.queue.statistics()] == [-(2**31), -1]


def test_statistics_are_one_row_per_reader(server: ServerSide) -> None:
    """Also of one that waits for its partition."""
    server.receive(request(7, receiver=7, credit=3))
    notify(server, open_reader(server, ScriptedView(DATA, DATA, DATA, EVENT), receiver=1, credit=2))
    server.sent()

    waiting, open_row = server.queue.statistics()

    assert (waiting.state, waiting.num_credits_available, waiting.last_sequence_number) == ("waiting", 3, -1)
    assert (open_row.state, open_row.num_credits_available, open_row.num_credits_granted) == ("open", 0, 2)
    assert (open_row.num_buffers_sent, open_row.backlog, open_row.num_queued_buffers) == (2, 1, 2)
    assert (open_row.last_sequence_number, open_row.is_queued, open_row.is_blocked) == (1, False, False)


def test_while_the_socket_takes_nothing_each_backlog_is_announced_once(server: ServerSide) -> None:
    """The receiver hears the backlog of the moment in which it can, and nothing of one that left."""
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


# ---------------------------------------------------------------- ServerTransportErrorHandlingTest


async def test_remote_close() -> None:
    """Remote close. The consumer's process goes away: its subpartition is given back."""
    side = ServerSide()
    config = dataclasses.replace(CONFIG, security=SecurityConfig.none())
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "server")
    queue = PartitionRequestQueue(config, loop)
    handler = PartitionRequestServerHandler(config, loop, side.manager, queue)
    server = NetworkServer(config, lambda: (MessageEncoder(), MessageDecoder(config), handler, queue))
    host, port = await server.start("127.0.0.1", 0)
    partition = side.partition()
    fill(partition, 5)

    reader, writer = await asyncio.open_connection(host, port)
    writer.write(encode(request(credit=10)))
    await reader.readexactly(SEGMENT)
    assert not partition.all_data_processed.is_done
    writer.close()
    await until(lambda: partition.all_data_processed.is_done)

    assert queue.statistics() == []
    await server.close()
    loop.close()


def test_a_write_that_fails_ends_the_connection_and_gives_everything_back(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the transport refuses a buffer, the peer gets an error and all views are released."""
    view = ScriptedView(DATA, DATA)
    reader = open_reader(server, view)
    neighbour = ScriptedView()
    open_reader(server, neighbour, receiver=2)

    def refuse(*_args: object) -> bytes:
        raise RuntimeError("Expected test exception")

    with monkeypatch.context() as patch:
        patch.setattr("netstack.transport.message_codec._pack_header", refuse)
        notify(server, reader)

    error = server.only_error()
    assert (error.code, error.receiver, error.message) == (
        ErrorCode.INTERNAL,
        None,
        "RuntimeError: Expected test exception",
    )
    assert (view.num_released, neighbour.num_released) == (1, 1)
    assert view.num_out == 0
    assert not server.channel.is_open


def test_a_lost_connection_recycles_what_was_not_sent(server: ServerSide) -> None:
    """ServerTransportErrorHandlingTest: what the transport still held when the peer went away comes home."""
    view = ScriptedView(*[DATA] * 10)
    reader = open_reader(server, view, credit=10)
    notify(server, reader)
    block(server)
    notify(server, reader)

    server.channel.lose_connection(ConnectionResetError("reset"))

    assert view.num_out == 0
    assert view.num_released == 1
