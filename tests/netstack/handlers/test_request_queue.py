"""``PartitionRequestQueue``: turns, credit, writability, errors."""

from collections.abc import Iterator

import pytest

from netstack.errors import RemoteProtocolError
from netstack.wire.events import EndOfData, StopMode, deserialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
)
from tests.netstack.handlers.server_side import SEGMENT, ServerSide, fill, receiver_of, request


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


def test_events_need_no_credit(server: ServerSide) -> None:
    """The end of data passes although the credit is spent; data behind it waits."""
    partition = server.partition()
    fill(partition, 1)
    partition.notify_end_of_data(StopMode.DRAIN)

    server.receive(request(credit=1))
    sent = server.sent()

    kinds = [each.data_type for each in sent if isinstance(each, BufferResponse)]
    assert kinds == [DataType.DATA_BUFFER, DataType.END_OF_DATA]
    last = sent[-1]
    assert isinstance(last, BufferResponse)
    assert deserialize_event(last.payload) == EndOfData(StopMode.DRAIN)


def test_nothing_is_written_above_the_high_watermark(server: ServerSide) -> None:
    """While the kernel takes nothing, at most the high watermark and one frame are pending; then it goes on by itself."""
    partition = server.partition()
    fill(partition, 20)

    server.receive(request(credit=20))

    assert not server.channel.is_writable
    assert server.channel.pending_bytes <= 2 * SEGMENT + SEGMENT + 47
    assert len(server.data()) == 20


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


def test_credit_for_an_unknown_receiver_ends_the_connection(server: ServerSide) -> None:
    """It is answered without receiver, and every reader is released."""
    fill(server.partition(), 1)
    server.receive(request(credit=1))
    server.sent()

    server.receive(AddCredit(receiver_of(9), 1))

    error = server.sent()[-1]
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert "unknown receiver" in error.message
    assert not server.channel.is_open


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
