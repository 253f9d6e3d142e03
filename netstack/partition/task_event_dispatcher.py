"""Events that go against the stream: from a consumer to the task that produces its partition.

Side:       shared.
Invariants: an event reaches the handlers of its partition and kind only; handlers are called outside the lock, in the
            order of their subscription, on the publisher's thread.
Lock order: ``TaskEventDispatcher._lock`` is a leaf.
Source:     Flink ``TaskEventDispatcher``, ``TaskEventHandler``.
"""

import threading
from collections.abc import Callable
from functools import partial

from netstack.errors import LocalProtocolError
from netstack.ids import ResultPartitionID
from netstack.wakeups import run_all
from netstack.wire.events import Event

TaskEventCallback = Callable[[Event], None]


class TaskEventDispatcher:
    """Who listens to the consumers of which partition.

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
            found = [*handlers.get(type(event), ()), *handlers.get(getattr(event, "class_name", None), ())]
        run_all([partial(handler, event) for handler in found])
        return True

    def clear(self) -> None:
        """Forget every partition and handler."""
        with self._lock:
            self._handlers.clear()
