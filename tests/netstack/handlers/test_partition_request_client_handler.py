"""``CreditBasedPartitionRequestClientHandler``: buffers in, credit out, errors at the right scope.

Source: Flink ``CreditBasedPartitionRequestClientHandlerTest``, ``ClientTransportErrorHandlingTest``: the sections of
        these names.
"""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import (
    ConnectionLostError,
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
    RemoteProtocolError,
    TransportError,
)
from netstack.gate.channels.input_channel import ProducerState, RequestBackoff
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import input_channel_id
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder
from netstack.wire.events import OtherEvent, serialize_event
from netstack.wire.message_bytes import encode
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
from tests.netstack.connections import Consumer, Peer, serve, until
from tests.netstack.gate.channels.run_channel import num_own_and_floating
from tests.netstack.gate.manual_timers import ManualStateChecker
from tests.netstack.handlers.client_side import CONFIG, EXCLUSIVE, Client, ScriptedStateChecker, response, take
from tests.netstack.handlers.server_side import partition_id_of, receiver_of
from tests.netstack.present import present


@pytest.fixture
def hopping() -> Iterator[Client]:
    """A client whose announcements of credit take the hop to the loop, as in production."""
    one = Client(EmbeddedEventLoop())
    yield one
    one.close()
    assert one.loop is not None
    one.loop.close()


def test_more_than_the_credit_is_the_senders_error_and_only_its_channels(client: Client) -> None:
    """A third buffer on two credits: that channel fails and is cancelled, the other one reads on."""
    greedy, good = client.open_gate(1), client.open_gate(2)
    client.sent()

    for number in range(EXCLUSIVE + 1):
        client.connection.write_inbound(response(1, number))
    client.connection.write_inbound(response(2, 0))

    with pytest.raises(RemoteProtocolError, match="3 buffers sent, 2 credits granted"):
        greedy.poll_next()
    assert take(good) == b"data"
    assert CancelPartitionRequest(receiver_of(1)) in client.sent()
    assert client.connection.is_open
    assert client.handler.num_channels == 1


def test_an_unknown_receiver_is_told_to_stop_once(client: Client) -> None:
    """Two late buffers of a released channel cause one cancel."""
    client.connection.write_inbound(response(9, 0))
    client.connection.write_inbound(response(9, 1))

    assert client.sent() == [CancelPartitionRequest(receiver_of(9))]


def test_an_empty_buffer_gives_its_credit_back(client: Client) -> None:
    """The sender paid for nothing; the sequence goes on."""
    gate = client.open_gate()
    client.sent()

    client.connection.write_inbound(response(payload=b""))
    client.connection.write_inbound(response(sequence_number=1))

    assert client.sent() == [AddCredit(receiver_of(1), 1)]
    assert take(gate) == b"data"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FAILED, ProducerFailedError),
        (ErrorCode.LIMIT_EXCEEDED, LocalProtocolError),
        (ErrorCode.UNKNOWN_TASK_EVENT_RECEIVER, TransportError),
        (ErrorCode.UNKNOWN, TransportError),
        (ErrorCode.INTERNAL, TransportError),
    ],
)
def test_an_error_response_with_receiver_fails_that_channel(
    client: Client, code: ErrorCode, kind: type[NetstackError]
) -> None:
    """The task of the failed channel gets the text and the peer's address; the neighbour goes on."""
    failed, good = client.open_gate(1), client.open_gate(2)
    client.sent()

    client.connection.write_inbound(encode(ErrorResponse(code, "because", receiver_of(1))))
    client.connection.write_inbound(response(2))

    with pytest.raises(kind, match=r"Error at remote task manager 'embedded': because"):
        failed.poll_next()
    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert take(good) == b"data"


def test_an_error_response_without_receiver_is_fatal_for_the_connection(client: Client) -> None:
    """Every channel gets it, and a later request too, at once."""
    gates = [client.open_gate(1), client.open_gate(2)]

    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "boom", None)))
    late = client.open_gate(3)

    for gate in (*gates, late):
        with pytest.raises(TransportError, match=r"^Fatal error at remote task manager 'embedded': boom"):
            gate.poll_next()
    assert not client.connection.is_open
    client.connection.check_exception()


def test_a_lost_connection_is_an_error_of_every_channel_that_reads(client: Client) -> None:
    """A channel that has its end of partition already is not spoiled."""
    ended, reading = client.open_gate(1), client.open_gate(2)
    client.connection.write_inbound(response(1, 0, b"\0\0\0\0", DataType.END_OF_PARTITION))

    client.connection.lose_connection()

    present(ended.poll_next())
    assert ended.is_finished
    with pytest.raises(ConnectionLostError, match="embedded"):
        reading.poll_next()


