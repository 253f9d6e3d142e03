"""How many producers outside the cluster may hold network buffers of this process at once, in all gates together.

Side:       shared.  Loop and task threads, any of them.
Invariants: 0 <= num_taken <= max_channels; a share is given back once, however often ``release`` is called.
Units:      channels; each has the same number of exclusive buffers.
Lock order: ``_lock`` is a leaf.
Source:     ours.  Channels of a job's own tasks are counted when it is deployed, those of producers come as they like.
"""

import threading
from typing import Final

_PERCENT: Final = 100


class ProducerQuota:
    """One per process.

    Args:
        num_segments: of the whole network memory.
        buffers_per_channel: exclusive ones; 0: channels hold none of their own, and the quota never ends.
        max_percent: of the network memory, for producers; there is always room for one.
    """

    def __init__(self, num_segments: int, buffers_per_channel: int, max_percent: int) -> None:
        self._max_channels = (
            max(1, num_segments * max_percent // _PERCENT // buffers_per_channel) if buffers_per_channel else None
        )
        self._buffers_per_channel = buffers_per_channel
        self._max_percent = max_percent
        self._lock = threading.Lock()
        self._num_taken = 0  # Guarded by _lock.

    def __repr__(self) -> str:
        return (
            f"<ProducerQuota {self._num_taken} of {'any number' if self._max_channels is None else self._max_channels}>"
        )

    @property
    def num_taken(self) -> int:
        """Channels now; any thread, for statistics."""
        return self._num_taken

    @property
    def reason(self) -> str:
        """Why ``try_take`` gave nothing, and what to do."""
        return (
            f"producers hold {(self._max_channels or 0) * self._buffers_per_channel} network buffers of its "
            "TaskManager, and have "
            f"{self._max_percent} % of the network memory at most: push fewer partitions at a time, or start the "
            "TaskManager with more "
            "(--network-memory, or --producer-memory-percent: NetstackConfig.max_producer_memory_percent)"
        )

    def try_take(self) -> "QuotaShare | None":
        """Room for one more channel, until its ``release``."""
        with self._lock:
            if self._max_channels is not None and self._num_taken >= self._max_channels:
                return None
            self._num_taken += 1
        return QuotaShare(self)

    def _give_back(self, share: "QuotaShare") -> None:
        with self._lock:
            if not share.is_released:
                share.is_released = True
                self._num_taken -= 1


class QuotaShare:
    """Room for one channel.

    Threading: any.
    """

    __slots__ = ("_quota", "is_released")

    def __init__(self, quota: ProducerQuota) -> None:
        self._quota = quota
        self.is_released = False  # Written by the quota, under its lock.

    def __repr__(self) -> str:
        return f"<QuotaShare {'released' if self.is_released else 'taken'}>"

    def release(self) -> None:
        """There is room for another channel; a second call does nothing."""
        self._quota._give_back(self)
