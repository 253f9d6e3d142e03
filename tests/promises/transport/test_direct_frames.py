"""Frames that threads send past the loop, over the ``direct_writer`` of a channel on real sockets: whole, in order."""

import socket
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import pytest

from netstack.transport.network_channel import NetworkChannel
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit
from tests.netstack.connections import until
from tests.netstack.transport.sockets import LOOPS, fill, raw_peer, read_bytes, run
from tests.netstack.wire.samples import RECEIVER
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)

T = TypeVar("T")
LARGE = bytes(range(256)) * (1 << 15)


def on_another_thread(call: Callable[[], T]) -> T:
    """Return the result of ``call`` on another thread; the caller's loop stands still meanwhile."""
    found: SimpleQueue[T] = SimpleQueue()
    thread = threading.Thread(target=lambda: found.put(call()))
    thread.start()
    thread.join()
    return found.get_nowait()


def try_to_send(channel: NetworkChannel, frame: bytes) -> bool:
    """Whether the calling thread may send now; then it has."""
    writer = channel.direct_writer()
    assert writer is not None
    if not writer.try_begin():
        return False
    try:
        writer.write(frame)
    finally:
        writer.end()
    return True


def sends_elsewhere(channel: NetworkChannel, frame: bytes) -> bool:
    return on_another_thread(lambda: try_to_send(channel, frame))


def test_a_frame_is_sent_whole_while_the_loop_stands_still(loop_name: str) -> None:
    """A frame that was sent past the loop is counted with the others."""

    async def main() -> None:
        async with raw_peer() as (channel, _, peer):
            assert channel.direct_writer() is not None

            assert sends_elsewhere(channel, b"frame")

            assert peer.recv(100) == b"frame"
            assert channel.direct is not None
            assert (channel.direct.num_writes, channel.num_bytes_out, channel.pending_bytes) == (1, 5, 0)

    run(loop_name, main())


def test_a_thread_overtakes_nothing_that_the_loop_has_written(loop_name: str) -> None:
    """A frame from a thread overtakes neither a frame that was not flushed, nor the rest of one that the kernel has
    taken in part.
    """

    async def main() -> None:
        async with raw_peer() as (channel, _, peer):
            assert channel.direct_writer() is not None
            channel.write(AddCredit(RECEIVER, 1))
            assert not sends_elsewhere(channel, b"too early")
            channel.flush()
            credit = encode(AddCredit(RECEIVER, 1))
            assert await read_bytes(peer, len(credit)) == credit

            fill(channel)
            assert not sends_elsewhere(channel, b"too early")
            num_bytes = channel.num_bytes_out + channel.pending_bytes - len(credit)
            earlier = await read_bytes(peer, num_bytes)
            await until(lambda: channel.pending_bytes == 0)
            assert sends_elsewhere(channel, b"now")

            assert b"too early" not in earlier
            assert await read_bytes(peer, 3) == b"now"

    run(loop_name, main())


def test_one_thread_sends_at_a_time(loop_name: str) -> None:
    """Other threads, which do not wait, leave their frames to the loop."""

    async def main() -> None:
        async with raw_peer() as (channel, _, peer):
            writer = channel.direct_writer()
            assert writer is not None
            has_turn, may_write = threading.Event(), threading.Event()

            def send_slowly() -> None:
                assert writer.try_begin()
                has_turn.set()
                assert may_write.wait(PATIENCE_S)
                writer.write(b"slow")
                writer.end()

            slow = threading.Thread(target=send_slowly)
            slow.start()
            assert has_turn.wait(PATIENCE_S)
            assert not sends_elsewhere(channel, b"between")
            may_write.set()
            slow.join()
            assert sends_elsewhere(channel, b"later")

            assert await read_bytes(peer, 9) == b"slowlater"

    run(loop_name, main())


def test_the_loop_sends_what_the_kernel_does_not_take(loop_name: str) -> None:
    """The rest of a frame that the kernel does not take goes out before all later ones."""

    async def main() -> None:
        async with raw_peer() as (channel, _, peer):
            assert channel.direct_writer() is not None

            assert sends_elsewhere(channel, LARGE)
            num_sent = channel.num_bytes_out
            assert 0 < num_sent < len(LARGE)
            assert channel.pending_bytes == len(LARGE) - num_sent
            assert not sends_elsewhere(channel, b"too early")
            channel.write_and_flush(AddCredit(RECEIVER, 1))

            expected = LARGE + encode(AddCredit(RECEIVER, 1))
            assert await read_bytes(peer, len(expected)) == expected

    run(loop_name, main())


def test_a_broken_connection_is_found_by_the_loop(loop_name: str) -> None:
    """The loop tells the handlers of the end: the thread that meets it first has nobody to tell."""

    async def main() -> None:
        async with raw_peer() as (channel, inbox, peer):
            assert channel.direct_writer() is not None
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            peer.close()

            assert sends_elsewhere(channel, b"frame")
            await inbox.ended.wait()

            assert channel.pending_bytes == 0
            assert not sends_elsewhere(channel, b"frame")

    run(loop_name, main())


def test_nothing_is_sent_past_a_channel_that_was_closed(loop_name: str) -> None:
    """A channel takes no frame past the loop while it closes, nor afterwards."""

    async def main() -> None:
        async with raw_peer() as (channel, _, peer):
            assert channel.direct_writer() is not None
            channel.close()
            assert not sends_elsewhere(channel, b"frame")
            peer.close()
            await channel.wait_closed()
            assert not sends_elsewhere(channel, b"frame")

    run(loop_name, main())


def test_neither_the_loops_thread_nor_the_main_one_sends_past_the_loop(loop_name: str) -> None:
    """The loop writes as it always does; a signal handler may tear the main thread out of the middle."""
    channels: SimpleQueue[NetworkChannel] = SimpleQueue()
    has_sent: list[bool] = []
    is_over = threading.Event()

    async def main() -> None:
        async with raw_peer() as (channel, _, _):
            has_sent.append(try_to_send(channel, b"loop"))
            channels.put(channel)
            await until(is_over.is_set)

    loop = threading.Thread(target=run, args=(loop_name, main()))
    loop.start()
    channel = channels.get(timeout=PATIENCE_S)
    has_sent.append(try_to_send(channel, b"main"))
    has_sent.append(sends_elsewhere(channel, b"other"))
    is_over.set()
    loop.join()

    assert has_sent == [False, False, True]
