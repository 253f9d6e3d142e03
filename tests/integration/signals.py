"""How a job in another process tells a test that something happened: lines through a FIFO."""

import os
import select
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Signals:
    """The reading end of a FIFO, whose path is given to a job; ``wait`` returns the next line.

    Life cycle: a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Open for writing too: so neither end waits for the other, and there is never an end of file.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def wait(self, timeout_s: float = 30.0) -> str:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"no signal through {self.path.name} within {timeout_s} s, only {self._rest!r}"
            self._rest += os.read(self._fd, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()
