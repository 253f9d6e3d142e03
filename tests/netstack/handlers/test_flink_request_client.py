"""The scenarios of Flink's ``CreditBasedPartitionRequestClientHandlerTest``."""

from collections.abc import Callable, Iterator

import pytest

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.limits import MAX_WAITING_REPLIES
from netstack.channel.message_codec import MessageDecoder
from netstack.errors import ConnectionLostError, NetstackError, PartitionNotFoundError, RemoteProtocolError, TransportError
from netstack.gate.channels.partition_state_checker import ProducerState
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.channels.request_backoff import RequestBackoff
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import ResultPartitionID
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.wire.codec import encode
from netstack.wire.events import OtherEvent, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    TaskEventRequest,
)
from tests.netstack.handlers.client_side import CONFIG, EXCLUSIVE, Client, response, take
from tests.netstack.handlers.server_side import partition_id_of, receiver_of


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()


@pytest.fixture
def hopping() -> Iterator[Client]:
    """Announcements of credit take the hop to the loop, as in production."""
    one = Client(EmbeddedEventLoop())
    yield one
    one.close()
    assert one.loop is not None
    one.loop.close()


def test_release_input_channel_during_decode(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: release during decode (FLINK-1627).  The rest is dropped, the sender told to stop."""
    gate = client.open_gate()
    client.sent()
    frame = response(payload=bytes(100))
    client.connection.write_inbound(frame[:80])
    client.is_deaf = True  # the order of the release is still under way

    gate.close()
    client.connection.write_inbound(frame[80:])

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]


def test_receive_empty_buffer(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: receive empty buffer (FLINK-1761).  It counts in the sequence, and is no error."""
    _, [channel] = client.open_channels(1)

    client.connection.write_inbound(response(payload=b"", backlog=2))
    client.connection.write_inbound(response(sequence_number=1))

    assert channel.sender_backlog == 0
    assert channel.num_queued_buffers == 1


def test_receive_buffer(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: receive buffer.  Queued, and the sender's backlog is remembered."""
    _, [channel] = client.open_channels(1, num_floating=8)

    client.connection.write_inbound(response(backlog=2))

    assert channel.num_queued_buffers == 1
    assert channel.sender_backlog == 2


def test_receive_compressed_buffer(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: receive compressed buffer.  The flag of the header reaches the channel."""
    _, [channel] = client.open_channels(1, num_floating=8)

    client.connection.write_inbound(response(payload=b"squeezed", backlog=2, is_compressed=True))

    found = channel.next_buffer()
    assert found is not None
    assert found.buffer.is_compressed
    assert bytes(found.buffer.view) == b"squeezed"
    found.buffer.recycle()


def test_receive_backlog_announcement(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: backlog announcement.  2 exclusive, a pool of 8: 5 -> 7 of 7; 12 -> 10 of 14."""
    _, [channel] = client.open_channels(1, num_floating=8)
    manager = channel.buffer_manager
    assert (manager.num_available_buffers, manager.num_floating_available) == (2, 0)

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 5)))
    first = (manager.num_available_buffers, manager.num_required, manager.num_floating_available, channel.sender_backlog)
    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 12)))
    second = (manager.num_available_buffers, manager.num_required, manager.num_floating_available, channel.sender_backlog)

    assert first == (7, 7, 5, 5)
    assert second == (10, 14, 8, 12)


def test_backlog_announcement_without_exclusive_buffers(client: Client) -> None:
    """The request carries no credit; the announcement is answered with what the pool has."""
    _, [channel] = client.open_channels(1, num_floating=4, num_exclusive=0)

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 3)))

    request = PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), 0)
    sent = client.sent()
    assert sent[0] == request
    assert sum(each.credit for each in sent if isinstance(each, AddCredit)) == 3
    assert channel.num_credits_available == 3


