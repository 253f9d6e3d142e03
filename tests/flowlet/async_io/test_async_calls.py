import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from flowlet.async_io import async_calls
from flowlet.async_io.async_calls import (
    LOOP_NAME,
    PROCESS_ASYNC_LOOP,
    AsyncCall,
    AsyncCalls,
    Failed,
    SharedAsyncLoop,
)
from flowlet.errors import FlowletError
from netstack.loop.eventloop import EventLoopThread
from tests.waiting import PATIENCE_S


class Notified:
    """Counts the notifications; a test waits for one."""

    def __init__(self) -> None:
        self.num = 0
        self.threads: set[int] = set()
        self._event = threading.Event()

    def __call__(self) -> None:
        self.num += 1
        self.threads.add(threading.get_ident())
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(PATIENCE_S), "nobody told of an outcome"
        self._event.clear()


@pytest.fixture
def notified() -> Notified:
    return Notified()


@pytest.fixture
def calls(notified: Notified) -> Iterator[AsyncCalls]:
    made = AsyncCalls(notified, SharedAsyncLoop())
    try:
        yield made
    finally:
        made.cancel_all()
        made.close()


def collect(calls: AsyncCalls, notified: Notified, num: int) -> list[tuple[AsyncCall, Any]]:
    found: list[tuple[AsyncCall, Any]] = []
    while len(found) < num:
        notified.wait()
        found += calls.take_outcomes()
    return found


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail(value: object) -> None:
    raise ValueError(value)


async def leave(value: object) -> None:
    sys.exit(3)


async def forever(value: object) -> None:
    await asyncio.Event().wait()


def test_every_call_has_its_outcome(calls: AsyncCalls, notified: Notified) -> None:
    """Results and exceptions, each with its call."""
    started = [AsyncCall(double, 1, "a"), AsyncCall(fail, 2, "b"), AsyncCall(double, 3, "c")]

    calls.start(started)
    outcomes = dict(collect(calls, notified, 3))
    text = repr(calls)

    assert [call.owner for call in started] == ["a", "b", "c"]
    assert (outcomes[started[0]], outcomes[started[2]]) == (2, 6)
    failed = outcomes[started[1]]
    assert isinstance(failed, Failed)
    assert repr(failed.error) == "ValueError(2)"
    assert notified.threads.isdisjoint({threading.get_ident()})
    assert "outcomes>" in text


def test_outcomes_that_come_together_are_told_once(calls: AsyncCalls, notified: Notified) -> None:
    """The second notification waits until the outcomes of the first one were taken."""

    async def at_once(value: int) -> int:
        return value

    calls.start([AsyncCall(at_once, number, None) for number in range(100)])
    calls.run(double, 1)  # behind all of them
    num_first = notified.num
    first = calls.take_outcomes()
    calls.start([AsyncCall(at_once, 100, None)])
    calls.run(double, 1)

    assert (num_first, len(first), notified.num) == (1, 100, 2)
    assert [outcome for _, outcome in first] == list(range(100))


def test_a_coroutine_that_exits_does_not_end_the_loop(calls: AsyncCalls, notified: Notified) -> None:
    calls.start([AsyncCall(leave, 0, None), AsyncCall(double, 4, None)])
    outcomes = [outcome for _, outcome in collect(calls, notified, 2)]

    assert isinstance(outcomes[0], Failed)
    assert isinstance(outcomes[0].error, SystemExit)
    assert outcomes[1] == 8


def test_a_cancelled_call_has_no_outcome(calls: AsyncCalls) -> None:
    """The coroutine of a cancelled call is interrupted, whether it has begun or not."""
    interrupted: list[object] = []

    async def wait(value: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append(value)

    begun, not_begun = AsyncCall(wait, "begun", None), AsyncCall(wait, "not begun", None)
    calls.start([begun])
    calls.run(double, 1)
    calls.start([not_begun])
    calls.cancel(begun)
    calls.cancel(not_begun)
    calls.run(double, 1)
    calls.run(double, 1)

    assert interrupted in (["begun"], ["begun", "not begun"])
    assert calls.take_outcomes() == []


def test_a_coroutine_that_cancels_itself_has_failed(calls: AsyncCalls, notified: Notified) -> None:
    async def cancel_itself(value: object) -> None:
        raise asyncio.CancelledError("by itself")

    calls.start([AsyncCall(cancel_itself, 0, None)])
    ((_, outcome),) = collect(calls, notified, 1)

    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, asyncio.CancelledError)


def test_a_function_is_run_on_the_loop_and_waited_for(calls: AsyncCalls) -> None:
    async def where() -> int:
        return threading.get_ident()

    assert calls.run(where) != threading.get_ident()
    with pytest.raises(ValueError, match="7"):
        calls.run(fail, 7)
    with pytest.raises(SystemExit):
        calls.run(leave, 7)


