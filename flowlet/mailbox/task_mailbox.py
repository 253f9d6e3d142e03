"""The mailbox of one task: any thread puts mails, one thread takes them.

``Mail``: an action for the mailbox thread, and how it is treated.

Life cycle: OPEN (put and take) -> QUIESCED (take only) -> CLOSED (neither).

Side:       shared.  ``put_threadsafe`` and its relatives from any thread; all other methods on the mailbox thread,
            which is checked.
Invariants: a mail never changes.  ``priority`` decides which yields of operators see it.  Urgent mails come before all
            others; each kind is first in, first out.  A mail is returned once.  While the thread is parked, there is no
            mail that it may take.  No callback runs under the lock.
Source:     Flink ``Mail``, ``MailOptionsImpl``; without ``WrappingRuntimeException``, because Python's errors need no
            wrapping.  Flink ``TaskMailbox``, ``TaskMailboxImpl``; the number of mails is unbounded there, too.  Flink
            keeps urgent mails reversed at the head of its queue.  A deque for urgent mails gives that order without
            moves that could delay ordinary mails (FLINK-39898).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from operator import call, length_hint
from typing import Any, Final

from flowlet.errors import MailboxClosedError, TaskCancelled
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child

MIN_PRIORITY: Final = -1
MAX_PRIORITY: Final = 2**31 - 1

Action = Callable[[], object]
RunAction = Callable[[Action], object]
"""Runs an action now, on the calling thread, once, and lets its exception pass (Flink ``StreamTaskActionExecutor``)."""
run_directly: Final[RunAction] = call
"""Runs an action without any work around it."""


class MailOptions(Enum):
    """How a mail is treated: DEFAULT in order, DEFERRABLE hidden from yields of operators, URGENT before all others."""

    DEFAULT = auto()
    DEFERRABLE = auto()
    URGENT = auto()


class Mail:
    """An action for the mailbox thread.

    ``priority`` does not order mails: a take for priority p sees only mails of priority >= p, so an operator that
    yields never runs mails of the operators before it.  A deferrable mail always has the lowest priority.

    Args:
        action: called without arguments on the mailbox thread.  If it has a method ``cancel``, that is called when the
            mail is dropped.
        priority: index of the operator in the chain, or MIN_PRIORITY or MAX_PRIORITY.
        description: a ``%`` format, expanded with ``args`` only on demand.
        args: for ``description``.
        options: how the mail is treated.
        run_action: runs the action.
    """

    __slots__ = ("_action", "_args", "_description", "_run_action", "is_urgent", "priority")

    def __init__(
        self,
        action: Action,
        priority: int,
        description: str,
        *args: object,
        options: MailOptions = MailOptions.DEFAULT,
        run_action: RunAction = run_directly,
    ) -> None:
        self._action = action
        self._run_action = run_action
        self._description = description
        self._args = args
        self.priority = MIN_PRIORITY if options is MailOptions.DEFERRABLE else priority
        self.is_urgent = options is MailOptions.URGENT

    def __repr__(self) -> str:
        return self._description % self._args if self._args else self._description

    def run(self) -> None:
        """Run the action; its error passes."""
        self._run_action(self._action)

    def try_cancel(self) -> bool:
        """Cancel the action, so that no thread waits for its result; False if it cannot be cancelled."""
        cancel = getattr(self._action, "cancel", None)
        if cancel is None:
            return False
        cancel()
        return True


# Flink waits in slices of 1 s, too: between them a look, which must never find a mail (``num_rescued_wakeups``).
_PARK_SLICE_S: Final = 1.0


class MailboxState(Enum):
    """The state of a mailbox: whether it accepts mails, and gives them out."""

    OPEN = auto()
    QUIESCED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Counts since the mailbox was made."""

    num_put: int
    num_parks: int
    num_rescued_wakeups: int  # mails found only by the periodic look: lost wake-ups, must be 0


class Interrupts(list[bool]):
    """Not empty while the loop of a chain must be left between two records, because a mail waits.

    A list, because its test costs such a loop 2 to 4 ns per record; a look at the clock or at a deque of mails costs 20
    to 50 times as much.

    Threading: the mailbox appends and clears under its lock; the loop only reads.
    """

    __slots__ = ()

    def leave(self, records: Iterable[Any], _drain: Callable[[], None]) -> int | None:
        """Decide whether the loop is left: the number of records that are left, which the caller gives to the loop
        again; None: the loop goes on.

        Records without a length hint are read to their end.
        """
        num_left = length_hint(records, -1)
        return sum(1 for _ in records) if num_left < 0 else num_left


