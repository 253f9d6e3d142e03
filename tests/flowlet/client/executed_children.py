"""Children that are executed in place of forked ones: a script that behaves as a TaskManager should not."""

import os
import subprocess
import sys
import threading

from flowlet.client.children import OutputForwarder, TaskManagerOptions, TaskManagerProcess
from tests.waiting import PATIENCE_S

_TELLER = "exit code"


def launch(options: TaskManagerOptions, forwarder: OutputForwarder) -> TaskManagerProcess:
    """Execute ``sys.executable`` with two descriptors, of its life and its status, and then the options of a
    TaskManager.
    """
    exit_fd, their_exit = os.pipe()
    their_life, life_fd = os.pipe()
    status_fd, their_status = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(their_life), str(their_status), *options.arguments(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(their_life, their_status),
    )
    assert process.stdout is not None, "stdout=PIPE"
    stdout_fd, end_fd = os.dup(process.stdout.fileno()), os.pidfd_open(process.pid)
    child = TaskManagerProcess(process.pid, end_fd, exit_fd, stdout_fd, status_fd, life_fd, forwarder)
    process.stdout.close()
    os.close(their_life)
    os.close(their_status)
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
