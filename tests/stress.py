"""Two threads that meet again and again: how often, and where the second one strikes.

``make stress`` runs every race 100,000 times; ``make test`` as often as fits into some seconds.  ``FLOWLET_STRESS``
says how often.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Empty turns of one side or the other before it acts, so that the opponent strikes everywhere.  To wake up takes it
# some of them.
TURNS = range(0, 1600, 100)


def num_rounds(default: int) -> int:
    return int(os.environ.get("FLOWLET_STRESS", default))


class Opponent:
    """A long-lived thread that acts once per round, while the test's thread acts too.

    Threading: the test's thread, but for ``_run``.
    """

    def __init__(self, act: Callable[[int], object]) -> None:
        self._act = act
        # Raw locks used as signals: a thread that spins instead loses its core to other work of the machine.
        self._may_begin, self._is_through = threading.Lock(), threading.Lock()
        self._may_begin.acquire()
        self._is_through.acquire()
        self._round = 0  # Written by the test's thread.
        self._is_over = False  # Written by the test's thread, before the last signal.
        self._error: BaseException | None = None  # Written by the opponent, before it signals.
        self._thread = threading.Thread(target=self._run, name="opponent")

    def begin(self) -> None:
        """Let the opponent act in the next round: it wakes up while the caller goes on, a little earlier or later in
        each round.
        """
        self._may_begin.release()
        for _ in range(TURNS[self._round % len(TURNS)]):
            pass
        self._round += 1

    def wait(self) -> None:
        """Wait until the thread is through with this round.

        Raises:
            BaseException: what the act raised.
        """
        self._is_through.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        round_ = 0
        while True:
            self._may_begin.acquire()
            if self._is_over:
                return
            try:
                self._act(round_)
            except BaseException as error:  # noqa: BLE001 - raised by wait
                self._error = error
            round_ += 1
            self._is_through.release()

    def _stop(self) -> None:
        self._is_over = True
        self._may_begin.release()
        self._thread.join()

    @classmethod
    @contextmanager
    def acting(cls, act: Callable[[int], object]) -> Iterator["Opponent"]:
        """Yield an opponent that calls ``act(round)`` in rounds 0, 1, 2 and so on; its thread ends with the block."""
        opponent = cls(act)
        opponent._thread.start()
        try:
            yield opponent
        finally:
            opponent._stop()
