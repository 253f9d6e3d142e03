"""``PartitionRequestServerHandler``: what consumers may ask, and how each mistake is answered."""

import dataclasses
from collections.abc import Iterator

import pytest

from netstack.errors import ResourceBrokenError
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.wire.events import StopMode
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
)
from tests.netstack.handlers.doubles import ScriptedView, block, unblock
from tests.netstack.handlers.server_side import CONFIG, ServerSide, fill, partition_id_of, receiver_of, request


@pytest.fixture
def server() -> Iterator[ServerSide]:
    side = ServerSide()
    yield side
    side.close()


def only_error(server: ServerSide) -> ErrorResponse:
    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    return error


def test_a_request_waits_for_its_partition(server: ServerSide) -> None:
    """Asked first, registered later: the data comes, and no timer is left."""
    server.receive(request(credit=2))
    assert server.sent() == []

    fill(server.partition(), 1)

    assert server.data() == [(1, 0)]
    assert server.loop.num_timers == 0


def test_a_partition_that_never_comes_is_refused_after_the_timeout(server: ServerSide) -> None:
    """Not before; to that receiver only; and the id may be used again."""
    server.receive(request())

    server.loop.advance(CONFIG.partition_request_timeout_s - 0.001)
    assert server.sent() == []
    server.loop.advance(0.001)

    error = only_error(server)
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, receiver_of(1))
    assert server.channel.is_open
    fill(server.partition(), 1)
    server.receive(request())
    assert server.data() == [(1, 0)]


def test_a_cancelled_wait_is_over(server: ServerSide) -> None:
    """Neither the partition nor the timeout finds anybody any more."""
    server.receive(request())
    server.receive(CancelPartitionRequest(receiver_of(1)))

    fill(server.partition(), 1)
    server.loop.advance(2 * CONFIG.partition_request_timeout_s)

    assert server.sent() == []
    assert server.loop.num_timers == 0


def test_a_lost_connection_stops_waiting(server: ServerSide) -> None:
    """No timer and no listener stay behind."""
    server.receive(request())

    server.channel.lose_connection()

    assert server.loop.num_timers == 0
    assert "0 awaited" in repr(server.manager)


