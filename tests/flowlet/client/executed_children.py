"""Children that are executed in place of forked ones: a script that behaves as a TaskManager should not."""

import os
import subprocess
import sys
import threading

from flowlet.client.children import ForkedChild, TaskManagerOptions
from tests.waiting import PATIENCE_S

_TELLER = "exit code"


def launch(options: TaskManagerOptions, life_fd: int, status_fd: int) -> ForkedChild:
    """Execute ``sys.executable`` with the two descriptors, and then the options of a TaskManager."""
    exit_fd, their_exit = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(life_fd), str(status_fd), *options.arguments(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(life_fd, status_fd),
    )
    assert process.stdout is not None, "stdout=PIPE"
    child = ForkedChild(process.pid, os.pidfd_open(process.pid), exit_fd, os.dup(process.stdout.fileno()))
    process.stdout.close()
    threading.Thread(target=_tell_exit_code, args=(process, their_exit), name=_TELLER).start()
    return child


def join_tellers() -> None:
    """Wait until the program's ends of the pipes for exit codes are closed; after the children have ended."""
    for thread in threading.enumerate():
        if thread.name == _TELLER:
            thread.join(PATIENCE_S)


def _tell_exit_code(process: "subprocess.Popen[bytes]", their_exit: int) -> None:
    os.write(their_exit, f"{process.wait()}\n".encode())  # waits for the child; ended by its supervisor
    os.close(their_exit)
