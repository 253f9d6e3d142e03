"""Computes how far the sources of an alignment group may run ahead: the JobManager's part of watermark alignment.

Announces to the sources of a job, at an interval, how far their alignment groups may run.

Side:       loop.
Invariants: a group allows its smallest reported watermark plus the drift.  Subtasks that are idle or finished (they
            report ``MAX_TIMESTAMP``), were forgotten, or have not reported yet do not hold back the others.  one timer
            per group, from ``start`` to ``close``; nothing is sent after ``close``, or to a subtask that has not
            reported.
Units:      milliseconds.
Source:     Flink ``SourceCoordinator`` (``announceCombinedWatermark``), ``WatermarkAggregator``,
            ``WatermarkAlignmentParams``, FLIP-182.  Flink ``SourceCoordinator.announceCombinedWatermark``.
Absent:     timers and messages; see ``watermark_announcer``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import field

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.records import MAX_TIMESTAMP
from netstack.late import dataclass
from netstack.loop.loop_timers import Cancellable, ScheduleTimer


@dataclass(frozen=True, slots=True, order=True)
class SourceSubtask:
    """One subtask of a source."""

    source_id: str
    subtask: int


@dataclass(frozen=True, slots=True)
class MaxAllowedWatermark:
    """A subtask must not emit while its watermark is above ``timestamp``."""

    receiver: SourceSubtask
    timestamp: int


@dataclass(slots=True)
class _Group:
    update_interval_ms: int
    drifts_ms: dict[str, int] = field(default_factory=dict)  # by source
    watermarks: dict[SourceSubtask, int] = field(default_factory=dict)


class WatermarkAlignmentGroups:
    """All alignment groups of one job.  Threading: one thread."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}  # by source

    def __repr__(self) -> str:
        return (
            "<WatermarkAlignmentGroups "
            f"{', '.join(f'{name} at {self.combined_watermark(name)}' for name in sorted(self._groups))}>"
        )

    def add_source(self, source_id: str, alignment: WatermarkAlignment) -> None:
        """Add a source to its group.  Raises ValueError: the source is in a group already."""
        if source_id in self._group_of:
            raise ValueError(f"source {source_id} belongs to the alignment group {self._group_of[source_id]!r} already")
        group = self._groups.setdefault(alignment.group, _Group(alignment.update_interval_ms))
        group.update_interval_ms = min(group.update_interval_ms, alignment.update_interval_ms)
        group.drifts_ms[source_id] = alignment.max_drift_ms
        self._group_of[source_id] = alignment.group

    def update_intervals_ms(self) -> dict[str, int]:
        """How often each group is announced: the shortest interval of its sources."""
        return {name: group.update_interval_ms for name, group in self._groups.items()}

    def report(self, sender: SourceSubtask, watermark: int) -> None:
        """Record a subtask's watermark, which may be lower than its last one after a restart.

        Raises:
            KeyError: its source is in no group.
        """
        self._of(sender).watermarks[sender] = watermark

    def forget(self, subtask: SourceSubtask) -> None:
        """Leave out a subtask that failed or was cancelled, until it reports again.

        Raises KeyError: its source is in no group.
        """
        self._of(subtask).watermarks.pop(subtask, None)

    def combined_watermark(self, group_name: str) -> int:
        """The smallest watermark of a group; ``MAX_TIMESTAMP`` if no subtask holds it back."""
        return min(self._groups[group_name].watermarks.values(), default=MAX_TIMESTAMP)

    def announce(self, group_name: str) -> list[MaxAllowedWatermark]:
        """What to send now: the allowed watermark of every subtask that has reported."""
        combined = self.combined_watermark(group_name)
        group = self._groups[group_name]
        return [
            MaxAllowedWatermark(subtask, min(combined + group.drifts_ms[subtask.source_id], MAX_TIMESTAMP))
            for subtask in sorted(group.watermarks)
        ]

    def _of(self, subtask: SourceSubtask) -> _Group:
        return self._groups[self._group_of[subtask.source_id]]


def _call_later(delay_s: float, callback: Callable[[], None]) -> Cancellable:
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
        call_later: ScheduleTimer = _call_later,
    ) -> None:
        self._allow = allow
        self._call_later = call_later
        self._groups = WatermarkAlignmentGroups()
        self._sources: set[str] = set()
        self._timers: dict[str, Cancellable] = {}
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