def test_a_message_for_servers_ends_the_connection(client: Client) -> None:
    """A client ends the connection at a message that it does not understand."""
    gate = client.open_gate()

    client.connection.write_inbound(encode(CloseRequest()))

    with pytest.raises(RemoteProtocolError, match="does not serve CloseRequest"):
        gate.poll_next()


def test_a_backlog_is_remembered(client: Client) -> None:
    """A channel keeps its sender's backlog, which gives no credit without floating buffers."""
    _, [channel] = client.open_channels(1)
    client.sent()

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 5)))
    client.connection.write_inbound(encode(BacklogAnnouncement(input_channel_id(77, 0), 5)))

    assert channel.sender_backlog == 5
    assert client.sent() == []


def test_a_channel_that_was_told_to_stop_acknowledges_nothing(client: Client) -> None:
    """It would name an unknown receiver: the buffer came before the cancel left."""
    gate = client.open_gate()
    [channel] = gate.channels
    assert isinstance(channel, RemoteInputChannel)
    client.sent()
    client.is_deaf = True  # the release's own order is still under way
    gate.close()
    client.is_deaf = False

    client.connection.write_inbound(response())
    client.handler.order(channel, AckAllUserRecordsProcessed(channel.channel_id))
    client.handler.cancel(channel)

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert client.handler.num_channels == 0


def test_every_channel_learns_the_error_even_if_a_task_chokes_on_it(client: Client) -> None:
    """A callback that raises in the first gate does not leave the second one asleep."""

    def choke() -> None:
        raise OSError("callback")

    gates = [client.open_gate(number) for number in (1, 2, 3)]
    for gate in gates[:2]:
        gate.available_future().add_done_callback(choke)

    client.connection.lose_connection()

    for gate in gates:
        with pytest.raises(ConnectionLostError):
            gate.poll_next()


def test_the_first_error_is_the_one_that_is_told(client: Client) -> None:
    """A later channel gets the cause as its error, not the end of the connection that followed from it."""
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "boom", None)))
    client.connection.pipeline.head.fire_exception_caught(OSError("reset"))

    late = client.open_gate()

    with pytest.raises(TransportError, match="boom"):
        late.poll_next()
    assert client.sent() == []


def test_a_cancelled_channel_is_left_out_when_credit_is_announced(client: Client) -> None:
    """Only the other one of two channels with waiting credit announces it when one of them closes."""
    leaving, staying = client.open_gate(1), client.open_gate(2)
    for number in (1, 2):
        client.connection.write_inbound(response(number))
    client.sent()
    client.block()
    take(leaving)
    take(staying)

    leaving.close()
    client.connection.flush_outbound()

    assert [each for each in client.sent() if isinstance(each, AddCredit)] == [AddCredit(receiver_of(2), 1)]


# ---------------------------------------------------------------- waking tasks


def test_a_task_is_woken_once_all_that_came_together_is_queued(client: Client) -> None:
    """Two buffers of one read cause one wake-up, after which the task finds both."""
    gate = client.open_gate()
    client.sent()
    seen: list[int] = []
    gate.available_future().add_done_callback(lambda: seen.append(gate.statistics().num_queued_buffers))

    client.connection.write_inbound(b"".join(response(1, number) for number in range(2)))

    assert seen == [2]


def test_a_waiter_that_fails_ends_its_own_channel_only(client: Client) -> None:
    """FLINK-9755: the neighbour's task is woken nevertheless."""
    broken, good = client.open_gate(1), client.open_gate(2)
    client.sent()
    woken: list[str] = []

    def fail() -> None:
        raise ValueError("the task's own trouble")

    broken.available_future().add_done_callback(fail)
    good.available_future().add_done_callback(lambda: woken.append("good"))

    client.connection.write_inbound(response(1) + response(2))

    assert woken == ["good"]
    assert take(good) == b"data"
    with pytest.raises(TransportError, match="the task's own trouble"):
        broken.poll_next()
    assert client.connection.is_open


