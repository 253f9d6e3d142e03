"""Counts function calls on the loop thread and on the calling thread: a figure that a busy machine does not change.

Side:  any.
Needs CPython 3.11: later versions profile all threads of a process together.
"""

import cProfile
import pstats
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.transports.common import Setting
from netstack.loop.eventloop import EventLoopThread

_NUM_LINES: Final = 80
_TIMEOUT_S: Final = 10.0


def file_of(setting: Setting, side: str) -> Path:
    """Return the file that the table of one side is written to."""
    assert setting.calls_folder is not None, "calls are counted"
    return Path(setting.calls_folder) / f"{setting.transport}-{setting.num_channels}-{side}.txt"


def num_calls(file: Path) -> int:
    """Return the total of a table."""
    return int(file.read_text(encoding="utf-8").split(maxsplit=1)[0])


@contextmanager
def counted(setting: Setting, side: str, loop: EventLoopThread) -> Iterator[None]:
    """Count during the block, if the setting says so, and write the table: calls, share of the (profiled) time,
    function.

    Raises:
        RuntimeError: this Python cannot profile two threads.
    """
    if setting.calls_folder is None:
        yield
        return
    if sys.version_info >= (3, 12):
        raise RuntimeError("calls are counted per thread, which needs CPython 3.11")
    of_task, of_loop, is_over = cProfile.Profile(), cProfile.Profile(), threading.Event()
    loop.execute_threadsafe(of_loop.enable)
    of_task.enable()
    try:
        yield
    finally:
        of_task.disable()
        loop.execute_threadsafe(of_loop.disable)
        loop.execute_threadsafe(is_over.set)
        is_over.wait(_TIMEOUT_S)
        _write(file_of(setting, side), of_task, of_loop)


def _write(file: Path, *profiles: cProfile.Profile) -> None:
    merged: Any = pstats.Stats(*profiles)  # its table is not part of its types
    total_s = sum(own_s for _, _, own_s, _, _ in merged.stats.values()) or 1.0
    rows = sorted(merged.stats.items(), key=lambda row: -row[1][2])
    lines = [f"{merged.total_calls} calls"]
    for (path, line, name), (_, calls, own_s, _, _) in rows[:_NUM_LINES]:
        lines.append(f"{calls:9} {100 * own_s / total_s:5.1f} %  {'/'.join(Path(path).parts[-3:])}:{line} {name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
