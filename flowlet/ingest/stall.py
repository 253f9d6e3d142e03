"""Detects that a producer waits too long, for credit or for the job.

Side:       pure; the clock is an argument.
Invariants: one report per wait, and a question every ``NO_CREDIT_QUESTION_S`` of it.
"""

from collections.abc import Callable
from typing import Final

WARN_AFTER_S: Final = 10.0
NO_CREDIT_QUESTION_S: Final = 10.0  # of the JobManager, which knows what became of the gate's TaskManager
CREDIT: Final = "credit: the gate's job does not read"


class StallWatch:
    """Observes the buffer pool of one writer (``mark_start``, ``mark_end``).

    Threading: the writing thread marks, the loop thread reads.  Each field has one writer, and a stale value only
               delays a report.
    """

    __slots__ = ("_asked_s", "_clock", "_reported_since_s", "_since_s", "awaited")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None  # Written by the writing thread.
        self._asked_s = clock()  # the last question.  Written by the loop thread.
        # What the current wait is for, in words.  Written by the writing thread, before ``_since_s``.
        self.awaited = CREDIT
        # Start of the last wait that was reported.  Written by the loop thread.
        self._reported_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<StallWatch {'idle' if self._since_s is None else f'waits since {self._since_s:.1f}'}>"

    def mark_start(self, awaited: str = CREDIT) -> None:
        """The writer starts to wait; buffer pools call it without an argument."""
        self.awaited = awaited
        self._since_s = self._clock()

    def mark_end(self) -> None:
        """The writer continues."""
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
        since_s, now_s = self._since_s, self._clock()
        if since_s is None or now_s - max(since_s, self._asked_s) < NO_CREDIT_QUESTION_S:
            return False
        self._asked_s = now_s
        return True