def test_a_request_that_is_out_is_not_sent_again(client: Client) -> None:
    """It would be a second receiver of that name, unless the server does not know the partition."""
    checker = ManualStateChecker()
    gate = client.open_gate(state_checker=checker)
    [channel] = gate.channels
    assert isinstance(channel, RemoteInputChannel)
    wanted = PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE)

    client.handler.request_subpartition(channel)
    first = client.sent()
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "not here", receiver_of(1))))
    client.handler.request_subpartition(channel)
    client.handler.request_subpartition(channel)

    assert (first, len(checker.asked), client.sent()) == ([wanted], 1, [wanted])


def test_a_task_of_many_channels_may_leave_while_the_socket_takes_nothing(client: Client) -> None:
    """Its cancels are no answers to a peer that misbehaves: other tasks keep the connection."""
    other = client.open_gate(5000, num_exclusive=1)
    gate, _ = client.open_channels(*range(1, 1202), num_exclusive=0, num_floating=1)
    client.sent()
    client.block()

    gate.close()
    client.unblock()
    client.connection.write_inbound(response(5000))

    assert client.connection.is_open
    assert take(other) == b"data"
    client.connection.flush_outbound()
    assert len([each for each in client.sent() if isinstance(each, CancelPartitionRequest)]) == 1201


# ---------------------------------------------------------------- CreditBasedPartitionRequestClientHandlerTest


def test_receive_compressed_buffer(client: Client) -> None:
    """Receive compressed buffer. The flag of the header reaches the channel."""
    _, [channel] = client.open_channels(1, num_floating=8)

    client.connection.write_inbound(response(payload=b"squeezed", backlog=2, is_compressed=True))

    found = present(channel.next_buffer())
    assert found.buffer.is_compressed
    assert bytes(found.buffer.view) == b"squeezed"
    found.buffer.recycle()


def test_receive_backlog_announcement(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: 2 exclusive buffers, a pool of 8: 5 -> 7 of 7; 12 -> 10 of 14."""
    _, [channel] = client.open_channels(1, num_floating=8)
    manager, seen = channel.buffer_manager, []
    assert (manager.num_available_buffers, num_own_and_floating(manager)[1]) == (2, 0)

    for backlog in (5, 12):
        client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), backlog)))
        floating = num_own_and_floating(manager)[1]
        seen.append((manager.num_available_buffers, manager.num_required, floating, channel.sender_backlog))

    assert seen == [(7, 7, 5, 5), (10, 14, 8, 12)]


def test_backlog_announcement_without_exclusive_buffers(client: Client) -> None:
    """The request carries no credit; the announcement is answered with what the pool has."""
    _, [channel] = client.open_channels(1, num_floating=4, num_exclusive=0)

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 3)))

    request = PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), 0)
    sent = client.sent()
    assert sent[0] == request
    assert sum(each.credit for each in sent if isinstance(each, AddCredit)) == 3
    assert channel.buffer_manager.num_credits_available == 3


def test_throw_exception_for_no_available_buffer(client: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: no available buffer is an error of that channel."""
    gate, [channel] = client.open_channels(1, num_floating=1, num_exclusive=0)
    assert channel.buffer_manager.num_available_buffers == 0

    client.connection.write_inbound(response(backlog=2))

    with pytest.raises(RemoteProtocolError, match="no buffer available"):
        gate.poll_next()
    assert client.connection.is_open


def test_receive_partition_not_found_exception(client: Client) -> None:
    """Partition not found asks for the producer's state; alive, it is requested again."""
    checker = ScriptedStateChecker(ProducerState.READY, ProducerState.UNKNOWN)
    gate = client.open_gate(1, state_checker=checker, backoff=RequestBackoff(1000, 100))
    refusal = encode(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "not registered within 10 s", receiver_of(1)))

    client.connection.write_inbound(refusal)
    assert client.sent() == [PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE)] * 2
    assert gate.poll_next() is None
    client.connection.write_inbound(refusal)

    with pytest.raises(PartitionNotFoundError, match="not registered within 10 s"):
        gate.poll_next()
    assert checker.asked == [partition_id_of(1)] * 2


def test_cancel_before_active(client: Client) -> None:
    """Cancel before active. Without a pipeline nothing happens, and nothing fails."""
    _, [channel] = client.open_channels(1)
    handler = CreditBasedPartitionRequestClientHandler()

    handler.cancel(channel)
    handler.request_subpartition(channel)
    handler.order(channel, ResumeConsumption(channel.channel_id))
    handler.order(channel, None)
    handler.cancel(channel)
    handler.close_unused()

    assert handler.num_channels == 0


