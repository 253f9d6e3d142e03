"""The inputs of a gate that have data, in the order of their turns, and the futures that say whether there are any.

Side:       shared.  The task thread takes inputs out; any thread puts them in.
Hot path:   per buffer; gates work with ``_queue`` themselves, under ``_lock``.
Invariants: an input stands in the queue at most once, and knows whether it does, and whether with priority; the future
            is done exactly when the queue is not empty, the priority future exactly when an input is queued with
            priority, and both as their gate says when it has ended.
Lock order: ``InputQueue._lock`` is a leaf: inputs are polled and futures completed outside it (FLINK-18595,
    FLINK-22946).
Source:     Flink ``InputGate`` (both ``AvailabilityHelper``s), ``SingleInputGate.inputChannelsWithData``,
            ``UnionInputGate.inputGatesWithData``.
"""

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.gate.channels.prioritized_deque import PrioritizedDeque
from netstack.loop.wakeups import run_all


class QueuedInput(Protocol):
    """A channel, or a gate of a union."""

    is_queued: bool  # Guarded by the queue's lock.
    is_prioritized: bool  # Guarded by the queue's lock.


T = TypeVar("T", bound=QueuedInput)


class InputQueue(Generic[T]):
    """Base of the gates: a gate of channels, and a union of gates.

    Threading: methods that end in ``_locked`` need ``_lock``, the others must not have it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: PrioritizedDeque[T] = PrioritizedDeque()
        self._availability = AvailabilityHelper()
        self._priority_availability = AvailabilityHelper()

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something (or the gate is finished or closed), else completed when it may."""
        with self._lock:
            return self._availability.future

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled (or the gate is closed), else completed when one comes."""
        with self._lock:
            return self._priority_availability.future

    def _enqueue_locked(self, each: T, *, has_priority: bool) -> None:
        """Put ``each`` where it belongs; it may be queued already."""
        queue = self._queue
        if not each.is_queued:
            each.is_queued = True
            each.is_prioritized = has_priority
            (queue.priority if has_priority else queue.rest).append(each)
        elif has_priority and not each.is_prioritized:
            queue.rest.remove(each)
            queue.priority.append(each)
            each.is_prioritized = True

    def _remove_locked(self, each: T) -> None:
        """Take ``each`` out, if it is queued."""
        if each.is_queued:
            self._queue.get_and_remove(lambda other: other is each)
            each.is_queued = each.is_prioritized = False

    def _clear_locked(self) -> None:
        for each in self._queue:
            each.is_queued = each.is_prioritized = False
        self._queue.clear()

    def _become_available_locked(self, *, with_priority: bool) -> list[AvailabilityFuture]:
        """The futures to complete after the lock: of priority events, if ``with_priority``, and of data."""
        found = [self._priority_availability.unavailable_to_reset_available()] if with_priority else []
        found.append(self._availability.unavailable_to_reset_available())
        return [future for future in found if future is not None]

    def _make_available(self, *, with_priority: bool = False) -> None:
        """Wake who waits for data, and with priority who waits for a priority event."""
        with self._lock:
            futures = self._become_available_locked(with_priority=with_priority)
        run_all([future.complete for future in futures])

    def _check_queue(self, inputs: Sequence[T], *, has_ended: bool, is_closed: bool) -> None:
        """Assert the invariants of this module; ``has_ended``: the future stays done, ``is_closed``: so does that of
        priority events.
        """
        with self._lock:
            queued = list(self._queue)
            assert len({id(each) for each in queued}) == len(queued), "an input is queued twice"
            assert all(each.is_queued for each in queued), "a queued input does not know it"
            assert all(each.is_prioritized for each in self._queue.priority), "a prioritized input does not know it"
            assert sum(each.is_queued for each in inputs) == len(queued), "an input believes it is queued"
            is_available = bool(queued) or has_ended
            assert self._availability.is_available == is_available, (
                f"{len(queued)} inputs have data, but {self._availability.future!r}"
            )
            has_priority = bool(self._queue.priority) or is_closed
            assert self._priority_availability.is_available == has_priority, (
                f"priority: {self._priority_availability.future!r}"
            )
