"""``ChannelPipeline``: which handler gets which event, and in which order."""

from collections.abc import Callable

import pytest

from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelPipeline
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
    """Writes reach the handlers from the last to the first, then the transport; flushes and closes go to the
    transport.
    """
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
    """Handlers are added head to tail before anything else, then active; at the end inactive, then removed tail to
    head.
    """
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
