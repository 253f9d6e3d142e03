"""Keeps a cluster's TaskManager processes running: one that dies gets a successor with its options.

Decides whether a TaskManager that died gets a successor, and after how long.

Side:       shared.
Units:      seconds, of any clock that only goes forward.
Invariants: a child that was started is known, so that ``stop`` ends it; after ``stop`` none is started.  A restarting
            job gets its slots back, unless the TaskManagers die again and again (``RespawnPolicy``).
Source:     Flink leaves this to YARN or Kubernetes; its ``MiniCluster`` has nothing like it.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from flowlet.client.children import (
    STOP_GRACE_S,
    Launch,
    OutputForwarder,
    TaskManagerOptions,
    TaskManagerProcess,
    readable,
)
from flowlet.client.program.interrupts import DeferredSignals
from flowlet.errors import FlowletError
from netstack.flow.heartbeats import Backoff
from netstack.log_lines import LogLines

# A job that has failed with it often closes the cluster within the first delay.
_BACKOFF_S: Final = Backoff(first=0.1, longest=5.0)
_MAX_DEATHS: Final = 5  # within the window; a child that cannot run dies each time, within two seconds or so
_WINDOW_S: Final = 60.0


class RespawnPolicy:
    """The deaths of one cluster's children within the last minute; each one doubles the delay, and the sixth is the
    last.

    Threading: one thread.
    """

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<RespawnPolicy {len(self._deaths)} recent deaths>"

    def child_died(self, now_s: float) -> float | None:
        """Count a death; returns after how many seconds the successor starts; None: there is none, because too many
        died within a minute.
        """
        while self._deaths and self._deaths[0] <= now_s - _WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now_s)
        if len(self._deaths) > _MAX_DEATHS:
            return None
        return _BACKOFF_S.delay(len(self._deaths))

    def describe_limit(self) -> str:
        """Explain to people why there is no successor."""
        return f"{len(self._deaths)} TaskManagers died within {_WINDOW_S:g} s, so no more are started"


_log = LogLines(__name__)

_MAX_ENDS: Final = 16  # lines that explain a failed job
_JOIN_TIMEOUT_S: Final = 5.0  # it may be starting a process


class ChildSupervisor:
    """The children of one cluster.

    Threading: one thread of its own; ``start`` and ``stop`` on one other thread, the rest on any.
    Life cycle: ``start`` once, ``stop`` always, whether or not ``start`` came to its end.

    Args:
        forwarder: prints what the children print; ``stop`` closes it.
        policy: when a successor starts.
        launch: makes a process.
    """

    def __init__(self, forwarder: OutputForwarder, policy: RespawnPolicy, launch: Launch) -> None:
        self._forwarder = forwarder
        self._policy = policy  # Supervisor's thread only.
        self._launch = launch
        self._lock = threading.Lock()
        self._children: dict[TaskManagerProcess, TaskManagerOptions] = {}  # Guarded by _lock.
        self._ends: deque[str] = deque(maxlen=_MAX_ENDS)  # Guarded by _lock.
        # Ended, but the forwarder has their pipes.  Supervisor's thread, then stop().
        self._unread: list[TaskManagerProcess] = []
        self._due: list[tuple[float, TaskManagerOptions]] = []  # when, what to start.  Supervisor's thread only.
        self._is_stopping = False  # Written by stop_replacing() before it wakes the supervisor.
        self._has_stopped = False  # Thread of stop() only.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="flowlet-children", daemon=True)

    def __repr__(self) -> str:
        return f"<ChildSupervisor of {self.pids()}{' stopping' if self._is_stopping else ''}>"

    def start(self, options: Sequence[TaskManagerOptions], ready_timeout_s: float) -> None:
        """Start a child for each of ``options``; returns when all are ready, and watches them from then on.

        Raises:
            FlowletError: one could not be started, ended, or was not ready in time.
        """
        for each in options:
            with DeferredSignals():  # a process that is not in the table is never ended
                child = self._launch(each)
                with self._lock:
                    self._children[child] = each
        deadline = time.monotonic() + ready_timeout_s
        for child in list(self._children):
            child.wait_ready(deadline)
        with DeferredSignals():
            self._thread.start()

    def pids(self) -> list[int]:
        """List the process ids of the children."""
        with self._lock:
            return [child.pid for child in self._children]

    def ends(self) -> list[str]:
        """Describe how children ended that should still run, the last ones, one line each."""
        with self._lock:
            return list(self._ends)

    def stop_replacing(self) -> None:
        """Start no more children; called before the things that they need are closed."""
        if self._is_stopping:
            return
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.ident is not None:  # else it was not started
            self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning(
                "a TaskManager that was being started is left behind; it ends with this program",
                timeout_s=_JOIN_TIMEOUT_S,
            )

    def stop(self) -> None:
        """Start no more children, end every child, and pass on their last output; idempotent."""
        if self._has_stopped:
            return
        self._has_stopped = True
        self.stop_replacing()
        with self._lock:
            children = list(self._children)
        for child in children:
            child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        for child in children:
            child.wait_or_kill(deadline)
        self._forwarder.close()
        for child in (*children, *self._unread):
            child.close_output()
        if not self._thread.is_alive():  # else it still waits for it
            os.close(self._wake_fd)

    # ---------------------------------------------------------------- the supervisor's thread

    def _run(self) -> None:
        while not self._is_stopping:
            children = {child.end_fd: child for child in self._children}  # which this thread alone changes
            timeout_s = min((max(0.0, due_s - time.monotonic()) for due_s, _ in self._due), default=None)
            # Until a child has ended, a start is due, or stop_replacing() wakes this thread.
            for descriptor in readable([self._wake_fd, *children], timeout_s):
                if descriptor in children:
                    self._child_ended(children[descriptor])
            for each in [each for each in self._due if each[0] <= time.monotonic()]:
                if not self._is_stopping:
                    self._due.remove(each)
                    self._start_successor(each[1])

    def _child_ended(self, child: TaskManagerProcess) -> None:
        end = child.end()
        assert end is not None, "its descriptor said so"
        with self._lock:
            options = self._children.pop(child)
        if not child.remove_output():
            self._unread.append(child)
        self._replace(options, end)

    def _start_successor(self, options: TaskManagerOptions) -> None:
        try:
            child = self._launch(options)
        except (OSError, FlowletError) as error:
            self._replace(options, f"a TaskManager process could not be started: {error}")
            return
        with self._lock:
            self._children[child] = options
        _log.info("a TaskManager process was started in place of one that ended", pid=child.pid)

    def _replace(self, options: TaskManagerOptions, end: str) -> None:
        delay_s = self._policy.child_died(time.monotonic())
        lines = [end] if delay_s is not None else [end, self._policy.describe_limit()]
        with self._lock:
            self._ends.extend(lines)
        if self._is_stopping:
            return
        if delay_s is None:
            _log.error("a TaskManager process is not replaced", reason="; ".join(lines))
            return
        _log.warning("a TaskManager process is replaced", reason=end, delay_s=delay_s)
        self._due.append((time.monotonic() + delay_s, options))
