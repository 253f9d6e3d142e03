"""Harm that a user's function can do to the process that it runs in.

Each function gets one record, a number; most do their deed at record ``AT`` and return the others unchanged. Nothing
here touches anything outside the TaskManager's process and the folder of the test.

Side:   task, in a TaskManager of ``arena``.
"""

import asyncio
import builtins
import gc
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

AT: Final = 7
NUM: Final = 20
# The file whose existence ends what would never end; in the environment of the TaskManager.
RELEASE: Final = "FLOWLET_ATTACK_RELEASE"
SCRATCH: Final = "FLOWLET_ATTACKSCRATCH"
_held: list[Any] = []


def deed(name: str, function: Callable[[], Any]) -> Callable[[int], Any]:
    """Return a map function that does the deed at one record; the result of the deed, if any, takes the record's
    place.
    """

    def run(number: int) -> Any:
        if number == AT:
            with open(f"{os.environ[SCRATCH]}/pid", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            result = function()
            return number if result is None else result
        return number

    run.__name__ = name
    return run


class Base(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("locked", threading.Lock())
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("this exception is not pickled")


class NoRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


class NoReduce:
    def __reduce__(self) -> Any:
        raise ValueError("not pickled")


class NoHash:
    def __hash__(self) -> int:
        raise ValueError("no hash")


class NoEq:
    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __hash__(self) -> int:
        return 1


class ExitsWhenPickled:
    def __reduce__(self) -> Any:
        raise SystemExit(5)


# ---------------------------------------------------------------- it ends, or wants to end the process


def descriptors_replaced(kind: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(kind):
                os.dup2(null, int(name))
        except OSError:
            continue


# ---------------------------------------------------------------- it forks


def _fork() -> int:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def fork_into_engine() -> None:
    pid = _fork()
    if pid:
        _held.append(pid)


def fork_and_exit() -> None:
    pid = _fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def fork_and_sys_exit() -> None:
    if not _fork():
        sys.exit(0)


def fork_and_raise() -> None:
    if not _fork():
        raise ValueError("in the child")


def _nothing() -> None:
    return


def multiprocessing_fork() -> None:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        process = multiprocessing.get_context("fork").Process(target=_nothing)
        process.start()
        process.join(10)
    assert process.exitcode == 0


def subprocess_run() -> None:
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)


# ---------------------------------------------------------------- it does not return


def is_released() -> bool:
    return os.path.exists(os.environ[RELEASE])


def endless_loop() -> None:
    while not is_released():
        pass


def endless_sleep() -> None:
    while not is_released():
        time.sleep(0.05)


def swallows_everything() -> None:
    while not is_released():
        try:
            time.sleep(0.05)
        except BaseException:  # noqa: BLE001 - as bad as users can be
            continue


def lock_for_ever() -> None:
    lock = threading.Lock()
    lock.acquire()
    while not lock.acquire(timeout=0.05):
        if is_released():
            return


async def blocks_the_loop(number: int) -> int:
    if number == AT:
        endless_sleep()
    return number


async def never_resolves(number: int) -> int:
    if number == AT:
        await asyncio.Event().wait()
    return number


# ---------------------------------------------------------------- it raises


def throw(error: BaseException) -> None:
    raise error


def recursion() -> None:
    recursion()


def deep_causes() -> None:
    error: BaseException = ValueError("the first")
    for number in range(5000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    raise error


def circular_causes() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def fails_at_no_repr(record: Any) -> Any:
    if isinstance(record, NoRepr):
        raise ValueError("about a record that has no repr")
    return record


# ---------------------------------------------------------------- it returns useless objects


def deeply_nested() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


def yields_for_ever(number: int) -> Iterator[int]:
    yield number
    if number == AT:
        while not is_released():
            yield number


# ---------------------------------------------------------------- it spoils the process


def hundreds_of_threads() -> None:
    threads = [threading.Thread(target=time.sleep, args=(0.5,), daemon=True) for _ in range(400)]
    for thread in threads:
        thread.start()


def threads_that_raise() -> None:
    threading.excepthook = raises  # a user's hook may be broken
    threads = [threading.Thread(target=raises) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.excepthook = threading.__excepthook__


def raises(*_: Any) -> None:
    raise ValueError("in a thread")


def excepthooks() -> None:
    sys.excepthook = threading.excepthook = sys.unraisablehook = raises


def own_modules_removed() -> None:
    for name in [name for name in sys.modules if name.startswith(("flowlet", "netstack"))]:
        del sys.modules[name]


def change_folder() -> None:
    folder = tempfile.mkdtemp(dir=os.environ[SCRATCH])
    os.chdir(folder)
    os.rmdir(folder)


def gc_off() -> None:
    gc.disable()
    gc.set_threshold(0)


def gc_callbacks() -> None:
    gc.callbacks.append(raises)
    gc.collect()
    gc.callbacks.remove(raises)


def trace() -> None:
    sys.settrace(_trace)
    threading.settrace(_trace)


def _trace(*_: Any) -> Any:
    return None


def time_stands_still() -> None:
    now = time.monotonic()
    time.monotonic = lambda: now
    time.time = lambda: 0.0


def time_goes_back() -> None:
    real = time.monotonic
    time.monotonic = lambda: -real()


def stdout_closed() -> None:
    sys.stdout.close()
    sys.stderr.close()


def standard_fds_closed() -> None:
    for fd in (0, 1, 2):
        os.close(fd)


def temporary_folder_removed() -> None:
    folder = tempfile.gettempdir()
    assert os.path.realpath(folder).startswith(os.path.realpath(os.environ[SCRATCH])), folder
    shutil.rmtree(folder)


def switch_interval() -> None:
    sys.setswitchinterval(5.0)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass


def print_replaced() -> None:
    vars(builtins)["print"] = raises


def balloon() -> None:
    """The address space of the whole process is short for a moment."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 256 * 2**20, before[1]))
    try:
        parts = []
        while True:
            parts.append(bytearray(16 * 2**20))
    finally:
        parts.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


def fds_used_up() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, before[1]))
    opened = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        time.sleep(1.0)
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fd_limit_lowered() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
