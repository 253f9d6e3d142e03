"""``EventLoopThread``: coalesced wakeups, nothing lost, nothing after close."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from netstack.errors import LocalProtocolError, ResourceBrokenError, ResourceClosedError
from netstack.loop.eventloop import MAX_BATCH, EventLoopThread
from tests.waiting import PATIENCE_S

# libuv makes one pipe per process with its first loop and keeps it; made here, no test seems to leave it behind.
uvloop.new_event_loop().close()


@pytest.fixture(params=["uvloop", "asyncio", "asyncio without eventfd"])
def loop_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLoopThread]:
    if request.param == "asyncio without eventfd":
        monkeypatch.delattr(os, "eventfd")
    thread = EventLoopThread.start("under test", use_uvloop=request.param == "uvloop")
    yield thread
    thread.close()


class Gate:
    """Keeps the loop thread busy until it is opened."""

    def __init__(self, loop_thread: EventLoopThread) -> None:
        self._is_reached = threading.Event()
        self._is_open = threading.Event()
        loop_thread.execute_threadsafe(self._wait)
        assert self._is_reached.wait(PATIENCE_S)

    def _wait(self) -> None:
        self._is_reached.set()
        assert self._is_open.wait(PATIENCE_S)

    def open(self) -> None:
        self._is_open.set()


def wait_until_executed(loop_thread: EventLoopThread) -> None:
    """Return once everything accepted so far was executed."""
    done = threading.Event()
    loop_thread.execute_threadsafe(done.set)
    assert done.wait(PATIENCE_S)


def test_functions_run_on_the_loop_thread_in_order(loop_thread: EventLoopThread) -> None:
    """Functions of another thread run with their arguments on the loop's thread, in order."""
    seen: list[tuple[int, bool]] = []
    for number in range(10):
        loop_thread.execute_threadsafe(lambda number: seen.append((number, loop_thread.is_current_thread())), number)

    wait_until_executed(loop_thread)

    assert seen == [(number, True) for number in range(10)]
    assert not loop_thread.is_current_thread()


def test_many_functions_for_a_busy_loop_are_one_wakeup(loop_thread: EventLoopThread) -> None:
    """The loop is woken when nothing is under way, not per function."""
    gate = Gate(loop_thread)
    before = loop_thread.statistics().num_wakeups
    seen: list[int] = []
    for number in range(100):
        loop_thread.execute_threadsafe(seen.append, number)
    queued = loop_thread.statistics().num_queued

    gate.open()
    wait_until_executed(loop_thread)

    assert queued == 100
    assert seen == list(range(100))
    # One for the functions, at most one more for the last one.
    assert loop_thread.statistics().num_wakeups - before <= 2
    assert loop_thread.statistics().num_executed == 102
    assert loop_thread.statistics().num_queued == 0


def test_an_idle_loop_is_woken_each_time(loop_thread: EventLoopThread) -> None:
    """No wakeup is lost between two batches."""
    before = loop_thread.statistics().num_wakeups
    for _ in range(200):
        wait_until_executed(loop_thread)

    assert loop_thread.statistics().num_wakeups - before >= 1
    assert loop_thread.statistics().num_executed == 200


def test_one_pass_executes_a_bounded_batch(loop_thread: EventLoopThread) -> None:
    """The loop serves its other callbacks between two batches."""
    gate = Gate(loop_thread)
    seen: list[str] = []

    def ask_for_other_work() -> None:
        loop_thread.loop.call_soon(seen.append, "other work")

    loop_thread.execute_threadsafe(ask_for_other_work)
    for _ in range(2 * MAX_BATCH):
        loop_thread.execute_threadsafe(seen.append, "function")

    gate.open()
    wait_until_executed(loop_thread)

    assert len(seen) == 2 * MAX_BATCH + 1
    assert seen.index("other work") == MAX_BATCH - 1


def test_a_function_may_hand_over_another_one(loop_thread: EventLoopThread) -> None:
    """The handed-over function runs in a later pass, not inside the first function."""
    seen: list[str] = []

    def first() -> None:
        loop_thread.execute_threadsafe(seen.append, "second")
        seen.append("first")

    loop_thread.execute_threadsafe(first)
    wait_until_executed(loop_thread)
    wait_until_executed(loop_thread)

    assert seen == ["first", "second"]


def test_an_exception_goes_to_the_loops_handler_and_the_next_function_runs(loop_thread: EventLoopThread) -> None:
    """An exception reaches the loop's handler, and later functions run."""
    contexts: list[dict[str, Any]] = []
    seen: list[str] = []

    def fail() -> None:
        raise ValueError("broken")

    gate = Gate(loop_thread)
    loop_thread.loop.call_soon_threadsafe(
        loop_thread.loop.set_exception_handler, lambda _loop, context: contexts.append(context)
    )
    gate.open()
    wait_until_executed(loop_thread)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_thread.loop).result(PATIENCE_S)
    loop_thread.execute_threadsafe(fail)
    loop_thread.execute_threadsafe(seen.append, "after")
    wait_until_executed(loop_thread)

    assert [str(context["exception"]) for context in contexts] == ["broken"]
    assert "'under test' failed" in contexts[0]["message"]
    assert seen == ["after"]