def test_notify_credit_available(hopping: Client) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: credit batching, the golden scenario.

    Two channels each get a response with backlog 1: two credits each, in one AddCredit(2) each.  The socket takes
    nothing: a third response makes one credit, and nothing is written.  When it takes bytes again exactly one
    AddCredit(1) leaves.
    """
    loop = present(hopping.loop)
    _, [first, second] = hopping.open_channels(1, 2, num_floating=6)
    requests = [PartitionRequest(partition_id_of(number), 0, 0, receiver_of(number), 2) for number in (1, 2)]
    assert hopping.sent() == requests

    hopping.connection.write_inbound(response(1, 0, backlog=1))
    hopping.connection.write_inbound(response(2, 0, backlog=1))
    assert (first.buffer_manager.num_unannounced, second.buffer_manager.num_unannounced) == (2, 2)
    loop.run_pending()
    assert hopping.sent() == [AddCredit(receiver_of(1), 2), AddCredit(receiver_of(2), 2)]

    hopping.block()
    hopping.connection.write_inbound(response(1, 1, backlog=1))
    assert (first.buffer_manager.num_unannounced, second.buffer_manager.num_unannounced) == (1, 0)
    loop.run_pending()
    assert hopping.sent() == []

    hopping.unblock()
    assert hopping.sent() == [AddCredit(receiver_of(1), 1)]
    assert (first.buffer_manager.num_unannounced, second.buffer_manager.num_unannounced) == (0, 0)


def test_notify_credit_available_after_released(hopping: Client) -> None:
    """No credit is announced for a channel that was released after it got some."""
    loop = present(hopping.loop)
    gate, [channel] = hopping.open_channels(1, num_floating=6)
    hopping.sent()
    hopping.connection.write_inbound(response(backlog=1))
    assert channel.buffer_manager.num_unannounced == 2

    gate.close()
    loop.run_pending()

    assert hopping.sent() == [CancelPartitionRequest(receiver_of(1))]


@pytest.mark.parametrize("is_removed", [False, True], ids=["released", "removed"])
@pytest.mark.parametrize("is_read_before", [True, False], ids=["response before", "response after"])
def test_read_buffer_response_and_releasing_or_removing_channel(
    client: Client, is_removed: bool, is_read_before: bool
) -> None:
    """BufferResponse before/after releasing/removing the channel. No buffer is lost."""
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
    assert client.handler.num_channels == 0
    assert client.pool.num_available == client.pool.num_total


@pytest.mark.parametrize(
    ("method", "frame"),
    [
        ("on_response", response(1)),
        ("on_sender_backlog", encode(BacklogAnnouncement(receiver_of(1), 3))),
        ("on_failed_partition_request", encode(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "gone", receiver_of(1)))),
    ],
    ids=["a buffer", "a backlog", "a check of the producer's state"],
)
def test_do_not_fail_handler_on_single_channel_failure(
    client: Client, monkeypatch: pytest.MonkeyPatch, method: str, frame: bytes
) -> None:
    """CreditBasedPartitionRequestClientHandlerTest: it is that channel's error only, which does not wait for ever."""
    failing, [channel] = client.open_channels(1)
    good, [neighbour] = client.open_channels(2, num_floating=4)

    def choke(told: object) -> None:
        if isinstance(told, BufferResponse):
            assert isinstance(told.buffer, NetworkBuffer)
            told.buffer.recycle()
        raise OSError("test exception")

    monkeypatch.setattr(channel, method, choke)
    client.connection.write_inbound(frame + encode(BacklogAnnouncement(receiver_of(2), 3)) + response(2, backlog=2))

    with pytest.raises(TransportError, match="test exception") as caught:
        failing.poll_next()
    assert isinstance(caught.value.__cause__, OSError)
    assert (neighbour.sender_backlog, take(good)) == (2, b"data")
    late = client.open_gate(3)
    client.connection.write_inbound(response(3))
    assert take(late) == b"data", "the handler is not marked as failed"


