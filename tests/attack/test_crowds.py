"""Thousands of connections that say nothing, or half of something: each costs little, ends in time, and keeps nobody
out.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Final

import pytest

from flowlet.ingest import open_gate
from netstack.flow.handshake import Role
from netstack.wire.message_bytes import FRAME_HEADER, MAGIC, encode
from netstack.wire.messages import Hello
from tests.attack.arena import Arena
from tests.attack.jobs import run_new_job
from tests.chaos.soak_samples import Sample, sample

NUM: Final = 2000
# Within which a stranger that says nothing, or half of something, is cut; the product's own deadlines are shorter.
CUT_S: Final = 30.0
SERVED_S: Final = 15.0  # within which a new job is done while the crowd is there
_MORE_MIB: Final = 48  # that a crowd may cost
_OWN_FDS: Final = 8  # connections of new jobs, and of clients that ask meanwhile
_HELLO: Final = encode(Hello(1, 1, Role.CONSUMER, bytes(range(32))))
_REQUEST: Final = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Flowlet-Auth: v1 1 " + b"0" * 32


@dataclass(frozen=True)
class Kind:
    """A kind of crowd: every connection sends ``first`` at once, then ``rest``, one byte per second."""

    name: str
    first: bytes
    rest: bytes = b""


DATA_KINDS: Final = [
    Kind("silent", b""),
    Kind("half a frame", _HELLO[:20]),
    Kind("a byte per second", _HELLO[:1], _HELLO[1:-1]),
    Kind("a hello and no proof", _HELLO),
    Kind("a large frame", FRAME_HEADER.pack(1 << 19, MAGIC, 3) + bytes(400)),
]
CONTROL_KINDS: Final = [
    Kind("silent", b""),
    Kind("half a head", _REQUEST),
    Kind("a byte per second", _REQUEST[:1], _REQUEST[1:]),
    Kind("a head and no body", _REQUEST + b"\r\nContent-Length: 60000000\r\n\r\n"),
    Kind("a healthy request", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    Kind("half of chunked", b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
]


class Crowd:
    """Many connections to one port, made at once."""

    def __init__(self, port: int, num: int, kind: Kind) -> None:
        self._kind = kind
        self._is_over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._connected: list[socket.socket] = []
        self._poller = select.epoll()
        for _ in range(num):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            self._sockets.append(one)
            self._poller.register(one, select.EPOLLOUT | select.EPOLLONESHOT)
        self._thread = threading.Thread(target=self._speak, name="a crowd", daemon=True)
        self._thread.start()

    def _speak(self) -> None:
        by_fd = {each.fileno(): each for each in self._sockets}
        place, next_s = 0, time.monotonic() + 1.0
        while not self._is_over.is_set():
            for fd, _ in self._poller.poll(0.1):
                with suppress(OSError):
                    by_fd[fd].send(self._kind.first)
                self._connected.append(by_fd[fd])
            if time.monotonic() > next_s and place < len(self._kind.rest):
                for each in self._connected:
                    with suppress(OSError):
                        each.send(self._kind.rest[place : place + 1])
                place, next_s = place + 1, next_s + 1.0

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._poller.close()
        for each in self._sockets:
            each.close()


def crowd_attack(arena: Arena, where: str, kind: Kind, num: int) -> None:
    """Put a crowd at one port; new jobs and gates are served meanwhile; then all of the crowd is cut."""
    port, process = (
        (arena.control_port, arena.job_manager) if where == "control" else (arena.task_managers[0].data_port, None)
    )
    pid = arena.task_managers[0].process.pid if process is None else process.pid
    with arena.attack(f"{num} at the {where} port: {kind.name}") as it, ExitStack() as stack:
        before = usage_of(pid)
        started_s = time.monotonic()
        stack.enter_context(closing(Crowd(port, num, kind)))
        served_s = run_new_job(arena.address, SERVED_S, arena.seed)
        assert it.bystander is not None
        open_gate(it.bystander.name, jobmanager=arena.address, secret_file=arena.secret_file, timeout_s=5)
        most = usage_of(pid)
        deadline = time.monotonic() + CUT_S
        # The kernel may tell a client that it is connected although no server ever hears of it: what counts is what the
        # server holds.
        while (left := usage_of(pid).fds - before.fds - _OWN_FDS) > 0 and time.monotonic() < deadline:
            time.sleep(0.2)
            most = max(most, usage_of(pid), key=lambda usage: usage.rss_mib)
        seconds, more_mib = time.monotonic() - started_s, most.rss_mib - before.rss_mib
        text = f"job meanwhile {served_s:.1f} s, +{more_mib:.0f} MiB, {most.fds - before.fds} held, "
        it.outcome(text + (f"all cut after {seconds:.0f} s" if left <= 0 else f"{left} not cut after {seconds:.0f} s"))
        assert more_mib < _MORE_MIB, f"+{more_mib:.0f} MiB for {num} connections"
        assert left <= 0, f"{left} of {num} are not cut after {seconds:.0f} s"


def usage_of(pid: int) -> Sample:
    usage = sample(pid)
    assert usage is not None, "the process has ended"
    return usage


@pytest.mark.parametrize("kind", DATA_KINDS, ids=lambda kind: kind.name)
def test_data_port(arena: Arena, kind: Kind) -> None:
    crowd_attack(arena, "data", kind, NUM)


@pytest.mark.parametrize("kind", CONTROL_KINDS, ids=lambda kind: kind.name)
def test_control_port(arena: Arena, kind: Kind) -> None:
    crowd_attack(arena, "control", kind, NUM)


@pytest.mark.parametrize("where", ["data", "control"])
def test_strangers_come_and_go(arena: Arena, where: str) -> None:
    """Let strangers come and go as fast as they can: a stranger in the middle of a handshake is not the one that is
    cut.
    """
    port = arena.control_port if where == "control" else arena.task_managers[0].data_port
    with arena.attack(f"strangers come and go at the {where} port") as it:
        is_over, count, lock = threading.Event(), [0], threading.Lock()

        def come_and_go() -> None:
            held: list[socket.socket] = []
            while not is_over.is_set():
                with suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                    with lock:
                        count[0] += 1
                if len(held) > 200:
                    held.pop(0).close()
            for each in held:
                each.close()

        threads = [threading.Thread(target=come_and_go, daemon=True) for _ in range(2)]
        started_s = time.monotonic()
        for thread in threads:
            thread.start()
        times = []
        try:
            while time.monotonic() < started_s + 6.0:
                times.append(run_new_job(arena.address, SERVED_S, arena.seed))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        rate = count[0] / (time.monotonic() - started_s)
        it.outcome(f"{rate:.0f} strangers/s, {len(times)} jobs meanwhile, the slowest {max(times):.1f} s")


def test_resets(arena: Arena) -> None:
    """The port withstands connections that are reset at once, some behind half a frame."""
    ports = [arena.control_port, *(each.data_port for each in arena.task_managers)]
    with arena.attack("6,000 connections that are reset") as it:
        say: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: _HELLO[: os.urandom(1)[0] % 46],
            lambda: _REQUEST,
            lambda: _HELLO,
        ]
        num = 0
        for number in range(6000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", ports[number % 3]), timeout=5) as one:
                one.send(say[number % 4]())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                num += 1
        it.outcome(f"{num} were accepted")
