"""Processes that begin with everything imported: the ends of a program cost milliseconds to look at, not a second of
imports each.

Each is a fork of one child, which has imported what it was told to, and runs ``python -m MODULE`` from there: its own
arguments, standard output, standard error and exit code, however it ends.

Side:   any.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.waiting import PATIENCE_S

Outcome = tuple[int, str, str]  # exit code, standard output, standard error


class ForkServer:
    """The child; ``run`` asks it for one process."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    def run(self, module: str, *arguments: str) -> Outcome:
        """What became of ``python -m module arguments``."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps([module, *arguments]) + "\n")
        self._popen.stdin.flush()
        code, out, err = json.loads(self._popen.stdout.readline())
        return code, out, err


def users_environment() -> dict[str, str]:
    """Without asyncio's debug mode, which logs each step that takes long on a busy machine, among the lines that a test
    reads.
    """
    return {key: value for key, value in os.environ.items() if key != "PYTHONASYNCIODEBUG"}


@contextmanager
def fork_server(*imported: str) -> Iterator[ForkServer]:
    """A child that has imported these modules; not the ones that it shall run."""
    command = [sys.executable, "-m", "tests.forked_processes", *imported]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=users_environment()
    ) as popen:
        yield ForkServer(popen)


def _serve() -> None:
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                _run(module, arguments, out.fileno(), err.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps([code, *texts]), flush=True)


def _run(module: str, arguments: Sequence[str], out: int, err: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.alarm(int(PATIENCE_S))  # nobody waits for one that does not end
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _serve()
