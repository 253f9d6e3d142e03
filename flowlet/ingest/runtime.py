"""``ProducerRuntime``: the loop thread, network memory and connections of all producers of one process.

Side:       shared.
Invariants: there is at most one per process, created when it is first needed.  A forked child creates its own and
            leaves its parent's alone.  It lives until ``close_producers`` or the end of the program, which then names
            the partitions that it has not finished; if the process is killed, gates see its connections end.  A wait
            that is too long (``StallWatch``) has one report, and a question every ``NO_CREDIT_QUESTION_S`` of it.
"""

import asyncio
import atexit
import importlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from flowlet.errors import shows_all_frames, without_our_frames
from flowlet.ingest.description import GateError
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import EventLoopThread
from netstack.offering_network import OfferingNetwork

T = TypeVar("T")
_log = LogLines(__name__)

_MAX_OVERDRAFT_BUFFERS: Final = 5  # Flink's, for the rest of a record: a producer waits inside its write
# Half of a TaskManager's: a producer writes few partitions at a time.  The system allocates a page when it is first
# used.
NETWORK_MEMORY_BYTES: Final = 32 * 1024 * 1024
_CHECK_INTERVAL_S: Final = 1.0
_FRAMES_MODULE: Final = "flowlet.client.program.user_frames"  # by its name: only a program that meets an error needs it
_CLOSE_TIMEOUT_S: Final = 10.0
WARN_AFTER_S: Final = 10.0
NO_CREDIT_QUESTION_S: Final = 10.0  # between questions to the JobManager, which knows the gate's TaskManagers
CREDIT: Final = "credit: the gate's job does not read"


class StallWatch:
    """Observes the buffer pool of one writer (``mark_start``, ``mark_end``).

    Threading: the writing thread marks, the loop thread reads, without a lock.  Each field has one writer, and a stale
               value only delays a report.
    """

    __slots__ = ("_asked_s", "_clock", "_reported_since_s", "_since_s", "awaited")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None  # Written by the writing thread.
        self._asked_s = clock()  # the last question.  Written by the loop thread.
        # The aim of the current wait, in words.  Written by the writing thread, before ``_since_s``: a reader that sees
        # the new start sees the new aim.
        self.awaited = CREDIT
        # Start of the last wait that was reported.  Written by the loop thread.
        self._reported_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<StallWatch {'idle' if self._since_s is None else f'waits since {self._since_s:.1f}'}>"

    def mark_start(self, awaited: str = CREDIT) -> None:
        """Note that the writer starts to wait; buffer pools call it without an argument."""
        self.awaited = awaited
        self._since_s = self._clock()

    def mark_end(self) -> None:
        """Note that the writer continues."""
        self._since_s = None

    def overdue_s(self) -> float | None:
        """How long the current wait has lasted, if that is too long and was not reported before."""
        since_s = self._since_s
        if since_s is None or since_s == self._reported_since_s:
            return None
        waited_s = self._clock() - since_s
        if waited_s < WARN_AFTER_S:
            return None
        self._reported_since_s = since_s
        return waited_s

    def is_question_due(self) -> bool:
        """Whether the JobManager shall be asked about the current wait, now or again; a question counts as asked."""
        since_s = self._since_s
        now_s = self._clock()
        if since_s is None or now_s - max(since_s, self._asked_s) < NO_CREDIT_QUESTION_S:
            return False
        self._asked_s = now_s
        return True


@dataclass(frozen=True, slots=True)
class Watched:
    """A writer whose waits are watched.

    ``what``: its name, for the log.  ``question``: asks why the wait is in vain.  ``fail``: called on the loop thread
    with the error that the question found.
    """

    what: str
    question: Callable[[], Coroutine[Any, Any, Exception | None]]
    fail: Callable[[Exception], object]


