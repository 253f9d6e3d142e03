"""Several gates that a task reads as if they were one.

Side:       shared.  The task thread polls; gates become available on any thread.
Hot path:   per buffer.
Invariants: those of ``InputQueue``.  A gate stands in the queue, or its future will put it there; it is taken out
            before it is polled; the future of the union stays done once every gate is finished.  The channels of gate n
            come after those of gate n - 1, in their own order.
Lock order: gates are polled outside the lock of the queue, which is a leaf.
Source:     Flink ``UnionInputGate``.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netstack.availability import AvailabilityFuture, run_all
from netstack.gate.input_gate import (
    BatchInputGate,
    BufferOrEvent,
    EndOfDataStatus,
    InputQueue,
)
from netstack.wire.events import EndOfPartition, Event

_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class _Member:
    """One gate of the union."""

    __slots__ = ("first_channel", "gate", "is_prioritized", "is_queued", "watched", "watched_priority")

    def __init__(self, gate: BatchInputGate, first_channel: int) -> None:
        self.gate = gate
        self.first_channel = first_channel
        # Guarded by the union's lock.
        self.is_queued = False
        self.is_prioritized = False
        # Written by the task thread: the futures that will queue this member; a future must not collect a callback per
        # poll.
        self.watched: AvailabilityFuture | None = None
        self.watched_priority: AvailabilityFuture | None = None


class UnionInputGate(InputQueue[_Member]):
    """Reads its gates in turns, those with priority events first.

    Life cycle: made of gates that have all their channels -> ``request_partitions`` -> polled until ``is_finished`` ->
        ``close``.
    """

    def __init__(self, gates: Sequence[BatchInputGate], *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        if not gates:
            raise ValueError("a union of no gates")
        super().__init__(clock_ns)
        self._members: list[_Member] = []
        self._member_of_channel: list[_Member] = []
        for gate in gates:
            member = _Member(gate, len(self._member_of_channel))
            self._members.append(member)
            self._member_of_channel += [member] * gate.num_channels
        for member in self._members:
            self._watch_priority(member)
            self._watch(member)

    def __repr__(self) -> str:
        return f"<UnionInputGate {[member.gate for member in self._members]!r}>"

    @property
    def num_channels(self) -> int:
        """How many channels all its gates have."""
        return len(self._member_of_channel)

    @property
    def is_finished(self) -> bool:
        """Whether every gate is finished."""
        return all(member.gate.is_finished for member in self._members)

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        """Drained if all gates are, stopped if one is."""
        found = {member.gate.end_of_data_status for member in self._members}
        if EndOfDataStatus.NOT_END_OF_DATA in found:
            return EndOfDataStatus.NOT_END_OF_DATA
        return EndOfDataStatus.STOPPED if EndOfDataStatus.STOPPED in found else EndOfDataStatus.DRAINED

    # ---------------------------------------------------------------- polling

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, gates taking turns; None if there is none now.  Never blocks.  Task thread.

        Raises:
            ResourceClosedError: a gate was closed.
            NetstackError: what the gate whose turn it was raised; it is raised again at its next turn.
        """
        while True:
            with self._lock:
                member = self._queue.poll()
                if member is None:
                    return None
                member.is_queued = member.is_prioritized = False
            found = self._poll(member)
            if found is not None:
                return found

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """Data of the gates whose turn it is; nothing if the first one has something else.

        Never blocks.  Task thread.
        """
        with self._lock:
            queue = self._queue
            if queue.priority or not queue.rest:
                return []
            members = [queue.rest.popleft() for _ in range(min(len(queue.rest), max_buffers))]
            for member in members:
                member.is_queued = False
        share = max_buffers if len(members) == 1 else 1
        found: list[tuple[_Member, list[BufferOrEvent]]] = []
        for member in members:
            items = member.gate.poll_data(share)
            if not items:
                break
            found.append((member, items))
        more_priority_events = self._settle(
            [(member, items[-1].more_available, items[-1].more_priority_events) for member, items in found],
            members[len(found) :],
        )
        return self._as_items(found, more_priority_events=more_priority_events)

    def _as_items(
        self, found: Sequence[tuple[_Member, list[BufferOrEvent]]], *, more_priority_events: bool
    ) -> list[BufferOrEvent]:
        """What the union says of data that its gates yielded."""
        merged = [
            _new(BufferOrEvent, (member.first_channel + index, buffer, event, True, more_priority_events, size))
            for member, items in found
            for index, buffer, event, _, _, size in items
        ]
        if merged and not self._queue:
            merged[-1] = merged[-1]._replace(more_available=False)
        return merged

    def _poll(self, member: _Member) -> BufferOrEvent | None:
        gate = member.gate
        if gate.is_finished:  # its future stays done
            self._requeue([(member, False, False)])
            return None
        found = None
        is_failed = True
        try:
            found = gate.poll_next()
            is_failed = False
        finally:
            is_more = is_failed or (found is not None and (found.more_available or found.more_priority_events))
            has_priority = found is not None and found.more_priority_events
            more_priority_events = self._requeue([(member, is_more, has_priority)])
        self._watch_again(member, is_more=is_more, has_priority=has_priority)
        more_available = bool(self._queue)
        if found is None:
            return None
        if isinstance(found.event, EndOfPartition) and self.is_finished:
            more_available = False
        index = member.first_channel + found.channel_index
        return BufferOrEvent(index, found.buffer, found.event, more_available, more_priority_events, found.size)

    def _watch_again(self, member: _Member, *, is_more: bool, has_priority: bool) -> None:
        """Have ``member`` queued when it has what it did not have now."""
        if not has_priority:
            self._watch_priority(member)
        if not is_more and not member.gate.is_finished:
            self._watch(member)

    def _settle(self, polled: Sequence[tuple[_Member, bool, bool]], unpolled: Sequence[_Member]) -> bool:
        """``_requeue``, and have those queued later that have nothing more now."""
        more_priority_events = self._requeue(polled, unpolled)
        for member, is_more, has_priority in polled:
            self._watch_again(member, is_more=is_more, has_priority=has_priority)
        return more_priority_events

    def _requeue(self, polled: Sequence[tuple[_Member, bool, bool]], unpolled: Sequence[_Member] = ()) -> bool:
        """Put back who was polled and has more (and whether with priority), and in front who was not; whether anything
        has priority.
        """
        pending = None
        with self._lock:
            queue = self._queue
            for member, is_more, has_priority in polled:
                if is_more:
                    self._enqueue_locked(member, has_priority=has_priority)
            for member in reversed(unpolled):
                if not member.is_queued:
                    member.is_queued = True
                    queue.rest.appendleft(member)
            if queue.priority:
                pending = self._priority_availability.unavailable_to_reset_available()
            else:
                self._priority_availability.reset_unavailable()
            if not queue and not self.is_finished:
                self._availability.reset_unavailable()
            more_priority_events = bool(queue.priority)
        if pending is not None:
            pending.complete()
        return more_priority_events

    # ---------------------------------------------------------------- availability of the gates

    def _watch(self, member: _Member) -> None:
        """Have ``member`` queued when it becomes available; at once if it is."""
        if member.watched is not None and not member.watched.is_done:
            return  # a gate replaces its future only once it is done
        future = member.watched = member.gate.available_future()
        future.add_done_callback(partial(self._on_available, member, has_priority=False))

    def _watch_priority(self, member: _Member) -> None:
        """Have ``member`` queued with priority when it has a priority event; at once if it has one."""
        if member.watched_priority is not None and not member.watched_priority.is_done:
            return
        future = member.watched_priority = member.gate.priority_event_available_future()
        future.add_done_callback(partial(self._on_available, member, has_priority=True))

    def _on_available(self, member: _Member, *, has_priority: bool) -> None:
        # Whoever tells of a priority event may come late: it may have been polled meanwhile, as something that its gate
        # had anyway.
        has_priority = has_priority and member.gate.priority_event_available_future().is_done
        with self._lock:
            self._enqueue_locked(member, has_priority=has_priority)
            futures = [self._availability.unavailable_to_reset_available()]
            if has_priority:
                futures.append(self._priority_availability.unavailable_to_reset_available())
        run_all([future.complete for future in futures if future is not None])

    # ------------------------------------------------------ orders, each to the gate of the channel, or to all

    def request_partitions(self) -> None:
        """Let every gate ask for its data.

        Raises:
            ResourceClosedError: a gate was closed.
        """
        for member in self._members:
            member.gate.request_partitions()

    def resume_consumption(self, channel_index: int) -> None:
        """Let the producer behind a channel go on after a blocking event."""
        member = self._member_of_channel[channel_index]
        member.gate.resume_consumption(channel_index - member.first_channel)

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""
        member = self._member_of_channel[channel_index]
        member.gate.acknowledge_all_records_processed(channel_index - member.first_channel)

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producers of all channels.

        Raises:
            NetstackError: as a gate does.
        """
        for member in self._members:
            member.gate.send_task_event(event)

    def close(self) -> None:
        """Close every gate."""
        run_all([member.gate.close for member in self._members])

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        self._check_queue(self._members, has_ended=self.is_finished, is_closed=False)
