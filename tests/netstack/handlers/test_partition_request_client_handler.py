"""``CreditBasedPartitionRequestClientHandler``: buffers in, credit out, errors at the right scope."""

from collections.abc import Iterator

import pytest

from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.message_codec import MessageDecoder
from netstack.channel.outbound_buffer import OutboundFrame
from netstack.errors import (
    ConnectionLostError,
    LocalProtocolError,
    NetstackError,
    ProducerFailedError,
    RemoteProtocolError,
    TransportError,
)
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import input_channel_id
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.wire.codec import encode
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
)
from tests.netstack.gate.manual_timers import ManualStateChecker
from tests.netstack.handlers.client_side import CONFIG, EXCLUSIVE, SEGMENT, Client, response, take
from tests.netstack.handlers.server_side import partition_id_of, receiver_of


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()


def test_the_request_carries_the_exclusive_buffers_as_credit(client: Client) -> None:
    """One request, with the initial credit."""
    client.open_gate()

    assert client.sent() == [PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), EXCLUSIVE)]


def test_recycled_buffers_become_one_announcement(client: Client) -> None:
    """While the socket is not writable credit adds up; once it is, the sum leaves in one message."""
    gate = client.open_gate()
    client.sent()
    for number in range(EXCLUSIVE):
        client.connection.write_inbound(response(sequence_number=number))
    client.connection.write(OutboundFrame((bytes(2 * SEGMENT + 1),), None))
    assert not client.connection.is_writable

    take(gate)
    take(gate)
    before = [each for each in client.sent() if isinstance(each, AddCredit)]
    client.connection.flush_outbound()

    assert before == []
    assert [each for each in client.sent() if isinstance(each, AddCredit)] == [AddCredit(receiver_of(1), EXCLUSIVE)]


def test_credit_is_announced_as_buffers_come_back(client: Client) -> None:
    """On a writable socket every change from nothing to something is told."""
    gate = client.open_gate()
    client.sent()
    client.connection.write_inbound(response())

    take(gate)

    assert client.sent() == [AddCredit(receiver_of(1), 1)]


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


def test_a_wrong_sequence_number_is_an_error_of_the_channel(client: Client) -> None:
    """The message names what was expected and what came."""
    gate = client.open_gate()

    client.connection.write_inbound(response(sequence_number=29))

    with pytest.raises(RemoteProtocolError, match=r"expected sequence number 0, but received 29"):
        gate.poll_next()


def test_an_unknown_receiver_is_told_to_stop_once(client: Client) -> None:
    """Two late buffers of a channel that is gone: one cancel."""
    client.connection.write_inbound(response(9, 0))
    client.connection.write_inbound(response(9, 1))

    assert client.sent() == [CancelPartitionRequest(receiver_of(9))]


def test_a_closed_gate_cancels_and_drops_what_still_comes(client: Client) -> None:
    """After the close nothing is delivered, and all segments are back (checked at the end)."""
    gate = client.open_gate()
    client.sent()

    gate.close()
    client.connection.write_inbound(response())

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert client.handler.num_channels == 0


def test_events_take_no_exclusive_buffer(client: Client) -> None:
    """With all credit spent an event still gets through."""
    gate = client.open_gate()
    for number in range(EXCLUSIVE):
        client.connection.write_inbound(response(sequence_number=number))

    client.connection.write_inbound(response(1, EXCLUSIVE, b"\0\0\0\x08\0", DataType.END_OF_DATA))

    assert [take(gate), take(gate)] == [b"data"] * 2
    found = gate.poll_next()
    assert found is not None
    assert found.event is not None


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
    ],
)
def test_an_error_response_with_receiver_fails_that_channel(client: Client, code: ErrorCode, kind: type[NetstackError]) -> None:
    """Its text and the reporting peer reach the task; the neighbour goes on."""
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
        with pytest.raises(TransportError, match="boom"):
            gate.poll_next()
    assert not client.connection.is_open


def test_a_lost_connection_is_an_error_of_every_channel_that_reads(client: Client) -> None:
    """A channel that has its end of partition already is not spoiled."""
    ended, reading = client.open_gate(1), client.open_gate(2)
    client.connection.write_inbound(response(1, 0, b"\0\0\0\0", DataType.END_OF_PARTITION))

    client.connection.lose_connection()

    found = ended.poll_next()
    assert found is not None
    assert ended.is_finished
    with pytest.raises(ConnectionLostError, match="embedded"):
        reading.poll_next()


