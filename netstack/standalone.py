"""The network stack without flowlet: one object per process, with blocking calls and an event loop on a thread of its
own.

Side:       shared.  Every method from any thread but the loop's; one thread writes a partition, one thread reads a
            gate.
Invariants: ``close`` ends connections, server, partitions and the loop, in this order, even if one of them fails.
Units:      seconds.
Absent:     ids, tasks and serializers, which the caller has.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from netstack.config import NetstackConfig
from netstack.environment import ChannelSpec, NetworkEnvironment
from netstack.gate.channels.input_channel import PartitionStateChecker
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID, ResultPartitionID
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_partition import ResultPartition

_CLOSE_TIMEOUT_S: Final = 30.0


class StandaloneNetwork:
    """Everything one process needs to produce and consume partitions.

    Life cycle: a context manager, or ``close``.  Close gates and partitions before it: those still open fail.
    """

    def __init__(self, config: NetstackConfig, name: str = "netstack") -> None:
        self._loop = EventLoopThread.start(name)
        try:
            self._environment = NetworkEnvironment(config, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._name = name

    def __repr__(self) -> str:
        return f"<StandaloneNetwork {self._name!r}, {self._environment!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> NetworkEnvironment:
        """Buffer pool, ``ResultPartitionManager`` and connections."""
        return self._environment

    @property
    def event_loop(self) -> EventLoopThread:
        """The loop; never block it."""
        return self._loop

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> ConnectionID:
        """Serve the partitions of this process to others; port 0 picks a free one.  Returns the address.

        Raises:
            ConfigError: the config has no security, or ``host`` needs TLS.
            OSError: the address cannot be bound.
        """
        # waits for the data port; ended by the system's answer
        return self._loop.submit(self._environment.start(host, port)).result()

    def create_partition(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int = 1,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        directory: Path | None = None,
    ) -> ResultPartition:
        """Make a partition with one subpartition per consumer; waiting requests for it are served now.

        Args:
            partition_id: the ids of partition and attempt, which consumers know.
            num_subpartitions: how many consumers.
            partition_type: pipelined, or blocking: then consumers read files, after ``finish``.
            directory: of these files; None: the system's folder for temporary files.

        The caller emits records (``emit_record``) and events (``broadcast_event``), then calls ``notify_end_of_data``,
        ``finish`` and, even after an error, ``close``.  ``emit_record`` blocks while consumers grant no credit and the
        partition's share of the memory is used.  The last buffer of a subpartition is sent when the next one begins, at
        an event, by ``finish_buffer``, or, unfinished, by ``flush``.  ``add_consumer_listener`` tells when consumers
        acknowledge or leave.

        Raises:
            InsufficientNetworkBuffersError: the network memory cannot guarantee ``num_subpartitions + 1`` buffers.
        """
        return self._environment.create_result_partition(
            self._name, partition_id, num_subpartitions, partition_type, directory
        )

    def open_gate(
        self, channels: Sequence[ChannelSpec], state_checker: PartitionStateChecker | None = None
    ) -> SingleInputGate:
        """Make a gate and send the requests of its channels; the caller reads it with ``get_next`` and closes it.

        ``state_checker`` is asked for a producer whose partition is not found: the request of a live one is repeated.

        Raises:
            InsufficientNetworkBuffersError: the network memory is too small for the credit of all channels.
        """
        gate = self._environment.create_input_gate(self._name, channels, state_checker)
        gate.request_partitions()
        return gate

    def close(self) -> None:
        """End everything; a second call, and one in a forked child, does nothing."""
        if self._environment.is_closed or self._loop.is_inherited:
            return
        try:
            self._loop.submit(self._environment.close()).result(_CLOSE_TIMEOUT_S)
        finally:
            self._loop.close()


def wait_consumed(partition: ResultPartition, timeout_s: float | None = None) -> bool:
    """Wait until every consumer of a closed partition has read it or has gone; False after ``timeout_s``."""
    is_released = threading.Event()
    partition.add_release_listener(is_released.set)
    return is_released.wait(timeout_s)  # waits for the partition's consumers; ended by them, or by release
