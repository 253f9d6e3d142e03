"""``PartitionRequestQueue``: turns, credit, writability, errors."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from netstack.errors import ProducerFailedError, RemoteProtocolError
from netstack.partition.result_subpartition_view import BufferAndBacklog
from netstack.wire.events import EndOfData, StopMode, deserialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
)
from tests.netstack.handlers.doubles import ScriptedView, block, open_reader, unblock
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, partition_id_of, receiver_of, request
from tests.netstack.wire.samples import content


@pytest.fixture
def server() -> Iterator[ServerSide]:
    side = ServerSide()
    yield side
    side.close()


def test_no_more_data_is_sent_than_credit_was_granted(server: ServerSide) -> None:
    """Two credits, five buffers: two leave; each further credit frees exactly one."""
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
    """The end of data passes although the last credit paid for what was before it: a whole segment, or a part of one."""
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
    """While the kernel takes nothing, at most the high watermark and one frame are pending; then it goes on by itself."""
    partition = server.partition()
    fill(partition, 20)

    server.receive(request(credit=20))

    assert not server.channel.is_writable
    assert server.channel.pending_bytes <= 2 * SEGMENT + SEGMENT + 47
    assert len(server.data()) == 20


def test_a_gather_write_is_one_question_for_writability() -> None:
    """Four buffers at a time: the second one exceeds the high watermark, the gather is finished all the same, the next one waits."""
    server = ServerSide(dataclasses.replace(CONFIG, max_gather_bytes=4 * SEGMENT))
    fill(server.partition(), 20)

    server.receive(request(credit=20))

    assert not server.channel.is_writable
    assert server.channel.pending_bytes == 4 * (SEGMENT + 47)
    assert len(server.data()) == 20
    server.close()


def test_one_pass_stops_at_the_batch_limit_and_continues(server: ServerSide) -> None:
    """A kernel that takes everything at once still gives other work of the loop its turn: the rest is a function of its own."""
    partition = server.partition()
    fill(partition, 40)

    server.receive(request(credit=40))

    assert len(server.data()) == 40


def test_the_backlog_tells_what_is_left(server: ServerSide) -> None:
    """Each response carries how many data buffers are still queued."""
    partition = server.partition()
    fill(partition, 3)

    server.receive(request(credit=3))

    assert [each.backlog for each in server.sent() if isinstance(each, BufferResponse)] == [2, 1, 0]


def test_a_notification_for_a_reader_without_credit_sends_nothing(server: ServerSide) -> None:
    """Data that becomes available while the credit is spent waits for credit."""
    partition = server.partition()
    server.receive(request(credit=1))
    fill(partition, 1)
    assert server.data() == [(1, 0)]

    fill(partition, 2)

    assert server.data() == []
    server.receive(AddCredit(receiver_of(1), 2))
    assert server.data() == [(1, 1), (1, 2)]


def test_a_cancelled_reader_sends_nothing_more(server: ServerSide) -> None:
    """Its subpartition is given back; an unknown or repeated cancel is tolerated."""
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


def test_credit_for_an_unknown_receiver_is_answered_and_the_connection_goes_on(server: ServerSide) -> None:
    """The answer names no receiver, only our own body says who is meant; the reader next to it sends on."""
    partition = server.partition()
    server.receive(request(credit=1))

    server.receive(AddCredit(receiver_of(9), 1))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver, error.about) == (ErrorCode.UNKNOWN_RECEIVER, None, receiver_of(9))
    assert "unknown receiver" in error.message
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_receiver_id_is_used_once_per_connection(server: ServerSide) -> None:
    """The second request with the same id is a protocol error; nothing is taken from the first partition twice."""
    server.partition()
    server.partition(1)
    server.receive(request(0, receiver=1))

    server.receive(request(1, receiver=1))

    error = server.sent()[-1]
    assert isinstance(error, ErrorResponse)
    assert "already" in error.message
    assert not server.channel.is_open


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
    """Their errors are our news and no answers to the peer: it is not cut off, and hears of each once."""
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
    """Also if both are found on the way to one gather write."""
    monkeypatch.setattr(server.queue, "_max_gather_bytes", max_gather_bytes)

    open_reader(server, FailingView(DataType.DATA_BUFFER, DataType.DATA_BUFFER), credit=5).notify_data_available()

    assert [type(each) for each in server.sent()] == [BufferResponse, BufferResponse, ErrorResponse]


def test_what_was_under_way_when_the_producer_failed_is_no_mistake(server: ServerSide) -> None:
    """Credit and acknowledgement that cross the error message are ignored; the connection goes on for the others."""
    failing, healthy = server.partition(0), server.partition(1)
    server.receive(request(0, receiver=1))
    server.receive(request(1, receiver=2))
    failing.fail(ValueError("out of cheese"))
    server.sent()

    server.receive(AddCredit(receiver_of(1), 1))
    server.receive(AckAllUserRecordsProcessed(receiver_of(1)))
    server.receive(CancelPartitionRequest(receiver_of(1)))
    fill(healthy, 1)

    assert server.data() == [(2, 0)]
    assert server.channel.is_open


def test_a_lost_connection_frees_every_subpartition(server: ServerSide) -> None:
    """Producers are not held up by a consumer that is gone."""
    partition = server.partition()
    server.receive(request(credit=1))

    server.channel.lose_connection()
    for _ in range(200):
        partition.emit_record(bytes(SEGMENT), 0)

    assert partition.all_data_processed.is_done


def test_an_error_of_the_pipeline_answers_and_closes(server: ServerSide) -> None:
    """What the decoder found broken is told to the peer before the connection ends."""
    server.channel.pipeline.fire_exception_caught(RemoteProtocolError("bad magic"))

    error = server.sent()[-1]

    assert isinstance(error, ErrorResponse)
    assert (error.code, error.message, error.receiver) == (ErrorCode.PROTOCOL, "bad magic", None)
    assert not server.channel.is_open


class BrokenView(ScriptedView):
    """Says that it has data, and fails at whatever it is asked next."""

    def __init__(
        self, *, fails_early: bool = False, fails_late: bool = False, has_runs: bool = False, subpartitions: tuple[int, ...] = ()
    ) -> None:
        super().__init__(DataType.DATA_BUFFER, subpartitions=subpartitions)
        self.fails_early = fails_early
        self.fails_late = fails_late
        self.has_runs = has_runs

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:
        if self.fails_early:
            raise OSError("disk on fire")
        return True, 1

    def peek_next_subpartition(self) -> int:
        raise OSError("disk on fire")

    def next_buffer(self) -> None:
        raise OSError("disk on fire")

    def poller(self) -> Callable[[], None]:
        return self.next_buffer

    def run_poller(self) -> Callable[[int], None] | None:
        return self.next_run if self.has_runs else None

    def next_run(self, max_segments: int) -> None:
        raise OSError("disk on fire")

    def release(self) -> None:
        super().release()
        if self.fails_late:
            raise OSError("disk burnt down")


@pytest.mark.parametrize(
    "view",
    [BrokenView(), BrokenView(has_runs=True), BrokenView(subpartitions=(0, 1)), BrokenView(fails_early=True), BrokenView(fails_late=True)],
    ids=["read", "run", "peek", "availability", "release"],
)
def test_a_subpartition_that_cannot_be_read_ends_its_own_reader_only(server: ServerSide, view: BrokenView) -> None:
    """Its receiver is told and hangs in nothing; what the others get goes on."""
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


def test_an_error_while_writing_ends_the_connection(server: ServerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever: the peer is told, and the readers' subpartitions are given back."""
    partition = server.partition()
    server.receive(request())

    def fail(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(server.queue, "_write_gather", fail)
    fill(partition, 1)
    [error] = server.sent()

    assert isinstance(error, ErrorResponse)
    assert (error.code, error.message, error.receiver) == (ErrorCode.INTERNAL, "OSError: no memory", None)
    assert not server.channel.is_open
    assert partition.all_data_processed.is_done


def test_a_failing_callback_of_one_partition_does_not_keep_the_others(server: ServerSide) -> None:
    """When the connection ends every subpartition is given back, whatever the first one's owner does when he hears of it."""

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
    """After the loop closed there is nobody to tell; writing, failing and closing a partition still work."""
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
    """The numbers are in the answer; what is still under way from that receiver is no mistake, and the neighbour goes on."""
    greedy, good = server.partition(0), server.partition(1)
    server.receive(request(0, receiver=1, credit=2))
    server.receive(request(1, receiver=2, credit=2))

    server.receive(AddCredit(receiver_of(1), 2**31 - 2))
    server.receive(AddCredit(receiver_of(1), 1))
    server.receive(AckAllUserRecordsProcessed(receiver_of(1)))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, receiver_of(1))
    assert "2147483646 credits on top of 2" in error.message
    assert greedy.all_data_processed.is_done, "its subpartition was given back"
    fill(good, 1)
    assert server.data() == [(2, 0)]


