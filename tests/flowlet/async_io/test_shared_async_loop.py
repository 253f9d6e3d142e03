import asyncio
import threading
import time

import pytest

from flowlet.async_io.async_calls import LOOP_NAME, PROCESS_ASYNC_LOOP, SharedAsyncLoop
from flowlet.errors import FlowletError
from netstack.loop.eventloop import EventLoopThread
from tests.waiting import PATIENCE_S


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


def test_a_loop_that_is_blocked_is_left_behind_with_an_error() -> None:
    """The next one starts another."""
    unblock = threading.Event()
    kinds = iter([_Impatient, EventLoopThread])
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


class _Impatient(EventLoopThread):
    def close(self, timeout_s: float = 0.01) -> None:
        super().close(timeout_s)


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
