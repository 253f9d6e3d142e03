"""Errors of handlers, and what a handler that overrides nothing does."""

from collections.abc import Callable

import pytest

from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext, ChannelPipeline
from tests.netstack.transport.recording import Recorder


class Failing(Recorder):
    """Fails in every inbound event."""

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        raise ValueError("broken")

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        raise ValueError("broken")

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        raise ValueError("broken")

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        raise ValueError("broken")

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        raise ValueError("broken")


EVENTS: list[Callable[[ChannelPipeline], None]] = [
    lambda pipeline: pipeline.head.fire_channel_active(),
    lambda pipeline: pipeline.head.fire_channel_inactive(),
    lambda pipeline: pipeline.head.fire_channel_read("m"),
    lambda pipeline: pipeline.head.fire_channel_read_complete(),
    lambda pipeline: pipeline.head.fire_channel_writability_changed(),
]


class Absorbing(Recorder):
    """Deals with every error."""

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self.note(f"absorbed {error}")


@pytest.mark.parametrize("fire", EVENTS)
def test_an_error_reaches_the_failing_handler_and_those_behind_it(fire: Callable[[ChannelPipeline], None]) -> None:
    """First the failing handler gets the error, never one before it; the event goes no further, as in Netty."""
    log: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log), Failing("b", log), Absorbing("c", log))
    log.clear()

    fire(channel.pipeline)

    assert [entry for entry in log if not entry.startswith("a:")] == ["b:error broken", "c:absorbed broken"]
    assert not any("error" in entry for entry in log if entry.startswith("a:"))
    assert channel.is_open


def test_an_error_that_nobody_deals_with_closes_the_channel() -> None:
    """An unhandled error is reported, and the connection ends, since its state is unknown."""
    channel = EmbeddedChannel(Failing("a", []))

    assert not channel.is_open
    with pytest.raises(ValueError, match="broken"):
        channel.check_exception()


def test_an_error_of_exception_caught_keeps_the_first_error_as_its_context() -> None:
    """Both errors are kept: the first one is the context of the second."""

    class Worse(ChannelHandler):
        def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
            raise KeyError("worse")

        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            raise ValueError("bad")

    log: list[str] = []
    channel = EmbeddedChannel(Worse(), Recorder("b", log))
    channel.write_inbound("m")

    assert not any("error" in entry for entry in log)
    with pytest.raises(KeyError) as raised:
        channel.check_exception()
    assert isinstance(raised.value.__context__, ValueError)


def test_an_error_of_a_write_reaches_the_writer() -> None:
    """An operation is a call: its error goes to the caller, here into the reading handler's ``exception_caught``."""

    class Echo(Absorbing):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            ctx.write(message)

    class Refusing(ChannelHandler):
        def write(self, ctx: ChannelHandlerContext, message: object) -> None:
            raise ValueError(f"refused {message}")

    log: list[str] = []
    channel = EmbeddedChannel(Refusing(), Echo("b", log))
    log.clear()
    channel.write_inbound("m")

    assert log[0] == "b:absorbed refused m"
    with pytest.raises(ValueError, match="refused n"):
        channel.write("n")


def test_a_reader_in_the_middle_stops_what_it_does_not_pass_on() -> None:
    """Only messages that no handler took reach the tail."""

    class Even(ChannelHandler):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, int) and message % 2:
                ctx.fire_channel_read(message)

    channel = EmbeddedChannel(ChannelHandler(), Even(), ChannelHandler())
    for number in range(4):
        channel.write_inbound(number)

    assert [channel.read_inbound(), channel.read_inbound(), channel.read_inbound()] == [1, 3, None]


def test_base_exceptions_are_not_caught() -> None:
    """A KeyboardInterrupt is no event of a channel."""

    class Interrupted(ChannelHandler):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            raise KeyboardInterrupt

    channel = EmbeddedChannel(Interrupted())

    with pytest.raises(KeyboardInterrupt):
        channel.write_inbound("m")
    assert channel.is_open
