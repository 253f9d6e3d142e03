"""``TlsAcceptor``: a port that goes on accepting, whatever happens to one connection."""

import asyncio
import socket
from typing import Any

import pytest

from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import NetworkServer
from netstack.transport.tls import TlsAcceptor
from tests.netstack.transport.authority import Authority, is_cut, security
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers, on_loops
from tests.waiting import PATIENCE_S


@on_loops()
async def test_a_socket_that_cannot_accept_is_said_and_tried_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of descriptors, for example."""
    monkeypatch.setattr("netstack.transport.tls._PAUSE_S", 0)
    errors: list[Exception] = []
    has_tried_again = asyncio.Event()

    def on_failed(error: Exception) -> None:
        errors.append(error)
        if len(errors) > 1:
            has_tried_again.set()

    server = NetworkServer(CONFIG, handlers(Inbox()))
    acceptor = TlsAcceptor(security(authority.issue("server")), server._make_channel, on_failed)
    bound = socket.create_server(("127.0.0.1", 0))
    acceptor.serve([bound], 10)

    acceptor._listening[0].shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(PATIENCE_S):
        await has_tried_again.wait()

    await acceptor.close()
    assert isinstance(errors[0], OSError)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    bound.close()


@pytest.mark.parametrize("fails_in", ["accept", "channel", "handshake"])
@on_loops()
async def test_no_error_of_a_new_connection_goes_unseen(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    """A bug of ours, or an error of the loop that is no OSError, is reported, and the port goes on accepting."""
    monkeypatch.setattr("netstack.transport.tls._PAUSE_S", 0)
    errors: list[Exception] = []
    has_failed = asyncio.Event()
    is_encrypting = asyncio.Event()
    server = NetworkServer(CONFIG, handlers(Inbox()))

    def on_failed(error: Exception) -> None:
        errors.append(error)
        has_failed.set()

    def encrypt(sock: socket.socket) -> None:
        TlsAcceptor.encrypt(acceptor, sock)
        is_encrypting.set()

    def make_channel() -> NetworkChannel:
        if not errors and fails_in == "channel":
            raise ValueError("no channel")
        return server._make_channel()

    async def fail_to_accept(listening: socket.socket) -> Any:
        raise ValueError("no accept")

    async def fail_to_encrypt(_: object, sock: socket.socket, **__: object) -> Any:
        sock.close()
        raise ValueError("no handshake")

    acceptor = TlsAcceptor(security(authority.issue("server")), make_channel, on_failed)
    bound = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        if fails_in == "accept":
            patch.setattr(loop, "sock_accept", fail_to_accept)
        if fails_in == "handshake":
            patch.setattr(loop, "connect_accepted_socket", fail_to_encrypt)
        acceptor.serve([bound], 10)
        with socket.create_connection(bound.getsockname()):
            async with asyncio.timeout(PATIENCE_S):
                await has_failed.wait()
    monkeypatch.setattr(acceptor, "encrypt", encrypt)
    silent = await asyncio.open_connection(*bound.getsockname())
    async with asyncio.timeout(PATIENCE_S):
        await is_encrypting.wait()
    assert acceptor.num_handshakes

    await acceptor.close()
    bound.close()
    assert await is_cut(silent)
    assert str(errors[0]) == f"no {fails_in}"
    assert acceptor.num_failed or fails_in == "accept"
