"""The letter box of one task: every thread puts, one thread takes.

Side:       shared.  ``put_threadsafe`` and its relatives from any thread; everything else on the mailbox thread, checked.
Invariants: urgent mails come before all others, first in first out among themselves; a mail is returned once; a parked thread implies that
            no mail it may take is there; no callback runs under the lock.
Life cycle: OPEN (put and take) -> QUIESCED (take only) -> CLOSED (nothing).
Source:     Flink ``TaskMailbox``, ``TaskMailboxImpl``.  Flink keeps urgent mails reversed at the head of its queue; a deque of their own
            gives the same order and needs no moves that could hold ordinary mails up (FLINK-39898).  Flink's ``runExclusively`` calls out
            under the lock; here the action runs without it, and what it puts is enqueued in one step.
Absent:     a bound on the number of mails (Flink has none either).
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from flowlet.mailbox.mailbox_future import Signal

__all__ = ["MAX_PRIORITY", "MIN_PRIORITY", "Mail", "MailOptions", "MailboxState", "MailboxStatistics", "TaskMailbox"]

# Flink waits in slices of 1 s too: a look at the queue that no put asked for.  It must never find anything (``num_rescued_wakeups``).
_PARK_SLICE_S: Final = 1.0


class MailboxState(Enum):
    """What the mailbox still does."""

    OPEN = auto()
    QUIESCED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Counts since the mailbox was made."""

    num_put: int
    num_parks: int
    num_rescued_wakeups: int  # mails found by the periodic look only: a lost wake-up, must be 0


