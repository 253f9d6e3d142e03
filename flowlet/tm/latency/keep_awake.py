"""Keeps a core from halting, so that the next wake-up is quick.

Side:       shared.  Called by the main thread of ``python -m flowlet.tm``.
Why:        an idle core is halted, and in a virtual machine the way back leads through the hypervisor: a record that comes alone pays it
            several times (bench latency: p50 400 us, with this 200).  It is what ``idle=poll`` does on a machine of one's own.
Invariants: the thread works only while nothing else wants the core (SCHED_IDLE), and without the interpreter's lock but for a moment
            about 20 times a second: whoever waits for it then waits for a thread of the lowest class.
"""

import hashlib
import os
import threading
from typing import Final

# Of SHA-1, each about 0.4 us: about 50 ms without the interpreter's lock.  Fewer, and it meets every hundredth record; more, and ``rest``
# comes late.
_ROUNDS: Final = 125_000
_END_TIMEOUT_S: Final = 0.2


class KeepAwake:
    """A thread that is busy whenever its core has nothing else to do.

    Threading: the thread that makes it.  Life cycle: a context manager; soon after its end there is no thread.
    """

    def __init__(self) -> None:
        self._is_over = False  # Written by the owner, read by the thread.
        self._may_work = threading.Event()
        self._may_work.set()
        self._thread = threading.Thread(target=self._run, name="keep awake", daemon=True)

    def __repr__(self) -> str:
        return f"<KeepAwake {'on' if self._thread.is_alive() else 'off'}>"

    def __enter__(self) -> "KeepAwake":
        self._thread.start()
        return self

    def rest(self, *, is_crowded: bool) -> None:
        """Stop while something else keeps the core awake, and go on when it does not; any thread, soon.

        Beside a busy thread it would now and then get the core for a time slice, while that thread holds the interpreter's lock.
        """
        if is_crowded:
            self._may_work.clear()
        else:
            self._may_work.set()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._may_work.set()
        self._thread.join(_END_TIMEOUT_S)  # it ends with its present round; a daemon does not hold up the end of the process

    def _run(self) -> None:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        while not self._is_over:
            self._may_work.wait()
            hashlib.pbkdf2_hmac("sha1", b"awake", b"", _ROUNDS)
