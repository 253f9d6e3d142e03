"""Tests of ``flowlet.rpc.front_door``: the cost of a connection before its peer has proved anything, and the time that
the peer has.
"""

import asyncio
from typing import Any

import pytest

from flowlet.rpc.auth import AUTH_HEADER, PROOF_HEADER, TIME_HEADER, Nonce, RequestLine, check_answer, sign_request
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.front_door import MAX_HEAD_BYTES, DoorLimits, FrontDoor
from tests.flowlet.rpc.manual_timers import ManualTimers

SECRET, NOW, PORT = b"s" * 32, 1_700_000_000_000, 8081
LIMITS = DoorLimits(max_connections=3, max_per_host=2, timeout_s=5.0)


class Handler(asyncio.Protocol):
    """The protocol behind the door."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data


class Transport(asyncio.Transport):
    """One connection: the bytes that were written to it, and its end."""

    def __init__(self, door: "Door", host: str) -> None:
        self.host = host
        self.written = b""
        self.is_eof = self.is_aborted = self.is_paused = False
        self.sockname: tuple[str, int] | None = ("127.0.0.1", PORT)
        self.eof_error: Exception | None = None
        self.protocol: Any = door.door()
        self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self.host, 50_000), "sockname": self.sockname}.get(name, default)

    def receive(self, data: bytes) -> int:
        """Receive the data as a loop does; return the largest number of bytes that were asked for at once."""
        largest = 0
        while data:
            buffer = self.protocol.get_buffer(-1)
            largest = max(largest, len(buffer))
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.protocol.buffer_updated(len(part))
        return largest

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def write_eof(self) -> None:
        if self.eof_error is not None:
            raise self.eof_error
        self.is_eof = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert self.is_paused, "how it reads is decided when reading begins"
        self.protocol = protocol

    def abort(self) -> None:
        self.is_aborted = True
        self.protocol.connection_lost(None)

    @property
    def status(self) -> int:
        """Return the status of the only answer."""
        return int(self.written.split(b" ")[1])


class Door:
    """A door, the protocols behind it, and its clock."""

    def __init__(self, limits: DoorLimits = LIMITS) -> None:
        self.timers = ManualTimers()
        self.behind: list[Handler] = []
        self.protection = AuthenticatingServer(SECRET, clock=lambda: NOW)
        self.door = FrontDoor(self.protection, self._make, limits, self.timers)

    def _make(self) -> Handler:
        self.behind.append(Handler())
        return self.behind[-1]

    def connect(self, host: str = "127.0.0.1") -> Transport:
        return Transport(self, host)

    @property
    def num_waiting(self) -> int:
        return self.door.statistics().num_connections


def request(
    *, secret: bytes = SECRET, now_ms: int = NOW, host: str = f"127.0.0.1:{PORT}", path: str = "/overview"
) -> bytes:
    signature = sign_request(secret, RequestLine("GET", host, path), b"", Nonce("0" * 32), now_ms)
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{AUTH_HEADER}: {signature}\r\n\r\n".encode()


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_signed_head_opens_the_door(step: int) -> None:
    """The head may be cut anywhere; all bytes that came are passed on, and the time is over."""
    door = Door()
    connection, data = door.connect(), request() + b"the body"

    for start in range(0, len(data), step):
        if door.behind:
            connection.protocol.data_received(data[start : start + step])
        else:
            connection.receive(data[start : start + step])
    door.timers.advance(60)

    assert [handler.data for handler in door.behind] == [data]
    assert door.behind[0].transport is connection
    assert not connection.is_paused
    assert not connection.is_aborted
    assert door.num_waiting == 0


def test_the_door_accepts_no_request_for_good() -> None:
    """The server behind it does, and knows a replay then."""
    door = Door()
    for _ in range(2):
        door.connect().receive(request())

    assert len(door.behind) == 2


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(secret=b"t" * 32), 401),
        (b"GET /overview HTTP/1.1\r\nHost: localhost:8081\r\n\r\n", 401),
        (request(host="127.0.0.1:8082"), 421),
        (request(host="flowlet.example:8081"), 403),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, 431),
    ],
)
def test_whoever_proves_nothing_is_answered_at_the_door(data: bytes, status: int) -> None:
    """The rest of the peer's bytes goes nowhere, and the connection ends in time."""
    door = Door()
    connection = door.connect()

    connection.receive(data + b"x" * 100_000)

    assert (connection.status, connection.is_eof, door.behind) == (status, True, [])
    assert connection.written.count(b"Content-Length") == 1
    assert door.num_waiting == 1
    door.timers.advance(5)
    assert connection.is_aborted
    assert door.num_waiting == 0


