"""Finds the partitions of this process by their id.

``TaskEventDispatcher``: events that go against the stream, from a consumer to the task that produces its partition.

Side:       shared.
Invariants: a partition is registered from ``register`` to its release; a ``register`` that fails changes nothing;
            a consumer that asked too early is called exactly once, when the partition comes or when the manager shuts
            down (and then asks again and gets the answer).  An event reaches the handlers of its partition and kind
            only; handlers are called outside the lock, in the order of their subscription, on the publisher's thread.
Units:      timeouts in milliseconds.
Lock order: both locks are leaves: partitions, listeners and handlers are called after them (FLINK-28942).
Source:     Flink ``ResultPartitionManager`` with the partition request listeners of 1.18 and later;
            ``TaskEventDispatcher``, ``TaskEventHandler``.  A listener has a timer of its own instead of a check of all
            listeners now and then, so that it ends when its time is over and not up to twice as late.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from netstack.availability import run_all
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable, Timers
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import BufferAvailabilityListener, ResultSubpartitionView
from netstack.wire.events import Event

TaskEventCallback = Callable[[Event], None]


class TaskEventDispatcher:
    """The callbacks that listen to the consumers of each partition.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[ResultPartitionID, dict[object, list[TaskEventCallback]]] = {}  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<TaskEventDispatcher {len(self._handlers)} partitions>"

    def register_partition(self, partition_id: ResultPartitionID) -> None:
        """Accept events for ``partition_id``.

        Raises:
            LocalProtocolError: it is registered already.
        """
        with self._lock:
            if partition_id in self._handlers:
                raise LocalProtocolError(f"partition {partition_id} takes task events already")
            self._handlers[partition_id] = {}

    def unregister_partition(self, partition_id: ResultPartitionID) -> None:
        """Take no more events for ``partition_id``; nothing happens if it is not registered."""
        with self._lock:
            self._handlers.pop(partition_id, None)

    def subscribe(self, partition_id: ResultPartitionID, event_type: object, handler: TaskEventCallback) -> None:
        """Call ``handler`` with every event of a kind that a consumer of ``partition_id`` sends.

        ``event_type`` is the class of the event; or its ``class_name``, for events that are told apart by name.

        Raises:
            LocalProtocolError: the partition is not registered.
        """
        with self._lock:
            handlers = self._handlers.get(partition_id)
            if handlers is None:
                raise LocalProtocolError(f"partition {partition_id} takes no task events")
            handlers.setdefault(event_type, []).append(handler)

    def publish(self, partition_id: ResultPartitionID, event: Event) -> bool:
        """Call the handlers of ``event``'s kind; False if the partition is not registered (any more)."""
        with self._lock:
            handlers = self._handlers.get(partition_id)
            if handlers is None:
                return False
            # A copy: a handler may subscribe another one, or unregister the partition.
            found = [*handlers.get(type(event), ()), *handlers.get(getattr(event, "class_name", None), ())]
        # Outside the lock: a handler may send an event itself.  All of them, though one raises.
        run_all([partial(handler, event) for handler in found])
        return True

    def clear(self) -> None:
        """Forget every partition and handler."""
        with self._lock:
            self._handlers.clear()


@dataclass(slots=True, eq=False)
class _Waiting:
    """The request of a consumer for a partition that is not there yet."""

    partition_id: ResultPartitionID
    on_partition: Callable[[], None]
    timeout_ms: float | None
    on_timeout: Callable[[], None] | None
    # Both guarded by the manager's lock.
    is_over: bool = False
    timer: Cancellable | None = None

    def end(self) -> list[Callable[[], object]]:
        """Mark the wait as over; returns the calls to make outside the lock."""
        self.is_over = True
        return [] if self.timer is None else [self.timer.cancel]


