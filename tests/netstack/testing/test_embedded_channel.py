"""``EmbeddedChannel``: what a test reads, and when the pretended kernel takes bytes."""

import threading

import pytest

from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError
from netstack.testing import EmbeddedChannel
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.wire.message_bytes import encode
from netstack.wire.messages import CloseRequest
from tests.netstack.transport.recording import Recorder

CONFIG = NetstackConfig(segment_size_bytes=1024, network_memory_bytes=64 * 1024)  # watermarks 1024 and 2048


def test_what_was_written_is_readable_after_a_flush() -> None:
    """A frame as its bytes, any other object as it is."""
    channel = EmbeddedChannel()
    channel.write(OutboundFrame((b"ab", memoryview(b"cd")), None))
    channel.write("object")

    before = channel.read_outbound()
    channel.flush()

    assert before is None
    assert [channel.read_outbound(), channel.read_outbound(), channel.read_outbound()] == [b"abcd", "object", None]


def test_all_bytes_at_once() -> None:
    """The bytes of all frames are joined; an object that is no bytes is an error."""
    channel = EmbeddedChannel()
    for data in (b"ab", b"cd"):
        channel.write_and_flush(OutboundFrame((data,), None))

    assert channel.read_all_outbound() == b"abcd"
    channel.write_and_flush("object")
    with pytest.raises(LocalProtocolError, match="str reached the head"):
        channel.read_all_outbound()


def test_bytes_stay_pending_until_the_kernel_takes_them() -> None:
    """The test decides when the channel becomes writable, and the handlers are notified."""
    log: list[str] = []
    channel, recycled = EmbeddedChannel(Recorder("a", log), config=CONFIG), list[str]()
    log.clear()
    channel.write_and_flush(OutboundFrame((bytes(1500),), lambda: recycled.append("first")))
    assert channel.is_writable
    channel.write_and_flush(OutboundFrame((bytes(549),), lambda: recycled.append("second")))
    assert not channel.is_writable

    assert channel.flush_outbound(1024) == 1024
    assert (channel.is_writable, channel.pending_bytes, recycled) == (False, 1025, [])
    assert channel.flush_outbound(1) == 1
    assert (channel.is_writable, channel.pending_bytes, recycled) == (True, 1024, [])
    assert channel.flush_outbound() == 1024

    assert recycled == ["first", "second"]
    assert [entry for entry in log if "writable" in entry] == ["a:writable False", "a:writable True"]


def test_inbound_bytes_need_a_decoder() -> None:
    """Decoded inbound bytes reach the handlers as messages."""
    channel = EmbeddedChannel(MessageDecoder(CONFIG), config=CONFIG)

    channel.write_inbound(encode(CloseRequest()))

    assert channel.read_inbound() == CloseRequest()
    with pytest.raises(LocalProtocolError, match="no MessageDecoder"):
        EmbeddedChannel().write_inbound(b"x")


def test_a_lost_connection_tells_the_error_first() -> None:
    """The error comes first, then the end; pending frames and later writes are recycled."""
    log: list[str] = []
    recycled: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log))
    channel.write(OutboundFrame((b"x",), lambda: recycled.append("pending")))
    log.clear()

    channel.lose_connection(OSError("reset"))
    channel.write(OutboundFrame((b"x",), lambda: recycled.append("late")))

    assert log[:3] == ["a:error reset", "a:inactive", "a:removed"]
    assert recycled == ["pending", "late"]
    assert (channel.is_active, channel.is_writable, channel.read_outbound()) == (False, False, None)
    with pytest.raises(OSError, match="reset"):
        channel.check_exception()
    channel.check_exception()


def test_close_flushes_once() -> None:
    """``close`` flushes written bytes once; the test reads them as the peer would."""
    log: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log))
    channel.write(OutboundFrame((b"bye",), None))

    channel.close()
    channel.close()

    assert channel.read_outbound() == b"bye"
    assert log.count("a:inactive") == 1


def test_errors_of_callbacks_reach_the_handlers() -> None:
    """An error of a callback is given to the handlers, as in production."""
    log: list[str] = []

    def fail() -> None:
        raise ValueError("twice")

    channel = EmbeddedChannel(Recorder("a", log))
    channel.write(OutboundFrame((b"x",), fail))
    channel.flush_outbound()

    assert "a:error twice" in log
    with pytest.raises(ValueError, match="twice"):
        channel.check_exception()


def test_functions_for_the_loop_run_in_run_pending() -> None:
    """The channel brings the loop for its handlers."""
    channel, seen = EmbeddedChannel(), list[str]()
    channel.event_loop.execute_threadsafe(seen.append, "ran")

    channel.run_pending()

    assert seen == ["ran"]


def test_another_thread_is_not_the_loop_thread() -> None:
    """``event_loop_check`` finds handlers that are used from task threads."""
    channel, errors = EmbeddedChannel(), list[Exception]()

    def check() -> None:
        try:
            channel.event_loop_check()
        except LocalProtocolError as error:
            errors.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()

    channel.event_loop_check()
    assert len(errors) == 1
    assert repr(channel) == "<EmbeddedChannel open, <ChannelOutboundBuffer writable, 0 bytes pending>>"
