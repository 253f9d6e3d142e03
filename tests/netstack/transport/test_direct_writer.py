"""Frames that a thread sends past the loop: only while nothing else is being sent, and whole."""

import socket
import threading
from collections.abc import Iterator

import pytest

from netstack.transport.direct_writer import DirectWriter
from netstack.transport.outbound_buffer import ChannelOutboundBuffer

LARGE = 1 << 20


class Connection:
    """A connection with a direct writer at one end; the test reads from the other one."""

    def __init__(self) -> None:
        sock, self.peer = socket.socketpair()
        sock.setblocking(False)
        self.sock = sock
        self.turn = threading.RLock()
        self.outbound = ChannelOutboundBuffer(2 * LARGE, LARGE)
        self.is_open = True
        self.barred: set[int | None] = set()
        self.num_flushes = 0
        self.writer = DirectWriter(sock, self.outbound, self.turn, lambda: self.is_open, self._flush, self.barred)

    def _flush(self) -> None:
        self.num_flushes += 1

    def close(self) -> None:
        self.writer.close()
        self.peer.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection()
    yield connection
    connection.close()


def in_thread(call: "threading.Thread") -> None:
    call.start()
    call.join()


def can_begin_elsewhere(connection: Connection) -> bool:
    """Whether another thread could write now."""
    found: list[bool] = []

    def attempt() -> None:
        found.append(connection.writer.try_begin())
        if found[0]:
            connection.writer.end()

    in_thread(threading.Thread(target=attempt))
    return found[0]


def test_a_frame_is_sent_whole_and_counted(connection: Connection) -> None:
    assert connection.writer.try_begin()
    connection.writer.write(b"frame")
    connection.writer.end()

    assert connection.peer.recv(100) == b"frame"
    assert (connection.writer.num_writes, connection.writer.num_bytes_out) == (1, 5)
    assert connection.outbound.pending_bytes == connection.num_flushes == 0


def test_nobody_writes_while_another_thread_has_the_turn(connection: Connection) -> None:
    assert connection.writer.try_begin()

    assert not can_begin_elsewhere(connection), "not while a frame is under way"

    connection.writer.end()
    assert can_begin_elsewhere(connection)


def test_nobody_overtakes_what_was_written_earlier(connection: Connection) -> None:
    """Frames that wait in the outbound buffer, flushed or not, are left to the loop."""
    connection.outbound.add((b"earlier",), None)

    assert not connection.writer.try_begin()
    connection.outbound.take_unflushed()
    assert not connection.writer.try_begin(), "the transport holds it"

    connection.outbound.written(7)
    assert connection.writer.try_begin()
    connection.writer.end()


def test_a_refused_attempt_leaves_the_turn_free(connection: Connection) -> None:
    connection.is_open = False

    assert not connection.writer.try_begin()

    connection.is_open = True
    assert can_begin_elsewhere(connection)


def test_a_thread_that_may_be_interrupted_anywhere_never_has_the_turn(connection: Connection) -> None:
    connection.barred.add(threading.get_ident())

    assert not connection.writer.try_begin()

    assert can_begin_elsewhere(connection)


def test_neither_the_loops_thread_nor_the_main_one_ever_has_the_turn() -> None:
    """The loop writes as it always does; a signal handler may tear the main thread out of a turn."""
    sock, peer = socket.socketpair()
    writers: list[DirectWriter] = []

    def begin() -> None:
        began.append(writers[0].try_begin())
        if began[-1]:
            writers[0].end()

    def on_the_loop() -> None:
        outbound = ChannelOutboundBuffer(LARGE, LARGE)
        writers.append(DirectWriter(sock, outbound, threading.RLock(), lambda: True, lambda: None))
        begin()
        other = threading.Thread(target=begin)
        other.start()
        other.join()

    began: list[bool] = []
    loop = threading.Thread(target=on_the_loop)

    loop.start()
    loop.join()
    begin()

    assert began == [False, True, False]
    writers[0].close()
    peer.close()


def test_what_the_kernel_does_not_take_goes_out_next_by_the_loop(connection: Connection) -> None:
    """The rest of the frame stands in the outbound buffer, before everything that is written later."""
    frame = bytes(range(256)) * (LARGE // 128)

    assert connection.writer.try_begin()
    connection.writer.write(frame)
    connection.writer.end()
    connection.outbound.add((b"later",), None)

    num_sent = connection.writer.num_bytes_out
    assert 0 < num_sent < len(frame)
    assert connection.num_flushes == 1
    assert b"".join(connection.outbound.take_unflushed()) == frame[num_sent:] + b"later"
    assert not connection.writer.try_begin()


def test_a_broken_connection_is_left_to_the_loop(connection: Connection) -> None:
    """The loop meets the error again, and knows whom to tell."""
    connection.peer.close()

    assert connection.writer.try_begin()
    connection.writer.write(b"frame")
    connection.writer.end()

    assert connection.num_flushes == 1
    assert b"".join(connection.outbound.take_unflushed()) == b"frame"


def test_a_loop_that_was_closed_is_no_error(connection: Connection) -> None:
    connection.peer.close()

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    writer = DirectWriter(connection.sock, connection.outbound, connection.turn, lambda: True, closed, ())
    assert writer.try_begin()
    writer.write(b"frame")
    writer.end()


def test_nothing_is_sent_after_the_close(connection: Connection) -> None:
    connection.writer.close()
    connection.writer.close()

    assert not connection.writer.try_begin()
    assert connection.sock.fileno() == -1
    assert repr(connection.writer) == "<DirectWriter closed, 0 writes>"


def test_the_close_waits_for_a_frame_that_is_under_way(connection: Connection) -> None:
    """The socket's number must not be given to another connection between the decision to write and the write."""
    assert connection.writer.try_begin()
    closer = threading.Thread(target=connection.writer.close)
    closer.start()

    connection.writer.write(b"frame")
    assert connection.peer.recv(100) == b"frame"
    assert closer.is_alive()
    connection.writer.end()

    closer.join()
    assert connection.sock.fileno() == -1