class Throwing(ChannelHandler):
    """Fails at the first message, whose buffer it recycles."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        assert isinstance(message, BufferResponse)
        present(message.buffer).recycle()
        raise self._error


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (Exception(), TransportError, "connection to embedded failed: Exception"),
        (Exception("some error"), TransportError, "some error"),
        (
            ConnectionResetError(104, "Connection reset by peer"),
            ConnectionLostError,
            "Lost connection to task manager 'embedded'",
        ),
        (
            OSError(104, "Connection reset by peer"),
            ConnectionLostError,
            "This indicates that the remote task manager was lost",
        ),
        (BrokenPipeError(32, "Broken pipe"), ConnectionLostError, "Lost connection to task manager"),
    ],
)
def test_exception_wrap(client: Client, cause: Exception, kind: type[NetstackError], text: str) -> None:
    """Exception wrap. Local errors and lost peers can be told apart, and have the cause."""
    client.connection = EmbeddedChannel(
        MessageDecoder(CONFIG, client.handler), Throwing(cause), client.handler, config=CONFIG
    )
    gate = client.open_gate()

    client.connection.write_inbound(response())

    with pytest.raises(kind, match=text) as caught:
        gate.poll_next()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause
    client.connection = EmbeddedChannel(MessageDecoder(CONFIG))
    gate.close()


# ---------------------------------------------------------------- the order of orders


def test_orders_wait_for_the_socket_and_keep_their_order(client: Client) -> None:
    """Credit is summed up when it leaves: the second announcement sends no message."""
    gate, [channel] = client.open_channels(1)
    event = serialize_event(OtherEvent("org.example.Superstep", b""))
    for number in range(EXCLUSIVE):
        client.connection.write_inbound(response(sequence_number=number))
    client.sent()
    client.block()

    take(gate)
    client.handler.order(channel, ResumeConsumption(channel.channel_id))
    take(gate)
    client.handler.order(channel, None)
    client.handler.order(channel, NewBufferSize(channel.channel_id, 300))
    client.handler.order(channel, TaskEventRequest(event, channel.partition_id, channel.channel_id))
    client.handler.order(channel, AckAllUserRecordsProcessed(channel.channel_id))
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
        client.handler.order(channel, ResumeConsumption(channel.channel_id))

    client.handler.cancel(leaving)
    client.unblock()

    assert client.sent() == [CancelPartitionRequest(receiver_of(1)), ResumeConsumption(receiver_of(2))]


def test_a_receiver_that_was_a_stranger_can_be_cancelled_later(client: Client) -> None:
    """A receiver that was cancelled before its request, as after a lost order, can be cancelled again as a channel."""
    client.connection.write_inbound(response(1))
    gate = client.open_gate(1)
    client.connection.write_inbound(response(1, sequence_number=29))

    with pytest.raises(RemoteProtocolError):
        gate.poll_next()
    cancel = CancelPartitionRequest(receiver_of(1))
    assert client.sent() == [cancel, PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE), cancel]


def test_a_backlog_of_a_channel_that_was_released_is_ignored(client: Client) -> None:
    """A released channel whose cancel is still under way takes no floating buffers."""
    gate, [channel] = client.open_channels(1, num_floating=4)
    client.is_deaf = True
    gate.close()

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 3)))

    assert channel.sender_backlog == 0


def test_orders_of_a_connection_that_ended_are_dropped(client: Client) -> None:
    """Orders of a connection that ended are neither sent nor kept."""
    _, [channel] = client.open_channels(1)
    client.block()
    client.handler.order(channel, ResumeConsumption(channel.channel_id))

    client.connection.lose_connection()
    client.handler.order(channel, ResumeConsumption(channel.channel_id))
    client.handler.close_unused()

    assert client.handler.has_ended
    assert not client.handler._orders


def test_a_handler_of_the_next_attempt_to_connect_has_not_ended(client: Client) -> None:
    """A handshake that came too late is repeated with its handler."""
    client.connection.lose_connection()
    assert client.handler.has_ended

    client.connection = EmbeddedChannel(MessageDecoder(CONFIG, client.handler), client.handler, config=CONFIG)

    assert not client.handler.has_ended


def test_an_unused_connection_ends_with_a_close_request(client: Client) -> None:
    """The close request follows all earlier messages."""
    _, [channel] = client.open_channels(1)
    client.sent()
    client.handler.order(channel, ResumeConsumption(channel.channel_id))

    client.handler.close_unused()

    assert client.sent() == [ResumeConsumption(receiver_of(1)), CloseRequest()]
    assert not client.connection.is_open


def test_an_error_that_is_about_a_receiver_is_that_channels_only(client: Client) -> None:
    """Flink's scope on the wire is the connection; our own server says whom it means."""
    meant, good = client.open_gate(1), client.open_gate(2)
    client.sent()

    client.connection.write_inbound(
        encode(ErrorResponse(ErrorCode.SUBPARTITION_TAKEN, "taken", None, about=receiver_of(1)))
    )
    client.connection.write_inbound(
        encode(ErrorResponse(ErrorCode.UNKNOWN_RECEIVER, "who?", None, about=receiver_of(7)))
    )
    client.connection.write_inbound(response(2))

    with pytest.raises(NetstackError, match="taken"):
        meant.poll_next()
    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert take(good) == b"data"