def test_functions_of_many_threads_run_once_each_and_in_the_order_of_each_thread(
    loop_thread: EventLoopThread, tiny_switch_interval: None
) -> None:
    """Functions of eight threads run once each, in the order of each thread, even under a tiny switch interval."""
    seen: list[tuple[int, int]] = []

    def produce(producer: int) -> None:
        for number in range(500):
            loop_thread.execute_threadsafe(seen.append, (producer, number))

    producers = [threading.Thread(target=produce, args=(producer,)) for producer in range(8)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    wait_until_executed(loop_thread)

    for producer in range(8):
        assert [number for which, number in seen if which == producer] == list(range(500))
    assert len(seen) == 4000


def test_close_executes_what_was_accepted_and_refuses_the_rest(loop_thread: EventLoopThread) -> None:
    """``close`` executes more than one batch and ends the thread; a second close has no effect."""
    gate, seen = Gate(loop_thread), list[int]()
    for number in range(MAX_BATCH + 10):
        loop_thread.execute_threadsafe(seen.append, number)
    closing = threading.Thread(target=loop_thread.close)
    closing.start()

    gate.open()
    closing.join(PATIENCE_S)
    loop_thread.close()

    assert seen == list(range(MAX_BATCH + 10))
    with pytest.raises(ResourceClosedError, match="'under test' was closed"):
        loop_thread.execute_threadsafe(seen.append, -1)
    assert seen[-1] == MAX_BATCH + 9
    assert "under test" not in {thread.name for thread in threading.enumerate()}
    assert "closed" in repr(loop_thread)


def test_close_races_with_producers(loop_thread: EventLoopThread, tiny_switch_interval: None) -> None:
    """Every accepted function is executed exactly once; all others are refused."""
    seen: list[tuple[int, int]] = []
    accepted: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    is_started = threading.Barrier(5)

    def produce(producer: int) -> None:
        is_started.wait(PATIENCE_S)
        for number in range(100_000):
            try:
                loop_thread.execute_threadsafe(seen.append, (producer, number))
            except ResourceClosedError:
                return
            accepted[producer].append((producer, number))

    producers = [threading.Thread(target=produce, args=(producer,)) for producer in range(4)]
    for thread in producers:
        thread.start()
    is_started.wait(PATIENCE_S)
    loop_thread.close()
    for thread in producers:
        thread.join()

    assert sorted(seen) == sorted(entry for entries in accepted for entry in entries)


def test_submit_runs_a_coroutine(loop_thread: EventLoopThread) -> None:
    """The future has the result or the error of the coroutine."""

    async def answer(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number + 1

    assert loop_thread.submit(answer(41)).result(PATIENCE_S) == 42
    with pytest.raises(ValueError, match="negative"):
        loop_thread.submit(answer(-1)).result(PATIENCE_S)

    loop_thread.close()
    with pytest.raises(ResourceClosedError):
        loop_thread.submit(answer(1))


def test_close_cancels_the_tasks_of_the_loop(loop_thread: EventLoopThread) -> None:
    """Cancelled tasks may clean up; their waiters get the cancellation."""
    is_waiting, cleaned = threading.Event(), list[str]()

    async def wait_for_ever() -> None:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    future = loop_thread.submit(wait_for_ever())
    assert is_waiting.wait(PATIENCE_S)

    loop_thread.close()

    assert cleaned == ["up"]
    assert future.cancelled()


def test_a_coroutine_submitted_just_before_close_is_cancelled_not_forgotten(loop_thread: EventLoopThread) -> None:
    """The future of such a coroutine ends, so that no thread waits for it for ever."""
    gate = Gate(loop_thread)
    future = loop_thread.submit(asyncio.sleep(1000))
    closing = threading.Thread(target=loop_thread.close)
    closing.start()

    gate.open()
    closing.join(PATIENCE_S)

    assert future.cancelled()


def test_a_blocked_loop_does_not_block_close_for_ever(loop_thread: EventLoopThread) -> None:
    """``close`` raises after its timeout, and says where the loop is blocked."""
    gate = Gate(loop_thread)

    with pytest.raises(ResourceBrokenError, match=r"did not stop within 0\.01 s: .* in .*wait \("):
        loop_thread.close(timeout_s=0.01)

    gate.open()
    assert loop_thread._thread is not None
    loop_thread._thread.join(PATIENCE_S)


@pytest.mark.parametrize("is_reading", [True, False])
def test_open_connections_do_not_keep_a_loop_from_closing(is_reading: bool) -> None:
    """The loop ends and closes open connections.  With warnings as errors, as in these tests, uvloop left them and
    their handles open: close() hung, or failed with EBUSY.
    """
    loop_thread = EventLoopThread.start("under test")
    accepted: asyncio.Queue[object] = asyncio.Queue()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            if not is_reading:
                transport.pause_reading()
            accepted.put_nowait(transport)

    async def connect() -> tuple[object, ...]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "127.0.0.1", 0)
        client, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        return server, client, await accepted.get()

    kept = loop_thread.submit(connect()).result(PATIENCE_S)

    loop_thread.close()

    assert loop_thread._thread is not None
    assert not loop_thread._thread.is_alive()
    assert all("closed=True" in repr(each) for each in kept[1:])
    del kept


def test_a_port_that_is_taken_is_named(loop_thread: EventLoopThread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def listen() -> None:
            await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port)

        with pytest.raises(OSError, match=str(port)) as raised:
            loop_thread.submit(listen()).result(PATIENCE_S)

    assert raised.value.errno == errno.EADDRINUSE


def test_a_loop_that_cannot_be_closed_ends_its_thread_and_says_why(
    loop_thread: EventLoopThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = loop_thread.loop.close
    loop_thread.loop = Unclosable(loop_thread.loop)  # type: ignore[assignment]  # stands in for it

    loop_thread.close()
    real()

    assert loop_thread._thread is not None
    assert not loop_thread._thread.is_alive()
    [record] = caplog.records
    assert "the event loop of a thread that has ended could not be closed" in record.message
    assert "loop='under test'" in record.message
    assert "Device or resource busy" in record.message


def test_a_step_that_fails_before_the_loop_is_closed_is_told_as_that(
    loop_thread: EventLoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    real = loop_thread.loop
    loop_thread.loop = Interrupted(real)  # type: ignore[assignment]  # stands in for it

    loop_thread.close()

    assert loop_thread._thread is not None
    assert not loop_thread._thread.is_alive()
    assert real.is_closed()
    [record] = caplog.records
    assert "is closed, but a step before that has failed" in record.getMessage()
    assert "Event loop stopped before Future completed." in record.getMessage()


class Broken:
    """A loop of which one step fails."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Interrupted(Broken):
    """Something stops the loop while its generators are shut down."""

    async def shutdown_asyncgens(self) -> None:
        raise RuntimeError("Event loop stopped before Future completed.")


class Unclosable(Broken):
    """Its close fails as uvloop's does with an open handle."""

    def close(self) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")


def test_a_loop_thread_cannot_close_itself(loop_thread: EventLoopThread) -> None:
    """``close`` on the loop's own thread is refused: it would wait for itself."""
    errors: list[Exception] = []

    def close() -> None:
        try:
            loop_thread.close()
        except LocalProtocolError as error:
            errors.append(error)

    loop_thread.execute_threadsafe(close)
    wait_until_executed(loop_thread)

    assert [str(error) for error in errors] == ["the event loop 'under test' was closed from the wrong thread"]


async def test_an_adopted_loop_takes_functions_of_other_threads_until_it_is_closed() -> None:
    """All accepted functions were executed when ``close`` returns; the loop itself goes on."""
    seen: list[str] = []
    adopted = EventLoopThread.adopt(asyncio.get_running_loop(), "adopted")
    is_done = asyncio.Event()

    await asyncio.to_thread(adopted.execute_threadsafe, seen.append, "other thread")
    await asyncio.to_thread(adopted.execute_threadsafe, is_done.set)
    await is_done.wait()
    adopted.execute_threadsafe(seen.append, "own thread")
    assert adopted.is_current_thread()
    assert "open, 1 queued" in repr(adopted)
    adopted.close()
    adopted.close()

    assert seen == ["other thread", "own thread"]
    with pytest.raises(ResourceClosedError):
        adopted.execute_threadsafe(seen.append, "late")


async def test_a_function_may_close_an_adopted_loop() -> None:
    """Functions that are queued behind the closing one are executed by the close."""
    is_done = asyncio.Event()
    adopted = EventLoopThread.adopt(asyncio.get_running_loop(), "adopted")
    adopted.execute_threadsafe(adopted.close)
    adopted.execute_threadsafe(is_done.set)

    await is_done.wait()

    assert adopted.statistics().num_queued == 0


async def test_adopting_and_closing_belong_to_the_loops_own_thread() -> None:
    """The wakeup descriptor is the loop's."""
    loop = asyncio.get_running_loop()
    other = asyncio.new_event_loop()
    adopted = EventLoopThread.adopt(loop, "adopted")

    with pytest.raises(LocalProtocolError, match="does not run on this thread"):
        EventLoopThread.adopt(other, "other")
    with pytest.raises(LocalProtocolError, match="wrong thread"):
        await asyncio.to_thread(adopted.close)

    other.close()
    adopted.close()