class TaskMailbox:
    """Queue of mails with priorities, urgent mails and batches.

    Threading: ``put_threadsafe``, ``try_put_threadsafe``, ``put_all_threadsafe``, ``run_exclusively``, ``wake_threadsafe``, ``statistics``
    and ``repr`` from any thread; the rest from the thread that called ``bind_to_current_thread``, and raises RuntimeError elsewhere.
    """

    def __init__(self, name: str = "task") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._state = MailboxState.OPEN  # Guarded by _lock; written by the mailbox thread only, which may read it without.
        self._urgent: deque[Mail] = deque()  # Guarded by _lock; emptiness read anywhere, one pass stale is fine.
        self._queue: deque[Mail] = deque()  # Guarded by _lock; emptiness read anywhere, one pass stale is fine.
        self._batch: deque[Mail] = deque()  # Mailbox thread only.
        self._parked_for: int | None = None  # Guarded by _lock: the least priority that the parked thread waits for.
        self._is_lent = False  # Guarded by _lock: while the thread is parked, another one may stand in for it.
        # Raw lock, held except between the release by the put that ends a park and the acquire by the parked thread.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._thread_id: int | None = None  # Written once by the mailbox thread; changed by who stands in for it, who changes it back.
        self._owner_id: int | None = None  # Guarded by _lock: the mailbox thread, while another one stands in for it.
        self._num_put = 0  # Guarded by _lock.
        self._num_parks = 0  # Written by the mailbox thread.
        self._num_rescued_wakeups = 0  # Written by the mailbox thread.

    def __repr__(self) -> str:
        parked = "" if self._parked_for is None else ", parked"
        return f"<TaskMailbox {self._name} {self._state.name}, {self.num_mails} mails{parked}>"

    def bind_to_current_thread(self) -> None:
        """Make the calling thread the mailbox thread; once."""
        if self._thread_id not in (None, threading.get_ident()):
            raise RuntimeError(f"mailbox {self._name} already belongs to thread {self._thread_id}")
        self._thread_id = threading.get_ident()

    @property
    def is_mailbox_thread(self) -> bool:
        """Whether the caller runs on the mailbox thread."""
        return self._thread_id == threading.get_ident()

    @property
    def state(self) -> MailboxState:
        """The state; from other threads possibly outdated at once."""
        return self._state

    def check_mailbox_thread(self) -> None:
        """Raise RuntimeError unless called on the mailbox thread."""
        if not self.is_mailbox_thread:
            raise RuntimeError(f"mailbox {self._name} was used from thread {threading.get_ident()}, it belongs to {self._thread_id}")

    # -- putting: any thread

    def put_threadsafe(self, mail: Mail) -> None:
        """Enqueue one mail and wake the mailbox thread if it waits for it.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed.
        """
        if not self.try_put_threadsafe(mail):
            raise MailboxClosedError(f"mailbox {self._name} is {self._state.name}, refused the mail {mail!r}")

    def try_put_threadsafe(self, mail: Mail) -> bool:
        """As ``put_threadsafe``, but answers False when no mails are taken any more."""
        return self._put((mail,))

    def put_all_threadsafe(self, mails: Sequence[Mail]) -> None:
        """Enqueue all mails in one step: ``quiesce`` and ``close`` come before all of them or after all of them.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed; none was enqueued.
        """
        if not self._put(mails):
            raise MailboxClosedError(f"mailbox {self._name} is {self._state.name}, refused {len(mails)} mails")

    def run_exclusively(self, action: Callable[[Callable[[Mail], None]], None]) -> None:
        """Call ``action`` with a function that puts; all that it puts is enqueued in one step when it returns, nothing if it raises.

        Raises:
            MailboxClosedError: the mailbox was quiesced or closed meanwhile; none was enqueued.
        """
        mails: list[Mail] = []
        action(mails.append)
        self.put_all_threadsafe(mails)

    def wake_threadsafe(self) -> None:
        """End the park of the mailbox thread, if it is parked, without a mail; in every state.  Whoever waits looks again."""
        with self._lock:
            if self._parked_for is None:
                return
            self._parked_for = None
        self._wakeup.release()

    def _put(self, mails: Sequence[Mail]) -> bool:
        is_woken = False
        with self._lock:
            if self._state is not MailboxState.OPEN:
                return False
            for mail in mails:
                (self._urgent if mail.is_urgent else self._queue).append(mail)
                if self._parked_for is not None and mail.priority >= self._parked_for:
                    self._parked_for = None
                    is_woken = True
            self._num_put += len(mails)
        if is_woken:
            self._wakeup.release()
        return True

    # -- taking: the mailbox thread

    @property
    def has_mail(self) -> bool:
        """Whether any mail is there; cheap, for the default action's loop.  One put in progress may be missed until the next look."""
        return bool(self._batch or self._urgent or self._queue)

    @property
    def has_urgent_mail(self) -> bool:
        """Whether an urgent mail is there; cheap, for work inside a mail or a record that could pause.  As ``has_mail``."""
        return bool(self._urgent)

    @property
    def has_batch(self) -> bool:
        """Whether ``try_take_from_batch`` would return a mail."""
        return bool(self._batch or self._urgent)

    @property
    def num_mails(self) -> int:
        """How many mails wait; any thread, at once outdated."""
        return len(self._urgent) + len(self._batch) + len(self._queue)

    def create_batch(self) -> bool:
        """Move all queued mails into the batch, behind what is left of the last one; True when the batch is not empty.

        Mails put later wait for the next batch: a mail that posts itself cannot keep the default action from running.
        """
        self.check_mailbox_thread()
        if self._queue:
            with self._lock:
                self._batch.extend(self._queue)
                self._queue.clear()
        return self.has_batch

    def try_take_from_batch(self) -> Mail | None:
        """The next urgent mail, else the next of the batch, else None."""
        self._check_may_take()
        return self._take_urgent(MIN_PRIORITY) or (self._batch.popleft() if self._batch else None)

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """The next mail of at least this priority, or None.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        self._check_may_take()
        mail = self._take_urgent(priority) or _take_first(self._batch, priority)
        if mail is None and self._queue:
            with self._lock:
                mail = _take_first(self._queue, priority)
        return mail

    def try_take_of_sender(self, priority: int) -> Mail | None:
        """As ``try_take``, but a deferrable mail counts with its sender's priority: for the end of an operator (FLINK-39481).

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        self._check_may_take()
        with self._lock:
            for mails in (self._urgent, self._batch, self._queue):
                for index, mail in enumerate(mails):
                    if mail.sender_priority >= priority:
                        del mails[index]
                        return mail
        return None

    def take(self, priority: int = MIN_PRIORITY, *, is_lending: bool = False) -> Mail:
        """The next mail of at least this priority; waits for one, without using the CPU.

        ``is_lending``: as long as there is none, another thread may stand in for this one (``try_borrow``); with the least priority only.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        assert priority == MIN_PRIORITY or not is_lending, "who stands in knows nothing of priorities"
        while (mail := self.try_take(priority)) is None:
            self._park(priority, is_lending=is_lending)
        return mail

    def take_until(self, signal: Signal, priority: int = MIN_PRIORITY) -> Mail | None:
        """The next mail of at least this priority, or None once the signal was given; waits for either.

        The signal must have been told to call ``wake_threadsafe``.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        while not signal.is_done:
            mail = self.try_take(priority)
            if mail is not None:
                return mail
            self._park(priority, signal)
        return None

    def try_borrow(self) -> bool:
        """Stand in for the mailbox thread, until ``give_back``: the caller is the mailbox thread now.  Any thread.

        False if that thread does not wait in a ``take`` that lends, if there is a mail for it, or if another one stands in.  It must not
        take longer than a mail may wait: mails that are put meanwhile wake the mailbox thread with ``give_back``.
        """
        with self._lock:
            if self._parked_for is None or not self._is_lent:
                return False  # whoever puts a mail, or stands in, ends the park
            self._parked_for = None
            self._owner_id, self._thread_id = self._thread_id, threading.get_ident()
        return True

    def give_back(self) -> None:
        """The mailbox thread is itself again; it wakes up if there are mails."""
        self.check_mailbox_thread()
        with self._lock:
            self._owner_id, self._thread_id = None, self._owner_id
            has_mail = self._has_visible_locked(MIN_PRIORITY)
            if not has_mail:
                self._parked_for = MIN_PRIORITY
        if has_mail:
            self._wakeup.release()

    def _park(self, priority: int, signal: Signal | None = None, *, is_lending: bool = False) -> None:
        """Sleep until a put of at least this priority, or the signal; returns at once if it has come already."""
        with self._lock:
            # Level triggered: look and announce the park in one step, so that a put either is seen here or sees the announcement.
            if self._has_visible_locked(priority) or (signal is not None and signal.is_done):
                return
            self._parked_for = priority
            self._is_lent = is_lending
        self._num_parks += 1
        is_woken = False
        try:
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
                self._wakeup.acquire()  # the put that ended this park has released it, or is about to

    def _must_rescue(self, priority: int, signal: Signal | None) -> bool:
        """Whether there is a mail or a signal that did not end the park: never, unless this class or the signal has a bug."""
        with self._lock:
            is_due = self._has_visible_locked(priority) or (signal is not None and signal.is_done)
            return self._parked_for is not None and is_due

    def _has_visible_locked(self, priority: int) -> bool:
        return any(mail.priority >= priority for mails in (self._urgent, self._queue) for mail in mails)

    def _take_urgent(self, priority: int) -> Mail | None:
        if not self._urgent:
            return None
        with self._lock:
            return _take_first(self._urgent, priority)

    def _check_may_take(self) -> None:
        self.check_mailbox_thread()
        if self._state is MailboxState.CLOSED:
            raise MailboxClosedError(f"mailbox {self._name} is CLOSED, there is nothing to take")

    def pending_mails(self) -> list[Mail]:
        """The mails that wait, in the order in which they would run; they stay where they are."""
        self.check_mailbox_thread()
        with self._lock:
            return self._mails_locked()

    # -- ending: the mailbox thread

    def quiesce(self) -> None:
        """Take no more mails; those that are there can still be taken.  Does nothing when already quiesced or closed."""
        self.check_mailbox_thread()
        with self._lock:
            if self._state is MailboxState.OPEN:
                self._state = MailboxState.QUIESCED

    def try_quiesce(self) -> bool:
        """``quiesce`` if no mail is there; False when one is.  No put can come between the look and the step."""
        self.check_mailbox_thread()
        with self._lock:
            if self.num_mails:
                return False
            if self._state is MailboxState.OPEN:
                self._state = MailboxState.QUIESCED
            return True

    def drain(self) -> list[Mail]:
        """Remove and return every mail, in the order in which they would have run, whatever their priority."""
        self._check_may_take()
        with self._lock:
            return self._drain_locked()

    def close(self) -> list[Mail]:
        """Take and give nothing any more; returns the mails that were left, empty when already closed."""
        self.check_mailbox_thread()
        with self._lock:
            self._state = MailboxState.CLOSED
            return self._drain_locked()

    def _drain_locked(self) -> list[Mail]:
        mails = self._mails_locked()
        self._urgent.clear()
        self._batch.clear()
        self._queue.clear()
        return mails

    def _mails_locked(self) -> list[Mail]:
        return [*self._urgent, *self._batch, *self._queue]

    def statistics(self) -> MailboxStatistics:
        """Counters; any thread, one step stale."""
        return MailboxStatistics(self._num_put, self._num_parks, self._num_rescued_wakeups)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        with self._lock:
            assert self._parked_for is None or not self._has_visible_locked(self._parked_for), "parked beside a mail"
            assert self._state is not MailboxState.CLOSED or self.num_mails == 0, "a closed mailbox holds mails"
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
