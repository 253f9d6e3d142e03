"""Whether the producer of a partition that was not found is alive.

Side:   shared.
Source: Flink ``PartitionProducerStateProvider``.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from netstack.ids import ResultPartitionID


class ProducerState(Enum):
    """What is known about the producer of a partition that was not found."""

    READY = auto()
    """Scheduled, running or finished: the partition will be there, or was moved."""
    FAILED = auto()
    """Failed or cancelled: the consumer will be cancelled, too."""
    UNKNOWN = auto()


class PartitionStateChecker(Protocol):
    """Knows whether a producer is alive: asks the JobManager."""

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        """Call ``on_result`` once, on any thread, now or later; must not block."""