def test_a_cancelled_reader_leaves_its_place_in_the_queue(server: ServerSide) -> None:
    """Cancelled while it waits for the socket: its turn never comes, the neighbour's does."""
    for number in (0, 1):
        fill(server.partition(number), 6)
        server.receive(request(number, receiver=number + 1, credit=6))
    assert not server.channel.is_writable

    server.receive(CancelPartitionRequest(receiver_of(1)))
    order = [number for number, _ in server.data()]

    assert order.count(1) <= 3, "only what was written already"
    assert order.count(2) == 6


def test_a_view_that_fails_while_it_is_queued_is_reported_when_its_turn_comes(server: ServerSide) -> None:
    """The producer fails while the socket takes nothing: what was written leaves, then the error, and the neighbour goes on."""
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
def test_the_failed_producer_of_a_range_is_reported_to_its_receiver(server: ServerSide, num_buffers: tuple[int, int], credit: int) -> None:
    """Once, with buffers looked at ahead that have no credit, or no room in the socket; the neighbour goes on."""
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

    assert [(each.code, each.receiver) for each in sent if isinstance(each, ErrorResponse)] == [(ErrorCode.PRODUCER_FAILED, receiver_of(1))]
    assert (server.channel.is_open, len(server.data())) == (True, 3)


def test_a_kernel_that_takes_everything_gets_one_batch_per_pass(server: ServerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush makes the channel writable again, inside the pass; it stops at the batch limit all the same, and goes on later."""
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
