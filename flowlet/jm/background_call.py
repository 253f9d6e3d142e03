"""Calls of the JobManager that may take long, each on a thread of its own.

Side:       shared.  The function runs on the new thread, everything else on the loop.
Rules:      the threads are daemons: one that hangs on a dead file server keeps neither the JobManager nor the user's program from ending.
            There is one per source and job, so they need no pool.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")


def call_in_background(
    function: Callable[[], T], on_result: Callable[[T], None], on_error: Callable[[Exception], None], name: str
) -> threading.Thread:
    """Run ``function``; then, on the loop that runs now, one of the others.  Nobody is told when the loop has been closed by then."""
    loop = asyncio.get_running_loop()

    def tell(callback: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it was closed, and with it ended all that could want to know
            log.debug("nobody waits for a call any more", call=name)

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the top of a thread: whatever it is, it is handed on
            failure = error
            tell(lambda: on_error(failure))
        else:
            tell(lambda: on_result(result))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
