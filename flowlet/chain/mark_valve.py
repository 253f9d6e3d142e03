"""``MarkValve``: joins the completion marks of several channels.

Side:       pure.
Invariants: a mark leaves once it, or a later one, has arrived on every channel that has not ended; numbers that leave
            rise.
Source:     Flink ``StatusWatermarkValve`` and ``CheckpointBarrierTracker``, without idle channels and without aborted
            checkpoints.
"""

from typing import Final

from flowlet.records import CompletionMark

_ENDED: Final = 2**63 - 1


class MarkValve:
    """The last mark of each of ``num_channels`` channels.  Threading: one thread."""

    __slots__ = ("_last", "_num_behind", "_numbers")

    def __init__(self, num_channels: int) -> None:
        self._numbers = [0] * num_channels
        self._last = 0  # the number that left last, which is the smallest of ``_numbers``
        self._num_behind = num_channels  # channels that have brought nothing since

    def __repr__(self) -> str:
        return f"<MarkValve after mark {self._last}, {self._num_behind} of {len(self._numbers)} channels are behind>"

    def receive(self, channel: int, mark: CompletionMark) -> CompletionMark | None:
        """A mark has arrived on a channel: the mark that may leave now, or None."""
        return self._advance(channel, mark.number)

    def end(self, channel: int) -> CompletionMark | None:
        """A channel has ended, and holds back no mark: the one that may leave now, or None; None also if all have
        ended.
        """
        return self._advance(channel, _ENDED)

    def _advance(self, channel: int, number: int) -> CompletionMark | None:
        before = self._numbers[channel]
        if number <= before:
            return None
        self._numbers[channel] = number
        if before > self._last:
            return None
        self._num_behind -= 1
        if self._num_behind:
            return None
        self._last = min(self._numbers)
        self._num_behind = self._numbers.count(self._last)
        return None if self._last == _ENDED else CompletionMark(self._last)
