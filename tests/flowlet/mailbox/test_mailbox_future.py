import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from flowlet.mailbox.mailbox_future import MailboxFuture
from netstack.errors import WouldBlock
from tests.waiting import PATIENCE_S


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_a_value_is_there_for_everybody() -> None:
    future: MailboxFuture[int] = MailboxFuture()
    assert not future.is_done

    assert future.complete(42)

    assert future.is_done
    assert future.result_nowait() == future.result() == future.result(0) == 42
    assert future.exception() is None
    assert not future.is_cancelled


def test_an_error_is_raised_for_everybody() -> None:
    future: MailboxFuture[int] = MailboxFuture()
    error = ValueError("no")

    assert future.fail(error)

    for ask in (future.result_nowait, future.result):
        with pytest.raises(ValueError, match="no"):
            ask()
    assert future.exception() is error


def test_a_cancelled_future_says_so() -> None:
    future: MailboxFuture[int] = MailboxFuture()

    assert future.cancel()

    assert future.is_cancelled
    with pytest.raises(CancelledError):
        future.result()


def test_none_is_a_value_too() -> None:
    future: MailboxFuture[None] = MailboxFuture()
    future.complete(None)

    future.result_nowait()

    assert future.is_done


def test_the_first_outcome_stays() -> None:
    """Whatever comes later is told that it came too late, and callbacks run once."""
    calls: list[int] = []
    future: MailboxFuture[int] = MailboxFuture()
    future.add_done_callback(lambda: calls.append(1))
    future.complete(1)

    assert not future.complete(2)
    assert not future.fail(ValueError())
    assert not future.cancel()
    assert not future.try_start()

    assert future.result_nowait() == 1
    assert calls == [1]


def test_work_that_began_cannot_be_cancelled() -> None:
    future: MailboxFuture[int] = MailboxFuture()
    assert future.try_start()
    assert not future.try_start()

    assert not future.cancel()
    assert "RUNNING" in repr(future)
    assert future.complete(3)
    assert future.result_nowait() == 3


def test_asking_too_early_would_block() -> None:
    future: MailboxFuture[int] = MailboxFuture()

    with pytest.raises(WouldBlock):
        future.result_nowait()
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0.001)
    assert future._signal._callbacks == []  # whoever gave up leaves nothing behind


def test_callbacks_see_the_outcome() -> None:
    """Those added before and those added after; not those removed."""
    future: MailboxFuture[int] = MailboxFuture()
    seen: list[int] = []

    def removed() -> None:
        seen.append(-1)

    future.add_done_callback(lambda: seen.append(future.result_nowait()))
    future.add_done_callback(removed)
    future.remove_done_callback(removed)
    future.complete(5)
    future.add_done_callback(lambda: seen.append(future.result_nowait() + 1))

    assert seen == [5, 6]


def test_a_thread_waits_for_another_ones_outcome() -> None:
    future: MailboxFuture[str] = MailboxFuture()
    thread = in_thread(lambda: future.complete("from there"))

    assert future.result(PATIENCE_S) == "from there"
    thread.join()


def test_the_thread_that_must_bring_the_outcome_may_not_wait_for_it() -> None:
    """It would wait for ever; it may ask for an outcome that is there."""
    future: MailboxFuture[int] = MailboxFuture(lambda: True)

    with pytest.raises(RuntimeError, match="call yield_until instead"):
        future.result()
    future.complete(1)
    assert future.result() == 1


async def test_a_coroutine_awaits_what_another_thread_brings() -> None:
    """The loop goes on meanwhile."""
    future: MailboxFuture[str] = MailboxFuture()
    is_waiting = asyncio.Event()

    async def wait() -> str:
        is_waiting.set()
        return await future

    task = asyncio.create_task(wait())
    await is_waiting.wait()
    thread = in_thread(lambda: future.complete("from a thread"))

    assert await task == "from a thread"
    thread.join()
    assert await future == "from a thread"


async def test_a_coroutine_gets_the_error_and_no_cancellation_of_its_own() -> None:
    """A dropped mail is an ordinary error for the coroutine, which itself was not cancelled."""
    failed: MailboxFuture[str] = MailboxFuture()
    dropped: MailboxFuture[str] = MailboxFuture()
    failed.fail(ValueError("bad"))
    dropped.cancel()

    with pytest.raises(ValueError, match="bad"):
        await failed
    with pytest.raises(CancelledError):
        await dropped
    assert not issubclass(CancelledError, asyncio.CancelledError)


async def test_a_coroutine_that_gave_up_leaves_no_callback_behind() -> None:
    future: MailboxFuture[str] = MailboxFuture()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_await(future), 0.001)

    assert future._signal._callbacks == []
    future.complete("late")


async def test_an_outcome_just_before_a_cancellation_disturbs_nobody() -> None:
    """The loop has been told to wake the coroutine when it is cancelled: the wake-up finds nobody."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    future: MailboxFuture[str] = MailboxFuture()
    task = asyncio.create_task(_await(future))
    await asyncio.sleep(0)
    assert len(future._signal._callbacks) == 1

    future.complete("too late")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)

    assert complaints == []


async def _await(future: MailboxFuture[str]) -> str:
    return await future


def test_an_outcome_for_a_loop_that_is_closed_is_nobodys_problem() -> None:
    future: MailboxFuture[str] = MailboxFuture()
    loop = asyncio.new_event_loop()
    waiting = future._wait_on_loop(loop)
    next(waiting)
    loop.close()

    assert future.complete("nobody is there")
    waiting.close()