class ResultPartitionManager:
    """All result partitions that can be read here.

    Threading: any thread.

    Args:
        timers: who times listeners out; without them a listener waits until its caller cancels it.
        task_events: where the consumers' events go; partitions are registered there too.
    """

    def __init__(self, *, timers: Timers | None = None, task_events: TaskEventDispatcher | None = None) -> None:
        self.task_events = TaskEventDispatcher() if task_events is None else task_events
        self._timers = timers
        self._lock = threading.Lock()
        # All below guarded by _lock; single look-ups go without it.
        self._partitions: dict[ResultPartitionID, ResultPartition] = {}
        self._listeners: dict[ResultPartitionID, list[_Waiting]] = {}
        self._announced: set[ResultPartitionID] = set()
        self._is_shut_down = False

    def __repr__(self) -> str:
        state = ", shut down" if self._is_shut_down else ""
        return f"<ResultPartitionManager {len(self._partitions)} partitions, {self.num_awaited} awaited{state}>"

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def num_awaited(self) -> int:
        """The number of partitions that are not registered and that consumers wait for."""
        return len(self._listeners)

    def announce(self, partition_ids: Iterable[ResultPartitionID]) -> None:
        """Note partitions that will be registered, however long that takes: until then, or ``withdraw``, no consumer
        that waits for them is timed out.

        For a producer that is being deployed: its code is fetched, and its packages are installed.
        """
        with self._lock:
            self._announced.update(partition_ids)

    def withdraw(self, partition_ids: Iterable[ResultPartitionID]) -> None:
        """Undo ``announce``: partitions that are not registered will not come; registered ones stay as they are."""
        with self._lock:
            self._announced.difference_update(partition_ids)

    def is_announced(self, partition_id: ResultPartitionID) -> bool:
        """Whether a partition is still to be registered here."""
        return partition_id in self._announced

    def register(self, partition: ResultPartition) -> None:
        """Make ``partition`` readable, until it is released, and call the waiting consumers.

        Raises:
            LocalProtocolError: its id is registered already.
            ResourceClosedError: the manager was shut down.
        """
        partition_id = partition.partition_id
        with self._lock:
            self._check_free_locked(partition_id)
        self.task_events.register_partition(partition_id)  # for us alone; before anybody finds the partition
        try:
            with self._lock:
                # Once more: the manager may have been shut down in between.
                self._check_free_locked(partition_id)
                self._partitions[partition_id] = partition
                # In this lock round: a timer in between would find the partition neither announced nor here, and end
                # the wait.
                self._announced.discard(partition_id)
                listeners = self._listeners.pop(partition_id, [])
                # After the lock: a partition that was released before calls back at once, and ``_remove`` takes the
                # lock.
                calls: list[Callable[[], object]] = [
                    lambda: partition.add_release_listener(lambda: self._remove(partition))
                ]
                # Each asks again now; nothing else would tell it before its time-out that the partition is here.
                for waiting in listeners:
                    calls += [*waiting.end(), waiting.on_partition]
        except BaseException:
            self.task_events.unregister_partition(partition_id)
            raise
        run_all(calls)

    def create_subpartition_view(
        self,
        partition_id: ResultPartitionID,
        index: int,
        listener: BufferAvailabilityListener,
        *,
        last: int | None = None,
    ) -> ResultSubpartitionView:
        """Make a view of subpartition ``index``, or of all from ``index`` to ``last``.

        Raises:
            PartitionNotFoundError: the partition is not registered, or was released.
            LocalProtocolError: there is no such subpartition, or it is read already.
        """
        # Without the lock, in one look-up: a partition that is released just now refuses the view itself.
        partition = self._partitions.get(partition_id)
        if partition is None:
            raise PartitionNotFoundError(f"partition {partition_id} is not registered")
        return partition.create_subpartition_view(index, listener, last)

    def create_view_or_listen(
        self,
        partition_id: ResultPartitionID,
        index: int,
        listener: BufferAvailabilityListener,
        on_partition: Callable[[], None],
        *,
        last: int | None = None,
        timeout_ms: float | None = None,
        on_timeout: Callable[[], None] | None = None,
    ) -> ResultSubpartitionView | None:
        """Make the view; or return None, and call ``on_partition`` once, on the registering thread, when it is worth to
        ask again.

        With ``timeout_ms`` the wait ends then, unless the partition is announced: ``on_timeout`` is called once,
        instead of ``on_partition``, on the timers' thread.

        Raises:
            PartitionNotFoundError: the partition was released just now.
            LocalProtocolError: there is no such subpartition, or it is read already.
            ResourceClosedError: the manager was shut down.
        """
        if timeout_ms is not None and self._timers is None:
            raise LocalProtocolError("a manager without timers cannot time a listener out")
        waiting = _Waiting(partition_id, on_partition, timeout_ms, on_timeout)
        with self._lock:
            self._check_open_locked()
            # One lock round for the look and the listener: a partition that comes in between would call nobody.
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._listeners.setdefault(partition_id, []).append(waiting)
        if partition is not None:
            return partition.create_subpartition_view(index, listener, last)
        self._start_timer(waiting)
        return None

    def cancel_listener(self, partition_id: ResultPartitionID, on_partition: Callable[[], None]) -> bool:
        """Do not call ``on_partition`` any more; False: it was called, or is about to be, or never waited."""
        with self._lock:
            found = next(
                # Equal, not identical: each access to a bound method makes another object.
                (waiting for waiting in self._listeners.get(partition_id, ()) if waiting.on_partition == on_partition),
                None,
            )
            calls = [] if found is None else self._end_locked(found)
        run_all(calls)
        return found is not None

    def release(self, partition_id: ResultPartitionID, cause: BaseException | None) -> None:
        """Release a partition, if it is here; its readers learn ``cause``."""
        # Without the lock, in one look-up: a partition that is removed just now was released already.
        partition = self._partitions.get(partition_id)
        if partition is not None:
            partition.release(cause)

    def shutdown(self) -> None:
        """Release every partition and refuse new ones; the second call does nothing."""
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
            partitions = list(self._partitions.values())
            calls: list[Callable[[], object]] = []
            for listeners in self._listeners.values():
                for waiting in listeners:
                    # They ask again and learn of the shutdown; otherwise they would wait for their time-out, if they
                    # have one.
                    calls += [*waiting.end(), waiting.on_partition]
            self._listeners.clear()
        cause = ResourceClosedError("its task manager was shut down")
        releases = [partial(partition.release, cause) for partition in partitions]
        run_all([*releases, *calls, self.task_events.clear])

    def _remove(self, partition: ResultPartition) -> None:
        # In this order: as long as its id is not free here, nobody else can register it there.
        self.task_events.unregister_partition(partition.partition_id)
        with self._lock:
            self._partitions.pop(partition.partition_id, None)

    def _start_timer(self, waiting: _Waiting) -> None:
        if waiting.timeout_ms is None or waiting.on_timeout is None or self._timers is None:
            return
        timer = self._timers.call_later(waiting.timeout_ms / 1000, partial(self._on_time, waiting, waiting.on_timeout))
        with self._lock:
            if not waiting.is_over:
                waiting.timer = timer
                return
        timer.cancel()  # the wait ended before it knew its timer

    def _on_time(self, waiting: _Waiting, on_timeout: Callable[[], None]) -> None:
        with self._lock:
            # The partition came, or the consumer left, while the timer fired.
            if waiting.is_over:
                return
            is_announced = waiting.partition_id in self._announced
            if not is_announced:
                self._end_locked(waiting)
        # Its producer is still being deployed, however long that takes: the wait begins again.
        if is_announced:
            self._start_timer(waiting)
        else:
            on_timeout()

    def _end_locked(self, waiting: _Waiting) -> list[Callable[[], object]]:
        listeners = self._listeners[waiting.partition_id]
        listeners.remove(waiting)
        if not listeners:
            del self._listeners[waiting.partition_id]
        return waiting.end()

    def _check_free_locked(self, partition_id: ResultPartitionID) -> None:
        self._check_open_locked()
        if partition_id in self._partitions:
            raise LocalProtocolError(f"partition {partition_id} is already registered")

    def _check_open_locked(self) -> None:
        if self._is_shut_down:
            raise ResourceClosedError("the result partition manager was shut down")
