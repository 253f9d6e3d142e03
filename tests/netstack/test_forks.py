"""What a forked child has of its parent's connections: nothing."""

import os
import socket
from collections.abc import Callable

import pytest

from netstack.config import NetstackConfig
from netstack.eventloop import EventLoopThread
from netstack.forks import ClosedInChildren
from netstack.security import SecurityConfig
from netstack.transport.server import NetworkServer

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(check: Callable[[], bool]) -> bool:
    """What ``check`` says in a forked child."""
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)  # an error is the exit code of the interpreter
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_guarded_socket_is_closed_in_the_child_alone() -> None:
    near, far = socket.socketpair()
    with near, far:
        guard = ClosedInChildren(near.fileno(), near)

        assert in_child(lambda: not is_open(near.fileno()) and is_open(far.fileno()))

        far.sendall(b"still there")
        assert near.recv(100) == b"still there"
        guard.release()
        assert in_child(lambda: is_open(near.fileno()))


def test_a_number_that_belongs_to_another_file_by_now_stays_open() -> None:
    """Whoever closes a socket tells so a moment later; a fork may come in between."""
    near, far = socket.socketpair()
    with far:
        number = near.fileno()
        guard = ClosedInChildren(number, None)
        near.close()
        other, _ = pair = socket.socketpair()
        assert other.fileno() == number, "the least free number is given out"

        assert in_child(lambda: is_open(number))

        guard.release()
        for each in pair:
            each.close()


def test_a_grandchild_inherits_nothing_either() -> None:
    near, far = socket.socketpair()
    with near, far:
        guard = ClosedInChildren(near.fileno(), near)

        assert in_child(lambda: in_child(lambda: not is_open(near.fileno())))

        guard.release()


def test_a_child_does_not_listen_at_its_parents_port() -> None:
    """When the parent is gone nobody is there; what is connected is closed, too."""
    loop = EventLoopThread.start("parent")
    server = NetworkServer(NetstackConfig(security=SecurityConfig.none()), tuple)
    host, port = loop.submit(server.start("127.0.0.1", 0)).result()
    ours, childs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        childs.send(b"there")
        childs.recv(1)
        os._exit(0)
    assert ours.recv(10) == b"there"
    loop.submit(server.close()).result()
    loop.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child is there"
    ours.close()
    childs.close()
    os.waitpid(child, 0)
