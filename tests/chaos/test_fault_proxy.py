"""Real sockets on both sides of the proxy: bytes pass unchanged, and faults hit the connection that
they are meant for.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.fault_proxy import Entrance, FaultProxy
from tests.chaos.frame_finder import WebSocketFrames
from tests.chaos.link_plan import LinkFault, LinkFaultKind
from tests.waiting import PATIENCE_S, spin_until

HEAD = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
FRAME = b"\x82\x05hello"


@contextmanager
def echo_server() -> Iterator[int]:
    """Send received bytes back; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        while data := connection.recv(1000):
                            connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


@pytest.fixture
def entrance() -> Iterator[Entrance]:
    with echo_server() as port, FaultProxy() as proxy:
        made = proxy.open_entrance("test", WebSocketFrames)
        made.target_port = port
        yield made


def receive(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := client.recv(1000)):
        data += piece
    return data


def connected(entrance: Entrance) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", entrance.port), timeout=PATIENCE_S)
    client.sendall(HEAD)
    assert receive(client, len(HEAD)) == HEAD
    return client


def test_bytes_pass_in_both_directions(entrance: Entrance) -> None:
    with connected(entrance) as client:
        client.sendall(FRAME * 1000)

        assert receive(client, len(FRAME) * 1000) == FRAME * 1000
    assert entrance.num_bytes >= 2 * len(FRAME) * 1000


@pytest.mark.parametrize("kind", [LinkFaultKind.CUT, LinkFaultKind.RESET])
def test_a_cut_ends_the_connection_at_its_byte_and_new_ones_pass(entrance: Entrance, kind: LinkFaultKind) -> None:
    with connected(entrance) as client:
        entrance.arm(LinkFault(kind, "to client", frame=1, byte=3))
        client.sendall(FRAME * 3)
        if kind is LinkFaultKind.RESET:
            with pytest.raises(ConnectionResetError):
                receive(client, 1000)
        else:
            assert receive(client, 1000) == FRAME + FRAME[:3]
    assert [fault.kind for fault, _ in entrance.fired] == [kind]

    with connected(entrance) as client:
        client.sendall(FRAME)
        assert receive(client, len(FRAME)) == FRAME


def test_a_flipped_bit_arrives_flipped(entrance: Entrance) -> None:
    with connected(entrance) as client:
        entrance.arm(LinkFault(LinkFaultKind.FLIP, "to server", frame=0, byte=2))
        client.sendall(FRAME)

        assert receive(client, len(FRAME)) == b"\x82\x05" + b"lello"


def test_nobody_behind_the_entrance_ends_the_connection(entrance: Entrance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        entrance.target_port = closed.getsockname()[1]
    with socket.create_connection(("127.0.0.1", entrance.port), timeout=PATIENCE_S) as client:
        assert client.recv(10) == b""


def test_closing_the_proxy_ends_connections_that_stand_still() -> None:
    with echo_server() as port:
        with FaultProxy() as proxy:
            made = proxy.open_entrance("test", WebSocketFrames)
            made.target_port = port
            client = connected(made)
            made.arm(LinkFault(LinkFaultKind.HOLD, "to client", seconds=1000.0))
            client.sendall(FRAME)
            spin_until(lambda: made.fired, "the hold")
        with client:
            assert client.recv(10) == b""