@pytest.mark.parametrize("subpartition", [-1, 1])
def test_a_subpartition_out_of_range_is_refused_without_receiver(server: ServerSide, subpartition: int) -> None:
    """As Flink does it; our own body names the receiver.  The connection stays open, and the id may be used again."""
    partition = server.partition()

    server.receive(request(subpartition=subpartition))

    error = only_error(server)
    assert (error.code, error.receiver, error.about) == (ErrorCode.SUBPARTITION_TAKEN, None, receiver_of(1))
    assert str(subpartition) in error.message
    server.receive(request())
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_taken_subpartition_is_refused_to_the_second_receiver(server: ServerSide) -> None:
    """A pipelined subpartition is read once; the first reader goes on."""
    partition = server.partition()
    server.receive(request(receiver=1))

    server.receive(request(receiver=2))

    error = only_error(server)
    assert (error.code, error.receiver, error.about) == (ErrorCode.SUBPARTITION_TAKEN, None, receiver_of(2))
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_view_that_cannot_be_made_is_our_own_trouble(server: ServerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone is no mistake of the receiver's, and nobody has taken its subpartition."""
    partition = server.partition()

    def fail(*_: object, **__: object) -> None:
        raise ResourceBrokenError("the file is gone")

    monkeypatch.setattr(partition, "create_subpartition_view", fail)
    server.receive(request())

    error = only_error(server)
    assert (error.code, error.about, error.message) == (ErrorCode.INTERNAL, receiver_of(1), "the file is gone")


def test_a_range_of_subpartitions_is_served(server: ServerSide) -> None:
    """One receiver reads both: each response names the subpartition it is from, and the numbers go on."""
    partition = server.partition(num_subpartitions=2)
    fill(partition, 2, 0)
    fill(partition, 1, 1)
    partition.finish()

    server.receive(PartitionRequest(partition_id_of(), 0, 1, receiver_of(1), 5))

    responses = [message for message in server.sent() if isinstance(message, BufferResponse)]
    assert [(each.subpartition, each.data_type.is_buffer, each.sequence_number) for each in responses] == [
        (0, True, 0),
        (0, True, 1),
        (0, False, 2),
        (1, True, 3),
        (1, False, 4),
    ]


def test_a_range_outside_of_the_partition_is_refused(server: ServerSide) -> None:
    """And nothing of it is read."""
    server.partition(num_subpartitions=2)

    server.receive(PartitionRequest(partition_id_of(), 1, 2, receiver_of(1), 2))

    assert "1 to 2 are none of them" in only_error(server).message


def test_the_acknowledgement_reaches_the_partition(server: ServerSide) -> None:
    """All data of all subpartitions processed: the producer may end."""
    partition = server.partition(num_subpartitions=2)
    for index in range(2):
        server.receive(request(subpartition=index, receiver=index + 1))
    partition.notify_end_of_data(StopMode.DRAIN)
    server.sent()

    server.receive(AckAllUserRecordsProcessed(receiver_of(1)))
    assert not partition.all_data_processed.is_done
    server.receive(AckAllUserRecordsProcessed(receiver_of(2)))

    assert partition.all_data_processed.is_done


@pytest.mark.parametrize("message", [AckAllUserRecordsProcessed(receiver_of(7)), ResumeConsumption(receiver_of(7))])
def test_an_order_of_a_stranger_is_answered_without_receiver(server: ServerSide, message: object) -> None:
    """Unknown receivers are the peer's bug; the connection stays open."""
    server.receive(message)

    error = only_error(server)
    assert (error.code, error.receiver, error.about) == (ErrorCode.UNKNOWN_RECEIVER, None, receiver_of(7))
    assert server.channel.is_open


def test_a_close_request_closes(server: ServerSide) -> None:
    """All readers are released, the connection ends without an error."""
    partition = server.partition()
    server.receive(request())

    server.receive(CloseRequest())

    assert server.sent() == []
    assert not server.channel.is_open
    assert partition.all_data_processed.is_done, "its reader was released"


@pytest.mark.parametrize("message", [ErrorResponse(ErrorCode.INTERNAL, "boom", None), BacklogAnnouncement(receiver_of(1), 3)])
def test_messages_that_are_not_served_are_refused_by_name(server: ServerSide, message: object) -> None:
    """Never ignored: the peer would wait for ever."""
    server.receive(message)

    error = only_error(server)
    assert type(message).__name__ in error.message
    assert not server.channel.is_open


def test_the_answer_to_one_receiver_leaves_the_others_alone(server: ServerSide) -> None:
    """One bad request among good ones."""
    fill(server.partition(0), 1)
    server.receive(request(0, receiver=1))
    server.receive(request(0, receiver=2))
    fill(server.partition(1), 1)
    server.receive(request(1, receiver=3))

    sent = server.sent()

    assert {each.receiver for each in sent if isinstance(each, BufferResponse)} == {receiver_of(1), receiver_of(3)}
    assert [each.about for each in sent if isinstance(each, ErrorResponse)] == [receiver_of(2)]


def test_a_request_after_the_shutdown_finds_no_partition(server: ServerSide) -> None:
    """That is no mistake of the consumer: it is told what it is told whenever a partition is gone."""
    server.manager.shutdown()

    server.receive(request())

    error = only_error(server)
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, receiver_of(1))
    assert "shut down" in error.message
    assert server.channel.is_open


def test_a_partition_may_come_after_the_event_loop_closed(server: ServerSide) -> None:
    """Whoever waited for it is gone with the loop; the registration succeeds."""
    server.receive(request())
    server.loop.close()

    partition = server.partition()

    assert not partition.is_released


