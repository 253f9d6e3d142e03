"""Mails with names, and threads that meet at a mailbox."""

import threading
from collections.abc import Callable
from typing import Any

from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions, TaskMailbox


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, by_ns: int) -> None:
        self.now_ns += by_ns

    def advance_ms(self, by_ms: int) -> None:
        self.now_ns += by_ms * 1_000_000


def mail(name: str, priority: int = MIN_PRIORITY, options: MailOptions = MailOptions.DEFAULT) -> Mail:
    return Mail(lambda: None, priority, name, options=options)


def urgent(name: str, priority: int = MAX_PRIORITY) -> Mail:
    return mail(name, priority, MailOptions.URGENT)


def names(mails: list[Mail]) -> str:
    return " ".join(map(repr, mails))


def put_all(box: TaskMailbox, *mails: Mail) -> None:
    for each in mails:
        box.put_threadsafe(each)


def drained(box: TaskMailbox, priority: int = MIN_PRIORITY) -> str:
    """Take all mails that can be seen; return their names."""
    return names(list(iter(lambda: box.try_take(priority), None)))


def in_thread(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def when_parked(box: TaskMailbox, act: Callable[[], Any]) -> threading.Thread:
    """Another thread acts once the mailbox thread sleeps; the mailbox says so itself."""

    def wait_and_act() -> None:
        while "parked" not in repr(box):
            pass
        act()

    return in_thread(wait_and_act)
