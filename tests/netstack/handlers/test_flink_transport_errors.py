"""The scenarios of Flink's ``ClientTransportErrorHandlingTest`` and ``ServerTransportErrorHandlingTest``."""

import asyncio
from collections.abc import Iterator

import pytest

from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.message_codec import MessageDecoder, MessageEncoder
from netstack.channel.server import NetworkServer
from netstack.errors import ConnectionLostError, LocalProtocolError, NetstackError, TransportError
from netstack.eventloop import EventLoopThread
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.wire.codec import encode
from netstack.wire.messages import ErrorCode, ErrorResponse, PartitionRequest
from tests.netstack.connections import Consumer, Peer, serve, until
from tests.netstack.handlers.client_side import CONFIG, Client, response, take
from tests.netstack.handlers.doubles import DATA, ScriptedView, block, notify, open_reader
from tests.netstack.handlers.server_side import SEGMENT, ServerSide, fill, receiver_of, request


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()


@pytest.fixture
def server() -> Iterator[ServerSide]:
    side = ServerSide()
    yield side
    side.close()


# ---------------------------------------------------------------- ClientTransportErrorHandlingTest


@pytest.mark.parametrize("error", [LocalProtocolError("expected"), RuntimeError("expected")])
def test_exception_on_write(error: Exception) -> None:
    """ClientTransportErrorHandlingTest: exception on write.  Of two requests the second fails; only its channel is notified."""

    class FailingAtTheSecond(ChannelHandler):
        num_writes = 0

        def write(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, PartitionRequest):
                self.num_writes += 1
                if self.num_writes == 2:
                    raise error
            ctx.write(message)

    client = Client()
    client.connection = EmbeddedChannel(FailingAtTheSecond(), MessageDecoder.of(CONFIG, client.handler), client.handler, config=CONFIG)

    good, failed = client.open_gate(1), client.open_gate(2)
    client.connection.write_inbound(response(1))

    with pytest.raises(NetstackError, match="expected") as caught:
        failed.poll_next()
    assert error in (caught.value, caught.value.__cause__)
    assert take(good) == b"data"
    assert client.connection.is_open
    client.close()


def test_wrapping_of_remote_error_message(client: Client) -> None:
    """ClientTransportErrorHandlingTest: wrapping of remote errors.  One for a channel is that channel's, one without is everybody's."""
    gates = [client.open_gate(1), client.open_gate(2)]

    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "Expected test exception", receiver_of(1))))
    with pytest.raises(TransportError, match="Error at remote task manager 'embedded': Expected test exception"):
        gates[0].poll_next()
    assert gates[1].poll_next() is None
    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "Expected test exception", None)))

    with pytest.raises(TransportError, match=r"^Error at"):
        gates[0].poll_next()
    with pytest.raises(TransportError, match="Fatal error at remote task manager 'embedded': Expected test exception"):
        gates[1].poll_next()
    client.connection.check_exception()


async def test_exception_on_remote_close() -> None:
    """ClientTransportErrorHandlingTest: exception on remote close.  Both channels are told, with the peer's address."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gates = [consumer.gate(address, 1), consumer.gate(address, 2)]
    await until(lambda: len(peer.received) == 2)

    peer.contexts[0].close()

    for gate in gates:
        error = await consumer.error_of(gate)
        assert isinstance(error, ConnectionLostError)
        assert str(error) == (
            f"Connection unexpectedly closed by remote task manager '{address}'. This might indicate that the remote task manager was lost."
        )
    await consumer.close()
    await server.close()


def test_exception_caught(client: Client) -> None:
    """ClientTransportErrorHandlingTest: exception caught.  It does not reach the end of the pipeline, and every channel gets it."""
    gates = [client.open_gate(1), client.open_gate(2)]

    client.connection.pipeline.fire_exception_caught(Exception())

    client.connection.check_exception()
    for gate in gates:
        with pytest.raises(TransportError, match="connection to embedded failed"):
            gate.poll_next()


def test_connection_reset_by_peer(client: Client) -> None:
    """ClientTransportErrorHandlingTest: connection reset by peer.  Another text, the system's word as the cause."""
    gate = client.open_gate()
    reset = ConnectionResetError(104, "Connection reset by peer")
    lost = ConnectionLostError("lost the connection")
    lost.__cause__ = reset

    client.connection.lose_connection(lost)

    with pytest.raises(ConnectionLostError) as caught:
        gate.poll_next()
    assert str(caught.value) == "Lost connection to task manager 'embedded'. This indicates that the remote task manager was lost."
    assert caught.value.__cause__ is reset


def test_channel_closed_on_exception_during_error_notification(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClientTransportErrorHandlingTest: a channel that fails to take its error keeps neither the close nor the other channels' errors."""
    _, [broken] = client.open_channels(1)
    good = client.open_gate(2)

    def choke(error: NetstackError) -> None:
        raise RuntimeError("expected test exception")

    monkeypatch.setattr(broken, "on_error", choke)
    client.connection.pipeline.fire_exception_caught(Exception("first"))

    assert not client.connection.is_open
    with pytest.raises(TransportError, match="first"):
        good.poll_next()


# ---------------------------------------------------------------- ServerTransportErrorHandlingTest


async def test_remote_close() -> None:
    """ServerTransportErrorHandlingTest: remote close.  The consumer's process goes away: its subpartition is given back."""
    side = ServerSide()
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "server")
    queue = PartitionRequestQueue(CONFIG, loop)
    handler = PartitionRequestServerHandler(CONFIG, loop, side.manager, queue)
    server = NetworkServer(CONFIG, lambda: (MessageEncoder(), MessageDecoder.of(CONFIG), handler, queue))
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
    side.close()


def test_a_write_that_fails_ends_the_connection_and_gives_everything_back(server: ServerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """ServerTransportErrorHandlingTest: the other end of it: the transport refuses a buffer, the peer is told, all views are released."""
    view = ScriptedView(DATA, DATA)
    reader = open_reader(server, view)
    neighbour = ScriptedView()
    open_reader(server, neighbour, receiver=2)

    def refuse(*_args: object) -> bytes:
        raise RuntimeError("Expected test exception")

    with monkeypatch.context() as patch:
        patch.setattr("netstack.channel.message_codec._pack_header", refuse)
        notify(server, reader)

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver, error.message) == (ErrorCode.INTERNAL, None, "RuntimeError: Expected test exception")
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