def test_the_answer_to_head_has_no_body() -> None:
    door = Door()
    connection = door.connect()

    connection.receive(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert connection.status == 200
    assert connection.written.endswith(b"\r\n\r\n")


def test_a_late_request_is_told_the_servers_time() -> None:
    door = Door()
    connection = door.connect()

    connection.receive(request(now_ms=NOW - 100_000))

    headers = dict(line.split(": ") for line in connection.written.decode().split("\r\n\r\n")[0].split("\r\n")[1:])
    assert (connection.status, headers[TIME_HEADER]) == (401, str(NOW))
    check_answer(SECRET, Nonce("0" * 32), 401, str(NOW).encode(), headers[PROOF_HEADER])


def test_no_more_than_four_kibibytes_are_asked_for() -> None:
    """Bytes that arrived before count, too."""
    connection = Door().connect()

    assert connection.receive(b"x" * 4000) == MAX_HEAD_BYTES == 4096
    assert connection.receive(b"x") == 96


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_silent_or_half_sent_head_is_cut_in_time(sent: bytes) -> None:
    """Each connection has its own time, and bytes that trickle in give it no more of it."""
    door = Door()
    first = door.connect()
    door.timers.advance(3)
    second = door.connect()

    first.receive(sent)
    door.timers.advance(1.9)
    cut_early = (first.is_aborted, second.is_aborted)
    door.timers.advance(0.1)
    cut_in_time = (first.is_aborted, second.is_aborted)
    door.timers.advance(3)

    assert (cut_early, cut_in_time) == ((False, False), (True, False))
    assert second.is_aborted
    assert door.timers.timers == []


def test_the_oldest_is_cut_for_a_new_one() -> None:
    door = Door()
    connections = [door.connect() for _ in range(5)]

    assert [connection.is_aborted for connection in connections] == [True, True, False, False, False]
    assert door.num_waiting == 3


def test_one_address_cannot_take_all_the_room() -> None:
    door = Door(DoorLimits(max_connections=9, max_per_host=2, timeout_s=5.0))
    connections = [door.connect(host) for host in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1")]

    assert [connection.is_aborted for connection in connections] == [True, False, False, False]


def test_one_that_is_lost_is_forgotten() -> None:
    door = Door()
    connection = door.connect()

    connection.protocol.connection_lost(None)
    door.timers.advance(60)

    assert door.num_waiting == 0
    assert not connection.is_aborted


def test_at_the_end_all_that_wait_are_cut() -> None:
    door = Door()
    connections = [door.connect() for _ in range(2)]

    door.door.close()

    assert all(connection.is_aborted for connection in connections)
    assert (door.num_waiting, [timer.is_cancelled for timer in door.timers.timers]) == (0, [True])
    assert "0 waiting" in repr(door.door)


@pytest.mark.parametrize(
    "error",
    [OSError(107, "Transport endpoint is not connected"), RuntimeError("Cannot call write_eof() after write()")],
)
def test_a_peer_that_is_gone_when_it_is_answered_is_forgotten(error: Exception) -> None:
    """An error of the loop's protocol would log a traceback for every peer that hangs up early."""
    door = Door()
    connection = door.connect()
    connection.eof_error = error

    connection.receive(request(secret=b"t" * 32))

    assert connection.is_aborted
    assert door.num_waiting == 0


def test_a_connection_without_an_address_is_cut() -> None:
    """The peer of such a connection reset it before the loop could ask for the address."""
    door = Door()
    connection = door.connect()
    connection.sockname = None

    connection.receive(request())

    assert connection.is_aborted
    assert (door.behind, connection.written) == ([], b"")
