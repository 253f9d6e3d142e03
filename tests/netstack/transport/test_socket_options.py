"""Congestion control: Reno between two ends on one machine, else the kernel's or the user's choice; what cannot be had
is named.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from netstack.config import KERNEL_CONGESTION_CONTROL
from netstack.errors import ConfigError
from netstack.ids import ConnectionID
from netstack.transport import socket_options
from netstack.transport.server import NetworkServer, connect
from netstack.transport.socket_options import check_congestion_control, set_options
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers, on_loops, run
from tests.netstack.wire.samples import RECEIVER
from tests.waiting import PATIENCE_S

PROC = Path("/proc/sys/net/ipv4")
needs_a_choice = pytest.mark.skipif(
    not hasattr(socket, "TCP_CONGESTION") or not PROC.exists(),
    reason="this platform has no choice of congestion control",
)


def chosen_by(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def other_than_reno() -> str:
    """Return a name that every user may choose, other than our own choice, Reno."""
    offered = (PROC / "tcp_allowed_congestion_control").read_text(encoding="ascii").split()
    other = next((name for name in offered if name != "reno"), None)
    if other is None:
        pytest.skip("this kernel offers nothing but reno")
    return other


@contextmanager
def loopback_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        two, _ = server.accept()
        with two:
            yield one, two


class PretendedSocket:
    """A TCP socket between two addresses; ``peer`` None: the other end is gone."""

    def __init__(self, own: str, peer: str | None) -> None:
        self._own, self._peer = own, peer

    def setsockopt(self, *_option: int) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self._own, 1

    def getpeername(self) -> tuple[str, int]:
        if self._peer is None:
            raise OSError("Transport endpoint is not connected")
        return self._peer, 2


@needs_a_choice
@pytest.mark.parametrize("wish", ["nothing", "kernel", "other"])
@on_loops()
async def test_both_ends_of_a_connection_on_one_machine(wish: str) -> None:
    """Reno by default, since BBR paces its bytes; a chosen name is used, even the kernel's own."""
    with loopback_pair() as (untouched, _):
        kernels_own = chosen_by(untouched)
    congestion_control: str | None = None
    expected = "reno"
    if wish == "kernel":
        congestion_control, expected = KERNEL_CONGESTION_CONTROL, kernels_own
    elif wish == "other":
        congestion_control = expected = other_than_reno()
    config = replace(CONFIG, congestion_control=congestion_control)
    server = NetworkServer(config, handlers(Inbox()))
    channel = await connect(
        config, ConnectionID(*await server.start("127.0.0.1", 0)), handlers(Inbox()), timeout_s=PATIENCE_S
    )
    for end in (channel, *server._group.channels):
        assert end._transport is not None
        assert chosen_by(end._transport.get_extra_info("socket")) == expected
    channel.close()
    await channel.wait_closed()
    await server.close()


@pytest.mark.parametrize(
    ("own", "peer", "wish", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", None, ["reno"]),
        ("127.0.0.1", "127.0.0.2", None, ["reno"]),
        ("::1", "::1", None, ["reno"]),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.2", None, ["reno"]),
        ("10.0.0.5", "10.0.0.5", None, ["reno"]),
        ("10.0.0.5", "10.0.0.6", None, []),
        ("10.0.0.5", None, None, []),
        ("10.0.0.5", "10.0.0.6", "cubic", ["cubic"]),
        ("127.0.0.1", "127.0.0.1", "cubic", ["cubic"]),
        ("10.0.0.5", "10.0.0.6", "kernel", []),
        ("127.0.0.1", "127.0.0.1", "kernel", []),
    ],
)
def test_where_the_peer_is_decides_unless_the_user_does(
    monkeypatch: pytest.MonkeyPatch, own: str, peer: str | None, wish: str | None, expected: list[str]
) -> None:
    """For another machine the kernel's choice stays, since it knows the way there better than we do."""
    chosen: list[str] = []
    monkeypatch.setattr(socket_options, "_set", lambda _sock, name: chosen.append(name))

    set_options(cast(socket.socket, PretendedSocket(own, peer)), replace(CONFIG, congestion_control=wish))

    assert chosen == expected


