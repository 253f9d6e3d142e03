"""``LoopTimers``: called once on the loop, cancelled from anywhere."""

from collections.abc import Iterator

import pytest

from netstack.loop_timers import LoopTimers
from netstack.testing.embedded_event_loop import EmbeddedEventLoop


@pytest.fixture
def loop() -> Iterator[EmbeddedEventLoop]:
    one = EmbeddedEventLoop()
    yield one
    one.close()


def test_a_call_is_made_once_when_it_is_due(loop: EmbeddedEventLoop) -> None:
    """Not before; and a cancellation that comes too late is harmless."""
    calls: list[str] = []
    cancel = LoopTimers(loop).call_later(500, lambda: calls.append("now"))

    loop.run_pending()
    loop.advance(0.499)
    assert calls == []
    loop.advance(0.002)
    cancel()
    loop.run_pending()
    loop.advance(5)

    assert calls == ["now"]


@pytest.mark.parametrize("is_started", [True, False])
def test_a_cancelled_call_is_never_made(loop: EmbeddedEventLoop, is_started: bool) -> None:
    """Whether the timer runs already or not."""
    calls: list[str] = []
    cancel = LoopTimers(loop).call_later(500, lambda: calls.append("now"))
    if is_started:
        loop.run_pending()

    cancel()
    loop.run_pending()
    loop.advance(5)

    assert calls == []


def test_on_a_closed_loop_nothing_is_called() -> None:
    """Nor does anything fail."""
    loop = EmbeddedEventLoop()
    timers = LoopTimers(loop)
    late = timers.call_later(500, lambda: None)
    loop.run_pending()
    loop.close()

    late()
    timers.call_later(500, lambda: None)()

    assert "LoopTimers of" in repr(timers)
