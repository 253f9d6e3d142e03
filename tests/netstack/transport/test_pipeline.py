"""``ChannelPipeline``: which handler gets which event, and in which order."""

from collections.abc import Callable

import pytest

from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext, ChannelPipeline
from tests.netstack.transport.recording import Recorder


def make_channel(*more: ChannelHandler) -> tuple[EmbeddedChannel, list[str]]:
    log: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log), *more, Recorder("b", log), Recorder("c", log))
    log.clear()
    return channel, log


INBOUND: list[tuple[Callable[[ChannelPipeline], None], str]] = [
    (lambda pipeline: pipeline.head.fire_channel_active(), "active"),
    (lambda pipeline: pipeline.head.fire_channel_inactive(), "inactive"),
    (lambda pipeline: pipeline.head.fire_channel_read("m"), "read m"),
    (lambda pipeline: pipeline.head.fire_channel_read_complete(), "read complete"),
    (lambda pipeline: pipeline.head.fire_channel_writability_changed(), "writable True"),
    (lambda pipeline: pipeline.head.fire_exception_caught(ValueError("x")), "error x"),
]


@pytest.mark.parametrize(("fire", "what"), INBOUND)
def test_inbound_events_go_from_head_to_tail(fire: Callable[[ChannelPipeline], None], what: str) -> None:
    """Every handler sees each event once, in the order of the pipeline."""
    channel, log = make_channel(ChannelHandler())

    fire(channel.pipeline)

    assert log[:3] == [f"a:{what}", f"b:{what}", f"c:{what}"]


def test_writes_go_from_tail_to_head() -> None:
    """Then to the transport; flushes and closes go there at once."""
    channel, log = make_channel(ChannelHandler())

    channel.write("m")
    channel.flush()
    channel.close()

    assert log[:3] == ["c:write m", "b:write m", "a:write m"]
    assert channel.read_outbound() == "m"
    assert not channel.is_open


def test_an_operation_of_a_context_starts_in_front_of_its_handler() -> None:
    """A write of a context goes to the handlers before it, a read to those after it, and neither to its own handler."""
    log: list[str] = []
    middle = Recorder("b", log)
    channel = EmbeddedChannel(Recorder("a", log), middle, Recorder("c", log))
    log.clear()

    assert middle.ctx is not None
    middle.ctx.write_and_flush("m")
    middle.ctx.fire_channel_read("r")
    middle.ctx.close()

    assert log[:2] == ["a:write m", "c:read r"]
    assert not channel.is_open


def test_life_cycle_of_handlers() -> None:
    """Added head to tail, then active; at the end inactive, then removed tail to head."""
    log: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log), Recorder("b", log))
    channel.lose_connection()
    channel.lose_connection()

    assert log == ["a:added", "b:added", "a:active", "b:active", "a:inactive", "b:inactive", "b:removed", "a:removed"]


def test_handlers_can_be_found_by_their_class() -> None:
    """The first one of the class, or None."""
    log: list[str] = []
    first, second = Recorder("a", log), Recorder("b", log)
    channel = EmbeddedChannel(ChannelHandler(), first, second)

    assert channel.pipeline.find(Recorder) is first
    assert EmbeddedChannel().pipeline.find(Recorder) is None
    assert repr(channel.pipeline) == "<ChannelPipeline ChannelHandler, Recorder, Recorder>"


def test_an_error_while_a_handler_is_removed_does_not_hide_the_end_from_the_others() -> None:
    """Every handler is told of the end, and the error is reported."""

    class Broken(Recorder):
        def handler_removed(self, ctx: object) -> None:
            raise ValueError("cannot go")

    log: list[str] = []
    channel = EmbeddedChannel(Recorder("a", log), Broken("b", log))

    channel.close()

    assert log[-1] == "a:removed"
    with pytest.raises(ValueError, match="cannot go"):
        channel.check_exception()


# ---------------------------------------------------------------- errors of handlers


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
