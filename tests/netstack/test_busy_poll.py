"""A loop that looks for more before it sleeps."""

import asyncio
import os

import pytest
import uvloop

from netstack.connection_manager import BusyPoller, NewsHandler
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from tests.netstack.connections import until
from tests.waiting import PATIENCE_S

LENGTH_US = 50
LOOK_NS = 1000


class Rig:
    """A rig in which each look takes a microsecond."""

    def __init__(self) -> None:
        self.loop = EmbeddedEventLoop()
        self.poller = BusyPoller(self.loop.loop.call_soon, LENGTH_US, self._now_ns)

    def _now_ns(self) -> int:
        self.loop.clock.advance(LOOK_NS)
        return self.loop.clock.now_ns()

    def looks(self) -> int:
        """Return the number of looks until it sleeps."""
        before = self.poller.num_looks
        self.loop.run_pending()
        return self.poller.num_looks - before


def test_a_loop_that_got_nothing_sleeps() -> None:
    assert Rig().looks() == 0


def test_it_looks_until_the_window_is_over() -> None:
    rig = Rig()

    rig.poller.news()

    assert rig.looks() == LENGTH_US - 1, "the first look came with the news"
    assert rig.looks() == 0
    assert "off" in repr(rig.poller)


def test_more_news_make_it_longer_but_never_double() -> None:
    rig = Rig()

    for _ in range(10):
        rig.poller.news()

    assert rig.looks() == LENGTH_US, "as after the last one alone, which took no look of its own"


def test_it_looks_again_when_it_had_slept() -> None:
    rig = Rig()
    rig.poller.news()
    rig.looks()

    rig.poller.news()

    assert rig.looks() == LENGTH_US - 1


def test_who_needs_the_core_gets_it_at_the_next_look() -> None:
    rig = Rig()
    rig.poller.news()

    rig.poller.hold(is_held=True)

    assert rig.looks() == 1
    rig.poller.news()
    assert rig.looks() == 0


def test_while_another_thread_needs_the_core_no_news_are_looked_for() -> None:
    """Nor after that until the next news; a repeated release changes nothing."""
    rig = Rig()
    rig.poller.news()
    rig.poller.hold(is_held=True)
    rig.looks()

    rig.poller.news()
    while_held = rig.looks()
    rig.poller.hold(is_held=False)
    before_news = rig.looks()
    rig.poller.news()
    rig.poller.hold(is_held=False)

    assert (while_held, before_news) == (0, 0)
    assert rig.looks() == LENGTH_US - 1


def test_it_ends_when_it_is_closed() -> None:
    rig = Rig()
    rig.poller.news()

    rig.poller.close()

    assert rig.looks() == 1
    rig.poller.news()
    assert rig.looks() == 0


class Waker(ChannelHandler):
    """Stands for the thread that wakes the task."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        self._told.append("task")


def test_the_task_is_told_before_the_loop_goes_on() -> None:
    told: list[str] = []
    channel = EmbeddedChannel(NewsHandler(lambda: told.append("poller")), Waker(told))

    channel.pipeline.head.fire_channel_read_complete()

    assert told == ["task", "poller"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_looks_serves_everybody_else(new_loop: type[asyncio.AbstractEventLoop]) -> None:
    """Sockets, timers and functions of other threads come between two looks, and the loop can be stopped."""
    served: set[str] = set()
    reader, writer = os.pipe()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = BusyPoller(loop.call_soon, length_us=10 * int(PATIENCE_S) * 1_000_000)
        poller.news()
        loop.add_reader(reader, served.add, "socket")
        loop.call_later(0.001, served.add, "timer")
        os.write(writer, b"x")
        await loop.run_in_executor(None, loop.call_soon_threadsafe, served.add, "thread")
        await until(lambda: len(served) == 3 and poller.num_looks > 3)
        loop.remove_reader(reader)
        poller.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())

    assert served == {"socket", "timer", "thread"}
    os.close(reader)
    os.close(writer)
