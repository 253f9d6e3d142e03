"""``ConnectionManager``: one connection per peer, and what becomes of channels when it is not there."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.channel.client import connect
from netstack.channel.protocol import NetworkChannel
from netstack.connection_manager import ConnectionManager
from netstack.errors import ConnectError, ConnectionLostError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID
from netstack.wire.events import OtherEvent, serialize_event
from netstack.wire.messages import CancelPartitionRequest, ErrorCode, ErrorResponse, NewBufferSize, PartitionRequest, TaskEventRequest
from tests.netstack.connections import CONFIG, SEGMENT, Consumer, Peer, no_listener, requests, serve, until
from tests.netstack.handlers.server_side import partition_id_of, receiver_of
from tests.waiting import PATIENCE_S


async def test_requests_made_while_connecting_share_the_connection() -> None:
    """Three at once: one connection, three requests, in order."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)

    for number in (1, 2, 3):
        consumer.gate(address, number)
    await until(lambda: len(peer.received) == 3)

    assert requests(peer) == [receiver_of(1), receiver_of(2), receiver_of(3)]
    assert server.num_channels == 1
    await consumer.close()
    await server.close()


async def test_a_channel_released_while_connecting_is_not_requested() -> None:
    """Its neighbour is."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)

    leaving = consumer.gate(address, 1)
    consumer.gate(address, 2)
    leaving.close()
    await until(lambda: bool(peer.received))

    assert peer.received == [PartitionRequest(partition_id_of(2), 0, 0, receiver_of(2), 2)]
    await consumer.close()
    await server.close()


async def test_orders_given_while_connecting_follow_the_requests() -> None:
    """An event for the producer and the wanted buffer size; a channel that left meanwhile says nothing."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    event = OtherEvent("org.example.Event", b"x")

    staying, leaving = (consumer.gate(address, number) for number in (1, 2))
    for gate in (staying, leaving):
        gate.send_task_event(event)
        gate.announce_buffer_size(512)
    leaving.close()
    consumer.gate(address, 3)
    await until(lambda: len(peer.received) == 4)

    assert requests(peer) == [receiver_of(1), receiver_of(3)]
    assert peer.received[2:] == [
        TaskEventRequest(serialize_event(event), partition_id_of(1), receiver_of(1)),
        NewBufferSize(receiver_of(1), 512),
    ]
    await consumer.close()
    await server.close()


async def test_a_refused_connection_fails_everybody_who_waited() -> None:
    """Even if the first one's task chokes on it; nothing is kept of the attempt."""
    consumer = Consumer()

    def choke() -> None:
        raise OSError("callback")

    failures: list[object] = []
    consumer.loop.loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    with no_listener() as address:
        gates = [consumer.gate(address, number) for number in (1, 2)]
        gates[0].available_future().add_done_callback(choke)

        errors = [await consumer.error_of(gate) for gate in gates]

    assert [type(each) for each in errors] == [ConnectError, ConnectError]
    assert [str(each) for each in failures] == ["callback"]
    await consumer.close()


async def test_an_unforeseen_failure_to_connect_is_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong, nobody waits for ever, and the next request tries again."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    attempts = []

    async def refuse(*_args: object, **_options: object) -> None:
        attempts.append(1)
        raise ValueError("embedded null byte")

    with monkeypatch.context() as patch:
        patch.setattr("netstack.connection_manager.connect", refuse)
        error = await consumer.error_of(consumer.gate(address, 1))
    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert isinstance(error, ConnectError)
    assert "embedded null byte" in str(error)
    assert str(address) in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert attempts == [1]
    await consumer.close()
    await server.close()


async def test_a_request_that_cannot_be_encoded_leaves_the_others_waiting_for_the_connection_alone() -> None:
    """A negative subpartition stands first in the queue: it fails, the second one is asked for."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)

    broken = consumer.gate(address, 1, subpartition=-1)
    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert "not a range" in str(await consumer.error_of(broken))
    assert requests(peer) == [receiver_of(2)]
    await consumer.close()
    await server.close()


async def test_after_a_loss_the_next_request_connects_again() -> None:
    """The old channel fails; its orders say nothing to the new connection, where its id is unknown."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    old = consumer.gate(address, 1)
    await until(lambda: len(peer.received) == 1)

    peer.contexts[0].close()
    error = await consumer.error_of(old)
    consumer.gate(address, 2)
    old.acknowledge_all_records_processed(0)
    old.close()
    await until(lambda: len(peer.received) == 2)
    consumer.gate(address, 3)
    await until(lambda: len(peer.received) == 3)

    assert isinstance(error, ConnectionLostError)
    assert requests(peer) == [receiver_of(1), receiver_of(2), receiver_of(3)]
    assert len(peer.contexts) == 2
    await consumer.close()
    await server.close()


