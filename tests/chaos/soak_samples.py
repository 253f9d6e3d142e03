"""Samples of the memory, files and threads of a cluster's processes, and whether they grow.

Side:       pure, but for ``sample``.
Units:      MiB, counts; slopes per hour.
Source:     the slope is the median of the slopes of all pairs of samples (Theil and Sen); outliers do not move it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import psutil

WARM_UP_SHARE: Final = 0.25  # of the samples of a process, which show how it fills its caches
_MORE_WITH_TASKS: Final = 5  # threads: the fewest that tasks of the soak add


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time."""

    at_s: float
    rss_mib: float
    fds: int
    threads: int

    def __str__(self) -> str:
        return f"{self.rss_mib:.0f} MiB {self.fds} fds {self.threads} threads"


@dataclass(frozen=True, slots=True)
class Trend:
    """How the samples of one process go on: first and last value after the warm-up, and slopes per hour."""

    name: str
    seconds: float
    rss_mib: tuple[float, float, float]
    fds: tuple[float, float, float]
    threads: tuple[float, float, float]

    def __str__(self) -> str:
        parts = []
        for word, (first, last, slope) in (("MiB", self.rss_mib), ("fds", self.fds), ("threads", self.threads)):
            parts.append(f"{first:.0f} -> {last:.0f} {word} ({slope:+.1f}/h)")
        return f"{self.name}, {self.seconds:.0f} s: {', '.join(parts)}"

    def grown(self, more_mib: float) -> str | None:
        """Return an error if its memory has grown by more, by its slope over the time that was watched."""
        growth = self.rss_mib[2] * self.seconds / 3600
        if growth <= more_mib:
            return None
        return f"{self.name} has {growth:.1f} MiB more after {self.seconds:.0f} s, at most {more_mib:g} are right"


def left_over(name: str, idle: Sample, end: Sample, more_fds: int, more_threads: int) -> list[str]:
    """Return the files and threads that a process without tasks holds beyond those of an idle process before the
    soak.
    """
    watched = (("fds", more_fds, idle.fds, end.fds), ("threads", more_threads, idle.threads, end.threads))
    return [
        f"{name} has {after} {word} without any task, {before} before the soak"
        for word, limit, before, after in watched
        if after > before + limit
    ]


def sample(pid: int, at_s: float = 0.0) -> Sample | None:
    """Return a sample of the process; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return Sample(at_s, process.memory_info().rss / 2**20, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def trend_of(name: str, samples: Sequence[Sample]) -> Trend | None:
    """The trend after the warm-up, of the samples that were taken while the process had its tasks; None: there are too
    few.

    A TaskManager that replaces another one, or is spare, may wait for tasks for most of its life.  It has them while it
    has more threads than halfway between its fewest and its most; where these are about as many, it had them all the
    time.
    """
    threads = [each.threads for each in samples] or [0]
    fewest, most = min(threads), max(threads)
    busy = (
        [each for each in samples if each.threads > (fewest + most) / 2]
        if most >= fewest + _MORE_WITH_TASKS
        else samples
    )
    used = busy[int(len(busy) * WARM_UP_SHARE) :]
    if len(used) < 3:
        return None
    return Trend(
        name,
        used[-1].at_s - used[0].at_s,
        _line([(each.at_s, each.rss_mib) for each in used]),
        _line([(each.at_s, float(each.fds)) for each in used]),
        _line([(each.at_s, float(each.threads)) for each in used]),
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    slopes = [
        (later - earlier) / (later_s - earlier_s)
        for at, (earlier_s, earlier) in enumerate(points)
        for later_s, later in points[at + 1 :]
        if later_s > earlier_s
    ]
    return points[0][1], points[-1][1], median(slopes) * 3600