def test_throw_exception_for_no_available_buffer(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: no available buffer is an error of that channel."""
    gate, [channel] = client.open_channels(1, num_floating=1, num_exclusive=0)
    assert channel.buffer_manager.num_available_buffers == 0

    client.connection.write_inbound(response(backlog=2))

    with pytest.raises(RemoteProtocolError, match="no buffer available"):
        gate.poll_next()
    assert client.connection.is_open


class StateChecker:
    """Answers with what it was made with."""

    def __init__(self, *answers: ProducerState) -> None:
        self.answers = list(answers)
        self.asked: list[ResultPartitionID] = []

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        self.asked.append(partition_id)
        on_result(self.answers.pop(0))


def test_receive_partition_not_found_exception(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: partition not found asks for the producer's state; alive, it is requested again."""
    checker = StateChecker(ProducerState.READY, ProducerState.UNKNOWN)
    gate = SingleInputGate("consumer", state_checker=checker)
    channel = RemoteInputChannel(gate, 0, receiver_of(1), partition_id_of(1), 0, client, backoff=RequestBackoff(100, 1000))
    channel.assign_exclusive_segments(client.pool, EXCLUSIVE)
    gate.add_channel(channel)
    client.gates.append(gate)
    gate.request_partitions()
    refusal = encode(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "not registered within 10 s", receiver_of(1)))

    client.connection.write_inbound(refusal)
    assert client.sent() == [PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE)] * 2
    assert gate.poll_next() is None
    client.connection.write_inbound(refusal)

    with pytest.raises(PartitionNotFoundError, match="not registered within 10 s"):
        gate.poll_next()
    assert checker.asked == [partition_id_of(1)] * 2


def test_cancel_before_active() -> None:
    """CreditBasedPartitionRequestClientHandlerTest: cancel before active.  Without a pipeline nothing happens, and nothing fails."""
    client = Client()
    _, [channel] = client.open_channels(1)
    handler = CreditBasedPartitionRequestClientHandler()

    handler.cancel(channel)
    handler.request_subpartition(channel)
    handler.resume_consumption(channel)
    handler.notify_credit_available(channel)
    handler.cancel(channel)
    handler.close_unused()

    assert handler.num_channels == 0
    client.close()


