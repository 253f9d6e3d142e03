"""Finds the partitions of this process by their id.

Side:       shared.
Invariants: a partition is registered from ``register`` to its release; whoever asked too early is called exactly once, when it comes or
            when the manager shuts down (and then asks again and gets the answer).
Lock order: ``ResultPartitionManager._lock`` is a leaf: partitions and listeners are called after it (FLINK-28942).
Source:     Flink ``ResultPartitionManager`` with the partition request listeners of 1.18 and later; their timeout is the caller's.
"""

import threading
from collections.abc import Callable
from functools import partial

from netstack.buffer.wakeups import run_all
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.partition.pipelined import PipelinedSubpartitionView
from netstack.partition.result_partition import ResultPartition
from netstack.partition.view import BufferAvailabilityListener


class ResultPartitionManager:
    """All result partitions that can be read here.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._partitions: dict[ResultPartitionID, ResultPartition] = {}
        self._listeners: dict[ResultPartitionID, list[Callable[[], None]]] = {}
        self._is_shut_down = False

    def __repr__(self) -> str:
        state = ", shut down" if self._is_shut_down else ""
        return f"<ResultPartitionManager {len(self._partitions)} partitions, {len(self._listeners)} awaited{state}>"

    def __len__(self) -> int:
        return len(self._partitions)

    def register(self, partition: ResultPartition) -> None:
        """Make ``partition`` readable, until it is released, and call whoever waited for it.

        Raises:
            LocalProtocolError: its id is registered already.
            ResourceClosedError: the manager was shut down.
        """
        partition_id = partition.partition_id
        with self._lock:
            self._check_open_locked()
            if partition_id in self._partitions:
                raise LocalProtocolError(f"partition {partition_id} is already registered")
            self._partitions[partition_id] = partition
            listeners = self._listeners.pop(partition_id, [])
        run_all([lambda: partition.add_release_listener(lambda: self._remove(partition)), *listeners])

    def create_subpartition_view(
        self, partition_id: ResultPartitionID, index: int, listener: BufferAvailabilityListener
    ) -> PipelinedSubpartitionView:
        """The one view of a subpartition.

        Raises:
            PartitionNotFoundError: the partition is not registered, or was released.
            LocalProtocolError: there is no such subpartition, or it is read already.
        """
        partition = self._partitions.get(partition_id)
        if partition is None:
            raise PartitionNotFoundError(f"partition {partition_id} is not registered")
        return partition.create_subpartition_view(index, listener)

    def create_view_or_listen(
        self,
        partition_id: ResultPartitionID,
        index: int,
        listener: BufferAvailabilityListener,
        on_partition: Callable[[], None],
    ) -> PipelinedSubpartitionView | None:
        """The view; or None, and ``on_partition`` is called once, on the registering thread, when it is worth to ask again.

        Raises:
            PartitionNotFoundError: the partition was released just now.
            LocalProtocolError: there is no such subpartition, or it is read already.
            ResourceClosedError: the manager was shut down.
        """
        with self._lock:
            self._check_open_locked()
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._listeners.setdefault(partition_id, []).append(on_partition)
                return None
        return partition.create_subpartition_view(index, listener)

    def cancel_listener(self, partition_id: ResultPartitionID, on_partition: Callable[[], None]) -> None:
        """Do not call ``on_partition`` any more; nothing happens if it was called or never waited."""
        with self._lock:
            listeners = self._listeners.get(partition_id)
            if listeners is None or on_partition not in listeners:
                return
            listeners.remove(on_partition)
            if not listeners:
                del self._listeners[partition_id]

    def release(self, partition_id: ResultPartitionID, cause: BaseException | None) -> None:
        """Release a partition, if it is here; its readers learn ``cause``."""
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
            waiting = [on_partition for listeners in self._listeners.values() for on_partition in listeners]
            self._listeners.clear()
        cause = ResourceClosedError("its task manager was shut down")
        releases = [partial(partition.release, cause) for partition in partitions]
        run_all([*releases, *waiting])

    def _remove(self, partition: ResultPartition) -> None:
        with self._lock:
            self._partitions.pop(partition.partition_id, None)

    def _check_open_locked(self) -> None:
        if self._is_shut_down:
            raise ResourceClosedError("the result partition manager was shut down")