def test_an_exception_of_the_pipeline_keeps_its_cause(client: Client) -> None:
    """A foreign exception is translated once, with ``from``."""
    gate = client.open_gate()

    client.connection.pipeline.fire_exception_caught(OSError("reset by peer"))

    with pytest.raises(TransportError, match="reset by peer") as caught:
        gate.poll_next()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_message_for_servers_ends_the_connection(client: Client) -> None:
    """A client never ignores what it does not understand."""
    gate = client.open_gate()

    client.connection.write_inbound(encode(CloseRequest()))

    with pytest.raises(RemoteProtocolError, match="does not serve CloseRequest"):
        gate.poll_next()


def test_the_end_of_data_is_acknowledged_once_per_channel(client: Client) -> None:
    """And by nobody after its cancel."""
    gate = client.open_gate()
    client.sent()

    gate.acknowledge_all_records_processed(0)

    assert client.sent() == [AckAllUserRecordsProcessed(receiver_of(1))]


def test_a_backlog_is_remembered(client: Client) -> None:
    """For whoever asks; it gives no credit without floating buffers."""
    gate = SingleInputGate("consumer")
    channel = RemoteInputChannel(gate, 0, receiver_of(1), partition_id_of(1), 0, client)
    channel.assign_exclusive_segments(client.pool, EXCLUSIVE)
    gate.add_channel(channel)
    gate.request_partitions()
    client.gates.append(gate)
    client.sent()

    client.connection.write_inbound(encode(BacklogAnnouncement(receiver_of(1), 5)))
    client.connection.write_inbound(encode(BacklogAnnouncement(input_channel_id(77, 0), 5)))

    assert channel.sender_backlog == 5
    assert client.sent() == []


def test_a_channel_that_was_told_to_stop_acknowledges_nothing(client: Client) -> None:
    """Its buffer came after its release but before its orders: after the cancel an acknowledgement would name a stranger."""
    gate = client.open_gate()
    [channel] = gate.channels
    assert isinstance(channel, RemoteInputChannel)
    client.sent()
    client.is_deaf = True  # the release's own order is still under way
    gate.close()
    client.is_deaf = False

    client.connection.write_inbound(response())
    client.handler.acknowledge_all_records_processed(channel)
    client.handler.cancel(channel)

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    assert client.handler.num_channels == 0


def test_a_request_that_cannot_be_written_fails_its_channel(client: Client) -> None:
    """The encoder refuses it; the task learns that, and the connection goes on."""

    class Refusing(ChannelHandler):
        def write(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, PartitionRequest) and message.receiver == receiver_of(1):
                raise LocalProtocolError("no such number")
            ctx.write(message)

    client.handler = CreditBasedPartitionRequestClientHandler()
    client.connection = EmbeddedChannel(Refusing(), MessageDecoder.of(CONFIG, client.handler), client.handler, config=CONFIG)

    refused, good = client.open_gate(1), client.open_gate(2)
    client.connection.write_inbound(response(2))

    with pytest.raises(LocalProtocolError, match="no such number"):
        refused.poll_next()
    assert take(good) == b"data"
    assert client.handler.num_channels == 1


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
    """Whoever asks later gets the cause, not the end of the connection that followed from it."""
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "boom", None)))
    client.connection.pipeline.fire_exception_caught(OSError("reset"))

    late = client.open_gate()

    with pytest.raises(TransportError, match="boom"):
        late.poll_next()
    assert client.sent() == []


def test_a_cancelled_channel_is_left_out_when_credit_is_announced(client: Client) -> None:
    """Both wait for the socket; the one that closed meanwhile announces nothing, the other one does."""
    leaving, staying = client.open_gate(1), client.open_gate(2)
    for number in (1, 2):
        client.connection.write_inbound(response(number))
    client.sent()
    client.connection.write(OutboundFrame((bytes(2 * SEGMENT + 1),), None))
    take(leaving)
    take(staying)

    leaving.close()
    client.connection.flush_outbound()

    assert [each for each in client.sent() if isinstance(each, AddCredit)] == [AddCredit(receiver_of(2), 1)]


# ---------------------------------------------------------------- waking tasks


def test_a_task_is_woken_once_all_that_came_together_is_queued(client: Client) -> None:
    """Two buffers in one read: one wake-up, and it finds both."""
    gate = client.open_gate()
    client.sent()
    seen: list[int] = []
    gate.available_future().add_done_callback(lambda: seen.append(gate.statistics().num_queued_buffers))

    client.connection.write_inbound(b"".join(response(1, number) for number in range(2)))

    assert seen == [2]


def test_a_waiter_that_fails_ends_its_own_channel_only(client: Client) -> None:
    """FLINK-9755: what a task hung on its future raises; its channel says so, the neighbour's task is woken all the same."""
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
    """The server would take it for a second receiver of the same name; once it said that there is no such partition it is sent again."""
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
    """Its cancels are no answers to a peer that misbehaves: whoever shares the connection goes on."""
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
