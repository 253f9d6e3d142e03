"""``SnapshotPool``: the threads that finish and write the checkpoints of all tasks of one TaskManager.

Side:       shared.  Any thread.
Invariants: at most ``num_threads`` threads, each made when there is work for it.  Calls begin in the order in which
            they came; after ``close`` none begins.  An error of a call is logged and ends nothing.
Source:     Flink ``StreamTask.asyncOperationsThreadPool``, which every task has for itself.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from flowlet.errors import FlowletError
from netstack.log_lines import LogLines
from netstack.loop.forks import end_stranded_child, serving_thread

_log = LogLines(__name__)

NUM_THREADS: Final = 4  # they wait for disks most of the time; not measured


class SnapshotPool:
    """Runs calls on a few threads.  Life cycle: ``close`` once, after the tasks have ended.

    Args:
        name: of the threads, which are numbered.
        num_threads: at most.
    """

    def __init__(self, name: str, *, num_threads: int = NUM_THREADS) -> None:
        self._name = name
        self._num_threads = num_threads
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._calls: deque[Callable[[], object]] = deque()
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SnapshotPool {self._name}: {len(self._threads)} threads, {len(self._calls)} calls wait>"

    def execute(self, call: Callable[[], object]) -> None:
        """Run ``call`` soon; a closed pool drops it, because its TaskManager has ended the task.

        Raises:
            FlowletError: the system allows no thread, and the pool has none.
        """
        with self._changed:
            if self._is_closed:
                return
            if self._num_idle <= len(self._calls) and len(self._threads) < self._num_threads:
                # A daemon: a file system that does not answer must not keep the process from its end.
                thread = threading.Thread(target=self._run, name=f"{self._name} {len(self._threads) + 1}", daemon=True)
                try:
                    thread.start()  # it waits for the lock, and then finds the call
                except (RuntimeError, MemoryError) as error:
                    if not self._threads:
                        raise FlowletError(f"no thread can be started for {self._name}: {error}") from error
                else:
                    self._threads.append(thread)
            self._calls.append(call)
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Drop the calls that wait, and wait for those that run, at most so long; False: one still runs, and its thread
        ends after it.
        """
        with self._changed:
            self._is_closed = True
            self._calls.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        with serving_thread():
            while (call := self._next()) is not None:
                try:
                    call()
                except BaseException:  # noqa: BLE001 - the top of the thread; a user's pickling code may even call sys.exit()
                    end_stranded_child()
                    _log.exception("a snapshot failed", thread=threading.current_thread().name)
                end_stranded_child()

    def _next(self) -> Callable[[], object] | None:
        """The next call; None: the pool is closed."""
        with self._changed:
            self._num_idle += 1
            while not self._calls and not self._is_closed:
                self._changed.wait()  # waits for a call; ended by execute(), or close()
            self._num_idle -= 1
            return None if self._is_closed else self._calls.popleft()
