"""Acts of another thread, done at every moment in turn, in one thread.

Side:   any.

Between two lines of the product that hold no lock any other thread may run.  So a test of a promise that holds in any
case repeats its scenario, and lets the other side act at the first of these moments, the second, and so on.  No part of
the product is exchanged for it, so no test says which moments are the bad ones.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

import pytest

_PRODUCT = ("netstack.", "flowlet.")


class CountedLock:
    """A lock that says how many of them are held inside ``with``; for one thread.

    A lock that is acquired otherwise does not count: it is something to wait for.
    """

    num_held = 0

    @classmethod
    def count_from_here(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count locks that are made from now on."""
        cls.num_held = 0
        monkeypatch.setattr(threading, "Lock", cls)

    def __init__(self) -> None:
        self._lock = threading._allocate_lock()  # type: ignore[attr-defined]

        self.acquire = self._lock.acquire
        self.release = self._lock.release
        self.locked = self._lock.locked

    def __enter__(self) -> None:
        self._lock.acquire()
        CountedLock.num_held += 1

    def __exit__(self, *_: object) -> None:
        CountedLock.num_held -= 1
        self._lock.release()


class Moment:
    """Calls ``act`` once inside ``with``, before the line of the product with this number that holds no lock."""

    def __init__(self, number: int) -> None:
        self._num_left = number
        self._act: Callable[[], object] | None = None
        self._former: Any = None
        self.is_over = False

    def of(self, act: Callable[[], object]) -> Self:
        self._act = act
        return self

    def __enter__(self) -> None:
        self._former = sys.gettrace()
        sys.settrace(self._on_call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._former)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        is_product = frame.f_globals.get("__name__", "").startswith(_PRODUCT)
        return self._on_line if is_product and not self.is_over else None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not CountedLock.num_held and not self.is_over:
            self._num_left -= 1
            if self._num_left < 0:
                self.is_over = True
                assert self._act is not None, "a moment is of an act"
                self._act()
        return self._on_line


@contextmanager
def no_moment() -> Iterator[None]:
    """Make no moments in the acts of the other side: it cannot be in two places at once."""
    former = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(former)


def every_moment(monkeypatch: pytest.MonkeyPatch, at_least: int) -> Iterator[Moment]:
    """Yield one moment after the other, until a scenario has come to its end before; there are ``at_least`` so many."""
    CountedLock.count_from_here(monkeypatch)
    for number in itertools.count():
        moment = Moment(number)
        yield moment
        if not moment.is_over:
            assert number >= at_least, f"only {number} moments: the scenario is not traced"
            return
