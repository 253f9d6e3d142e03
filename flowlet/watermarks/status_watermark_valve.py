"""Combines the watermarks of many channels into one.

Side:       task.
Invariants: emitted watermarks rise strictly, and none is emitted while the output is idle.  The output is idle exactly
            when no channel is active and not all have finished.  An idle channel is never aligned; an active one is
            aligned once its watermark has caught up.  A channel that sent the last watermark has finished: it neither
            holds the output back nor raises it.  The heap has at most one entry per channel, whose key is at most the
            channel's watermark.
Source:     Flink ``StatusWatermarkValve`` (rules C07-C12 of its tests), whose heap over aligned channels makes a
            watermark O(log n).  In Flink a finished channel keeps the largest watermark, which raises the output to
            infinity when the others become idle (FLINK-38477).
Absent:     the end of a channel whose job stops without draining.  Its watermark still holds the output back, because
            its remaining records follow after the restart.
"""

from enum import Enum, auto
from heapq import heappop, heappush, heapreplace

from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark, WatermarkStatus


class ChannelState(Enum):
    """How a channel takes part in the output."""

    ALIGNED = auto()  # active, and part of the minimum
    BEHIND = auto()  # active again, but its watermark is still below the output
    IDLE = auto()
    FINISHED = auto()  # it sent the last watermark