class ProducerRuntime:
    """The runtime of this process.  Threading: any thread but the loop's."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = EventLoopThread.start("flowlet-producer")
        try:
            config = NetstackConfig(
                network_memory_bytes=NETWORK_MEMORY_BYTES, max_overdraft_buffers_per_gate=_MAX_OVERDRAFT_BUFFERS
            )
            self.environment = NetworkEnvironment(config, self.loop)
            self.offering = OfferingNetwork(self.environment, self.loop)
        except BaseException:
            self.loop.close()
            raise
        # By number, with the name: a writer that is dropped takes no part any more, but its partition was not finished
        # either.  Any thread; single operations of the dictionary.
        self._open: dict[int, tuple[str, weakref.WeakMethod[Callable[[str], None]]]] = {}
        # Loop thread only.
        self._watches: dict[StallWatch, Watched] = {}
        self._questions: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ProducerRuntime of process {self.pid}, {self.offering!r}>"

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; wait for its result.

        The message of a GateError says all: the errors of libraries that led to it are not shown.
        """
        try:
            # waits for the JobManager or the gate; ended by the timeout of the coroutine
            return self.loop.submit(coroutine).result()
        except GateError as error:
            importlib.import_module(_FRAMES_MODULE).install_exception_hook()
            raise without_our_frames(error) from error.__cause__ if shows_all_frames() else None

    def opened(self, abort: Callable[[str], None], name: str) -> int:
        """Note that a partition is open; return a number for ``ended``.

        ``abort``: the method that ends it, and tells the gate the reason.
        """
        number = next(_numbers)
        self._open[number] = (name, weakref.WeakMethod(abort))
        return number

    def ended(self, number: int) -> None:
        """Note that a partition was finished or aborted; more than once does nothing."""
        self._open.pop(number, None)

    def abort_open(self, reason: str) -> list[str]:
        """Abort the partitions that are open; returns their names."""
        found = list(self._open.values())
        for _, reference in found:
            abort = reference()
            if abort is not None:
                abort(reason)
        return [name for name, _ in found]

    def watch(self, watch: StallWatch, watched: Watched) -> None:
        """Watch a writer until ``unwatch``: log a warning when it waits too long, and ask its question."""
        self.loop.execute_threadsafe(self._watch, watch, watched)

    def unwatch(self, watch: StallWatch) -> None:
        """Stop watching a writer."""
        self.loop.execute_threadsafe(self._unwatch, watch)

    def _unwatch(self, watch: StallWatch) -> None:
        self._watches.pop(watch, None)

    def _watch(self, watch: StallWatch, watched: Watched) -> None:
        self._watches[watch] = watched
        if self._timer is None:
            self._timer = self.loop.loop.call_later(_CHECK_INTERVAL_S, self._check_stalls)

    def _check_stalls(self) -> None:
        self._timer = None
        for watch, watched in self._watches.items():
            waited_s = watch.overdue_s()
            if waited_s is not None:
                _log.warning(f"a producer waits for {watch.awaited}", waits_for=watched.what, seconds=round(waited_s))
            if watch.is_question_due():
                task = self.loop.loop.create_task(self._ask(watch, watched), name=f"is {watched.what} read?")
                self._questions[task] = None
        self._questions = {task: None for task in self._questions if not task.done()}
        if self._watches:
            self._timer = self.loop.loop.call_later(_CHECK_INTERVAL_S, self._check_stalls)

    async def _ask(self, watch: StallWatch, watched: Watched) -> None:
        error = await watched.question()
        if error is not None and watch in self._watches:
            watched.fail(error)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._questions:
            task.cancel()
        # waits for cancelled questions; ended by their next step
        await asyncio.gather(*self._questions, return_exceptions=True)
        await self.offering.close()
        await self.environment.close()

    def close(self) -> None:
        """Close all connections, which aborts unfinished partitions, and the loop."""
        try:
            self.loop.submit(self._close()).result(_CLOSE_TIMEOUT_S)
        finally:
            self.loop.close()


_numbers: Final = itertools.count()
_lock = threading.Lock()
_runtime: ProducerRuntime | None = None  # Guarded by _lock.


def producer_runtime() -> ProducerRuntime:
    """The runtime of this process; created if there is none."""
    global _runtime
    with _lock:
        if _runtime is None or _runtime.pid != os.getpid():
            _runtime = ProducerRuntime()
        return _runtime


def close_producers() -> None:
    """Close all connections of this process to gates, and their thread; the next producer starts new ones."""
    global _runtime
    with _lock:
        runtime = _runtime
        _runtime = None
    if runtime is not None and runtime.pid == os.getpid():
        runtime.close()


def _end_with_program() -> None:
    """Abort the partitions that the program left open, and warn: only this tells that their records do not count."""
    runtime = _runtime
    if runtime is None or runtime.pid != os.getpid():
        return
    for name in runtime.abort_open("the program of the producer ended without finish()"):
        _log.warning(
            f"{name} was not finished when the program ended, so the gate does not count it: call finish() before"
        )
    try:
        close_producers()
    except TimeoutError:
        _log.warning("the connections to gates are not closed in time and are left behind", timeout_s=_CLOSE_TIMEOUT_S)


# Here, not where a runtime is made: functions that a program registers after its imports run before, and may still
# finish partitions.
atexit.register(_end_with_program)


def _after_fork() -> None:
    """Replace the lock: another thread of the parent may have held it, and would never release it in the child."""
    global _lock, _runtime
    _lock = threading.Lock()
    _runtime = None


os.register_at_fork(after_in_child=_after_fork)
