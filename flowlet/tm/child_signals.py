"""Keeps the signals of a TaskManager apart from those of the children that users' functions fork.

Without this, ``multiprocessing.Process.terminate`` in a function ends the TaskManager instead of the child: the child inherits the signal
handlers of the event loop, and the socket through which Python tells the loop the number of a signal.

Side: shared.
"""

import os
import signal
import threading
from collections.abc import Sequence


def keep_apart(numbers: Sequence[signal.Signals]) -> None:
    """From now on these signals have their default effect in every forked child, and the parent does not hear of them."""
    masks: dict[int, set[signal.Signals | int]] = {}  # by thread that forks: its signal mask before

    def block() -> None:  # one that comes before ``forget`` waits for it
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)