class Attention(Interrupts):
    """Not empty while a loop that cannot be left must pass its results on between two records, or end.

    Threading: ``cancel`` and ``call_for_results`` on any thread, the rest on the task's.
    """

    __slots__ = ("flushes", "has_records_behind", "is_cancelled")

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False
        self.has_records_behind = False
        """Task thread only: whether records that cannot wait follow the watermark that is passed on now, so that its
        timers all fire.
        """
        self.flushes: list[Callable[[], None]] = []
        """Functions that pass on results behind the outputs of a loop: those in the task's record writers, and text
        that waits in a stream.
        """

    def cancel(self) -> None:
        """Let every loop end between two records."""
        self.is_cancelled = True
        self.append(True)

    def call_for_results(self) -> None:
        """Let the loop that runs pass on its results now."""
        # Not one step: two threads may both append, and one ``clear`` takes both away.
        if not self:
            self.append(True)

    def leave(self, records: Iterable[Any], drain: Callable[[], None]) -> int | None:
        """Pass on the results so far; None: the loop goes on.  Raises TaskCancelled if the task is cancelled."""
        self.attend(drain)
        return None

    def attend(self, drain: Callable[[], None]) -> None:
        """Pass on the results so far: ``drain`` those of the loop.  Raises TaskCancelled if the task is cancelled."""
        self.clear()  # first: the append of a cancellation that comes now must not be cleared
        self.check()
        drain()
        for flush in self.flushes:
            flush()

    def check(self) -> None:
        """Raise TaskCancelled if the task is cancelled."""
        if self.is_cancelled:
            self.append(True)
            raise TaskCancelled("the task was cancelled between two records")

    def goes_on(self) -> bool:
        """True, for the condition of a comprehension.  Raises TaskCancelled if the task is cancelled."""
        self.check()
        return True


