"""Combines the watermarks of several inputs: of the channels of a gate (``StatusWatermarkValve``), of the splits of a
source (``WatermarkMultiplexer``).

Side:       task.
Invariants: emitted watermarks rise strictly, and none is emitted while the output is idle.  The output of a valve
            follows the smallest watermark of its aligned channels, also when a channel becomes idle or finishes.  It is
            idle exactly when no channel is active and not all have finished.  An idle channel is never aligned; an
            active one is aligned once its watermark has caught up.  A channel that sent the last watermark has
            finished: it neither holds the output back nor raises it.  The heap has at most one entry per channel, whose
            key is at most the channel's watermark.  The combined watermark of splits is the lowest of all parts that
            are not idle.  The source is idle exactly when it has parts and all of them are idle.  A removed part does
            not hold the watermark back.
Units:      milliseconds.
Source:     Flink ``StatusWatermarkValve`` (rules C07-C12 of its tests), whose heap over aligned channels makes a
            watermark O(log n).  In Flink a finished channel keeps the largest watermark, which raises the output to
            infinity when the others become idle (FLINK-38477).  Flink ``WatermarkOutputMultiplexer``.
Absent:     the end of a channel whose job stops without draining.  Its watermark still holds the output back, because
            its remaining records follow after the restart.
"""

from enum import Enum, auto
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

from flowlet.common.watermark_generator import WatermarkOutput
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark, WatermarkStatus


class ChannelState(Enum):
    """How a channel takes part in the output."""

    ALIGNED = auto()  # active, and part of the minimum
    BEHIND = auto()  # active again, but its watermark is still below the output
    IDLE = auto()
    FINISHED = auto()  # it sent the last watermark


class StatusWatermarkValve:
    """Takes watermarks and statuses of channels; returns the ones that the task must pass on, in order.

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
        self.last_output = MIN_TIMESTAMP  # the last emitted watermark in milliseconds
        self.is_output_idle = False  # whether the last emitted status was idle

    def __repr__(self) -> str:
        num_channels = len(self._states)
        idle = num_channels - self._num_active - self._num_finished
        finished = f", {self._num_finished} finished" if self._num_finished else ""
        return f"<StatusWatermarkValve at {self.last_output}, {idle} of {num_channels} channels idle{finished}>"

    def channel_state(self, channel_index: int) -> ChannelState:
        """The state of a channel; for metrics and tests."""
        return self._states[channel_index]

    @property
    def is_held_back(self) -> bool:
        """Whether an active channel is ahead of the output."""
        active = (
            watermark
            for watermark, state in zip(self._watermarks, self._states, strict=True)
            if state is ChannelState.ALIGNED
        )
        return max(active, default=MIN_TIMESTAMP) > self.last_output

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
        # First: an idle channel that ends must not keep the others waiting for it.
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
        if status.is_idle:
            self._states[channel_index] = ChannelState.IDLE
            self._num_active -= 1
            holds_back = self._watermarks[channel_index] == self.last_output  # perhaps it alone
            return self._after_one_less_active(may_advance=holds_back)
        self._num_active += 1
        # Behind until it has caught up: its old watermark must not take the output back.
        self._states[channel_index] = ChannelState.BEHIND
        self._align_if_caught_up(channel_index)
        return self._wake_output()

    def _finished(self, channel: int) -> list[Watermark | WatermarkStatus]:
        state = self._states[channel]
        if state is ChannelState.FINISHED:
            return []
        self._states[channel] = ChannelState.FINISHED
        self._num_finished += 1
        self._num_active -= state is not ChannelState.IDLE
        # The last watermark alone: a finished channel beside others never raises the output (FLINK-38477).
        if self._num_finished == len(self._states):
            return [*self._wake_output(), *self._advance_to(MAX_TIMESTAMP)]
        return [] if state is ChannelState.IDLE else self._after_one_less_active(may_advance=True)

    def _after_one_less_active(self, *, may_advance: bool) -> list[Watermark | WatermarkStatus]:
        if self._num_active:
            return [*self._advance_to_min()] if may_advance else []
        # No channel is active, so none holds the output back: emit the largest watermark before the status says that no
        # more follow.
        pairs = zip(self._watermarks, self._states, strict=True)
        largest = max(watermark for watermark, state in pairs if state is not ChannelState.FINISHED)
        flushed = self._advance_to(largest) if may_advance else []
        self.is_output_idle = True
        return [*flushed, IDLE]

    def _wake_output(self) -> list[Watermark | WatermarkStatus]:
        if not self.is_output_idle:
            return []
        self.is_output_idle = False
        return [ACTIVE]

    def _align_if_caught_up(self, channel: int) -> None:
        if self._watermarks[channel] < self.last_output:
            return
        self._states[channel] = ChannelState.ALIGNED
        # An entry of before may still be there: a second one would break the bound of the heap.
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
        if timestamp <= self.last_output:
            return []
        self.last_output = timestamp
        return [Watermark(timestamp)]

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        states = self._states
        assert self._num_active == sum(state in (ChannelState.ALIGNED, ChannelState.BEHIND) for state in states)
        assert self._num_finished == states.count(ChannelState.FINISHED)
        assert self.is_output_idle == (self._num_active == 0 and self._num_finished < len(states))
        assert sorted(channel for _, channel in self._heap) == [
            channel for channel, is_in in enumerate(self._is_in_heap) if is_in
        ]
        for key, channel in self._heap:
            assert key <= self._watermarks[channel], "a key of the heap is ahead of its channel"
        for channel, state in enumerate(states):
            if state is ChannelState.ALIGNED:
                assert self._is_in_heap[channel], "an aligned channel is not in the heap"
                assert self._watermarks[channel] >= self.last_output, "an aligned channel lags behind the output"


_MIN_HEAP: Final = 64  # entries that may be there besides two for each part


class PartialWatermark:
    """The ``WatermarkOutput`` of one part's generator."""

    __slots__ = ("_owner", "is_idle", "is_removed", "timestamp")

    def __init__(self, owner: "WatermarkMultiplexer") -> None:
        self._owner = owner
        self.timestamp = MIN_TIMESTAMP
        self.is_idle = False
        self.is_removed = False

    def __repr__(self) -> str:
        return f"<PartialWatermark {self.timestamp}{', idle' if self.is_idle else ''}>"

    def emit_watermark(self, timestamp: int) -> None:
        """Raise the part's watermark; the part is active."""
        if timestamp > self.timestamp:
            # Before the owner hears: it counts the active parts by the difference.
            was_idle, self.is_idle = self.is_idle, False
            self.timestamp = timestamp
            self._owner.part_changed(self, was_idle=was_idle)

    def mark_idle(self) -> None:
        """Make the part idle: it no longer holds the watermark back."""
        if not self.is_idle:
            self.is_idle = True
            self._owner.part_changed(self, was_idle=False)

    def mark_active(self) -> None:
        """Make the part active: its watermark counts again."""
        if self.is_idle:
            self.is_idle = False
            self._owner.part_changed(self, was_idle=True)


