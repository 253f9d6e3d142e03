"""``ConnectionManager``: one connection per peer, and what becomes of channels when it is not there; over real sockets.

Source: Flink ``NettyPartitionRequestClientTest``, ``PartitionRequestClientFactoryTest``: the sections of these names.
"""

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.connection_manager import ConnectionManager, backoff_s
from netstack.errors import AuthenticationError, ConnectError, ConnectionLostError, ResourceClosedError
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID
from netstack.loop.eventloop import EventLoopThread
from netstack.transport.network_channel import HandlersFactory, NetworkChannel
from netstack.transport.server import NetworkServer, connect
from netstack.wire.events import OtherEvent, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    CancelPartitionRequest,
    ChannelOrder,
    CloseRequest,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    TaskEventRequest,
)
from tests.netstack.connections import CONFIG, SEGMENT, Consumer, Peer, no_listener, requests, serve, until
from tests.netstack.gate.doubles import room_of
from tests.netstack.gate.manual_timers import ManualStateChecker
from tests.netstack.handlers.server_side import partition_id_of, receiver_of
from tests.waiting import PATIENCE_S

NOT_REUSED = dataclasses.replace(CONFIG, reuse_connections=False)
RETRYING = dataclasses.replace(CONFIG, connect_retries=2, connect_backoff_ms=0)
both = pytest.mark.parametrize("config", [CONFIG, NOT_REUSED], ids=["reused", "not reused"])
not_reused = pytest.mark.parametrize("config", [NOT_REUSED], ids=["not reused"])
retrying = pytest.mark.parametrize("config", [RETRYING], ids=["retrying"])

Connect = Callable[..., Awaitable[NetworkChannel]]


@pytest.fixture
def config() -> NetstackConfig:
    """The configuration of the consumer; some tests parametrize it."""
    return CONFIG


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest_asyncio.fixture
async def served(peer: Peer) -> AsyncIterator[tuple[NetworkServer, ConnectionID]]:
    server, address = await serve(peer)
    yield server, address
    await server.close()


@pytest.fixture
def server(served: tuple[NetworkServer, ConnectionID]) -> NetworkServer:
    return served[0]


@pytest.fixture
def address(served: tuple[NetworkServer, ConnectionID]) -> ConnectionID:
    return served[1]


@pytest_asyncio.fixture
async def consumer(config: NetstackConfig, served: tuple[NetworkServer, ConnectionID]) -> AsyncIterator[Consumer]:
    one = Consumer(config)
    yield one
    await one.close()


def remote(gate: object) -> RemoteInputChannel:
    [channel] = gate.channels  # type: ignore[attr-defined]  # a gate of these tests has one channel
    assert isinstance(channel, RemoteInputChannel)
    return channel


def failing_connect(num_failures: int, attempts: list[int]) -> Connect:
    """Return a ``connect`` that refuses some times, then connects."""

    async def attempt(
        config: NetstackConfig, connection_id: ConnectionID, handlers_factory: HandlersFactory, timeout_s: float
    ) -> NetworkChannel:
        attempts.append(1)
        if len(attempts) <= num_failures:
            raise ConnectError(f"cannot connect to {connection_id}: attempt {len(attempts)}")
        return await connect(config, connection_id, handlers_factory, timeout_s)

    return attempt


async def test_a_channel_released_while_connecting_is_not_requested(
    consumer: Consumer, peer: Peer, address: ConnectionID
) -> None:
    """A channel that left is not requested; its neighbour is."""
    leaving = consumer.gate(address, 1)
    consumer.gate(address, 2)
    leaving.close()
    await until(lambda: bool(peer.received))

    assert peer.received == [PartitionRequest(partition_id_of(2), 0, 0, receiver_of(2), 2)]


