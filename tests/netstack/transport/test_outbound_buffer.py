"""``ChannelOutboundBuffer``: exact bytes, exact watermarks, each callback once."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.transport.direct_writer import DirectWriter
from netstack.transport.outbound_buffer import ChannelOutboundBuffer


def note(seen: list[str], name: str) -> Callable[[], None]:
    return lambda: seen.append(name)


def call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def test_the_channel_is_unwritable_from_more_than_the_high_watermark() -> None:
    """A channel is still writable exactly at the watermark, and the change is reported once."""
    outbound = ChannelOutboundBuffer(high_watermark_bytes=10, low_watermark_bytes=5)

    flips = [outbound.add((b"x" * 10,), None), outbound.add((b"x",), None), outbound.add((b"x",), None)]

    assert flips == [False, True, False]
    assert not outbound.is_writable


def test_the_channel_is_writable_again_at_the_low_watermark() -> None:
    """One byte above the low watermark the channel stays unwritable; the change is reported once."""
    outbound = ChannelOutboundBuffer(high_watermark_bytes=10, low_watermark_bytes=5)
    outbound.add((b"x" * 12,), None)

    flips = [outbound.written(6)[1], outbound.written(1)[1], outbound.written(5)[1]]

    assert flips == [False, True, False]
    assert outbound.is_writable


def test_a_channel_below_the_high_watermark_never_tells_that_it_became_writable() -> None:
    """A channel that was always writable does not report that it became writable."""
    outbound = ChannelOutboundBuffer(high_watermark_bytes=10, low_watermark_bytes=5)
    outbound.add((b"x" * 10,), None)

    assert outbound.written(10) == ([], False)


@pytest.mark.parametrize("page", [1024, 65536])
def test_the_second_page_makes_a_channel_unwritable(page: int) -> None:
    """With low = page and high = 2 x page; one page left makes it writable."""
    outbound = ChannelOutboundBuffer(high_watermark_bytes=2 * page, low_watermark_bytes=page)
    header, payload = b"h" * 47, memoryview(bytearray(page))

    assert outbound.add((header, payload), None) is False
    assert outbound.add((header, payload), None) is True
    assert outbound.written(page + 93)[1] is False
    assert outbound.written(1)[1] is True
    assert outbound.pending_bytes == page


def test_a_callback_runs_with_the_last_byte_of_its_frame() -> None:
    """Partial writes are counted exactly, over the views of a frame and over frames."""
    outbound, seen = ChannelOutboundBuffer(100, 50), list[str]()
    outbound.add((b"ab", memoryview(b"cd")), note(seen, "first"))
    outbound.add((b"e",), None)
    outbound.add((b"fg",), note(seen, "second"))
    outbound.take_unflushed()

    for expected in ([], [], [], ["first"], ["first"], ["first"], ["first", "second"]):
        callbacks, _ = outbound.written(1)
        call_all(callbacks)
        assert seen == expected
        outbound.check_invariants()
    assert outbound.pending_bytes == 0


def test_a_frame_without_bytes_is_written_with_the_next_report() -> None:
    """The callback of an empty frame does not wait for a byte that never comes."""
    outbound, seen = ChannelOutboundBuffer(100, 50), list[str]()
    outbound.add((), note(seen, "empty"))

    call_all(outbound.written(0)[0])

    assert seen == ["empty"]


def test_views_are_taken_once_and_stay_pending() -> None:
    """Bytes that the transport got are not handed out again, but count as pending until they are written."""
    outbound = ChannelOutboundBuffer(100, 50)
    payload = memoryview(b"payload")
    outbound.add((b"head", payload), None)

    taken = outbound.take_unflushed()

    assert taken == [b"head", payload]
    assert outbound.take_unflushed() == []
    assert outbound.pending_bytes == 11


def test_fail_all_hands_out_what_was_not_written_completely() -> None:
    """Once each, even if only the last byte is missing; no byte is pending afterwards."""
    outbound, seen = ChannelOutboundBuffer(100, 50), list[str]()
    outbound.add((b"ab",), note(seen, "written"))
    outbound.add((b"cd",), note(seen, "half"))
    outbound.add((b"ef",), note(seen, "not at all"))
    call_all(outbound.written(3)[0])

    call_all(outbound.fail_all())

    assert seen == ["written", "half", "not at all"]
    assert outbound.fail_all() == []
    assert (outbound.pending_bytes, outbound.take_unflushed()) == (0, [])


def test_more_written_than_pending_is_a_bug() -> None:
    """A report of more bytes than the transport got is refused."""
    outbound = ChannelOutboundBuffer(100, 50)
    outbound.add((b"ab",), None)

    with pytest.raises(AssertionError, match="3 bytes written, 2 pending"):
        outbound.written(3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40))
def test_bytes_and_callbacks_balance(steps: list[tuple[bool, int]]) -> None:
    """Each callback runs once and in order; writability only flips across the watermarks."""
    outbound, seen, added, written = ChannelOutboundBuffer(60, 30), list[int](), list[int](), 0
    for is_add, amount in steps:
        was_writable = outbound.is_writable
        if is_add:
            number = len(added)
            has_flipped = outbound.add((b"x" * amount,), lambda number=number: seen.append(number))  # type: ignore[misc]  # default binds now
            added.append(amount)
            assert has_flipped is (was_writable and outbound.pending_bytes > 60)
        else:
            outbound.take_unflushed()
            amount = min(amount, outbound.pending_bytes)
            callbacks, has_flipped = outbound.written(amount)
            call_all(callbacks)
            written += amount
            assert has_flipped is (not was_writable and outbound.pending_bytes <= 30)
        assert outbound.is_writable is (was_writable is not has_flipped)
        assert outbound.pending_bytes == sum(added) - written
        outbound.check_invariants()
    call_all(outbound.fail_all())
    assert seen == list(range(len(added)))


# ---------------------------------------------------------------- ``DirectWriter``


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


def test_a_frame_that_the_kernel_takes_whole_leaves_the_loop_asleep(connection: Connection) -> None:
    assert connection.writer.try_begin()
    connection.writer.write(b"frame")
    connection.writer.end()

    assert connection.peer.recv(100) == b"frame"
    assert (connection.num_flushes, connection.outbound.take_unflushed()) == (0, [])


def test_a_refused_attempt_leaves_the_turn_free(connection: Connection) -> None:
    connection.is_open = False

    assert not connection.writer.try_begin()

    connection.is_open = True
    assert can_begin_elsewhere(connection)


def test_a_thread_that_may_be_interrupted_anywhere_never_has_the_turn(connection: Connection) -> None:
    connection.barred.add(threading.get_ident())

    assert not connection.writer.try_begin()

    assert can_begin_elsewhere(connection)


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