class WatermarkMultiplexer:
    """Tells ``output`` the combined watermark and status; ``output`` ignores repetitions.  Task thread only.

    The lowest part is the top of a heap: with thousands of splits, looking at all of them for each that changes would
    be quadratic.
    """

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._parts: dict[str, PartialWatermark] = {}
        self._num_active = 0
        # Every active part is in the heap at its timestamp.  An entry with another timestamp than its part's is dropped
        # when it is the top.
        self._heap: list[tuple[int, int, PartialWatermark]] = []
        self._numbers = count()  # parts cannot be compared
        self._is_deferred = False

    def __repr__(self) -> str:
        return f"<WatermarkMultiplexer of {len(self._parts)} parts, {self._num_active} active>"

    def add(self, name: str) -> PartialWatermark:
        """Add a part; it holds the watermark back until it has one itself."""
        assert name not in self._parts, f"part {name!r} is there already"
        part = self._parts[name] = PartialWatermark(self)
        self._num_active += 1
        self._push(part)
        return part

    def remove(self, name: str) -> None:
        """Remove a part, which has ended."""
        part = self._parts.pop(name)
        # Marked before it is told: its entries stay in the heap until they are the top, and count no more.
        part.is_removed = True
        self._num_active -= not part.is_idle
        self._changed()

    def watermarks(self) -> dict[str, int]:
        """The watermark of each part."""
        return {name: part.timestamp for name, part in self._parts.items()}

    def defer(self) -> None:
        """Keep changes from the output until ``update``: many parts are about to change."""
        self._is_deferred = True

    def part_changed(self, part: PartialWatermark, *, was_idle: bool) -> None:
        """Tell the output, unless it is deferred."""
        if part.is_removed:
            return
        self._num_active += was_idle - part.is_idle
        if not part.is_idle:
            self._push(part)
        self._changed()

    def update(self) -> None:
        """Tell the output the combined state."""
        self._is_deferred = False
        lowest = self._lowest()
        # One active part decides, however many are idle; the output is idle only if all are.
        if lowest is not None:
            self._output.mark_active()
            self._output.emit_watermark(lowest)
        elif self._parts:
            self._output.mark_idle()

    def check_invariants(self) -> None:
        """Assert that the fields agree with each other."""
        active = [part.timestamp for part in self._parts.values() if not part.is_idle]
        assert self._num_active == len(active)
        assert self._lowest() == min(active, default=None)
        assert len(self._heap) <= 2 * len(self._parts) + _MIN_HEAP

    def _changed(self) -> None:
        if not self._is_deferred:
            self.update()

    def _push(self, part: PartialWatermark) -> None:
        heappush(self._heap, (part.timestamp, next(self._numbers), part))
        # A part that rises while another one holds the top leaves an entry each time: without a bound the heap grows.
        if len(self._heap) > 2 * len(self._parts) + _MIN_HEAP:
            self._heap = [
                (each.timestamp, next(self._numbers), each) for each in self._parts.values() if not each.is_idle
            ]
            heapify(self._heap)

    def _lowest(self) -> int | None:
        heap = self._heap
        while heap:
            timestamp, _, part = heap[0]
            # An entry of a part that has changed since is no more than a hint that it was there.
            if part.timestamp == timestamp and not part.is_idle and not part.is_removed:
                return timestamp
            heappop(heap)
        return None