def test_notify_credit_available(hopping: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: credit batching, the golden scenario.

    Two channels each get a response with backlog 1: two credits each, in one AddCredit(2) each.  The socket takes nothing: a third response
    makes one credit, and nothing is written.  When it takes bytes again exactly one AddCredit(1) leaves.
    """
    loop = hopping.loop
    assert loop is not None
    _, [first, second] = hopping.open_channels(1, 2, num_floating=6)
    requests = [PartitionRequest(partition_id_of(number), 0, 0, receiver_of(number), 2) for number in (1, 2)]
    assert hopping.sent() == requests

    hopping.connection.write_inbound(response(1, 0, backlog=1))
    hopping.connection.write_inbound(response(2, 0, backlog=1))
    assert (first.unannounced_credit, second.unannounced_credit) == (2, 2)
    loop.run_pending()
    assert hopping.sent() == [AddCredit(receiver_of(1), 2), AddCredit(receiver_of(2), 2)]

    hopping.block()
    hopping.connection.write_inbound(response(1, 1, backlog=1))
    assert (first.unannounced_credit, second.unannounced_credit) == (1, 0)
    loop.run_pending()
    assert hopping.sent() == []

    hopping.unblock()
    assert hopping.sent() == [AddCredit(receiver_of(1), 1)]
    assert (first.unannounced_credit, second.unannounced_credit) == (0, 0)


def test_notify_credit_available_after_released(hopping: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: no credit is announced for a channel that was released after it got some."""
    loop = hopping.loop
    assert loop is not None
    gate, [channel] = hopping.open_channels(1, num_floating=6)
    hopping.sent()
    hopping.connection.write_inbound(response(backlog=1))
    assert channel.unannounced_credit == 2

    gate.close()
    loop.run_pending()

    assert hopping.sent() == [CancelPartitionRequest(receiver_of(1))]


@pytest.mark.parametrize("is_removed", [False, True], ids=["released", "removed"])
@pytest.mark.parametrize("is_read_before", [True, False], ids=["response before", "response after"])
def test_read_buffer_response_and_releasing_or_removing_channel(
    client: Client,
    is_removed: bool,
    is_read_before: bool,
) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: BufferResponse before/after releasing/removing the channel.  No buffer is lost."""
    gate, [channel] = client.open_channels(1)
    client.sent()
    frame = response(payload=bytes(200))
    client.connection.write_inbound(frame if is_read_before else frame[:100])

    client.is_deaf = not is_removed
    gate.close()
    client.connection.write_inbound(b"" if is_read_before else frame[100:])
    client.connection.write_inbound(response(sequence_number=1, payload=bytes(200)))

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert channel.num_queued_buffers == 0
    assert client.pool.num_available == client.pool.num_total


def test_do_not_fail_handler_on_single_channel_failure(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: an exception while one channel takes its buffer is that channel's error only."""
    failing, [channel] = client.open_channels(1)
    good = client.open_gate(2)

    def choke(message: BufferResponse) -> None:
        assert isinstance(message.buffer, NetworkBuffer)
        message.buffer.recycle()
        raise OSError("test exception on buffer")

    monkeypatch.setattr(channel.receiver, "on_response", choke)
    client.connection.write_inbound(response(1) + response(2))

    with pytest.raises(TransportError, match="test exception on buffer") as caught:
        failing.poll_next()
    assert isinstance(caught.value.__cause__, OSError)
    assert take(good) == b"data"
    late = client.open_gate(3)
    client.connection.write_inbound(response(3))
    assert take(late) == b"data", "the handler is not marked as failed"


class Throwing(ChannelHandler):
    """Fails at the first message."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (Exception(), TransportError, "connection to embedded failed: Exception"),
        (Exception("some error"), TransportError, "some error"),
        (ConnectionResetError(104, "Connection reset by peer"), ConnectionLostError, "Lost connection to task manager 'embedded'"),
        (OSError(104, "Connection reset by peer"), ConnectionLostError, "This indicates that the remote task manager was lost"),
        (BrokenPipeError(32, "Broken pipe"), ConnectionLostError, "Lost connection to task manager"),
    ],
)
def test_exception_wrap(cause: Exception, kind: type[NetstackError], text: str) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: exception wrap.  Local errors and lost peers are told apart, with the cause."""
    client = Client()
    client.connection = EmbeddedChannel(MessageDecoder.of(CONFIG, client.handler), Throwing(cause), client.handler, config=CONFIG)
    gate = client.open_gate()

    client.connection.write_inbound(response())

    with pytest.raises(kind, match=text) as caught:
        gate.poll_next()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause
    client.connection = EmbeddedChannel(MessageDecoder.of(CONFIG))
    gate.close()


def test_announce_buffer_size(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: announce buffer size.  One message per channel, in order."""
    gate, _ = client.open_channels(1, 2, num_floating=6)
    client.sent()

    gate.announce_buffer_size(333)

    assert client.sent() == [NewBufferSize(receiver_of(1), 333), NewBufferSize(receiver_of(2), 333)]


# ---------------------------------------------------------------- the order of orders


def test_orders_wait_for_the_socket_and_keep_their_order(client: Client) -> None:
    """Nothing overtakes; credit is summed up when it leaves, so the second announcement has nothing left to say."""
    gate, [channel] = client.open_channels(1)
    event = serialize_event(OtherEvent("org.example.Superstep", b""))
    for number in range(EXCLUSIVE):
        client.connection.write_inbound(response(sequence_number=number))
    client.sent()
    client.block()

    take(gate)
    client.handler.resume_consumption(channel)
    take(gate)
    client.handler.notify_credit_available(channel)
    client.handler.notify_new_buffer_size(channel, 300)
    client.handler.send_task_event(channel, event)
    client.handler.acknowledge_all_records_processed(channel)
    assert client.sent() == []
    client.unblock()

    me = receiver_of(1)
    assert client.sent() == [
        AddCredit(me, 2),
        ResumeConsumption(me),
        NewBufferSize(me, 300),
        TaskEventRequest(event, partition_id_of(1), me),
        AckAllUserRecordsProcessed(me),
    ]


def test_orders_of_a_channel_that_left_before_the_socket_took_them(client: Client) -> None:
    """The cancel is the last word: behind it they would name a stranger."""
    _, [leaving] = client.open_channels(1)
    _, [staying] = client.open_channels(2)
    client.sent()
    client.block()
    for channel in (leaving, staying):
        client.handler.resume_consumption(channel)

    client.handler.cancel(leaving)
    client.unblock()

    assert client.sent() == [CancelPartitionRequest(receiver_of(1)), ResumeConsumption(receiver_of(2))]


def test_a_receiver_that_was_a_stranger_can_be_cancelled_later(client: Client) -> None:
    """Told to stop before it asked, as after a lost order; as a channel it is told again."""
    client.connection.write_inbound(response(1))
    gate = client.open_gate(1)
    client.connection.write_inbound(response(1, sequence_number=29))

    with pytest.raises(RemoteProtocolError):
        gate.poll_next()
    cancel = CancelPartitionRequest(receiver_of(1))
    assert client.sent() == [cancel, PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE), cancel]


def test_a_backlog_of_a_channel_that_was_released_is_ignored(client: Client) -> None:
    """Its order to cancel is still under way; it takes no floating buffers any more."""
    gate, [channel] = client.open_channels(1, num_floating=4)
    client.is_deaf = True
    gate.close()

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 3)))

    assert channel.sender_backlog == 0


def test_orders_of_a_connection_that_ended_are_dropped(client: Client) -> None:
    """They are neither sent nor kept."""
    _, [channel] = client.open_channels(1)
    client.block()
    client.handler.resume_consumption(channel)

    client.connection.lose_connection()
    client.handler.resume_consumption(channel)
    client.handler.close_unused()

    assert client.handler.has_ended
    assert not client.handler._orders


def test_an_unused_connection_ends_with_a_close_request(client: Client) -> None:
    """Behind everything that was written before."""
    _, [channel] = client.open_channels(1)
    client.sent()
    client.handler.resume_consumption(channel)

    client.handler.close_unused()

    assert client.sent() == [ResumeConsumption(receiver_of(1)), CloseRequest()]
    assert not client.connection.is_open


def test_an_error_that_is_about_a_receiver_is_that_channels_only(client: Client) -> None:
    """Flink's scope on the wire is the connection; our own server says whom it means."""
    meant, good = client.open_gate(1), client.open_gate(2)
    client.sent()

    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.SUBPARTITION_TAKEN, "taken", None, about=receiver_of(1))))
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.UNKNOWN_RECEIVER, "who?", None, about=receiver_of(7))))
    client.connection.write_inbound(response(2))

    with pytest.raises(NetstackError, match="taken"):
        meant.poll_next()
    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert take(good) == b"data"


