"""One input of a gate: what local and remote channels have in common.

Side:       shared.  The task thread polls; the producer's side (loop or another task) brings data and errors.
Invariants: the first error wins, and surfaces at every poll after it, before any data.
Source:     Flink ``InputChannel``.
Absent:     back-off and retriggering of partition requests: the producer's side waits for its partition instead.
"""

import threading
from abc import ABC, abstractmethod
from typing import Protocol, TypeAlias

from netstack.buffer.segment import NetworkBuffer
from netstack.errors import NetstackError
from netstack.ids import ResultPartitionID
from netstack.partition.view import BufferAndBacklog

BufferAndAvailability: TypeAlias = BufferAndBacklog
"""What a poll of a channel finds; a local channel hands on what its view gave it, without making another tuple."""


class ChannelGate(Protocol):
    """What a channel tells its gate."""

    owner: str

    def notify_channel_non_empty(self, channel: "InputChannel") -> None:
        """The channel has data, or an error, after it had none; any thread, outside every lock."""


class InputChannel(ABC):
    """Base class.

    Life cycle: made -> ``request_subpartition`` -> polled -> ``release`` (at the end of the partition, or when the gate closes).
    """

    def __init__(self, gate: ChannelGate, index: int, partition_id: ResultPartitionID, subpartition: int) -> None:
        self.gate = gate
        self.index = index
        self.partition_id = partition_id
        self.subpartition = subpartition
        self.is_queued = False  # Guarded by the gate's lock.
        # Written by the task thread.
        self.num_bytes_in = 0
        self.num_buffers_in = 0
        self._lock = threading.Lock()
        # Guarded by _lock for writes; a bare read may be one pass stale.
        self._error: NetstackError | None = None
        self._is_released = False

    def __repr__(self) -> str:
        state = "released" if self._is_released else f"failed: {self._error}" if self._error is not None else self._describe()
        return f"<{type(self).__name__} {self.index} of {self.partition_id}/{self.subpartition}: {state}>"

    @property
    def is_released(self) -> bool:
        """Whether ``release`` was called."""
        return self._is_released

    @property
    def num_queued_buffers(self) -> int:
        """How many received buffers wait to be polled."""
        return 0

    @abstractmethod
    def request_subpartition(self) -> None:
        """Ask for the data; task thread, once."""

    @abstractmethod
    def next_buffer(self) -> BufferAndAvailability | None:
        """The next buffer, which the caller recycles, and what follows it; None if there is nothing.  Task thread.

        Raises:
            NetstackError: what ``on_error`` got, or that the producer failed.
        """

    @abstractmethod
    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event was polled."""

    @abstractmethod
    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""

    @abstractmethod
    def send_task_event(self, event: bytes) -> None:
        """Bring a serialized event to the producer."""

    @abstractmethod
    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on."""

    @abstractmethod
    def release(self) -> None:
        """Give everything back and tell the producer; any thread, any number of times."""

    def on_error(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``; a later one is ignored.  Any thread."""
        with self._lock:
            if self._error is not None or self._is_released:
                return
            self._error = error
        self.gate.notify_channel_non_empty(self)

    def _describe(self) -> str:
        return f"{self.num_queued_buffers} queued"

    def _count(self, buffer: NetworkBuffer) -> None:
        self.num_bytes_in += buffer.size
        self.num_buffers_in += 1
