"""Keeps a core from halting, so that threads wake up faster.

Side:       shared.  Called by the main thread of ``python -m flowlet.tm``.
Why:        an idle core halts, and in a virtual machine waking it needs the hypervisor: a single record pays for that
            several times (bench latency: p50 400 us, with this 200).  On a machine of one's own ``idle=poll`` has the
            same effect.
Invariants: the thread runs only while nothing else wants the core (SCHED_IDLE).  It takes the interpreter's lock only
            for a moment, about 20 times per second, because a thread that then waits for the lock waits for a thread of
            the lowest class.
"""

import hashlib
import os
import threading
from typing import Final

# Rounds of SHA-1, about 0.4 us each: together about 50 ms without the interpreter's lock.  With fewer, every hundredth
# record would wait for the lock; with more, ``rest`` would take effect late.
_ROUNDS: Final = 125_000
_END_TIMEOUT_S: Final = 0.2


class KeepAwake:
    """A thread that is busy whenever its core has nothing else to do.

    Threading: the thread that creates it.  Life cycle: a context manager; the thread ends soon after the block.
    """

    def __init__(self) -> None:
        self._is_over = False  # Written by the creating thread, read by the new one.
        self._may_work = threading.Event()
        self._may_work.set()
        self._thread = threading.Thread(target=self._run, name="keep awake", daemon=True)

    def __repr__(self) -> str:
        return f"<KeepAwake {'on' if self._thread.is_alive() else 'off'}>"

    def __enter__(self) -> "KeepAwake":
        self._thread.start()
        return self

    def rest(self, *, is_crowded: bool) -> None:
        """Pause while another thread keeps the core awake (``is_crowded``), continue when none does; any thread; takes
        effect soon.

        Beside a busy thread this one would sometimes get the core for a time slice while that thread holds the
        interpreter's lock.
        """
        if is_crowded:
            self._may_work.clear()
        else:
            self._may_work.set()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._may_work.set()
        # For its current round; if that takes longer, a daemon does not delay the end of the process.
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        while not self._is_over:
            self._may_work.wait()  # waits for an idle process; ended by rest(), or the end of the process
            hashlib.pbkdf2_hmac("sha1", b"awake", b"", _ROUNDS)
