"""Heartbeats in a pipeline, and over links that swallow all bytes."""

import asyncio
from dataclasses import replace

import pytest

from netstack.config import NetstackConfig, SecurityConfig
from netstack.errors import ConnectionLostError
from netstack.ids import ConnectionID
from netstack.testing import EmbeddedChannel, EmbeddedEventLoop
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.heartbeat_handler import HeartbeatHandler
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.server import NetworkServer, connect
from netstack.wire.message_bytes import encode
from netstack.wire.messages import CloseRequest, Heartbeat
from tests.netstack.transport.sockets import Live, dialled, handlers, on_loops, until
from tests.waiting import PATIENCE_S

CONFIG = NetstackConfig(heartbeat_interval_s=2.0, heartbeat_timeout_s=10.0)
FAST = NetstackConfig(
    security=SecurityConfig.hmac(b"s" * 32), heartbeat_interval_s=0.1, heartbeat_timeout_s=0.2, close_timeout_s=0.2
)  # the least
BEAT = encode(Heartbeat(2000))
HANDSHAKE_BYTES = 46 + 41 + 11  # Hello, Proof and Ready of a server


class Errors(ChannelHandler):
    """A handler of the protocol; passes on unknown messages."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self.errors.append(error)


class Rig:
    """One end of a connection, over a manual clock."""

    def __init__(self, config: NetstackConfig = CONFIG, *, sends_first: bool = True) -> None:
        self.loop = EmbeddedEventLoop()
        self.protocol = Errors()
        handler = HeartbeatHandler(config, self.loop.loop, sends_first=sends_first)
        self.channel = EmbeddedChannel(
            MessageEncoder(), MessageDecoder(config), self.protocol, handler, event_loop=self.loop
        )

    def sent(self) -> bytes:
        """Return the bytes that left since the last call; the kernel takes everything."""
        self.channel.flush_outbound()
        return self.channel.read_all_outbound()


def test_the_first_heartbeat_tells_the_peer_how_often_this_end_wants_one() -> None:
    rig = Rig(replace(CONFIG, heartbeat_interval_s=0.5))

    assert rig.sent() == encode(Heartbeat(500))


def test_the_end_that_listens_sends_its_first_heartbeat_as_an_answer() -> None:
    """The other end may still be in the handshake, where it accepts no heartbeats."""
    rig = Rig(sends_first=False)
    rig.loop.advance(9.5)
    assert rig.sent() == b""

    rig.channel.write_inbound(encode(Heartbeat(60_000)))

    assert rig.sent() == BEAT
    rig.loop.advance(10.5)
    assert rig.channel.was_aborted


def test_a_quiet_connection_carries_a_heartbeat_per_interval() -> None:
    """The peer hears something every two seconds, and a busy connection carries none."""
    rig = Rig()
    rig.sent()

    beats = []
    for _ in range(8):
        rig.loop.advance(1.0)
        rig.channel.write_inbound(BEAT)
        beats.append(rig.sent())

    assert beats == [b"", BEAT] * 4
    for _ in range(4):
        rig.channel.write_and_flush(CloseRequest())
        assert rig.sent() == encode(CloseRequest())
        rig.loop.advance(1.0)
    assert rig.sent() == b""


def test_no_heartbeat_is_queued_behind_bytes_that_wait() -> None:
    rig = Rig()

    rig.loop.advance(9.5)

    assert rig.sent() == BEAT, "only the first one; the kernel took nothing"


def test_a_silent_peer_is_cut_with_an_error_that_names_it_the_time_and_the_option() -> None:
    rig = Rig()

    rig.loop.advance(9.9)
    assert rig.channel.is_open
    rig.loop.advance(0.2)

    assert rig.channel.was_aborted
    (error,) = rig.protocol.errors
    assert isinstance(error, ConnectionLostError)
    assert "embedded sent nothing for 10.0 s" in str(error)
    assert "heartbeat_timeout_s is 10" in str(error)
    assert rig.loop.num_timers == 0


def test_part_of_a_frame_is_a_sign_of_life() -> None:
    rig = Rig()

    for byte in BEAT:
        rig.loop.advance(9.0)
        rig.channel.write_inbound(bytes([byte]))

    assert rig.channel.is_open


def test_the_peer_sets_the_pace_at_which_it_gets_heartbeats() -> None:
    """A new pace of the peer counts at once, while the timer of the old pace runs."""
    rig = Rig()
    rig.sent()
    rig.channel.write_inbound(encode(Heartbeat(200)))

    rig.loop.advance(0.1)
    assert rig.sent() == b"", "the first heartbeat left since the last look"
    rig.loop.advance(0.1)

    assert rig.sent() == BEAT


def test_no_heartbeat_goes_further_and_all_else_does() -> None:
    rig = Rig()

    rig.channel.write_inbound(BEAT + encode(CloseRequest()))

    assert rig.channel.read_inbound() == CloseRequest()
    assert rig.channel.read_inbound() is None


def test_after_the_end_no_timer_is_left() -> None:
    rig = Rig()

    rig.channel.close()

    assert rig.loop.num_timers == 0


@pytest.mark.slow  # waits for a timeout of 0.2 s
@pytest.mark.parametrize("end", ["dialled", "listened"])
@on_loops()
async def test_an_end_that_hears_nothing_cuts_the_link(end: str) -> None:
    """An end that gets no bytes cuts the link, although keepalive sees each of its own acknowledged.

    Here the test does not read the bytes that the kernel has taken.

    The other end is patient, so that the end without bytes always cuts first.
    """
    ours, theirs = Live(), Live()
    patient = replace(FAST, heartbeat_timeout_s=600.0)
    here, there = (FAST, patient) if end == "dialled" else (patient, FAST)
    async with dialled(handlers(theirs, there), handlers(ours, here), there, here) as channel:
        await until(lambda: channel.num_bytes_in > 3 * len(BEAT) + HANDSHAKE_BYTES)
        assert theirs.channel is not None

        (channel if end == "dialled" else theirs.channel).pause_reading()
        async with asyncio.timeout(PATIENCE_S):
            await ours.ended.wait()
            await theirs.ended.wait()

    told, other = (ours, theirs) if end == "dialled" else (theirs, ours)
    (error,) = told.errors
    assert "heartbeat_timeout_s is 0.2" in str(error)
    assert [type(error) for error in other.errors] == [ConnectionLostError]


@pytest.mark.slow  # lives for several timeouts of 0.2 s
@on_loops()
async def test_ends_with_different_options_do_not_cut_each_other() -> None:
    """Each end sends as often as the other asks for."""
    ours, theirs = Live(), Live()
    server = NetworkServer(FAST, handlers(theirs, FAST))
    patient = replace(FAST, heartbeat_interval_s=60.0, heartbeat_timeout_s=600.0)
    channel = await connect(
        patient, ConnectionID(*await server.start("127.0.0.1", 0)), handlers(ours, patient), timeout_s=PATIENCE_S
    )

    await until(lambda: channel.num_bytes_out > 10 * len(BEAT))

    assert channel.is_active
    assert theirs.errors == []
    channel.close()
    await channel.wait_closed()
    await server.close()