class StatusWatermarkValve:
    """Takes watermarks and statuses of channels; returns what the task must pass on, in order.

    Threading: task thread only; properties and ``held_back_by`` anywhere, one watermark stale.
    """

    def __init__(self, num_channels: int) -> None:
        if num_channels < 1:
            raise ValueError(f"a valve needs at least one channel, got {num_channels}")
        self._watermarks = [MIN_TIMESTAMP] * num_channels
        self._states = [ChannelState.ALIGNED] * num_channels
        self._heap = [(MIN_TIMESTAMP, channel) for channel in range(num_channels)]
        self._is_in_heap = [True] * num_channels
        self._num_active = num_channels  # channels that are aligned or behind
        self._num_finished = 0
        self._last_output = MIN_TIMESTAMP
        self._is_output_idle = False

    def __repr__(self) -> str:
        num_channels = len(self._states)
        idle = num_channels - self._num_active - self._num_finished
        finished = f", {self._num_finished} finished" if self._num_finished else ""
        return f"<StatusWatermarkValve at {self._last_output}, {idle} of {num_channels} channels idle{finished}>"

    @property
    def last_output(self) -> int:
        """The last emitted watermark in milliseconds."""
        return self._last_output

    @property
    def is_output_idle(self) -> bool:
        """Whether the last emitted status was idle."""
        return self._is_output_idle

    def channel_state(self, channel_index: int) -> ChannelState:
        """The state of a channel; for metrics and tests."""
        return self._states[channel_index]

    def channel_watermark(self, channel_index: int) -> int:
        """The largest watermark of a channel that counted, in milliseconds, except the last one;
        for metrics and tests.
        """
        return self._watermarks[channel_index]

    @property
    def is_held_back(self) -> bool:
        """Whether an active channel is ahead of the output."""
        active = (
            watermark
            for watermark, state in zip(self._watermarks, self._states, strict=True)
            if state is ChannelState.ALIGNED
        )
        return max(active, default=MIN_TIMESTAMP) > self._last_output

    def held_back_by(self) -> list[int]:
        """The active channels that keep the output from advancing; for people who look for an idle partition."""
        active = [
            channel
            for channel, state in enumerate(self._states)
            if state in (ChannelState.ALIGNED, ChannelState.BEHIND)
        ]
        slowest = min((self._watermarks[channel] for channel in active), default=MIN_TIMESTAMP)
        return [channel for channel in active if self._watermarks[channel] == slowest]

    def input_watermark(self, channel_index: int, watermark: Watermark) -> list[Watermark | WatermarkStatus]:
        """Apply a channel's watermark; ignored while the channel is idle, and if it does not rise.

        The last watermark finishes the channel, even an idle one.
        """
        if watermark.timestamp == MAX_TIMESTAMP:
            return self._finished(channel_index)
        state = self._states[channel_index]
        if (
            state is ChannelState.IDLE
            or state is ChannelState.FINISHED
            or watermark.timestamp <= self._watermarks[channel_index]
        ):
            return []
        self._watermarks[channel_index] = watermark.timestamp
        if state is ChannelState.BEHIND:
            self._align_if_caught_up(channel_index)
        return [*self._advance_to_min()]

    def input_status(self, channel_index: int, status: WatermarkStatus) -> list[Watermark | WatermarkStatus]:
        """Apply a channel's status; ignored if it does not change, or if the channel has finished."""
        state = self._states[channel_index]
        if state is ChannelState.FINISHED or (state is ChannelState.IDLE) == status.is_idle:
            return []
        return self._became_idle(channel_index) if status.is_idle else self._became_active(channel_index)

    def _became_idle(self, channel: int) -> list[Watermark | WatermarkStatus]:
        self._states[channel] = ChannelState.IDLE
        self._num_active -= 1
        return self._after_one_less_active(may_advance=self._watermarks[channel] == self._last_output)

    def _became_active(self, channel: int) -> list[Watermark | WatermarkStatus]:
        self._num_active += 1
        self._states[channel] = ChannelState.BEHIND
        self._align_if_caught_up(channel)
        return self._wake_output()

    def _finished(self, channel: int) -> list[Watermark | WatermarkStatus]:
        state = self._states[channel]
        if state is ChannelState.FINISHED:
            return []
        self._states[channel] = ChannelState.FINISHED
        self._num_finished += 1
        self._num_active -= state is not ChannelState.IDLE
        if self._num_finished == len(self._states):
            return [*self._wake_output(), *self._advance_to(MAX_TIMESTAMP)]
        return [] if state is ChannelState.IDLE else self._after_one_less_active(may_advance=True)

    def _after_one_less_active(self, *, may_advance: bool) -> list[Watermark | WatermarkStatus]:
        if self._num_active:
            return [*self._advance_to_min()] if may_advance else []
        # No channel is active, so none holds the output back: emit the largest watermark before the status says that no
        # more follow.
        flushed = self._advance_to(self._largest_unfinished()) if may_advance else []
        self._is_output_idle = True
        return [*flushed, IDLE]

    def _largest_unfinished(self) -> int:
        pairs = zip(self._watermarks, self._states, strict=True)
        return max(watermark for watermark, state in pairs if state is not ChannelState.FINISHED)

    def _wake_output(self) -> list[Watermark | WatermarkStatus]:
        if not self._is_output_idle:
            return []
        self._is_output_idle = False
        return [ACTIVE]

    def _align_if_caught_up(self, channel: int) -> None:
        if self._watermarks[channel] < self._last_output:
            return
        self._states[channel] = ChannelState.ALIGNED
        if not self._is_in_heap[channel]:
            self._is_in_heap[channel] = True
            heappush(self._heap, (self._watermarks[channel], channel))

    def _advance_to_min(self) -> list[Watermark]:
        """Correct the top of the heap until its key is true: watermarks only rise, so an old key
        can only be too small.
        """
        heap = self._heap
        while heap:
            key, channel = heap[0]
            if self._states[channel] is not ChannelState.ALIGNED:
                heappop(heap)
                self._is_in_heap[channel] = False
            elif key < self._watermarks[channel]:
                heapreplace(heap, (self._watermarks[channel], channel))
            else:
                return self._advance_to(key)
        return []

    def _advance_to(self, timestamp: int) -> list[Watermark]:
        if timestamp <= self._last_output:
            return []
        self._last_output = timestamp
        return [Watermark(timestamp)]

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        states = self._states
        assert self._num_active == sum(state in (ChannelState.ALIGNED, ChannelState.BEHIND) for state in states)
        assert self._num_finished == states.count(ChannelState.FINISHED)
        assert self._is_output_idle == (self._num_active == 0 and self._num_finished < len(states))
        assert sorted(channel for _, channel in self._heap) == [
            channel for channel, is_in in enumerate(self._is_in_heap) if is_in
        ]
        for key, channel in self._heap:
            assert key <= self._watermarks[channel], "a key of the heap is ahead of its channel"
        for channel, state in enumerate(states):
            if state is ChannelState.ALIGNED:
                assert self._is_in_heap[channel], "an aligned channel is not in the heap"
                assert self._watermarks[channel] >= self._last_output, "an aligned channel lags behind the output"