def test_a_server_that_sends_to_strangers_and_reads_nothing_is_cut_off(client: Client) -> None:
    """A server that reads nothing cannot make the client's cancels pile up without bound."""
    gate = client.open_gate(1)
    client.block()

    num_sent = 0
    while client.connection.is_open and num_sent < 5000:
        num_sent += 1
        client.connection.write_inbound(response(10 + num_sent))

    assert num_sent == 1001, "a thousand may wait"
    with pytest.raises(RemoteProtocolError, match="does not read our answers"):
        gate.poll_next()


def test_a_stranger_that_was_forgotten_is_told_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of unknown receivers that a client remembers is bounded."""
    monkeypatch.setattr("netstack.handlers.partition_request_client_handler._MAX_CANCELLED", 10)
    for number in range(20):
        client.connection.write_inbound(response(10 + number))
        client.connection.flush_outbound()
    client.sent()

    client.connection.write_inbound(response(10 + 19, data_type=DataType.END_OF_DATA))
    client.connection.write_inbound(response(10))

    assert client.sent() == [CancelPartitionRequest(receiver_of(10))]


# ---------------------------------------------------------------- ClientTransportErrorHandlingTest


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [LocalProtocolError("expected"), RuntimeError("expected")])
def test_exception_on_write(client: Client, error: Exception, failing: int) -> None:
    """Exception on write. Of two requests one fails; only its channel is notified."""

    class Failing(ChannelHandler):
        def write(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, PartitionRequest) and message.receiver == receiver_of(failing):
                raise error
            ctx.write(message)

    client.connection = EmbeddedChannel(
        Failing(), MessageDecoder(CONFIG, client.handler), client.handler, config=CONFIG
    )

    gates = {number: client.open_gate(number) for number in (1, 2)}
    client.connection.write_inbound(response(3 - failing))

    with pytest.raises(NetstackError, match="expected") as caught:
        gates[failing].poll_next()
    assert error in (caught.value, caught.value.__cause__)
    assert take(gates[3 - failing]) == b"data"
    assert client.connection.is_open
    assert client.handler.num_channels == 1


async def test_exception_on_remote_close() -> None:
    """Exception on remote close: both channels get the error, with the peer's address."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gates = [consumer.gate(address, 1), consumer.gate(address, 2)]
    await until(lambda: len(peer.received) == 2)

    peer.contexts[0].close()

    for gate in gates:
        error = await consumer.error_of(gate)
        assert isinstance(error, ConnectionLostError)
        assert str(error) == (
            f"Connection unexpectedly closed by remote task manager '{address}'. This might indicate that the remote "
            "task manager was lost."
        )
    await consumer.close()
    await server.close()


def test_connection_reset_by_peer(client: Client) -> None:
    """ClientTransportErrorHandlingTest: connection reset by peer.  Another text, the system's word as the cause."""
    gate = client.open_gate()
    reset = ConnectionResetError(104, "Connection reset by peer")
    lost = ConnectionLostError("lost the connection")
    lost.__cause__ = reset

    client.connection.lose_connection(lost)

    with pytest.raises(ConnectionLostError) as caught:
        gate.poll_next()
    assert (
        str(caught.value)
        == "Lost connection to task manager 'embedded'. This indicates that the remote task manager was lost."
    )
    assert caught.value.__cause__ is reset


def test_channel_closed_on_exception_during_error_notification(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that fails to take its error keeps neither the close nor the other channels' errors."""
    _, [broken] = client.open_channels(1)
    good = client.open_gate(2)

    def choke(error: NetstackError) -> None:
        raise RuntimeError("expected test exception")

    monkeypatch.setattr(broken, "on_error", choke)
    client.connection.pipeline.head.fire_exception_caught(Exception("first"))

    assert not client.connection.is_open
    client.connection.check_exception()
    with pytest.raises(TransportError, match="first"):
        good.poll_next()


def test_errors_of_channels_that_have_ended_cannot_fill_the_log(client: Client) -> None:
    """A peer may send any number of them, and none does any harm."""
    client.open_gate(1)
    error = encode(ErrorResponse(ErrorCode.UNKNOWN_RECEIVER, "who?", None, about=receiver_of(7)))

    with capture_logs() as logs:
        for _ in range(100):
            client.connection.write_inbound(error)

    assert 1 <= len([line for line in logs if line["event"] == "an error of a channel that has ended"]) <= 20
