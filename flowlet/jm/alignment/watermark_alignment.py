"""``WatermarkAnnouncer``: computes how far the sources of an alignment group may run ahead, and tells them at an
interval: the JobManager's part of watermark alignment.

Side:       loop.
Invariants: a group allows its smallest reported watermark plus the drift.  Subtasks that are idle or finished (they
            report ``MAX_TIMESTAMP``), were forgotten, or have not reported yet do not hold back the others.  one timer
            per group, from ``start`` to ``close``; nothing is sent after ``close``, or to a subtask that has not
            reported.
Units:      milliseconds.
Source:     Flink ``SourceCoordinator`` (``announceCombinedWatermark``), ``WatermarkAggregator``,
            ``WatermarkAlignmentParams``, FLIP-182.
"""

import asyncio
from collections.abc import Callable
from dataclasses import field
from functools import partial

from flowlet.graph.execution_events import Subtask
from flowlet.messages.control_messages import AllowSourceWatermark, JobGraphMessage
from flowlet.records import MAX_TIMESTAMP
from netstack.late import dataclass
from netstack.loop.loop_timers import Cancellable, ScheduleTimer


@dataclass(slots=True)
class _Group:
    update_interval_ms: int  # the shortest one of its sources
    drifts_ms: dict[str, int] = field(default_factory=dict)  # by source
    watermarks: dict[Subtask, int] = field(default_factory=dict)

    def combined_watermark(self) -> int:
        """The smallest watermark; ``MAX_TIMESTAMP`` if no subtask holds it back."""
        return min(self.watermarks.values(), default=MAX_TIMESTAMP)


def _call_later(delay_s: float, callback: Callable[[], None]) -> Cancellable:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class WatermarkAnnouncer:
    """The watermark alignment of one job; ``send`` sends a message to the newest attempt of a subtask.

    Threading: the JobManager's loop.
    Life cycle: ``start`` once tasks are deployed; ``close`` when no task is left, idempotent; then ``start`` may follow
        again.
    """

    def __init__(
        self,
        job: JobGraphMessage,
        send: Callable[[Subtask, Callable[[bytes], AllowSourceWatermark]], None],
        call_later: ScheduleTimer = _call_later,
    ) -> None:
        self._send = send
        self._call_later = call_later
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}  # by source
        self._timers: dict[str, Cancellable] = {}
        for vertex in job.vertices:
            if (found := vertex.watermark_alignment) is not None:
                group = self._groups.setdefault(found.group, _Group(found.update_interval_ms))
                group.update_interval_ms = min(group.update_interval_ms, found.update_interval_ms)
                group.drifts_ms[vertex.id] = found.max_drift_ms
                self._group_of[vertex.id] = group

    def __repr__(self) -> str:
        groups = ", ".join(f"{name} at {self._groups[name].combined_watermark()}" for name in sorted(self._groups))
        return f"<WatermarkAnnouncer of {groups}, {len(self._timers)} timers>"

    def start(self) -> None:
        """Start to announce each group at its update interval; does nothing while it does so."""
        if not self._timers:
            for name, group in self._groups.items():
                self._schedule(name, group)

    def report(self, subtask: Subtask, timestamp: int) -> bool:
        """Record a subtask's watermark, which may be lower than its last one after a restart; False if its source is in
        no group.
        """
        group = self._group_of.get(subtask.vertex_id)
        if group is not None:
            group.watermarks[subtask] = timestamp
        return group is not None

    def forget(self, subtask: Subtask) -> None:
        """Leave out a subtask that has ended, until it reports again; ignored if its source is in no group."""
        if (group := self._group_of.get(subtask.vertex_id)) is not None:
            group.watermarks.pop(subtask, None)

    def close(self) -> None:
        """Stop announcing."""
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()

    def _schedule(self, name: str, group: _Group) -> None:
        self._timers[name] = self._call_later(group.update_interval_ms / 1000, lambda: self._announce(name, group))

    def _announce(self, name: str, group: _Group) -> None:
        self._schedule(name, group)
        combined = group.combined_watermark()
        for subtask in sorted(group.watermarks):
            max_allowed = min(combined + group.drifts_ms[subtask.vertex_id], MAX_TIMESTAMP)
            self._send(subtask, partial(AllowSourceWatermark, max_allowed=max_allowed))
