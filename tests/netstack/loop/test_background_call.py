"""Calls on a thread of their own: their ends come back to the loop."""

import asyncio
import threading
from functools import partial

import pytest

from netstack.loop.background_call import call_in_background, close_in_background, run_in_background
from tests.waiting import PATIENCE_S


def unexpected(value: object) -> None:
    raise AssertionError(f"not expected: {value!r}")


async def test_the_result_comes_to_the_loop() -> None:
    came: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    thread = call_in_background(
        threading.get_ident, lambda ident: came.set_result((ident, threading.get_ident())), unexpected, "call"
    )

    async with asyncio.timeout(PATIENCE_S):
        assert await came == (thread.ident, threading.get_ident())
    assert (thread.name, thread.daemon) == ("call", True)


async def test_so_does_the_error() -> None:
    error = ValueError("bad")
    came: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def fail() -> None:
        raise error

    call_in_background(fail, unexpected, came.set_result, "call")

    async with asyncio.timeout(PATIENCE_S):
        assert await came is error


def test_a_loop_that_is_closed_by_then_is_not_told() -> None:
    """A file server may hang for longer than the JobManager lives."""
    go_on = threading.Event()

    async def begin() -> threading.Thread:
        return call_in_background(partial(go_on.wait, PATIENCE_S), unexpected, unexpected, "call")

    thread = asyncio.run(begin())
    go_on.set()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()


async def test_closing_runs_on_another_thread() -> None:
    threads: list[int] = []

    await close_in_background(lambda: threads.append(threading.get_ident()), "close")

    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("error", [RuntimeError("the pool is closed"), OSError("the disk is gone")])
async def test_a_close_that_fails_is_not_called_again(error: Exception) -> None:
    """RuntimeError is also what a thread raises that cannot be started; that of ``close`` is another matter."""
    num_calls = 0

    def close() -> None:
        nonlocal num_calls
        num_calls += 1
        raise error

    with pytest.raises(type(error), match=str(error)):
        await close_in_background(close, "close")
    assert num_calls == 1


async def test_closing_runs_here_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter ends, and no thread can be started, the calling thread closes."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threads: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)

    await close_in_background(lambda: threads.append(threading.get_ident()), "close")

    assert threads == [threading.get_ident()]


async def test_a_call_whose_thread_cannot_be_started_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller goes on first: it may be a session of the JobManager, which would end with the error."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    errors: list[Exception] = []

    call_in_background(int, lambda _: None, errors.append, "call")
    assert errors == []
    await asyncio.sleep(0)

    assert [str(error) for error in errors] == ["can't start new thread"]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await run_in_background(int, "call")
