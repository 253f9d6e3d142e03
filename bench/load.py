"""The other load of this machine during a measurement, and how quick the machine is just now.

Side:   any.
Units:  CPU seconds; cores = CPU seconds per second.
Source: proc(5): ``/proc/stat``, ``/proc/PID/stat``.
"""

import os
import statistics
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# User nice system idle iowait irq softirq steal; the later fields are contained in user and nice.
_NUM_BUSY_FIELDS: Final = 8
_NOT_BUSY: Final = (3, 4)  # idle, iowait
CALIBRATION_ROUNDS: Final = 5
_CALIBRATION_WORDS: Final = 200_000


class ForeignLoad:
    """Measures how many cores others used during a block; ``cores`` has the result once the block was left.

    Others are all processes that do not descend from this one, and the time that the hypervisor takes (``steal``).  A
    child that ended counts as ours once its parent waited for it; a daemon that left its parent counts as foreign.
    """

    def __init__(self) -> None:
        self.cores = 0.0
        self._start: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._start = (time.monotonic(), machine_cpu_s(), own_cpu_s())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        start_s, machine_s, own_s = self._start
        foreign_s = (machine_cpu_s() - machine_s) - (own_cpu_s() - own_s)
        self.cores = round(max(0.0, foreign_s / max(1e-9, time.monotonic() - start_s)), 3)


def machine_cpu_s() -> float:
    """Return the CPU time that all processes used since the machine started."""
    fields = (
        Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=_NUM_BUSY_FIELDS + 1)[1 : _NUM_BUSY_FIELDS + 1]
    )
    return sum(int(ticks) for index, ticks in enumerate(fields) if index not in _NOT_BUSY) / _TICKS_PER_S


def own_cpu_s() -> float:
    """Return the CPU time of this process and its descendants: the living ones, and the ones that ended and were waited
    for.
    """
    stats = {
        int(entry.name): stat for entry in Path("/proc").iterdir() if entry.name.isdigit() and (stat := _stat_of(entry))
    }
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += stats[pid][1]
        waiting += children.get(pid, [])
    return total / _TICKS_PER_S


def _stat_of(entry: Path) -> tuple[int, int] | None:
    """Return parent and ticks, also those of waited-for children; None if the process has ended."""
    try:
        fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(int(ticks) for ticks in fields[11:15])  # ppid; utime stime cutime cstime


def calibrate() -> float:
    """Return the words per second of a plain loop that splits and counts: how quick one core runs Python just now; the
    median of some rounds.
    """
    lines = [" ".join(f"word{number * step % 997}" for step in range(1, 11)) for number in range(200)]
    rates = []
    for _ in range(CALIBRATION_ROUNDS):
        counts: Counter[str] = Counter()
        start = time.thread_time()
        for _ in range(_CALIBRATION_WORDS // 2000):
            for line in lines:
                for word in line.split():
                    counts[word] += 1
        rates.append(_CALIBRATION_WORDS / (time.thread_time() - start))
    return statistics.median(rates)
