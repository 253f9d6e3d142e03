"""Real threads that run one at a time and change places only at locks, in an order that a seed decides.

Waiting with a time-out never times out here: if some thread waits and no thread can go on, a wake-up was lost (or there
is a deadlock), and the run fails with its seed.
"""

import _thread
import random
import threading
from collections.abc import Callable, Sequence

import pytest

from tests.waiting import PATIENCE_S

MODULES = ("local_buffer_pool", "network_buffer_pool", "network_buffer")


class Stuck(AssertionError):
    """Threads wait, and no thread is left that could wake them."""


class Scheduler:
    """Runs one thread at a time.  All its state belongs to the running thread."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.threads: list[ScheduledThread] = []
        self.error: BaseException | None = None
        self.main = _thread.allocate_lock()
        self.main.acquire()

    def run(self, programs: Sequence[Callable[[], object]]) -> None:
        """Run the programs to their ends; raises what one of them raised, or ``Stuck``."""
        self.threads = [ScheduledThread(self, program) for program in programs]
        for thread in self.threads:
            thread.start()
        self.switch(None)
        for thread in self.threads:
            thread.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def switch(self, me: "ScheduledThread | None") -> None:
        """Let any runnable thread go on, maybe ``me``; comes back when it is our turn again."""
        runnable = [thread for thread in self.threads if not thread.is_over and thread.waits_for is None]
        if not runnable:
            if any(not thread.is_over for thread in self.threads) and self.error is None:
                self.error = Stuck("threads wait, and nobody is left to wake them")
            for thread in self.threads:  # let everybody end
                thread.waits_for = None
            runnable = [thread for thread in self.threads if not thread.is_over]
        following = self.rng.choice(runnable) if runnable else None
        if following is not me or me is None:
            (self.main if following is None else following.turn).release()
            if me is None:
                self.main.acquire()
            elif not me.is_over:
                me.turn.acquire()
        if me is not None and not me.is_over and isinstance(self.error, Stuck):
            raise self.error


class ScheduledThread(threading.Thread):
    """A thread for one program."""

    def __init__(self, scheduler: Scheduler, program: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.scheduler = scheduler
        self.program = program
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.waits_for: ScheduledLock | None = None
        self.is_over = False

    def run(self) -> None:
        self.turn.acquire()
        try:
            self.program()
        except BaseException as error:  # noqa: BLE001 - it is raised by ``Scheduler.run``
            if self.scheduler.error is None:
                self.scheduler.error = error
        self.is_over = True
        self.scheduler.switch(self)


class ScheduledLock:
    """A lock at which threads change places."""

    def __init__(self) -> None:
        self.is_held = False

    def _scheduler(self) -> "tuple[Scheduler, ScheduledThread] | None":
        thread = threading.current_thread()
        return (thread.scheduler, thread) if isinstance(thread, ScheduledThread) else None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        found = self._scheduler()
        if found is not None:
            scheduler, thread = found
            scheduler.switch(thread)
            while self.is_held:
                thread.waits_for = self
                scheduler.switch(thread)
        assert not self.is_held, "the main thread acts alone"
        self.is_held = True
        return True

    def release(self) -> None:
        assert self.is_held, "released twice"
        self.is_held = False
        found = self._scheduler()
        if found is not None:
            for thread in found[0].threads:
                if thread.waits_for is self:
                    thread.waits_for = None

    def locked(self) -> bool:
        return self.is_held

    __enter__ = acquire

    def __exit__(self, *args: object) -> None:
        self.release()


class FakeThreading:
    """The part of ``threading`` that the pools use."""

    Lock = ScheduledLock
    get_ident = staticmethod(threading.get_ident)
    current_thread = staticmethod(threading.current_thread)


def schedule_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give pools, buffers and futures locks at which threads change places."""
    for name in MODULES:
        monkeypatch.setattr(f"netstack.buffer.{name}.threading", FakeThreading)
    monkeypatch.setattr("netstack.availability.threading", FakeThreading)
