"""``LoopTimer``: called once on the loop, cancelled from anywhere.

Timeouts that a held interpreter does not use up.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from netstack.loop.eventloop import LoopTimer, RunningTimer, running_timeout
from netstack.testing.embedded_event_loop import EmbeddedEventLoop


@pytest.fixture
def loop() -> Iterator[EmbeddedEventLoop]:
    one = EmbeddedEventLoop()
    yield one
    one.close()


def test_a_call_is_made_once_when_it_is_due(loop: EmbeddedEventLoop) -> None:
    """A call is made when it is due, not before, and a late cancellation is harmless."""
    calls: list[str] = []
    timer = LoopTimer(loop, 0.5, lambda: calls.append("now"))

    loop.run_pending()
    loop.advance(0.499)
    assert calls == []
    loop.advance(0.002)
    timer.cancel()
    loop.run_pending()
    loop.advance(5)

    assert calls == ["now"]


@pytest.mark.parametrize("is_started", [True, False])
def test_a_cancelled_call_is_never_made(loop: EmbeddedEventLoop, is_started: bool) -> None:
    """A cancelled call is never made, whether its timer runs already or not."""
    calls: list[str] = []
    timer = LoopTimer(loop, 0.5, lambda: calls.append("now"))
    if is_started:
        loop.run_pending()

    timer.cancel()
    loop.run_pending()
    loop.advance(5)

    assert calls == []


def test_on_a_closed_loop_nothing_is_called() -> None:
    """A call or a cancel on a closed loop does nothing and raises nothing."""
    loop = EmbeddedEventLoop()
    late = LoopTimer(loop, 0.5, lambda: None)
    loop.run_pending()
    loop.close()

    late.cancel()
    LoopTimer(loop, 0.5, lambda: None).cancel()


def test_a_running_timer_calls_once_after_its_time_on_a_loop_that_runs(loop: EmbeddedEventLoop) -> None:
    calls: list[str] = []
    RunningTimer(loop.loop, 10.0, lambda: calls.append("due"))
    RunningTimer(loop.loop, 10.0, lambda: calls.append("cancelled")).cancel()

    loop.advance(9.9)
    before = list(calls)
    loop.advance(100.0)

    assert (before, calls) == ([], ["due"])
    assert loop.num_timers == 0


@pytest.mark.slow  # holds the loop for 0.3 s
async def test_a_timeout_does_not_count_the_time_in_which_the_loop_was_held() -> None:
    """Results that arrived while the loop was held are still taken."""
    arrived = asyncio.Event()
    async with running_timeout(0.2):
        asyncio.get_running_loop().call_later(0.3, arrived.set)
        time.sleep(0.3)  # noqa: ASYNC251 - as a function that keeps the interpreter's lock
        await arrived.wait()


async def test_a_timeout_ends_a_wait_in_vain() -> None:
    with pytest.raises(TimeoutError):
        async with running_timeout(0.01):
            await asyncio.Event().wait()


async def test_without_a_timeout_there_is_none() -> None:
    async with running_timeout(None):
        await asyncio.sleep(0)
