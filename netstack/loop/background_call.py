"""Runs slow calls beside a loop, each on its own daemon thread: there is no other way.

Side:       shared.  The function runs on the new thread, its callbacks on the loop.
Rules:      the threads are daemons, so that a call that hangs on a dead file server or name server does not keep the
            process from ending.  There are few at a time, so they need no pool.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from netstack.log_lines import LogLines

log = LogLines(__name__)
T = TypeVar("T")


CallInBackground: TypeAlias = Callable[
    [Callable[[], Any], Callable[[Any], None], Callable[[Exception], None], str], object
]
"""``call_in_background`` or, in tests, what calls at once."""


class RunInBackground(Protocol):
    """The type of ``run_in_background`` and, in tests, of a function that makes the call at once."""

    def __call__(self, function: Callable[[], T], name: str) -> Awaitable[T]:
        """Return the result of ``function``, which runs on another thread."""


def call_in_background(
    function: Callable[[], T], on_result: Callable[[T], None], on_error: Callable[[Exception], None], name: str
) -> threading.Thread:
    """Run ``function`` on a new thread, then ``on_result`` or ``on_error`` on the running loop, unless that loop is
    closed by then.

    Where the system allows no thread, ``on_error`` gets the error soon: the caller may stand in a session that is not
    to end for it.
    """
    thread = _new_thread(function, on_result, on_error, name)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        failure = error
        asyncio.get_running_loop().call_soon(lambda: on_error(failure))
    return thread


def _new_thread(
    function: Callable[[], T], on_result: Callable[[T], None], on_error: Callable[[Exception], None], name: str
) -> threading.Thread:
    """Make the thread of a call, not started."""
    loop = asyncio.get_running_loop()

    def tell(callback: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: the JobManager has stopped
            log.debug("result dropped, the loop is closed", call=name)

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the top of a thread: on_error gets every exception
            failure = error
            tell(lambda: on_error(failure))
        else:
            tell(lambda: on_result(result))

    return threading.Thread(target=run, name=name, daemon=True)


async def run_in_background(function: Callable[[], T], name: str) -> T:
    """Return the result of ``function``, which runs on a new thread; the caller may be cancelled while it waits.

    Raises what it raises.
    """
    result = _new_result(call_in_background, function, name)
    return await result  # waits for another thread; ended by its end, or by whoever cancels the caller


async def close_in_background(close: Callable[[], None], name: str) -> None:
    """Call ``close``, which may take as long as its file system, on a new thread; on this thread while the interpreter
    ends and starts none.
    """
    try:
        closed = _new_result(lambda *call: _new_thread(*call).start(), close, name)
    except RuntimeError:  # of the start; what ``close`` raises comes with the future
        close()
        return
    await closed  # waits for another thread; ended by its end, or by whoever cancels the caller


def _new_result(start: Callable[..., object], function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Return the future of a call that ``start`` begins."""
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    # Each asks first: the caller may have been cancelled while the call ran, and the future with it.
    def set_result(value: T) -> None:
        if not result.done():
            result.set_result(value)

    def set_exception(error: Exception) -> None:
        if not result.done():
            result.set_exception(error)

    start(function, set_result, set_exception, name)
    return result
