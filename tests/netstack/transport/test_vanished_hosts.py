"""Hosts that vanish, and processes that stand still: the first are noticed by the kernel, the second are given time."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from netstack.config import NetstackConfig, SecurityConfig
from netstack.ids import ConnectionID
from netstack.loop.eventloop import EventLoopThread
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.server import NetworkServer, connect
from netstack.wire.messages import AddCredit
from tests.cut_off import cut_off
from tests.netstack.transport.sockets import Live, dialled, handlers, on_loops, until
from tests.netstack.wire.samples import RECEIVER
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow  # each waits for a timeout of about a second
DEAD_S = 1.2  # the kernel counts keepalive in whole seconds
SECRET = SecurityConfig.hmac(b"s" * 32)
CONFIG = NetstackConfig(security=SECRET, dead_peer_timeout_s=DEAD_S, heartbeat_interval_s=0.4, close_timeout_s=0.2)


@on_loops()
async def test_both_ends_notice_that_the_other_host_is_gone() -> None:
    """Each end gets an error that names the other one within the time, long before its heartbeats are missed."""
    ours, theirs = Live(), Live()
    async with dialled(handlers(theirs), handlers(ours), CONFIG) as channel:
        await until(lambda: theirs.channel is not None)
        assert channel._transport is not None
        cut_off(channel._transport.get_extra_info("socket"))
        began_s = time.monotonic()

        await ours.ended.wait()
        await theirs.ended.wait()

    assert time.monotonic() - began_s < CONFIG.heartbeat_timeout_s / 2
    for (error,) in (ours.errors, theirs.errors):
        assert "acknowledged nothing for 1." in str(error)
        assert f"dead_peer_timeout_s is {DEAD_S}" in str(error)


@pytest.mark.slow
@on_loops()
async def test_a_peer_whose_process_reads_nothing_is_no_host_that_is_gone() -> None:
    """A process whose receive buffer is full keeps its connection, for its kernel answers; Linux alone would end the
    connection by TCP_USER_TIMEOUT.

    The kernel asks after 0.2 s, and then after twice as long each time: until a time T its longest silence is about T /
    2.  So the buffer must fill at once; messages that are flushed one by one take seconds on a slow machine.
    """
    ours, theirs = Live(), Live()
    small = replace(CONFIG, dead_peer_timeout_s=4.0, send_buffer_bytes=8_000, receive_buffer_bytes=8_000)
    async with dialled(handlers(theirs), handlers(ours), small) as channel:
        await until(lambda: theirs.channel is not None)
        assert theirs.channel is not None
        theirs.channel.pause_reading()
        num_sent = 0
        while channel.is_writable:
            channel.write(AddCredit(RECEIVER, num_sent + 1))
            num_sent += 1
        channel.flush()  # the kernel takes some
        full_s = time.monotonic()
        await until(lambda: time.monotonic() - full_s > 1.3 * small.dead_peer_timeout_s)
        assert channel.is_active
        assert theirs.channel.is_active

        num_received = theirs.messages.qsize()
        assert num_received < num_sent
        theirs.channel.resume_reading()
        # The rest comes in pieces of the small buffer, some per second.
        await until(lambda: theirs.messages.qsize() > num_received or not channel.is_active)

        assert ours.errors == theirs.errors == []


class HeldFirst(ChannelHandler):
    """The first handler of a pipeline, which keeps the loop once."""

    def __init__(self, active_s: list[float] | None = None, read_s: list[float] | None = None) -> None:
        self._active_s = active_s
        self._read_s = read_s

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        if self._active_s:
            time.sleep(self._active_s.pop())
        ctx.fire_channel_active()

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        if self._read_s:
            time.sleep(self._read_s.pop())
        ctx.fire_channel_read(message)


HASTY = replace(CONFIG, security=replace(SECRET, handshake_timeout_s=0.2, failure_delay_s=0.0))


@pytest.fixture
def hasty_server() -> Iterator[ConnectionID]:
    """Start a server on a thread of its own, which cuts peers that are silent for 0.2 s."""
    loop = EventLoopThread.start("server")
    server = NetworkServer(HASTY, handlers(Live()))
    yield ConnectionID(*loop.submit(server.start("127.0.0.1", 0)).result(PATIENCE_S))
    loop.submit(server.close()).result(PATIENCE_S)
    loop.close()


@on_loops()
async def test_a_dialler_that_stood_still_is_thrown_out_and_dials_again(hasty_server: ConnectionID) -> None:
    """Without retries, too: nothing is wrong with the peer."""
    ours, hold_s = Live(), [0.6]
    channel = await connect(HASTY, hasty_server, lambda: (HeldFirst(hold_s), *handlers(ours)()), timeout_s=PATIENCE_S)

    assert channel.is_active
    assert hold_s == []
    channel.close()
    await channel.wait_closed()


@on_loops()
async def test_a_server_that_stood_still_throws_nobody_out() -> None:
    """A server whose timer fires late, before it has read the peer's bytes, does not count that time as silence."""
    hold_s = [0.6]
    async with dialled(lambda: (HeldFirst(read_s=hold_s), *handlers(Live())()), handlers(Live()), HASTY) as channel:
        was_active = channel.is_active

    assert was_active
    assert hold_s == []