async def test_a_peer_never_sees_two_connections() -> None:
    """A request right after a fatal error waits until the old connection is gone, then it is sent over a new one."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    first = consumer.gate(address, 1)
    await until(lambda: len(peer.received) == 1)
    highest = 0

    peer.contexts[0].write_and_flush(ErrorResponse(ErrorCode.INTERNAL, "boom", None))
    await consumer.error_of(first)
    consumer.gate(address, 2)

    def is_requested() -> bool:
        nonlocal highest
        highest = max(highest, server.num_channels)
        return len(requests(peer)) == 2

    await until(is_requested)

    assert highest == 1
    await consumer.close()
    await server.close()


async def test_ended_connections_are_forgotten() -> None:
    """Peers come and go with new ports; what is kept is bounded by the connections that live."""
    consumer, peer = Consumer(), Peer()
    for number in range(1, 6):
        with no_listener() as address:
            await consumer.error_of(consumer.gate(address, number))
    servers = []
    for number in range(6, 9):
        server, address = await serve(peer)
        servers.append(server)
        gate = consumer.gate(address, number)
        await until(lambda number=number: len(peer.received) == number - 5)  # type: ignore[misc]
        peer.contexts[-1].close()
        await consumer.error_of(gate)
    server, address = await serve(peer)
    consumer.gate(address, 9)
    await until(lambda: len(peer.received) == 4)

    assert consumer.manager.num_connections <= 2
    await consumer.close()
    for each in (*servers, server):
        await each.close()


async def test_close_says_that_it_was_us() -> None:
    """A channel that still reads does not blame the peer."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gate = consumer.gate(address)
    await until(lambda: bool(peer.received))

    await consumer.manager.close()

    with pytest.raises(ResourceClosedError, match=str(address.port)):
        gate.poll_next()
    late = consumer.gate(address, 2)
    assert isinstance(await consumer.error_of(late), ResourceClosedError)
    await consumer.close()
    await server.close()


async def test_close_while_connecting_ends_the_attempt() -> None:
    """Whoever waited learns it, and the peer is asked nothing."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gate = consumer.gate(address)
    await asyncio.sleep(0)  # one turn: the request is at the manager, the attempt has not made its first step

    await consumer.manager.close()

    with pytest.raises(ResourceClosedError, match="before it was used"):
        gate.poll_next()
    await consumer.close()
    await server.close()
    assert peer.received == []


async def test_close_just_when_the_attempt_succeeded_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is over, and whoever made it has not been told; on Python 3.12 and newer nothing is left to wait for."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    channels, closings = [], []

    async def connect_while_it_is_closed(*args: Any, **options: Any) -> NetworkChannel:
        channels.append(await connect(*args, **options))
        closings.append(asyncio.create_task(consumer.manager.close()))
        await asyncio.sleep(0)  # one turn: the manager has begun to close, the connection has not
        return channels[0]

    with monkeypatch.context() as patch:
        patch.setattr("netstack.connection_manager.connect", connect_while_it_is_closed)
        gate = consumer.gate(address)
        await until(lambda: bool(closings))
        await closings[0]

    assert not channels[0].is_active
    with pytest.raises(ResourceClosedError):
        gate.poll_next()
    await consumer.close()
    await server.close()


async def test_connections_are_closed_together() -> None:
    """Two peers that never answer the close cost one timeout: both are told before the first one is waited for."""
    consumer = Consumer()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    accepted = []
    for number, listener in enumerate(listeners, 1):
        listener.setblocking(False)
        consumer.gate(ConnectionID("127.0.0.1", listener.getsockname()[1]), number)
        accepted.append((await asyncio.get_running_loop().sock_accept(listener))[0])
        await asyncio.get_running_loop().sock_recv(accepted[-1], 1000)
    closing = asyncio.create_task(consumer.manager.close())

    # Neither closes; both see the end of our data, the second one while the first is still being waited for.
    data = b""
    accepted[1].setblocking(False)
    while chunk := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(accepted[1], 1000), PATIENCE_S):
        data += chunk

    assert not closing.done()
    for sock in (*accepted, *listeners):
        sock.close()
    await closing
    await consumer.close()


async def test_orders_after_the_loop_closed_are_nobodys_business() -> None:
    """Tasks close their gates and recycle their buffers after the network: cleanup does not fail, and a request is an error."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gate = consumer.gate(address)
    await until(lambda: bool(peer.received))
    [channel] = gate.channels
    assert isinstance(channel, RemoteInputChannel)
    buffer = channel.receiver.request_buffer()
    assert buffer is not None
    await consumer.manager.close()
    await server.close()
    consumer.loop.close()

    channel._error = None  # so that the credit would be announced
    buffer.recycle()
    gate.acknowledge_all_records_processed(0)
    late = consumer.gate(address, 2)
    with pytest.raises(ResourceClosedError):
        late.poll_next()
    gate.close()
    late.close()

    await consumer.close()


def test_a_loop_that_ends_while_connecting_tells_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody closed the manager; the attempt dies with the loop, and the task does not sleep for ever."""
    loop = EventLoopThread.start("short-lived")
    started = threading.Event()

    async def never(*_args: object, **_options: object) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("netstack.connection_manager.connect", never)
    manager = ConnectionManager(CONFIG, loop)
    pool = NetworkBufferPool(CONFIG.num_segments, SEGMENT)
    gate = SingleInputGate("consumer")
    client = manager.client(ConnectionID("127.0.0.1", 1))
    channel = RemoteInputChannel(gate, 0, receiver_of(1), partition_id_of(1), 0, client)
    channel.assign_exclusive_segments(pool, 2)
    gate.add_channel(channel)
    gate.request_partitions()
    assert started.wait(PATIENCE_S)

    loop.close()

    with pytest.raises(ResourceClosedError):
        gate.poll_next()
    gate.close()
    pool.destroy()


async def test_a_cancel_reaches_the_peer_once() -> None:
    """Also if the gate is closed twice."""
    consumer, peer = Consumer(), Peer()
    server, address = await serve(peer)
    gate = consumer.gate(address)
    await until(lambda: bool(peer.received))

    gate.close()
    gate.close()
    consumer.gate(address, 2)
    await until(lambda: len(requests(peer)) == 2)

    assert peer.received[1:-1] == [CancelPartitionRequest(receiver_of(1))]
    await consumer.close()
    await server.close()