async def test_orders_given_while_connecting_follow_the_requests(
    consumer: Consumer, peer: Peer, address: ConnectionID
) -> None:
    """A channel that was released meanwhile sends no message."""
    event = OtherEvent("org.example.Event", b"x")

    staying, leaving = (consumer.gate(address, number) for number in (1, 2))
    for gate in (staying, leaving):
        gate.send_task_event(event)
        gate.announce_buffer_size(512)
    leaving.close()
    consumer.gate(address, 3)
    await until(lambda: len(peer.received) == 4)

    assert requests(peer) == [receiver_of(1), receiver_of(3)]
    assert peer.received[1:3] == [
        TaskEventRequest(serialize_event(event), partition_id_of(1), receiver_of(1)),
        NewBufferSize(receiver_of(1), 512),
    ]


async def test_a_refused_connection_fails_everybody_who_waited(consumer: Consumer) -> None:
    """Every waiting channel gets the error, even if the first one's task raises, and the attempt is forgotten."""

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


async def test_an_unforeseen_failure_to_connect_is_told_and_not_kept(
    consumer: Consumer, peer: Peer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No channel waits for ever after an unforeseen failure, and the next request tries again."""
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


async def test_a_request_that_cannot_be_encoded_leaves_the_others_waiting_for_the_connection_alone(
    consumer: Consumer, peer: Peer, address: ConnectionID
) -> None:
    """A negative subpartition stands first in the queue: it fails, the second one is asked for."""
    broken = consumer.gate(address, 1, subpartition=-1)
    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert "not a range" in str(await consumer.error_of(broken))
    assert requests(peer) == [receiver_of(2)]


async def test_a_peer_never_sees_two_connections(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID
) -> None:
    """A request right after a fatal error waits until the old connection is gone, then it is sent over a new one."""
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


async def test_ended_connections_are_forgotten() -> None:
    """The memory for connections is bounded by the living ones, even if peers come and go with new ports."""
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


async def test_close_says_that_it_was_us(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """A channel that still reads does not blame the peer."""
    gate = consumer.gate(address)
    await until(lambda: bool(peer.received))

    await consumer.manager.close()

    with pytest.raises(ResourceClosedError, match=str(address.port)):
        gate.poll_next()
    late = consumer.gate(address, 2)
    assert isinstance(await consumer.error_of(late), ResourceClosedError)


async def test_close_while_connecting_ends_the_attempt(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID
) -> None:
    """Waiting gates get the error, and the peer gets no request."""
    gate = consumer.gate(address)
    await asyncio.sleep(0)  # one turn: the request is at the manager, the attempt has not made its first step

    await consumer.manager.close()

    with pytest.raises(ResourceClosedError, match="before it was used"):
        gate.poll_next()
    await server.close()  # after it nothing comes any more
    assert peer.received == []


async def test_close_just_when_the_attempt_succeeded_closes_the_connection(
    consumer: Consumer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.12 and newer no task is left to wait for."""
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


async def test_connections_are_closed_together(consumer: Consumer) -> None:
    """Two peers that never answer the close cost one timeout: both are closed before the first one is waited for."""
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


async def test_orders_after_the_loop_closed_are_nobodys_business(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID
) -> None:
    """Tasks clean up after the network without an error; a request is one."""
    gate = consumer.gate(address)
    await until(lambda: bool(peer.received))
    [channel] = gate.channels
    assert isinstance(channel, RemoteInputChannel)
    buffer = room_of(channel)
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


def test_a_loop_that_ends_while_connecting_tells_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt ends with the loop although the manager was not closed, and the task does not sleep for ever."""
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
    channel = RemoteInputChannel(gate, 0, partition_id_of(1), 0, receiver_of(1), client)
    channel.assign_exclusive_segments(pool, 2)
    gate.add_channel(channel)
    gate.request_partitions()
    assert started.wait(PATIENCE_S)

    loop.close()

    with pytest.raises(ResourceClosedError):
        gate.poll_next()
    gate.close()
    pool.destroy()


# ---------------------------------------------------------------- NettyPartitionRequestClientTest


async def test_partition_request_client_reuse(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """Reuse. An idle connection is kept, with a Cancel and no CloseRequest; an error ends it."""
    first = consumer.gate(address, 1)
    await until(lambda: len(peer.received) == 1)

    first.close()
    first.close()
    last = consumer.gate(address, 2)
    await until(lambda: len(requests(peer)) == 2)

    assert peer.received[1:-1] == [CancelPartitionRequest(receiver_of(1))]
    assert len(peer.contexts) == 1
    peer.contexts[0].write_and_flush(ErrorResponse(ErrorCode.INTERNAL, "boom", None))
    await consumer.error_of(last)
    await until(lambda: consumer.manager.num_connections == 0)


@both
async def test_retrigger_partition_request(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """NettyPartitionRequestClientTest: retrigger.  The request is sent twice again, with its first credit.

    Unlike in Flink's test only after the peer said that it does not know the partition: before, the request is still
    out.
    """
    checker = ManualStateChecker()
    gate = consumer.gate(address, state_checker=checker)
    await until(lambda: len(peer.received) == 1)
    client = consumer.manager.client(address)

    for number in (1, 2):
        client.request_subpartition(remote(gate))
        peer.contexts[0].write_and_flush(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "not here", receiver_of(1)))
        await until(lambda: len(checker.asked) == number)  # noqa: B023 - awaited in its own round
        client.request_subpartition(remote(gate))
        await until(lambda: len(peer.received) == 1 + number)  # noqa: B023 - as above

    assert peer.received == [PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), 2)] * 3


@not_reused
async def test_a_new_connection_waits_until_the_old_one_is_closed(
    consumer: Consumer, peer: Peer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the old one lingers: a peer never sees two."""
    made: list[NetworkChannel] = []
    were_closed: list[bool] = []

    async def recording(
        config: NetstackConfig, connection_id: ConnectionID, handlers_factory: HandlersFactory, timeout_s: float
    ) -> NetworkChannel:
        were_closed.extend("closed" in repr(channel) for channel in made)
        made.append(await connect(config, connection_id, handlers_factory, timeout_s))
        return made[-1]

    monkeypatch.setattr("netstack.connection_manager.connect", recording)
    first = consumer.gate(address, 1)
    await until(lambda: len(peer.received) == 1)

    first.close()
    await until(lambda: not made[0].is_active)
    consumer.gate(address, 2)
    await until(lambda: receiver_of(2) in requests(peer))

    assert were_closed == [True]


@both
async def test_double_partition_request(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """NettyPartitionRequestClientTest: double request.  A channel asks once, however often its gate asks it to."""
    gate = consumer.gate(address)
    gate.request_partitions()
    remote(gate).request_subpartition()
    consumer.gate(address, 2)
    await until(lambda: len(peer.received) >= 2)

    assert requests(peer) == [receiver_of(1), receiver_of(2)]


@both
async def test_orders_of_a_channel(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """Resume consumption, acknowledge all records; also size and task event. In their order."""
    channel = remote(consumer.gate(address))
    client = consumer.manager.client(address)
    await until(lambda: len(peer.received) == 1)
    event = serialize_event(OtherEvent("org.example.Superstep", b""))

    me = receiver_of(1)
    orders: list[ChannelOrder] = [
        ResumeConsumption(me),
        NewBufferSize(me, 333),
        TaskEventRequest(event, partition_id_of(1), me),
        AckAllUserRecordsProcessed(me),
    ]

    for order in orders:
        client.order(channel, order)
    await until(lambda: len(peer.received) == 5)

    assert peer.received[1:] == orders


# ---------------------------------------------------------------- PartitionRequestClientFactoryTest


async def test_interrupts_are_not_cached(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """Interrupts not cached. An attempt that was cancelled leaves nothing behind."""
    gate = consumer.gate(address, 1)
    await asyncio.sleep(0)  # one turn: the request is at the manager, the attempt has not made its first step
    [attempt] = [task for task in asyncio.all_tasks() if task.get_name() == f"connect to {address}"]

    attempt.cancel()
    error = await consumer.error_of(gate)
    assert consumer.manager.num_connections == 0
    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert isinstance(error, ResourceClosedError)
    assert requests(peer) == [receiver_of(2)]


async def test_hist_20615_a_failed_connect_is_not_cached(
    consumer: Consumer, peer: Peer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exceptions are not cached. The first connect is refused, the second one works."""
    attempts: list[int] = []
    monkeypatch.setattr("netstack.connection_manager.connect", failing_connect(1, attempts))

    error = await consumer.error_of(consumer.gate(address, 1))
    assert consumer.manager.num_connections == 0
    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert isinstance(error, ConnectError)
    assert requests(peer) == [receiver_of(2)]


@both
async def test_reuse_when_the_remote_closed(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """Reuse network connection when remote is closed. A new one is made, the old one is not kept."""
    gate = consumer.gate(address, 1)
    await until(lambda: bool(peer.received))

    peer.contexts[0].close()
    error = await consumer.error_of(gate)
    await until(lambda: consumer.manager.num_connections == 0)
    consumer.gate(address, 2)
    await until(lambda: len(peer.received) == 2)

    assert isinstance(error, ConnectionLostError)
    assert len(peer.contexts) == 2
    gate.acknowledge_all_records_processed(0)
    gate.close()  # of the lost one; says nothing to the new one
    consumer.gate(address, 3)
    await until(lambda: receiver_of(3) in requests(peer))
    assert consumer.manager.num_connections == 1
    assert requests(peer) == [receiver_of(1), receiver_of(2), receiver_of(3)]
    assert len(peer.received) == 3


@pytest.mark.parametrize("num_failures", [1, 2])
@retrying
async def test_retry_n_times_then_succeed(
    consumer: Consumer, peer: Peer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch, num_failures: int
) -> None:
    """Connect retries, n or fewer failures. The request is sent, no error is seen."""
    attempts: list[int] = []
    monkeypatch.setattr("netstack.connection_manager.connect", failing_connect(num_failures, attempts))

    consumer.gate(address)
    await until(lambda: bool(peer.received))

    assert len(attempts) == num_failures + 1


@retrying
async def test_retry_n_times_then_fail(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PartitionRequestClientFactoryTest: failure after n retries.  n + 1 attempts, then the last error."""
    attempts: list[int] = []
    monkeypatch.setattr("netstack.connection_manager.connect", failing_connect(1000, attempts))

    error = await consumer.error_of(consumer.gate(ConnectionID("127.0.0.1", 1)))

    assert isinstance(error, ConnectError)
    assert "attempt 3" in str(error)
    assert len(attempts) == 3


@retrying
async def test_a_peer_that_failed_to_authenticate_is_not_tried_again(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong secret stays wrong, and each attempt would add an entry to the peer's log."""
    attempts: list[int] = []

    async def refuse(*_args: object, **_options: object) -> NetworkChannel:
        attempts.append(1)
        raise AuthenticationError("wrong secret")

    monkeypatch.setattr("netstack.connection_manager.connect", refuse)

    error = await consumer.error_of(consumer.gate(ConnectionID("127.0.0.1", 1)))

    assert str(error) == "wrong secret"
    assert len(attempts) == 1


async def test_close_ends_the_pause_before_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(dataclasses.replace(RETRYING, connect_backoff_ms=1_000_000, max_request_backoff_ms=1_000_000))
    attempts: list[int] = []
    monkeypatch.setattr("netstack.connection_manager.connect", failing_connect(1, attempts))
    gate = consumer.gate(ConnectionID("127.0.0.1", 1))
    await until(lambda: bool(attempts))

    await consumer.manager.close()

    assert isinstance(await consumer.error_of(gate), ResourceClosedError)
    assert len(attempts) == 1
    await consumer.close()


def test_the_pause_between_attempts_doubles_up_to_a_limit() -> None:
    config = dataclasses.replace(CONFIG, connect_backoff_ms=100, max_request_backoff_ms=500)

    assert [backoff_s(config, number) for number in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@retrying
async def test_concurrent_retries_share_one_attempt(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retry concurrently. Ten channels, two failures: three attempts, one connection, ten requests."""
    attempts: list[int] = []
    monkeypatch.setattr("netstack.connection_manager.connect", failing_connect(2, attempts))

    for number in range(1, 11):
        consumer.gate(address, number)
    await until(lambda: len(peer.received) == 10)

    assert requests(peer) == [receiver_of(number) for number in range(1, 11)]
    assert len(attempts) == 3
    assert server.num_channels == 1


async def test_eight_threads_make_one_connection(consumer: Consumer, peer: Peer, address: ConnectionID) -> None:
    """Concurrent callers wait on one connecting channel. Eight task threads, one TCP connect."""
    start = threading.Barrier(8)
    gates = [consumer.gate(address, number, is_requested=False) for number in range(1, 9)]

    def ask(index: int) -> None:
        start.wait(PATIENCE_S)
        gates[index].request_partitions()

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    await until(lambda: len(peer.received) == 8)
    for thread in threads:
        thread.join(PATIENCE_S)

    assert len(peer.contexts) == 1
    assert sorted(requests(peer)) == sorted(receiver_of(number) for number in range(1, 9))


# ---------------------------------------------------------------- reference counting (D55, F36)


@not_reused
async def test_the_last_channel_closes_a_connection_that_is_not_reused(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID
) -> None:
    """Every channel counts once, also if it asked twice; at none CloseRequest is sent, and the socket is closed."""
    first, second = consumer.gate(address, 1), consumer.gate(address, 2)
    await until(lambda: len(peer.received) == 2)
    consumer.manager.client(address).request_subpartition(remote(first))

    first.close()
    await until(lambda: len(peer.received) == 3)
    assert server.num_channels == 1
    second.close()
    await until(lambda: server.num_channels == 0)

    assert peer.received[2:] == [CancelPartitionRequest(receiver_of(1)), CloseRequest()]
    await until(lambda: consumer.manager.num_connections == 0)


@not_reused
async def test_a_connection_that_nobody_waits_for_any_more_is_closed_when_it_is_made(
    consumer: Consumer, peer: Peer, server: NetworkServer, address: ConnectionID
) -> None:
    """The only channel left while it was being connected."""
    gate = consumer.gate(address)
    await asyncio.sleep(0)  # one turn: the request is at the manager, the attempt has not made its first step
    gate.close()
    await until(lambda: bool(peer.contexts) and server.num_channels == 0)

    assert requests(peer) == []
    await until(lambda: consumer.manager.num_connections == 0)


async def test_a_channel_that_left_before_its_request_arrived_connects_to_nobody(consumer: Consumer) -> None:
    """A channel that left sends no cancel, and no connection is made for it."""
    consumer.gate(ConnectionID("127.0.0.1", 1)).close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert consumer.manager.num_connections == 0


@not_reused
async def test_a_request_while_an_unused_connection_closes_gets_a_new_one(
    consumer: Consumer, peer: Peer, address: ConnectionID
) -> None:
    """The new gate is not told of the end of the old connection."""
    consumer.gate(address, 1)
    await until(lambda: len(peer.received) == 1)

    consumer.gates[0].close()
    gate = consumer.gate(address, 2)
    await until(lambda: receiver_of(2) in requests(peer))

    assert gate.poll_next() is None
    assert len(peer.contexts) == 2


async def test_hist_15416_a_peer_that_does_not_answer_keeps_nobody_from_another(
    consumer: Consumer, peer: Peer, address: ConnectionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to another peer is served while one connect hangs for ever."""
    blackhole = ConnectionID("192.0.2.1", 9)
    is_stuck = asyncio.Event()

    async def hang(
        config: NetstackConfig, connection_id: ConnectionID, handlers_factory: HandlersFactory, timeout_s: float
    ) -> NetworkChannel:
        if connection_id == blackhole:
            is_stuck.set()
            await asyncio.Event().wait()
        return await connect(config, connection_id, handlers_factory, timeout_s)

    monkeypatch.setattr("netstack.connection_manager.connect", hang)
    stuck = consumer.gate(blackhole, 1)
    await asyncio.wait_for(is_stuck.wait(), PATIENCE_S)

    consumer.gate(address, 2)
    await until(lambda: bool(peer.received))

    assert requests(peer) == [receiver_of(2)]
    assert stuck.poll_next() is None