def test_a_backlog_that_a_channel_chokes_on_is_its_own_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour gets its floating buffers."""
    failing, [channel] = client.open_channels(1)
    _, [good] = client.open_channels(2, num_floating=4)

    def choke(backlog: int) -> None:
        raise OSError("callback")

    monkeypatch.setattr(channel.receiver, "on_sender_backlog", choke)
    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 3)) + encode(BacklogAnnouncement(receiver_of(2), 3)))

    with pytest.raises(TransportError, match="callback"):
        failing.poll_next()
    assert good.sender_backlog == 3


def test_a_state_check_that_fails_is_its_channels_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise wait for ever."""
    gate, [channel] = client.open_channels(1)

    def choke(error: PartitionNotFoundError) -> None:
        raise OSError("no job manager")

    monkeypatch.setattr(channel, "on_failed_partition_request", choke)
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "gone", receiver_of(1))))

    with pytest.raises(TransportError, match="no job manager"):
        gate.poll_next()


def test_a_server_that_sends_to_strangers_and_reads_nothing_is_cut_off(client: Client) -> None:
    """Our cancels do not pile up without bound."""
    gate = client.open_gate(1)
    client.block()

    num_sent = 0
    while client.connection.is_open and num_sent < 5000:
        num_sent += 1
        client.connection.write_inbound(response(10 + num_sent))

    assert num_sent == MAX_WAITING_REPLIES + 1
    with pytest.raises(RemoteProtocolError, match="does not read our answers"):
        gate.poll_next()


def test_a_stranger_that_was_forgotten_is_told_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of them is bounded."""
    monkeypatch.setattr("netstack.handlers.partition_request_client_handler._MAX_CANCELLED", 10)
    for number in range(20):
        client.connection.write_inbound(response(10 + number))
        client.connection.flush_outbound()
    client.sent()

    client.connection.write_inbound(response(10 + 19, data_type=DataType.END_OF_DATA))
    client.connection.write_inbound(response(10))

    assert client.sent() == [CancelPartitionRequest(receiver_of(10))]
