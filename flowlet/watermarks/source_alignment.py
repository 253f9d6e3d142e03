"""Whether a source, or one of its splits, has run too far ahead of the others of its alignment group.

Side:       pure.
Invariants: a source waits exactly while its oldest sampled watermark is above what the group allows; a source that is idle or has finished
            holds nobody back; a split is paused at most once before it is resumed.
Units:      milliseconds.
Source:     Flink ``SourceOperator`` (``checkWatermarkAlignment``, ``checkSplitWatermarkAlignment``), ``WatermarkSampler``; the source
            reports once per update interval and hears what is allowed from the JobManager (``flowlet/jm/watermark_alignment.py``).
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP

# Flink's pipeline.watermark-alignment.buffer-size: a source is judged by what it knew so many reports ago, so that one that was just
# allowed to go on does not stop again before the others have heard of it.
NUM_SAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class SplitOrders:
    """Which splits the reader must stop reading, and which it must read again."""

    pause: frozenset[str]
    resume: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.pause or self.resume)


class SourceAlignment:
    """The alignment of one subtask of a source.

    Threading: task thread.

    Args:
        num_samples: how many reports ago the watermark counts.
    """

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        if num_samples < 1:
            raise ValueError(f"an alignment needs at least one sample, got {num_samples}")
        self._watermark = MIN_TIMESTAMP
        self._samples = deque([MIN_TIMESTAMP] * num_samples, maxlen=num_samples)
        self._max_allowed = MAX_TIMESTAMP
        self._is_silent = False
        self._splits: dict[str, int] = {}
        self._paused: set[str] = set()

    def __repr__(self) -> str:
        state = "waits" if self.must_wait else "runs"
        return f"<SourceAlignment {state} at {self._samples[0]} of {self._max_allowed}, {len(self._paused)} splits paused>"

    @property
    def must_wait(self) -> bool:
        """Whether the source must stop emitting."""
        return self._samples[0] > self._max_allowed

    @property
    def drift_ms(self) -> int:
        """How far the source is ahead of what is allowed; negative while it is behind.  The metric ``watermarkAlignmentDrift``."""
        return self._watermark - self._max_allowed

    @property
    def paused_splits(self) -> frozenset[str]:
        """The splits that are not read."""
        return frozenset(self._paused)

    def watermark_emitted(self, timestamp: int) -> None:
        """The source emitted a watermark; it is active."""
        self._is_silent = False
        self._watermark = max(self._watermark, timestamp)

    def status_changed(self, *, is_idle: bool) -> None:
        """The source has no records for a while, or has again."""
        self._is_silent = is_idle

    def finished(self) -> None:
        """The source sends no more records."""
        self._is_silent = True

    def sample(self) -> int:
        """Take the watermark for a report, once per update interval; ``MAX_TIMESTAMP`` says that nobody must wait for this source."""
        self._samples.append(self._watermark)
        return MAX_TIMESTAMP if self._is_silent else self._watermark

    def allow(self, max_allowed: int) -> SplitOrders:
        """The group said how far its sources may be."""
        self._max_allowed = max_allowed
        return self._split_orders()

    # -- splits: only a source with several pauses them one by one

    def split_added(self, split: str, watermark: int = MIN_TIMESTAMP) -> None:
        """The reader got a split."""
        self._splits[split] = watermark

    def split_finished(self, split: str) -> None:
        """A split is at its end."""
        self._splits.pop(split, None)
        self._paused.discard(split)

    def split_watermark(self, split: str, timestamp: int) -> SplitOrders:
        """The watermark of one split rose."""
        if split in self._splits and timestamp > self._splits[split]:
            self._splits[split] = timestamp
            return self._split_orders()
        return SplitOrders(frozenset(), frozenset())

    def _split_orders(self) -> SplitOrders:
        ahead = {split for split, watermark in self._splits.items() if watermark > self._max_allowed}
        if len(self._splits) < 2:
            ahead = set()  # the source as a whole waits
        orders = SplitOrders(frozenset(ahead - self._paused), frozenset(self._paused - ahead))
        self._paused = ahead
        return orders
