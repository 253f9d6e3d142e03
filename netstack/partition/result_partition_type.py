"""The kinds of result partitions, and what follows from each.

Side:   pure.
Source: Flink 2.x ``ResultPartitionType``.
Absent: the hybrid types (tiered storage).
"""

from enum import Enum, unique


@unique
class ResultPartitionType(Enum):
    """How a partition is produced, consumed and released.

    =====================  =======  ==========  =================  =================  ==============
    type                   bounded  persistent  must be pipelined  can be pipelined   released by
    =====================  =======  ==========  =================  =================  ==============
    BLOCKING               yes      no          no                 no                 scheduler
    BLOCKING_PERSISTENT    yes      yes         no                 no                 scheduler
    PIPELINED              no       no          yes                yes                its consumers
    PIPELINED_BOUNDED      yes      no          yes                yes                its consumers
    PIPELINED_APPROXIMATE  yes      no          no                 yes                scheduler
    =====================  =======  ==========  =================  =================  ==============
    """

    BLOCKING = "blocking"
    BLOCKING_PERSISTENT = "blocking persistent"
    PIPELINED = "pipelined"
    PIPELINED_BOUNDED = "pipelined bounded"
    PIPELINED_APPROXIMATE = "pipelined approximate"

    @property
    def is_bounded(self) -> bool:
        """Whether the number of its buffers is limited."""
        return self is not ResultPartitionType.PIPELINED

    @property
    def is_persistent(self) -> bool:
        """Whether it outlives its job."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT

    @property
    def is_blocking(self) -> bool:
        """Whether it is read only when it is finished, and then as often as one likes."""
        return self in _BLOCKING

    @property
    def must_be_pipelined_consumed(self) -> bool:
        """Whether producer and consumer have to run at the same time."""
        return self in _MUST_BE_PIPELINED

    @property
    def can_be_pipelined_consumed(self) -> bool:
        """Whether it may be read while it is written."""
        return self not in _BLOCKING

    @property
    def is_released_by_scheduler(self) -> bool:
        """Whether it stays until it is released by name, instead of ending with its last consumer."""
        return self not in _MUST_BE_PIPELINED

    @property
    def is_reconsumable(self) -> bool:
        """Whether another reader may come after the first."""
        return self not in _MUST_BE_PIPELINED

    @property
    def supports_compression(self) -> bool:
        """Whether its buffers are compressed by default (those of pipelined types only if a job asks for it)."""
        return self.is_blocking

    def max_pool_buffers(self, num_subpartitions: int, buffers_per_channel: int, floating_buffers: int) -> int | None:
        """How many buffers its pool may hold; None if there is no limit."""
        return num_subpartitions * buffers_per_channel + floating_buffers if self.is_bounded else None


_BLOCKING = frozenset({ResultPartitionType.BLOCKING, ResultPartitionType.BLOCKING_PERSISTENT})
_MUST_BE_PIPELINED = frozenset({ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED})
