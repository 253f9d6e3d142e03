"""Assigns the splits of one source to its readers (``SourceCoordinator``, which begins anew with its region); computes
how far the sources of an alignment group may run ahead, and tells them at an interval (``WatermarkAnnouncer``).

Side:       loop.
Invariants: the enumerator discovers or restores its splits on a thread of its own; requests that arrive before it is
            done are answered then, in their order.  Until then, a snapshot is what the coordinator began with.  After
            ``close`` or a failure no request is answered, and ``fail`` is not called again.  A reader for which there
            is nothing waits if new splits may appear, or if another source follows.  The splits of that one are
            discovered as the first ones were, once all readers have come to it.  All subtasks of such a source are in
            one region.  A group of aligned sources allows its smallest reported watermark plus the drift.  Subtasks
            that are idle or finished (they report ``MAX_TIMESTAMP``), were forgotten, or have not reported yet do not
            hold back the others.  One timer per group, from ``start`` to ``close``; no watermark is sent after
            ``close``, or to a subtask that has not reported.
Rules:      looking for new splits again is no reason to fail a job that runs: a failure is logged, and it is tried at
            the next interval.
Source:     Flink ``SourceCoordinator``, ``SourceCoordinatorContext``, ``RequestSplitEvent``, ``AddSplitEvent``,
            ``NoMoreSplitsEvent``, ``OperatorCoordinatorHandler``.
Absent:     reassigning the splits of a failed reader: all readers of a source restart together.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import InitVar, field
from functools import partial
from typing import Any, Final

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.records import MAX_TIMESTAMP
from flowlet.splits.enumerator import SplitEnumerator
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import CallInBackground, call_in_background
from netstack.loop.eventloop import Cancellable, ScheduleTimer

_log = LogLines(__name__)
_STATE_VERSION: Final = 1
_State = tuple[int, bytes | None]  # the version; the enumerator's state, None: its splits were not discovered
_state_decoder: Final = msgspec.msgpack.Decoder(_State)
_NOT_DISCOVERED: Final = msgspec.msgpack.encode((_STATE_VERSION, None))
_NEW_THREAD: Final[CallInBackground] = call_in_background
MessageFor = Callable[[bytes], messages.AddSplits | messages.NoMoreSplits]
"""Makes a message for an attempt."""


@dataclass(slots=True, eq=False)
class SourceCoordinator:
    """The split enumerator of one source vertex, and the readers that wait for it.

    Threading: the JobManager's loop.
    Life cycle: ``start`` once the tasks are deployed; ``close`` when the job no longer runs, idempotent.

    Args:
        enumerator: neither ``discover`` nor ``restore`` has been called yet.
        num_readers: the parallelism of the vertex.
        send: sends the newest attempt of a subtask its splits, or that all are assigned.
        fail: fails the job, with the error and the name of the vertex; called at most once.
        call_later: calls a function on this thread after so many seconds.
        restored: what ``snapshot`` gave for the checkpoint from which the job goes on; None: it begins anew.
    """

    vertex_id: str
    name: str
    enumerator: SplitEnumerator
    num_readers: int
    send: Callable[[Subtask, MessageFor], None]
    fail: Callable[[Exception, str], None]
    call_in_background: CallInBackground = _NEW_THREAD
    call_later: ScheduleTimer | None = None
    restored: bytes | None = None
    # Subtasks that asked before the enumerator was ready; None: it is ready.
    _waiting: list[int] | None = field(init=False, default_factory=list)
    _state: bytes = field(init=False)  # the state that the enumerator begins with
    _is_closed: bool = field(init=False, default=False)
    _timer: Cancellable | None = field(init=False, default=None)  # of the next search
    # Subtasks that asked, and for which there are no splits yet.
    _without: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._state = _NOT_DISCOVERED if self.restored is None else self.restored

    def __repr__(self) -> str:
        waiting = "" if self._waiting is None else f", {len(self._waiting)} readers wait"
        return f"<SourceCoordinator of {self.name!r}, {'closed' if self._is_closed else self.enumerator}{waiting}>"

    def start(self) -> None:
        """Start to discover the splits, or take them from the checkpoint."""
        self.call_in_background(self._prepare, self._prepared, self._failed, f"splits of {self.name}")

    def snapshot(self) -> bytes:
        """Return the splits that are not assigned, for a checkpoint whose triggers are sent before another request is
        answered.
        """
        # Another thread works in the enumerator.
        if self._waiting is not None:
            return self._state
        return msgspec.msgpack.encode((_STATE_VERSION, self.enumerator.snapshot()))

    def splits_requested(self, subtask: int) -> None:
        """Send the subtask its next splits, or that none are left."""
        if self._is_closed:
            return
        # Another thread has the enumerator: the answer follows when it is done, in the order of the requests.
        if self._waiting is not None:
            self._waiting.append(subtask)
            return
        splits = self.enumerator.next_splits(subtask)
        if splits:
            self._without.discard(subtask)
            waiting_bytes = self.enumerator.waiting_bytes
            order = partial(messages.AddSplits, splits=list(splits), waiting_bytes=waiting_bytes)
            self.send(Subtask(self.vertex_id, subtask), order)
        elif not self.enumerator.is_discovered:
            self._begin_next_source(subtask)
        elif self.enumerator.discovery_interval_ms is not None or self.enumerator.has_next_source:
            # Remembered: it asks once, and gets what is found later.
            self._without.add(subtask)
        else:
            self.send(Subtask(self.vertex_id, subtask), messages.NoMoreSplits)

    def close(self) -> None:
        """Answer no further requests; a ``discover`` that is under way ends by itself."""
        self._is_closed = True
        if self._timer is not None:  # it would keep all splits until the next search was due
            self._timer.cancel()
            self._timer = None

    def _begin_next_source(self, last_reader: int) -> None:
        """Discover the splits of the next source; until then the state is that at its beginning, and
        all readers wait.
        """
        # First: from the next line on a snapshot is this state.
        self._state = self.snapshot()
        self._waiting = sorted({*self._without, last_reader})
        self._without.clear()
        self.start()

    def _prepare(self) -> None:
        """Discover or restore the splits, on a thread of its own; the loop leaves the enumerator alone until it has
        returned.
        """
        try:
            version, state = _state_decoder.decode(self._state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(
                f"the state of source {self.name!r} in a checkpoint cannot be read: {error}"
            ) from error
        if version != _STATE_VERSION:
            raise StateRestoreError(
                f"the state of source {self.name!r} has version {version}, this flowlet reads {_STATE_VERSION}"
            )
        if state is None:
            self.enumerator.discover(self.num_readers)
        else:
            self.enumerator.restore(state, self.num_readers)

    def _prepared(self, _: None) -> None:
        # Emptied first: from here on a request is answered at once.
        waiting, self._waiting = self._waiting, None
        for subtask in waiting or ():
            self.splits_requested(subtask)
        self._search_later()

    def _search_later(self) -> None:
        interval_ms = self.enumerator.discovery_interval_ms
        if interval_ms is not None and not self._is_closed:
            call_later = self.call_later or asyncio.get_running_loop().call_later
            self._timer = call_later(interval_ms / 1000, self._search)

    def _search(self) -> None:
        self._timer = None
        if not self._is_closed:
            self.call_in_background(self.enumerator.find_new, self._found, self._not_found, f"splits of {self.name}")

    def _found(self, found: Sequence[Any]) -> None:
        # The search ran on: its result is of a run that is over.
        if self._is_closed:
            return
        self.enumerator.add_found(found)
        if found:
            _log.info("new splits appeared", source=self.name, num_splits=len(found))
            for subtask in sorted(self._without):
                self.splits_requested(subtask)
        self._search_later()

    def _not_found(self, error: Exception) -> None:
        if not self._is_closed:
            _log.warning("new splits could not be looked for, it is tried again", source=self.name, error=str(error))
            self._search_later()

    def _failed(self, error: Exception) -> None:
        if not self._is_closed:
            # Before the failure is told: the readers that still ask must not be answered.
            self.close()
            self.fail(error, self.name)


@dataclass(slots=True)
class _Group:
    update_interval_ms: int  # the shortest one of its sources
    drifts_ms: dict[str, int] = field(default_factory=dict)  # by source
    watermarks: dict[Subtask, int] = field(default_factory=dict)

    def combined_watermark(self) -> int:
        """Return the smallest watermark; ``MAX_TIMESTAMP`` if no subtask holds it back."""
        return min(self.watermarks.values(), default=MAX_TIMESTAMP)


@dataclass(eq=False, repr=False)
class WatermarkAnnouncer:
    """The watermark alignment of one job; ``send`` sends a message to the newest attempt of a subtask.

    Threading: the JobManager's loop.
    Life cycle: ``start`` once tasks are deployed; ``close`` when no task is left, idempotent; then ``start`` may follow
        again.
    """

    job: InitVar[JobGraphMessage]
    send: Callable[[Subtask, Callable[[bytes], messages.AllowSourceWatermark]], None]
    call_later: ScheduleTimer | None = None
    _groups: dict[str, _Group] = field(init=False, default_factory=dict)
    _group_of: dict[str, _Group] = field(init=False, default_factory=dict)  # by source
    _timers: dict[str, Cancellable] = field(init=False, default_factory=dict)

    def __post_init__(self, job: JobGraphMessage) -> None:
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
        """Start to announce each group at its update interval; does nothing if it has started."""
        if not self._timers:
            for name, group in self._groups.items():
                self._schedule(name, group)

    def report(self, subtask: Subtask, timestamp: int) -> bool:
        """Record a subtask's watermark, which may be lower than its last one after a restart; False if its source is in
        no group.
        """
        group = self._group_of.get(subtask.vertex_id)
        if group is not None:
            # Also a lower one: after a restart a subtask reads old records again.
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
        call_later = self.call_later or asyncio.get_running_loop().call_later
        self._timers[name] = call_later(group.update_interval_ms / 1000, lambda: self._announce(name, group))

    def _announce(self, name: str, group: _Group) -> None:
        # First: a message that cannot be sent must not end the announcements.
        self._schedule(name, group)
        combined = group.combined_watermark()
        # Those that have reported: others may not be deployed yet.
        for subtask in sorted(group.watermarks):
            max_allowed = min(combined + group.drifts_ms[subtask.vertex_id], MAX_TIMESTAMP)
            self.send(subtask, partial(messages.AllowSourceWatermark, max_allowed=max_allowed))
