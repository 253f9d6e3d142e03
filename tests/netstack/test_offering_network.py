"""Producers that dial a real data port with a gate's token."""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import trustme

from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import AuthenticationError, ResourceClosedError
from netstack.flow.offer_book import GateShape, Stage
from netstack.gate.offered_input_gate import OfferedGates, OfferedInputGate
from netstack.handlers.partition_request_client_handler import NetworkOfferedPartitionClient, OfferedPartitionsHandler
from netstack.ids import ConnectionID, ResultPartitionID, input_channel_id, intermediate_partition_id
from netstack.loop.eventloop import EventLoopThread
from netstack.offering_network import IDLE_S, GateAccess, OfferedPartition, OfferingNetwork
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import connect
from netstack.wire.message_bytes import OFFERING_MESSAGE_IDS
from netstack.wire.messages import CancelPartitionRequest, Heartbeat, Message, PartitionRequest
from netstack.wire.offer_messages import GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer, gate_token
from tests.netstack.connections import until
from tests.netstack.partition.producing import Producing
from tests.netstack.transport.authority import Authority
from tests.netstack.wire.samples import PARTITION
from tests.waiting import PATIENCE_S

SECRET = secrets.token_bytes(32)
CONFIG = NetstackConfig(
    network_memory_bytes=1 << 20, security=replace(SecurityConfig.hmac(SECRET), failure_delay_s=0.0)
)
TYPE = b"T" * 16
GATE = GateIdentity(b"J" * 16, "clicks", time.time_ns() // 1_000_000 + 3_600_000)
ACCESS = GateAccess(GATE, gate_token(SECRET, GATE))


class Listener(ChannelHandler):
    """Notes the received messages and the end of the connection."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[object] = asyncio.Queue()

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        if isinstance(message, Heartbeat):
            ctx.fire_channel_read(message)
        else:
            self.received.put_nowait(message)

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        self.received.put_nowait("gone")


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[NetworkEnvironment]:
    door = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    environment = NetworkEnvironment(CONFIG, door)
    yield environment
    await environment.close()
    door.close()


async def say(
    address: ConnectionID, message: Message, gate: GateIdentity = GATE, token: bytes | None = None
) -> list[object]:
    """Dial with a token, send one message, and return what arrives until the connection ends, or one answer."""
    token = gate_token(SECRET, gate) if token is None else token
    config, listener = replace(CONFIG, security=SecurityConfig.hmac(token)), Listener()
    channel = await connect(
        config,
        address,
        lambda: (MessageEncoder(), MessageDecoder(config, accepted_ids=OFFERING_MESSAGE_IDS), listener),
        PATIENCE_S,
        gate,
    )
    channel.write_and_flush(message)
    async with asyncio.timeout(PATIENCE_S):
        heard = [await listener.received.get()]
    channel.close()
    await channel.wait_closed()
    return heard


def open_gate(environment: NetworkEnvironment) -> OfferedInputGate:
    return environment.create_offered_gate("task", GATE.job_id, 0, GateShape("clicks", "Long", TYPE, 2))


def offer_of(attempt: int = 0, subtask: int = 0) -> SubpartitionOffer:
    return SubpartitionOffer(bytes((attempt,)) * 16, PARTITION, subtask, 2, 0, "job", 0, 0, attempt, TYPE)


async def test_an_offer_is_requested_over_the_connection_that_the_producer_dialled(
    environment: NetworkEnvironment,
) -> None:
    """The request has all exclusive buffers of the new channel as its credit."""
    address = await environment.start("127.0.0.1", 0)
    gate = open_gate(environment)
    gate.request_partitions()

    [request] = await say(address, offer_of())

    assert isinstance(request, PartitionRequest)
    assert (request.partition, request.first_subpartition, request.last_subpartition) == (PARTITION, 0, 0)
    assert request.credit == CONFIG.exclusive_buffers_per_channel
    gate.close()


async def test_a_gates_token_requests_no_partitions(environment: NetworkEnvironment) -> None:
    """The server understands offers and data on such a connection, and ends it at anything else."""
    address = await environment.start("127.0.0.1", 0)
    partition = environment.create_result_partition("producer", PARTITION, 1)

    assert await say(address, PartitionRequest(PARTITION, 0, 0, input_channel_id(1, 2), 2)) == ["gone"]

    assert not environment.reader_statistics()
    partition.release()
    partition.close()


async def test_offers_to_a_gate_or_subtask_that_is_not_here_are_refused(environment: NetworkEnvironment) -> None:
    address = await environment.start("127.0.0.1", 0)
    gate = open_gate(environment)
    answers = [await say(address, offer_of(subtask=1)), await say(address, offer_of(), replace(GATE, name="other"))]
    gate.close()
    answers.append(await say(address, offer_of()))

    for [answer] in answers:
        assert isinstance(answer, OfferRefused)
        assert answer.code is RefusalCode.GATE_ENDED
        assert "is not here (any more)" in answer.message


@pytest.mark.parametrize(
    ("gate", "token"),
    [
        (GATE, bytes(32)),
        (GATE, SECRET),
        (replace(GATE, expires_ms=1), None),
        (GATE, gate_token(SECRET, replace(GATE, name="other"))),
    ],
    ids=["a wrong token", "the secret", "an old token", "another gate's"],
)
async def test_a_token_that_is_not_right_opens_nothing(
    environment: NetworkEnvironment, gate: GateIdentity, token: bytes | None
) -> None:
    address = await environment.start("127.0.0.1", 0)

    with pytest.raises(AuthenticationError):
        await say(address, offer_of(), gate, token)


async def test_connections_to_gates_that_nobody_offers_to_any_more_end(environment: NetworkEnvironment) -> None:
    """A process that pushes into gates of many jobs does not take up a TaskManager's connections."""
    address = await environment.start("127.0.0.1", 0)
    gate = open_gate(environment)
    now = [0.0]
    offering = OfferingNetwork(environment, environment_loop(environment), clock=lambda: now[0])
    open_partition, others = await offered_to(environment, offering, GATE, address), 3
    for number in range(others):
        ended = await offered_to(environment, offering, replace(GATE, name=f"ended {number}"), address)
        ended.abort(RuntimeError("refused"))
        ended.withdraw()
        ended.partition.close()
    assert environment.num_accepted_connections == offering.num_connections == 1 + others

    now[0] += IDLE_S - 1
    offering.close_idle()
    assert offering.num_connections == 1 + others
    now[0] += 1
    offering.close_idle()

    assert offering.num_connections == 1
    await until(lambda: environment.num_accepted_connections == 1)
    assert open_partition.failure is None
    open_partition.withdraw()
    open_partition.partition.close()
    await offering.close()
    gate.close()


async def test_offers_with_a_younger_token_go_over_a_connection_that_lives_longer(
    environment: NetworkEnvironment,
) -> None:
    """Earlier offers stay on the older connection; a connection that has time is shared, whatever the token."""
    address = await environment.start("127.0.0.1", 0)
    gate = open_gate(environment)
    now_ms = [GATE.expires_ms - 3_000_000]
    offering = OfferingNetwork(
        environment, environment_loop(environment), clock=lambda: 0.0, clock_ms=lambda: now_ms[0]
    )
    younger = replace(GATE, expires_ms=GATE.expires_ms + 1)
    first = await offered_to(environment, offering, GATE, address, 0)
    second = await offered_to(environment, offering, younger, address, 1)
    assert offering.num_connections == 1

    now_ms[0] = GATE.expires_ms - 299_000
    third = await offered_to(environment, offering, younger, address, 2)
    fourth = await offered_to(environment, offering, younger, address, 3)

    assert environment.num_accepted_connections == offering.num_connections == 2
    every = [first, second, third, fourth]
    assert first.failure is None
    for each in every:
        each.withdraw()
        each.partition.close()
    await offering.close()
    await until(lambda: environment.num_accepted_connections == 0)
    gate.close()


class HeldConnect:
    """``connect``, which the test lets go on, and which may do something when the connection is ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.when_ready: Callable[[], object] = lambda: None
        monkeypatch.setattr("netstack.offering_network.connect", self)

    async def __call__(self, *args: Any) -> NetworkChannel:
        self.begun.set()
        await self.may_go_on.wait()
        channel = await connect(*args)
        self.when_ready()
        return channel


@pytest.fixture
def offering(environment: NetworkEnvironment) -> OfferingNetwork:
    return OfferingNetwork(environment, environment_loop(environment))


async def offer_once(environment: NetworkEnvironment, offering: OfferingNetwork) -> None:
    """Offer a partition to the environment's own data port; it is closed in the end."""
    address = await environment.start("127.0.0.1", 0)
    partition = OfferedPartition(environment.create_result_partition("producer", PARTITION, 1), 1)
    try:
        await offering.offer(ACCESS, [(address, offer_of())], partition, PATIENCE_S)
    finally:
        partition.partition.close()


async def test_nothing_is_offered_over_a_network_that_was_closed(
    environment: NetworkEnvironment, offering: OfferingNetwork
) -> None:
    """A closed network opens neither a connection nor a timer."""
    await offering.close()

    with pytest.raises(
        ResourceClosedError,
        match=r"no partition can be offered to .*clicks.*: the connections of producers were closed",
    ):
        await offer_once(environment, offering)

    assert offering.num_connections == 0


async def test_an_offer_that_waits_for_a_connection_hears_that_the_network_was_closed(
    environment: NetworkEnvironment, offering: OfferingNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting offer fails because of the close, not as if it had been cancelled itself."""
    held = HeldConnect(monkeypatch)
    waiting = asyncio.create_task(offer_once(environment, offering))
    await held.begun.wait()

    await offering.close()

    with pytest.raises(ResourceClosedError, match="were closed"):
        await waiting


async def test_a_connection_that_is_ready_while_the_network_closes_takes_no_offer(
    environment: NetworkEnvironment, offering: OfferingNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldConnect(monkeypatch)
    closings: list[asyncio.Task[None]] = []
    held.when_ready = lambda: closings.append(asyncio.create_task(offering.close()))
    held.may_go_on.set()

    with pytest.raises(ResourceClosedError, match="were closed"):
        await offer_once(environment, offering)

    await asyncio.gather(*closings)
    await until(lambda: environment.num_accepted_connections == 0)


async def test_an_attempt_that_was_cancelled_is_forgotten_like_any_other(
    environment: NetworkEnvironment, offering: OfferingNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled attempt does not stay in the network; a loop that ends cancels all its tasks like this."""
    held = HeldConnect(monkeypatch)
    waiting = asyncio.create_task(offer_once(environment, offering))
    await held.begun.wait()

    [attempt] = [task for task in asyncio.all_tasks() if task.get_name().startswith("offer to")]
    attempt.cancel()
    await asyncio.wait([attempt, waiting])
    offering.close_idle()

    assert offering.num_connections == 0
    await offering.close()


async def test_producers_of_other_machines_offer_inside_of_mutual_tls(tmp_path: Path) -> None:
    """A producer needs both a certificate of the TaskManagers' CA and a token."""
    authority, stranger = Authority(tmp_path, trustme.CA()), Authority(tmp_path, trustme.CA())
    door = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    security = replace(SecurityConfig.mutual_tls(authority.issue("taskmanager"), SECRET), failure_delay_s=0.0)
    environment = NetworkEnvironment(replace(CONFIG, security=security), door)
    address = await environment.start("127.0.0.1", 0)
    gate = open_gate(environment)
    gate.request_partitions()
    known, unknown = authority.issue("producer"), stranger.issue("stranger")

    for tls, token in ((None, gate_token(SECRET, GATE)), (unknown, gate_token(SECRET, GATE)), (known, bytes(32))):
        refused = OfferingNetwork(environment, door, tls=tls)
        with pytest.raises(AuthenticationError):
            await refused.offer(GateAccess(GATE, token), [(address, offer_of())], never_offered(), PATIENCE_S)
        await refused.close()
    offering = OfferingNetwork(environment, door, tls=known)
    partition = await offered_to(environment, offering, GATE, address, 1)

    await until(lambda: partition.late_subtasks(Stage.REQUESTED) == [1])
    partition.withdraw()
    partition.partition.close()
    await offering.close()
    gate.close()
    await environment.close()
    door.close()


async def test_producers_keep_no_taskmanager_out() -> None:
    """Half of the connections are left for peers that know the secret, however many connections one token makes."""
    door = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    environment = NetworkEnvironment(replace(CONFIG, max_connections=4), door)
    address = await environment.start("127.0.0.1", 0)
    producers = [await dialled(address, gate_token(SECRET, GATE), GATE) for _ in range(4)]
    await until(lambda: sum(each.is_active for each in producers) == 2)
    taskmanagers = [await dialled(address, SECRET, None) for _ in range(2)]
    assert environment.num_accepted_connections == 4

    for channel in producers:
        channel.close()
        await channel.wait_closed()
    await until(lambda: environment.num_accepted_connections == 2)
    again = await dialled(address, gate_token(SECRET, GATE), GATE)
    await until(lambda: environment.num_accepted_connections == 3)

    assert all(each.is_active for each in [*taskmanagers, again])
    for channel in [*taskmanagers, again]:
        channel.close()
        await channel.wait_closed()
    await environment.close()
    door.close()


async def dialled(address: ConnectionID, secret: bytes, gate: GateIdentity | None) -> NetworkChannel:
    config = replace(CONFIG, security=SecurityConfig.hmac(secret))
    return await connect(config, address, lambda: (MessageEncoder(), MessageDecoder(config)), PATIENCE_S, gate)


async def test_a_producer_hears_why_before_it_hears_that_a_channel_stops() -> None:
    """Data that comes between a channel's release and the orders of its task stops the channel at once."""
    door = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    handler = OfferedPartitionsHandler(door, OfferedGates().take_offer)
    written: list[object] = []
    handler.handler_added(_Context(written))  # type: ignore[arg-type]  # the part of it that is used
    receiver = input_channel_id(1, 2)
    client = NetworkOfferedPartitionClient(handler, door)

    def of_a_task() -> None:
        client.refuse(offer_of(), RefusalCode.WRONG_TYPE, "it is no Long")

    thread = threading.Thread(target=of_a_task)
    thread.start()
    thread.join()
    handler._cancel_once(receiver)

    assert [type(each) for each in written] == [OfferRefused, CancelPartitionRequest]
    await asyncio.sleep(0)
    assert len(written) == 2
    door.close()


class _Context:
    """Notes the written messages."""

    def __init__(self, written: list[object]) -> None:
        self.channel = SimpleNamespace(is_active=True, is_writable=True)
        self.write_and_flush = written.append


def environment_loop(environment: NetworkEnvironment) -> EventLoopThread:
    return environment._loop


async def offered_to(
    environment: NetworkEnvironment,
    offering: OfferingNetwork,
    gate: GateIdentity,
    address: ConnectionID,
    attempt: int = 0,
) -> OfferedPartition:
    """Offer a partition of subtask 0 alone."""
    offer = offer_of(attempt)
    result = environment.create_result_partition("producer", result_partition_id(f"{attempt}{gate.name}"), 2)
    partition = OfferedPartition(result, 2)
    offer = replace(offer, result_partition=result.partition_id)
    await offering.offer(GateAccess(gate, gate_token(SECRET, gate)), [(address, offer)], partition, PATIENCE_S)
    return partition


def never_offered() -> OfferedPartition:
    """Return a partition for a test in which no offer is made."""
    nobody: Any = None
    return OfferedPartition(nobody, 2)


def result_partition_id(name: str) -> ResultPartitionID:
    return ResultPartitionID(intermediate_partition_id(name.encode().ljust(16, b" ")[:16], 0), PARTITION.producer)


# ---------------------------------------------------------------- the progress of an offer


FIRST, SECOND = ResourceClosedError("first"), ResourceClosedError("second")


@pytest.fixture
def offered() -> Iterator[OfferedPartition]:
    producing = Producing(2)
    yield OfferedPartition(producing.partition, 2)
    producing.close()


def test_the_slowest_subtask_says_how_far_it_is(offered: OfferedPartition) -> None:
    offered.advanced(0, Stage.PROCESSED)
    assert not offered.wait_for(Stage.QUEUED, 0)
    assert offered.wait_for(Stage.PROCESSED, 0, num_first=1)
    assert offered.late_subtasks(Stage.REQUESTED) == [1]
    offered.advanced(1, Stage.REQUESTED)
    offered.advanced(0, Stage.REQUESTED)  # it was further
    assert offered.wait_for(Stage.REQUESTED, 0)
    assert offered.late_subtasks(Stage.PROCESSED) == [1]


def test_to_leave_is_the_end_only_after_everything_was_processed(offered: OfferedPartition) -> None:
    offered.advanced(0, Stage.PROCESSED)
    offered.left(0, FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, False)
    offered.left(1, SECOND)
    assert (offered.failure, offered.partition.is_released) == (SECOND, True)


def test_a_lost_way_is_a_failure_unless_that_subtask_was_through(offered: OfferedPartition) -> None:
    """After all records were processed, too: the subtask may not have seen the end."""
    for subtask in range(2):
        offered.advanced(subtask, Stage.PROCESSED)
    offered.left(0, FIRST)
    offered.lost(0, FIRST)
    assert offered.failure is None
    offered.lost(1, SECOND)
    offered.abort(FIRST)
    assert offered.failure is SECOND
    assert repr(offered).startswith("<OfferedPartition ['ENDED', 'PROCESSED'], failed: second, ")


def test_nothing_fails_after_the_end(offered: OfferedPartition) -> None:
    """The partition does, if the producer wants it."""
    for subtask in range(2):
        offered.advanced(subtask, Stage.ENDED)
    offered.lost(0, FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, False)
    offered.abort(FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, True)
