"""The end of a TaskManager's process: what a Python program does at its end, within a time, and nothing that outlives
it.

Side:       shared.  The main thread.
Invariants: executors that a function has left open finish what was submitted to them, and exit functions run, for
            ``EXIT_WORK_S`` at most, or until the next signal.  Then the children and their children are killed, if they
            have not made a session of their own: a worker of a pool would keep the program's standard output open for
            ever.
Rules:      the interpreter is not shut down: that would take long on a busy machine.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final, NoReturn

from flowlet.rpc.early_signals import STOP_SIGNALS
from flowlet.tm.process.program_start import tell_program

EXIT_WORK_S: Final = 10.0  # a program would wait for ever; whoever stops a TaskManager will not
ENDING: Final = "ending"
"""The line that tells a program: the tasks have ended, and ``EXIT_WORK_S`` begin."""
_MAX_SWEEPS: Final = 20  # a process may fork while the others are looked up


def leave(code: int) -> NoReturn:
    """Run what is to run at the exit of a program, then end."""
    tell_program(ENDING)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: end_now(code))
    watch = threading.Timer(EXIT_WORK_S, _give_up, (code,))
    watch.daemon = True  # nobody waits for it
    watch.start()
    with contextlib.suppress(SystemExit):  # of an exit function; an interpreter prints other errors of them, too
        _run_exit_functions()
    end_now(code)


def _run_exit_functions() -> None:
    """Do as ``Py_FinalizeEx``: end executors and join threads, then call ``atexit``'s functions, that of
    ``multiprocessing`` among them.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # there is no public name; without it an executor drops its work
    except Exception:  # noqa: BLE001 - an executor's; the interpreter prints it, too, and goes on
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()


def _give_up(code: int) -> None:
    threads = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    detail = f"; these threads still run: {', '.join(threads[:5])}" if threads else ""
    text = (
        f"python -m flowlet.tm: what functions left to be done at the exit did not end within {EXIT_WORK_S:g} s, "
        f"and is lost{detail}\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End at once, without exit functions; what was printed is written, and no child stays."""
    for stream in (sys.stdout, sys.stderr):
        # The reader is gone, the stream is closed, or there is none.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        kill_descendants()
    finally:
        os._exit(code)


def kill_descendants() -> None:
    """Kill each process that descends from this one and is of its session; those without a parent, too, if the session
    is of our making.
    """
    for _ in range(_MAX_SWEEPS):
        victims = _descendants()
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> set[int]:
    own, session = os.getpid(), os.getsid(0)
    parents = {pid: parent for pid, parent, its_session in _processes() if its_session == session and pid != own}
    if session == own:
        return set(parents)
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent == own or parent in found} - found:
        found |= more
    return found


def _processes() -> list[tuple[int, int, int]]:
    """Id, parent and session of each process that runs."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):  # it ended
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
            if state not in (b"Z", b"X"):
                found.append((int(name), int(parent), int(session)))
    return found


def keep_apart(numbers: Sequence[signal.Signals]) -> None:
    """From now on these signals have their default effect in every forked child, and the parent does not hear of them.

    Else ``multiprocessing.Process.terminate`` in a function ends the TaskManager instead of the child: it inherits the
    handlers of the event loop, and the socket through which Python tells the loop the number of a signal.
    """
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
