"""Announces to the sources of a job, at an interval, how far their alignment groups may run.

Side:       loop.
Invariants: one timer per group, from ``start`` to ``close``; nothing is sent after ``close``, or to a subtask that has
            not reported.
Source:     Flink ``SourceCoordinator.announceCombinedWatermark``.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.alignment.watermark_alignment import SourceSubtask, WatermarkAlignmentGroups
from flowlet.rpc.control_messages import JobGraphMessage


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make the call."""


def _call_later(delay_s: float, callback: Callable[[], None]) -> Handle:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class WatermarkAnnouncer:
    """The watermark alignment of one job; ``allow`` sends a subtask its allowed watermark.

    Threading: the JobManager's loop.
    Life cycle: ``start`` once tasks are deployed; ``close`` when no task is left, idempotent; then ``start`` may follow
        again.
    """

    def __init__(
        self,
        job: JobGraphMessage,
        allow: Callable[[SourceSubtask, int], None],
        call_later: Callable[[float, Callable[[], None]], Handle] = _call_later,
    ) -> None:
        self._allow = allow
        self._call_later = call_later
        self._groups = WatermarkAlignmentGroups()
        self._sources: set[str] = set()
        self._timers: dict[str, Handle] = {}
        for vertex in job.vertices:
            if (found := vertex.watermark_alignment) is not None:
                self._groups.add_source(
                    vertex.id, WatermarkAlignment(found.group, found.max_drift_ms, found.update_interval_ms)
                )
                self._sources.add(vertex.id)

    def __repr__(self) -> str:
        return f"<WatermarkAnnouncer of {self._groups!r}, {len(self._timers)} timers>"

    def start(self) -> None:
        """Start to announce each group at its update interval; does nothing while it does so."""
        if self._timers:
            return
        for group, interval_ms in self._groups.update_intervals_ms().items():
            self._schedule(group, interval_ms)

    def report(self, subtask: SourceSubtask, timestamp: int) -> bool:
        """Record a subtask's watermark; False if its source is in no group."""
        if subtask.source_id not in self._sources:
            return False
        self._groups.report(subtask, timestamp)
        return True

    def forget(self, subtask: SourceSubtask) -> None:
        """Leave out a subtask that has ended; ignored if its source is in no group."""
        if subtask.source_id in self._sources:
            self._groups.forget(subtask)

    def close(self) -> None:
        """Stop announcing."""
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()

    def _schedule(self, group: str, interval_ms: int) -> None:
        self._timers[group] = self._call_later(interval_ms / 1000, lambda: self._announce(group, interval_ms))

    def _announce(self, group: str, interval_ms: int) -> None:
        self._schedule(group, interval_ms)
        for allowed in self._groups.announce(group):
            self._allow(allowed.receiver, allowed.timestamp)