def test_all_calls_have_ended_when_they_were_cancelled() -> None:
    """``cancel_all`` returns when the calls have ended, with all that they do in ``finally``; no end is notified."""
    notified = Notified()
    ended: list[object] = []

    async def clean_up(value: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(value)

    calls = AsyncCalls(notified, SharedAsyncLoop())
    calls.start([AsyncCall(clean_up, number, None) for number in range(3)])
    calls.run(double, 1)

    calls.cancel_all()
    at_end = sorted(ended, key=str)
    calls.close()

    assert at_end == [0, 1, 2]
    assert notified.num == 0
    assert calls.take_outcomes() == []


def test_calls_that_do_not_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    release, wait = asyncio.Event(), asyncio.wait

    async def wait_shortly(
        tasks: set[asyncio.Task[None]],
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
        """Time enough for all that can end, whatever the machine does."""
        await wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await wait(tasks, timeout=0)

    monkeypatch.setattr(asyncio, "wait", wait_shortly)

    async def stubborn(value: object) -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    calls = AsyncCalls(Notified(), SharedAsyncLoop())
    calls.start([AsyncCall(stubborn, 0, None), AsyncCall(forever, 0, None)])
    calls.run(double, 1)

    with pytest.raises(FlowletError, match="1 calls of async functions still run"):
        calls.cancel_all()

    calls._loop.execute_threadsafe(release.set)
    calls.run(double, 1)  # the stubborn one ended meanwhile
    calls.close()


def test_a_loop_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_calls, "_ANSWER_TIMEOUT_S", 0.02)
    unblock = threading.Event()

    async def block(value: object) -> None:
        unblock.wait(PATIENCE_S)

    calls = AsyncCalls(Notified(), SharedAsyncLoop())
    calls.start([AsyncCall(block, 0, None)])
    try:
        with pytest.raises(FlowletError, match="does not answer"):
            calls.cancel_all()
    finally:
        unblock.set()
        calls.close()


@pytest.mark.slow
def test_no_outcome_waits_without_a_notification(
    request: pytest.FixtureRequest, notified: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 outcomes come while others are taken, under a tiny switch interval: each arrives."""
    monkeypatch.delenv("PYTHONASYNCIODEBUG", raising=False)  # which keeps the stack of each call
    calls: AsyncCalls = request.getfixturevalue("calls")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    deadline = time.monotonic() + PATIENCE_S
    try:
        found = 0
        for start in range(0, 10_000, 100):
            calls.start([AsyncCall(double, number, None) for number in range(start, start + 100)])
            found += len(calls.take_outcomes())
        while found < 10_000:
            assert time.monotonic() < deadline
            notified.wait()
            found += len(calls.take_outcomes())
    finally:
        sys.setswitchinterval(interval)

    assert found == 10_000


def test_a_call_that_is_cancelled_before_its_first_step_runs_no_code(calls: AsyncCalls) -> None:
    """A call begins only when the loop has its task; a call that was cancelled before is not left over."""
    ran = []

    async def note(value: int) -> None:
        ran.append(value)

    async def start_and_cancel(calls: AsyncCalls) -> int:
        calls._start_on_loop([AsyncCall(note, 1, None)])
        return await calls._cancel_on_loop()

    num_left = calls._loop.submit(start_and_cancel(calls)).result(PATIENCE_S)

    assert (num_left, ran) == (0, [])


def test_what_a_life_cycle_method_gives_is_not_copied(calls: AsyncCalls) -> None:
    """A life-cycle method may return objects that cannot be pickled, such as a list of connections."""
    locks = [threading.Lock()]

    async def connect() -> list[Any]:
        return locks

    assert calls.run(connect) is locks


# ---------------------------------------------------------------- the loop that all calls of a process share


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LOOP_NAME]


def test_the_loop_runs_while_somebody_holds_it() -> None:
    """The loop is started for the first holder, shared, and ended after the last; then everything begins anew."""
    shared = SharedAsyncLoop()
    before = loop_threads()

    first = shared.acquire()
    second = shared.acquire()
    shared.release()
    between = loop_threads()
    shared.release()
    after = loop_threads()
    third = shared.acquire()
    shared.release()

    assert first is second
    assert third is not first
    assert (len(before), len(between), len(after), len(loop_threads())) == (0, 1, 0, 0)
    assert shared.num_holders == 0
    assert repr(shared) == "<SharedAsyncLoop idle, 0 holders>"


def test_the_loop_has_a_thread_of_its_own() -> None:
    async def where() -> int:
        return threading.get_ident()

    loop = PROCESS_ASYNC_LOOP.acquire()
    try:
        found = loop.submit(where()).result(PATIENCE_S)
    finally:
        PROCESS_ASYNC_LOOP.release()

    assert found != threading.get_ident()


def test_what_is_released_too_often_is_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError, match="more often"):
        SharedAsyncLoop().release()


class Impatient(EventLoopThread):
    def close(self, timeout_s: float = 0.01) -> None:
        super().close(timeout_s)


def test_a_loop_that_is_blocked_is_left_behind_with_an_error() -> None:
    """The next one starts another."""
    unblock = threading.Event()
    kinds = iter([Impatient, EventLoopThread])
    shared = SharedAsyncLoop(lambda name: next(kinds).start(name))

    async def block() -> None:
        unblock.wait(PATIENCE_S)

    loop = shared.acquire()
    blocked = loop.submit(block())
    try:
        with pytest.raises(FlowletError, match=r"an async function blocks it; use asyncio\.sleep\(\), not time\.sleep"):
            shared.release()
        assert shared.acquire() is not loop
        shared.release()
    finally:
        unblock.set()
        blocked.result(PATIENCE_S)
        loop._thread.join(PATIENCE_S)  # type: ignore[union-attr]  # it was started with a thread


@pytest.mark.slow
def test_many_threads_share_one_loop_at_a_time() -> None:
    """Every holder has a loop that runs, in any interleaving of acquiring and releasing, and no loop is left."""
    shared = SharedAsyncLoop()
    errors: list[BaseException] = []

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    def work() -> None:
        try:
            for _ in range(50):
                loop = shared.acquire()
                try:
                    assert loop.submit(answer()).result(PATIENCE_S) == 42
                finally:
                    shared.release()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))

    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    assert loop_threads() == []
