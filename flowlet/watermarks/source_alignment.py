"""Decides whether a source, or one of its splits, has run too far ahead of its alignment group.

Side:       pure.
Invariants: a source waits exactly while its oldest sampled watermark is above the group's limit.  An idle or finished
            source holds no other source back.  A split is paused at most once before it is resumed.
Units:      milliseconds.
Source:     Flink ``SourceOperator`` (``checkWatermarkAlignment``, ``checkSplitWatermarkAlignment``),
            ``WatermarkSampler``.  The source reports once per update interval; the JobManager replies with the limit
            (``flowlet/jm/alignment/watermark_alignment.py``).
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from netstack.late import dataclass

# Flink's pipeline.watermark-alignment.buffer-size: how many reports ago the watermark counts.  Without it, a source
# that was just released would stop again before the other sources have heard of the new limit.
NUM_SAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class SplitOrders:
    """The splits that the reader must pause, and those that it must resume."""

    pause: frozenset[str]
    resume: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.pause or self.resume)


class SourceAlignment:
    """The alignment of one subtask of a source; task thread only.

    ``num_samples``: how many reports ago the watermark counts.
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
        return (
            f"<SourceAlignment {state} at {self._samples[0]} of {self._max_allowed}, {len(self._paused)} splits paused>"
        )

    @property
    def must_wait(self) -> bool:
        """Whether the source must stop emitting."""
        return self._samples[0] > self._max_allowed

    @property
    def drift_ms(self) -> int:
        """How far the source is above the limit; negative below it; in 64 bits.

        Flink's metric ``watermarkAlignmentDrift``.
        """
        return min(max(self._watermark - self._max_allowed, MIN_TIMESTAMP), MAX_TIMESTAMP)

    @property
    def paused_splits(self) -> frozenset[str]:
        """The paused splits."""
        return frozenset(self._paused)

    def watermark_emitted(self, timestamp: int) -> None:
        """Note a watermark of the source, which is active."""
        self._is_silent = False
        self._watermark = max(self._watermark, timestamp)

    def status_changed(self, *, is_idle: bool) -> None:
        """Note that the source became idle or active."""
        self._is_silent = is_idle

    def finished(self) -> None:
        """Note that the source sends no more records."""
        self._is_silent = True

    def sample(self) -> int:
        """Sample the watermark for a report, once per update interval; ``MAX_TIMESTAMP``: no source must wait for this
        one.
        """
        self._samples.append(self._watermark)
        return MAX_TIMESTAMP if self._is_silent else self._watermark

    def allow(self, max_allowed: int) -> SplitOrders:
        """Set the group's limit; returns which splits to pause or resume."""
        self._max_allowed = max_allowed
        return self._split_orders()

    # -- splits: only a source with several pauses them one by one

    def split_added(self, split: str, watermark: int = MIN_TIMESTAMP) -> None:
        """Note a new split of the reader."""
        self._splits[split] = watermark

    def split_finished(self, split: str) -> None:
        """Note that a split has ended."""
        self._splits.pop(split, None)
        self._paused.discard(split)

    def split_watermarks(self, watermarks: Mapping[str, int]) -> SplitOrders:
        """Note watermarks by split, those of unknown splits aside; returns which splits to pause or resume.

        All splits are compared once per call: a call per split would be quadratic.
        """
        known = self._splits
        risen = {
            split: timestamp for split, timestamp in watermarks.items() if split in known and timestamp > known[split]
        }
        if not risen:
            return SplitOrders(frozenset(), frozenset())
        known |= risen
        return self._split_orders()

    def _split_orders(self) -> SplitOrders:
        ahead = {split for split, watermark in self._splits.items() if watermark > self._max_allowed}
        if len(self._splits) < 2:
            ahead = set()  # no split is paused: the source as a whole waits
        orders = SplitOrders(frozenset(ahead - self._paused), frozenset(self._paused - ahead))
        self._paused = ahead
        return orders
