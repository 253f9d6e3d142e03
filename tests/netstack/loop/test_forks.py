"""A forked child inherits none of its parent's connections."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

import pytest

from netstack.config import NetstackConfig, SecurityConfig
from netstack.loop.eventloop import EventLoopThread
from netstack.loop.forks import ClosedInChildren, PortClosedInChildren, end_stranded_child, serving_thread
from netstack.transport.server import NetworkServer

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(check: Callable[[], bool]) -> bool:
    """Return the answer of ``check`` in a forked child."""
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
    """The fork comes between the close of a socket and the release of its guard."""
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
    """A connection to the port of a parent that has ended is refused while its child lives."""
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


def test_sockets_of_a_library_are_closed_in_the_child_by_their_port() -> None:
    """The parent's sockets, and other ports, stay open."""
    listener, other = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    with listener, other, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            guard = PortClosedInChildren(listener.getsockname()[1])

            assert in_child(
                lambda: (
                    not any(is_open(each.fileno()) for each in (listener, client, accepted)) and is_open(other.fileno())
                )
            )

            guard.release()
            assert in_child(lambda: is_open(client.fileno()))
            client.sendall(b"still there")
            assert accepted.recv(100) == b"still there"


def child_of_serving_thread(function: Callable[[], object]) -> int:
    """Return how a child ends that a thread of ours forks, and that runs ``function`` first."""
    children: list[int] = []

    def work() -> None:
        with serving_thread():
            children.append(os.fork())
            try:
                if not children[0]:
                    function()
            finally:
                end_stranded_child()
                if not children[0]:
                    os._exit(99)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: None, 1),
        (lambda: [][0], 1),
        (lambda: sys.exit(4), 4),
        (lambda: sys.exit(), 0),
        (lambda: sys.exit("sorry"), 1),
        (lambda: signal.raise_signal(signal.SIGTERM), -signal.SIGTERM),
    ],
    ids=["returns", "raises", "exits", "exits without a code", "exits with a text", "is terminated"],
)
def test_a_child_of_a_thread_of_ours_ends_where_the_users_function_does(
    function: Callable[[], object], code: int
) -> None:
    assert child_of_serving_thread(function) == code


def test_a_child_says_why_it_ends(capfd: pytest.CaptureFixture[str]) -> None:
    child_of_serving_thread(lambda: dict[str, int]()["the key"])

    said = capfd.readouterr().err
    assert "KeyError: 'the key'" in said
    assert "which a user's function forked, did not end in that function" in said


def test_a_signal_to_the_child_does_not_reach_the_loop_of_its_parent() -> None:
    """A signal to the child is not written into the wake-up socket that parent and child share."""
    near, far = socket.socketpair()
    with near, far:
        for each in (near, far):
            each.setblocking(False)
        former = signal.set_wakeup_fd(far.fileno())
        handler = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            assert child_of_serving_thread(lambda: signal.raise_signal(signal.SIGUSR1)) == 1
            with pytest.raises(BlockingIOError):
                near.recv(1)
        finally:
            signal.set_wakeup_fd(former)
            signal.signal(signal.SIGUSR1, handler)


def test_a_child_of_any_other_thread_goes_on() -> None:
    """Only a child of a serving thread is ended; other children belong to the program."""

    def goes_on() -> bool:
        end_stranded_child()
        return True

    assert in_child(goes_on)


def test_the_loop_of_a_child_ends_with_its_present_pass() -> None:
    """A user's coroutine forks and waits in the child, which shares the selector of its parent."""
    loop = EventLoopThread.start("forking")
    children: list[int] = []

    async def fork() -> None:
        children.append(os.fork())

    loop.submit(fork()).result()
    code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    loop.close()

    assert code == 1