class TaskMailbox:
    """A queue of mails with priorities, urgent mails and batches.

    Threading: ``put_threadsafe``, ``try_put_threadsafe``, ``wake_threadsafe``, ``statistics`` and ``repr`` from any
        thread.  All other methods only from the thread that called ``bind_to_current_thread``; on other threads they
        raise RuntimeError.

    Raises: methods that put raise MailboxClosedError, and enqueue nothing, if the mailbox is quiesced or closed;
        methods that take raise it if the mailbox is closed.
    """

    def __init__(self, name: str = "task") -> None:
        self._name = name
        self.interrupts = Interrupts()
        """Not empty while a mail waits, and sometimes until the default action runs next."""
        self._lock = threading.Lock()
        # Guarded by _lock.  Only the mailbox thread writes it, and may read it without the lock; elsewhere it may be
        # outdated at once.
        self.state = MailboxState.OPEN
        self._urgent: deque[Mail] = deque()  # Guarded by _lock; emptiness read anywhere, one pass stale is fine.
        self._queue: deque[Mail] = deque()  # Guarded by _lock; emptiness read anywhere, one pass stale is fine.
        self._batch: deque[Mail] = deque()  # Mailbox thread only.
        # Guarded by _lock: the lowest priority that the parked thread accepts; None: not parked.
        self._parked_for: int | None = None
        self._is_lent = False  # Guarded by _lock: whether another thread may stand in for the parked one.
        # A raw lock.  The put that ends a park releases it, and the parked thread acquires it; at all other times it is
        # held.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()  # no wait: the lock is new
        # Written once by the mailbox thread; a thread that stands in for it changes it and restores it.
        self._thread_id: int | None = None
        self._owner_id: int | None = None  # Guarded by _lock: the mailbox thread while another one stands in for it.
        self._num_put = 0  # Guarded by _lock.
        self._num_parks = 0  # Written by the mailbox thread.
        self._num_rescued_wakeups = 0  # Written by the mailbox thread.

    def __repr__(self) -> str:
        parked = "" if self._parked_for is None else ", parked"
        return f"<TaskMailbox {self._name} {self.state.name}, {self.num_mails} mails{parked}>"

    def bind_to_current_thread(self) -> None:
        """Make the calling thread the mailbox thread; call once."""
        if self._thread_id not in (None, threading.get_ident()):
            raise RuntimeError(f"mailbox {self._name} already belongs to thread {self._thread_id}")
        self._thread_id = threading.get_ident()

    @property
    def is_mailbox_thread(self) -> bool:
        """Whether the caller runs on the mailbox thread."""
        return self._thread_id == threading.get_ident()

    def check_mailbox_thread(self) -> None:
        """Raise RuntimeError unless called on the mailbox thread."""
        if self._thread_id != threading.get_ident():
            raise RuntimeError(
                f"mailbox {self._name} belongs to thread {self._thread_id}, but thread {threading.get_ident()} used it"
            )

    # -- putting: any thread

    def put_threadsafe(self, mail: Mail) -> None:
        """Enqueue a mail, and wake the mailbox thread if it waits for such a mail."""
        if not self.try_put_threadsafe(mail):
            raise MailboxClosedError(f"mailbox {self._name} is {self.state.name}, refused the mail {mail!r}")

    def try_put_threadsafe(self, mail: Mail) -> bool:
        """Enqueue a mail as ``put_threadsafe`` does; False if the mailbox is quiesced or closed."""
        is_woken = False
        with self._lock:
            if self.state is not MailboxState.OPEN:
                return False
            (self._urgent if mail.is_urgent else self._queue).append(mail)
            if self._parked_for is not None and mail.priority >= self._parked_for:
                self._parked_for = None
                is_woken = True
            self._num_put += 1
            if not self.interrupts:
                self.interrupts.append(True)
        # Outside the lock, which the woken thread takes at once.
        if is_woken:
            self._wakeup.release()
        return True

    def wake_threadsafe(self) -> None:
        """Wake the mailbox thread without a mail if it is parked; it looks at its signal again.  In every state."""
        with self._lock:
            if self._parked_for is None:
                return
            self._parked_for = None
        self._wakeup.release()

    # -- taking: the mailbox thread

    @property
    def has_mail(self) -> bool:
        """Whether a mail waits; cheap, for the default action's loop.  It may miss a put in progress."""
        return bool(self._batch or self._urgent or self._queue)

    def clear_interrupts(self) -> None:
        """Empty ``interrupts`` if no mail waits; before the default action, which looks at them."""
        if self.interrupts:
            with self._lock:
                if not (self._urgent or self._batch or self._queue):
                    self.interrupts.clear()

    @property
    def num_mails(self) -> int:
        """The number of waiting mails; any thread, at once outdated."""
        return len(self._urgent) + len(self._batch) + len(self._queue)

    def create_batch(self) -> bool:
        """Move all queued mails behind the rest of the batch; True if the batch is not empty.

        Later mails wait for the next batch, so a mail that posts itself cannot keep the default action from running.
        """
        self.check_mailbox_thread()
        # Without the lock: a mail that is missed here waits for the next batch.
        if self._queue:
            with self._lock:
                self._batch.extend(self._queue)
                self._queue.clear()
        return bool(self._batch or self._urgent)

    def try_take_from_batch(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """The next urgent mail, else the next mail of the batch, of at least this priority, or None."""
        self.check_mailbox_thread()
        if self.state is MailboxState.CLOSED:
            raise MailboxClosedError(f"mailbox {self._name} is CLOSED, no mail can be taken")
        mail = None
        if self._urgent:
            with self._lock:
                mail = _take_first(self._urgent, priority)
        return mail or _take_first(self._batch, priority)

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """The next mail of at least this priority, or None."""
        mail = self.try_take_from_batch(priority)
        if mail is None and self._queue:
            with self._lock:
                mail = _take_first(self._queue, priority)
        return mail

    def take(self, priority: int = MIN_PRIORITY, *, is_lending: bool = False) -> Mail:
        """Wait for the next mail of at least this priority, without using the CPU.

        ``is_lending``: while it waits, another thread may stand in for this one (``try_borrow``); only with the lowest
            priority.
        """
        assert priority == MIN_PRIORITY or not is_lending, "a thread that stands in knows no priorities"
        while (mail := self.try_take(priority)) is None:
            self._park(priority, is_lending=is_lending)
        return mail

    def take_until(self, signal: AvailabilityFuture, priority: int = MIN_PRIORITY) -> Mail | None:
        """Wait for the next mail of at least this priority, or for the signal; None if the signal is done.

        The signal must call ``wake_threadsafe`` when it is done.
        """
        while not signal.is_done:
            mail = self.try_take(priority)
            if mail is not None:
                return mail
            self._park(priority, signal)
        return None

    def try_borrow(self) -> bool:
        """Stand in for the mailbox thread until ``give_back``: meanwhile the caller counts as the mailbox thread.

        Any thread.  False if the mailbox thread does not wait in a ``take`` that lends, or another thread stands in.
        The caller must be quick: mails that are put meanwhile wake the mailbox thread only with ``give_back``.
        """
        with self._lock:
            if self._parked_for is None or not self._is_lent:
                return False  # a put, or another thread that stands in, has ended the park
            self._parked_for = None
            self._owner_id, self._thread_id = self._thread_id, threading.get_ident()
        return True

    def give_back(self) -> None:
        """Stop standing in; the mailbox thread wakes up if there are mails."""
        self.check_mailbox_thread()
        with self._lock:
            self._owner_id, self._thread_id = None, self._owner_id
            has_mail = self._has_visible_locked(MIN_PRIORITY)
            # In the lock round of the look: a put from here on wakes the parked thread itself.
            if not has_mail:
                self._parked_for = MIN_PRIORITY
        if has_mail:
            self._wakeup.release()

    def _park(self, priority: int, signal: AvailabilityFuture | None = None, *, is_lending: bool = False) -> None:
        """Sleep until a put of at least this priority, or the signal; return at once if one has happened already."""
        end_stranded_child()
        with self._lock:
            # Look and announce the park in one step under the lock.  So a put is either seen here, or sees the
            # announcement and wakes the thread.
            if self._has_visible_locked(priority) or (signal is not None and signal.is_done):
                return
            self._parked_for = priority
            self._is_lent = is_lending
            if priority == MIN_PRIORITY:
                self.interrupts.clear()  # a thread that stands in runs the default action
        self._num_parks += 1
        is_woken = False
        try:
            # waits for mail, input or room; ended by a mail, so by cancel
            while not (is_woken := self._wakeup.acquire(timeout=_PARK_SLICE_S)):
                if self._must_rescue(priority, signal):
                    self._num_rescued_wakeups += 1
                    return
        finally:
            with self._lock:
                is_put = self._parked_for is None
                self._parked_for = None
                self._is_lent = False
            if is_put and not is_woken:
                self._wakeup.acquire()  # waits for the put that ended the park; ended by its next statement

    def _must_rescue(self, priority: int, signal: AvailabilityFuture | None) -> bool:
        """Whether a mail or signal has not ended the park, which means a bug of this class or of the signal."""
        with self._lock:
            is_due = self._has_visible_locked(priority) or (signal is not None and signal.is_done)
            return self._parked_for is not None and is_due

    def _has_visible_locked(self, priority: int) -> bool:
        return any(mail.priority >= priority for mails in (self._urgent, self._queue) for mail in mails)

    def pending_mails(self) -> list[Mail]:
        """The waiting mails, in the order in which they would run; they stay in the mailbox."""
        self.check_mailbox_thread()
        with self._lock:
            return [*self._urgent, *self._batch, *self._queue]

    # -- ending: the mailbox thread

    def quiesce(self) -> None:
        """Accept no more mails; waiting ones can still be taken.  Does nothing if already quiesced or closed."""
        self.check_mailbox_thread()
        with self._lock:
            if self.state is MailboxState.OPEN:
                self.state = MailboxState.QUIESCED

    def try_quiesce(self) -> bool:
        """Quiesce if no mail waits, else return False; no put can come in between."""
        self.check_mailbox_thread()
        with self._lock:
            if self.num_mails:
                return False
            if self.state is MailboxState.OPEN:
                self.state = MailboxState.QUIESCED
            return True

    def close(self) -> list[Mail]:
        """Accept and return no more mails; returns the remaining ones, none if already closed."""
        self.check_mailbox_thread()
        with self._lock:
            self.state = MailboxState.CLOSED
            mails = [*self._urgent, *self._batch, *self._queue]
            for queue in (self._urgent, self._batch, self._queue):
                queue.clear()
            return mails

    def statistics(self) -> MailboxStatistics:
        """The counters; any thread, one step stale."""
        return MailboxStatistics(self._num_put, self._num_parks, self._num_rescued_wakeups)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        with self._lock:
            assert self._parked_for is None or not self._has_visible_locked(self._parked_for), "parked beside a mail"
            assert self.state is not MailboxState.CLOSED or self.num_mails == 0, "a closed mailbox holds mails"
            assert all(mail.is_urgent for mail in self._urgent), "an ordinary mail among the urgent ones"


def _take_first(mails: deque[Mail], priority: int) -> Mail | None:
    """Remove and return the first mail of at least this priority."""
    if not mails:
        return None
    if mails[0].priority >= priority:
        return mails.popleft()
    for index, mail in enumerate(mails):
        if mail.priority >= priority:
            del mails[index]
            return mail
    return None