def test_a_partition_that_is_gone_again_is_waited_for_again(server: ServerSide) -> None:
    """Registered and released before the loop looked: the request waits on, and ends once."""
    server.receive(request())
    server.partition().release()
    server.loop.run_pending()

    assert server.loop.num_timers == 1
    server.loop.advance(CONFIG.partition_request_timeout_s)

    assert only_error(server).code is ErrorCode.PARTITION_NOT_FOUND
    assert server.loop.num_timers == 0


def test_a_subpartition_that_was_taken_while_two_waited_is_refused_to_the_second(server: ServerSide) -> None:
    """Both asked too early; the refused one leaves no timer, and the first one is served."""
    server.receive(request(receiver=1))
    server.receive(request(receiver=2))

    fill(server.partition(), 1)
    sent = server.sent()

    assert [each.receiver for each in sent if isinstance(each, BufferResponse)] == [receiver_of(1)]
    assert [each.about for each in sent if isinstance(each, ErrorResponse)] == [receiver_of(2)]
    assert server.loop.num_timers == 0


def test_requests_that_time_out_together_leave_the_connection_alone(server: ServerSide) -> None:
    """All that may wait, while the socket takes nothing: that is no mistake of the peer's."""
    partition = server.partition()
    server.receive(request(receiver=1))
    for number in range(CONFIG.max_waiting_requests):
        server.receive(request(7, receiver=10 + number))
    block(server)

    server.loop.advance(CONFIG.partition_request_timeout_s)
    unblock(server)

    assert server.channel.is_open
    assert len(server.sent()) == CONFIG.max_waiting_requests
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_connection_has_so_many_readers_and_no_more() -> None:
    """One too many is refused to its receiver; when one has left there is room again."""
    server = ServerSide(dataclasses.replace(CONFIG, max_readers=2))
    partition = server.partition(num_subpartitions=3)
    for number in (0, 1, 2):
        server.receive(request(subpartition=number, receiver=number))

    error = only_error(server)
    assert (error.code, error.receiver) == (ErrorCode.LIMIT_EXCEEDED, receiver_of(2))
    assert "max_readers" in error.message
    server.receive(CancelPartitionRequest(receiver_of(0)))
    server.receive(request(subpartition=2, receiver=2))
    fill(partition, 1, 2)
    assert server.data() == [(2, 0)]
    server.close()


def test_the_cancel_of_a_receiver_that_got_everything_does_not_count() -> None:
    """Every channel says so when it ends, and a job of any size may end at once; others still count."""
    server = ServerSide(dataclasses.replace(CONFIG, max_cancels_per_s=1))
    server.partition(num_subpartitions=20).finish()
    server.partition(1, num_subpartitions=10)
    for number in range(20):
        server.receive(request(subpartition=number, receiver=number))
    for number in range(10):
        server.receive(request(1, subpartition=number, receiver=20 + number))
    server.sent()

    for number in range(30):
        server.receive(CancelPartitionRequest(receiver_of(number)))

    assert server.channel.is_open
    server.receive(CancelPartitionRequest(receiver_of(30)))
    assert "too many cancelled requests" in only_error(server).message
    server.close()


def test_a_range_of_which_one_end_is_missing_counts_when_it_is_cancelled() -> None:
    """It has not got everything yet."""
    server = ServerSide(dataclasses.replace(CONFIG, max_cancels_per_s=1))
    server.partition(num_subpartitions=2).finish()
    server.receive(PartitionRequest(partition_id_of(), 0, 1, receiver_of(1), 2))
    reader = server.queue.reader(receiver_of(1))

    assert reader is not None
    assert reader.has_ended
    fresh = CreditBasedSequenceNumberingViewReader(receiver_of(2), 2, server.queue, first=0, last=1)
    fresh.set_view(ScriptedView(DataType.END_OF_PARTITION, DataType.END_OF_PARTITION))
    fresh.next_buffer()
    has_ended = [fresh.has_ended]
    fresh.next_buffer()
    assert [*has_ended, fresh.has_ended] == [False, True]
    server.sent()
    server.close()