@needs_a_choice
def test_a_name_that_the_kernel_does_not_have_is_refused_before_anybody_listens_or_dials() -> None:
    """An unknown name is refused at once, with the names to choose from, and not at the first connection."""
    config = replace(CONFIG, congestion_control="carrier-pigeon")
    names = ", ".join((PROC / "tcp_available_congestion_control").read_text(encoding="ascii").split())
    message = (
        r"congestion_control is 'carrier-pigeon', which this kernel does not offer to this user .*; it knows "
        rf"{names} and offers"
    )

    async def main() -> None:
        server = NetworkServer(config, handlers(Inbox()))
        with pytest.raises(ConfigError, match=message):
            await server.start("127.0.0.1", 0)
        await server.close()
        good = NetworkServer(CONFIG, handlers(Inbox()))
        address = ConnectionID(*await good.start("127.0.0.1", 0))
        with pytest.raises(ConfigError, match=message):
            await connect(config, address, handlers(Inbox()), timeout_s=PATIENCE_S)
        await good.close()

    run("uvloop", main())


@pytest.mark.parametrize("name", [None, KERNEL_CONGESTION_CONTROL])
def test_nothing_to_check(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    def refuse(_sock: socket.socket, _name: str) -> None:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr(socket_options, "_set", refuse)

    check_congestion_control(name)


def test_a_platform_without_a_choice_names_the_wish_and_says_that_nothing_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    monkeypatch.setattr(socket_options, "_PROC", tmp_path)

    with pytest.raises(
        ConfigError, match=r"congestion_control is 'cubic', .*has no TCP_CONGESTION option.*cannot be read from"
    ):
        check_congestion_control("cubic")


def test_a_kernel_that_refuses_reno_keeps_its_own_and_the_log_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Reno everything works as before, and a thousand connections make one line in the log."""

    def refuse(_sock: socket.socket, _name: str) -> None:
        raise OSError("Operation not permitted")

    monkeypatch.setattr(socket_options, "_set", refuse)
    socket_options._tell_once.cache_clear()

    with capture_logs() as logs, loopback_pair() as ends:
        for end in ends:
            set_options(end, CONFIG)

    assert [(line["log_level"], line["error"]) for line in logs] == [("debug", "Operation not permitted")]


# ---------------------------------------------------------------- silent peers


@on_loops()
async def test_the_kernel_finds_a_peer_that_is_gone_within_30_s() -> None:
    """Keepalive after 10 s, four probes 5 s apart; unacknowledged data has 30 s."""
    config = replace(CONFIG, send_buffer_bytes=50_000, receive_buffer_bytes=60_000)
    server = NetworkServer(config, handlers(Inbox()))
    channel = await connect(
        config, ConnectionID(*await server.start("127.0.0.1", 0)), handlers(Inbox()), timeout_s=PATIENCE_S
    )
    assert channel._transport is not None
    sock = channel._transport.get_extra_info("socket")

    tcp = {
        socket.TCP_NODELAY: 1,
        socket.TCP_KEEPIDLE: 10,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 4,
        socket.TCP_USER_TIMEOUT: 30_000,
    }
    assert {option: sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp} == tcp
    # Linux doubles it for its own bookkeeping.
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
    channel.close()
    await channel.wait_closed()
    await server.close()


@on_loops()
async def test_a_peer_that_stops_in_the_middle_of_a_frame_is_cut() -> None:
    """A peer that stops inside a frame (Slowloris) is cut; one that is silent between two frames stays."""
    inbox = Inbox()
    server = NetworkServer(replace(CONFIG, heartbeat_interval_s=0.1, heartbeat_timeout_s=0.2), handlers(inbox))
    host, port = await server.start("127.0.0.1", 0)
    silent = await connect(CONFIG, ConnectionID(host, port), handlers(Inbox()), timeout_s=PATIENCE_S)
    reader, writer = await asyncio.open_connection(host, port)

    writer.write(encode(AddCredit(RECEIVER, 1))[:-1])
    assert await reader.read() == b""

    assert "stopped in the middle of a frame" in str(inbox.errors[0])
    assert silent.is_active
    silent.close()
    await silent.wait_closed()
    writer.close()
    await writer.wait_closed()
    await server.close()
